//! A run of our own: two peer processes, told of each other.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use super::{
    Cores,
    child::{Child, End},
    metric::{Figure, Metric, name},
    node::Side,
    perftest::loopback,
};
use crate::{engine::Kinds, launch::prepare};

/// What a run of ours is started with.
#[derive(Clone, Debug)]
pub struct Ours {
    /// The peer executable of the transport.
    pub executable: PathBuf,
    /// Where its processes run.
    pub cores: Cores,
}

impl Ours {
    /// One measurement of so many turns; nothing if it did not end within the time.
    ///
    /// # Errors
    /// Why there is no figure.
    pub(super) fn run(&self, metric: &Metric, times: u64, warmup: u64, limit: Duration) -> Result<Option<Figure>, String> {
        let run = || self.pair(metric, times, warmup, Instant::now() + limit);
        run().map_err(|error| format!("kvlease's own run of {metric}: {error}"))
    }

    fn pair(&self, metric: &Metric, times: u64, warmup: u64, until: Instant) -> Result<Option<Figure>, String> {
        let mut follow = self.start(metric, times, warmup, Side::Follow)?;
        let mut lead = self.start(metric, times, warmup, Side::Lead)?;
        let (Some(one), Some(other)) = (follow.line(until)?, lead.line(until)?) else { return Ok(None) };
        follow.tell(&other)?;
        lead.tell(&one)?;
        let Some(line) = lead.line(until)? else { return Ok(None) };
        let figure = serde_json::from_str(&line).map_err(|_| format!("expected a figure, got {line:?}"))?;
        for process in [lead, follow] {
            match process.end(until)? {
                End::Well(_) => {}
                End::Badly(text) => return Err(text),
                End::TooLate => return Ok(None),
            }
        }
        Ok(Some(figure))
    }

    fn start(&self, metric: &Metric, times: u64, warmup: u64, side: Side) -> Result<Child, String> {
        let mut command = self.cores.command(&self.executable, side);
        command.args(["bench", "--side", &name(side), "--lane", &name(metric.lane), "--mode", &name(metric.mode)]);
        command.args(["--kind", &name(metric.kind), "--bytes", &metric.bytes.to_string()]);
        command.args(["--times", &times.to_string(), "--warmup", &warmup.to_string()]);
        Child::spawn(prepare(command.envs(loopback()), "ucx", None, Kinds::HOST))
    }
}
