//! The native wire: every message reads back as what was written, and nothing else is read.

use lease_proto::{
    id::{ClockId, Incarnation, MAX_ID, ReaderRank, Seq, Session, Token},
    time::{Duration, PeerInstant},
    wire::{
        self, EncodeError, Message, Rejected, Wire,
        native::{
            self, About, Answer, Body, Gone, HEADER, Hello, HelloAck, MAX_HELLO_OVERHEAD, Party, Refusal, Renew, RenewWriter,
            RenewedWriter, TimeReply, Tokens, VERSION, tokens_that_fit,
        },
    },
};
use proptest::{collection::vec, option, prelude::*, sample::select};

const SESSION: Session = Session(0x1111_2222_3333_4444);
const SEQ: Seq = Seq(5);
const TOKEN: Token = Token { number: 1, nonce: 2 };
const KINDS: std::ops::RangeInclusive<u8> = 1..=10;

/// A message with the header that fits its body.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32).to_le_bytes();
    let (session, seq) = (SESSION.0.to_le_bytes(), SEQ.0.to_le_bytes());
    [&b"\xffKVL"[..], &[VERSION, kind], &length, &session, &seq, body].concat()
}

/// A message's kind, and its body.
fn apart(bytes: &[u8]) -> (u8, &[u8]) {
    (bytes[5], &bytes[HEADER..])
}

fn written(body: &Body<'_>) -> Vec<u8> {
    let mut out = vec![0; 2 << 20];
    let length = native::encode(SESSION, SEQ, body, &mut out).unwrap();
    out.truncate(length);
    out
}

fn renew(count: u16) -> Vec<u8> {
    let mut out = vec![0; 2 << 20];
    let mut writer = RenewWriter::new(&mut out, ReaderRank::new(1, 2).unwrap()).unwrap();
    assert!((0..count).all(|number| writer.push(Token { number: number.into(), nonce: !u64::from(number) })));
    assert_eq!(writer.count(), count);
    let length = writer.finish(SESSION, SEQ);
    out.truncate(length);
    out
}

fn renewed(count: u16, exceptions: &[(u16, Result<Duration, Refusal>)]) -> Vec<u8> {
    let mut out = vec![0; 1 << 20];
    let mut writer = RenewedWriter::new(&mut out, count).unwrap();
    exceptions.iter().for_each(|(index, what)| writer.push(*index, *what));
    let length = writer.finish(SESSION, SEQ, Seq(3), count, Duration::from_secs(20));
    out.truncate(length);
    out
}

fn party(engine: &[u8]) -> Party<'_> {
    Party {
        engine,
        incarnation: Incarnation(4),
        rank: 1,
        ranks: 2,
        clock: ClockId(5),
        session: Session(6),
        extension: Duration::from_secs(20),
        drift_ppm: 5,
        max_message: 64,
        capabilities: 0,
    }
}

fn hello(party: Party<'_>) -> Vec<u8> {
    written(&Body::Hello(Hello { lowest: 1, highest: 1, token: TOKEN, party, metadata: b"metadata" }))
}

/// One message of each kind, in the order of their kinds; where numbers are varints they take one byte.
fn samples() -> Vec<Vec<u8>> {
    let (about, re) = (About { token: TOKEN, reader: ReaderRank::new(1, 2).unwrap() }, Seq(3));
    vec![
        hello(party(b"engine")),
        written(&Body::HelloAck(HelloAck { re, version: VERSION, party: party(b"engine") })),
        renew(3),
        renewed(4, &[(0, Ok(Duration::from_secs(5))), (2, Err(Refusal::Expired)), (3, Err(Refusal::NotYet))]),
        written(&Body::Complete(about)),
        written(&Body::Completed(Answer { re, token: TOKEN })),
        written(&Body::Release(about)),
        written(&Body::Gone(Gone { re, token: TOKEN, why: Refusal::Draining })),
        written(&Body::Time),
        written(&Body::TimeReply(TimeReply { re, received: PeerInstant::from_nanos(7), sent: PeerInstant::from_nanos(8) })),
    ]
}

/// What every accepted message is: the one form of what it says, which fits its own length and no less.
fn canonical(bytes: &[u8]) -> Result<(), Rejected> {
    let (session, seq, body) = native::decode(bytes)?;
    let mut out = vec![0; bytes.len()];
    assert_eq!(native::encode(session, seq, &body, &mut out), Ok(bytes.len()));
    assert_eq!(out, bytes);
    let room = bytes.len() - 1;
    assert_eq!(native::encode(session, seq, &body, &mut out[..room]), Err(EncodeError::TooLarge { room }));
    Ok(())
}

fn token() -> impl Strategy<Value = Token> {
    any::<(u64, u64)>().prop_map(|(number, nonce)| Token { number, nonce })
}

fn reader() -> impl Strategy<Value = ReaderRank> {
    (1..=64u16).prop_flat_map(|of| (0..of, Just(of))).prop_map(|(rank, of)| ReaderRank::new(rank, of).unwrap())
}

fn bytes(longest: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..=longest)
}

prop_compose! {
    fn any_party()(
        engine in bytes(MAX_ID),
        (rank, ranks) in (1..=u16::MAX).prop_flat_map(|ranks| (0..ranks, Just(ranks))),
        (incarnation, clock, session, extension) in any::<(u64, u64, u64, u64)>(),
        (drift_ppm, max_message, capabilities) in any::<(u32, u32, u32)>(),
    ) -> (Vec<u8>, Party<'static>) {
        let (incarnation, clock, session) = (Incarnation(incarnation), ClockId(clock), Session(session));
        let extension = Duration::from_nanos(extension);
        let engineless = Party { engine: b"", incarnation, rank, ranks, clock, session, extension, drift_ppm, max_message, capabilities };
        (engine, engineless)
    }
}

/// Exceptions to so many tokens: at each index perhaps one.
fn exceptions() -> impl Strategy<Value = Vec<Option<Result<Duration, Refusal>>>> {
    let granted = any::<u64>().prop_map(|nanos| Ok(Duration::from_nanos(nanos)));
    vec(option::of(prop_oneof![granted, select(&Refusal::ALL[..]).prop_map(Err)]), 0..40)
}

proptest! {
    #[test]
    fn what_is_written_reads_back(
        (session, seq, re) in any::<(u64, u64, u64)>().prop_map(|(session, seq, re)| (Session(session), Seq(seq), Seq(re))),
        (token, reader, why) in (token(), reader(), select(&Refusal::ALL[..])),
        (engine, engineless) in any_party(),
        (lowest, highest, version) in any::<(u8, u8, u8)>(),
        metadata in bytes(300),
        tokens in vec(any::<[u8; 16]>(), 0..40),
        (received, sent) in any::<(u64, u64)>().prop_map(|(a, b)| (PeerInstant::from_nanos(a), PeerInstant::from_nanos(b))),
    ) {
        let party = Party { engine: &engine, ..engineless };
        let about = About { token, reader };
        let bodies = [
            Body::Hello(Hello { lowest, highest, token, party, metadata: &metadata }),
            Body::HelloAck(HelloAck { re, version, party }),
            Body::Renew(Renew { reader, tokens: Tokens::from_chunks(&tokens).unwrap() }),
            Body::Complete(about),
            Body::Completed(Answer { re, token }),
            Body::Release(about),
            Body::Gone(Gone { re, token, why }),
            Body::Time,
            Body::TimeReply(TimeReply { re, received, sent }),
        ];
        let mut out = [0; 2048];
        for body in bodies {
            let length = native::encode(session, seq, &body, &mut out).unwrap();
            prop_assert_eq!(native::decode(&out[..length]), Ok((session, seq, body)));
            prop_assert_eq!(wire::decode(Wire::Native, &out[..length]), Ok(Message::Native { session, seq, body }));
            prop_assert_eq!(canonical(&out[..length]), Ok(()));
            if let Body::Hello(hello) = body {
                prop_assert!(length <= MAX_HELLO_OVERHEAD + hello.party.engine.len() + hello.metadata.len());
            }
        }
        // Written in place, token by token, it is the same message.
        let length = native::encode(session, seq, &bodies[2], &mut out).unwrap();
        let mut other = [0; 2048];
        let mut writer = RenewWriter::new(&mut other, reader).unwrap();
        prop_assert!(tokens.iter().all(|token| writer.push(Token::from_bytes(*token))));
        prop_assert_eq!(writer.finish(session, seq), length);
        prop_assert_eq!(&other[..length], &out[..length]);
    }

    #[test]
    fn an_answer_reads_back_with_its_exceptions(exceptions in exceptions(), re in any::<u64>(), granted in any::<u64>()) {
        let (count, granted, re) = (exceptions.len() as u16, Duration::from_nanos(granted), Seq(re));
        let exceptions: Vec<_> = (0..).zip(exceptions).filter_map(|(index, what)| Some((index, what?))).collect();
        let mut out = vec![0; HEADER + 18 + 11 * usize::from(count)];
        let mut writer = RenewedWriter::new(&mut out, count).unwrap();
        exceptions.iter().for_each(|(index, what)| writer.push(*index, *what));
        let length = writer.finish(SESSION, SEQ, re, count, granted);
        prop_assert_eq!(canonical(&out[..length]), Ok(()));
        let Ok((SESSION, SEQ, Body::Renewed(renewed))) = native::decode(&out[..length]) else { panic!("it is an answer") };
        prop_assert_eq!((renewed.re, renewed.count, renewed.granted), (re, count, granted));
        prop_assert!(renewed.exceptions.iter().eq(exceptions));
    }

    #[test]
    fn any_body_is_read_in_its_one_form_or_not_at_all(kind in any::<u8>(), body in bytes(120)) {
        let _ = canonical(&message(kind % 12, &body));
    }

    /// Bodies of small numbers: mostly well-formed varints, and sometimes the rest as well.
    #[test]
    fn a_body_of_small_numbers_is_too(kind in KINDS, body in vec(prop_oneof![Just(0), 0..3u8, Just(0x80), Just(0x81)], 0..120)) {
        let _ = canonical(&message(kind, &body));
    }

    #[test]
    fn any_bytes_are_read_handed_back_or_rejected(bytes in bytes(200)) {
        let _ = canonical(&bytes);
        match wire::decode(Wire::Native, &bytes) {
            Ok(Message::Foreign(same)) => prop_assert_eq!(same, &bytes[..]),
            _ => prop_assert!(native::is_native(&bytes)),
        }
    }

    /// In whatever room there is: as many tokens as fit are written, their longest answer fits too, and not one more of either.
    #[test]
    fn as_many_tokens_fit_as_are_said_to(renew_limit in 0..3000usize, answer_limit in 0..3000usize) {
        fits(renew_limit, answer_limit);
    }
}

fn fits(renew_limit: usize, answer_limit: usize) {
    let fit = tokens_that_fit(renew_limit, answer_limit);
    let (mut out, mut answer, mut written) = (vec![0; renew_limit], vec![0; answer_limit], 0);
    if let Ok(mut writer) = RenewWriter::new(&mut out, ReaderRank::new(63, 64).unwrap()) {
        while writer.push(TOKEN) {}
        written = usize::from(writer.count());
        let length = writer.finish(SESSION, SEQ);
        assert!(length <= renew_limit && (length + 16 > renew_limit || written == 65_535));
        assert_eq!(canonical(&out[..length]), Ok(()));
    }
    let answerable =
        |count: usize| u16::try_from(count).is_ok_and(|count| RenewedWriter::new(&mut vec![0; answer_limit], count).is_ok());
    assert!(fit <= written);
    assert!(fit == 0 || answerable(fit), "{fit} in {answer_limit}");
    assert!(fit == written || !answerable(fit + 1), "{} in {answer_limit}", fit + 1);
    if let Ok(mut writer) = RenewedWriter::new(&mut answer, fit as u16) {
        (0..fit as u16).for_each(|index| writer.push(index, Err(Refusal::Unknown)));
        let length = writer.finish(SESSION, SEQ, SEQ, fit as u16, Duration::MAX);
        assert_eq!(length, HEADER + 18 + 11 * fit);
        assert_eq!(canonical(&answer[..length]), Ok(()));
    }
}

#[test]
fn tokens_that_fit_around_every_step_and_up_to_the_last() {
    for limit in [0, 27, 28, 43, 44, 45, 54, 55, 56, 59, 60, 61, 256, 4096, 65_536] {
        for other in [0, 43, 44, 54, 55, 65, 66, 256, 4096, 65_536] {
            fits(limit, other);
        }
    }
    for limit in [28 + 16 * 65_534, 28 + 16 * 65_535 - 1, 28 + 16 * 65_535, 2 << 20] {
        fits(limit, 2 << 20);
    }
    for (limit, tokens) in [(28, 0), (43, 0), (44, 1), (55, 1), (256, 14), (4096, 254), (65_536, 4094), (usize::MAX, 65_535)] {
        assert_eq!(tokens_that_fit(limit, usize::MAX), tokens, "{limit}");
    }
    for (limit, tokens) in [(44, 0), (54, 0), (55, 1), (256, 19), (65_536, 5953), (usize::MAX, 65_535)] {
        assert_eq!(tokens_that_fit(usize::MAX, limit), tokens, "{limit}");
    }
}

#[test]
fn writers_take_what_fits_and_not_one_byte_more() {
    let room = HEADER + 2 + 2 * 16;
    for (room, count) in [(room, 2), (room - 1, 1), (room - 16, 1), (room - 17, 0), (HEADER + 2, 0)] {
        let mut out = vec![0; room];
        let mut writer = RenewWriter::new(&mut out, ReaderRank::ONLY).unwrap();
        while writer.push(TOKEN) {}
        assert_eq!(writer.count(), count);
        let length = writer.finish(SESSION, SEQ);
        assert_eq!(length, HEADER + 2 + usize::from(count) * 16);
        assert_eq!(canonical(&out[..length]), Ok(()));
    }
    for room in 0..HEADER + 2 {
        let error = RenewWriter::new(&mut vec![0; room], ReaderRank::ONLY).unwrap_err();
        assert_eq!(error, EncodeError::TooLarge { room });
    }
    let room = HEADER + 18 + 3 * 11;
    assert!(RenewedWriter::new(&mut vec![0; room], 3).is_ok());
    let error = RenewedWriter::new(&mut vec![0; room - 1], 3).unwrap_err();
    assert_eq!(error, EncodeError::TooLarge { room: room - 1 });
}

#[test]
fn a_renew_names_65_535_tokens_and_not_one_more() {
    let most = renew(u16::MAX);
    let Ok((_, _, Body::Renew(read))) = native::decode(&most) else { panic!("it is a renew") };
    assert_eq!((read.tokens.len(), read.tokens.iter().count()), (u16::MAX, 65_535));
    let mut out = vec![0; 2 << 20];
    let mut writer = RenewWriter::new(&mut out, ReaderRank::ONLY).unwrap();
    (0..u16::MAX).for_each(|_| assert!(writer.push(TOKEN)));
    assert!(!writer.push(TOKEN));
    let more = message(3, &[apart(&most).1, &[0; 16]].concat());
    assert_eq!(native::decode(&more), Err(Rejected::TooLarge));
    let chunks = vec![[0; 16]; 65_536];
    assert_eq!(Tokens::from_chunks(&chunks), None);
    assert_eq!(Tokens::from_chunks(&chunks[1..]).map(|tokens| tokens.len()), Some(u16::MAX));
    // Every one of them an exception.
    let all: Vec<_> = (0..u16::MAX).map(|index| (index, Err(Refusal::Unknown))).collect();
    assert_eq!(canonical(&renewed(u16::MAX, &all)), Ok(()));
}

#[test]
fn the_samples_are_all_kinds_and_canonical() {
    let samples = samples();
    assert!(samples.iter().map(|sample| apart(sample).0).eq(KINDS));
    samples.iter().for_each(|sample| assert_eq!(canonical(sample), Ok(())));
}

#[test]
fn a_cut_message_is_cut_short_at_every_length() {
    for sample in samples() {
        for cut in 0..sample.len() {
            let bytes = &sample[..cut];
            let expected = if cut < 4 { Ok(Message::Foreign(bytes)) } else { Err(Rejected::Truncated) };
            assert_eq!(wire::decode(Wire::Native, bytes), expected);
        }
    }
}

#[test]
fn a_cut_body_is_cut_short_however_its_header_is_patched() {
    for sample in samples() {
        let (kind, body) = apart(&sample);
        for cut in 0..body.len() {
            // Where a whole record is cut off, a shorter message is left.
            let whole = (kind == 3 && cut >= 2 && (cut - 2) % 16 == 0) || (kind == 4 && cut >= 18 && (cut - 18) % 11 == 0);
            let expected = if whole { Ok(()) } else { Err(Rejected::Truncated) };
            assert_eq!(canonical(&message(kind, &body[..cut])), expected, "kind {kind} cut to {cut}");
        }
    }
}

#[test]
fn a_trailing_byte_is_one_whatever_it_is() {
    for sample in samples() {
        let (kind, body) = apart(&sample);
        for byte in 0..=255 {
            assert_eq!(native::decode(&[&sample[..], &[byte]].concat()), Err(Rejected::TrailingBytes));
            // The same inside of the body; at the end of a run it is the start of another record.
            let expected = if kind == 3 || kind == 4 { Rejected::Truncated } else { Rejected::TrailingBytes };
            assert_eq!(native::decode(&message(kind, &[body, &[byte]].concat())), Err(expected), "kind {kind}");
        }
    }
}

#[test]
fn a_token_is_sixteen_bytes_and_an_exception_eleven() {
    let (tokens, exceptions) = (renew(2), renewed(2, &[(0, Ok(Duration::ZERO)), (1, Ok(Duration::ZERO))]));
    for extra in 1..16 {
        let body = [apart(&tokens).1, &vec![1; extra]].concat();
        assert_eq!(native::decode(&message(3, &body)), Err(Rejected::Truncated), "{extra}");
    }
    for extra in 1..11 {
        let body = [apart(&exceptions).1, &vec![1; extra]].concat();
        assert_eq!(native::decode(&message(4, &body)), Err(Rejected::Truncated), "{extra}");
    }
}

/// Where varints begin in the bodies of the samples, by kind.
fn varints(kind: u8) -> &'static [usize] {
    match kind {
        1 => &[18, 33, 34, 59, 60, 61, 62],
        2 => &[9, 24, 25, 50, 51, 52],
        3 => &[0, 1],
        5 | 7 => &[16, 17],
        _ => &[],
    }
}

#[test]
fn a_padded_varint_is_not_canonical() {
    for sample in samples() {
        let (kind, body) = apart(&sample);
        for at in 0..body.len() {
            let (before, rest) = body.split_at(at);
            for padding in [&[0x00][..], &[0x80, 0x00], &[0x80, 0x80, 0x00]] {
                let padded = message(kind, &[before, &[rest[0] | 0x80], padding, &rest[1..]].concat());
                if varints(kind).contains(&at) {
                    assert_eq!(canonical(&padded), Err(Rejected::NotCanonical), "kind {kind} at {at}");
                } else {
                    let _ = canonical(&padded);
                }
            }
        }
    }
}

#[test]
fn a_number_beyond_its_type_is_not_canonical() {
    let (hello, about) = (hello(party(b"engine")), written(&Body::Complete(About { token: TOKEN, reader: ReaderRank::ONLY })));
    let (hello, about) = (apart(&hello).1, apart(&about).1);
    let with = |body: &[u8], at: usize, varint: &[u8]| [&body[..at], varint, &body[at + 1..]].concat();
    for varint in [&[0xff, 0xff, 0x04][..], &[0xff, 0xff, 0xff, 0x00]] {
        assert_eq!(native::decode(&message(1, &with(hello, 33, varint))), Err(Rejected::NotCanonical));
        assert_eq!(native::decode(&message(5, &with(about, 16, varint))), Err(Rejected::NotCanonical));
    }
    let largest = [0xff, 0xff, 0xff, 0xff, 0x0f];
    assert_eq!(canonical(&message(1, &with(hello, 60, &largest))), Ok(()));
    assert_eq!(native::decode(&message(1, &with(hello, 60, &[0xff, 0xff, 0xff, 0xff, 0x10]))), Err(Rejected::NotCanonical));
    // A length beyond what there is, up to the longest that can be written.
    for length in [&[0x7f][..], &[0xff, 0x7f], &largest] {
        assert_eq!(native::decode(&message(1, &with(hello, 18, length))), Err(Rejected::Truncated));
        assert_eq!(native::decode(&message(1, &with(hello, 62, length))), Err(Rejected::Truncated));
    }
}

#[test]
fn an_unknown_kind_is_one_whatever_it_holds() {
    for kind in (0..=255).filter(|kind| !KINDS.contains(kind)) {
        for body in [&b""[..], &[0; 40]] {
            assert_eq!(native::decode(&message(kind, body)), Err(Rejected::UnknownKind));
        }
    }
}

#[test]
fn an_unknown_version_is_one_whatever_follows() {
    for version in (0..=255).filter(|version| *version != VERSION) {
        let mut bytes = hello(party(b"engine"));
        bytes[4] = version;
        for end in [5, 6, HEADER, bytes.len()] {
            assert_eq!(native::decode(&bytes[..end]), Err(Rejected::UnknownVersion));
        }
    }
}

#[test]
fn bytes_of_others_are_handed_back() {
    for bytes in [&b""[..], b"\xff", b"\xffKV", b"\xffKVF", b"HB:a", b"KVL", b"\xfeKVL\x01"] {
        assert_eq!(wire::decode(Wire::Native, bytes), Ok(Message::Foreign(bytes)));
        assert_eq!(native::decode(bytes), Err(Rejected::NotCanonical));
    }
}

#[test]
fn a_code_without_a_meaning_is_rejected() {
    let gone = written(&Body::Gone(Gone { re: Seq(3), token: TOKEN, why: Refusal::Unknown }));
    let refused = renewed(1, &[(0, Err(Refusal::Unknown))]);
    for code in 0..=255 {
        let (mut gone, mut refused) = (gone.clone(), refused.clone());
        *gone.last_mut().unwrap() = code;
        refused[HEADER + 18 + 2] = code;
        let known = Refusal::ALL.iter().any(|refusal| refusal.code() == code);
        assert_eq!(canonical(&gone), if known { Ok(()) } else { Err(Rejected::BadCount) }, "{code}");
        // Code 0 of an exception: granted, for another time.
        assert_eq!(canonical(&refused), if known || code == 0 { Ok(()) } else { Err(Rejected::BadCount) }, "{code}");
        refused[HEADER + 18 + 3] = 1;
        assert_eq!(
            canonical(&refused),
            if code == 0 { Ok(()) } else { Err(Rejected::NotCanonical) },
            "{code}: refused, with a time"
        );
    }
    assert!(Refusal::ALL.iter().map(|refusal| refusal.code()).eq(1..=10));
}

#[test]
fn exceptions_ascend_and_stay_below_the_count() {
    let (three, granted) = (3, Ok(Duration::from_secs(1)));
    for (indexes, expected) in [
        (&[0, 1, 2][..], Ok(())),
        (&[2], Ok(())),
        (&[], Ok(())),
        (&[0, 0], Err(Rejected::BadCount)),
        (&[1, 0], Err(Rejected::BadCount)),
        (&[3], Err(Rejected::BadCount)),
        (&[0, 65_535], Err(Rejected::BadCount)),
        (&[2, 3], Err(Rejected::BadCount)),
    ] {
        // Of a larger renew, so that the writer has room; then the count is patched.
        let mut bytes = renewed(8, &indexes.iter().map(|index| (*index, granted)).collect::<Vec<_>>());
        bytes[HEADER + 8] = three;
        assert_eq!(canonical(&bytes), expected, "{indexes:?}");
    }
    let mut none = renewed(8, &[(0, granted)]);
    none[HEADER + 8] = 0;
    assert_eq!(canonical(&none), Err(Rejected::BadCount));
}

#[test]
fn a_party_is_of_a_rank_that_is_and_a_name_of_256_bytes() {
    assert_eq!(canonical(&hello(party(&[b'e'; MAX_ID]))), Ok(()));
    assert_eq!(native::decode(&hello(party(&[b'e'; MAX_ID + 1]))), Err(Rejected::TooLarge));
    let ack = |party| written(&Body::HelloAck(HelloAck { re: SEQ, version: VERSION, party }));
    assert_eq!(native::decode(&ack(party(&[b'e'; MAX_ID + 1]))), Err(Rejected::TooLarge));
    for (rank, ranks) in [(0, 0), (1, 1), (2, 1), (u16::MAX, u16::MAX), (u16::MAX, 0)] {
        let party = Party { rank, ranks, ..party(b"engine") };
        assert_eq!(native::decode(&hello(party)), Err(Rejected::BadCount), "{rank} of {ranks}");
        assert_eq!(native::decode(&ack(party)), Err(Rejected::BadCount), "{rank} of {ranks}");
    }
    let last = Party { rank: u16::MAX - 1, ranks: u16::MAX, ..party(b"engine") };
    assert_eq!(canonical(&hello(last)), Ok(()));
}

#[test]
fn a_reader_is_one_of_64_at_most() {
    let bodies = |rank: &[u8], of: &[u8]| {
        let about = [&TOKEN.to_bytes()[..], rank, of].concat();
        [message(3, &[rank, of, &TOKEN.to_bytes()].concat()), message(5, &about), message(7, &about)]
    };
    for bytes in bodies(&[63], &[64]).iter().chain(&bodies(&[0], &[1])) {
        assert_eq!(canonical(bytes), Ok(()));
    }
    for (rank, of) in
        [(&[0][..], &[0][..]), (&[1], &[1]), (&[0], &[65]), (&[64], &[65]), (&[64], &[64]), (&[0], &[0xff, 0xff, 0x03])]
    {
        for bytes in bodies(rank, of) {
            assert_eq!(native::decode(&bytes), Err(Rejected::BadCount), "{rank:?} of {of:?}");
        }
    }
}

#[test]
fn the_longest_hello_is_within_its_bound() {
    let party = Party {
        rank: 16_384,
        ranks: u16::MAX,
        drift_ppm: u32::MAX,
        max_message: u32::MAX,
        capabilities: u32::MAX,
        ..party(&[0; MAX_ID])
    };
    let metadata = vec![0; (1 << 20) + 24];
    let hello = written(&Body::Hello(Hello { lowest: 1, highest: 1, token: TOKEN, party, metadata: &metadata }));
    let overhead = hello.len() - MAX_ID - metadata.len();
    assert!(overhead <= MAX_HELLO_OVERHEAD, "{overhead}");
    assert!(written(&Body::HelloAck(HelloAck { re: SEQ, version: VERSION, party })).len() < MAX_ID + overhead);
}

#[test]
fn a_changed_byte_is_another_message_or_none() {
    for sample in samples() {
        for at in 0..sample.len() {
            for flip in 1..=255 {
                let mut bytes = sample.clone();
                bytes[at] ^= flip;
                let read = canonical(&bytes);
                match at {
                    0..4 => assert_eq!(read, Err(Rejected::NotCanonical)),
                    4 => assert_eq!(read, Err(Rejected::UnknownVersion)),
                    6..10 => assert!(matches!(read, Err(Rejected::Truncated | Rejected::TrailingBytes))),
                    _ => {}
                }
                if read.is_ok() {
                    assert_ne!(native::decode(&bytes), native::decode(&sample));
                }
            }
        }
    }
}
