//! Reads whose peer dies, stands still or is forgotten: each ends once, and its destination is given back.

use super::{Bench, Case, Command, Fetch, LARGEST, Sides, Signal, Trouble, ensure, given_back, link, permit, regions, sides};
use crate::certify::cases::connect::{told, within};

pub(super) const CASES: &[Case] = &[
    Case { id: "read/killed", requires: "a read from a peer that dies ends, and its destination is given back", run: killed },
    Case {
        id: "read/stopped",
        requires: "a read from a peer that stands still waits for it, or does not need it, and is whole",
        run: stopped,
    },
    Case {
        id: "read/disconnected",
        requires: "a read from a peer that is forgotten ends, and its destination is given back",
        run: disconnected,
    },
];

fn killed(bench: &mut Bench) -> Result<(), Trouble> {
    let at = sides(bench)?;
    let (_, from, into) = regions(bench, &at, LARGEST)?;
    let fetch = Fetch::new(&from, &[(0, LARGEST)], into, 0);
    let read = at.start(bench, &fetch)?;
    bench.signal(at.owner, Signal::Kill)?;
    if within(&at.states).is_none() {
        bench.tell(at.reader, Command::Disconnect { peer: at.peer })?; // nobody will ever tell
    }
    at.either(bench, read, &fetch)?;
    at.once(bench, read)?;
    given_back(bench, at.reader, into)?;
    let successor = Sides { owner: bench.raw("p")?, ..at };
    reads_again(bench, successor)
}

/// Over a new connection all is well.
fn reads_again(bench: &mut Bench, at: Sides) -> Result<(), Trouble> {
    let states = bench.tell(at.owner, Command::Metadata)?;
    let again = Sides { peer: link(bench, at.reader, &states["metadata"])?, states, ..at };
    permit(bench, again.owner, true)?;
    let (_, from, into) = regions(bench, &again, LARGEST)?;
    again.good(bench, &Fetch::new(&from, &[(1, LARGEST - 1)], into, 0))
}

fn stopped(bench: &mut Bench) -> Result<(), Trouble> {
    let at = sides(bench)?;
    let (_, from, into) = regions(bench, &at, LARGEST)?;
    let fetch = Fetch::new(&from, &[(0, LARGEST)], into, 0);
    bench.signal(at.owner, Signal::Stop)?;
    let read = at.start(bench, &fetch)?;
    if at.states["reads"] == "served" {
        let ends = told(bench, at.reader, "landed", "read", read)?;
        ensure(ends == 0, || "served by an owner that stands still".into())?;
    }
    if at.needs_owner() {
        bench.signal(at.owner, Signal::Continue)?;
    }
    let result = at.either(bench, read, &fetch)?;
    bench.signal(at.owner, Signal::Continue)?;
    ensure(at.is_good(&result), || format!("expected {}, got {result}", at.states["reads"]))?;
    // In the middle of it.
    let read = at.start(bench, &fetch)?;
    bench.signal(at.owner, Signal::Stop)?;
    bench.signal(at.owner, Signal::Continue)?;
    let result = at.either(bench, read, &fetch)?;
    ensure(at.is_good(&result), || format!("expected {}, got {result}", at.states["reads"]))?;
    at.once(bench, read)
}

fn disconnected(bench: &mut Bench) -> Result<(), Trouble> {
    let at = sides(bench)?;
    let (_, from, into) = regions(bench, &at, LARGEST)?;
    let fetch = Fetch::new(&from, &[(0, LARGEST)], into, 0);
    bench.signal(at.owner, Signal::Stop)?; // so that it is not over before
    let read = at.start(bench, &fetch)?;
    bench.tell(at.reader, Command::Disconnect { peer: at.peer })?;
    if at.states["reads"] != "served" && at.needs_owner() {
        bench.signal(at.owner, Signal::Continue)?; // nobody else can end it
    }
    let result = at.either(bench, read, &fetch)?;
    let served = at.states["reads"] == "served";
    ensure(!(served && at.is_good(&result)), || "served by an owner that stands still".into())?;
    at.once(bench, read)?;
    given_back(bench, at.reader, into)?;
    bench.signal(at.owner, Signal::Continue)?;
    let (_, from, into) = regions(bench, &at, 1000)?;
    let answer = at.ask(bench, &Fetch::new(&from, &[(0, 1)], into, 0))?;
    ensure(answer["result"] == "not connected", || format!("expected not connected: {answer}"))?;
    reads_again(bench, at)
}
