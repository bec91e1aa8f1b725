//! Which memory blocks and landings are, who keeps it, and on which threads it may be touched. Bytes are written by copies in, and compared
//! with what is copied out: the device's own copies, and not the fabric's.

use gpu_mem::Kind;

use super::{
    Bench, Case, Command, Fetch, LARGEST, LATER, SOURCE, Sides, TARGET, Trouble, command, ensure, export, fill, given_back,
    holds, landing, register, registered, sides,
};
use crate::engine::Purpose::{Blocks, Landing};

pub(super) const CASES: &[Case] = &[
    Case {
        id: "memory/kind",
        requires: "registered memory is of the kind it says, is taken for that, and reads end in it with the bytes that are there now",
        run: kind,
    },
    Case {
        id: "memory/owned",
        requires: "memory that only its registration keeps is there as long as that, is read from and into, and is given back then",
        run: owned,
    },
    Case {
        id: "memory/threads",
        requires: "memory is filled, registered, compared and given back on fresh threads; registered there where the transport can",
        run: threads,
    },
    Case {
        id: "memory/refused",
        requires: "no bytes, too many, a device that is not there and a range outside are refused by name and leave nothing behind",
        run: refused,
    },
];

const BYTES: u64 = 1 << 20;

fn kind(bench: &mut Bench) -> Result<(), Trouble> {
    let (at, kinds) = (sides(bench)?, bench.memory());
    for (node, purpose, kind) in [(at.owner, Blocks, kinds.blocks), (at.reader, Landing, kinds.landing)] {
        let answer = bench.tell(node, command(1, SOURCE, purpose, false))?;
        ensure(answer["result"] == "ok", || format!("cannot register {kind} memory: {answer}"))?;
        ensure(answer["kind"] == kind.to_string(), || format!("expected {kind} memory, got {}", answer["kind"]))?;
        ensure(kind.is_host() || at.states["cuda"] == true, || format!("took {kind} memory, and states that it takes none"))?;
    }
    for bytes in [1, 4097, LARGEST] {
        let (source, from, into) = super::regions(bench, &at, bytes)?;
        let fetch = Fetch::new(&from, &[(0, bytes)], into, 0);
        at.good(bench, &fetch)?;
        fill(bench, at.owner, source, LATER)?;
        fill(bench, at.reader, into, TARGET)?;
        at.good(bench, &Fetch { pattern: LATER, ..fetch })?;
    }
    Ok(())
}

fn owned(bench: &mut Bench) -> Result<(), Trouble> {
    let at = sides(bench)?;
    let (source, into) = (register(bench, at.owner, BYTES, SOURCE)?, landing(bench, at.reader, BYTES)?);
    let both = [(at.owner, source), (at.reader, into)];
    for (node, region) in both {
        let gone = bench.tell(node, Command::GivenBack { region })?["given_back"] == true;
        ensure(!gone, || "memory was given back while it was registered".into())?;
    }
    let from = export(bench, at.owner, source)?;
    at.good(bench, &Fetch::new(&from, &[(0, BYTES)], into, 0))?;
    holds(bench, at.owner, source, 0, SOURCE, &[(0, BYTES)])?;
    both.into_iter().try_for_each(|(node, region)| given_back(bench, node, region))
}

fn threads(bench: &mut Bench) -> Result<(), Trouble> {
    let at = sides(bench)?;
    for _ in 0..3 {
        let source = registered(bench, at.owner, command(BYTES, SOURCE, Blocks, true))?;
        let into = registered(bench, at.reader, command(BYTES, TARGET, Landing, true))?;
        let from = export(bench, at.owner, source)?;
        at.good(bench, &Fetch::new(&from, &[(0, BYTES)], into, 0))?;
        for (node, region) in [(at.owner, source), (at.reader, into)] {
            let ranges = vec![(0, BYTES)];
            let compare = Command::Compare { region, at: 0, pattern: SOURCE, ranges, elsewhere: true };
            let answer = bench.tell(node, compare)?;
            ensure(answer["matches"] == true, || format!("on a thread, byte {} is not what it shall be", answer["first"]))?;
            bench.tell(node, Command::Deregister { region, elsewhere: true })?;
            given_back(bench, node, region)?;
        }
    }
    works(bench, &at)
}

fn refused(bench: &mut Bench) -> Result<(), Trouble> {
    /// So often that what is left shows among all else that a process does.
    const TIMES: usize = 100;
    /// Of which half of them all is more than anything else takes meanwhile. A device's own memory is not looked at.
    const MUCH: usize = 16 << 20;
    const HUGE: usize = usize::MAX;
    const ABSENT: Kind = Kind::Cuda { device: 999 };
    let (at, kinds) = (sides(bench)?, bench.memory());
    for (node, kind) in [(at.owner, kinds.blocks), (at.reader, kinds.landing)] {
        for (kind, bytes, part, expected) in [
            (kind, 0, (0, 1), "zero size"),
            (kind, HUGE, (0, 1), "too large"),
            (ABSENT, 4096, (0, 1), "unavailable"),
            (kind, MUCH, (0, 0), "zero size"),
            (kind, MUCH, (0, MUCH + 1), "out of range"),
            (kind, MUCH, (MUCH, 1), "out of range"),
            (kind, MUCH, (HUGE, 1), "out of range"),
            (kind, MUCH, (1, HUGE), "out of range"),
            (kind, MUCH, (MUCH - 1, 1), "ok"),
        ] {
            let what = format!("{bytes} bytes of {kind} memory, of which {} from {}", part.1, part.0);
            let answer = bench.tell(node, Command::Allocate { kind: kind.to_string(), bytes, part, times: TIMES })?;
            ensure(answer["result"] == expected, || format!("expected {expected} for {what}: {answer}"))?;
            let left = answer["left"].as_u64().unwrap_or(u64::MAX);
            ensure(left < TIMES as u64, || format!("{TIMES} times {what} left {left} files or mappings behind"))?;
            let left = answer["left_bytes"].as_u64().unwrap_or(u64::MAX);
            ensure(left < (TIMES * MUCH / 2) as u64, || format!("{TIMES} times {what} left {left} bytes behind"))?;
        }
    }
    works(bench, &at)
}

/// All is as before.
fn works(bench: &mut Bench, at: &Sides) -> Result<(), Trouble> {
    let (_, from, into) = super::regions(bench, at, BYTES)?;
    at.good(bench, &Fetch::new(&from, &[(0, BYTES)], into, 0))
}
