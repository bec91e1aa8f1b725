//! What devices there are.

use std::fmt;

use crate::{MemoryError, sys::cuda};

/// A CUDA device, as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Device {
    /// Its number in this process, which `CUDA_VISIBLE_DEVICES` decides.
    pub ordinal: u32,
    /// What it is called.
    pub name: String,
    /// What tells it from all others, as `nvidia-smi -L` writes it for a device that is not a part (MIG).
    pub uuid: String,
    /// Where it is plugged in: `domain:bus:device.function`.
    pub pci_bus_id: String,
    /// Bytes of memory, free or not.
    pub total_memory: u64,
    /// Whether its memory can be exported by [`Memory::dma_buf`](crate::Memory::dma_buf).
    pub dma_buf: bool,
    /// What its driver speaks.
    pub driver: DriverVersion,
}

/// The newest CUDA that a driver speaks. Not the driver's own version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverVersion {
    /// Before the dot.
    pub major: u32,
    /// After it.
    pub minor: u32,
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The devices that CUDA memory can be allocated on, by their ordinals. Makes no context on any of them.
///
/// # Errors
/// `Unavailable` if there are none, and says why; `Driver`.
pub fn devices() -> Result<Vec<Device>, MemoryError> {
    cuda::devices()
}
