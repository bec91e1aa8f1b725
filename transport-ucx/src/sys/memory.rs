//! Memory that UCX knows: mapped, checked to be what it is, and unmapped when nothing touches it any more.

use std::{
    ptr, slice,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use gpu_mem::{Allocation, Entered, Kind, Memory};
use ucx_sys::sys as ucx;

use super::{Context, Status, Zeroed as _};
use crate::{Mistaken, UcxError};

/// A mapping, with the memory and the context that it needs. Every operation that touches the memory holds it.
pub(crate) struct Mapped {
    /// Null once unmapped. Locked for as long as UCX is at it.
    handle: Mutex<ucx::ucp_mem_h>,
    /// What UCX takes it for.
    memory_type: ucx::ucs_memory_type_t,
    /// Whether this process may touch it by itself.
    is_host: bool,
    memory: Memory,
    context: Arc<Context>,
}

impl Mapped {
    pub(crate) fn new(context: Arc<Context>, memory: Memory) -> Result<Self, UcxError> {
        let kind = memory.kind();
        Self::map(context, memory, kind)
    }

    /// As if memory of the host were of a device, which UCX does not see.
    #[cfg(test)]
    pub(crate) fn mistaken(context: Arc<Context>, memory: Memory) -> Result<Self, UcxError> {
        Self::map(context, memory, Kind::Cuda { device: 0 })
    }

    /// As if this process could not touch memory of the host by itself.
    #[cfg(test)]
    pub(crate) fn out_of_reach(context: Arc<Context>, memory: Memory) -> Result<Self, UcxError> {
        let mut mapped = Self::new(context, memory)?;
        mapped.is_host = false;
        Ok(mapped)
    }

    fn map(context: Arc<Context>, memory: Memory, kind: Kind) -> Result<Self, UcxError> {
        let owner = memory.clone();
        let _entered = owner.context().map(gpu_mem::Context::enter).transpose()?;
        // Without a hint of its type: UCX would only repeat that when it is asked.
        let mut params = ucx::ucp_mem_map_params_t::zeroed();
        params.field_mask = u64::from(
            ucx::ucp_mem_map_params_field_UCP_MEM_MAP_PARAM_FIELD_ADDRESS
                | ucx::ucp_mem_map_params_field_UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        );
        params.address = memory.descriptor().ptr().as_ptr().cast();
        params.length = memory.len();
        let mut handle = ptr::null_mut();
        // SAFETY: the context lives, and the memory is owned by what is returned.
        let status = unsafe { ucx::ucp_mem_map(context.raw(), &raw const params, &raw mut handle) };
        Status::check(status).map_err(|status| UcxError::Backend { call: "ucp_mem_map", status: status.text() })?;
        let unknown = ucx::ucs_memory_type_UCS_MEMORY_TYPE_UNKNOWN;
        let mut mapped = Self { handle: Mutex::new(handle), memory_type: unknown, is_host: kind.is_host(), memory, context };
        // A UCX without CUDA maps device memory as host memory and calls that a success.
        mapped.memory_type = mapped.query()?;
        if !expected(kind, mapped.memory.allocation()).contains(&mapped.memory_type) {
            let why = Mistaken::why(&mapped.context);
            return Err(UcxError::MemoryType { found: name(mapped.memory_type), expected: kind, why });
        }
        if let Some(cuda) = mapped.memory.context() {
            mapped.context.remember(cuda);
        }
        Ok(mapped)
    }

    /// Makes the CUDA context that it needs this thread's until what is returned is dropped. Memory of the host goes by that of other
    /// memory, if there is some: UCX may have page-locked it, and CUDA unlocks nothing without a context.
    fn enter(&self) -> Option<Entered<'_>> {
        self.memory.context().map_or_else(|| self.context.enter(), |cuda| cuda.enter().ok())
    }

    /// Whether it is mapped in this context, which alone knows its handle.
    pub(crate) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(crate) fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether this process may read and write it by itself.
    pub(crate) fn is_host(&self) -> bool {
        self.is_host
    }

    /// Where it begins, for a peer's one-sided reads.
    pub(crate) fn address(&self) -> u64 {
        self.memory.descriptor().address()
    }

    /// The byte at `offset`, if `length` bytes from there on are inside.
    pub(super) fn at(&self, offset: usize, length: usize) -> Option<*mut u8> {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.len());
        inside.then(|| self.memory.descriptor().ptr().as_ptr().wrapping_add(offset))
    }

    pub(super) fn raw(&self) -> ucx::ucp_mem_h {
        *self.handle()
    }

    /// Nothing panics under the lock.
    fn handle(&self) -> MutexGuard<'_, ucx::ucp_mem_h> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What UCX takes it for, so that no operation has to look it up.
    pub(super) fn memory_type(&self) -> ucx::ucs_memory_type_t {
        self.memory_type
    }

    /// What opens the memory to one-sided reads of a peer.
    pub(crate) fn remote_key(&self) -> Result<Vec<u8>, UcxError> {
        let (mut buffer, mut length) = (ptr::null_mut(), 0);
        let _entered = self.enter();
        let handle = self.handle();
        if handle.is_null() {
            return Err(UcxError::Fenced);
        }
        // SAFETY: the context lives, and the mapping as long as its handle is locked.
        let status = unsafe { ucx::ucp_rkey_pack(self.context.raw(), *handle, &raw mut buffer, &raw mut length) };
        Status::check(status).map_err(|status| UcxError::Backend { call: "ucp_rkey_pack", status: status.text() })?;
        // SAFETY: UCX filled both in, and the buffer is ours until released.
        let key = unsafe { slice::from_raw_parts(buffer.cast_const().cast::<u8>(), length) }.to_vec();
        // SAFETY: from `ucp_rkey_pack`, released once.
        unsafe { ucx::ucp_rkey_buffer_release(buffer) };
        Ok(key)
    }

    /// Ends the mapping. Nothing may be using it.
    pub(crate) fn unmap(&self) -> Result<(), UcxError> {
        let _entered = self.enter();
        let mut handle = self.handle();
        if handle.is_null() {
            return Ok(());
        }
        // SAFETY: ours, unmapped once; operations hold the mapping, and the caller vouches that there are none.
        let status = unsafe { ucx::ucp_mem_unmap(self.context.raw(), *handle) };
        *handle = ptr::null_mut();
        Status::check(status).map_err(|status| UcxError::Backend { call: "ucp_mem_unmap", status: status.text() })
    }

    /// What UCX itself takes it for.
    fn query(&self) -> Result<ucx::ucs_memory_type_t, UcxError> {
        let mut attr = ucx::ucp_mem_attr_t::zeroed();
        attr.field_mask = u64::from(ucx::ucp_mem_attr_field_UCP_MEM_ATTR_FIELD_MEM_TYPE);
        // SAFETY: the mapping lives.
        let status = unsafe { ucx::ucp_mem_query(self.raw(), &raw mut attr) };
        Status::check(status).map_err(|status| UcxError::Backend { call: "ucp_mem_query", status: status.text() })?;
        Ok(attr.mem_type)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if let Err(error) = self.unmap() {
            tracing::warn!(%error, "memory stays mapped");
        }
    }
}

/// What UCX may take memory for.
fn expected(kind: Kind, allocation: Allocation) -> &'static [ucx::ucs_memory_type_t] {
    const HOST: ucx::ucs_memory_type_t = ucx::ucs_memory_type_UCS_MEMORY_TYPE_HOST;
    const CUDA: ucx::ucs_memory_type_t = ucx::ucs_memory_type_UCS_MEMORY_TYPE_CUDA;
    const MANAGED: ucx::ucs_memory_type_t = ucx::ucs_memory_type_UCS_MEMORY_TYPE_CUDA_MANAGED;
    match (kind, allocation) {
        // What CUDA has page-locked is the host's all the same.
        (Kind::Host | Kind::Pinned, _) => &[HOST],
        (Kind::Cuda { .. }, Allocation::Managed) => &[MANAGED],
        // As `UCX_CUDA_COPY_ASYNC_MEM_TYPE` says.
        (Kind::Cuda { .. }, Allocation::StreamOrdered) => &[MANAGED, CUDA],
        (Kind::Cuda { .. }, _) => &[CUDA],
        // A kind that this transport does not know is none that UCX would find.
        _ => &[],
    }
}

/// UCX's name of a type of memory.
pub(super) fn name(memory_type: ucx::ucs_memory_type_t) -> &'static str {
    match memory_type {
        ucx::ucs_memory_type_UCS_MEMORY_TYPE_HOST => "host",
        ucx::ucs_memory_type_UCS_MEMORY_TYPE_CUDA => "cuda",
        ucx::ucs_memory_type_UCS_MEMORY_TYPE_CUDA_MANAGED => "cuda-managed",
        ucx::ucs_memory_type_UCS_MEMORY_TYPE_ROCM => "rocm",
        ucx::ucs_memory_type_UCS_MEMORY_TYPE_ROCM_MANAGED => "rocm-managed",
        ucx::ucs_memory_type_UCS_MEMORY_TYPE_RDMA => "rdma",
        ucx::ucs_memory_type_UCS_MEMORY_TYPE_ZE_HOST => "ze-host",
        ucx::ucs_memory_type_UCS_MEMORY_TYPE_ZE_DEVICE => "ze-device",
        ucx::ucs_memory_type_UCS_MEMORY_TYPE_ZE_MANAGED => "ze-managed",
        _ => "unknown",
    }
}

// SAFETY: a mapping belongs to its context, which is shared between threads (`mt_workers_shared`), not to a worker.
unsafe impl Send for Mapped {}
// SAFETY: as above; the handle is behind a lock, and the memory is only reached by UCX.
unsafe impl Sync for Mapped {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_memory_is_what_ucx_calls_it() {
        let names = |kind, allocation| expected(kind, allocation).iter().copied().map(name).collect::<Vec<_>>();
        let device = Kind::Cuda { device: 3 };
        for kind in [Kind::Host, Kind::Pinned] {
            assert_eq!(names(kind, Allocation::Plain), ["host"]);
        }
        assert_eq!((names(device, Allocation::Plain), names(device, Allocation::Vmm)), (vec!["cuda"], vec!["cuda"]));
        assert_eq!(names(device, Allocation::StreamOrdered), ["cuda-managed", "cuda"]);
        assert_eq!(names(device, Allocation::Managed), ["cuda-managed"]);
    }
}
