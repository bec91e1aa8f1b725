//! What is measured, and what is hoped for.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A way between two processes of one machine, as UCX names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Lane {
    /// Sockets.
    Tcp,
    /// Shared memory.
    Shm,
}

/// What a process does while nothing comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// It sleeps until the fabric wakes it.
    Event,
    /// It polls without pause.
    Poll,
}

/// The kind of figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Half a round trip of a notification, in the median.
    Latency,
    /// Notifications a second, one way.
    Rate,
    /// Bytes a second, read out of the peer's memory, one read after the other.
    Read,
    /// A poll when nothing comes in, against UCX's own progress on the same worker.
    Idle,
}

/// One figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Over what.
    pub lane: Lane,
    /// How the processes wait.
    pub mode: Mode,
    /// Of what kind.
    pub kind: Kind,
    /// Bytes of a notification or a read; 0 if idle.
    pub bytes: usize,
}

/// What a measurement gives.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// In the unit of its metric.
    pub value: f64,
    /// How long it took to measure, warming up left out.
    pub seconds: f64,
    /// UCX's own value, where the same process can measure it too.
    pub bare: Option<f64>,
}

const KI: usize = 1 << 10;
const MI: usize = 1 << 20;

/// Everything there is to measure, in the order of the report.
pub fn all() -> Vec<Metric> {
    let both = [Kind::Latency, Kind::Rate, Kind::Read].into_iter().flat_map(|kind| match kind {
        Kind::Latency => vec![(kind, 200), (kind, 64 * KI)],
        Kind::Rate => vec![(kind, 200)],
        Kind::Read => [4 * KI, 64 * KI, MI, 16 * MI].map(|bytes| (kind, bytes)).to_vec(),
        Kind::Idle => vec![],
    });
    let both: Vec<_> = both.collect();
    let mut all = Vec::new();
    for lane in [Lane::Tcp, Lane::Shm] {
        for mode in [Mode::Event, Mode::Poll] {
            all.extend(both.iter().map(|&(kind, bytes)| Metric { lane, mode, kind, bytes }));
        }
        all.push(Metric { lane, mode: Mode::Poll, kind: Kind::Idle, bytes: 0 });
    }
    all
}

impl Metric {
    /// The unit of its figures.
    pub const fn unit(&self) -> &'static str {
        match self.kind {
            Kind::Latency => "us",
            Kind::Rate => "msg/s",
            Kind::Read => "MB/s",
            Kind::Idle => "ns",
        }
    }

    /// The ratio hoped for: ours over theirs.
    pub const fn target(&self) -> Target {
        match self.kind {
            Kind::Latency => Target::AtMost(1.05),
            Kind::Rate => Target::AtLeast(0.9),
            Kind::Read => Target::AtLeast(0.95),
            Kind::Idle => Target::AtMost(1.2),
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", name(self.lane), name(self.mode), name(self.kind))?;
        match self.bytes {
            0 => Ok(()),
            bytes if bytes % MI == 0 => write!(f, "-{}m", bytes / MI),
            bytes if bytes % KI == 0 => write!(f, "-{}k", bytes / KI),
            bytes => write!(f, "-{bytes}"),
        }
    }
}

/// As it is written on command lines.
pub(super) fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Where a ratio should lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// Not above.
    AtMost(f64),
    /// Not below.
    AtLeast(f64),
}

impl Target {
    /// Whether `ratio` lies there.
    pub fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtMost(most) => ratio <= most,
            Self::AtLeast(least) => ratio >= least,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "<= {most}"),
            Self::AtLeast(least) => write!(f, ">= {least}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metric_has_a_name_of_its_own() {
        let names: Vec<String> = all().iter().map(Metric::to_string).collect();
        assert_eq!(names.len(), 2 * (2 * 7 + 1));
        for name in ["tcp/event/latency-200", "shm/poll/latency-64k", "tcp/poll/rate-200", "shm/event/read-16m", "tcp/poll/idle"]
        {
            assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name} in {names:?}");
        }
    }

    #[test]
    fn a_target_is_met_on_its_edge() {
        assert!(Target::AtMost(1.05).is_met(1.05) && !Target::AtMost(1.05).is_met(1.06));
        assert!(Target::AtLeast(0.9).is_met(0.9) && !Target::AtLeast(0.9).is_met(0.89));
    }
}
