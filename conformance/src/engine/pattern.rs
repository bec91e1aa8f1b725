//! Bytes that both sides of a read can compute, so that every one of them can be verified.

use gpu_mem::{Memory, MemoryError};
use lease_proto::transport::Range;

/// Bytes that are made at once.
const PIECE: usize = 65_536;
const WORD: usize = 8;

/// An endless row of bytes, another one for every number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern(pub(crate) u64);

/// What is written over blocks that are free, so that a read that came too late shows.
pub(crate) const POISON: Pattern = Pattern(0xdead);

impl Pattern {
    /// The row of a name.
    pub(crate) fn of(name: &str) -> Self {
        Self(name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)))
    }

    /// Its bytes from `offset` on.
    pub(crate) fn bytes(self, offset: usize, out: &mut [u8]) {
        let mut at = offset;
        let mut rest = out;
        while !rest.is_empty() {
            let (word, from) = (self.word((at / WORD) as u64).to_le_bytes(), at % WORD);
            let (part, behind) = rest.split_at_mut(rest.len().min(WORD - from));
            part.copy_from_slice(&word[from..from + part.len()]);
            at += part.len();
            rest = behind;
        }
    }

    /// As good as random, and every word by itself: splitmix64.
    fn word(self, index: u64) -> u64 {
        let mixed = self.0.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Writes `len` bytes of it, from its own `from` on, to `offset` in `memory`.
    ///
    /// # Errors
    /// If that is not inside.
    pub(crate) fn write(self, from: usize, memory: &Memory, offset: usize, len: usize) -> Result<(), MemoryError> {
        each_piece(len, |done, piece| {
            self.bytes(from + done, piece);
            memory.copy_in(offset + done, piece)
        })
    }

    /// Where `memory`, from `offset` on, is first another than these ranges of the row, one after the other.
    ///
    /// # Errors
    /// If that is not inside.
    pub(crate) fn differs(self, ranges: &[Range], memory: &Memory, offset: usize) -> Result<Option<usize>, MemoryError> {
        let (mut at, mut first, mut there) = (offset, None, vec![0; PIECE]);
        for range in ranges {
            let (from, len) = (range.offset as usize, range.length as usize);
            each_piece(len, |done, piece| {
                self.bytes(from + done, piece);
                let there = &mut there[..piece.len()];
                memory.copy_out(at + done, there)?;
                if *piece != *there {
                    let wrong = piece.iter().zip(there.iter()).position(|(expected, got)| expected != got).unwrap_or(0);
                    first.get_or_insert(at + done + wrong);
                }
                Ok(())
            })?;
            at += len;
        }
        Ok(first)
    }
}

fn each_piece(len: usize, mut f: impl FnMut(usize, &mut [u8]) -> Result<(), MemoryError>) -> Result<(), MemoryError> {
    let mut piece = vec![0; PIECE.min(len)];
    (0..len).step_by(PIECE).try_for_each(|done| {
        let now = PIECE.min(len - done);
        f(done, &mut piece[..now])
    })
}

#[cfg(test)]
mod tests {
    use gpu_mem::HostSlab;

    use super::*;

    #[test]
    fn any_part_of_a_row_is_the_same_bytes() {
        let mut whole = vec![0; 3 * PIECE];
        Pattern::of("a").bytes(0, &mut whole);
        for (offset, len) in [(0, 1), (7, 9), (8, 8), (PIECE - 3, 6), (13, 2 * PIECE)] {
            let mut part = vec![0; len];
            Pattern::of("a").bytes(offset, &mut part);
            assert_eq!(part, whole[offset..offset + len]);
        }
        let mut other = vec![0; 64];
        Pattern::of("b").bytes(0, &mut other);
        assert!(other.iter().zip(&whole).filter(|(one, other)| one == other).count() < 10);
    }

    #[test]
    fn one_wrong_byte_is_found_wherever_it_is() {
        let memory = Memory::from(HostSlab::new(3 * PIECE).unwrap());
        let (row, ranges) = (Pattern(1), [(5, 100), (200_000, 70_001), (6, 1)].map(|(offset, length)| Range { offset, length }));
        let mut at = 9;
        for range in &ranges {
            row.write(range.offset as usize, &memory, at, range.length as usize).unwrap();
            at += range.length as usize;
        }
        assert_eq!(row.differs(&ranges, &memory, 9), Ok(None));
        for wrong in [9, 108, 109, 70_000, at - 1] {
            let mut byte = [0];
            memory.copy_out(wrong, &mut byte).unwrap();
            memory.copy_in(wrong, &[!byte[0]]).unwrap();
            assert_eq!(row.differs(&ranges, &memory, 9), Ok(Some(wrong)));
            memory.copy_in(wrong, &byte).unwrap();
        }
        assert!(row.differs(&ranges, &memory, 2 * PIECE).is_err(), "not inside");
    }
}
