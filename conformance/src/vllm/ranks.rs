//! All ranks of one engine in one process: started together, and asleep together.

use std::os::fd::BorrowedFd;

use lease_proto::{clock::SystemClock, permits::Permits, time::Duration};
use transport_nixl::{NixlError, NixlTransport};

use crate::{
    cli::{RoleArgs, entropy},
    engine::{
        EngineError, LONGEST_SLEEP, Setup, closed,
        rank::{Rank, Seat},
        say, sleep_on, transport_error,
    },
};

/// Starts a transport, on this lane.
pub type Open<'a> = &'a dyn Fn(Option<&str>) -> Result<NixlTransport, NixlError>;

pub(super) type NixlRank = Rank<NixlTransport>;

/// Starts them, with room for as many legs of requests each as `legs` says.
///
/// # Errors
/// Terms that do not hold, or what the transport says.
pub(super) fn start(args: &RoleArgs, setup: &Setup, legs: usize, open: Open<'_>) -> Result<Vec<NixlRank>, EngineError> {
    // Terms first: they are wrong or right whatever the machine has.
    setup.config.validate(setup.wire)?;
    let ranks = u16::try_from(args.tp).map_err(|_| EngineError::Invalid(format!("--tp {}: too many", args.tp)))?;
    let started = SystemClock.now();
    let rank = |rank| {
        let transport = open(args.transport.lane.as_deref()).map_err(transport_error)?;
        let setup = Setup { seed: entropy()?.0, ..setup.clone() };
        // Nobody is asked when a peer reads, so permits are kept for nothing.
        let clock = Box::new(|| SystemClock.now());
        Rank::new(transport, Permits::new(), clock, &setup, Seat { rank, ranks, started }, legs)
    };
    (0..ranks).map(rank).collect()
}

/// Tells what a rank has to tell, and whose it is.
///
/// # Errors
/// A closed standard output.
pub(super) fn tell(rank: &mut NixlRank, mut hear: impl FnMut(&serde_json::Value)) -> Result<(), EngineError> {
    let number = rank.ear.identity.rank;
    for mut event in std::mem::take(&mut rank.ear.told) {
        hear(&event);
        if let Some(event) = event.as_object_mut() {
            event.insert("rank".into(), number.into());
        }
        say(&event).map_err(closed)?;
    }
    Ok(())
}

/// Sleeps until one of them has something, or `within` is over.
///
/// # Errors
/// What a transport as a whole reports.
pub(super) fn sleep<'r>(ranks: impl Iterator<Item = &'r mut NixlRank>, within: Option<Duration>) -> Result<(), EngineError> {
    let fds = ranks.map(|rank| rank.transport.arm()).collect::<Result<Option<Vec<BorrowedFd<'_>>>, _>>();
    match fds.map_err(transport_error)? {
        Some(fds) => sleep_on(&fds, within.unwrap_or(LONGEST_SLEEP)),
        None => Ok(()),
    }
}
