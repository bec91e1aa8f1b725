//! Memory that NIXL knows.

use gpu_mem::{Context, Entered, Memory};
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
    /// The agent's, for memory that has none of its own.
    cuda: Option<Context>,
}

impl Registered {
    /// Makes a CUDA context this thread's, where there is one.
    pub(super) fn enter(&self) -> Option<Entered<'_>> {
        self.memory.context().or(self.cuda.as_ref())?.enter().ok()
    }

    pub(super) fn address(&self) -> usize {
        address(&self.memory)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let handle = self.handle.take();
        let _entered = self.enter();
        drop(handle);
    }
}

impl Agent {
    /// Registers memory as what it is. That NIXL takes it so is no proof that it treats it so.
    ///
    /// # Errors
    /// What NIXL says, or CUDA where the memory's device cannot be used.
    pub(crate) fn register(&self, memory: &Memory) -> Result<Result<Registered, Failure>, NixlError> {
        let _entered = memory.context().or(self.cuda.get()).map(Context::enter).transpose()?;
        let registered = Place::of(memory).ok_or(Failure::Invalid).and_then(|place| self.register_as(memory, place));
        if let Some(cuda) = memory.context().filter(|_| registered.is_ok()) {
            self.cuda.get_or_init(|| cuda.clone());
        }
        Ok(registered)
    }

    /// Whether the backend looks at memory before it takes it for a device's: tried with a piece of the host's, which one that looks
    /// refuses. It must take the same piece for the host's before and after, or that it refused it says nothing. Kept once it is known.
    pub(crate) fn tells_memory_apart(&self, device: u64) -> Result<bool, NixlError> {
        if let Some(known) = self.tells_apart.get() {
            return Ok(*known);
        }
        let host = Memory::from(gpu_mem::HostSlab::new(4096)?);
        let takes = |segment, device| self.register_as(&host, Place { segment, device }).is_ok();
        let (before, as_device, after) = (takes(Segment::Dram, 0), takes(Segment::Vram, device), takes(Segment::Dram, 0));
        match (before && after, as_device) {
            (_, true) => Ok(*self.tells_apart.get_or_init(|| false)),
            (true, false) => Ok(*self.tells_apart.get_or_init(|| true)),
            (false, false) => Ok(false), // it takes nothing at the moment
        }
    }

    fn register_as(&self, memory: &Memory, place: Place) -> Result<Registered, Failure> {
        let described = Described { memory: memory.clone(), place };
        let handle = self.agent.register_memory(&described, self.options()?.as_ref())?;
        // Given up where the rest fails.
        let mut registered = Registered {
            handle: Some(handle),
            metadata: Vec::new(),
            place,
            memory: memory.clone(),
            cuda: self.cuda.get().cloned(),
        };
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
