//! Who beats whom when the two engines have different numbers of ranks.
//!
//! vLLM's rule for tensor parallel sizes (its wire carries only the outcome, `consumers`): a reader with more ranks groups
//! them, `reader tp / holder tp` to each holder rank; a reader with fewer reads from `holder tp / reader tp` holder ranks each.
//! One size must divide the other. Every reader rank meets its holder ranks in EVERY pipeline stage of the holder; it beats
//! and completes all of them, whether or not it has anything to read there.
//!
//! A rank is a (pipeline, tensor) pair: with either number alone several ranks look like one (case 13).

use crate::id::{MAX_READERS, ReaderRank};

/// Most tensor ranks, and most pipeline ranks, of an engine. Larger sizes come from damaged or hostile parameters (case 63).
pub const MAX_SIZE: u32 = 1024;

/// How many ranks an engine has, or which of them one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ranks {
    /// Pipeline parallel.
    pub pp: u32,
    /// Tensor parallel.
    pub tp: u32,
}

/// Two engines' sizes that fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Topology {
    reader: Ranks,
    holder: Ranks,
    /// Reader ranks of one pipeline stage that share a holder rank.
    sharing: u32,
    /// Holder ranks of one pipeline stage that a reader rank reads from.
    spread: u32,
}

/// Why two engines do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// A size out of range.
    #[error("parallel size is {got}, expected 1 to {MAX_SIZE}")]
    Size {
        /// The size.
        got: u32,
    },
    /// Tensor parallel sizes of which neither divides the other.
    #[error("tensor parallel sizes {reader} (reader) and {holder} (holder) do not fit: one must divide the other")]
    DoNotDivide {
        /// The reader's size.
        reader: u32,
        /// The holder's size.
        holder: u32,
    },
    /// More readers of one holder rank than a lease can tell apart.
    #[error("{got} reader ranks would share one holder rank, expected at most {MAX_READERS}")]
    TooManyReaders {
        /// How many there would be.
        got: u32,
    },
    /// A rank outside its engine.
    #[error("rank (pp {}, tp {}) is outside an engine of (pp {}, tp {})", rank.pp, rank.tp, size.pp, size.tp)]
    NoSuchRank {
        /// The rank.
        rank: Ranks,
        /// The engine's size.
        size: Ranks,
    },
}

impl Topology {
    /// Sizes of a reader's and a holder's engine. On the vLLM wire the reader's `pp` is 1: vLLM counts tensor ranks only.
    ///
    /// ```
    /// use lease_proto::topology::{Ranks, Topology};
    /// let two_to_four = Topology::new(Ranks { pp: 1, tp: 2 }, Ranks { pp: 1, tp: 4 })?;
    /// assert!(two_to_four.targets(Ranks { pp: 0, tp: 1 })?.map(|holder| holder.tp).eq([2, 3]));
    /// assert_eq!(two_to_four.consumers(), 1);
    /// # Ok::<(), lease_proto::topology::TopologyError>(())
    /// ```
    ///
    /// # Errors
    /// `Size`, `DoNotDivide`, `TooManyReaders`.
    pub fn new(reader: Ranks, holder: Ranks) -> Result<Self, TopologyError> {
        if let Some(got) = [reader.pp, reader.tp, holder.pp, holder.tp].into_iter().find(|size| !(1..=MAX_SIZE).contains(size)) {
            return Err(TopologyError::Size { got });
        }
        if !reader.tp.is_multiple_of(holder.tp) && !holder.tp.is_multiple_of(reader.tp) {
            return Err(TopologyError::DoNotDivide { reader: reader.tp, holder: holder.tp });
        }
        let ratio = |of: u32, to: u32| of.checked_div(to).unwrap_or(1).max(1);
        let (sharing, spread) = (ratio(reader.tp, holder.tp), ratio(holder.tp, reader.tp));
        let got = reader.pp.saturating_mul(sharing);
        if got > u32::from(MAX_READERS) {
            return Err(TopologyError::TooManyReaders { got });
        }
        Ok(Self { reader, holder, sharing, spread })
    }

    /// The holder ranks that reader rank `rank` beats, reads from and completes, by pipeline, then tensor rank.
    ///
    /// # Errors
    /// `NoSuchRank`.
    pub fn targets(self, rank: Ranks) -> Result<impl Iterator<Item = Ranks> + Clone, TopologyError> {
        self.check(rank)?;
        let first = rank.tp.checked_div(self.sharing).unwrap_or(0).saturating_mul(self.spread);
        let tps = first..first.saturating_add(self.spread);
        Ok((0..self.holder.pp).flat_map(move |pp| tps.clone().map(move |tp| Ranks { pp, tp })))
    }

    /// How many reader ranks will complete a lease at each holder rank, 1 to 64: vLLM's expected consumers, times the reader's
    /// pipeline ranks.
    pub fn consumers(self) -> u16 {
        self.reader.pp.saturating_mul(self.sharing).try_into().unwrap_or(MAX_READERS)
    }

    /// Who reader rank `rank` is to each of its targets. The same for all of them.
    ///
    /// # Errors
    /// `NoSuchRank`.
    pub fn reader(self, rank: Ranks) -> Result<ReaderRank, TopologyError> {
        self.check(rank)?;
        let within = rank.tp.checked_rem(self.sharing).unwrap_or(0);
        let index = rank.pp.saturating_mul(self.sharing).saturating_add(within);
        u16::try_from(index)
            .ok()
            .and_then(|index| ReaderRank::new(index, self.consumers()))
            .ok_or(TopologyError::NoSuchRank { rank, size: self.reader })
    }

    fn check(self, rank: Ranks) -> Result<(), TopologyError> {
        if rank.pp < self.reader.pp && rank.tp < self.reader.tp {
            Ok(())
        } else {
            Err(TopologyError::NoSuchRank { rank, size: self.reader })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{
        collections::{BTreeMap, BTreeSet},
        vec::Vec,
    };

    fn tp(tp: u32) -> Ranks {
        Ranks { pp: 1, tp }
    }

    fn targets(topology: Topology, tp: u32) -> Vec<u32> {
        topology.targets(Ranks { pp: 0, tp }).unwrap().map(|holder| holder.tp).collect()
    }

    #[test]
    fn vllms_table() {
        for (reader, holder, expected, consumers) in [
            (1, 1, &[&[0u32][..]][..], 1),
            (2, 2, &[&[0], &[1]], 1),
            (4, 2, &[&[0], &[0], &[1], &[1]], 2),
            (2, 4, &[&[0, 1], &[2, 3]], 1),
            (1, 8, &[&[0, 1, 2, 3, 4, 5, 6, 7]], 1),
            (8, 1, &[&[0], &[0], &[0], &[0], &[0], &[0], &[0], &[0]], 8),
        ] {
            let topology = Topology::new(tp(reader), tp(holder)).unwrap();
            assert_eq!(topology.consumers(), consumers);
            for (rank, expected) in (0..reader).zip(expected) {
                assert_eq!(targets(topology, rank), *expected, "rank {rank} of {reader} to {holder}");
            }
        }
    }

    #[test]
    fn every_holder_rank_is_read_by_all_its_consumers_each_once() {
        let sizes = [1, 2, 3, 4, 6, 8, 12, 16];
        for (reader, holder) in sizes.into_iter().flat_map(|reader| sizes.map(|holder| (tp(reader), tp(holder)))) {
            for (reader_pp, holder_pp) in [(1, 1), (1, 3), (2, 1), (4, 2)] {
                let (reader, holder) = (Ranks { pp: reader_pp, ..reader }, Ranks { pp: holder_pp, ..holder });
                let Ok(topology) = Topology::new(reader, holder) else { continue };
                let mut readers = BTreeMap::<Ranks, BTreeSet<ReaderRank>>::new();
                for rank in (0..reader.pp).flat_map(|pp| (0..reader.tp).map(move |tp| Ranks { pp, tp })) {
                    for target in topology.targets(rank).unwrap() {
                        assert!(readers.entry(target).or_default().insert(topology.reader(rank).unwrap()), "{topology:?}");
                    }
                }
                let of = topology.consumers();
                let all: BTreeSet<_> = (0..of).map(|rank| ReaderRank::new(rank, of).unwrap()).collect();
                assert_eq!(readers.len() as u32, holder.pp * holder.tp);
                assert!(readers.values().all(|readers| *readers == all), "{topology:?}");
            }
        }
    }

    /// Case 13: four senders of one pipeline rank are four senders.
    #[test]
    fn senders_of_one_pipeline_rank_are_told_apart() {
        let topology = Topology::new(tp(4), tp(1)).unwrap();
        let bits = (0..4).map(|tp| topology.reader(Ranks { pp: 0, tp }).unwrap().bit()).fold(0, |seen, bit| seen | bit);
        assert_eq!(bits, ReaderRank::new(0, 4).unwrap().all());
        let pipelined = Topology::new(Ranks { pp: 2, tp: 1 }, tp(1)).unwrap();
        assert_ne!(pipelined.reader(Ranks { pp: 0, tp: 0 }), pipelined.reader(Ranks { pp: 1, tp: 0 }));
    }

    /// Case 63.
    #[test]
    fn sizes_that_cannot_be_are_typed_errors() {
        for got in [0, MAX_SIZE + 1, 1 << 31, u32::MAX] {
            for (reader, holder) in
                [(tp(got), tp(1)), (tp(1), tp(got)), (Ranks { pp: got, tp: 1 }, tp(1)), (tp(1), Ranks { pp: got, tp: 1 })]
            {
                assert_eq!(Topology::new(reader, holder), Err(TopologyError::Size { got }));
            }
        }
        assert_eq!(Topology::new(tp(3), tp(2)), Err(TopologyError::DoNotDivide { reader: 3, holder: 2 }));
        assert_eq!(Topology::new(tp(128), tp(1)), Err(TopologyError::TooManyReaders { got: 128 }));
        assert_eq!(Topology::new(tp(MAX_SIZE), tp(16)).unwrap().consumers(), MAX_READERS);
        assert_eq!(targets(Topology::new(tp(1), tp(MAX_SIZE)).unwrap(), 0).len(), MAX_SIZE as usize);
    }

    #[test]
    fn a_rank_outside_its_engine_is_refused() {
        let topology = Topology::new(Ranks { pp: 2, tp: 4 }, tp(2)).unwrap();
        for rank in [Ranks { pp: 0, tp: 4 }, Ranks { pp: 2, tp: 0 }, Ranks { pp: u32::MAX, tp: u32::MAX }] {
            let error = TopologyError::NoSuchRank { rank, size: Ranks { pp: 2, tp: 4 } };
            assert_eq!(topology.targets(rank).err(), Some(error));
            assert_eq!(topology.reader(rank), Err(error));
        }
    }
}
