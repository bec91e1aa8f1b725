//! vLLM's own arithmetic for a deadline that a peer stamped, for its wire only (facts of vLLM 0.33).
//!
//! One offset, guessed once from a handshake; no interval, no drift, no clock id. It exists so that a peer on that wire decides
//! as vLLM does; a reader that has an [`super::OffsetWindow`] should use that.

use super::Gate;
use crate::time::{Duration, Instant, PeerInstant};

/// vLLM declines a read that begins this close to the deadline.
pub const VLLM_TURN2_MARGIN: Duration = Duration::from_secs(5);

/// The offset that vLLM keeps for a peer: of the query with the shortest round trip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VllmOffset(Option<(Duration, i128)>);

impl VllmOffset {
    /// No query answered yet.
    pub const fn new() -> Self {
        Self(None)
    }

    /// A query sent at `start` and answered with `remote`, received at `received`. The earlier of two equally short ones stays;
    /// one that came back before it was sent is ignored.
    pub fn add(&mut self, start: Instant, remote: PeerInstant, received: Instant) {
        let round_trip = received.saturating_since(start);
        if received < start || self.0.is_some_and(|(best, _)| best <= round_trip) {
            return;
        }
        let middle = start.as_nanos().midpoint(received.as_nanos());
        self.0 = Some((round_trip, i128::from(remote.as_nanos()).saturating_sub(i128::from(middle))));
    }

    /// The peer's clock minus this one in nanoseconds, within ±2^64. It may be wrong by half the round trip and by all drift
    /// since. `None` before the first answer.
    pub fn nanos(self) -> Option<i128> {
        self.0.map(|(_, offset)| offset)
    }
}

/// vLLM's decision whether to read blocks that the peer gives away at `deadline`: declined from 5 s before it, read anyway if
/// there is no deadline. `offset` is [`VllmOffset::nanos`].
pub fn vllm_turn2_gate(now: Instant, deadline: Option<PeerInstant>, offset: i128) -> Gate {
    let Some(deadline) = deadline else { return Gate::Read };
    let now = i128::from(now.as_nanos());
    let margin = i128::from(VLLM_TURN2_MARGIN.as_nanos());
    if now.saturating_add(margin) >= i128::from(deadline.as_nanos()).saturating_sub(offset) { Gate::TooLate } else { Gate::Read }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i128 = 1_000_000_000;

    #[test]
    fn the_gate_decides_as_vllms_own_tests_say() {
        let now = 1000 * SECOND;
        for (offset, delta, expected) in [
            (0, -10, Gate::TooLate),
            (100, 50, Gate::TooLate),
            (0, 2, Gate::TooLate),
            (0, 5, Gate::TooLate),
            (0, 1000, Gate::Read),
        ] {
            let deadline = PeerInstant::from_nanos((now + delta * SECOND) as u64);
            let now = Instant::from_nanos(now as u64);
            assert_eq!(vllm_turn2_gate(now, Some(deadline), offset * SECOND), expected, "offset {offset}, delta {delta}");
        }
        assert_eq!(vllm_turn2_gate(Instant::MAX, None, 0), Gate::Read);
        for offset in [i128::MIN, i128::MAX] {
            vllm_turn2_gate(Instant::MAX, Some(PeerInstant::MAX), offset);
        }
    }

    #[test]
    fn the_shortest_round_trip_wins() {
        let at = Instant::from_nanos;
        let mut offset = VllmOffset::new();
        assert_eq!(offset.nanos(), None);
        offset.add(at(10), PeerInstant::from_nanos(500), at(5));
        assert_eq!(offset.nanos(), None, "received before it was sent");
        offset.add(at(100), PeerInstant::from_nanos(1150), at(200));
        assert_eq!(offset.nanos(), Some(1000));
        offset.add(at(300), PeerInstant::from_nanos(9000), at(400));
        assert_eq!(offset.nanos(), Some(1000), "not shorter");
        offset.add(at(500), PeerInstant::from_nanos(10), at(520));
        assert_eq!(offset.nanos(), Some(-500));
    }
}
