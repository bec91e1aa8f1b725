//! Which leases stand, for the thread that serves reads (proof C): the holder's word, where a transport can ask for it.
//!
//! A transport whose owner serves reads checks the reader's token twice: before it touches the memory, and once the last byte has
//! been read, before it tells the reader that all is well. Both checks ask these permits, so they must say what the holder says:
//! the engine lets them hear every event FIRST, and only then uses blocks again.
//!
//! ```
//! # use lease_proto::{event::{Event, Freed}, id::{RequestId, Token}, permits::Permits, time::Instant};
//! let permits = Permits::new(); // a clone of it is the transport's
//! let mut act = |event: Event<'_>| {
//!     permits.hear(&event);
//!     if let Event::Freed { .. } = event { /* now the blocks may be used again */ }
//! };
//! # let (request, token, now) = (RequestId::try_from("a")?, Token { number: 1, nonce: 2 }, Instant::ZERO);
//! act(Event::Granted { request: &request, token, expires: now });
//! assert!(permits.holds(token));
//! act(Event::Freed { request: &request, token, why: Freed::Completed, expires: now, now, previous_poll: now });
//! assert!(!permits.holds(token));
//! # Ok::<(), lease_proto::id::IdError>(())
//! ```
//!
//! Why that is enough: a check that finds the permit happens before the permit is withdrawn, hence before the blocks are used
//! again, and the bytes were read before the check. The lock is held for one look-up.

#[cfg(kvlease_loom)]
use loom::sync::{Arc, Mutex, MutexGuard};
#[cfg(not(kvlease_loom))]
use std::sync::{Arc, Mutex, MutexGuard};
use std::{collections::HashMap, sync::PoisonError};

use subtle::ConstantTimeEq as _;

use crate::{event::Event, id::Token};

/// The tokens of the leases that stand. Clones are one and the same.
#[derive(Clone, Debug, Default)]
pub struct Permits(Arc<Mutex<HashMap<u64, u64>>>);

impl Permits {
    /// No permits.
    pub fn new() -> Self {
        Self::default()
    }

    /// No permits yet, with room for so many before it allocates again: as many as the holder has slots.
    pub fn with_capacity(leases: usize) -> Self {
        Self(Arc::new(Mutex::new(HashMap::with_capacity(leases))))
    }

    /// Keeps up with the holder: permits what it grants and withdraws what it frees.
    pub fn hear(&self, event: &Event<'_>) {
        match *event {
            Event::Granted { token, .. } => self.permit(token),
            Event::Freed { token, .. } => self.withdraw(token),
            _ => {}
        }
    }

    /// Lets who has this token read.
    pub fn permit(&self, token: Token) {
        self.lock().insert(token.number, token.nonce);
    }

    /// Lets nobody read with this token any more: once this returns, no read with it will be called served.
    pub fn withdraw(&self, token: Token) {
        self.lock().remove(&token.number);
    }

    /// Whether there is a permit for this token, nonce included.
    pub fn holds(&self, token: Token) -> bool {
        let nonce = self.lock().get(&token.number).copied();
        nonce.is_some_and(|nonce| nonce.to_le_bytes().ct_eq(&token.nonce.to_le_bytes()).into())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Nothing panics under the lock, and a map is whole between two calls.
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_permitted_and_only_until_withdrawn() {
        let (permits, token) = (Permits::with_capacity(4), Token { number: 7, nonce: 9 });
        let transport = permits.clone();
        assert!(permits.is_empty() && !transport.holds(token));
        permits.permit(token);
        assert!(transport.holds(token));
        assert!(!transport.holds(Token { nonce: 8, ..token }) && !transport.holds(Token { number: 8, ..token }));
        permits.withdraw(token);
        assert!(permits.is_empty() && !transport.holds(token));
    }
}

/// "In sync" is in their names for `cargo xtask loom`, which runs the tests with `sync` in theirs.
#[cfg(test)]
mod interleavings {
    use super::*;
    use crate::sync::testing::model;
    #[cfg(kvlease_loom)]
    use loom::{
        sync::atomic::{AtomicU32, Ordering::Relaxed},
        thread,
    };
    #[cfg(not(kvlease_loom))]
    use std::{
        sync::atomic::{AtomicU32, Ordering::Relaxed},
        thread,
    };

    const TOKEN: Token = Token { number: 7, nonce: 9 };
    const LEASED: u32 = 1;
    const USED_AGAIN: u32 = 2;

    /// The holder frees the lease and uses its block again while a server reads it. No order is asked of the block's bytes, here
    /// one number, as none is of memory that a fabric reads.
    fn what_is_called_served_is_from_the_lease(serve: fn(&Permits, &AtomicU32) -> Option<u32>, free: fn(&Permits, &AtomicU32)) {
        let (permits, block) = (Permits::new(), Arc::new(AtomicU32::new(LEASED)));
        permits.permit(TOKEN);
        let (server, read) = (permits.clone(), Arc::clone(&block));
        let thread = thread::spawn(move || serve(&server, &read));
        free(&permits, &block);
        let served = thread.join().unwrap();
        assert!(served.is_none_or(|bytes| bytes == LEASED));
        assert_eq!(serve(&permits, &block), None);
    }

    fn checked_before_and_after(permits: &Permits, block: &AtomicU32) -> Option<u32> {
        let bytes = permits.holds(TOKEN).then(|| block.load(Relaxed));
        bytes.filter(|_| permits.holds(TOKEN))
    }

    fn withdrawn_first(permits: &Permits, block: &AtomicU32) {
        permits.withdraw(TOKEN);
        block.store(USED_AGAIN, Relaxed);
    }

    #[test]
    fn checks_are_in_sync_with_the_withdrawal() {
        model(|| what_is_called_served_is_from_the_lease(checked_before_and_after, withdrawn_first));
    }

    #[cfg(kvlease_loom)]
    mod seeded {
        use super::*;
        use crate::sync::testing::seeded;

        #[test]
        fn checking_only_before_is_not_in_sync_and_is_noticed() {
            seeded(|| {
                let checked_before = |permits: &Permits, block: &AtomicU32| permits.holds(TOKEN).then(|| block.load(Relaxed));
                what_is_called_served_is_from_the_lease(checked_before, withdrawn_first);
            });
        }

        #[test]
        fn using_blocks_again_before_withdrawing_is_not_in_sync_and_is_noticed() {
            seeded(|| {
                let withdrawn_last = |permits: &Permits, block: &AtomicU32| {
                    block.store(USED_AGAIN, Relaxed);
                    permits.withdraw(TOKEN);
                };
                what_is_called_served_is_from_the_lease(checked_before_and_after, withdrawn_last);
            });
        }
    }
}
