use super::{World, conserved};
use lease_proto::{
    event::{Event, Freed, Lost, Refused, Verdict},
    time::Instant,
    wire::Rejected,
};

/// An event, owned, so that tests can look at it later.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    Granted(String, Instant),
    Renewed(String, Instant),
    Freed { request: String, why: Freed, expires: Instant, now: Instant, previous_poll: Instant },
    Overdue(String),
    Drained,
    Refused(Option<String>, Refused),
    Rejected(Rejected),
    Foreign(Vec<u8>),
    Connected(String),
    OneWay(String),
    PeerLost(String),
    PeerRestarted(String),
    Heartbeat(u16, usize),
    Confirmed(String),
    Unproven(String),
    Lost(String, Lost),
    HolderDrains(String),
    ReadDone(String, Verdict),
    Resolved(String),
    Other(String),
}

pub fn seen(event: Event<'_>) -> Seen {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match event {
        Event::Granted { request, expires, .. } => Seen::Granted(request.to_string(), expires),
        Event::Renewed { request, expires, .. } => Seen::Renewed(request.to_string(), expires),
        Event::Freed { request, why, expires, now, previous_poll, .. } => {
            Seen::Freed { request: request.to_string(), why, expires, now, previous_poll }
        }
        Event::Overdue { request } => Seen::Overdue(request.to_string()),
        Event::Drained => Seen::Drained,
        Event::Refused { request, why, .. } => Seen::Refused(request.map(text), why),
        Event::Rejected { why } => Seen::Rejected(why),
        Event::Foreign { bytes, .. } => Seen::Foreign(bytes.to_vec()),
        Event::Connected { engine } => Seen::Connected(text(engine)),
        Event::OneWay { engine } => Seen::OneWay(text(engine)),
        Event::PeerLost { engine } => Seen::PeerLost(text(engine)),
        Event::PeerRestarted { engine } => Seen::PeerRestarted(text(engine)),
        Event::HeartbeatSent { leases, bytes, .. } => Seen::Heartbeat(leases, bytes),
        Event::Confirmed { request, .. } => Seen::Confirmed(request.to_string()),
        Event::Unproven { request, .. } => Seen::Unproven(request.to_string()),
        Event::Lost { request, why, .. } => Seen::Lost(request.to_string(), why),
        Event::HolderDrains { request, .. } => Seen::HolderDrains(request.to_string()),
        Event::ReadDone { request, verdict, .. } => Seen::ReadDone(request.to_string(), verdict),
        Event::Resolved { request, .. } => Seen::Resolved(request.to_string()),
        other => Seen::Other(format!("{other:?}")),
    }
}

impl World {
    /// Events of a node, in order, without their times.
    pub fn events(&self, node: &'static str) -> Vec<&Seen> {
        self.nodes[node].seen.iter().map(|(_, seen)| seen).collect()
    }

    pub fn saw(&self, node: &'static str, event: &Seen) -> bool {
        self.nodes[node].seen.iter().any(|(_, seen)| seen == event)
    }

    /// When and how a request's lease ended on a node.
    pub fn freed(&self, node: &'static str, request: &str) -> Option<(Instant, Freed)> {
        let mut all = self.nodes[node].seen.iter().filter_map(|(at, seen)| match seen {
            Seen::Freed { request: freed, why, .. } if freed == request => Some((*at, *why)),
            _ => None,
        });
        let first = all.next();
        assert_eq!(all.next(), None, "{request} was freed twice");
        first
    }

    pub fn verdict(&self, node: &'static str, request: &str) -> Option<Verdict> {
        self.nodes[node].seen.iter().find_map(|(_, seen)| match seen {
            Seen::ReadDone(read, verdict) if read == request => Some(*verdict),
            _ => None,
        })
    }

    pub fn lost(&self, node: &'static str, request: &str) -> Option<Lost> {
        self.nodes[node].seen.iter().find_map(|(_, seen)| match seen {
            Seen::Lost(lost, why) if lost == request => Some(*why),
            _ => None,
        })
    }

    /// How often a node saw something.
    pub fn count(&self, node: &'static str, is: impl Fn(&Seen) -> bool) -> usize {
        self.nodes[node].seen.iter().filter(|(_, seen)| is(seen)).count()
    }

    /// When a node's lease of a request ends, on the node's clock, as it was told last.
    pub fn expires(&self, node: &'static str, request: &str) -> Instant {
        let promised = self.nodes[node].seen.iter().filter_map(|(_, seen)| match seen {
            Seen::Granted(of, expires) | Seen::Renewed(of, expires) if of == request => Some(*expires),
            _ => None,
        });
        promised.max().unwrap()
    }

    /// Law 6 on every node.
    pub fn lawful(&self) {
        for (name, node) in &self.nodes {
            conserved(name, &node.counters, node.holder.live(), node.reader.open());
        }
    }
}
