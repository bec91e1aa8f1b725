//! An agent by NIXL's C interface, which takes any name; nixl-sys takes text alone. Its handles are NIXL's until the process ends.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    ptr::null_mut,
};

use lease_proto::transport::Control as _;
use transport_nixl::NixlTransport;

use super::nixls_part;

type Handle = *mut c_void;

// nixl-sys passes these on to the library.
unsafe extern "C" {
    fn nixl_capi_create_agent(name: *const c_char, agent: *mut Handle) -> c_int;
    fn nixl_capi_get_plugin_params(agent: Handle, plugin: *const c_char, mems: *mut Handle, params: *mut Handle) -> c_int;
    fn nixl_capi_create_backend(agent: Handle, plugin: *const c_char, params: Handle, backend: *mut Handle) -> c_int;
    fn nixl_capi_load_remote_md(agent: Handle, data: *const c_void, len: usize, name: *mut *mut c_char) -> c_int;
    fn nixl_capi_gen_notif(agent: Handle, to: *const c_char, data: *const c_void, len: usize, options: Handle) -> c_int;
    fn nixl_capi_create_notif_map(map: *mut Handle) -> c_int;
    fn nixl_capi_get_notifs(agent: Handle, map: Handle, options: Handle) -> c_int;
}

const UCX: &CStr = c"UCX";

pub(crate) struct Raw {
    agent: Handle,
    map: Handle,
}

impl Raw {
    /// An agent with the backend `UCX`. There must have been a transport before it, which finds and loads NIXL.
    pub(crate) fn new(name: &[u8]) -> Self {
        let name = CString::new(name).unwrap();
        let (mut agent, mut mems, mut params, mut backend, mut map) =
            (null_mut(), null_mut(), null_mut(), null_mut(), null_mut());
        // SAFETY: the name ends with a zero, and the handle is written to.
        assert_eq!(unsafe { nixl_capi_create_agent(name.as_ptr(), &mut agent) }, 0);
        // SAFETY: as above, on the agent that was made.
        assert_eq!(unsafe { nixl_capi_get_plugin_params(agent, UCX.as_ptr(), &mut mems, &mut params) }, 0);
        // SAFETY: as above, with the parameters that were made.
        assert_eq!(unsafe { nixl_capi_create_backend(agent, UCX.as_ptr(), params, &mut backend) }, 0);
        // SAFETY: the handle is written to.
        assert_eq!(unsafe { nixl_capi_create_notif_map(&mut map) }, 0);
        Self { agent, map }
    }

    /// Sends this to a transport that has never heard of the agent.
    pub(crate) fn send(&mut self, to: &NixlTransport, bytes: &[u8]) {
        let (name, metadata) = (CString::new(to.agent_name()).unwrap(), nixls_part(to.local_metadata()));
        let mut loaded = null_mut();
        // SAFETY: the bytes are there for as many as it is told, and the name is written to.
        assert_eq!(unsafe { nixl_capi_load_remote_md(self.agent, metadata.as_ptr().cast(), metadata.len(), &mut loaded) }, 0);
        let (data, length) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: the name ends with a zero, and the bytes are there for as many as it is told.
        assert_eq!(unsafe { nixl_capi_gen_notif(self.agent, name.as_ptr(), data, length, null_mut()) }, 0);
    }

    /// Lets it move.
    pub(crate) fn step(&mut self) {
        // SAFETY: both handles are NIXL's, which adds to the map.
        assert_eq!(unsafe { nixl_capi_get_notifs(self.agent, self.map, null_mut()) }, 0);
    }
}
