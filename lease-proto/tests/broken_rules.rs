//! Each rule that can be broken on purpose makes a difference where it says so.
#![cfg(kvlease_broken)]

mod common;

use std::fmt::Debug;

use common::{
    Seen, World, at,
    lone::{LoneHolder, LoneReader, greeted, rank},
    secs,
};
use lease_proto::{
    broken::{Rule, break_rule},
    clock::{OffsetWindow, Sample, proof_deadline},
    config::Config,
    drive::{Handled, Machine as _},
    event::{Freed, Verdict},
    holder::Abort,
    id::{ClockId, ReaderRank, Seq, Session, Token},
    reader::{Handle, ReadOutcome},
    time::{Duration, Instant, PeerInstant},
    transport::PeerId,
    wire::{
        Message, Wire,
        native::{Body, Refusal, Renew, Tokens},
    },
};

const ONLY: ReaderRank = ReaderRank::ONLY;
const PROMISED: Result<Duration, Refusal> = Ok(Duration::from_secs(20));

#[track_caller]
fn differs<T: Debug + PartialEq>(rule: Rule, what: impl Fn() -> T, right: T, wrong: T) {
    assert_eq!(what(), right, "{} is kept", rule.name());
    break_rule(Some(rule));
    let broken = what();
    break_rule(None);
    assert_eq!(broken, wrong, "{} is broken", rule.name());
}

/// One test, for the switch is one for the process.
macro_rules! each {
    ($($rule:ident: $what:expr, $right:expr, $wrong:expr;)*) => {
        #[test]
        fn each_broken_rule_shows() {
            $(differs(Rule::$rule, $what, $right, $wrong);)*
            let shown = [$(Rule::$rule),*];
            assert_eq!(Rule::ALL.into_iter().find(|rule| !shown.contains(rule)), None);
        }
    };
}

each! {
    RenewalShortens: || expiry(&renewed_at("1").0), at("30"), at("21");
    AnchoredAtReceipt: || answered_late(&[]), false, true;
    AnchoredAtLatestBeat: || answered_late(&["10"]), false, true;
    OffsetWithoutError: || offset_width() > 0, true, false;
    CompletionWithoutRank: || (completed_twice(), counted_twice()), (false, false), (true, true);
    ThrottleSpentWhileConnecting: short_lease, None, Some((at("1"), Freed::Expired));
    ReaperStopsAtFirstLive: behind_a_live_one, Some((at("30"), Freed::Expired)), None;
    TombstonesForgotten: completion_repeated, Ok(()), Err(Refusal::Unknown);
    AbortFreesPromised: || after(|holder, token, _| holder.abort(token, Abort::Cancelled).unwrap()), false, true;
    DrainFreesPromised: || after(|holder, _, _| { holder.drain("1"); holder.poll("1"); }), false, true;
    ReleaseFreesPromised: || after(|holder, token, other| { holder.release(other, ONLY, token); }), false, true;
    PeerLostFrees: || after(|holder, _, _| { holder.act(|holder, cx| holder.peer_lost(cx, PeerId(1))); }), false, true;
    AnswerCoversAll: unnamed_is_confirmed, false, true;
    DriftOnce: || proof_deadline(Instant::ZERO, secs("20"), 500, 500), at("19.980009995"), at("19.99");
    StaleNow: || stalled("104", "104").1 < at("124"), false, true;
    ExpiresBeforeDraining: || stalled("125", "126").0, None, Some((at("125"), Freed::Expired));
    JudgedBeforeCompletion: || verdict("30", |_, _| ()), None, Some(Verdict::ValidByDeadline);
    AbandonedIsJudged: || verdict("1", abandon), Some(Verdict::Failed), Some(Verdict::ValidByDeadline);
    OneRankIsEnough: one_rank_answers, None, Some(Verdict::ValidByDeadline);
    SequenceFilters: old_number_is_answered, true, false;
    ClaimIgnored: || with_another(|holder, token, other| holder.renew(other, ONLY, token)), Err(Refusal::Claimed), PROMISED;
    CompletedForAnybody: completed_by_another, Err(Refusal::Completed), Ok(());
    PromiseBeyondDrain: || renewed_after(|holder, _| holder.drain("5")), Ok(secs("5")), PROMISED;
    FixedTtlMoves: fixed_ttl, Ok(secs("2")), PROMISED;
    HeldForLonger: || expiry(&renewed_at("15").0), at("35"), at("75");
    RevokedIsRenewed: || renewed_after(|holder, token| holder.abort(token, Abort::Failed).unwrap()), Err(Refusal::Failed), PROMISED;
    HeldUntilAck: || after(|holder, _, _| { holder.poll("31"); }), true, false;
    CompletionLeaks: left_after_completion, 0, 1;
    DoubtForgotten: tracked_again, None, Some(Verdict::ValidByDeadline);
    FreedTwice: late_completion_frees, 1, 2;
    SessionIgnored: unknown_session_is_answered, false, true;
    RestartUnnoticed: new_life_is_beaten, true, false;
}

fn renewed_at(time: &str) -> (LoneHolder, Token, Session) {
    let (mut holder, token, session) = greeted();
    holder.go(time);
    holder.renew(session, ONLY, token).unwrap();
    (holder, token, session)
}

fn expiry(holder: &LoneHolder) -> Instant {
    let renewed =
        holder.seen.iter().filter_map(|(_, seen)| if let Seen::Renewed(_, expires) = seen { Some(*expires) } else { None });
    renewed.max().unwrap()
}

/// Does something with a promised lease and another reader's session; `true` if the lease is over then.
fn after(act: impl Fn(&mut LoneHolder, Token, Session)) -> bool {
    with_another(|holder, token, other| {
        act(holder, token, other);
        holder.freed("a").is_some()
    })
}

fn with_another<T>(act: impl Fn(&mut LoneHolder, Token, Session) -> T) -> T {
    let (mut holder, token, _) = renewed_at("0");
    let other = holder.greet("x", 3, token).unwrap();
    act(&mut holder, token, other)
}

fn renewed_after(act: impl Fn(&mut LoneHolder, Token)) -> Result<Duration, Refusal> {
    let (mut holder, token, session) = renewed_at("0");
    act(&mut holder, token);
    holder.renew(session, ONLY, token)
}

fn completed_twice() -> bool {
    let (mut holder, token, session) = greeted();
    holder.complete(session, rank(0, 2), token).unwrap();
    holder.complete(session, rank(0, 2), token).unwrap();
    holder.freed("a").is_some()
}

fn counted_twice() -> bool {
    let mut holder = LoneHolder::new(Wire::Vllm);
    holder.grant("a");
    holder.text(Some(1), "a:2");
    holder.text(Some(1), "a:2");
    holder.freed("a").is_some()
}

fn behind_a_live_one() -> Option<(Instant, Freed)> {
    let (mut holder, token, session) = greeted();
    holder.grant("b");
    holder.go("20");
    holder.renew(session, ONLY, token).unwrap();
    holder.poll("30");
    holder.freed("b")
}

fn completion_repeated() -> Result<(), Refusal> {
    let (mut holder, token, session) = greeted();
    holder.complete(session, ONLY, token).unwrap();
    holder.complete(session, ONLY, token)
}

fn completed_by_another() -> Result<(), Refusal> {
    let (mut holder, token, session) = renewed_at("0");
    let other = holder.greet("x", 3, token).unwrap();
    holder.complete(session, ONLY, token).unwrap();
    holder.complete(other, ONLY, token)
}

fn left_after_completion() -> u32 {
    let (mut holder, token, session) = greeted();
    holder.complete(session, ONLY, token).unwrap();
    holder.poll("1000");
    holder.holder.live()
}

fn late_completion_frees() -> usize {
    let (mut holder, token, session) = greeted();
    holder.poll("31");
    let _ = holder.complete(session, ONLY, token);
    holder.seen.iter().filter(|(_, seen)| matches!(seen, Seen::Freed { .. })).count()
}

fn fixed_ttl() -> Result<Duration, Refusal> {
    let mut holder = LoneHolder::new(Wire::Native);
    let token = holder.grant_with("a", None, Some(secs("10"))).unwrap();
    let session = holder.greet("d", 2, token).unwrap();
    holder.go("8");
    holder.renew(session, ONLY, token)
}

fn old_number_is_answered() -> bool {
    let (mut holder, token, session) = renewed_at("0");
    let chunk = [token.to_bytes()];
    let body = Body::Renew(Renew { reader: ONLY, tokens: Tokens::from_chunks(&chunk).unwrap() });
    let (mut out, message) = (vec![0; 65_536], Message::Native { session, seq: Seq(1), body });
    holder.act(|holder, cx| matches!(holder.handle(cx, None, message, &mut out), Handled::Answer(_)))
}

fn unknown_session_is_answered() -> bool {
    let (mut holder, _, Session(session)) = greeted();
    holder.say(Session(session.wrapping_add(1)), Body::Time).is_some()
}

/// Whether a promise of 20 s stands when the renew of 0 s is answered later than that, with other beats in between.
fn answered_late(beats: &[&str]) -> bool {
    let mut reader = LoneReader::new(Wire::Native);
    reader.track("a", 1);
    let sent = reader.poll("0");
    beats.iter().for_each(|time| drop(reader.poll(time)));
    reader.go("19.99");
    reader.grant_all(&sent, "20");
    reader.saw(&Seen::Confirmed("a".into()))
}

fn unnamed_is_confirmed() -> bool {
    let mut reader = LoneReader::new(Wire::Native);
    reader.track("a", 1);
    let sent = reader.poll("0");
    reader.track("b", 2);
    reader.grant_all(&sent, "20");
    reader.saw(&Seen::Confirmed("b".into()))
}

/// Of a lease that was released, never answered for, and tracked again.
fn tracked_again() -> Option<Verdict> {
    let mut reader = LoneReader::new(Wire::Native);
    let handle = reader.track("a", 1);
    let sent = reader.poll("0");
    reader.grant_all(&sent, "20");
    abandon(&mut reader, handle);
    (1..=45).for_each(|second| drop(reader.poll(&second.to_string())));
    let handle = reader.track("a", 1);
    let sent = reader.poll("46");
    reader.grant_all(&sent, "20");
    reader.begin(handle);
    reader.go("47");
    reader.end(handle, ReadOutcome::OneSided);
    reader.verdict("a")
}

fn abandon(reader: &mut LoneReader, handle: Handle) {
    reader.act(|reader, cx| reader.finish(cx, handle)).unwrap();
}

/// Of a read that begins when 20 s were just promised.
fn verdict(ends: &str, during: impl Fn(&mut LoneReader, Handle)) -> Option<Verdict> {
    let mut reader = LoneReader::new(Wire::Native);
    let handle = reader.track("a", 1);
    let sent = reader.poll("0");
    reader.grant_all(&sent, "20");
    reader.begin(handle);
    during(&mut reader, handle);
    reader.go(ends);
    reader.end(handle, ReadOutcome::OneSided);
    reader.verdict("a")
}

fn one_rank_answers() -> Option<Verdict> {
    let mut reader = LoneReader::new(Wire::Native);
    let handle = reader.track_on("p", 1, &[0, 1], "a", 1, ONLY).unwrap();
    let sent: Vec<_> = reader.poll("0").into_iter().filter(|(rank, _)| *rank == 0).collect();
    reader.grant_all(&sent, "20");
    reader.begin(handle);
    reader.go("1");
    reader.end(handle, ReadOutcome::OneSided);
    reader.verdict("a")
}

/// How long the interval is that a round trip of a second leaves, ten seconds later.
fn offset_width() -> u128 {
    let mut window = OffsetWindow::new(500);
    let (asked, told) = (PeerInstant::from_nanos(7), PeerInstant::from_nanos(8));
    let sample = Sample { clock: ClockId(1), sent: at("1"), peer_received: asked, peer_sent: told, received: at("2") };
    window.add(sample, at("2"));
    window.interval(at("12")).unwrap().width()
}

fn pair(config: Config) -> World {
    let mut world = World::with(Wire::Native, config);
    world.start("p", 0);
    world.start("d", 5);
    let token = world.grant("p", "a").unwrap();
    world.track("d", "p", "a", token).unwrap();
    world
}

/// A lease that is shorter than the beat's interval lives by its first beats alone.
fn short_lease() -> Option<(Instant, Freed)> {
    let mut world = pair(Config { extension: Some(secs("20")), ..Config::with_lease(secs("1")) });
    world.run_to("20");
    world.freed("p", "a")
}

/// The holder stalls from 100 s on; how the lease ended, and when it ends.
fn stalled(until: &str, end: &str) -> (Option<(Instant, Freed)>, Instant) {
    let mut world = pair(Config::default());
    world.run_to("100");
    world.node("p").stalled_until = at(until);
    world.run_to(end);
    (world.freed("p", "a"), world.expires("p", "a"))
}

fn new_life_is_beaten() -> bool {
    let mut world = pair(Config::default());
    world.run_to("10");
    world.start("p", 0);
    let token = world.grant("p", "b").unwrap();
    world.track("d", "p", "b", token).unwrap();
    world.run_to("30");
    world.saw("d", &Seen::Confirmed("b".into()))
}
