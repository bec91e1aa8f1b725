//! A bounded queue between threads, which wakes whoever waits at one of its ends.
//!
//! No call waits: an item that does not fit is given back. One mutex is held while one item is moved; wakers are called, and what is
//! dropped is dropped, after it was let go. Room is allocated at the start, for up to 65536 items, and nothing later. (Should the
//! system take a thread off its processor in the midst of such a move, another one that calls just then sleeps until it is back:
//! rare, and no peer can cause it. A queue without a lock needs `unsafe`.)
//!
//! ```
//! use lease_proto::sync::queue::{Bounds, PopError, PushError, queue};
//! let (commands, mut inbox) = queue(Bounds { items: 2, weight: 100 });
//! let more = commands.clone(); // any number of producers, one consumer
//! assert_eq!(commands.push("notify", 6), Ok(()));
//! assert_eq!(more.push("connect", 7), Ok(()));
//! assert_eq!(more.push("notify", 6), Err(PushError::Full("notify")));
//! assert_eq!(inbox.pop(), Ok("notify"));
//! drop((commands, more));
//! assert_eq!(inbox.pop(), Ok("connect"));
//! assert_eq!(inbox.pop(), Err(PopError::Closed));
//! ```
//!
//! # Sleeping
//! A consumer arms, then sleeps:
//!
//! ```
//! # use std::{sync::Arc, task::{Wake, Waker}, thread};
//! # use lease_proto::sync::queue::{Bounds, queue};
//! struct Unpark(thread::Thread);
//! impl Wake for Unpark {
//!     fn wake(self: Arc<Self>) {
//!         self.0.unpark();
//!     }
//! }
//! let waker = Waker::from(Arc::new(Unpark(thread::current())));
//! let (producer, mut consumer) = queue(Bounds { items: 8, weight: usize::MAX });
//! thread::spawn(move || producer.push(42, 0));
//! let item = loop {
//!     if let Ok(item) = consumer.pop() {
//!         break item;
//!     }
//!     if consumer.arm(&waker) {
//!         thread::park(); // or sleeps on a descriptor that the waker writes to
//!     }
//! };
//! assert_eq!(item, 42);
//! ```

use core::task::Waker;
use std::{collections::VecDeque, fmt};

use super::{
    ignore_poison,
    primitives::{Arc, Mutex, MutexGuard},
};

/// What a queue holds at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Items, at least 1, together with the places that are set aside.
    pub items: usize,
    /// Their weight, such as bytes, at least 1. The item that reaches it is taken, however heavy, and is the last.
    pub weight: usize,
}

/// Why an item was not taken. It comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError<T> {
    /// A bound is reached.
    #[error("the queue is full")]
    Full(T),
    /// The consumer is gone.
    #[error("the queue's consumer is gone")]
    Closed(T),
}

/// Why there is no item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PopError {
    /// Not now.
    #[error("the queue is empty")]
    Empty,
    /// Never again: the producers are gone, and so is all that they left.
    #[error("the queue is empty and its producers are gone")]
    Closed,
}

/// Most items for which room is allocated at the start. A larger queue grows where it must, and never shrinks.
const AT_ONCE: usize = 1 << 16;

/// Makes a queue: the end where items go in, and the end where they come out, oldest first.
pub fn queue<T>(bounds: Bounds) -> (Producer<T>, Consumer<T>) {
    let bounds = Bounds { items: bounds.items.max(1), weight: bounds.weight.max(1) };
    let state = State {
        items: VecDeque::with_capacity(bounds.items.min(AT_ONCE)),
        weight: 0,
        set_aside: 0,
        producers: 1,
        consumer_is_gone: false,
        consumer: None,
        producer: None,
    };
    let shared = Arc::new(Shared { bounds, state: Mutex::new(state) });
    (Producer(Arc::clone(&shared)), Consumer(shared))
}

/// Where items go in. Clones are further producers; when the last is dropped, the consumer is woken.
pub struct Producer<T>(Arc<Shared<T>>);

/// Where items come out. Dropping it drops what is inside, and wakes the producer that waits for room.
pub struct Consumer<T>(Arc<Shared<T>>);

struct Shared<T> {
    bounds: Bounds,
    state: Mutex<State<T>>,
}

/// All under one lock, so that nobody can look and arm in two steps, with a wake-up lost in between.
struct State<T> {
    items: VecDeque<(T, usize)>,
    weight: usize,
    set_aside: usize,
    producers: usize,
    consumer_is_gone: bool,
    /// Of a consumer that may be asleep.
    consumer: Option<Waker>,
    /// Of the producer that waits for room.
    producer: Option<Waker>,
}

impl<T> Producer<T> {
    /// Adds an item and wakes the consumer if that may be asleep.
    ///
    /// # Errors
    /// The item, if a bound is reached or the consumer is gone.
    pub fn push(&self, item: T, weight: usize) -> Result<(), PushError<T>> {
        let state = self.0.lock();
        if state.is_full(self.0.bounds) && !state.consumer_is_gone {
            drop(state);
            return Err(PushError::Full(item));
        }
        add(state, item, weight)
    }

    /// Sets a place aside for one [`Producer::push_set_aside`]. `false` without room.
    #[must_use]
    pub fn set_aside(&self) -> bool {
        let mut state = self.0.lock();
        let room = !state.is_full(self.0.bounds);
        state.set_aside = state.set_aside.saturating_add(room.into());
        room
    }

    /// Gives a place that was set aside back.
    pub fn give_back(&self) {
        let mut state = self.0.lock();
        state.set_aside = state.set_aside.saturating_sub(1);
        make_room(self.0.bounds, state);
    }

    /// Adds an item, without weight, into a place that was set aside: there is room for it.
    ///
    /// # Errors
    /// The item, if the consumer is gone, or if no place was set aside.
    pub fn push_set_aside(&self, item: T) -> Result<(), PushError<T>> {
        let mut state = self.0.lock();
        match state.set_aside.checked_sub(1) {
            Some(left) => state.set_aside = left,
            None => {
                drop(state);
                return Err(PushError::Full(item));
            }
        }
        add(state, item, 0)
    }

    /// Wakes the consumer, with nothing new for it, if it may be asleep.
    pub fn wake(&self) {
        let sleeping = self.0.lock().consumer.take();
        wake(sleeping);
    }

    /// Whether an item would be taken now.
    pub fn has_room(&self) -> bool {
        let state = self.0.lock();
        !state.is_full(self.0.bounds) && !state.consumer_is_gone
    }

    /// Has `waker` called once there is room again, and not for a single place: at most half of each bound is used by then, or the
    /// consumer is gone. `false` if that is so now or a bound is not reached. One producer can wait: the latest.
    #[must_use]
    pub fn arm(&self, waker: &Waker) -> bool {
        let mut state = self.0.lock();
        let wait = state.is_full(self.0.bounds) && !state.consumer_is_gone;
        let before = if wait { state.producer.replace(waker.clone()) } else { state.producer.take() };
        drop(state);
        drop(before);
        wait
    }
}

impl<T> Consumer<T> {
    /// Takes the oldest item.
    ///
    /// # Errors
    /// `Empty`, or `Closed` once there will be none any more.
    pub fn pop(&mut self) -> Result<T, PopError> {
        let mut state = self.0.lock();
        let Some((item, weight)) = state.items.pop_front() else {
            return Err(if state.producers == 0 { PopError::Closed } else { PopError::Empty });
        };
        state.weight = state.weight.saturating_sub(weight);
        make_room(self.0.bounds, state);
        Ok(item)
    }

    /// Whether [`Consumer::pop`] would find nothing now.
    pub fn is_empty(&self) -> bool {
        self.0.lock().items.is_empty()
    }

    /// Has `waker` called, once, when an item comes in or the last producer goes. `false` if that is so now: pop until nothing is
    /// left, then arm again. Replaces the waker before.
    #[must_use]
    pub fn arm(&mut self, waker: &Waker) -> bool {
        let mut state = self.0.lock();
        let wait = state.items.is_empty() && state.producers > 0;
        let before = if wait { state.consumer.replace(waker.clone()) } else { state.consumer.take() };
        drop(state);
        drop(before);
        wait
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        ignore_poison(self.state.lock())
    }
}

impl<T> State<T> {
    fn is_full(&self, bounds: Bounds) -> bool {
        self.items.len().saturating_add(self.set_aside) >= bounds.items || self.weight >= bounds.weight
    }

    /// Whether a producer that waits should come back: not for every single place.
    fn is_roomy(&self, bounds: Bounds) -> bool {
        let places = bounds.items.saturating_sub(self.set_aside);
        self.items.len() <= places / 2 && self.weight <= bounds.weight / 2 && !self.is_full(bounds)
    }
}

fn add<T>(mut state: MutexGuard<'_, State<T>>, item: T, weight: usize) -> Result<(), PushError<T>> {
    if state.consumer_is_gone {
        drop(state);
        return Err(PushError::Closed(item));
    }
    state.items.push_back((item, weight));
    state.weight = state.weight.saturating_add(weight);
    let sleeping = state.consumer.take();
    drop(state);
    wake(sleeping);
    Ok(())
}

/// Wakes a producer that waits, if there is room for it now.
fn make_room<T>(bounds: Bounds, mut state: MutexGuard<'_, State<T>>) {
    let roomy = state.is_roomy(bounds);
    let waiting = state.producer.take_if(|_| roomy);
    drop(state);
    wake(waiting);
}

/// With no lock held: a waker is foreign code.
fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl<T> Clone for Producer<T> {
    fn clone(&self) -> Self {
        let mut state = self.0.lock();
        state.producers = state.producers.saturating_add(1);
        drop(state);
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.producers = state.producers.saturating_sub(1);
        let last = state.producers == 0;
        let sleeping = state.consumer.take_if(|_| last);
        drop(state);
        wake(sleeping);
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.consumer_is_gone = true;
        let (left, waiting) = (std::mem::take(&mut state.items), state.producer.take());
        drop(state);
        drop(left);
        wake(waiting);
    }
}

impl<T> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
