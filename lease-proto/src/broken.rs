//! Rules of the protocol, broken on purpose, one at a time: so that whatever judges the laws can show that it would notice.
//!
//! **Test-only: never set this cfg in a product build.** The module exists under `RUSTFLAGS="--cfg kvlease_broken"` alone; without
//! it every place that asks [`Rule`] holds the constant `false`. The switch is one for the whole process: tests that break rules
//! run one after the other.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::event::named;

named! {
    /// A rule to break, named after what goes wrong.
    Rule {
        /// Holder: a lease ends `granted` after its last renewal, also where it was promised for longer before.
        RenewalShortens = "renewal_shortens",
        /// Reader: the time granted counts from when the answer came.
        AnchoredAtReceipt = "anchored_at_receipt",
        /// Reader: the time granted counts from the latest renew, whichever one is answered.
        AnchoredAtLatestBeat = "anchored_at_latest_beat",
        /// An offset is the midpoint of the latest sample: no half round trip, no drift, no age.
        OffsetWithoutError = "offset_without_error",
        /// Holder: whoever completes, and however often, one more rank has read. On vLLM's wire senders are not told apart.
        CompletionWithoutRank = "completion_without_rank",
        /// Reader: the beat that could not be sent, for want of a connection or of room, is spent; none come fast at first.
        ThrottleSpentWhileConnecting = "throttle_spent_while_connecting",
        /// Holder: leases expire in the order of their grants, none before those granted earlier.
        ReaperStopsAtFirstLive = "reaper_stops_at_first_live",
        /// Holder: nothing is remembered of leases that are over.
        TombstonesForgotten = "tombstones_forgotten",
        /// Holder: an abort frees at once what was promised to a reader.
        AbortFreesPromised = "abort_frees_promised",
        /// Holder: the drain's deadline ends promises that reach beyond it.
        DrainFreesPromised = "drain_frees_promised",
        /// Holder: a third party's release frees at once what was promised to a reader.
        ReleaseFreesPromised = "release_frees_promised",
        /// Holder: a lease is freed when the connection to its reader breaks.
        PeerLostFrees = "peer_lost_frees",
        /// Reader: an answer counts for all leases of that peer, named in its renew or not.
        AnswerCoversAll = "answer_covers_all",
        /// Reader: of the time granted only the own clock's drift is taken off.
        DriftOnce = "drift_once",
        /// Drive: messages are handed in with the clock's value at the end of the turn before.
        StaleNow = "stale_now",
        /// Reader: a promise that stood when the read began proves it.
        JudgedBeforeCompletion = "judged_before_completion",
        /// Holder: a message that is not numbered higher than all before it in its session is ignored.
        SequenceFilters = "sequence_filters",
        /// Drive: things expire before the messages that wait are taken in.
        ExpiresBeforeDraining = "expires_before_draining",
        /// Holder: another incarnation takes a lease over while a promise to the first is open.
        ClaimIgnored = "claim_ignored",
        /// Holder: any complete of a lease that was completed is answered `completed`, under its own number.
        CompletedForAnybody = "completed_for_anybody",
        /// Holder: while it drains, it grants the whole extension and holds up to its deadline.
        PromiseBeyondDrain = "promise_beyond_drain",
        /// Holder: a renewal moves a lease of a fixed time to live.
        FixedTtlMoves = "fixed_ttl_moves",
        /// Holder: a renewal holds the lease for three times as long as it says.
        HeldForLonger = "held_for_longer",
        /// Holder: a lease that was taken back is renewed all the same.
        RevokedIsRenewed = "revoked_is_renewed",
        /// Holder: what was promised is held until its reader answers, with no policy that says so.
        HeldUntilAck = "held_until_ack",
        /// Reader: a proof for one of the ranks that were read from is enough.
        OneRankIsEnough = "one_rank_is_enough",
        /// Reader: a read that the engine abandoned is judged like any other.
        AbandonedIsJudged = "abandoned_is_judged",
        /// Holder: a lease that everybody has read is never freed.
        CompletionLeaks = "completion_leaks",
        /// Reader: a lease that it gave up unheard, and tracks again, is proven by its deadline like any other.
        DoubtForgotten = "doubt_forgotten",
        /// Holder: a lease that expired stays where it is, so that what comes late frees it again.
        FreedTwice = "freed_twice",
        /// Holder: a message of an unknown session is taken for the first peer's.
        SessionIgnored = "session_ignored",
        /// Reader: an engine that was restarted is taken for the process it was before.
        RestartUnnoticed = "restart_unnoticed",
    }
}

/// The number of the rule that is broken, counted from 1; zero for none.
static BROKEN: AtomicU32 = AtomicU32::new(0);

/// Breaks this rule and no other, in the whole process, from now on.
pub fn break_rule(rule: Option<Rule>) {
    BROKEN.store(rule.map_or(0, number), Ordering::Relaxed);
}

pub(crate) fn broken(rule: Rule) -> bool {
    BROKEN.load(Ordering::Relaxed) == number(rule)
}

fn number(rule: Rule) -> u32 {
    (rule as u32).saturating_add(1)
}
