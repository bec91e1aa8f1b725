//! The kinds of memory that an engine uses.

use std::fmt;

use gpu_mem::{Kind, Memory, MemoryError};

/// What kind of memory an engine's blocks lie in, and in what kind land those that it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds {
    /// Of the blocks that it holds.
    pub blocks: Kind,
    /// Of the destinations of its reads.
    pub landing: Kind,
}

impl Kinds {
    /// Host memory alone.
    pub const HOST: Self = Self::both(Kind::Host);

    /// One kind for both.
    pub const fn both(kind: Kind) -> Self {
        Self { blocks: kind, landing: kind }
    }

    /// Whether no device has a part in it.
    pub const fn are_host(self) -> bool {
        self.blocks.is_host() && self.landing.is_host()
    }

    /// The pairs that show a kind: device memory is read from and into host memory too.
    pub fn pairs(kind: Kind) -> Vec<Self> {
        match kind.is_host() {
            true => vec![Self::both(kind)],
            false => {
                vec![Self { blocks: Kind::Host, landing: kind }, Self { blocks: kind, landing: Kind::Host }, Self::both(kind)]
            }
        }
    }

    /// A little of each kind: whoever keeps it keeps its device's context, too, as an engine does.
    ///
    /// # Errors
    /// Why this machine has no such memory.
    pub fn sample(self) -> Result<[Memory; 2], MemoryError> {
        Ok([Memory::allocate(self.blocks, 1)?, Memory::allocate(self.landing, 1)?])
    }
}

impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}->{}", self.blocks, self.landing)
    }
}
