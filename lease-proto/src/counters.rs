//! What happened, by kind. Counters live outside the state machines and go to metrics by [`Counters::each`].

use crate::{
    event::{Freed, Lost, Refused, Verdict},
    wire::Rejected,
};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since the start. All of them only grow.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
            freed: [u64; Freed::ALL.len()],
            refused: [u64; Refused::ALL.len()],
            rejected: [u64; Rejected::ALL.len()],
            lost: [u64; Lost::ALL.len()],
            verdicts: [u64; Verdict::ALL.len()],
        }

        impl Counters {
            /// Every counter: its name, its kind where it has several, its value.
            pub fn each(&self, mut visit: impl FnMut(&'static str, Option<&'static str>, u64)) {
                $(visit(stringify!($name), None, self.$name);)*
                let mut by_kind = |name, names: &mut dyn Iterator<Item = &'static str>, counts: &[u64]| {
                    names.zip(counts).for_each(|(kind, count)| visit(name, Some(kind), *count));
                };
                by_kind("freed", &mut Freed::ALL.iter().map(|kind| kind.name()), &self.freed);
                by_kind("refused", &mut Refused::ALL.iter().map(|kind| kind.name()), &self.refused);
                by_kind("rejected", &mut Rejected::ALL.iter().map(|kind| kind.name()), &self.rejected);
                by_kind("lost", &mut Lost::ALL.iter().map(|kind| kind.name()), &self.lost);
                by_kind("verdicts", &mut Verdict::ALL.iter().map(|kind| kind.name()), &self.verdicts);
            }
        }
    };
}

counters! {
    /// Holder: leases granted.
    granted,
    /// Holder: accepted renewals.
    renewed,
    /// Holder: leases that ended and were never claimed by a reader (case 32).
    unclaimed,
    /// Holder: leases kept past their expiry by the policy `hold_until_ack`.
    overdue,
    /// Holder: renewals that came with less than an interval to spare (case 40).
    late_heartbeat,
    /// Holder: completions of leases that had expired: the reader read too long (case 6; vLLM's `notifications_after_expiry`).
    read_after_expiry,
    /// Holder: completions that came before the grant and were kept (cases 10, 11).
    early_completions,
    /// Holder: unasked notices that found no room in the outbox.
    notices_dropped,
    /// Holder: answers not given because the peer asks too often.
    answers_limited,
    /// Reader: requests taken up.
    tracked,
    /// Reader: requests done with, whatever came of them.
    resolved,
    /// Reader: renews handed over and accepted.
    heartbeats,
    /// Reader: messages that the transport did not take, or that did not leave in time; not spent.
    unsent,
    /// Reader: answers that covered a renew.
    answers,
    /// Reader: answers that fit no renew that is remembered.
    answers_discarded,
    /// Reader: samples of a holder's clock that cannot be true.
    offsets_void,
    /// Reader: leases whose proof lapsed and that are still beaten for.
    unproven,
    /// Reader: completions and releases that were never answered.
    unanswered,
    /// Reader: reads that could not be proven because the peer cannot reach us.
    one_way,
    /// Both: connections made.
    connected,
    /// Both: connection attempts that failed or took too long.
    connect_failed,
    /// Both: peers that the transport reported dead (apart from expiry: case 61).
    peer_lost,
    /// Both: peers that came back as another incarnation.
    peer_restarted,
    /// Both: peers forgotten because they were silent for `engine_ttl`.
    evicted,
    /// Both: bytes that were not ours, handed back.
    foreign,
    /// Both: errors that the transport returned (apart from expiry: case 61).
    transport_errors,
    /// Both: times that the clock was read earlier than before.
    clock_backwards,
}

macro_rules! by_kind {
    ($($(#[$doc:meta])* $count:ident, $read:ident: $kind:ty;)*) => {
        impl Counters {
            $(
                $(#[$doc])*
                pub fn $read(&self, kind: $kind) -> u64 {
                    position(&<$kind>::ALL, kind).and_then(|at| self.$read.get(at)).copied().unwrap_or(0)
                }

                pub(crate) fn $count(&mut self, kind: $kind) {
                    if let Some(count) = position(&<$kind>::ALL, kind).and_then(|at| self.$read.get_mut(at)) {
                        add(count);
                    }
                }
            )*
        }
    };
}

by_kind! {
    /// Holder: leases ended for this reason.
    count_freed, freed: Freed;
    /// Both: well-formed requests refused for this reason.
    count_refused, refused: Refused;
    /// Both: messages dropped for this reason.
    count_rejected, rejected: Rejected;
    /// Reader: leases lost for this reason.
    count_lost, lost: Lost;
    /// Reader: reads that ended with this verdict.
    count_verdict, verdicts: Verdict;
}

fn position<T: PartialEq>(all: &[T], kind: T) -> Option<usize> {
    all.iter().position(|each| *each == kind)
}

/// One more; a counter stops at its end instead of starting again.
pub(crate) fn add(count: &mut u64) {
    *count = count.saturating_add(1);
}
