//! Which bytes come, and where they lie.

use super::{
    Bench, Case, Command, Fetch, LARGEST, LATER, ROOM, Ranges, SOURCE, Sides, TARGET, Trouble, ensure, export, fill, holds,
    regions, register, sides,
};
use crate::certify::cases::{connect::told, notify::link};

pub(super) const CASES: &[Case] = &[
    Case {
        id: "read/bytes",
        requires: "every size from 1 B to 16 MiB, at odd offsets, byte for byte and nothing beside it",
        run: bytes,
    },
    Case {
        id: "read/ranges",
        requires: "many ranges, adjacent, out of order, overlapping, lie one after the other as they were asked for",
        run: ranges,
    },
    Case { id: "read/many", requires: "reads from two peers at the same time do not mix", run: many },
    Case {
        id: "read/bounds",
        requires: "ranges outside the region or the destination are refused before anything moves",
        run: bounds,
    },
];

fn bytes(bench: &mut Bench) -> Result<(), Trouble> {
    let at = sides(bench)?;
    let (_, from, into) = regions(bench, &at, ROOM)?;
    let powers = (0..).map(|exponent| 1u64 << exponent).take_while(|size| *size <= LARGEST);
    for size in powers.flat_map(|power| [power, power + power / 2 + 1]).filter(|size| *size <= LARGEST) {
        fill(bench, at.reader, into, TARGET)?;
        let (offset, to) = (13 + size % 64 * 2, 7 + size % 32 * 2);
        at.good(bench, &Fetch::new(&from, &[(offset, size)], into, to))?;
        holds(bench, at.reader, into, 0, TARGET, &[(0, to)])?;
        holds(bench, at.reader, into, to + size, TARGET, &[(to + size, ROOM - to - size)])?;
    }
    Ok(())
}

fn ranges(bench: &mut Bench) -> Result<(), Trouble> {
    const BYTES: u64 = 1 << 20;
    let at = sides(bench)?;
    let (_, from, into) = regions(bench, &at, BYTES)?;
    let lists: [Ranges; 6] = [
        (0..1000).map(|part| (part * 7919 % (BYTES - 100), 1 + part % 97)).collect(),
        (0..1000).map(|part| (part, 1)).collect(),
        (0..200).rev().map(|part| (part * 17, 17)).collect(),
        vec![(5, 100); 9],
        vec![(0, 1000), (500, 1000), (999, 2), (0, 1)],
        vec![(1, 3), (BYTES - 1, 1), (1, 70_001), (0, 1)],
    ];
    for list in lists {
        fill(bench, at.reader, into, TARGET)?;
        let (to, length) = (3, list.iter().map(|(_, length)| length).sum::<u64>());
        at.good(bench, &Fetch::new(&from, &list, into, to))?;
        holds(bench, at.reader, into, 0, TARGET, &[(0, to)])?;
        holds(bench, at.reader, into, to + length, TARGET, &[(to + length, BYTES - to - length)])?;
    }
    Ok(())
}

fn many(bench: &mut Bench) -> Result<(), Trouble> {
    const BYTES: u64 = 4 << 20;
    const PART: u64 = 100_003;
    const EACH: u64 = 16;
    let one = sides(bench)?;
    let owner = bench.raw("q")?;
    let states = bench.tell(owner, Command::Metadata)?;
    super::permit(bench, owner, true)?;
    let other = Sides { owner, reader: one.reader, peer: link(bench, one.reader, &states["metadata"])?, states };
    let (_, from_one, into) = regions(bench, &one, BYTES)?;
    let region = register(bench, owner, BYTES, LATER)?;
    let from_other = export(bench, owner, region)?;
    let mut under_way = Vec::new();
    // Side by side in one destination: from the one forwards, from the other backwards and other bytes.
    for part in 0..EACH {
        let fetch = Fetch::new(&from_one, &[(1 + part * PART * 2, PART)], into, part * 2 * PART);
        under_way.push((one.start(bench, &fetch)?, fetch));
        let back = EACH - 1 - part;
        let fetch = Fetch::new(&from_other, &[(6 + back * PART * 2, PART)], into, (part * 2 + 1) * PART);
        let fetch = Fetch { pattern: LATER, ..fetch };
        under_way.push((other.start(bench, &fetch)?, fetch));
    }
    // They end in any order.
    for (read, _) in &under_way {
        let seen = |bench: &Bench| bench.all(one.reader).iter().any(|told| told["event"] == "landed" && told["read"] == *read);
        while !seen(bench) {
            bench.wait(one.reader, "landed", |_| true)?;
        }
    }
    for (read, fetch) in &under_way {
        let ends = told(bench, one.reader, "landed", "read", *read)?;
        ensure(ends == 1, || format!("expected one end of a read, got {ends}"))?;
        one.landed(bench, fetch)?;
    }
    let wrong = bench.all(one.reader).iter().find(|told| told["event"] == "landed" && told["result"] != one.states["reads"]);
    ensure(wrong.is_none(), || format!("expected all to end well: {wrong:?}"))
}

fn bounds(bench: &mut Bench) -> Result<(), Trouble> {
    const BYTES: u64 = 100_000;
    const HUGE: u64 = u64::MAX;
    let at = sides(bench)?;
    let (source, from, into) = regions(bench, &at, BYTES)?;
    let bad: [(Ranges, u64); 14] = [
        (vec![], 0),
        (vec![(0, 0)], 0),
        (vec![(0, 10), (10, 0)], 0),
        (vec![(0, BYTES + 1)], 0),
        (vec![(BYTES, 1)], 0),
        (vec![(BYTES - 1, 2)], 0),
        (vec![(0, 10), (BYTES - 1, 2)], 0),
        (vec![(HUGE, 1)], 0),
        (vec![(1, HUGE)], 0),
        (vec![(HUGE, HUGE)], 0),
        (vec![(0, 2)], BYTES - 1),
        (vec![(0, 1)], BYTES),
        (vec![(0, 1)], HUGE),
        (vec![(0, BYTES / 2 + 1), (0, BYTES / 2)], 0),
    ];
    for (ranges, to) in bad {
        let answer = at.ask(bench, &Fetch::new(&from, &ranges, into, to))?;
        ensure(answer["result"] == "invalid", || format!("expected invalid for {ranges:?} to {to}: {answer}"))?;
    }
    told(bench, at.reader, "landed", "read", 0)?; // what would be told is told by then
    let landed = bench.all(at.reader).iter().any(|told| told["event"] == "landed");
    ensure(!landed, || "a read that was refused has ended".into())?;
    at.untouched(bench, into, BYTES)?;
    at.good(bench, &Fetch::new(&from, &[(0, BYTES)], into, 0))?;
    holds(bench, at.owner, source, 0, SOURCE, &[(0, BYTES)])
}
