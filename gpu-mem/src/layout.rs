//! Where the blocks of a region lie: arithmetic alone, the same for addresses and for offsets.

use std::iter::Peekable;

/// The blocks of one region, by vLLM's and NIXL's numbers: block `id` is the `block_len` bytes from `base + id * block_stride` on.
///
/// `base` is an address (vLLM's `kv_caches_base_addr`) or an offset into some memory, and so is the start of every [`Span`] that comes
/// out. All of it is known to lie in the address space, so that nothing wraps later.
///
/// A stride may be longer than its block, where layers take turns or blocks are padded, and a multiple of nothing: vLLM checks its
/// peer's for `block_stride >= block_len` and no more, and NIXL takes any bytes.
///
/// ```
/// use gpu_mem::{Layout, Span};
/// let layout = Layout::new(8, 64)?.with_stride(100)?.at(0x1000)?;
/// assert_eq!(layout.block(7)?, Span { start: 0x1000 + 700, len: 64 });
/// assert_eq!(layout.size(), 764); // the last stride's rest is not needed
///
/// let dense = Layout::new(8, 64)?; // one block after the other, at 0
/// let runs = dense.runs([2, 3, 4, 0, 1, 1]).collect::<Result<Vec<Span>, _>>()?;
/// assert_eq!(runs, [(128, 192), (0, 128), (64, 64)].map(|(start, len)| Span { start, len }));
/// # Ok::<(), gpu_mem::LayoutError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    base: u64,
    block_len: u64,
    block_stride: u64,
    num_blocks: u64,
}

/// Bytes in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first of them, as an address or an offset: what the layout's base is.
    pub start: u64,
    /// How many, at least 1.
    pub len: u64,
}

/// Why blocks cannot lie so, or which of them is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// No blocks, or blocks of no bytes.
    #[error("{what} is 0, expected at least 1")]
    Zero {
        /// `num_blocks` or `block_len`.
        what: &'static str,
    },
    /// Blocks would overlap.
    #[error(
        "a stride of {block_stride} bytes for blocks of {block_len}: expected at least the block's length, else blocks overlap"
    )]
    Stride {
        /// Bytes of a block.
        block_len: u64,
        /// Bytes from one block to the next.
        block_stride: u64,
    },
    /// The last block does not end within 64 bits.
    #[error("{num_blocks} blocks at a stride of {block_stride} bytes from {base:#x} on leave the address space")]
    Overflow {
        /// Where the first begins.
        base: u64,
        /// Bytes from one block to the next.
        block_stride: u64,
        /// How many.
        num_blocks: u64,
    },
    /// No such block.
    #[error("block {got} of {num_blocks}, counted from 0: the id is not of this memory, or stale")]
    Block {
        /// What was asked for.
        got: u64,
        /// How many there are.
        num_blocks: u64,
    },
    /// The memory ends before the last block does.
    #[error("the blocks end {needed} bytes into a memory of {got}")]
    TooSmall {
        /// Bytes needed.
        needed: u64,
        /// Bytes there are.
        got: u64,
    },
    /// A part of each block that there is not.
    #[error(
        "part {index} of {of} of blocks of {block_len} bytes: expected at least one part, a number below that of parts, and a length that it divides"
    )]
    Part {
        /// Its number, from 0.
        index: u64,
        /// How many parts.
        of: u64,
        /// Bytes of a block.
        block_len: u64,
    },
}

impl Layout {
    /// So many blocks of so many bytes, one after the other, from 0 on.
    ///
    /// # Errors
    /// `Zero`, `Overflow`.
    pub fn new(num_blocks: u64, block_len: u64) -> Result<Self, LayoutError> {
        Self { base: 0, block_len, block_stride: block_len, num_blocks }.checked()
    }

    /// The same with so many bytes from the start of one block to the start of the next.
    ///
    /// # Errors
    /// `Stride` if that is less than a block, `Overflow`.
    pub fn with_stride(self, block_stride: u64) -> Result<Self, LayoutError> {
        Self { block_stride, ..self }.checked()
    }

    /// The same with block 0 there.
    ///
    /// # Errors
    /// `Overflow`.
    pub fn at(self, base: u64) -> Result<Self, LayoutError> {
        Self { base, ..self }.checked()
    }

    /// Part `index` of `of` equal parts of every block, as the blocks of a layout of its own: what one tensor parallel rank of several
    /// reads where a block holds one head after the other.
    ///
    /// # Errors
    /// `Part` if a block cannot be cut so.
    pub fn part(self, index: u64, of: u64) -> Result<Self, LayoutError> {
        let block_len = self.block_len.checked_div(of).filter(|len| *len > 0 && index < of && self.block_len.is_multiple_of(of));
        let block_len = block_len.ok_or(LayoutError::Part { index, of, block_len: self.block_len })?;
        // Inside the block, so it does not wrap.
        Ok(Self { base: self.base.saturating_add(index.saturating_mul(block_len)), block_len, ..self })
    }

    fn checked(self) -> Result<Self, LayoutError> {
        let Self { base, block_len, block_stride, num_blocks } = self;
        for (what, size) in [("num_blocks", num_blocks), ("block_len", block_len)] {
            if size == 0 {
                return Err(LayoutError::Zero { what });
            }
        }
        if block_stride < block_len {
            return Err(LayoutError::Stride { block_len, block_stride });
        }
        let last = num_blocks.checked_sub(1).and_then(|last| last.checked_mul(block_stride));
        let end = last.and_then(|last| last.checked_add(block_len)).and_then(|size| size.checked_add(base));
        end.map(|_| self).ok_or(LayoutError::Overflow { base, block_stride, num_blocks })
    }

    /// Where block 0 begins.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Bytes of a block, at least 1.
    pub fn block_len(&self) -> u64 {
        self.block_len
    }

    /// Bytes from the start of a block to the start of the next, at least a block's.
    pub fn block_stride(&self) -> u64 {
        self.block_stride
    }

    /// How many blocks there are, at least 1.
    pub fn num_blocks(&self) -> u64 {
        self.num_blocks
    }

    /// Whether each block begins where the one before it ends.
    pub fn is_dense(&self) -> bool {
        self.block_stride == self.block_len
    }

    /// Bytes from the first block's start to the last block's end.
    pub fn size(&self) -> u64 {
        self.offset(self.num_blocks.saturating_sub(1)).saturating_add(self.block_len)
    }

    /// Of a block that there is; nothing here wraps, as the end of the last one does not.
    fn offset(&self, id: u64) -> u64 {
        id.saturating_mul(self.block_stride)
    }

    /// Where a block lies.
    ///
    /// # Errors
    /// `Block` if there is none of this id.
    pub fn block(&self, id: u64) -> Result<Span, LayoutError> {
        if id >= self.num_blocks {
            return Err(LayoutError::Block { got: id, num_blocks: self.num_blocks });
        }
        Ok(Span { start: self.base.saturating_add(self.offset(id)), len: self.block_len })
    }

    /// Where these blocks lie, in their order, which is that of the bytes at the reader. A run, ids of which each is one more than the
    /// one before it, is one span if the layout [is dense](Layout::is_dense); all else is a span a block. An id that is none is an
    /// error in its place.
    pub fn runs<I: IntoIterator<Item = u64>>(&self, ids: I) -> Runs<I::IntoIter> {
        Runs { layout: *self, ids: ids.into_iter().peekable() }
    }

    /// Whether a memory of so many bytes, of which these blocks are offsets, holds them all.
    ///
    /// # Errors
    /// `TooSmall`.
    pub fn fits(&self, bytes: u64) -> Result<(), LayoutError> {
        let needed = self.base.saturating_add(self.size());
        if needed <= bytes { Ok(()) } else { Err(LayoutError::TooSmall { needed, got: bytes }) }
    }

    /// Whether a block of one may share bytes with a block of the other. Not if one ends before the other begins, nor if both have one
    /// stride and the blocks of one lie in the gaps of the other, as where layers take turns.
    pub fn overlaps(&self, other: &Self) -> bool {
        let (first, second) = if self.base <= other.base { (self, other) } else { (other, self) };
        let apart = second.base.saturating_sub(first.base);
        let in_stride = apart.checked_rem(first.block_stride).unwrap_or(0);
        let in_gap = in_stride >= first.block_len && second.block_len <= first.block_stride.saturating_sub(in_stride);
        apart < first.size() && !(first.block_stride == second.block_stride && in_gap)
    }
}

/// What [`Layout::runs`] gives.
#[derive(Clone, Debug)]
pub struct Runs<I: Iterator<Item = u64>> {
    layout: Layout,
    ids: Peekable<I>,
}

impl<I: Iterator<Item = u64>> Iterator for Runs<I> {
    type Item = Result<Span, LayoutError>;

    fn next(&mut self) -> Option<Self::Item> {
        let Self { layout, ids } = self;
        let mut last = ids.next()?;
        let mut run = match layout.block(last) {
            Ok(span) => span,
            Err(error) => return Some(Err(error)),
        };
        while layout.is_dense()
            && let Some(next) = ids.next_if(|next| last.checked_add(1) == Some(*next) && *next < layout.num_blocks)
        {
            last = next;
            run.len = run.len.saturating_add(layout.block_len);
        }
        Some(Ok(run))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(base: u64, block_len: u64, block_stride: u64, num_blocks: u64) -> Result<Layout, LayoutError> {
        Layout::new(num_blocks, block_len)?.with_stride(block_stride)?.at(base)
    }

    fn spans(layout: Layout, ids: &[u64]) -> Vec<(u64, u64)> {
        layout.runs(ids.iter().copied()).map(|span| span.map(|span| (span.start, span.len)).unwrap()).collect()
    }

    #[test]
    fn layouts_that_cannot_be_are_refused() {
        assert_eq!(layout(0, 0, 5, 1), Err(LayoutError::Zero { what: "block_len" }));
        assert_eq!(layout(0, 5, 5, 0), Err(LayoutError::Zero { what: "num_blocks" }));
        assert_eq!(layout(0, 5, 4, 1), Err(LayoutError::Stride { block_len: 5, block_stride: 4 }));
        assert_eq!(layout(0, 5, 0, 1), Err(LayoutError::Stride { block_len: 5, block_stride: 0 }));
        let overflow = |base, block_stride, num_blocks| Err(LayoutError::Overflow { base, block_stride, num_blocks });
        assert_eq!(layout(u64::MAX - 9, 10, 10, 1), overflow(u64::MAX - 9, 10, 1));
        assert_eq!(layout(0, 1 << 32, 1 << 32, 1 << 32), overflow(0, 1 << 32, 1 << 32));
        assert_eq!(layout(0, 1, u64::MAX, 3), overflow(0, u64::MAX, 3));
        assert_eq!(layout(1, u64::MAX, u64::MAX, 1), overflow(1, u64::MAX, 1));
    }

    #[test]
    fn the_largest_layouts_that_can_be_do_not_wrap() {
        for (base, len, stride, blocks) in
            [(u64::MAX - 10, 10, 10, 1), (0, u64::MAX, u64::MAX, 1), (5, 1, 1, u64::MAX - 5), (0, 1, u64::MAX - 1, 2)]
        {
            let layout = layout(base, len, stride, blocks).unwrap();
            let last = layout.block(blocks - 1).unwrap();
            assert_eq!(last.start + last.len, base + layout.size());
            assert_eq!(layout.block(blocks), Err(LayoutError::Block { got: blocks, num_blocks: blocks }));
            assert!(layout.block(u64::MAX).is_err());
        }
    }

    #[test]
    fn runs_keep_the_order_and_join_neighbours_that_go_up() {
        let dense = layout(1000, 10, 10, 100).unwrap();
        assert_eq!(spans(dense, &[]), []);
        assert_eq!(spans(dense, &[3]), [(1030, 10)]);
        assert_eq!(spans(dense, &[3, 4, 5, 9, 10]), [(1030, 30), (1090, 20)]);
        assert_eq!(spans(dense, &[5, 4, 3]), [(1050, 10), (1040, 10), (1030, 10)], "downwards they lie in another order");
        assert_eq!(spans(dense, &[3, 3, 4]), [(1030, 10), (1030, 20)]);
        assert_eq!(spans(dense, &(0..100).collect::<Vec<_>>()), [(1000, 1000)]);
        let padded = layout(1000, 10, 11, 100).unwrap();
        assert_eq!(spans(padded, &[3, 4]), [(1033, 10), (1044, 10)]);
    }

    #[test]
    fn an_id_that_is_none_is_an_error_in_its_place() {
        let layout = layout(0, 10, 10, 4).unwrap();
        let got: Vec<_> = layout.runs([2, 3, 4, u64::MAX, 0]).collect();
        let none = |got| Err(LayoutError::Block { got, num_blocks: 4 });
        assert_eq!(got, [Ok(Span { start: 20, len: 20 }), none(4), none(u64::MAX), Ok(Span { start: 0, len: 10 })]);
    }

    #[test]
    fn parts_make_up_the_block() {
        let whole = layout(7, 12, 12, 5).unwrap();
        let parts: Vec<Span> = (0..3).map(|index| whole.part(index, 3).unwrap().block(4).unwrap()).collect();
        assert_eq!(parts, [(55, 4), (59, 4), (63, 4)].map(|(start, len)| Span { start, len }));
        assert_eq!(spans(whole.part(1, 3).unwrap(), &[0, 1]), [(11, 4), (23, 4)]);
        assert_eq!(whole.part(0, 1), Ok(whole));
        for (index, of) in [(0, 0), (3, 3), (0, 5), (0, 24), (u64::MAX, u64::MAX)] {
            assert_eq!(whole.part(index, of), Err(LayoutError::Part { index, of, block_len: 12 }));
        }
    }

    #[test]
    fn a_memory_has_to_reach_to_the_last_blocks_end() {
        let layout = layout(100, 10, 25, 4).unwrap();
        assert_eq!(layout.fits(185), Ok(()));
        assert_eq!(layout.fits(184), Err(LayoutError::TooSmall { needed: 185, got: 184 }));
    }

    #[test]
    fn layouts_overlap_exactly_where_blocks_do() {
        // Against every byte of small ones; of one stride, since others within each other count as overlapping.
        let all = |base: u64, len: u64| layout(base, len, 6, 3).unwrap();
        let bytes =
            |layout: Layout| (0..3).flat_map(move |id| layout.block(id).map(|span| span.start..span.start + span.len).unwrap());
        for (base, one, two) in (0..14).flat_map(|base| (1..=6).flat_map(move |one| (1..=6).map(move |two| (base, one, two)))) {
            let (first, second) = (all(0, one), all(base, two));
            let shared = bytes(first).any(|byte| bytes(second).any(|other| byte == other));
            assert!(first.overlaps(&second) || !shared, "{first:?} {second:?}");
            assert_eq!(first.overlaps(&second), second.overlaps(&first));
            // Behind the last block the order of gaps no longer matters, which is not looked at.
            if base + 12 < first.size() {
                assert_eq!(first.overlaps(&second), shared, "{first:?} {second:?}");
            }
        }
        assert!(layout(0, 1, 6, 3).unwrap().overlaps(&layout(2, 1, 5, 2).unwrap()));
        assert!(!layout(0, 1, 6, 3).unwrap().overlaps(&layout(13, 1, 5, 2).unwrap()));
    }
}
