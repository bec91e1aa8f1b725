//! NIXL behind types that keep what nixl-sys leaves to its caller. The only `unsafe` of this crate.
//!
//! - The library is found and loaded before the first call, which would else abort the process.
//! - A [`Registered`] and a [`Transfer`] own the memory that NIXL works on, and let it go after NIXL did.
//! - No name, list or map of NIXL's outlives the call that made it.

mod registered;

use std::{
    cell::{Cell, OnceCell},
    error::Error as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use gpu_mem::Entered;
use nixl_sys::{AgentConfig, MemType, NotificationMap, OptArgs, RegDescList, XferDescList, XferOp, XferRequest, XferStatus};

pub(crate) use registered::Registered;

use crate::{
    Failure, NixlConfig, NixlError,
    metadata::{Place, Segment},
};

/// Where NIXL looks for its plugins first; then it does beside its library.
const PLUGINS: &str = "NIXL_PLUGIN_DIR";
/// The library that this process has loaded.
static LOADED: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Loads NIXL into this process, once: the first library stays.
pub(crate) fn load(library: &Path) -> Result<(), NixlError> {
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if loaded.is_none() {
        // SAFETY: running NIXL's constructors is what loading it is for; it is never unloaded, so nothing of it dangles.
        let opened = unsafe { libloading::Library::new(library) };
        let opened = opened.map_err(|error| NixlError::Load { library: library.to_owned(), why: words(&error) })?;
        std::mem::forget(opened);
        *loaded = Some(library.to_owned());
    }
    // nixl-sys asks for it by its name; where that gives another one or none, every later call would end the process.
    if nixl_sys::is_stub() {
        return Err(NixlError::Load { library: library.to_owned(), why: "nixl-sys does not find it by its name".to_owned() });
    }
    Ok(())
}

impl From<nixl_sys::NixlError> for Failure {
    fn from(error: nixl_sys::NixlError) -> Self {
        use nixl_sys::NixlError as E;
        match error {
            E::InvalidParam | E::StringConversionError(_) | E::IndexOutOfBounds => Self::Invalid,
            // Not there in the oldest nixl-sys that this builds with, so told by its words.
            other if other.to_string() == "Not found" => Self::Unknown,
            _ => Self::Backend,
        }
    }
}

/// An agent with the one backend that is used on it.
pub(crate) struct Agent {
    /// What the engine's own agent may have others besides, so that each call names it; `None` on an agent that has no other.
    named: Option<nixl_sys::Backend>,
    agent: nixl_sys::Agent,
    empty: Cell<Option<Empty>>,
    /// The CUDA context of the first memory that was registered and has one.
    cuda: OnceCell<gpu_mem::Context>,
    /// Whether the backend refuses memory of the host that is said to be a device's, once that was tried.
    tells_apart: OnceCell<bool>,
}

/// A map that was left empty by the last poll and will do for the next. One with notifications in it will not: NIXL adds to it, and
/// nixl-sys cannot empty it.
struct Empty(NotificationMap);

// SAFETY: it is memory of its own, which no thread and no agent knows.
unsafe impl Send for Empty {}

impl Agent {
    /// A new agent.
    pub(crate) fn new(name: &str, config: &NixlConfig) -> Result<Self, NixlError> {
        let delay = config.progress.map_or(0, |delay| delay.as_nanos() / 1000);
        let settings =
            AgentConfig { enable_prog_thread: config.progress.is_some(), pthr_delay_us: delay, ..AgentConfig::default() };
        let failed = |call| move |error| NixlError::Call { call, failure: Failure::from(error) };
        let agent = nixl_sys::Agent::new_configured(name, &settings).map_err(failed("creating an agent"))?;
        let backend = config.backend.name();
        let unavailable = |_| NixlError::Backend { backend: backend.to_owned(), why: why_not(backend, &agent) };
        let (_, mut params) = agent.get_plugin_params(backend).map_err(unavailable)?;
        for (key, value) in &config.backend_params {
            let wrong = |_| NixlError::Config { field: "backend_params", got: format!("{key:?}"), expected: "no zero byte" };
            params.set(key, value).map_err(wrong)?;
        }
        agent.create_backend(backend, &params).map_err(unavailable)?;
        Ok(Self::with(None, agent))
    }

    /// The engine's own agent, which has this backend already.
    #[cfg(feature = "borrowed-agent")]
    pub(crate) fn borrow(agent: &nixl_sys::Agent, backend: &str) -> Result<Self, NixlError> {
        let named = agent.get_backend(backend);
        let named = named.ok_or_else(|| NixlError::NoSuchBackend { backend: backend.to_owned() })?;
        Ok(Self::with(Some(named), agent.clone()))
    }

    fn with(named: Option<nixl_sys::Backend>, agent: nixl_sys::Agent) -> Self {
        Self { named, agent, empty: Cell::new(None), cuda: OnceCell::new(), tells_apart: OnceCell::new() }
    }

    /// Makes CUDA's context this thread's until what is returned is dropped, once memory of a device was registered; else that is a look
    /// at one word. The first one is kept: the backend looks up the device of each buffer, and needs any one at all for the rest.
    fn enter(&self) -> Option<Entered<'_>> {
        // One that cannot be entered is of a device that is lost. What needs no device goes on.
        self.cuda.get()?.enter().ok()
    }

    /// Its name.
    #[cfg(feature = "borrowed-agent")]
    pub(crate) fn name(&self) -> String {
        self.agent.name()
    }

    fn options(&self) -> Result<Option<OptArgs>, Failure> {
        let Some(backend) = &self.named else { return Ok(None) };
        let mut options = OptArgs::new()?;
        options.add_backend(backend)?;
        Ok(Some(options))
    }

    /// How to reach it, and nothing of its memory.
    pub(crate) fn address(&self) -> Result<Vec<u8>, Failure> {
        let _entered = self.enter();
        let none = RegDescList::new(MemType::Dram)?;
        Ok(self.agent.get_local_partial_md(&none, self.options()?.as_ref())?)
    }

    /// How to reach it, and all of its memory: what vLLM's side channel carries.
    pub(crate) fn everything(&self) -> Result<Vec<u8>, Failure> {
        let _entered = self.enter();
        Ok(self.agent.get_local_md()?)
    }

    /// Learns of a peer, or of more of its memory. `metadata` must name its agent in UTF-8. Slow.
    pub(crate) fn learn(&self, metadata: &[u8]) -> Result<(), Failure> {
        let _entered = self.enter();
        self.agent.load_remote_md(metadata)?;
        Ok(())
    }

    /// Whether a peer is known already.
    pub(crate) fn knows(&self, agent: &str) -> bool {
        self.agent.check_remote_metadata(agent, None)
    }

    /// Forgets a peer. No transfer with it may be under way.
    pub(crate) fn forget(&self, agent: &str) -> Result<(), Failure> {
        let _entered = self.enter();
        Ok(self.agent.invalidate_remote_md(agent)?)
    }

    /// Hands a notification to NIXL.
    pub(crate) fn notify(&self, agent: &str, bytes: &[u8]) -> Result<(), Failure> {
        let _entered = self.enter();
        Ok(self.agent.send_notification(agent, bytes, self.named.as_ref())?)
    }

    /// Lets NIXL move, and gives every notification that came to `take`; nothing for those of a sender that cannot be asked for.
    pub(crate) fn notifications(&self, mut take: impl FnMut(Option<Vec<u8>>)) -> Result<(), Failure> {
        let _entered = self.enter();
        let mut map = self.empty.take().map_or_else(NotificationMap::new, |Empty(map)| Ok(map))?;
        self.agent.get_notifications(&mut map, self.options()?.as_ref())?;
        if map.is_empty()? {
            self.empty.set(Some(Empty(map)));
            return Ok(());
        }
        for sender in map.agents() {
            // A name that is no UTF-8, or that its sender put a zero into, must not fail the others.
            let Ok((sender, count)) = sender.and_then(|sender| Ok((sender, map.get_notifications_size(sender)?))) else {
                take(None);
                continue;
            };
            for at in 0..count {
                take(map.get_notification_bytes(sender, at).ok());
            }
        }
        Ok(())
    }

    /// Starts to read `parts`, each an address and a length in the peer's memory, one after the other into `into` from byte `at` on;
    /// `None` if that is over already.
    pub(crate) fn read(
        &self,
        peer: &str,
        parts: impl Iterator<Item = (u64, u64)>,
        from: Place,
        into: &Arc<Registered>,
        at: usize,
    ) -> Result<Option<Transfer>, Failure> {
        let _entered = self.enter();
        let to = into.place;
        let (mut local, mut remote) = (XferDescList::new(to.segment.into())?, XferDescList::new(from.segment.into())?);
        let mut place = into.address().saturating_add(at);
        for (address, length) in parts {
            let (address, length) = (usize::try_from(address), usize::try_from(length));
            let (Ok(address), Ok(length)) = (address, length) else { return Err(Failure::Invalid) };
            local.add_desc(place, length, to.device);
            remote.add_desc(address, length, from.device);
            place = place.saturating_add(length);
        }
        let options = self.options()?;
        // A request for a peer that died is made all the same: what is refused here is a range outside of what is known.
        let refused = |_| if self.knows(peer) { Failure::Invalid } else { Failure::Unknown };
        let request = self.agent.create_xfer_req(XferOp::Read, &local, &remote, peer, options.as_ref()).map_err(refused)?;
        // An error says that it was not begun, or that the connection is closed with all that was on it.
        let is_under_way = match self.agent.post_xfer_req(&request, options.as_ref()).map_err(Failure::from) {
            Err(Failure::Unknown) => {
                std::mem::forget(request); // some versions of NIXL have freed it
                return Err(Failure::Unknown);
            }
            posted => posted?,
        };
        Ok(is_under_way.then(|| Transfer { request: Some(request), memory: Some(Arc::clone(into)) }))
    }

    /// Lets a transfer move; whether it is over.
    pub(crate) fn is_over(&self, transfer: &Transfer) -> Result<bool, Failure> {
        let Some(request) = &transfer.request else { return Ok(true) };
        let _entered = self.enter();
        Ok(self.agent.get_xfer_status(request)? == XferStatus::Success)
    }
}

/// Why a backend cannot be had: NIXL says it on standard error at best, so its plugin is loaded once more to hear what the loader says.
fn why_not(backend: &str, agent: &nixl_sys::Agent) -> String {
    let beside = || Some(LOADED.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.parent()?.join("plugins"));
    let folder = std::env::var_os(PLUGINS).map(PathBuf::from).or_else(beside).unwrap_or_default();
    let plugin = folder.join(format!("libplugin_{backend}.so"));
    if !plugin.is_file() {
        let list = agent.get_available_plugins().ok();
        let count = list.as_ref().and_then(|list| list.len().ok()).unwrap_or(0);
        let names = (0..count).filter_map(|at| list.as_ref()?.get(at).ok());
        let names: Vec<&str> = names.filter(|name| carries_notifications(name)).collect();
        return format!("{} is not there; there are {}", plugin.display(), names.join(", "));
    }
    // SAFETY: NIXL has just tried the same, and would run the same constructors if it could.
    match unsafe { libloading::Library::new(&plugin) } {
        Err(error) => format!("its plugin does not load: {}", words(&error)),
        Ok(loaded) => {
            std::mem::forget(loaded); // not unloaded, as NIXL does not either
            "its plugin loads and does not start: it finds no device that it can use, or does not take a parameter".to_owned()
        }
    }
}

fn carries_notifications(name: &str) -> bool {
    format!("nixl:{name}").parse().is_ok_and(|backend: crate::Backend| backend.for_heartbeats().is_ok())
}

impl From<Segment> for MemType {
    fn from(segment: Segment) -> Self {
        match segment {
            Segment::Dram => Self::Dram,
            Segment::Vram => Self::Vram,
        }
    }
}

/// The loader's own words, such as which library is missing.
fn words(error: &libloading::Error) -> String {
    error.source().unwrap_or(error).to_string()
}

/// A read that was begun. One that is dropped before it is over keeps its memory and NIXL its request for good: NIXL goes on writing
/// into the memory of a request that was released (seen over tcp, when a peer that stood still went on).
pub(crate) struct Transfer {
    request: Option<XferRequest>,
    memory: Option<Arc<Registered>>,
}

impl Transfer {
    /// It is over, well or not, as [`Agent::is_over`] told.
    pub(crate) fn end(mut self) {
        // The memory last: the context that is entered may be its own.
        let (memory, request) = (self.memory.take(), self.request.take());
        let _entered = memory.as_ref().and_then(|memory| memory.enter());
        drop(request);
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        std::mem::forget((self.request.take(), self.memory.take()));
    }
}
