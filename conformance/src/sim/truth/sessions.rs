//! Who may speak: a message belongs to a session that its receiver gave away in a greeting, or nothing comes of it (law 5).

use lease_proto::wire::native::{Body, Gone, Hello, HelloAck};

use super::Court;

impl Court<'_, '_> {
    /// A worker says something: it gives a session away, or it answers whom it has in hand.
    pub(super) fn speaks(&mut self, worker: u32, body: &Body<'_>) {
        match body {
            Body::Hello(Hello { party, .. }) | Body::HelloAck(HelloAck { party, .. }) => {
                self.desk_mut(worker).sessions.insert(party.session);
            }
            Body::Gone(Gone { re, .. }) if re.0 == 0 => {} // unasked
            Body::Renewed(_) | Body::Completed(_) | Body::TimeReply(_) | Body::Gone(_) if self.has_a_stranger(worker) => {
                self.violation(worker, 5, None, "answers a message of a session that it never gave");
            }
            _ => {}
        }
    }

    /// What is said about a lease is done.
    pub(super) fn obeys(&mut self, worker: u32, request: &str) {
        if self.checks && self.has_a_stranger(worker) {
            self.violation(worker, 5, Some(request), "does as a message of a session says that it never gave");
        }
    }

    fn has_a_stranger(&self, worker: u32) -> bool {
        let desk = self.desk(worker);
        desk.current.session.is_some_and(|session| !desk.sessions.contains(&session))
    }
}
