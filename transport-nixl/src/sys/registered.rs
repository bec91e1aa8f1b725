//! Memory that NIXL knows.

use gpu_mem::Memory;
use nixl_sys::{MemType, RegDescList, RegistrationHandle};

use super::Agent;
use crate::{
    Failure, NixlError,
    metadata::{Place, Segment},
};

/// Registered memory. The registration ends before the memory may be given back.
pub(crate) struct Registered {
    handle: Option<RegistrationHandle>,
    /// What a peer has to learn to read it.
    pub(crate) metadata: Vec<u8>,
    /// As what it is registered.
    pub(crate) place: Place,
    pub(crate) memory: Memory,
}

impl Registered {
    pub(super) fn address(&self) -> usize {
        address(&self.memory)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let _entered = self.memory.context().and_then(|cuda| cuda.enter().ok());
        drop(self.handle.take());
    }
}

impl Agent {
    /// Registers memory as what it is. That NIXL takes it so is no proof that it treats it so.
    ///
    /// # Errors
    /// What NIXL says, or CUDA where the memory's device cannot be used.
    pub(crate) fn register(&self, memory: &Memory) -> Result<Result<Registered, Failure>, NixlError> {
        let _entered = memory.context().map(gpu_mem::Context::enter).transpose()?;
        let registered = Place::of(memory).ok_or(Failure::Invalid).and_then(|place| self.register_as(memory, place));
        if let Some(cuda) = memory.context().filter(|_| registered.is_ok()) {
            self.cuda.get_or_init(|| cuda.clone());
        }
        Ok(registered)
    }

    /// Whether the backend looks at memory before it takes it for a device's: tried once, with a piece of the host's, which one that
    /// looks refuses.
    pub(crate) fn tells_memory_apart(&self, device: u64) -> Result<bool, NixlError> {
        if let Some(known) = self.tells_apart.get() {
            return Ok(*known);
        }
        let host = Memory::from(gpu_mem::HostSlab::new(4096)?);
        let refused = self.register_as(&host, Place { segment: Segment::Vram, device }).is_err();
        Ok(*self.tells_apart.get_or_init(|| refused))
    }

    fn register_as(&self, memory: &Memory, place: Place) -> Result<Registered, Failure> {
        let described = Described { memory: memory.clone(), place };
        let handle = self.agent.register_memory(&described, self.options()?.as_ref())?;
        // Given up where the rest fails.
        let mut registered = Registered { handle: Some(handle), metadata: Vec::new(), place, memory: memory.clone() };
        let mut list = RegDescList::new(place.segment.into())?;
        list.add_desc(address(memory), memory.len(), place.device);
        registered.metadata = self.agent.get_local_partial_md(&list, self.options()?.as_ref())?;
        Ok(registered)
    }
}

fn address(memory: &Memory) -> usize {
    memory.descriptor().ptr().as_ptr() as usize
}

/// Memory as nixl-sys wants it described, while it is registered.
#[derive(Debug)]
struct Described {
    memory: Memory,
    place: Place,
}

impl nixl_sys::MemoryRegion for Described {
    // SAFETY: the pointer is valid for the size below as long as the owner lives, which this holds.
    unsafe fn as_ptr(&self) -> *const u8 {
        self.memory.descriptor().ptr().as_ptr()
    }

    fn size(&self) -> usize {
        self.memory.len()
    }
}

impl nixl_sys::NixlDescriptor for Described {
    fn mem_type(&self) -> MemType {
        self.place.segment.into()
    }

    fn device_id(&self) -> u64 {
        self.place.device
    }
}
