//! When to connect, greet, give up and try again: one handshake, as a pure state machine.
//!
//! Single flight: however often a connection is asked for, one attempt runs. Attempts end by a deadline of their own that is
//! shorter than an extension (case 48), and the time between them doubles. The caller does what [`Handshake::step`] says.

use crate::{
    time::{Duration, Instant},
    transport::Ticket,
};

/// How patient a handshake is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Patience {
    /// An attempt to connect is given up after.
    pub connect_deadline: Duration,
    /// First pause after a failure; each further one doubles it.
    pub first_pause: Duration,
    /// Longest pause.
    pub longest_pause: Duration,
    /// A hello is repeated after, until it is answered.
    pub hello_interval: Duration,
    /// Whether there is a hello at all; on vLLM's wire a connection is all there is.
    pub greets: bool,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask the transport to connect, then call [`Handshake::connecting`] or [`Handshake::failed`].
    Connect,
    /// Give this attempt up; it took too long.
    Cancel(Ticket),
    /// Send a hello.
    Hello,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum State {
    #[default]
    Idle,
    Paused {
        until: Instant,
    },
    Connecting {
        ticket: Option<Ticket>,
        give_up: Instant,
    },
    Greeting {
        next: Instant,
    },
    Established,
}

/// One handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Handshake {
    state: State,
    /// Failures and unanswered hellos in a row.
    failures: u32,
}

impl Handshake {
    /// Wants a connection. Does nothing if there is one or one is on its way.
    pub fn start(&mut self, now: Instant) {
        if self.state == State::Idle {
            self.state = State::Paused { until: now };
        }
    }

    /// What is due; call until `None`.
    pub fn step(&mut self, now: Instant, patience: &Patience) -> Option<Step> {
        match self.state {
            State::Paused { until } if until <= now => {
                self.state = State::Connecting { ticket: None, give_up: now.saturating_add(patience.connect_deadline) };
                Some(Step::Connect)
            }
            State::Connecting { ticket, give_up } if give_up <= now => {
                self.failed(now, patience);
                ticket.map(Step::Cancel)
            }
            State::Greeting { next } if next <= now => {
                self.state = State::Greeting { next: now.saturating_add(patience.hello_interval) };
                self.failures = self.failures.saturating_add(1);
                Some(Step::Hello)
            }
            _ => None,
        }
    }

    /// The transport took the attempt up under this ticket.
    pub fn connecting(&mut self, ticket: Ticket) {
        if let State::Connecting { ticket: slot, .. } = &mut self.state {
            *slot = Some(ticket);
        }
    }

    /// Whether an attempt was asked for and the transport has not taken it up yet.
    pub fn wants_ticket(&self) -> bool {
        matches!(self.state, State::Connecting { ticket: None, .. })
    }

    /// Whether this ticket is the attempt that is running.
    pub fn awaits(&self, ticket: Ticket) -> bool {
        matches!(self.state, State::Connecting { ticket: Some(running), .. } if running == ticket)
    }

    /// The transport has a connection: the hello is due, if there is one.
    pub fn connected(&mut self, now: Instant, patience: &Patience) {
        if matches!(self.state, State::Connecting { .. }) {
            self.failures = 0;
            self.state = if patience.greets { State::Greeting { next: now } } else { State::Established };
        }
    }

    /// The attempt failed: pause, longer each time.
    pub fn failed(&mut self, now: Instant, patience: &Patience) {
        let doubled = patience.first_pause.saturating_mul(1u64.checked_shl(self.failures).unwrap_or(u64::MAX));
        self.failures = self.failures.saturating_add(1);
        self.state = State::Paused { until: now.saturating_add(doubled.min(patience.longest_pause)) };
    }

    /// The hello was answered.
    pub fn established(&mut self) {
        self.failures = 0;
        self.state = State::Established;
    }

    /// The peer may have forgotten us: greet it again on the same connection.
    pub fn greet_again(&mut self, now: Instant) {
        if self.state == State::Established {
            self.state = State::Greeting { next: now };
        }
    }

    /// The connection is gone: make another one, after a pause, since one that breaks at once would be made without end.
    pub fn lost(&mut self, now: Instant, patience: &Patience) {
        if matches!(self.state, State::Greeting { .. } | State::Established) {
            self.failed(now, patience);
        }
    }

    /// Wants no connection any more; returns the attempt to give up, if one is running.
    pub fn cancel(&mut self) -> Option<Ticket> {
        match core::mem::take(self).state {
            State::Connecting { ticket, .. } => ticket,
            _ => None,
        }
    }

    /// Whether messages can be exchanged.
    pub fn is_established(&self) -> bool {
        self.state == State::Established
    }

    /// Whether hellos are being sent; the number of those unanswered.
    pub fn unanswered_hellos(&self) -> u32 {
        if matches!(self.state, State::Greeting { .. }) { self.failures } else { 0 }
    }

    /// When [`Handshake::step`] has something again.
    pub fn next_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Idle | State::Established => None,
            State::Paused { until } => Some(until),
            State::Connecting { give_up, .. } => Some(give_up),
            State::Greeting { next } => Some(next),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        connect_deadline: Duration::from_secs(10),
        first_pause: Duration::from_secs(1),
        longest_pause: Duration::from_secs(5),
        hello_interval: Duration::from_secs(1),
        greets: true,
    };

    fn at(secs: u64) -> Instant {
        Instant::from_nanos(secs * 1_000_000_000)
    }

    #[test]
    fn one_attempt_runs_however_often_it_is_asked_for() {
        let mut handshake = Handshake::default();
        handshake.start(at(0));
        assert_eq!(handshake.step(at(0), &PATIENCE), Some(Step::Connect));
        handshake.connecting(Ticket(1));
        handshake.start(at(1));
        assert_eq!(handshake.step(at(1), &PATIENCE), None);
        assert!(handshake.awaits(Ticket(1)) && !handshake.awaits(Ticket(2)));
    }

    #[test]
    fn an_attempt_that_takes_too_long_is_cancelled_and_the_pauses_double() {
        let (mut handshake, mut now, mut pauses) = (Handshake::default(), at(0), std::vec::Vec::new());
        handshake.start(now);
        for ticket in 0..5 {
            assert_eq!(handshake.step(now, &PATIENCE), Some(Step::Connect));
            handshake.connecting(Ticket(ticket));
            now = handshake.next_timeout().unwrap();
            assert_eq!(handshake.step(now, &PATIENCE), Some(Step::Cancel(Ticket(ticket))));
            let next = handshake.next_timeout().unwrap();
            pauses.push(next.saturating_since(now).as_nanos() / 1_000_000_000);
            now = next;
        }
        assert_eq!(pauses, [1, 2, 4, 5, 5]);
    }

    #[test]
    fn a_connection_that_breaks_at_once_is_not_made_without_end() {
        let (mut handshake, mut now) = (Handshake::default(), at(0));
        handshake.start(now);
        for _ in 0..5 {
            assert_eq!(handshake.step(now, &PATIENCE), Some(Step::Connect));
            handshake.connecting(Ticket(1));
            handshake.connected(now, &PATIENCE);
            handshake.lost(now, &PATIENCE);
            assert_eq!(handshake.step(now, &PATIENCE), None);
            now = handshake.next_timeout().unwrap();
        }
        assert_eq!(now, at(5));
    }

    #[test]
    fn a_hello_is_repeated_until_it_is_answered() {
        let mut handshake = Handshake::default();
        handshake.start(at(0));
        handshake.step(at(0), &PATIENCE);
        handshake.connecting(Ticket(1));
        handshake.connected(at(1), &PATIENCE);
        for second in 1..4 {
            assert_eq!(handshake.step(at(second), &PATIENCE), Some(Step::Hello));
            assert_eq!(handshake.step(at(second), &PATIENCE), None);
        }
        assert_eq!(handshake.unanswered_hellos(), 3);
        handshake.established();
        assert_eq!(handshake.next_timeout(), None);
    }

    #[test]
    fn a_late_result_of_a_cancelled_attempt_changes_nothing() {
        let mut handshake = Handshake::default();
        handshake.start(at(0));
        handshake.step(at(0), &PATIENCE);
        handshake.connecting(Ticket(1));
        assert_eq!(handshake.cancel(), Some(Ticket(1)));
        handshake.connected(at(1), &PATIENCE);
        assert_eq!(handshake, Handshake::default());
    }

    #[test]
    fn without_greeting_a_connection_is_enough() {
        let patience = Patience { greets: false, ..PATIENCE };
        let mut handshake = Handshake::default();
        handshake.start(at(0));
        handshake.step(at(0), &patience);
        handshake.connected(at(0), &patience);
        assert!(handshake.is_established());
    }
}
