//! The network of a world: links between nodes, what goes wrong on them, and what is under way.
//!
//! Faults are decided at the moment of sending; where several apply: drop, then hold, delay, duplicate, reorder. An address is a
//! node's and a rank's, whatever its life: what was sent to an engine that has died reaches the one that took its place.

use lease_proto::{id::Entropy, time::Duration, wire::native::is_native};
use rustc_hash::FxHashMap;

use super::{
    time::WorldTime,
    trace::{Effect, Fault},
};

/// One direction between two nodes.
pub(super) type Link = (u32, u32);

/// Who sent a message: a worker, in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sender {
    pub(super) worker: u32,
    pub(super) life: u32,
}

/// A message that has been sent.
#[derive(Clone, Debug)]
pub(super) struct Message {
    /// `None`: nobody sent it, it was put there.
    pub(super) from: Option<Sender>,
    pub(super) to: u32,
    pub(super) bytes: Box<[u8]>,
}

#[derive(Debug, Default)]
struct Lane {
    windows: Vec<(WorldTime, Effect)>,
    drop_next: u64,
    /// The first messages ever sent, as many as may be replayed.
    log: Vec<Message>,
    keep: usize,
    /// The message that was sent last in a window that reorders.
    last: Option<u64>,
}

/// Messages that were sent, and their bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

/// What was sent, by its kind, whatever became of it. vLLM's text is of one kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic([Sent; KINDS]);

/// Kinds of the native wire, and none.
const KINDS: usize = 11;

impl Traffic {
    fn count(&mut self, bytes: &[u8]) {
        let kind = if is_native(bytes) { bytes.get(KIND).map_or(0, |kind| usize::from(*kind)) } else { 0 };
        if let Some(sent) = self.0.get_mut(kind) {
            sent.messages += 1;
            sent.bytes += bytes.len() as u64;
        }
    }

    /// What was sent of these kinds.
    pub(super) fn of(&self, kinds: &[usize]) -> Sent {
        kinds
            .iter()
            .filter_map(|kind| self.0.get(*kind))
            .fold(Sent::default(), |sum, sent| Sent { messages: sum.messages + sent.messages, bytes: sum.bytes + sent.bytes })
    }
}

/// Where a native message tells its kind.
const KIND: usize = 5;

/// Most copies of one message, however many windows add to them.
const COPIES: u32 = 1000;

/// The network.
#[derive(Debug)]
pub(super) struct Net {
    delay: Duration,
    lanes: FxHashMap<Link, Lane>,
    under_way: FxHashMap<u64, Message>,
    numbers: u64,
    generator: Entropy,
    /// Of 2^64 messages so many get lost, beside what faults do.
    loss: u64,
    pub(super) traffic: Traffic,
}

impl Net {
    pub(super) fn new(delay: Duration, generator: Entropy) -> Self {
        let (lanes, under_way) = (FxHashMap::default(), FxHashMap::default());
        Self { delay, lanes, under_way, numbers: 0, generator, loss: 0, traffic: Traffic::default() }
    }

    /// From now on each message gets lost with that probability.
    pub(super) fn lose(&mut self, probability: f64) {
        self.loss = (probability * u64::MAX as f64) as u64;
    }

    /// That message may be replayed, so it is kept.
    pub(super) fn will_replay(&mut self, link: Link, nth: u64) {
        let keep = usize::try_from(nth).unwrap_or(usize::MAX).saturating_add(1);
        let lane = self.lanes.entry(link).or_default();
        lane.keep = lane.keep.max(keep);
    }

    /// Puts a fault on a link; what is replayed goes under way.
    pub(super) fn fault(&mut self, now: WorldTime, link: Link, fault: &Fault, arrive: &mut dyn FnMut(WorldTime, u64)) {
        let lane = self.lanes.entry(link).or_default();
        lane.windows.retain(|(until, _)| *until > now);
        match fault {
            Fault::Window { until, effect } => {
                if *effect == Effect::Reorder {
                    lane.last = None; // it is not of this window
                }
                lane.windows.push((*until, effect.clone()));
            }
            Fault::DropNext { count } => lane.drop_next = lane.drop_next.saturating_add(*count),
            Fault::Replay { nth } => {
                let message = usize::try_from(*nth).ok().and_then(|nth| lane.log.get(nth)).cloned();
                if let Some(message) = message {
                    self.dispatch(now, link, message, arrive);
                }
            }
        }
        // A partition is cut both ways.
        if let Fault::Window { until, effect: Effect::Partition } = fault {
            self.lanes.entry((link.1, link.0)).or_default().windows.push((*until, Effect::Drop));
        }
    }

    /// A message is sent; `arrive` is told when what becomes of it arrives, and its number.
    pub(super) fn send(&mut self, now: WorldTime, link: Link, message: Message, arrive: &mut dyn FnMut(WorldTime, u64)) {
        self.traffic.count(&message.bytes);
        if self.loss > 0 && self.generator.draw() < self.loss {
            return;
        }
        if let Some(lane) = self.lanes.get_mut(&link) {
            if lane.log.len() < lane.keep {
                lane.log.push(message.clone());
            }
            if lane.drop_next > 0 {
                lane.drop_next -= 1;
                return;
            }
        }
        self.dispatch(now, link, message, arrive);
    }

    fn dispatch(&mut self, now: WorldTime, link: Link, message: Message, arrive: &mut dyn FnMut(WorldTime, u64)) {
        let mut sum = Sum { arrives: now.saturating_add(self.delay), ..Sum::default() };
        if let Some(lane) = self.lanes.get_mut(&link)
            && !lane.windows.is_empty()
        {
            lane.windows.retain(|(until, _)| *until > now);
            lane.windows.iter().for_each(|(until, effect)| sum.add(*until, effect));
            if !sum.reorder {
                lane.last = None;
            }
        }
        if sum.drop {
            return;
        }
        let at = sum.arrives.max(sum.held).saturating_add(sum.delay);
        for _ in 0..sum.copies {
            let number = self.enter(message.clone());
            arrive(at, number);
            if sum.reorder {
                self.reorder(link, number);
            }
        }
        let number = self.enter(message);
        arrive(at, number);
        if sum.reorder {
            self.reorder(link, number);
        }
    }

    fn enter(&mut self, message: Message) -> u64 {
        self.numbers += 1;
        self.under_way.insert(self.numbers, message);
        self.numbers
    }

    /// The generator decides whether a message takes the place of the one before it, if that has not arrived.
    fn reorder(&mut self, link: Link, number: u64) {
        let swap = self.generator.draw().is_multiple_of(2);
        let last = self.lanes.get_mut(&link).and_then(|lane| lane.last.replace(number));
        let Some(last) = last.filter(|last| swap && self.under_way.contains_key(last)) else { return };
        if let (Some(earlier), Some(later)) = (self.under_way.remove(&last), self.under_way.remove(&number)) {
            self.under_way.insert(last, later);
            self.under_way.insert(number, earlier);
        }
    }

    /// The message with that number has arrived.
    pub(super) fn take(&mut self, number: u64) -> Option<Message> {
        self.under_way.remove(&number)
    }

    /// How long a question outside of the messages takes on a link that is sent now.
    pub(super) fn delay_on(&self, now: WorldTime, link: Link) -> Duration {
        let mut sum = Sum::default();
        if let Some(lane) = self.lanes.get(&link) {
            lane.windows.iter().filter(|(until, _)| *until > now).for_each(|(until, effect)| sum.add(*until, effect));
        }
        self.delay.saturating_add(sum.delay)
    }
}

/// What the windows of a link add up to.
#[derive(Default)]
struct Sum {
    arrives: WorldTime,
    drop: bool,
    held: WorldTime,
    delay: Duration,
    copies: u32,
    reorder: bool,
}

impl Sum {
    fn add(&mut self, until: WorldTime, effect: &Effect) {
        match effect {
            Effect::Drop | Effect::Partition => self.drop = true,
            Effect::Hold => self.held = self.held.max(until),
            Effect::Delay { by } => self.delay = self.delay.saturating_add(*by),
            Effect::Duplicate { times } => self.copies = self.copies.saturating_add(*times).min(COPIES),
            Effect::Reorder => self.reorder = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = (0, 1);

    fn at(seconds: u64) -> WorldTime {
        WorldTime::after(Duration::from_secs(seconds))
    }

    fn net(seed: u8) -> Net {
        Net::new(Duration::from_secs(100), Entropy::from_seed([seed; 16]))
    }

    fn window(net: &mut Net, from: u64, until: u64, effect: Effect) {
        net.fault(at(from), LINK, &Fault::Window { until: at(until), effect }, &mut |_, _| ());
    }

    /// The numbers under which what is sent arrives.
    fn send(net: &mut Net, now: u64, byte: u8) -> Vec<u64> {
        let mut numbers = Vec::new();
        let message = Message { from: None, to: 1, bytes: [byte].into() };
        net.send(at(now), LINK, message, &mut |_, number| numbers.push(number));
        numbers
    }

    #[test]
    fn copies_are_bounded_in_sum() {
        let mut net = net(1);
        for times in [600, 600, 1000] {
            window(&mut net, 0, 9, Effect::Duplicate { times });
        }
        assert_eq!(send(&mut net, 0, 7).len(), 1001);
    }

    #[test]
    fn a_window_reorders_only_what_is_sent_in_it() {
        let swapped = |seed, between: u64| {
            let mut net = net(seed);
            window(&mut net, 0, 1 + between, Effect::Reorder);
            let first = send(&mut net, 0, 1);
            window(&mut net, 2, 3, Effect::Drop);
            if between == 0 {
                window(&mut net, 3, 5, Effect::Reorder);
            }
            send(&mut net, 4, 2);
            net.take(first[0]).unwrap().bytes[0] == 2
        };
        assert!((0..64).any(|seed| swapped(seed, 9)) && !(0..64).any(|seed| swapped(seed, 0)));
    }
}
