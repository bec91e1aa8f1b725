//! What is no trace, by line and key.

use conformance::sim::trace::{Trace, TraceError};

use super::{WORLD, with};

/// Asserts that it is refused at this line and key, with this in the complaint.
pub(crate) fn refused(got: Result<Trace, TraceError>, line: usize, key: &str, says: &str) {
    let error = got.expect_err(&format!("must be refused at line {line}, key {key:?}: {says}"));
    let shown = error.to_string();
    assert_eq!((error.line, error.key.as_deref().unwrap_or_default()), (line, key), "{shown}");
    assert!(shown.starts_with(&format!("line {line}: ")) && shown.contains(says), "expected {says:?}, got {shown:?}");
    assert!(shown.len() < 400, "{shown}");
}

#[test]
fn what_is_no_json_object_is_refused() {
    for (line, key, says) in [
        (&b"\xff{}"[..], "", "expected utf-8"),
        (b"{\"at\":\"0\"", "", "at column 9"),
        (b"{} {}", "", "trailing characters"),
        (b"\xef\xbb\xbf{}", "", "got none"),
        (b"[1]", "", "expected a JSON object, got an array"),
        (b"7", "", "got 7"),
        (b"{\"at\":\"0\",\"at\":\"0\"}", "at", "stands twice"),
        (b"{\"never\":{\"event\":\"freed\",\"ev\\u0065nt\":\"lost\"}}", "event", "stands twice"),
        (b"{\"x\":[{\"y\":[{\"z\":1,\"z\":1}]}]}", "z", "stands twice"),
        (&[b"{\"x\":".as_slice(), &b"[".repeat(10_000)].concat(), "", "recursion limit"),
        (b"{}", "node", "expected one of node, link, expect, never"),
        (b"{\"node\":\"p0\",\"never\":{}}", "never", "got both"),
    ] {
        refused(Trace::parse(&[WORLD.as_bytes(), b"\n\n", line].concat()), 3, key, says);
    }
    refused(Trace::parse(&[b"\xef\xbb\xbf", WORLD.as_bytes()].concat()), 1, "", "(BOM)");
    let long = |more: usize| {
        let line = [&br#"{"never":{"event":"freed"}}"#[..], &b" ".repeat((4 << 20) - 27 + more)].concat();
        Trace::parse(&[WORLD.as_bytes(), b"\n", &line, b"\n"].concat())
    };
    assert_eq!(long(0).unwrap().lines.len(), 1);
    refused(long(1), 2, "", "line is 4194305 bytes long, expected at most 4194304");
    for empty in ["", "\n \n"] {
        refused(Trace::parse(empty.as_bytes()), 1, "", "empty file");
    }
}

/// Each row: a part of a good first line, and what stands there instead.
#[test]
fn worlds_that_are_none_are_refused() {
    let world = r#"{"world":1,"end":"9","nodes":{"p":{"role":"prefill"}}}"#;
    let long = format!(r#"{{"world":1,"end":"9","nodes":{{"{}":{{"role":"prefill"}}}}}}"#, "p".repeat(257));
    for (from, to, key, says) in [
        (r#""world":1,"#, "", "world", "expected a whole number from 1 to 1, got nothing"),
        (r#""world":1"#, r#""world":2"#, "world", "got 2"),
        (r#""world":1"#, r#""world":"1""#, "world", r#"got "1""#),
        (r#""world":1"#, r#""world":1.0"#, "world", "got 1.0"),
        (r#""end":"9","#, "", "end", "got nothing"),
        (r#""end":"9""#, r#""end":9"#, "end", "expected a time as a string"),
        (r#""end":"9""#, r#""end":null"#, "end", "got null"),
        (r#""end":"9""#, r#""end":"-1""#, "end", r#"got "-1""#),
        (r#""end":"9""#, r#""end":"1e3""#, "end", "seconds as digits"),
        (r#""end":"9""#, r#""end":"0.0000000001""#, "end", "up to nine decimals"),
        (r#""end":"9""#, r#""end":"18446744074""#, "end", "expected at most 18446744073.709551615"),
        (r#""end":"9""#, r#""end":"9300000000""#, "end", "half of what clocks can show"),
        (r#""end""#, r#""wire":"nixl","end""#, "wire", "expected native or vllm"),
        (r#""end""#, r#""seed":-1,"end""#, "seed", "from 0 to 18446744073709551615, got -1"),
        (r#""end""#, r#""seed":18446744073709551616,"end""#, "seed", "from 0 to"),
        (r#""end""#, r#""max_notification":63,"end""#, "max_notification", "from 64 to 16777216"),
        (r#""end""#, r#""max_notification":16777217,"end""#, "max_notification", "from 64 to 16777216"),
        (r#""end""#, r#""link":{"delay":1},"end""#, "delay", "link: expected a time as a string"),
        (r#""end""#, r#""link":{"loss":"1"},"end""#, "loss", "expected only delay"),
        (r#""end""#, r#""link":"0.1","end""#, "link", "expected an object"),
        (r#""end""#, r#""ende":"9","end""#, "ende", "expected only world, wire, seed, end"),
        (r#""end""#, r#""config":{"leese":"30"},"end""#, "leese", "expected the name of a term"),
        (r#""end""#, r#""config":{"lease":30},"end""#, "lease", "expected a time as a string"),
        (r#""end""#, r#""config":{"losses":"1"},"end""#, "losses", "expected a whole number"),
        (r#""end""#, r#""config":{"losses":4294967296},"end""#, "losses", "from 0 to 4294967295"),
        (r#""end""#, r#""config":{"hold_until_ack":"true"},"end""#, "hold_until_ack", "expected true or false"),
        (r#""end""#, r#""config":{"proof":true},"end""#, "proof", "expected a string"),
        (r#""end""#, r#""config":{"proof":"faith"},"end""#, "proof", "deadline or completion"),
        (r#""end""#, r#""config":{"lease":"0.01"},"end""#, "config", r#"node "p": lease is 0.01 s"#),
        (r#""end""#, r#""config":{"extension":"20","longest_stall":"60"},"end""#, "config", "longest_stall"),
        (r#"{"p":{"role":"prefill"}}"#, "{}", "nodes", "at least one node"),
        (r#","nodes":{"p":{"role":"prefill"}}"#, "", "nodes", "got nothing"),
        (r#"{"role":"prefill"}"#, "7", "nodes", r#"node "p": expected an object"#),
        (r#""p":"#, r#""":"#, "nodes", "empty one"),
        (r#"{"role":"prefill"}"#, "{}", "role", "got nothing"),
        (r#""role":"prefill""#, r#""role":"proxy""#, "role", r#"node "p": expected prefill, decode or router, got "proxy""#),
        (r#"{"role""#, r#"{"clock":"18446744073","role""#, "clock", "twice the world's end"),
        (r#"{"role""#, r#"{"drift_ppm":-1000000,"role""#, "drift_ppm", "from -999999 to 999999999"),
        (r#"{"role""#, r#"{"drift_ppm":1000000000,"role""#, "drift_ppm", "from -999999 to 999999999"),
        (r#"{"role""#, r#"{"drift_ppm":0.5,"role""#, "drift_ppm", "whole number"),
        (r#"{"role""#, r#"{"poll":1,"role""#, "poll", "expected a time as a string"),
        (r#"{"role""#, r#"{"ranks":0,"role""#, "ranks", "from 1 to 64"),
        (r#"{"role""#, r#"{"ranks":65,"role""#, "ranks", "from 1 to 64"),
        (r#"{"role""#, r#"{"rank":1,"role""#, "rank", r#"node "p": unknown here"#),
        (r#"{"role""#, r#"{"config":{"poll":7},"role""#, "poll", r#"node "p": config: expected a time"#),
        (world, long.as_str(), "nodes", "at most 256"),
    ] {
        assert!(world.contains(from), "{from}");
        refused(Trace::parse(world.replacen(from, to, 1).as_bytes()), 1, key, says);
    }
}

#[test]
fn lines_that_are_none_are_refused() {
    const GRANT: &str = r#"{"at":"5","node":"p","do":"grant","request":"a"}"#;
    const OTHER: &str = r#"{"at":"5","node":"p","do":"grant","request":"b"}"#;
    for (lines, key, says) in [
        // Times.
        (&[r#"{"node":"p","do":"crash"}"#][..], "at", "got nothing"),
        (&[r#"{"at":1,"node":"p","do":"crash"}"#], "at", "expected a time as a string"),
        (&[GRANT, r#"{"at":"4.999999999","node":"d","do":"crash"}"#], "at", "goes backwards: expected at least 5"),
        (&[GRANT, r#"{"at":"4","link":"d>p","do":"replay","nth":0}"#], "at", "goes backwards"),
        (&[r#"{"at":"9","link":"d>p","do":"replay","nth":0}"#, GRANT], "at", "goes backwards"),
        (&[r#"{"at":"100.000000001","node":"p","do":"crash"}"#], "at", "after the world's end"),
        (&[r#"{"at":"101","expect":{"node":"p"}}"#], "at", "after the world's end"),
        (&[r#"{"at":"1","expect":{"node":"p"},"within":1}"#], "within", "expected a time"),
        (&[r#"{"never":{"node":"p"},"until":"x"}"#], "until", "expected seconds"),
        (&[r#"{"at":"1","never":{"node":"p"}}"#], "at", "unknown here"),
        // Nodes.
        (&[r#"{"at":"1","node":"x","do":"crash"}"#], "node", r#"a node of line 1, got "x""#),
        (&[r#"{"at":"1","node":7,"do":"crash"}"#], "node", "got 7"),
        (&[r#"{"at":"1","node":"d","do":"enqueue","request":"a","from":"x"}"#], "from", r#"got "x""#),
        (&[r#"{"at":"1","node":"d","do":"enqueue","request":"a","prefill":"x"}"#], "prefill", r#"got "x""#),
        (&[r#"{"at":"1","node":"d","do":"enqueue","request":"a","from":"d"}"#], "from", "another node"),
        (&[r#"{"at":"1","node":"d","do":"enqueue","request":"a","from":"r"}"#], "from", "can hold blocks"),
        (&[r#"{"at":"1","node":"d","do":"receive","text":"","from":"x"}"#], "from", r#"got "x""#),
        (&[r#"{"at":"1","expect":{"node":"x"}}"#], "node", r#"got "x""#),
        (&[r#"{"never":{"node":null}}"#], "node", "got null"),
        // What nodes are told to do.
        (&[r#"{"at":"1","node":"p"}"#], "do", "got nothing"),
        (&[r#"{"at":"1","node":"p","do":"explode"}"#], "do", r#"expected grant, expect,"#),
        (&[r#"{"at":"1","node":"p","do":"grant"}"#], "request", "got nothing"),
        (&[r#"{"at":"1","node":"p","do":"grant","request":1}"#], "request", "expected a string"),
        (&[r#"{"at":"1","node":"p","do":"grant","request":"a","until":"3"}"#], "until", "unknown here"),
        (&[r#"{"at":"1","node":"p","do":"grant","request":"a","consumers":65}"#], "consumers", "from 1 to 64"),
        (&[r#"{"at":"1","node":"p","do":"grant","request":"a","ttl":30}"#], "ttl", "expected a time"),
        (&[r#"{"at":"1","node":"p","do":"drain"}"#], "for", "got nothing"),
        (&[r#"{"at":"1","node":"d","do":"enqueue","request":"a"}"#], "from", "expected one of from, prefill"),
        (&[r#"{"at":"1","node":"d","do":"enqueue","request":"a","from":"p","prefill":"p"}"#], "prefill", "got both"),
        (&[r#"{"at":"1","node":"d","do":"enqueue","request":"a","from":"p","of":65}"#], "of", "from 1 to 64"),
        (&[r#"{"at":"1","node":"d","do":"enqueue","request":"a","from":"p","of":2,"reader":2}"#], "reader", "from 0 to 1"),
        (&[r#"{"at":"1","node":"d","do":"enqueue","request":"a","from":"p","reader":1}"#], "reader", "from 0 to 0"),
        (&[GRANT, r#"{"at":"5","node":"d","do":"enqueue","request":"a","from":"p","grant":1}"#], "grant", "a line above"),
        (&[GRANT, r#"{"at":"5","node":"d","do":"enqueue","request":"a","from":"p","grant":3}"#], "grant", "a line above"),
        (&[GRANT, r#"{"at":"5","node":"d","do":"enqueue","request":"a","from":"p","grant":"2"}"#], "grant", "a line above"),
        (&[OTHER, r#"{"at":"5","node":"d","do":"enqueue","request":"a","from":"p","grant":2}"#], "grant", "this request"),
        (&[r#"{"at":"1","node":"d","do":"read","request":"a"}"#], "takes", "expected one of takes, fails_after"),
        (&[r#"{"at":"1","node":"d","do":"read","request":"a","takes":"1","fails_after":"1"}"#], "fails_after", "got both"),
        (&[r#"{"at":"1","node":"d","do":"stall","until":"1"}"#], "until", "expected a time after 1, got 1"),
        (&[r#"{"at":"1","node":"d","do":"suspend","until":"0"}"#], "until", "expected a time after 1"),
        (&[r#"{"at":"1","node":"d","do":"suspend","until":"2","counted":1}"#], "counted", "expected true or false"),
        (&[r#"{"at":"1","node":"d","do":"drift","ppm":-1000000}"#], "ppm", "from -999999"),
        (&[r#"{"at":"1","node":"d","do":"receive"}"#], "text", "expected one of text, hex"),
        (&[r#"{"at":"1","node":"d","do":"receive","text":"","hex":""}"#], "hex", "got both"),
        (&[r#"{"at":"1","node":"d","do":"receive","hex":"abc"}"#], "hex", "even number"),
        (&[r#"{"at":"1","node":"d","do":"receive","hex":"0x"}"#], "hex", "hexadecimal digits"),
        // Roles.
        (&[r#"{"at":"1","node":"p","do":"release","request":"a"}"#], "do", "a node of role prefill can do, got release"),
        (&[r#"{"at":"1","node":"r","do":"grant","request":"a"}"#], "do", "a node of role router"),
        (&[r#"{"at":"1","node":"r","do":"read","request":"a","takes":"1"}"#], "do", "a node of role router"),
        (&[r#"{"at":"1","node":"r","do":"abort","request":"a"}"#], "do", "a node of role router"),
        // Crashes.
        (&[r#"{"at":"1","node":"p","do":"crash"}"#, GRANT], "do", "expected restart, since the node crashed in line 2"),
        (&[r#"{"at":"1","node":"p","do":"crash"}"#, r#"{"at":"1","node":"p","do":"crash"}"#], "do", "expected restart"),
        // Links.
        (&[r#"{"at":"1","link":"d-p","do":"drop","until":"2"}"#], "link", "with a `>` between them"),
        (&[r#"{"at":"1","link":"d>x","do":"drop","until":"2"}"#], "link", r#"got "d>x""#),
        (&[r#"{"at":"1","link":"d>d","do":"drop","until":"2"}"#], "link", "two different nodes"),
        (&[r#"{"at":"1","link":["d","p"],"do":"drop","until":"2"}"#], "link", "got an array"),
        (&[r#"{"at":"1","link":"d>p","do":"lose","until":"2"}"#], "do", "expected drop, partition"),
        (&[r#"{"at":"1","link":"d>p","do":"drop"}"#], "until", "got nothing"),
        (&[r#"{"at":"1","link":"d>p","do":"drop","until":"1"}"#], "until", "expected a time after 1"),
        (&[r#"{"at":"1","link":"d>p","do":"delay","until":"2"}"#], "by", "got nothing"),
        (&[r#"{"at":"1","link":"d>p","do":"drop","until":"2","by":"1"}"#], "by", "unknown here"),
        (&[r#"{"at":"1","link":"d>p","do":"duplicate","until":"2","times":0}"#], "times", "from 1 to 1000"),
        (&[r#"{"at":"1","link":"d>p","do":"duplicate","until":"2","times":1001}"#], "times", "from 1 to 1000"),
        (&[r#"{"at":"1","link":"d>p","do":"drop_next","count":0}"#], "count", "from 1"),
        (&[r#"{"at":"1","link":"d>p","do":"replay","nth":-1}"#], "nth", "from 0"),
        // Expectations.
        (&[r#"{"at":"1","expect":{}}"#], "expect", "at least one key"),
        (&[r#"{"never":{}}"#], "never", "at least one key"),
        (&[r#"{"never":"freed"}"#], "never", "expected an object"),
        (&[r#"{"never":{"event":"leaked"}}"#], "event", "expected one of granted, renewed"),
        (&[r#"{"never":{"event":"failed_expectation"}}"#], "event", "no expectation sees a failed_expectation"),
        (&[r#"{"at":"1","expect":{"event":"failed_expectation","line":2}}"#], "event", "no expectation sees"),
        (&[r#"{"never":{"line":2}}"#], "line", "keys that one event has together"),
        (&[r#"{"never":{"event":"freed","why":"expired"}}"#], "why", "keys of the event freed"),
        (&[r#"{"never":{"event":"freed","at":"1"}}"#], "at", "keys of the event freed"),
        (&[r#"{"never":{"colour":"red"}}"#], "colour", "keys that one event has together"),
        (&[r#"{"never":{"reason":"expired","peer":"p"}}"#], "peer", "keys of the event freed"),
        (&[r#"{"never":{"reason":"bored"}}"#], "reason", "completed, released, expired"),
        (&[r#"{"never":{"event":"refused","why":"no_answer"}}"#], "why", "expected one of unknown"),
        (&[r#"{"never":{"event":"rejected","why":"expired"}}"#], "why", "expected one of not_utf8"),
        (&[r#"{"never":{"event":"lost","why":"full"}}"#], "why", "expected one of expired"),
        (&[r#"{"never":{"verdict":"maybe"}}"#], "verdict", "valid, expired, unverified, failed"),
        (&[r#"{"never":{"proof":"faith"}}"#], "proof", "deadline, completion, served, fenced"),
        (&[r#"{"never":{"expires":30}}"#], "expires", "expected a time as a string"),
        (&[r#"{"never":{"law":8}}"#], "law", "from 1 to 7"),
        (&[r#"{"never":{"leases":"1"}}"#], "leases", "expected a whole number"),
        (&[r#"{"never":{"request":1}}"#], "request", "expected a string"),
    ] {
        refused(with(lines), lines.len() + 1, key, says);
    }
}
