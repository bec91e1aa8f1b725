//! Where the answers to a reader's asks land: the memory that waits for them, by numbers that only its owner was told.

use std::sync::Arc;

use super::Mapped;
use crate::messages::Landing;

/// Memory that waits for an answer.
pub(super) struct Expected {
    pub(super) read: u64,
    pub(super) mapped: Arc<Mapped>,
    pub(super) offset: usize,
    pub(super) length: usize,
}

/// All memory that waits. An answer takes its place out, so nothing lands twice, and nothing after the reader has given up.
#[derive(Default)]
pub(super) struct Landings {
    places: Vec<Option<(u64, Expected)>>,
    free: Vec<u32>,
}

impl Landings {
    pub(super) fn add(&mut self, nonce: u64, expected: Expected) -> Landing {
        let place = Some((nonce, expected));
        let index = match self.free.pop() {
            Some(index) => {
                if let Some(free) = self.places.get_mut(index as usize) {
                    *free = place;
                }
                index
            }
            None => {
                self.places.push(place);
                (self.places.len() - 1) as u32
            }
        };
        Landing { index, nonce }
    }

    pub(super) fn take(&mut self, landing: Landing) -> Option<Expected> {
        let place = self.places.get_mut(landing.index as usize)?;
        let (_, expected) = place.take_if(|(nonce, _)| *nonce == landing.nonce)?;
        self.free.push(landing.index);
        Some(expected)
    }

    /// Takes out all that wait for this read; how many, and how many bytes.
    pub(super) fn give_up(&mut self, read: u64) -> (usize, usize) {
        let (mut count, mut bytes) = (0, 0);
        for (index, place) in (0u32..).zip(&mut self.places) {
            if let Some((_, expected)) = place.take_if(|(_, expected)| expected.read == read) {
                self.free.push(index);
                count += 1;
                bytes += expected.length;
            }
        }
        (count, bytes)
    }
}
