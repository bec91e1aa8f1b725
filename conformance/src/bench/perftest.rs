//! `ucx_perftest`: where it is, what it can, one run of it, and what it printed.

use std::{
    env,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use super::{
    Cores,
    child::{Child, End},
    metric::{Kind, Metric, Mode, name},
    node::Side,
};

/// Names the executable, where it is not in the path.
const VARIABLE: &str = "KVLEASE_UCX_PERFTEST";
/// The version that the transport is built with.
const VERSION: &str = "1.22";
/// How long it may take to tell its options.
const PATIENCE: Duration = Duration::from_secs(10);
/// Before a client that came too early comes again.
const PAUSE: Duration = Duration::from_millis(10);

/// A `ucx_perftest` that has what a comparison needs.
#[derive(Clone, Debug)]
pub struct Perftest {
    path: PathBuf,
    /// Of its libraries, where they lie beside it and the system would not look.
    libraries: Option<PathBuf>,
    /// Whether it can make connections that notice a dead peer, as ours always do.
    error_handling: bool,
    version: Option<String>,
    cores: Cores,
}

impl Perftest {
    /// The one that is named, else that of the environment, of the path, or the one that `cargo xtask bench` fetched into the
    /// target folder that the folder `here` of this program is in.
    ///
    /// # Errors
    /// That there is none, or that it does not do, and what to do.
    pub fn find(named: Option<&Path>, here: &Path, cores: Cores) -> Result<Self, String> {
        let set = || env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        if let Some(path) = named.map(Path::to_owned).or_else(set) {
            return Self::open(path, cores);
        }
        let path = env::var_os("PATH").unwrap_or_default();
        let in_path = env::split_paths(&path).map(|folder| folder.join("ucx_perftest"));
        let fetched = here.parent().map(|target| target.join("perftest/libucx/bin/ucx_perftest"));
        match in_path.chain(fetched).find(|path| path.is_file()) {
            Some(path) => Self::open(path, cores),
            None => Err(format!(
                "ucx_perftest is not here: run `cargo xtask bench`, which fetches it for x86_64, or name it by {VARIABLE} or --perftest"
            )),
        }
    }

    fn open(path: PathBuf, cores: Cores) -> Result<Self, String> {
        let lib = path.parent().and_then(Path::parent).map(|root| root.join("lib"));
        let libraries = lib.filter(|lib| lib.join("libucp.so.0").is_file());
        let mut perftest = Self { path, libraries, error_handling: false, version: None, cores };
        let help = perftest.told(&perftest.path, "-h")?;
        let has = |option: &str| help.lines().any(|line| line.trim_start().starts_with(option));
        if let Some(missing) = ["ucp_am_lat", "ucp_am_bw", "ucp_get", "-E <mode>"].into_iter().find(|option| !has(option)) {
            let path = perftest.path.display();
            return Err(format!("{path} -h does not name {missing}: expected the ucx_perftest of UCX {VERSION}"));
        }
        perftest.error_handling = has("-e ");
        // Told by its neighbour, if at all: `# Library version: 1.22.0`.
        let info = perftest.told(&perftest.path.with_file_name("ucx_info"), "-v").unwrap_or_default();
        perftest.version =
            info.lines().find_map(|line| line.strip_prefix("# Library version: ")).map(|word| word.trim().to_owned());
        Ok(perftest)
    }

    /// Which one it is, for the reader of a report.
    pub fn describe(&self) -> String {
        let path = self.path.display();
        match &self.version {
            Some(version) if version.starts_with(VERSION) => format!("{path}, UCX {version}"),
            Some(version) => format!("{path}, UCX {version}; ours is {VERSION}, so the ratios compare versions, too"),
            None => format!("{path}, of a version it does not tell; ours is {VERSION}"),
        }
    }

    /// One measurement of so many turns; nothing if it did not end within the time.
    ///
    /// # Errors
    /// Why there is no figure.
    pub(super) fn run(&self, metric: &Metric, times: u64, warmup: u64, limit: Duration) -> Result<Option<f64>, String> {
        let until = Instant::now() + limit;
        let why = |error: String| format!("{} for {metric}: {error}", self.path.display());
        let port = free_port().map_err(|error| why(format!("no free port: {error}")))?;
        let server = self.start(metric, None, port, times, warmup).map_err(why)?;
        let lines = loop {
            let client = self.start(metric, Some("127.0.0.1"), port, times, warmup).map_err(why)?;
            match client.end(until).map_err(why)? {
                End::Well(lines) => break Ok(lines),
                End::TooLate => return Ok(None),
                End::Badly(text) if !text.contains("refused") || server.has_ended().map_err(why)? => break Err(text),
                // Nothing tells when the server listens.
                End::Badly(_) => thread::sleep(PAUSE),
            }
        };
        let patience = if lines.is_ok() || server.has_ended().map_err(why)? { until } else { Instant::now() };
        match (lines, server.end(patience).map_err(why)?) {
            (Ok(lines), End::Well(_)) => Row::parse(&lines).map(|row| Some(row.value(metric))).map_err(why),
            (Ok(_), End::TooLate) => Ok(None),
            (_, End::Badly(text)) => Err(why(format!("its server ended with {text}"))),
            (Err(text), _) => Err(why(format!("it ended with {text}"))),
        }
    }

    fn start(&self, metric: &Metric, server: Option<&str>, port: u16, times: u64, warmup: u64) -> Result<Child, String> {
        let side = if server.is_some() { Side::Lead } else { Side::Follow };
        let mut command = self.with_libraries(self.cores.command(&self.path, side));
        command.args(server).args(["-p", &port.to_string()]);
        let test = match metric.kind {
            Kind::Latency => "ucp_am_lat",
            Kind::Rate => "ucp_am_bw",
            Kind::Read | Kind::Idle => "ucp_get",
        };
        let wait = match metric.mode {
            Mode::Event => "sleep",
            Mode::Poll => "poll",
        };
        command.args(["-t", test, "-s", &metric.bytes.to_string(), "-n", &times.to_string(), "-w", &warmup.max(1).to_string()]);
        command.args(["-E", wait, "-v"]).args(self.error_handling.then_some("-e"));
        // What the transport gives its own UCX, but for emulation: without it there are no gets on these lanes.
        command.envs(loopback()).env("UCX_TLS", name(metric.lane)).env("UCX_PROTO_EMULATION_ENABLE", "y");
        for (variable, value) in [("UCX_MM_ERROR_HANDLING", "y"), ("UCX_KEEPALIVE_INTERVAL", "1s")] {
            if env::var_os(variable).is_none() {
                command.env(variable, value);
            }
        }
        Child::spawn(command.env("UCX_WARN_UNUSED_ENV_VARS", "n").env("UCX_LOG_LEVEL", "error"))
    }

    fn with_libraries(&self, mut command: Command) -> Command {
        if let Some(libraries) = &self.libraries {
            let others = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
            let all = [libraries.clone()].into_iter().chain(env::split_paths(&others));
            // A folder with a colon in its name cannot be passed on; then the loader says what it misses.
            command.envs(env::join_paths(all).ok().map(|all| ("LD_LIBRARY_PATH", all)));
        }
        command
    }

    fn told(&self, program: &Path, option: &str) -> Result<String, String> {
        let name = program.display();
        match Child::spawn(self.with_libraries(Command::new(program)).arg(option))?.end(Instant::now() + PATIENCE)? {
            End::Well(lines) => Ok(lines.join("\n")),
            End::Badly(text) => Err(format!("{name} {option} ended with {text}")),
            End::TooLate => Err(format!("{name} {option} did not end within {} s", PATIENCE.as_secs())),
        }
    }
}

/// Keeps sockets within the machine, on both sides alike, unless the operator says where they shall go.
pub(super) fn loopback() -> Option<(&'static str, &'static str)> {
    env::var_os("UCX_NET_DEVICES").is_none().then_some(("UCX_NET_DEVICES", "lo"))
}

/// A port that was free just now.
fn free_port() -> std::io::Result<u16> {
    TcpListener::bind(("127.0.0.1", 0))?.local_addr().map(|address| address.port())
}

/// The last line of `-v`: iterations, then latency in microseconds (percentile, average, overall), bandwidth and rate (average,
/// overall).
#[derive(Debug, PartialEq)]
struct Row {
    median: f64,
    overall: f64,
    rate: f64,
}

impl Row {
    fn parse(lines: &[String]) -> Result<Self, String> {
        let numbers = |line: &String| -> Option<Vec<f64>> { line.split(',').map(|field| field.trim().parse().ok()).collect() };
        match lines.iter().rev().find_map(numbers).as_deref() {
            Some(&[_, median, _, overall, _, _, _, rate]) if overall > 0.0 => Ok(Self { median, overall, rate }),
            _ => Err(format!("expected eight numbers as -v prints them, got {:?}", lines.last().map_or("", String::as_str))),
        }
    }

    fn value(&self, metric: &Metric) -> f64 {
        match metric.kind {
            Kind::Latency => self.median,
            Kind::Rate => self.rate,
            // Its own bandwidth is in units of 2^20, its rate has no decimals.
            Kind::Read | Kind::Idle => metric.bytes as f64 / self.overall,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::metric::all, *};

    const PRINTED: &str = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
        5000,24.000,178.948,20.000,349.26,156.85,5588,2510\n\
        5000,24.531,178.948,16.384,349.26,156.85,5588,61035\n";

    fn row(printed: &str) -> Result<Row, String> {
        Row::parse(&printed.lines().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn the_last_line_counts_and_each_kind_takes_its_own_column() {
        let row = row(PRINTED).unwrap();
        assert_eq!(row, Row { median: 24.531, overall: 16.384, rate: 61035.0 });
        let value = |id: &str| row.value(all().iter().find(|metric| metric.to_string() == id).unwrap());
        assert_eq!([value("tcp/poll/latency-200"), value("tcp/poll/rate-200")], [24.531, 61035.0]);
        assert_eq!(value("shm/event/read-16m").round(), 1_024_000.0);
    }

    #[test]
    fn anything_else_is_refused_and_shown() {
        for printed in ["", "no numbers", "1,2,3", "1,2,3,0,5,6,7,8", "5000,24.0,a,16,1,1,1,1"] {
            let Err(text) = row(printed) else { panic!("{printed}") };
            assert!(text.contains("expected eight numbers") && text.contains(printed), "{text}");
        }
    }

    #[test]
    fn what_is_missing_says_what_to_do() {
        let named = Path::new("/nowhere/ucx_perftest");
        let text = Perftest::find(Some(named), named, Cores::of_this_machine()).unwrap_err();
        assert!(text.contains("cannot start /nowhere/ucx_perftest"), "{text}");
    }
}
