//! What stands where CUDA would, in a build without it: the same names, and nothing that could exist.

use std::{convert::Infallible, marker::PhantomData, os::fd::OwnedFd, ptr::NonNull};

use rustix::param::page_size;

use super::{adopt::Found, slab::whole_pages};
use crate::{Allocation, Context, Device, Kind, Memory, MemoryError, Unavailable};

/// How the name of the driver's library begins, wherever it lies.
const DRIVER: &[u8] = b"/libcuda.so";

#[derive(Debug)]
pub(crate) enum Primary {}

impl Primary {
    pub(crate) fn push(&self) -> Result<Pushed<'_>, MemoryError> {
        match *self {}
    }
}

#[derive(Debug)]
pub(crate) struct Pushed<'c> {
    _never: Infallible,
    _context: PhantomData<(&'c Primary, *const ())>,
}

#[derive(Debug)]
pub(crate) enum Bytes {}

impl Bytes {
    pub(crate) fn start(&self) -> NonNull<u8> {
        match *self {}
    }

    pub(crate) fn len(&self) -> usize {
        match *self {}
    }

    pub(crate) fn context(&self) -> &Context {
        match *self {}
    }

    pub(crate) fn is_ipc_capable(&self) -> bool {
        match *self {}
    }

    pub(crate) fn load(&self, _: usize, _: &mut [u8]) -> Result<(), MemoryError> {
        match *self {}
    }

    pub(crate) fn store(&self, _: usize, _: &[u8]) -> Result<(), MemoryError> {
        match *self {}
    }

    pub(crate) fn dma_buf(&self, _: Kind) -> Result<OwnedFd, MemoryError> {
        match *self {}
    }
}

pub(crate) fn pinned(len: usize) -> Result<Memory, MemoryError> {
    none(Kind::Pinned, len)
}

pub(crate) fn device(device: u32, len: usize) -> Result<Memory, MemoryError> {
    none(Kind::Cuda { device }, len)
}

fn none(kind: Kind, len: usize) -> Result<Memory, MemoryError> {
    whole_pages(len, page_size())?; // a wrong size is said first, as in a build with CUDA
    Err(not_built(kind))
}

pub(crate) fn devices() -> Result<Vec<Device>, MemoryError> {
    Err(not_built(Kind::Cuda { device: 0 }))
}

/// Host memory, where no other part of this process can have CUDA's: there is no driver in it.
///
/// # Safety
/// None is needed here, where nothing is touched: the signature is that of the build with CUDA.
pub(in crate::sys) unsafe fn find(_: NonNull<u8>, _: usize, _: &[Allocation]) -> Result<Found, MemoryError> {
    // Unreadable is not known: then there may be one.
    let maps = std::fs::read("/proc/self/maps").unwrap_or_else(|_| DRIVER.to_vec());
    if maps.windows(DRIVER.len()).any(|bytes| bytes == DRIVER) {
        return Err(MemoryError::UnknownMemory { cause: Unavailable::NotBuilt });
    }
    Ok(Found::Host(Kind::Host, Allocation::Plain))
}

pub(crate) fn error_name(_: u32) -> Option<&'static str> {
    None
}

fn not_built(kind: Kind) -> MemoryError {
    MemoryError::Unavailable { kind, cause: Unavailable::NotBuilt }
}
