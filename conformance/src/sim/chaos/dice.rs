//! A generator of numbers, small and fast.

/// SplitMix64.
#[derive(Debug)]
pub(in crate::sim) struct Dice(u64);

impl Dice {
    /// Neighbouring seeds give streams that have nothing in common.
    pub(in crate::sim) fn new(seed: u64) -> Self {
        Self(mixed(seed ^ 0x6b76_6c65_6173_6521))
    }

    pub(super) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }

    /// From zero to below `end`; zero of zero.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(end)) >> 64) as u64
    }

    /// From `least` to `most`, both included.
    pub(super) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most.saturating_sub(least).saturating_add(1))
    }

    pub(super) fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// True so often in a hundred.
    pub(in crate::sim) fn percent(&mut self, often: u64) -> bool {
        self.below(100) < often
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }

    /// Which of the parts, each as often as it is large.
    pub(super) fn weighed<T: Copy>(&mut self, parts: &[(u64, T)]) -> T {
        let mut left = self.below(parts.iter().map(|(weight, _)| weight).sum());
        for (weight, part) in parts {
            if left < *weight {
                return *part;
            }
            left -= weight;
        }
        parts[0].1
    }

    /// Of any size: each power of two is as likely as the next.
    pub(in crate::sim) fn log(&mut self, most: u64) -> u64 {
        let bits = u64::from(u64::BITS - most.leading_zeros());
        let bits = self.below(bits + 1);
        self.below(1u64.checked_shl(bits as u32).unwrap_or(u64::MAX)).min(most)
    }
}

fn mixed(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
