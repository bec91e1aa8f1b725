//! What stands where CUDA would, in a build without it: the same names, and nothing that could exist.

use std::{convert::Infallible, marker::PhantomData, os::fd::OwnedFd, ptr::NonNull};

use super::adopt::Found;
use crate::{Allocation, Context, Device, Kind, Memory, MemoryError, Unavailable};

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

pub(crate) fn pinned(_: usize) -> Result<Memory, MemoryError> {
    Err(not_built(Kind::Pinned))
}

pub(crate) fn device(device: u32, _: usize) -> Result<Memory, MemoryError> {
    Err(not_built(Kind::Cuda { device }))
}

pub(crate) fn devices() -> Result<Vec<Device>, MemoryError> {
    Err(not_built(Kind::Cuda { device: 0 }))
}

/// Nothing here is CUDA's.
pub(in crate::sys) unsafe fn find(_: NonNull<u8>, _: usize, _: &[Allocation]) -> Result<Found, MemoryError> {
    Ok(Found::Host(Kind::Host, Allocation::Plain))
}

pub(crate) fn error_name(_: u32) -> Option<&'static str> {
    None
}

fn not_built(kind: Kind) -> MemoryError {
    MemoryError::Unavailable { kind, cause: Unavailable::NotBuilt }
}
