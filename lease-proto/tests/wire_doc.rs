//! `docs/wire.md` and the code say the same: each worked table is what the code writes and reads, each other table what it does.

use std::collections::BTreeMap;

use lease_proto::{
    frame::Frame,
    id::{ClockId, Incarnation, ReaderRank, Seq, Session, Token},
    params::Parameters,
    time::{Duration, PeerInstant},
    wire::{
        self, EncodeError, Message, Rejected, Wire,
        native::{
            self, About, Answer, Body, Gone, Hello, HelloAck, Party, Refusal, Renew, RenewedWriter, TimeReply, Tokens,
            tokens_that_fit,
        },
        vllm::{self, HeartbeatWriter},
    },
};

const DOC: &str = include_str!("../../docs/wire.md");
/// Heads of the tables: worked ones, others that state what the code does, and those that only explain.
const WORKED: &str = "offset|bytes|field|type|value";
const HEADERS: &str = "offset|size|field|";
const KINDS: &str = "kind|name|from|says|bytes in all";
const CODES: &str = "code|name|the holder says|and the reader";
const REJECTED: &str = "counted as|what";
const VARINTS: &str = "value|varint";
const FIT: &str = "H|R|tokens";
const TEXTS: &str = "text|is read as";
const IDS: &str = "id|why";
const PROSE: [&str; 4] = ["type|bytes|", "request|answer|if it cannot be met", "field|type|", "text|says|direction"];

const READER: ReaderRank = ReaderRank::ONLY;
const TO_HOLDER: Session = Session(0xa1);
const TO_READER: Session = Session(0xd1);
const EXTENSION: Duration = Duration::from_secs(20);

fn token(number: u64) -> Token {
    Token { number, nonce: 0xfeed_f00d_dead_beef + number }
}

fn party(engine: &'static str, incarnation: u64, clock: u64, session: Session) -> Party<'static> {
    Party {
        engine: engine.as_bytes(),
        incarnation: Incarnation(incarnation),
        rank: 0,
        ranks: 1,
        clock: ClockId(clock),
        session,
        extension: EXTENSION,
        drift_ppm: 500,
        max_message: 65_536,
        capabilities: 0,
    }
}

fn frame(incarnation: u64) -> Vec<u8> {
    let mut out = [0; 64];
    let length = Frame::encode(Incarnation(incarnation), b"worker address", &mut out).unwrap();
    out[..length].to_vec()
}

/// The cells of a row of a table.
fn cells(line: &str) -> Option<Vec<&str>> {
    Some(line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect())
}

fn code(cell: &str) -> &str {
    cell.strip_prefix('`').and_then(|cell| cell.strip_suffix('`')).unwrap_or_else(|| panic!("{cell} is not in backticks"))
}

/// Every table, as the text before it, its head and its rows.
fn tables() -> Vec<(&'static str, String, Vec<Vec<&'static str>>)> {
    let (mut tables, mut caption, mut lines) = (Vec::new(), "", DOC.lines().peekable());
    while let Some(line) = lines.next() {
        match cells(line) {
            Some(head) => {
                lines.next().filter(|rule| rule.starts_with("|--")).expect("a rule below the head");
                let mut rows = Vec::new();
                while let Some(row) = lines.peek().copied().and_then(cells) {
                    assert_eq!(row.len(), head.len(), "{row:?}");
                    rows.push(row);
                    lines.next();
                }
                tables.push((caption, head.join("|"), rows));
            }
            None if !line.is_empty() => caption = line,
            None => {}
        }
    }
    tables
}

/// The rows of the one table with this head.
fn rows(head: &str) -> Vec<Vec<&'static str>> {
    let mut found = tables().into_iter().filter(|(_, other, _)| other == head);
    let (_, _, rows) = found.next().unwrap_or_else(|| panic!("no table of {head}"));
    assert!(found.next().is_none(), "two tables of {head}");
    rows
}

/// The bytes of every worked table, by the name in its caption. Offsets, types and values are checked against the bytes.
fn worked() -> BTreeMap<&'static str, Vec<u8>> {
    let mut worked = BTreeMap::new();
    for (caption, head, rows) in tables() {
        if head != WORKED {
            continue;
        }
        let name = code(caption.strip_prefix("Example ").and_then(|name| name.strip_suffix(':')).expect(caption));
        let mut bytes = Vec::new();
        for row in rows {
            let [offset, hex, field, kind, value] = row[..] else { unreachable!() };
            assert_eq!(offset.parse(), Ok(bytes.len()), "{name}: {field}");
            let field_bytes: Vec<u8> = code(hex).split(' ').map(|hex| u8::from_str_radix(hex, 16).unwrap()).collect();
            check_value(&field_bytes, kind, value, &format!("{name}: {field}"));
            bytes.extend(field_bytes);
        }
        assert!(worked.insert(name, bytes).is_none(), "two tables of {name}");
    }
    worked
}

fn check_value(bytes: &[u8], kind: &str, value: &str, field: &str) {
    let size = match kind {
        "bytes" => return,
        "text" => return assert_eq!(bytes, code(value).as_bytes(), "{field}"),
        "varint" => bytes.len(),
        _ => kind.strip_prefix('u').and_then(|bits| bits.parse::<usize>().ok()).expect(kind) / 8,
    };
    assert_eq!(bytes.len(), size, "{field}");
    let (bits, mask) = if kind == "varint" { (7, 0x7f) } else { (8, 0xff) };
    let number = bytes.iter().rev().fold(0u64, |number, byte| (number << bits) | u64::from(byte & mask));
    let value = value.split(' ').next().unwrap();
    let stated = value.strip_prefix("0x").map_or_else(|| value.parse(), |hex| u64::from_str_radix(hex, 16));
    assert_eq!(stated, Ok(number), "{field}");
}

/// Both ways: these bytes are what is written, and they read back as the message.
fn check(bytes: &[u8], session: Session, seq: u64, body: Body<'_>) {
    let mut out = [0; 512];
    let length = native::encode(session, Seq(seq), &body, &mut out).unwrap();
    assert_eq!(&out[..length], bytes, "{body:?}");
    assert_eq!(wire::decode(Wire::Native, bytes), Ok(Message::Native { session, seq: Seq(seq), body }));
}

#[test]
fn no_table_is_without_a_test() {
    let tested = [WORKED, HEADERS, KINDS, CODES, REJECTED, VARINTS, FIT, TEXTS, IDS];
    for (caption, head, _) in tables() {
        assert!(tested.contains(&head.as_str()) || PROSE.contains(&head.as_str()), "{caption} has a table of {head}");
    }
}

#[test]
fn every_worked_table_is_what_is_written_and_read() {
    let mut worked = worked();
    let mut take = |name| worked.remove(name).unwrap_or_else(|| panic!("no worked table of {name}"));
    let (reader, holder) = (party("d0", 0x44, 0xc4, TO_READER), party("p0", 0x33, 0xc3, TO_HOLDER));
    let metadata = frame(0x44);
    let hello = Hello { lowest: 1, highest: 1, token: token(7), party: reader, metadata: &metadata };
    check(&take("hello"), Session(0), 1, Body::Hello(hello));
    check(&take("hello_ack"), TO_READER, 1, Body::HelloAck(HelloAck { re: Seq(1), version: 1, party: holder }));
    let tokens = [7, 8, 9].map(|number| token(number).to_bytes());
    check(&take("renew"), TO_HOLDER, 2, Body::Renew(Renew { reader: READER, tokens: Tokens::from_chunks(&tokens).unwrap() }));
    check_renewed(&take("renewed"));
    check(&take("complete"), TO_HOLDER, 3, Body::Complete(About { token: token(7), reader: READER }));
    check(&take("completed"), TO_READER, 3, Body::Completed(Answer { re: Seq(3), token: token(7) }));
    check(&take("release"), TO_HOLDER, 4, Body::Release(About { token: token(8), reader: READER }));
    check(&take("gone"), TO_READER, 4, Body::Gone(Gone { re: Seq(4), token: token(8), why: Refusal::Released }));
    check(&take("gone, unasked"), TO_READER, 5, Body::Gone(Gone { re: Seq(0), token: token(9), why: Refusal::Draining }));
    check(&take("time"), TO_HOLDER, 5, Body::Time);
    let (received, sent) = (PeerInstant::from_nanos(1_000_000_000_000), PeerInstant::from_nanos(1_000_000_001_000));
    check(&take("time_reply"), TO_READER, 6, Body::TimeReply(TimeReply { re: Seq(5), received, sent }));

    let bytes = take("frame");
    assert_eq!(bytes, frame(0x33));
    let read = Frame::decode(&bytes).unwrap();
    assert_eq!((read.incarnation(), read.payload()), (Incarnation(0x33), &b"worker address"[..]));
    check_key(&take("key"));

    let (heartbeat, completion, mut out) = (take("heartbeat"), take("completion"), [0; 64]);
    let mut beat = HeartbeatWriter::new(&mut out);
    let ids = [&b"cmpl-1-0-aabbccdd"[..], b"cmpl-2-0-eeff0011"];
    assert!(ids.iter().all(|id| beat.push(id) == Ok(true)));
    let length = beat.finish().unwrap();
    assert_eq!(&out[..length], heartbeat);
    let Ok(Message::Vllm(vllm::Message::Heartbeat(read))) = wire::decode(Wire::Vllm, &heartbeat) else { panic!() };
    assert!(read.iter().eq(ids));
    let length = vllm::encode_completion(ids[0], 2, &mut out).unwrap();
    assert_eq!(&out[..length], completion);
    assert_eq!(wire::decode(Wire::Vllm, &completion), Ok(Message::Vllm(vllm::Message::Completion { id: ids[0], consumers: 2 })));

    assert!(worked.is_empty(), "tables without a test: {:?}", worked.keys());
}

fn check_renewed(bytes: &[u8]) {
    let exceptions = [(1, Ok(Duration::from_secs(5))), (2, Err(Refusal::Expired))];
    let mut out = [0; 128];
    let mut writer = RenewedWriter::new(&mut out, 3).unwrap();
    exceptions.iter().for_each(|(index, what)| writer.push(*index, *what));
    let length = writer.finish(TO_READER, Seq(2), Seq(2), 3, EXTENSION);
    assert_eq!(&out[..length], bytes);
    let Ok((TO_READER, Seq(2), Body::Renewed(read))) = native::decode(bytes) else { panic!("it is an answer") };
    assert_eq!((read.re, read.count, read.granted), (Seq(2), 3, EXTENSION));
    assert!(read.exceptions.iter().eq(exceptions));
}

fn check_key(bytes: &[u8]) {
    let frames = frame(0x33);
    let params = Parameters {
        token: token(7),
        incarnation: Incarnation(0x33),
        engine: b"p0",
        ranks: 1,
        extension: EXTENSION,
        drift_ppm: 500,
        frames: &frames,
        regions: &frames,
    };
    let (mut buffer, mut text) = ([0; 256], [0; 256]);
    let length = params.encode(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], bytes);
    assert_eq!(Parameters::decode(bytes), Ok(params));
    let text = params.to_text(&mut buffer, &mut text).unwrap();
    let (_, fenced) = DOC.split_once("```text\n").expect("the key as text");
    assert_eq!(fenced.lines().next(), Some(text));
    assert_eq!(Parameters::from_text(text, &mut buffer), Ok(params));
}

#[test]
fn every_kind_has_a_worked_table_and_is_in_the_table_of_kinds() {
    let worked = worked();
    let kinds = rows(KINDS);
    let mut known = Vec::new();
    for kind in 0..=255u8 {
        let header = [&b"\xffKVL\x01"[..], &[kind], &[0; 20]].concat();
        if native::decode(&header) == Err(Rejected::UnknownKind) {
            continue;
        }
        let examples = worked.iter().filter(|(_, bytes)| bytes.starts_with(&header[..6]));
        let names: Vec<_> = examples.map(|(name, bytes)| (*name, native::decode(bytes).unwrap().2.name())).collect();
        let (_, name) = names[0];
        assert!(names.iter().all(|(example, kind)| example.starts_with(name) && *kind == name));
        known.push([kind.to_string(), name.to_string()]);
    }
    assert!(kinds.iter().map(|row| [row[0].to_string(), row[1].to_string()]).eq(known));
    for row in kinds {
        let size: usize = row[4].trim_start_matches("at most ").split(' ').next().unwrap().parse().unwrap();
        let length = worked[row[1]].len();
        match row[1] {
            "hello" => assert_eq!(size, native::MAX_HELLO_OVERHEAD),
            "hello_ack" => assert_eq!(size, longest_hello_ack()),
            "renew" => assert_eq!(size + 3 * 16, length),
            "renewed" => assert_eq!(size + 2 * 11, length),
            _ => assert_eq!(size, length),
        }
    }
}

fn longest_hello_ack() -> usize {
    let engine = [0; 256];
    let party = Party {
        engine: &engine,
        rank: u16::MAX - 1,
        ranks: u16::MAX,
        drift_ppm: u32::MAX,
        max_message: u32::MAX,
        capabilities: u32::MAX,
        ..party("", 0, 0, TO_HOLDER)
    };
    let ack = Body::HelloAck(HelloAck { re: Seq(1), version: 1, party });
    native::encode(TO_READER, Seq(1), &ack, &mut [0; 512]).unwrap() - engine.len()
}

#[test]
fn headers_lie_where_the_tables_say() {
    // Both have offsets, sizes and fields; the worked tables of a message and of a frame begin with the same fields.
    let worked = tables().into_iter().filter(|(_, head, _)| head == WORKED);
    let examples: BTreeMap<_, _> = worked.map(|(caption, _, rows)| (caption, rows)).collect();
    let headers = tables().into_iter().filter(|(_, head, _)| head == HEADERS).map(|(_, _, rows)| rows);
    for (header, example) in headers.zip(["Example `hello`:", "Example `frame`:"]) {
        for (stated, worked) in header.iter().zip(&examples[example]).filter(|(stated, _)| stated[1] != "length") {
            let size = code(worked[1]).split(' ').count();
            assert_eq!([stated[0], stated[1], stated[2]], [worked[0], size.to_string().as_str(), worked[2]]);
        }
    }
}

#[test]
fn codes_and_rejections_are_those_of_the_code() {
    let codes = rows(CODES);
    assert!(
        codes
            .iter()
            .map(|row| (row[0].parse().unwrap(), row[1]))
            .eq(Refusal::ALL.map(|refusal| (refusal.code(), refusal.name())))
    );
    let mut rejected: Vec<_> = rows(REJECTED).iter().map(|row| code(row[0])).collect();
    let mut known = Rejected::ALL.map(Rejected::name);
    rejected.sort_unstable();
    known.sort_unstable();
    assert_eq!(rejected, known);
}

#[test]
fn varints_are_written_like_that() {
    for row in rows(VARINTS) {
        let bytes: Vec<u8> = code(row[1]).split(' ').map(|hex| u8::from_str_radix(hex, 16).unwrap()).collect();
        check_value(&bytes, "varint", row[0], "varint");
        let party = Party { drift_ppm: row[0].parse().unwrap(), max_message: 0, ..party("", 0, 0, TO_HOLDER) };
        let mut out = [0; 128];
        let length =
            native::encode(TO_READER, Seq(1), &Body::HelloAck(HelloAck { re: Seq(1), version: 1, party }), &mut out).unwrap();
        assert_eq!(out[..length].strip_suffix(&[0, 0]).map(|rest| rest.ends_with(&bytes)), Some(true), "{row:?}");
    }
}

#[test]
fn as_many_tokens_fit_as_the_table_says() {
    for row in rows(FIT) {
        let [holder, reader, tokens] = [row[0], row[1], row[2]].map(|number| number.parse().unwrap());
        assert_eq!(tokens_that_fit(holder, reader), tokens, "{row:?}");
        let formula = (holder.saturating_sub(28) / 16).min(reader.saturating_sub(44) / 11).min(65_535);
        assert_eq!(formula, tokens, "{row:?}");
    }
}

#[test]
fn vllms_text_is_read_as_the_table_says() {
    for row in rows(TEXTS) {
        let read = match wire::decode(Wire::Vllm, code(row[0]).as_bytes()) {
            Ok(Message::Vllm(vllm::Message::Heartbeat(ids))) => {
                let ids: Vec<_> = ids.iter().map(|id| format!("`{}`", id.escape_ascii())).collect();
                format!("beat: {}", ids.join(", ")).trim_end().to_string()
            }
            Ok(Message::Vllm(vllm::Message::Completion { id, consumers })) => {
                format!("completion: `{}`, {consumers}", id.escape_ascii())
            }
            Ok(Message::Foreign(_)) => "foreign".to_string(),
            Err(why) => why.name().to_string(),
            Ok(other) => panic!("{other:?}"),
        };
        assert_eq!(read, row[1], "{}", row[0]);
    }
    for row in rows(IDS) {
        assert_eq!(vllm::check_id(code(row[0]).as_bytes()), Err(EncodeError::IdNotEncodable), "{}", row[0]);
    }
    assert_eq!(wire::decode(Wire::Vllm, b"\xff"), Err(Rejected::NotUtf8));
}
