//! Copies to and from memory that somebody else may read and write at the same moment.

use std::{
    ptr::NonNull,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Bytes that are copied at once.
pub(super) const WORD: usize = size_of::<usize>();

/// Shared bytes of the host, without their owner.
///
/// Somebody else may copy in while they are copied out: then some words are old and some new, which is what a late read is about and
/// no undefined behaviour, since every access is one relaxed atomic word. Bytes at either end are read and written as part of their
/// word too: accesses of two sizes would race again. What a transport's library or a device writes is outside of this language's
/// rules; their words are read as they come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    start: NonNull<u8>,
    len: usize,
}

impl Words {
    /// # Safety
    /// As long as this is used, `start` is aligned to words, every word that holds one of the `len` bytes is mapped for reading and
    /// writing, and nobody uses a reference to any of them.
    pub(super) const unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len }
    }

    pub(super) const fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Copies out what is there from `offset` on, which the caller has checked.
    pub(super) fn load(&self, offset: usize, out: &mut [u8]) {
        let mut rest = out;
        for (word, from) in self.words(offset, rest.len()) {
            let count = rest.len().min(WORD - from);
            let (part, behind) = rest.split_at_mut(count);
            part.copy_from_slice(&word.load(Relaxed).to_ne_bytes()[from..from + count]);
            rest = behind;
        }
    }

    /// Copies in from `offset` on, which the caller has checked.
    pub(super) fn store(&self, offset: usize, bytes: &[u8]) {
        let mut rest = bytes;
        for (word, from) in self.words(offset, rest.len()) {
            let (part, behind) = rest.split_at(rest.len().min(WORD - from));
            match part.try_into() {
                Ok(whole) => word.store(usize::from_ne_bytes(whole), Relaxed),
                // The bytes beside it may be somebody else's, written at this moment.
                Err(_) => {
                    let mixed = |old: usize| {
                        let mut bytes = old.to_ne_bytes();
                        bytes[from..from + part.len()].copy_from_slice(part);
                        Some(usize::from_ne_bytes(bytes))
                    };
                    let _ = word.fetch_update(Relaxed, Relaxed, mixed); // it always has something to write
                }
            }
            rest = behind;
        }
    }

    /// The words that hold these bytes, each with the place of the first of them in it.
    fn words(&self, offset: usize, len: usize) -> impl Iterator<Item = (&AtomicUsize, usize)> {
        debug_assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "checked by the caller");
        let words = if len == 0 { 0..0 } else { offset / WORD..(offset + len).div_ceil(WORD) };
        words.map(move |word| {
            // SAFETY: the caller has checked that the word holds a byte of ours, so it is mapped.
            let at = unsafe { self.start.as_ptr().cast::<usize>().add(word) };
            // SAFETY: aligned and mapped, and no reference to these bytes is used, as promised to `new`.
            (unsafe { AtomicUsize::from_ptr(at) }, offset.saturating_sub(word * WORD))
        })
    }
}

// SAFETY: an address, and copies by atomic words, which may be made on any thread.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}
