//! Ranges of a region, checked, and cut into pieces that an ask can name.

use lease_proto::transport::Range;

use crate::{
    UcxError,
    messages::{self, Part},
};

/// Bytes of one piece: long enough that asking costs nothing, short enough that several are under way.
const PIECE: usize = 1 << 20;
const _: () = assert!(PIECE <= messages::PIECE);

/// Ranges of a region, one after the other, known to be inside it.
pub(crate) struct Ranges {
    /// Where each begins in the destination, and in the region. Adjacent ones are one.
    starts: Vec<(usize, u64)>,
    length: usize,
}

impl Ranges {
    /// Checks every range against the region, and all together against the room that there is.
    pub(crate) fn check(ranges: &[Range], region: u64, room: usize) -> Result<Self, UcxError> {
        let (mut starts, mut length, mut next) = (Vec::new(), 0usize, None);
        for range in ranges {
            let end = range.offset.checked_add(range.length).filter(|end| *end <= region && range.length > 0);
            let end = end.ok_or(UcxError::Ranges("outside the region, or empty"))?;
            if next != Some(range.offset) {
                starts.push((length, range.offset));
            }
            next = Some(end);
            let bytes = usize::try_from(range.length).ok();
            length = bytes.and_then(|bytes| length.checked_add(bytes)).ok_or(UcxError::Ranges("too long"))?;
        }
        match length {
            0 => Err(UcxError::Ranges("none given")),
            _ if length > room => Err(UcxError::Ranges("the destination is too small")),
            _ => Ok(Self { starts, length }),
        }
    }

    /// The length of the piece that begins at `start` of the destination; 0 at the end.
    pub(crate) fn piece(&self, start: usize) -> usize {
        let first = self.range_at(start);
        // As many ranges as one ask can name, and no more bytes than a piece has.
        let end = self.starts.get(first + messages::RANGES).map_or(self.length, |(end, _)| *end);
        end.min(start.saturating_add(PIECE)).saturating_sub(start)
    }

    /// The parts of the region that make up `length` bytes from `start` on.
    pub(crate) fn parts(&self, start: usize, length: usize) -> impl Iterator<Item = Part> {
        let first = self.range_at(start);
        let (end, ends) = (start.saturating_add(length), self.starts.iter().skip(first + 1).map(|(end, _)| *end));
        let ranges = self.starts.iter().skip(first).zip(ends.chain([self.length]));
        ranges.take_while(move |((begins, _), _)| *begins < end).map(move |(&(begins, offset), ends)| {
            let from = begins.max(start);
            Part { offset: offset + (from - begins) as u64, length: (ends.min(end) - from) as u32 }
        })
    }

    /// The range in which a byte of the destination lies.
    fn range_at(&self, at: usize) -> usize {
        self.starts.partition_point(|(begins, _)| *begins <= at).saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64, length: u64) -> Range {
        Range { offset, length }
    }

    /// Every piece's parts, until the end.
    fn pieces(ranges: &Ranges) -> Vec<Vec<(u64, u32)>> {
        let (mut start, mut all) = (0, Vec::new());
        loop {
            let length = ranges.piece(start);
            if length == 0 {
                return all;
            }
            all.push(ranges.parts(start, length).map(|part| (part.offset, part.length)).collect());
            start += length;
        }
    }

    #[test]
    fn ranges_are_cut_into_pieces_that_an_ask_can_name() {
        let size = 1 << 30;
        let checked = |all: &[Range]| Ranges::check(all, size, size as usize).unwrap();
        assert_eq!(pieces(&checked(&[range(5, 1)])), [[(5, 1)]]);
        // What is adjacent is one, what is not stays apart, and order stays as it was.
        let some = checked(&[range(10, 5), range(15, 5), range(0, 10), range(10, 1)]);
        assert_eq!(pieces(&some), [[(10, 10), (0, 11)]]);
        let piece = PIECE as u64;
        let long = checked(&[range(3, piece - 1), range(100 * piece, piece + 2)]);
        let expected: [&[_]; 3] =
            [&[(3, (piece - 1) as u32), (100 * piece, 1)], &[(100 * piece + 1, piece as u32)], &[(101 * piece + 1, 1)]];
        assert_eq!(pieces(&long), expected);
        let many: Vec<Range> = (0..300).map(|n| range(n * 10, 4)).collect();
        assert_eq!(pieces(&checked(&many)).iter().map(Vec::len).collect::<Vec<_>>(), [128, 128, 44]);
    }

    #[test]
    fn every_byte_is_asked_for_once() {
        let all: Vec<Range> = (0..1000u64).map(|n| range((n * 7919) % 500_000, 1 + n * n % 9000)).collect();
        let ranges = Ranges::check(&all, 1 << 20, 1 << 30).unwrap();
        let wanted: Vec<u64> = all.iter().flat_map(|range| range.offset..range.offset + range.length).collect();
        let asked = pieces(&ranges).concat();
        let got: Vec<u64> = asked.iter().flat_map(|(offset, length)| *offset..offset + u64::from(*length)).collect();
        assert!(got == wanted);
    }

    #[test]
    fn ranges_that_cannot_be_read_are_refused() {
        let wrong: [&[Range]; 7] = [
            &[],
            &[range(0, 0)],
            &[range(0, 101)],
            &[range(100, 1)],
            &[range(u64::MAX, 2)],
            &[range(1, u64::MAX)],
            &[range(0, 30), range(0, 21)],
        ];
        for ranges in wrong {
            assert!(matches!(Ranges::check(ranges, 100, 50), Err(UcxError::Ranges(_))), "{ranges:?}");
        }
        assert!(Ranges::check(&[range(99, 1), range(0, 49)], 100, 50).is_ok());
    }
}
