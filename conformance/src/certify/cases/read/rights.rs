//! Who may read, and from when on nobody may any more.

use lease_proto::{
    frame::{Frame, HEADER},
    id::Incarnation,
    time::Duration,
};

use super::{
    Bench, Case, Command, Fetch, LARGEST, LATER, SOURCE, Sides, TARGET, TOKEN, Trouble, ensure, export, fill, landing, permit,
    regions, register, registered, served, sides,
};
use crate::engine::{Purpose, hex, unhex};

pub(super) const CASES: &[Case] = &[
    Case {
        id: "read/junk-region",
        requires: "a region that is none, was altered or is another peer's gives no bytes and harms nothing",
        run: junk_region,
    },
    Case {
        id: "read/token",
        requires: "an owner serves nobody whose token is guessed, or withdrawn by the time it serves",
        run: token,
    },
    Case {
        id: "read/revoked-during",
        requires: "a read whose token is withdrawn while it runs is served whole or not at all",
        run: revoked_during,
    },
    Case {
        id: "read/fenced",
        requires: "no read under way ends well with what was written after a fence, and none begun later ends well at all",
        run: fenced,
    },
    Case {
        id: "read/deregistered",
        requires: "a region that was ended is not read any more, where the transport states it, and its memory is given back",
        run: deregistered,
    },
];

const BYTES: u64 = 100_000;

fn framed(payload: &[u8]) -> String {
    let mut bytes = vec![0; payload.len() + HEADER];
    let length = Frame::encode(Incarnation(1), payload, &mut bytes).unwrap_or(0);
    hex(bytes.get(..length).unwrap_or_default())
}

fn flipped(bytes: &[u8], at: usize) -> Vec<u8> {
    bytes.iter().enumerate().map(|(place, byte)| if place == at { byte ^ 0x40 } else { *byte }).collect()
}

fn junk_region(bench: &mut Bench) -> Result<(), Trouble> {
    let at = sides(bench)?;
    let (_, from, into) = regions(bench, &at, BYTES)?;
    let whole = unhex(&from).unwrap_or_default();
    let payload = Frame::decode(&whole).map(|frame| frame.payload().to_vec()).unwrap_or_default();
    // Damaged, cut, or of something else: that can be told at once.
    let mut bad: Vec<String> = vec![String::new(), "00".repeat(64), hex(b"KVF")];
    bad.extend((0..whole.len()).map(|cut| hex(&whole[..cut])));
    bad.extend((0..whole.len()).map(|place| hex(&flipped(&whole, place))));
    bad.extend([b"".as_slice(), b"x", &[0xff; 300], b"loopback", b"ucx"].map(framed));
    bad.extend((0..payload.len()).map(|cut| framed(&payload[..cut])));
    bad.push(framed(&[payload.as_slice(), b"!"].concat()));
    bad.push(framed(&flipped(&payload, 0)));
    for from in bad {
        let answer = at.ask(bench, &Fetch::new(&from, &[(0, 100)], into, 0))?;
        ensure(answer["result"] == "invalid", || format!("expected invalid for a region that is none: {answer}"))?;
    }
    // What was altered inside a frame that is right, an owner that serves finds out, or it was no harm.
    if at.states["reads"] == "served" {
        for place in 0..payload.len() {
            let fetch = Fetch::new(&framed(&flipped(&payload, place)), &[(0, 100)], into, 0);
            refused_or_right(bench, &at, &fetch)?;
        }
    }
    let stranger = bench.raw("q")?;
    let region = register(bench, stranger, BYTES, LATER)?;
    let fetch = Fetch::new(&export(bench, stranger, region)?, &[(0, 100)], into, 0);
    refused_or_right(bench, &at, &fetch)?;
    at.good(bench, &Fetch::new(&from, &[(0, BYTES)], into, 0))
}

/// Refused now or later, or else every byte is right.
fn refused_or_right(bench: &mut Bench, at: &Sides, fetch: &Fetch) -> Result<(), Trouble> {
    let answer = at.ask(bench, fetch)?;
    match answer["read"].as_u64() {
        Some(read) => {
            let result = at.either(bench, read, fetch)?;
            ensure(at.is_good(&result) || result == "rejected", || format!("expected rejected, got {result}"))
        }
        None => ensure(answer["result"] == "invalid", || format!("expected invalid: {answer}")),
    }
}

/// This read is refused by its owner, and nothing moves.
fn rejected(bench: &mut Bench, at: &Sides, fetch: &Fetch) -> Result<(), Trouble> {
    let read = at.start(bench, fetch)?;
    let result = at.end(bench, read)?;
    ensure(result == "rejected", || format!("expected rejected, got {result}"))?;
    at.untouched(bench, fetch.into, BYTES)
}

fn token(bench: &mut Bench) -> Result<(), Trouble> {
    let at = served(bench)?;
    let (_, from, into) = regions(bench, &at, BYTES)?;
    let fetch = Fetch::new(&from, &[(0, BYTES)], into, 0);
    let (number, nonce) = TOKEN;
    for guessed in [(number, nonce ^ 1), (number, 0), (number + 1, nonce), (0, 0), (u64::MAX, u64::MAX)] {
        rejected(bench, &at, &Fetch { token: guessed, ..fetch.clone() })?;
    }
    permit(bench, at.owner, false)?;
    rejected(bench, &at, &fetch)?;
    permit(bench, at.owner, true)?;
    at.good(bench, &fetch)
}

fn revoked_during(bench: &mut Bench) -> Result<(), Trouble> {
    let at = served(bench)?;
    let (source, from, into) = regions(bench, &at, LARGEST)?;
    for size in [1000, 200_000, 3_000_000, LARGEST] {
        for progress in 0..4 {
            permit(bench, at.owner, true)?;
            fill(bench, at.owner, source, SOURCE)?;
            let fetch = Fetch::new(&from, &[(0, size)], into, 0);
            let read = at.start(bench, &fetch)?;
            for _ in 0..progress {
                bench.next(at.owner, Duration::from_millis(1))?;
            }
            // The lease is over, and its blocks are used again.
            permit(bench, at.owner, false)?;
            fill(bench, at.owner, source, LATER)?;
            let result = at.either(bench, read, &fetch)?;
            ensure(at.is_good(&result) || result == "rejected", || format!("expected rejected, got {result}"))?;
        }
    }
    Ok(())
}

fn fenced(bench: &mut Bench) -> Result<(), Trouble> {
    let at = sides(bench)?;
    if at.states["fence"] != true {
        return Err(Trouble::Skip("the transport states no fence".into()));
    }
    let (shared, _, into) = regions(bench, &at, LARGEST)?;
    let answer = bench.tell(at.owner, Command::Fence { region: shared })?;
    ensure(answer["result"] == "invalid", || format!("fenced what is for many leases: {answer}"))?;
    let one_lease = Command::Register {
        bytes: LARGEST as usize,
        pattern: SOURCE,
        purpose: Purpose::Blocks,
        one_lease: true,
        elsewhere: false,
    };
    let region = registered(bench, at.owner, one_lease)?;
    let fetch = Fetch::new(&export(bench, at.owner, region)?, &[(0, LARGEST)], into, 0);
    let read = at.start(bench, &fetch)?;
    let result = at.either(bench, read, &fetch)?;
    ensure(result == "fenced", || format!("expected fenced, got {result}"))?;
    fill(bench, at.reader, into, TARGET)?;
    let read = at.start(bench, &fetch)?;
    while bench.tell(at.owner, Command::Fence { region })?["result"] == "would block" {
        bench.next(at.owner, Duration::from_millis(1))?;
    }
    fill(bench, at.owner, region, LATER)?;
    at.either(bench, read, &fetch)?;
    // The fence may have cost the connection.
    if let Some(read) = at.ask(bench, &fetch)?["read"].as_u64() {
        let result = at.end(bench, read)?;
        let well = ["fenced", "served", "one_sided"].contains(&result.as_str());
        ensure(!well, || format!("a read of a fenced region ended well, as {result}"))?;
    }
    Ok(())
}

fn deregistered(bench: &mut Bench) -> Result<(), Trouble> {
    let at = sides(bench)?;
    if at.states["late_read_is_safe"] == false {
        return Err(Trouble::Skip("the transport states that such a read harms the owner".into()));
    }
    let (source, from, into) = regions(bench, &at, LARGEST)?;
    let whole = Fetch::new(&from, &[(0, LARGEST)], into, 0);
    let read = at.start(bench, &whole)?;
    super::given_back(bench, at.owner, source)?;
    let result = at.either(bench, read, &whole)?;
    ensure(at.is_good(&result) || result == "rejected", || format!("expected rejected, got {result}"))?;
    let target = landing(bench, at.reader, BYTES)?;
    rejected(bench, &at, &Fetch::new(&from, &[(0, BYTES)], target, 0))?;
    // Another region in its place is another one.
    let (_, from, into) = regions(bench, &at, BYTES)?;
    at.good(bench, &Fetch::new(&from, &[(0, BYTES)], into, 0))
}
