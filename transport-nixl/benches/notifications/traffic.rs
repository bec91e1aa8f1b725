//! What is sent and taken in, the same for either side of a pair, and how long it takes.

use std::{
    fmt,
    time::{Duration, Instant},
};

use crate::rounds::median;

/// One of two agents of this process.
#[derive(Clone, Copy)]
pub(crate) enum End {
    Here,
    There,
}

impl End {
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Here => Self::There,
            Self::There => Self::Here,
        }
    }
}

/// Two agents that are connected, without a progress thread: they move when they are polled.
pub(crate) trait Pair {
    /// Sends a notification to the other end.
    fn send(&mut self, from: End, bytes: &[u8]) -> Result<(), String>;
    /// Lets an end move, as its user would in each turn of a loop; how many notifications it took in.
    fn poll(&mut self, at: End) -> Result<usize, String>;
}

/// One figure.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Metric {
    /// A poll when nothing comes.
    Idle,
    /// Half a round trip of notifications of so many bytes.
    Latency(usize),
    /// A burst of notifications of so many bytes, from the first that is sent to the last that is taken in.
    Rate(usize),
}

pub(crate) const METRICS: [Metric; 4] = [Metric::Idle, Metric::Latency(16), Metric::Rate(256), Metric::Latency(64 << 10)];

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle => f.write_str("idle"),
            Self::Latency(bytes) => write!(f, "latency-{bytes}"),
            Self::Rate(bytes) => write!(f, "rate-{bytes}"),
        }
    }
}

/// Polls between two looks at the clock.
pub(crate) const POLLS: usize = 100;
/// Notifications of a burst. More than shared memory has room for at once, fewer than a transport takes in unasked.
pub(crate) const BURST: usize = 256;
/// Polls without what was sent: seconds of them.
const PATIENCE: u32 = 10_000_000;

/// Nanoseconds of a poll or a notification: the median of the steps of a block that takes about `time`, once it is warm.
pub(crate) fn block(pair: &mut impl Pair, metric: Metric, time: Duration) -> Result<f64, String> {
    let (Metric::Latency(size) | Metric::Rate(size)) = metric else { return steps(time, POLLS, || idle(pair)) };
    let bytes = vec![b'x'; size];
    match metric {
        Metric::Rate(_) => steps(time, BURST, || burst(pair, &bytes)),
        _ => steps(time, 2, || round_trip(pair, &bytes)),
    }
}

fn steps(time: Duration, of_a_step: usize, mut step: impl FnMut() -> Result<(), String>) -> Result<f64, String> {
    let mut run = |time: Duration| {
        let (mut took, start) = (Vec::new(), Instant::now());
        while took.is_empty() || start.elapsed() < time {
            let before = Instant::now();
            step()?;
            took.push(before.elapsed().as_nanos() as f64);
        }
        Ok::<_, String>(took)
    };
    run(time / 10)?;
    Ok(median(&mut run(time)?) / of_a_step as f64)
}

fn idle(pair: &mut impl Pair) -> Result<(), String> {
    for _ in 0..POLLS {
        if pair.poll(End::Here)? != 0 {
            return Err("something came while nothing should".into());
        }
    }
    Ok(())
}

fn round_trip(pair: &mut impl Pair, bytes: &[u8]) -> Result<(), String> {
    for from in [End::Here, End::There] {
        pair.send(from, bytes)?;
        arrive(pair, from.other(), 1)?;
    }
    Ok(())
}

fn burst(pair: &mut impl Pair, bytes: &[u8]) -> Result<(), String> {
    (0..BURST).try_for_each(|_| pair.send(End::Here, bytes))?;
    arrive(pair, End::There, BURST)
}

/// Polls until so many have come. The sender is polled where nothing came: it may have more to send.
fn arrive(pair: &mut impl Pair, at: End, count: usize) -> Result<(), String> {
    let mut left = count;
    for _ in 0..PATIENCE {
        match pair.poll(at)? {
            0 => drop(pair.poll(at.other())?),
            came => left = left.checked_sub(came).ok_or("more came than was sent")?,
        }
        if left == 0 {
            return Ok(());
        }
    }
    Err(format!("{left} of {count} notifications did not come"))
}
