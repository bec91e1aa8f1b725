//! What may be wrong, the cases that must see it, and what they must say.

use conformance::engine::{Command, Filling};
use gpu_mem::Kind;
use lease_proto::frame::Frame;
use serde_json::{Value, json};

use super::{Flaw, Twist, moved, with};

/// A fault, the cases that must see it, and what they must say.
pub(crate) type Row = (&'static [&'static str], &'static str, fn() -> Twist);

/// A promise that a transport breaks, the cases that must see it, and what they must say.
pub(crate) type FlawRow = (&'static [&'static str], &'static str, Flaw);

const SECOND: i64 = 1_000_000_000;

#[rustfmt::skip] // a table
const NOTIFY: &[Row] = &[
    (&["notify/bytes"], "expected 1 bytes as they were sent", || Twist::those("received", |e| e["hex"] == "80", |e| vec![with(e, "hex", "00")])),
    (&["notify/bytes", "notify/empty"], "as they were sent", || Twist::each("received", |e| vec![e.clone(), e])),
    (&["notify/empty"], "did not come", || Twist::those("received", |e| e["length"] == 0, |_| vec![])),
    (&["notify/sizes"], "did not come", || Twist::those("received", |e| (2001..65_536).contains(&length(e)), |_| vec![])),
    (&["notify/sizes"], "did not come", || Twist::those("received", |e| length(e) == 4097, |_| vec![])),
    (&["notify/sizes"], "expected 1023 bytes", || Twist::those("received", |e| length(e) == 1023, |e| vec![with(e, "hex", "00")])),
    (&["notify/largest"], "expected 65536 bytes", || Twist::those("received", |e| e["length"] == 65_536, |e| {
        let hex = e["hex"].as_str().unwrap_or_default().strip_suffix("ff").unwrap_or_default().to_owned();
        vec![with(with(e, "hex", hex), "length", 65_535)]
    })),
    (&["notify/too-large"], "expected too large", || Twist::answers(|command, answer| match command {
        Command::Notify { filling: Filling::Counting(65_537), .. } => Ok(json!({"result": "ok"})),
        _ => answer,
    })),
    (&["notify/too-large"], "expected received, and it did not come", || Twist::lost("received")),
    (&["notify/order"], "expected 7, got 8", || {
        let mut late = None;
        Twist::each("received", move |e| match e["hex"].as_str() {
            Some("07000000") => { late = Some(e); vec![] }
            _ => [e].into_iter().chain(late.take()).collect(),
        })
    }),
    // A long one that the short one behind it overtakes, and one that lost its end.
    (&["notify/order"], "expected 10, got 11", || {
        let mut late = None;
        Twist::each("received", move |e| if length(&e) > 4 { late = Some(e); vec![] } else { [e].into_iter().chain(late.take()).collect() })
    }),
    (&["notify/order"], "not what was sent", || Twist::those("received", |e| length(e) == 65_536, |e| vec![with(e, "hex", "0a000000")])),
    (&["notify/order"], "not accepted", || Twist::answers(|command, answer| match command {
        Command::NotifyMany { .. } => Ok(json!({"result": "peer lost", "sent": 9})),
        _ => answer,
    })),
    // Every second one, one of many, one of many twice, and the last one twice.
    (&["notify/complete", "notify/order", "notify/bytes"], "did not come", || {
        let mut odd = false;
        Twist::each("received", move |e| { odd = !odd; if odd { vec![] } else { vec![e] } })
    }),
    (&["notify/complete"], "did not come", || Twist::those("received", |e| e["hex"] == "07000000", |_| vec![])),
    (&["notify/complete"], "lost", || Twist::those("received", |e| e["hex"] == "07000000", |e| vec![e.clone(), e])),
    (&["notify/never-polled"], "expected received", || Twist::lost("received")),
    (&["notify/never-polled"], "not what was sent, or twice", || Twist::each("received", |e| vec![e.clone(), e])),
    (&["notify/complete"], "as they were sent", || Twist::those("received", |e| e["hex"] == "cf070000", |e| vec![e.clone(), e])),
];

#[rustfmt::skip] // a table
const CONNECT: &[Row] = &[
    (&["connect/early", "connect/gone"], "expected linked", || Twist::lost("linked")),
    (&["connect/early"], "connected to a peer that stands still", Twist::runs_on),
    (&["connect/cancel"], "linked, though it was cancelled", || Twist::ignores(|command| matches!(command, Command::Cancel { .. }))),
    (&["connect/gone"], "expected link_failed", || Twist::lost("link_failed")),
    (&["connect/gone"], "expected 1 failures of one attempt, got 2", || Twist::each("link_failed", |e| vec![e.clone(), e])),
    (&["connect/gone"], "expected 0 failures of one attempt, got 1", || {
        let mut late = None;
        Twist::all(move |e| if e["event"] == "link_failed" { late = Some(e); vec![] } else { [e].into_iter().chain(late.take()).collect() }).reports_no_dead()
    }),
    (&["connect/lost"], "expected link_lost", || Twist::lost("link_lost")),
    (&["connect/lost"], "expected one report, got 2", || Twist::each("link_lost", |e| vec![e.clone(), e])),
    (&["connect/lost", "connect/disconnect"], "expected not connected", || Twist::answers(|command, answer| match command {
        Command::Notify { .. } => Ok(json!({"result": "ok"})),
        _ => answer,
    })),
    (&["connect/disconnect"], "expected not connected", || Twist::ignores(|command| matches!(command, Command::Disconnect { .. }))),
    // Nothing but the transport's own metadata, cut or with another beginning, in a frame that is right.
    (&["connect/garbage"], "bytes of garbage gave", || Twist::answers(|command, answer| match command {
        Command::Connect { metadata } if framed(metadata).is_some_and(|payload| payload.len() == 15) => Ok(json!({"result": "ok", "ticket": 1})),
        _ => answer,
    })),
    (&["connect/garbage"], "bytes of garbage gave", || Twist::answers(|command, answer| match command {
        Command::Connect { metadata } if framed(metadata).is_some_and(|payload| payload.len() == 16 && !payload.starts_with(b"loopback")) => Ok(json!({"result": "ok", "ticket": 1})),
        _ => answer,
    })),
    (&["connect/early"], "expected received", || Twist::lost("received")),
    (&["connect/gone"], "connected to a dead peer", || Twist::each("link_failed", |e| vec![with(with(e, "event", "linked"), "peer", 1)])),
    (&["connect/garbage"], "bytes of garbage gave", || Twist::answers(|command, answer| match command {
        Command::Connect { .. } => answer.map(|answer| if answer["result"] == "invalid" { json!({"result": "ok", "ticket": 1}) } else { answer }),
        _ => answer,
    })),
];

#[rustfmt::skip] // a table
const LEASE: &[Row] = &[
    (&["lease/native/grant", "lease/vllm/grant"], "expected one lease ahead", || Twist::each("granted", |e| vec![moved(e, "expires", 1)])),
    (&["lease/native/grant", "lease/vllm/grant"], "expected one lease ahead", || Twist::each("granted", |e| vec![moved(e, "expires", -SECOND)])),
    (&["lease/native/grant"], "expected granted", || Twist::lost("granted")),
    (&["lease/native/renew", "lease/vllm/renew"], "shortened from", || {
        let mut count = 0;
        Twist::each("renewed", move |e| { count += 1; vec![if count == 4 { moved(e, "expires", -2 * SECOND) } else { e }] })
    }),
    (&["lease/native/renew", "lease/vllm/renew"], "expected renewed", || Twist::says("renewed", "expires", "3.5")),
    (&["lease/native/complete"], "expected valid", || Twist::says("read_done", "verdict", "unverified")),
    (&["lease/vllm/complete"], "expected unverified", || Twist::says("read_done", "verdict", "valid")),
    (&["lease/native/complete", "lease/vllm/complete"], "expected completed", || Twist::says("freed", "reason", "expired")),
    (&["lease/native/complete", "lease/vllm/complete"], "expected resolved", || Twist::lost("resolved")),
    (&["lease/native/served"], "expected it to land as \"one_sided\"", || Twist::says("read_landed", "outcome", "served")),
    (&["lease/native/served"], "expected it to land as \"served\"", || Twist::says("read_landed", "outcome", "one_sided").served()),
    (&["lease/native/served"], "expected it to be proven by served, not by deadline", || Twist::says("read_done", "proof", "deadline").served()),
    (&["lease/native/served"], "expected it to be proven by deadline or completion, not by served", || Twist::says("read_done", "proof", "served")),
    (&["lease/native/served", "lease/native/fenced", "lease/native/complete", "lease/vllm/complete"], "expected every byte", || Twist::says("read_landed", "matches", false)),
    (&["lease/native/served", "lease/native/fenced"], "expected completed", || Twist::says("freed", "reason", "expired")),
    (&["lease/native/fenced"], "expected fenced", || Twist::says("read_done", "proof", "deadline")),
    (&["lease/native/fenced"], "expected fenced", || Twist::says("read_landed", "outcome", "one_sided")),
    (&["lease/native/release", "lease/vllm/release"], "expected", || Twist::says("freed", "reason", "expired")),
    (&["lease/native/expire", "lease/vllm/expire", "lease/vllm/abort-promised"], "freed before its promise ran out", || {
        Twist::each("freed", |e| { let early = e["expires"].clone(); vec![moved(with(e, "now", early), "now", -1)] })
    }),
    (&["lease/native/expire", "lease/vllm/expire", "lease/vllm/abort-promised"], "not freed at the first poll", || {
        Twist::each("freed", |e| { let late = e["expires"].clone(); vec![with(e, "previous_poll", late)] })
    }),
    (&["lease/native/expire", "lease/vllm/expire", "lease/vllm/abort-promised"], "the last promise was", || {
        Twist::each("freed", |e| vec![moved(moved(moved(e, "expires", -SECOND), "now", -SECOND), "previous_poll", -SECOND)])
    }),
    (&["lease/native/expire"], "expected it to end as expired", || Twist::says("freed", "reason", "completed")),
    (&["lease/native/expire", "lease/native/abort-promised"], "expected lost", || Twist::lost("lost")),
    (&["lease/vllm/expire", "lease/native/abort"], "expected freed", || Twist::lost("freed")),
    (&["lease/native/abort", "lease/vllm/abort"], "expected aborted", || Twist::says("freed", "reason", "expired")),
    (&["lease/native/abort", "lease/vllm/abort"], "expected it at once", || {
        Twist::each("freed", |e| { let late = e["expires"].clone(); vec![with(e, "now", late)] })
    }),
    (&["lease/native/abort-promised"], "expected revoked", || Twist::says("lost", "why", "expired")),
    (&["lease/native/abort-promised"], "expected the reader to give it back", || Twist::says("freed", "reason", "aborted")),
    (&["overload/native/queue", "overload/vllm/queue"], "freed while it was beaten for", || {
        let mut count = 0;
        Twist::each("renewed", move |e| { count += 1; vec![if count == 5 { with(e, "event", "freed") } else { e }] })
    }),
    (&["overload/native/queue", "overload/vllm/queue"], "expected completed", || Twist::says("freed", "reason", "expired")),
];

#[rustfmt::skip] // a table
const DRIVE: &[Row] = &[
    (&["depth/borrowed/holder", "depth/borrowed/reader"], "the node is not driven by borrowed", Twist::says_no_way),
    (&["depth/bytes/holder", "depth/bytes/reader"], "the node is not driven by bytes", Twist::says_no_way),
    (&["drive/thread/holder", "drive/thread/reader"], "the node is not driven by thread", Twist::says_no_way),
    (ALL_WAYS, "expected renewed", || Twist::lost("renewed")),
    (NATIVE_WAYS, "expected confirmed", || Twist::lost("confirmed")),
    (ALL_WAYS, "expected every byte", || Twist::says("read_landed", "matches", false)),
    (NATIVE_WAYS, "expected valid", || Twist::says("read_done", "verdict", "unverified")),
    (&["depth/bytes/holder", "depth/bytes/reader"], "expected unverified", || Twist::says("read_done", "verdict", "expired")),
    (ALL_WAYS, "expected completed", || Twist::those("freed", |e| e["request"] == "b", |e| vec![with(e, "reason", "expired")])),
    (ALL_WAYS, "expected resolved", || Twist::lost("resolved")),
];

#[rustfmt::skip] // a list
const ALL_WAYS: &[&str] =
    &["depth/bytes/holder", "depth/bytes/reader", "depth/borrowed/holder", "depth/borrowed/reader", "drive/thread/holder", "drive/thread/reader"];
const NATIVE_WAYS: &[&str] = &["depth/borrowed/holder", "depth/borrowed/reader", "drive/thread/holder", "drive/thread/reader"];

#[rustfmt::skip] // a table
const FAULT: &[Row] = &[
    (&["fault/native/reader-killed", "fault/vllm/reader-killed"], "freed before its promise ran out", || {
        Twist::each("freed", |e| { let early = e["expires"].clone(); vec![moved(with(e, "now", early), "now", -1)] })
    }),
    (&["fault/native/reader-killed", "fault/vllm/reader-killed"], "not freed at the first poll", || {
        Twist::each("freed", |e| { let late = e["expires"].clone(); vec![with(e, "previous_poll", late)] })
    }),
    // An answer that the holder forgot: a promise was made that it did not keep.
    (&["fault/native/reader-killed", "fault/vllm/reader-killed"], "the last promise was", || Twist::each("renewed", |e| vec![moved(e, "expires", 1)])),
    (&["fault/native/reader-killed-reading", "fault/vllm/reader-killed-reading"], "freed before its promise ran out", || {
        Twist::each("freed", |e| { let early = e["expires"].clone(); vec![moved(with(e, "now", early), "now", -1)] })
    }),
    (&["fault/native/reader-killed-reading", "fault/vllm/reader-stopped"], "expected it to end as expired", || Twist::says("freed", "reason", "completed").served()),
    (&["fault/vllm/reader-killed-reading", "fault/native/reader-stopped"], "expected it to end as expired", || Twist::says("freed", "reason", "released")),
    (&["fault/native/reader-killed-reading", "fault/vllm/reader-killed-reading"], "expected renewed", || Twist::those("renewed", |e| e["request"] == "b", |_| vec![])),
    (&["fault/vllm/reader-stopped"], "expected unverified", || Twist::says("read_done", "verdict", "invalid")),
    (&["fault/native/reader-stopped", "fault/vllm/reader-stopped"], "a stale read was called valid", || Twist::says("read_done", "verdict", "valid")),
    (&["fault/native/reader-stopped", "fault/vllm/reader-stopped"], "expected read_landed", || Twist::lost("read_landed")),
    (&["fault/native/reader-stopped", "fault/vllm/reader-stopped"], "expected read_done", || Twist::lost("read_done")),
    (&["fault/native/reader-stopped"], "expected lost", || Twist::lost("lost")),
    (&["fault/native/reader-stopped"], "called valid with nothing that proves it", told_valid),
    (&["fault/native/holder-restarted"], "expected lost", || Twist::lost("lost")),
    (&["fault/native/holder-restarted"], "expected it to be the restart", || Twist::says("lost", "why", "claimed")),
    (&["fault/native/holder-restarted", "fault/vllm/holder-restarted"], "expected renewed", || Twist::those("renewed", |e| e["request"] == "b", |_| vec![])),
    (&["fault/vllm/holder-restarted"], "expected unverified", || Twist::says("read_done", "verdict", "valid")),
];

#[rustfmt::skip] // a table
const PARTITION: &[Row] = &[
    (&["fault/native/partition-long", "fault/vllm/partition-long"], "expected it to end as expired", Twist::uncut),
    (&["fault/native/partition-long", "fault/vllm/partition-long"], "not freed at the first poll", || {
        Twist::each("freed", |e| { let late = e["expires"].clone(); vec![with(e, "previous_poll", late)] })
    }),
    (&["fault/native/partition-long", "fault/vllm/partition-long"], "a stale read was called valid", || Twist::says("read_done", "verdict", "valid")),
    (&["fault/native/partition-short", "fault/vllm/partition-short"], "the link was not cut", Twist::uncut),
    (&["fault/native/partition-long"], "expected unproven", || Twist::lost("unproven")),
    (&["fault/native/partition-long"], "read over a link that was cut, and called valid", told_valid),
    (&["fault/native/partition-long", "fault/vllm/partition-long"], "expected renewed", || Twist::those("renewed", |e| e["request"] == "b", |_| vec![])),
    (&["fault/native/partition-short", "fault/vllm/partition-short"], "freed before", || {
        let mut count = 0;
        Twist::each("renewed", move |e| { count += 1; if count == 2 { vec![with(e.clone(), "event", "freed"), e] } else { vec![e] } })
    }),
    (&["fault/native/partition-short", "fault/vllm/partition-short"], "expected completed", || Twist::says("freed", "reason", "expired")),
];

#[rustfmt::skip] // a table
const READ: &[Row] = &[
    (&["read/token", "read/revoked-during"], "expected landed", || Twist::lost("landed").served()),
    (&["read/stopped"], "served by an owner that stands still", || Twist::runs_on().served()),
    (&["read/disconnected"], "expected not connected", || Twist::answers(|command, answer| match command {
        Command::Fetch { ranges, .. } if ranges == &[(0, 1)] => Ok(json!({"result": "ok", "read": 1})),
        _ => answer,
    })),
    (&["read/fenced"], "fenced what is for many leases", || Twist::answers(|command, answer| match command {
        Command::Fence { .. } => Ok(json!({"result": "ok"})),
        _ => answer,
    })),
    // The read that begins after the fence.
    (&["read/fenced"], "a read of a fenced region ended well, as one_sided", || ends_third_as("one_sided")),
    (&["read/fenced"], "a read of a fenced region ended well, as served", || ends_third_as("served")),
    (&["read/fenced"], "a read of a fenced region ended well, as fenced", || ends_third_as("fenced")),
    (&["read/many"], "expected all to end well", || Twist::those("landed", |e| e["read"].as_u64().is_some_and(|read| read % 7 == 0), |e| vec![with(e, "result", "rejected")])),
];

#[rustfmt::skip] // a table
const MEMORY: &[Row] = &[
    (&["memory/kind", "memory/owned", "memory/threads", "memory/refused"], "expected landed", || Twist::lost("landed")),
    (&["memory/kind"], "expected host memory, got \"cuda:0\"", || registers_as(json!({"result": "ok", "kind": "cuda:0"}))),
    (&["memory/kind"], "expected cuda:0 memory, got \"host\"", || Twist::none().about(DEVICE)),
    (&["memory/kind"], "took cuda:0 memory, and states that it takes none", || registers_as(json!({"result": "ok", "kind": "cuda:0"})).about(DEVICE)),
    // Never a skip: what takes a device's memory for the host's would write to addresses that are none.
    (&["memory/kind", "memory/owned", "memory/threads", "memory/refused"], "ucx registered cuda:0 memory as host", || {
        registers_as(json!({"result": "unsupported", "detail": "ucx registered cuda:0 memory as host"}))
    }),
    (&["memory/owned", "memory/threads"], "was not given back", || Twist::ignores(|command| matches!(command, Command::Deregister { .. }))),
    (&["memory/owned"], "given back while it was registered", || Twist::answers(|command, answer| match command {
        Command::GivenBack { .. } => Ok(json!({"given_back": true})),
        _ => answer,
    })),
    (&["memory/threads"], "on a thread, byte 7 is not what it shall be", || Twist::answers(|command, answer| match command {
        Command::Compare { elsewhere: true, .. } => Ok(json!({"matches": false, "first": 7})),
        _ => answer,
    })),
    (&["memory/refused"], "expected zero size for 0 bytes of host memory", || allocates(|bytes, _, _| bytes == 0, "ok")),
    (&["memory/refused"], "expected too large", || allocates(|bytes, _, _| bytes == usize::MAX, "out of memory")),
    (&["memory/refused"], "expected unavailable for 4096 bytes of cuda:999 memory", || allocates(|_, kind, _| kind == "cuda:999", "ok")),
    (&["memory/refused"], "expected zero size for 16777216 bytes", || allocates(|bytes, _, part| bytes > 0 && part.1 == 0, "ok")),
    (&["memory/refused"], "of which 16777217 from 0", || allocates(|_, _, part| part == (0, MUCH + 1), "ok")),
    (&["memory/refused"], "of which 1 from 16777216", || allocates(|_, _, part| part == (MUCH, 1), "ok")),
    (&["memory/refused"], "expected out of range", || allocates(|_, _, part| part == (usize::MAX, 1), "ok")),
    (&["memory/refused"], "expected out of range", || allocates(|_, _, part| part == (1, usize::MAX), "ok")),
    (&["memory/refused"], "expected ok", || allocates(|_, _, part| part == (MUCH - 1, 1), "out of range")),
    (&["memory/refused"], "left 100 files or mappings behind", || Twist::answers(|command, answer| match command {
        Command::Allocate { kind, .. } if kind == "cuda:999" => answer.map(|answer| with(answer, "left", 100)),
        _ => answer,
    })),
    (&["memory/refused"], "left 838860800 bytes behind", || Twist::answers(|command, answer| match command {
        Command::Allocate { part: (0, 0), .. } => answer.map(|answer| with(answer, "left_bytes", 50 * MUCH)),
        _ => answer,
    })),
];

/// Bytes that are allocated over and over.
const MUCH: usize = 16 << 20;

const DEVICE: Kind = Kind::Cuda { device: 0 };

/// Memory is said to be registered like this, unless it is a byte's: nothing else could go on.
fn registers_as(said: Value) -> Twist {
    let takes = said["result"] == "ok";
    Twist::answers(move |command, answer| match command {
        Command::Register { bytes, .. } if *bytes == 1 || !takes => Ok(said.clone()),
        _ => answer,
    })
}

/// What `which` picks, by its size, its kind and the part of it, is said to end like this.
fn allocates(which: fn(usize, &str, (usize, usize)) -> bool, result: &'static str) -> Twist {
    Twist::answers(move |command, answer| match command {
        Command::Allocate { kind, bytes, part, .. } if which(*bytes, kind, *part) => {
            answer.map(|answer| with(answer, "result", result))
        }
        _ => answer,
    })
}

#[rustfmt::skip] // a table
pub(crate) const FLAWS: &[FlawRow] = &[
    (&["read/bytes", "read/ranges", "read/many", "read/bounds", "read/fenced", "read/killed", "read/stopped", "read/disconnected", "read/junk-region", "read/deregistered"], "is not what it shall be", Flaw::WrongByte),
    (&["read/bytes", "read/ranges", "read/many", "read/stopped"], "is not what it shall be", Flaw::LostPart),
    (&["read/bytes", "read/ranges", "read/many"], "is not what it shall be", Flaw::DoneBeforeTheData),
    (&["read/bytes", "read/ranges"], "is not what it shall be", Flaw::Spills),
    (&["read/killed", "read/disconnected", "read/deregistered"], "expected landed", Flaw::ForgetsFailures),
    (&["read/killed", "read/stopped", "read/disconnected", "read/many"], "expected one end of a read, got 2", Flaw::EndsTwice),
    (&["read/bounds", "read/junk-region"], "expected invalid", Flaw::RefusesNothing),
    (&["read/token"], "expected rejected, got served", Flaw::ServesTheWithdrawn),
    (&["read/revoked-during"], "is not what it shall be", Flaw::ServesTheWithdrawn),
    (&["read/stopped"], "expected landed", Flaw::NeedsTheOwner),
    (&["read/fenced"], "is not what it shall be", Flaw::FenceWithoutEffect),
    (&["read/deregistered"], "was not given back", Flaw::NeverDeregisters),
    (&["read/killed", "read/disconnected", "read/deregistered"], "was not given back", Flaw::KeepsMemory),
    (&["read/many"], "is not what it shall be", Flaw::MixesPeers),
    (&["notify/never-polled"], "expected to be held back", Flaw::NeverBlocks),
    (&["memory/kind", "memory/owned", "memory/threads", "memory/refused"], "is not what it shall be", Flaw::WrongByte),
    (&["memory/kind", "memory/threads"], "is not what it shall be", Flaw::LostPart),
    (&["memory/kind", "memory/threads", "memory/refused"], "byte 0 is not what it shall be", Flaw::CopiesMemory),
    (&["memory/owned"], "given back while it was registered", Flaw::CopiesMemory),
    (&["memory/owned", "memory/threads"], "was not given back", Flaw::NeverDeregisters),
    (&["memory/owned", "memory/threads"], "was not given back", Flaw::KeepsMemory),
];

/// Every read is said to have come with the right bytes, and in time.
fn told_valid() -> Twist {
    Twist::all(|e| {
        vec![match e["event"].as_str() {
            Some("read_landed") => with(e, "matches", true),
            Some("read_done") => with(e, "verdict", "valid"),
            _ => e,
        }]
    })
}

/// The third read is said to have ended like this.
fn ends_third_as(result: &'static str) -> Twist {
    let mut count = 0;
    Twist::each("landed", move |e| {
        count += 1;
        vec![if count == 3 { with(e, "result", result) } else { e }]
    })
}

fn length(received: &Value) -> u64 {
    received["length"].as_u64().unwrap_or_default()
}

/// What is in a whole frame.
fn framed(hex: &str) -> Option<Vec<u8>> {
    let bytes: Result<Vec<u8>, _> =
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(hex.get(at..at + 2).unwrap_or_default(), 16)).collect();
    Some(Frame::decode(&bytes.ok()?).ok()?.payload().to_vec())
}

/// All faults.
pub(crate) fn rows() -> impl Iterator<Item = Row> {
    [NOTIFY, CONNECT, READ, MEMORY, LEASE, DRIVE, FAULT, PARTITION].concat().into_iter()
}
