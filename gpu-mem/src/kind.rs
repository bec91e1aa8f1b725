//! What memory is.

use std::{fmt, str::FromStr};

use crate::MemoryError;

/// What memory is, for a transport that treats kinds differently.
///
/// ```
/// use gpu_mem::Kind;
/// assert_eq!("cuda:1".parse(), Ok(Kind::Cuda { device: 1 }));
/// assert_eq!("cuda".parse(), Ok(Kind::Cuda { device: 0 }));
/// assert_eq!(Kind::Pinned.to_string(), "pinned");
/// assert!("gpu".parse::<Kind>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Ordinary memory of the host.
    Host,
    /// Memory of the host that CUDA has page-locked. Transports take it for host memory, devices reach it faster.
    Pinned,
    /// Memory of a CUDA device.
    Cuda {
        /// The device's ordinal in this process, which `CUDA_VISIBLE_DEVICES` decides.
        device: u32,
    },
}

impl Kind {
    /// Whether the host's own instructions read and write it.
    pub const fn is_host(self) -> bool {
        matches!(self, Self::Host | Self::Pinned)
    }

    /// The ordinal of the device that it lies on; `None` for host memory.
    pub const fn device(self) -> Option<u32> {
        match self {
            Self::Cuda { device } => Some(device),
            Self::Host | Self::Pinned => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Pinned => f.write_str("pinned"),
            Self::Cuda { device } => write!(f, "cuda:{device}"),
        }
    }
}

impl FromStr for Kind {
    type Err = MemoryError;

    /// `host`, `pinned`, `cuda` (device 0) or `cuda:N`.
    fn from_str(text: &str) -> Result<Self, MemoryError> {
        match text.split_once(':') {
            None if text == "host" => Ok(Self::Host),
            None if text == "pinned" => Ok(Self::Pinned),
            None if text == "cuda" => Ok(Self::Cuda { device: 0 }),
            // A sign is no digit, though Rust would take a plus.
            Some(("cuda", device)) if device.bytes().all(|byte| byte.is_ascii_digit()) => {
                device.parse().map(|device| Self::Cuda { device }).map_err(|_| MemoryError::UnknownKind)
            }
            _ => Err(MemoryError::UnknownKind),
        }
    }
}

/// How memory was allocated, which decides what fabrics can do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Allocation {
    /// In one piece, at once: `mmap`, `cuMemAlloc`. Every fabric takes it.
    Plain,
    /// Mapped from physical pieces by CUDA's virtual memory management, as PyTorch's expandable segments are.
    Vmm,
    /// From a memory pool in a stream's order: `cuMemAllocAsync`.
    StreamOrdered,
    /// Managed: it moves between host and device.
    Managed,
}

impl Allocation {
    /// What to do instead, where a fabric is slow on such memory or does not take it: on anything but plain memory reads were seen
    /// to be 600 times slower (case 65). A transport that registers it all the same says this. `None` for plain memory.
    pub const fn advice(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Managed => Some("allocate KV blocks by cuMemAlloc"),
            Self::Vmm => {
                Some("allocate KV blocks in one piece (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False), or accept it")
            }
            Self::StreamOrdered => {
                Some("allocate KV blocks by cuMemAlloc (PYTORCH_CUDA_ALLOC_CONF=backend:native), or accept it")
            }
        }
    }
}

impl fmt::Display for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Vmm => "virtual memory management (expandable segments)",
            Self::StreamOrdered => "stream-ordered (cuMemAllocAsync)",
            Self::Managed => "managed",
        })
    }
}
