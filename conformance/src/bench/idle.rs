//! What a poll costs when nothing comes in, beside UCX's own progress on the same worker.

use std::time::Instant;

use lease_proto::transport::Control;

use super::{
    node::Bare,
    rounds::median,
    traffic::{Traffic, text},
};

/// Calls between two looks at the clock.
const BATCH: u32 = 1000;

/// Nanoseconds of a poll and of a bare progress: medians of batches that take turns, so that what slows the machine slows both.
pub(super) fn idle<T: Control>(traffic: &mut Traffic<T>, bare: Bare<T>, times: u64) -> Result<(f64, f64), String> {
    let transport = traffic.transport();
    let (mut polls, mut bares) = (Vec::new(), Vec::new());
    for _ in 0..(times / u64::from(BATCH)).max(1) {
        let start = Instant::now();
        for _ in 0..BATCH {
            if transport.poll().map_err(text)?.is_some() {
                return Err("something came in while nothing should".into());
            }
        }
        let middle = Instant::now();
        for _ in 0..BATCH {
            bare(transport);
        }
        bares.push(middle.elapsed().as_nanos() as f64 / f64::from(BATCH));
        polls.push((middle - start).as_nanos() as f64 / f64::from(BATCH));
    }
    Ok((median(&mut polls), median(&mut bares)))
}
