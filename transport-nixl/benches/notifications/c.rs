//! The few of NIXL's C functions that a loop of notifications needs, and its agents. nixl-sys, which this is linked with, defines them;
//! `wrapper.h` in it says what they take. The only `unsafe` of this benchmark.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    ptr::{null, null_mut},
    slice,
};

type Handle = *mut c_void;
type Status = c_int;

/// As `nixl_capi_agent_config_t`.
#[repr(C)]
struct Config {
    progress_thread: bool,
    listen_thread: bool,
    listen_port: c_int,
    thread_sync: c_uint,
    workers: c_uint,
    progress_delay_us: u64,
    listen_delay_us: u64,
    telemetry: bool,
}

/// As nixl-sys would have it, but without a progress thread.
const CONFIG: Config = Config {
    progress_thread: false,
    listen_thread: false,
    listen_port: 8888,
    thread_sync: 0,
    workers: 1,
    progress_delay_us: 0,
    listen_delay_us: 100_000,
    telemetry: false,
};

unsafe extern "C" {
    fn nixl_capi_create_configured_agent(name: *const c_char, config: *const Config, agent: *mut Handle) -> Status;
    fn nixl_capi_destroy_agent(agent: Handle) -> Status;
    fn nixl_capi_get_plugin_params(agent: Handle, plugin: *const c_char, kinds: *mut Handle, params: *mut Handle) -> Status;
    fn nixl_capi_destroy_mem_list(kinds: Handle) -> Status;
    fn nixl_capi_destroy_params(params: Handle) -> Status;
    fn nixl_capi_create_backend(agent: Handle, plugin: *const c_char, params: Handle, backend: *mut Handle) -> Status;
    fn nixl_capi_destroy_backend(backend: Handle) -> Status;
    fn nixl_capi_get_local_md(agent: Handle, data: *mut *mut c_void, len: *mut usize) -> Status;
    fn nixl_capi_load_remote_md(agent: Handle, data: *const c_void, len: usize, name: *mut *mut c_char) -> Status;
    fn nixl_capi_gen_notif(agent: Handle, to: *const c_char, data: *const c_void, len: usize, options: Handle) -> Status;
    fn nixl_capi_create_notif_map(map: *mut Handle) -> Status;
    fn nixl_capi_destroy_notif_map(map: Handle) -> Status;
    fn nixl_capi_get_notifs(agent: Handle, map: Handle, options: Handle) -> Status;
    fn nixl_capi_notif_map_clear(map: Handle) -> Status;
    fn nixl_capi_notif_map_size(map: Handle, size: *mut usize) -> Status;
    fn nixl_capi_notif_map_get_agent_at(map: Handle, at: usize, name: *mut *const c_char) -> Status;
    fn nixl_capi_notif_map_get_notifs_size(map: Handle, name: *const c_char, size: *mut usize) -> Status;
    fn nixl_capi_notif_map_get_notif(
        map: Handle,
        name: *const c_char,
        at: usize,
        data: *mut *const c_void,
        len: *mut usize,
    ) -> Status;
    fn free(data: *mut c_void);
}

/// An agent with the backend `UCX`.
pub(crate) struct Agent {
    agent: Handle,
    backend: Handle,
}

impl Agent {
    /// NIXL must be loaded.
    pub(crate) fn new(name: &CStr) -> Result<Self, String> {
        const UCX: &CStr = c"UCX";
        let mut new = Self { agent: null_mut(), backend: null_mut() };
        let (mut kinds, mut params) = (null_mut(), null_mut());
        // SAFETY: the name, the configuration and the place for the agent live through the call.
        ok("create_configured_agent", unsafe { nixl_capi_create_configured_agent(name.as_ptr(), &CONFIG, &mut new.agent) })?;
        // SAFETY: the agent was made above; the name and both places live through the call.
        ok("get_plugin_params", unsafe { nixl_capi_get_plugin_params(new.agent, UCX.as_ptr(), &mut kinds, &mut params) })?;
        // SAFETY: the list was made above and is used no more.
        unsafe { nixl_capi_destroy_mem_list(kinds) };
        // SAFETY: the agent and the parameters were made above; the name and the place live through the call.
        let created = unsafe { nixl_capi_create_backend(new.agent, UCX.as_ptr(), params, &mut new.backend) };
        // SAFETY: the parameters were made above and are used no more.
        unsafe { nixl_capi_destroy_params(params) };
        ok("create_backend", created).map(|()| new)
    }

    /// What a peer has to load.
    pub(crate) fn metadata(&self) -> Result<Vec<u8>, String> {
        let (mut data, mut len) = (null_mut(), 0);
        // SAFETY: the agent lives as long as this; both places live through the call.
        ok("get_local_md", unsafe { nixl_capi_get_local_md(self.agent, &mut data, &mut len) })?;
        // SAFETY: it succeeded, so there are as many bytes, which nobody else knows.
        let bytes = unsafe { slice::from_raw_parts(data.cast::<u8>(), len) }.to_vec();
        // SAFETY: NIXL has allocated it with `malloc` and leaves it to its caller.
        unsafe { free(data) };
        Ok(bytes)
    }

    /// Learns of a peer.
    pub(crate) fn load(&mut self, metadata: &[u8]) -> Result<(), String> {
        let mut name = null_mut();
        // SAFETY: the agent lives as long as this; the metadata and the place live through the call.
        let status = unsafe { nixl_capi_load_remote_md(self.agent, metadata.as_ptr().cast(), metadata.len(), &mut name) };
        // SAFETY: null, or a string that NIXL has allocated with `malloc` and leaves to its caller.
        unsafe { free(name.cast()) };
        ok("load_remote_md", status)
    }

    /// Sends a notification.
    pub(crate) fn send(&mut self, to: &CStr, bytes: &[u8]) -> Result<(), String> {
        // SAFETY: the agent lives as long as this; name and bytes live through the call, which copies them.
        ok("gen_notif", unsafe { nixl_capi_gen_notif(self.agent, to.as_ptr(), bytes.as_ptr().cast(), bytes.len(), null_mut()) })
    }

    /// Adds what came to a map.
    pub(crate) fn receive(&mut self, map: &mut Map) -> Result<(), String> {
        // SAFETY: agent and map live as long as their owners, and are borrowed by nobody else.
        ok("get_notifs", unsafe { nixl_capi_get_notifs(self.agent, map.0, null_mut()) })
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // SAFETY: null, which is refused, or made with this; used no more.
        unsafe { nixl_capi_destroy_backend(self.backend) };
        // SAFETY: as above, and after the backend, which is the agent's.
        unsafe { nixl_capi_destroy_agent(self.agent) };
    }
}

/// What came, by its senders.
pub(crate) struct Map(Handle);

impl Map {
    pub(crate) fn new() -> Result<Self, String> {
        let mut map = null_mut();
        // SAFETY: the place lives through the call.
        ok("create_notif_map", unsafe { nixl_capi_create_notif_map(&mut map) })?;
        Ok(Self(map))
    }

    /// Empties it, which nixl-sys cannot.
    pub(crate) fn clear(&mut self) -> Result<(), String> {
        // SAFETY: the map lives as long as this, and nothing of it is borrowed.
        ok("notif_map_clear", unsafe { nixl_capi_notif_map_clear(self.0) })
    }

    /// Gives each notification to `take`; how many there were.
    pub(crate) fn each(&self, mut take: impl FnMut(&[u8])) -> Result<usize, String> {
        let (mut senders, mut count) = (0, 0);
        // SAFETY: the map lives as long as this; the place lives through the call.
        ok("notif_map_size", unsafe { nixl_capi_notif_map_size(self.0, &mut senders) })?;
        for sender in 0..senders {
            let (mut name, mut messages) = (null(), 0);
            // SAFETY: as above.
            ok("get_agent_at", unsafe { nixl_capi_notif_map_get_agent_at(self.0, sender, &mut name) })?;
            // SAFETY: as above; the name is the map's own, which does not change while it is borrowed.
            ok("get_notifs_size", unsafe { nixl_capi_notif_map_get_notifs_size(self.0, name, &mut messages) })?;
            for message in 0..messages {
                let (mut data, mut len) = (null(), 0);
                // SAFETY: as above.
                ok("get_notif", unsafe { nixl_capi_notif_map_get_notif(self.0, name, message, &mut data, &mut len) })?;
                // SAFETY: it succeeded, so there are as many bytes, the map's own. A string's data is never null.
                take(unsafe { slice::from_raw_parts(data.cast::<u8>(), len) });
            }
            count += messages;
        }
        Ok(count)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: made with this, used no more.
        unsafe { nixl_capi_destroy_notif_map(self.0) };
    }
}

fn ok(call: &str, status: Status) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("nixl_capi_{call} failed with {status}")) }
}
