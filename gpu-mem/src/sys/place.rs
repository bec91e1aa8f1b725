//! Where memory is, and how bytes get there.

use std::{os::fd::OwnedFd, ptr::NonNull};

use super::{cuda, words::Words};
use crate::{Context, Kind, MemoryError};

/// Where some memory is. Its owner stands beside it.
#[derive(Debug)]
pub(crate) enum Place {
    Host(Words),
    Device(cuda::Bytes),
}

impl Place {
    pub(crate) fn start(&self) -> NonNull<u8> {
        match self {
            Self::Host(words) => words.start(),
            Self::Device(bytes) => bytes.start(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Host(words) => words.len(),
            Self::Device(bytes) => bytes.len(),
        }
    }

    pub(crate) fn context(&self) -> Option<&Context> {
        match self {
            Self::Host(_) => None,
            Self::Device(bytes) => Some(bytes.context()),
        }
    }

    pub(crate) fn is_ipc_capable(&self) -> bool {
        match self {
            Self::Host(_) => false,
            Self::Device(bytes) => bytes.is_ipc_capable(),
        }
    }

    /// A file descriptor of it. `kind` is what an error names.
    pub(crate) fn dma_buf(&self, kind: Kind) -> Result<OwnedFd, MemoryError> {
        match self {
            Self::Host(_) => Err(MemoryError::NoDmaBuf { kind }),
            Self::Device(bytes) => bytes.dma_buf(kind),
        }
    }

    /// Copies out what is there from `offset` on, which the caller has checked.
    pub(crate) fn load(&self, offset: usize, out: &mut [u8]) -> Result<(), MemoryError> {
        match self {
            Self::Host(words) => words.load(offset, out),
            Self::Device(bytes) => bytes.load(offset, out)?,
        }
        Ok(())
    }

    /// Copies in from `offset` on, which the caller has checked.
    pub(crate) fn store(&self, offset: usize, bytes: &[u8]) -> Result<(), MemoryError> {
        match self {
            Self::Host(words) => words.store(offset, bytes),
            Self::Device(device) => device.store(offset, bytes)?,
        }
        Ok(())
    }
}
