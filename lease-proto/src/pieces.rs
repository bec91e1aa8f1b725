//! A read's ranges, checked, and cut into pieces that a fabric can take at once.
//!
//! ```
//! use lease_proto::{pieces::{Largest, Pieces}, transport::Range};
//! let ranges = [Range { offset: 0, length: 100 }, Range { offset: 500, length: 100 }];
//! let pieces = Pieces::check(&ranges, 600, 200)?; // of a region of 600 bytes, into 200
//! let largest = Largest { bytes: 150, parts: 8 };
//! assert_eq!(pieces.piece(0, largest), 150);
//! assert_eq!(pieces.piece(150, largest), 50);
//! assert!(pieces.parts(150, 50).eq([Range { offset: 550, length: 50 }]));
//! # Ok::<(), lease_proto::pieces::PiecesError>(())
//! ```

use alloc::vec::Vec;

use crate::transport::Range;

/// Ranges of a region, one after the other, known to be inside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// Where each begins in the destination, and in the region. Adjacent ones are one.
    starts: Vec<(u64, u64)>,
    length: u64,
}

/// What a fabric takes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Largest {
    /// Bytes, at least 1.
    pub bytes: u64,
    /// Ranges, at least 1.
    pub parts: usize,
}

/// Why ranges cannot be read. It comes before anything moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PiecesError {
    /// There are none.
    #[error("none given")]
    None,
    /// One of them.
    #[error("outside the region, or empty")]
    Outside,
    /// All together.
    #[error("the destination is too small")]
    Room,
}

impl Pieces {
    /// Checks every range against the region's bytes, and all together against the bytes that there is room for.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn check(ranges: &[Range], region: u64, room: u64) -> Result<Self, PiecesError> {
        let (mut starts, mut length, mut next) = (Vec::new(), 0u64, None);
        for range in ranges {
            let end = range.offset.checked_add(range.length).filter(|end| *end <= region && range.length > 0);
            let end = end.ok_or(PiecesError::Outside)?;
            if next != Some(range.offset) {
                starts.push((length, range.offset));
            }
            next = Some(end);
            length = length.checked_add(range.length).ok_or(PiecesError::Room)?;
        }
        match length {
            0 => Err(PiecesError::None),
            _ if length > room => Err(PiecesError::Room),
            _ => Ok(Self { starts, length }),
        }
    }

    /// All their bytes, at least 1.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> u64 {
        self.length
    }

    /// The length of the piece that begins at `start` of the destination; 0 at the end.
    pub fn piece(&self, start: u64, largest: Largest) -> u64 {
        let beyond = self.range_at(start).saturating_add(largest.parts.max(1));
        let end = self.starts.get(beyond).map_or(self.length, |(end, _)| *end);
        end.min(start.saturating_add(largest.bytes.max(1))).saturating_sub(start)
    }

    /// The parts of the region that make up `length` bytes from `start` of the destination on.
    pub fn parts(&self, start: u64, length: u64) -> impl Iterator<Item = Range> {
        let first = self.range_at(start);
        let end = start.saturating_add(length);
        let ends = self.starts.iter().skip(first.saturating_add(1)).map(|(end, _)| *end).chain([self.length]);
        let ranges = self.starts.iter().skip(first).zip(ends).take_while(move |((begins, _), _)| *begins < end);
        ranges.map(move |(&(begins, offset), ends)| {
            let from = begins.max(start);
            Range { offset: offset.saturating_add(from.saturating_sub(begins)), length: ends.min(end).saturating_sub(from) }
        })
    }

    /// The range in which a byte of the destination lies.
    fn range_at(&self, at: u64) -> usize {
        self.starts.partition_point(|(begins, _)| *begins <= at).saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use alloc::{vec, vec::Vec};

    use super::*;

    const LARGEST: Largest = Largest { bytes: 1 << 20, parts: 128 };

    fn range(offset: u64, length: u64) -> Range {
        Range { offset, length }
    }

    /// Every piece's parts, until the end.
    fn all(pieces: &Pieces) -> Vec<Vec<(u64, u64)>> {
        let (mut start, mut all) = (0, vec![]);
        loop {
            let length = pieces.piece(start, LARGEST);
            if length == 0 {
                return all;
            }
            all.push(pieces.parts(start, length).map(|part| (part.offset, part.length)).collect());
            start += length;
        }
    }

    #[test]
    fn ranges_are_cut_into_pieces_that_can_be_taken() {
        let size = 1 << 30;
        let checked = |all: &[Range]| Pieces::check(all, size, size).unwrap();
        assert_eq!(all(&checked(&[range(5, 1)])), [[(5, 1)]]);
        // What is adjacent is one, what is not stays apart, and order stays as it was.
        let some = checked(&[range(10, 5), range(15, 5), range(0, 10), range(10, 1)]);
        assert_eq!(all(&some), [[(10, 10), (0, 11)]]);
        let piece = LARGEST.bytes;
        let long = checked(&[range(3, piece - 1), range(100 * piece, piece + 2)]);
        let expected: [&[_]; 3] = [&[(3, piece - 1), (100 * piece, 1)], &[(100 * piece + 1, piece)], &[(101 * piece + 1, 1)]];
        assert_eq!(all(&long), expected);
        let many: Vec<Range> = (0..300).map(|n| range(n * 10, 4)).collect();
        assert_eq!(all(&checked(&many)).iter().map(Vec::len).collect::<Vec<_>>(), [128, 128, 44]);
    }

    #[test]
    fn every_byte_is_asked_for_once() {
        let ranges: Vec<Range> = (0..1000u64).map(|n| range((n * 7919) % 500_000, 1 + n * n % 9000)).collect();
        let pieces = Pieces::check(&ranges, 1 << 20, 1 << 30).unwrap();
        let wanted: Vec<u64> = ranges.iter().flat_map(|range| range.offset..range.offset + range.length).collect();
        assert_eq!(pieces.len(), wanted.len() as u64);
        let asked = all(&pieces).concat();
        let got: Vec<u64> = asked.iter().flat_map(|(offset, length)| *offset..offset + length).collect();
        assert!(got == wanted);
    }

    #[test]
    fn ranges_that_cannot_be_read_are_refused() {
        for (ranges, why) in [
            (&[][..], PiecesError::None),
            (&[range(0, 0)], PiecesError::Outside),
            (&[range(0, 101)], PiecesError::Outside),
            (&[range(100, 1)], PiecesError::Outside),
            (&[range(u64::MAX, 2)], PiecesError::Outside),
            (&[range(1, u64::MAX)], PiecesError::Outside),
            (&[range(0, 30), range(0, 21)], PiecesError::Room),
        ] {
            assert_eq!(Pieces::check(ranges, 100, 50), Err(why), "{ranges:?}");
        }
        assert!(Pieces::check(&[range(99, 1), range(0, 49)], 100, 50).is_ok());
        let huge = [range(0, u64::MAX), range(0, u64::MAX)];
        assert_eq!(Pieces::check(&huge, u64::MAX, u64::MAX), Err(PiecesError::Room));
    }
}
