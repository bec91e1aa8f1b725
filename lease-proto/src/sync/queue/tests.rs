//! Under loom each model also runs with one step of the queue taken apart, which it must notice.

use std::vec::Vec;

use super::*;
use crate::sync::{
    primitives::thread,
    testing::{Bell, model},
};

fn small() -> (Producer<u32>, Consumer<u32>) {
    queue(Bounds { items: 1, weight: usize::MAX })
}

fn bell() -> (std::sync::Arc<Bell>, Waker) {
    let bell = std::sync::Arc::new(Bell::new());
    (bell.clone(), Waker::from(bell))
}

type Tracked = std::sync::Arc<()>;
type Push = fn(&Producer<u32>, u32) -> Result<(), PushError<u32>>;
type Pop = fn(&mut Consumer<u32>) -> Result<u32, PopError>;
type ArmConsumer = fn(&mut Consumer<u32>, &Waker) -> bool;
type ArmProducer = fn(&Producer<u32>, &Waker) -> bool;

const PUSH: Push = |producer, item| producer.push(item, 1);

/// Two producers, room for one item: what is taken comes out once, and no bound is passed.
fn nothing_is_lost_or_doubled(push: Push) {
    let (first, mut consumer) = small();
    let second = first.clone();
    let offer = move |producer: Producer<u32>, item| thread::spawn(move || push(&producer, item).is_ok().then_some(item));
    let threads = [offer(first, 1), offer(second, 2)];
    let mut out = Vec::new();
    out.extend(consumer.pop());
    let taken: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    assert!(consumer.0.lock().items.len() <= 1);
    out.extend(consumer.pop());
    out.extend(consumer.pop());
    out.sort_unstable();
    assert_eq!(out, taken);
}

/// The consumer sleeps until each item is there, and until the producer is gone.
fn a_consumer_that_arms_and_sleeps_is_woken(arm: ArmConsumer, pop: Pop) {
    let (producer, mut consumer) = queue(Bounds { items: 2, weight: usize::MAX });
    let thread = thread::spawn(move || {
        PUSH(&producer, 1).unwrap();
        PUSH(&producer, 2).unwrap();
    });
    let (bell, waker) = bell();
    let mut out = Vec::new();
    loop {
        match pop(&mut consumer) {
            Ok(item) => out.push(item),
            Err(PopError::Closed) => break,
            Err(PopError::Empty) if arm(&mut consumer, &waker) => bell.wait(),
            Err(PopError::Empty) => {}
        }
    }
    assert_eq!(out, [1, 2]);
    thread.join().unwrap();
}

/// A producer in a full queue sleeps until there is room, or nobody who would make it.
fn a_producer_that_waits_for_room_is_woken(arm: ArmProducer) {
    let (producer, mut consumer) = small();
    PUSH(&producer, 1).unwrap();
    let thread = thread::spawn(move || {
        assert_eq!(consumer.pop(), Ok(1));
        consumer.pop().ok()
    });
    let (bell, waker) = bell();
    let refused = loop {
        match PUSH(&producer, 2) {
            Ok(()) => break false,
            Err(PushError::Closed(item)) => break item == 2,
            Err(PushError::Full(_)) if arm(&producer, &waker) => bell.wait(),
            Err(PushError::Full(_)) => {}
        }
    };
    let seen = thread.join().unwrap();
    assert!(seen.is_none_or(|item| item == 2 && !refused));
}

/// A producer pushes while the consumer goes, and stays.
fn nothing_stays_in_a_queue_without_a_consumer(push: fn(&Producer<Tracked>, Tracked) -> Result<(), PushError<Tracked>>) {
    let item = Tracked::default();
    let (producer, mut consumer) = queue(Bounds { items: 1, weight: usize::MAX });
    let pushed = item.clone();
    let thread = thread::spawn(move || {
        drop(push(&producer, pushed));
        producer
    });
    drop(consumer.pop());
    drop(consumer);
    let _producer = thread.join().unwrap();
    assert_eq!(std::sync::Arc::strong_count(&item), 1);
}

#[test]
fn two_producers_and_a_consumer_lose_and_double_nothing() {
    model(|| nothing_is_lost_or_doubled(PUSH));
}

#[test]
fn no_wake_up_is_lost_on_the_way_to_the_consumer() {
    model(|| a_consumer_that_arms_and_sleeps_is_woken(Consumer::arm, Consumer::pop));
}

#[test]
fn no_wake_up_is_lost_on_the_way_to_the_producer() {
    model(|| a_producer_that_waits_for_room_is_woken(Producer::arm));
}

#[test]
fn what_is_pushed_while_the_consumer_goes_comes_out_or_comes_back_or_is_dropped() {
    model(|| nothing_stays_in_a_queue_without_a_consumer(|producer, item| producer.push(item, 1)));
}

/// The mistakes that the models are there for. Only loom finds them for sure.
#[cfg(kvlease_loom)]
mod seeded {
    use super::*;
    use crate::sync::testing::seeded;

    #[test]
    fn looking_for_room_and_pushing_in_two_steps_is_noticed() {
        seeded(|| {
            nothing_is_lost_or_doubled(|producer, item| match producer.has_room() {
                true => add(producer.0.lock(), item, 1),
                false => Err(PushError::Full(item)),
            });
        });
    }

    #[test]
    fn a_consumer_that_looks_and_arms_in_two_steps_is_noticed() {
        seeded(|| {
            let arm: ArmConsumer = |consumer, waker| {
                let wait = consumer.is_empty() && consumer.0.lock().producers > 0;
                consumer.0.lock().consumer = Some(waker.clone());
                wait
            };
            a_consumer_that_arms_and_sleeps_is_woken(arm, Consumer::pop);
        });
    }

    #[test]
    fn a_consumer_that_finds_nothing_and_looks_for_the_end_in_two_steps_is_noticed() {
        seeded(|| {
            let pop: Pop = |consumer| {
                let popped = consumer.pop().map_err(|_| PopError::Empty);
                popped.map_err(|empty| if consumer.0.lock().producers == 0 { PopError::Closed } else { empty })
            };
            a_consumer_that_arms_and_sleeps_is_woken(Consumer::arm, pop);
        });
    }

    #[test]
    fn a_producer_that_looks_for_the_consumer_and_pushes_in_two_steps_is_noticed() {
        seeded(|| {
            nothing_stays_in_a_queue_without_a_consumer(|producer, item| {
                let gone = producer.0.lock().consumer_is_gone;
                if gone {
                    return Err(PushError::Closed(item));
                }
                producer.0.lock().items.push_back((item, 1));
                Ok(())
            });
        });
    }

    #[test]
    fn a_producer_that_looks_and_arms_in_two_steps_is_noticed() {
        seeded(|| {
            a_producer_that_waits_for_room_is_woken(|producer, waker| {
                let wait = !producer.has_room();
                producer.0.lock().producer = Some(waker.clone());
                wait
            });
        });
    }
}

/// No threads: how much goes in. (loom's mutexes exist in models alone.)
#[cfg(not(kvlease_loom))]
mod bounds {
    use super::*;

    #[test]
    fn a_full_queue_gives_the_item_back_until_there_is_room() {
        let (producer, mut consumer) = queue(Bounds { items: 2, weight: 10 });
        assert_eq!((producer.push('a', 9), producer.push('b', 100)), (Ok(()), Ok(())), "the bound is reached by the last");
        assert_eq!(producer.push('c', 0), Err(PushError::Full('c')));
        assert_eq!(consumer.pop(), Ok('a'));
        assert_eq!(producer.push('c', 0), Err(PushError::Full('c')), "too heavy still");
        assert_eq!(consumer.pop(), Ok('b'));
        assert!(producer.has_room());
        assert_eq!((producer.push('c', 0), producer.push('d', 0)), (Ok(()), Ok(())));
        assert_eq!(producer.push('e', 0), Err(PushError::Full('e')));
        assert_eq!([consumer.pop(), consumer.pop(), consumer.pop()], [Ok('c'), Ok('d'), Err(PopError::Empty)]);
    }

    #[test]
    fn a_place_that_was_set_aside_is_there_whatever_the_others_do() {
        let (producer, mut consumer) = queue(Bounds { items: 2, weight: 1 });
        assert!(producer.set_aside());
        assert_eq!(producer.push(1, 5), Ok(()));
        assert_eq!((producer.push(2, 0), producer.set_aside()), (Err(PushError::Full(2)), false));
        assert_eq!(producer.push_set_aside(3), Ok(()));
        assert_eq!(producer.push_set_aside(4), Err(PushError::Full(4)), "only one was set aside");
        assert_eq!((consumer.pop(), consumer.pop()), (Ok(1), Ok(3)));
        assert!(producer.set_aside() && producer.set_aside() && !producer.has_room());
        producer.give_back();
        assert!(producer.has_room());
    }

    #[test]
    fn nothing_is_allocated_after_the_start() {
        let (producer, mut consumer) = queue(Bounds { items: 100, weight: usize::MAX });
        let capacity = |producer: &Producer<u32>| producer.0.lock().items.capacity();
        let before = capacity(&producer);
        for n in 0..1000 {
            while producer.push(n, 1).is_ok() {}
            assert_eq!(consumer.pop().is_ok(), capacity(&producer) == before);
        }
    }

    #[test]
    fn a_producer_is_woken_at_half_and_not_for_a_single_place() {
        let (producer, mut consumer) = queue(Bounds { items: 4, weight: usize::MAX });
        let rung = std::sync::Arc::new(Rung::default());
        let waker = Waker::from(rung.clone());
        assert!(!producer.arm(&waker), "there is room");
        (0..4).for_each(|n| producer.push(n, 0).unwrap());
        assert!(producer.arm(&waker));
        for (left, times) in [(3, 0), (2, 1), (1, 1), (0, 1)] {
            consumer.pop().unwrap();
            assert_eq!(rung.times(), times, "{left} left");
        }
    }

    #[test]
    fn a_consumer_is_woken_only_when_armed_and_once() {
        let (producer, mut consumer) = queue(Bounds { items: 4, weight: usize::MAX });
        let rung = std::sync::Arc::new(Rung::default());
        let waker = Waker::from(rung.clone());
        producer.push(1, 0).unwrap();
        assert!(!consumer.arm(&waker), "there is an item");
        consumer.pop().unwrap();
        producer.wake();
        assert_eq!(rung.times(), 0, "not armed");
        assert!(consumer.arm(&waker));
        producer.wake();
        producer.push(2, 0).unwrap();
        assert_eq!(rung.times(), 1);
        consumer.pop().unwrap();
        assert!(consumer.arm(&waker));
        drop(producer);
        assert_eq!((rung.times(), consumer.arm(&waker), consumer.pop()), (2, false, Err(PopError::Closed)));
    }

    #[derive(Default)]
    struct Rung(std::sync::atomic::AtomicUsize);

    impl Rung {
        fn times(&self) -> usize {
            self.0.load(std::sync::atomic::Ordering::SeqCst)
        }
    }

    impl std::task::Wake for Rung {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }
}
