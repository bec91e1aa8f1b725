use super::*;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::sync::testing::{Bell, model};

/// Sleeps until `attempt` succeeds: a wake that is lost hangs here, which loom reports.
fn sleep_until<T>(mailbox: &mut Mailbox<u32, u32>, attempt: impl Fn(&mut Mailbox<u32, u32>) -> Option<T>) -> T {
    let bell = std::sync::Arc::new(Bell::new());
    let waker = Waker::from(bell.clone());
    loop {
        if let Some(value) = attempt(mailbox) {
            return value;
        }
        mailbox.register_waker(&waker);
        bell.wait();
    }
}

fn double() -> Mailbox<u32, u32> {
    Mailbox::spawn(|n, _| n * 2).unwrap()
}

#[test]
fn one_job_at_a_time_and_its_result_is_seen_once() {
    model(|| {
        let mut mailbox = double();
        assert_eq!(mailbox.poll(), None);
        assert_eq!(mailbox.start(1), Ok(()));
        assert_eq!(mailbox.start(2), Err(2));
        assert_eq!(sleep_until(&mut mailbox, Mailbox::poll), Ok(2));
        assert_eq!(mailbox.poll(), None);
    });
}

#[test]
fn the_result_of_a_cancelled_job_vanishes_and_the_next_one_runs() {
    model(|| {
        let mut mailbox = double();
        assert_eq!(mailbox.start(1), Ok(()));
        mailbox.cancel();
        assert_eq!(mailbox.poll(), None);
        sleep_until(&mut mailbox, |mailbox| mailbox.start(2).ok());
        assert_eq!(sleep_until(&mut mailbox, Mailbox::poll), Ok(4));
        assert_eq!(mailbox.poll(), None);
    });
}

#[test]
fn a_job_learns_that_it_is_not_wanted_any_more() {
    model(|| {
        let mut mailbox = Mailbox::spawn(|(), wanted| {
            while wanted.get() {
                thread::yield_now()
            }
        })
        .unwrap();
        assert_eq!(mailbox.start(()), Ok(()));
        mailbox.cancel();
        assert_eq!(mailbox.poll(), None);
        mailbox.join();
    });
}

#[test]
fn dropping_the_mailbox_ends_the_thread() {
    model(|| {
        let ended = std::sync::Arc::new(AtomicUsize::new(0));
        struct Ends(std::sync::Arc<AtomicUsize>);
        impl Drop for Ends {
            fn drop(&mut self) {
                self.0.fetch_add(1, SeqCst);
            }
        }
        let ends = Ends(ended.clone());
        let mut mailbox = Mailbox::spawn(move |n: u32, _| n + ends.0.load(SeqCst) as u32).unwrap();
        assert_eq!(mailbox.start(1), Ok(()));
        drop(mailbox);
        while ended.load(SeqCst) == 0 {
            thread::yield_now();
        }
    });
}

/// loom takes a panic of any thread for a failure of the model.
#[cfg(not(kvlease_loom))]
mod with_panics {
    use super::*;

    #[test]
    fn a_job_that_panics_is_told_once_and_no_other_is_taken() {
        let mut mailbox = Mailbox::spawn(|n, _| if n == 0 { panic!("expected in this test") } else { n }).unwrap();
        assert_eq!(mailbox.start(0), Ok(()));
        assert_eq!(sleep_until(&mut mailbox, Mailbox::poll), Err(WorkerGone));
        assert_eq!(mailbox.poll(), None);
        assert_eq!(mailbox.start(1), Err(1));
        mailbox.cancel();
        mailbox.join();
    }

    #[test]
    fn poisoned_locks_are_used_as_they_are() {
        let mut mailbox = double();
        let shared = mailbox.shared.clone();
        let poisoning = thread::spawn(move || {
            let _held = (shared.job.lock(), shared.result.lock(), shared.waker.lock());
            panic!("expected in this test");
        });
        assert!(poisoning.join().is_err() && mailbox.shared.job.is_poisoned());
        assert_eq!(mailbox.start(1), Ok(()));
        assert_eq!(sleep_until(&mut mailbox, Mailbox::poll), Ok(2));
    }
}
