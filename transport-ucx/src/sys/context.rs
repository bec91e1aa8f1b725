//! UCX itself: its settings, and what it finds on this machine.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    ptr,
    sync::OnceLock,
};

use gpu_mem::Entered;
use ucx_sys::sys as ucx;

use super::{Status, Zeroed as _, memory};
use crate::{
    UcxError,
    config::{VERBS, set_by_operator, variables},
};

/// An initialised UCX. Cleaned up when the last worker and the last mapping are gone, because each holds it.
pub(crate) struct Context {
    raw: ucx::ucp_context_h,
    /// Not where it is the engine's.
    owned: bool,
    /// The CUDA context of the first memory that was mapped here and has one.
    cuda: OnceLock<gpu_mem::Context>,
}

/// What is promised below of UCX holds of CUDA's context by itself.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<gpu_mem::Context>();
};

impl Context {
    /// Initialises UCX with `settings` over those of the environment; `tls` is for the error's text.
    pub(crate) fn new(settings: &[(&str, String)], tls: &str) -> Result<Self, UcxError> {
        let mut config = Config::read()?;
        for (name, value) in settings {
            config.set(name, value)?;
        }
        for (name, value) in VERBS.iter().filter(|(name, _)| !set_by_operator(name)) {
            if let Err(error) = config.set(name, value) {
                tracing::debug!(%error, "not a setting of this ucx");
            }
        }
        let mut params = ucx::ucp_params_t::zeroed();
        params.field_mask =
            u64::from(ucx::ucp_params_field_UCP_PARAM_FIELD_FEATURES | ucx::ucp_params_field_UCP_PARAM_FIELD_MT_WORKERS_SHARED);
        params.features =
            u64::from(ucx::ucp_feature_UCP_FEATURE_AM | ucx::ucp_feature_UCP_FEATURE_RMA | ucx::ucp_feature_UCP_FEATURE_WAKEUP);
        // Memory is registered and given back by any thread.
        params.mt_workers_shared = 1;
        let mut context = ptr::null_mut();
        // SAFETY: the parameters and the configuration are valid, and UCX copies both.
        let status = unsafe {
            ucx::ucp_init_version(ucx::UCP_API_MAJOR, ucx::UCP_API_MINOR, &raw const params, config.0, &raw mut context)
        };
        match Status::check(status) {
            Ok(()) => Ok(Self { raw: context, owned: true, cuda: OnceLock::new() }),
            Err(status) => Err(UcxError::Unavailable { tls: tls.to_owned(), variables: variables(), status: status.text() }),
        }
    }

    /// The engine's context.
    ///
    /// # Safety
    /// It must outlive what is returned, and be initialised with `mt_workers_shared`.
    #[cfg(feature = "borrowed-worker")]
    pub(crate) unsafe fn borrow(raw: ucx::ucp_context_h) -> Self {
        Self { raw, owned: false, cuda: OnceLock::new() }
    }

    pub(super) fn raw(&self) -> ucx::ucp_context_h {
        self.raw
    }

    /// Memory with this CUDA context is mapped. The first one is kept: UCX looks up the device of each buffer and makes its context
    /// current for as long as it works on it, and needs any one at all for the rest.
    pub(super) fn remember(&self, cuda: &gpu_mem::Context) {
        self.cuda.get_or_init(|| cuda.clone());
    }

    /// Makes the CUDA context that was remembered this thread's until what is returned is dropped. Without one, as where all memory is
    /// the host's, that is a look at one word; with one, two calls of the driver.
    #[inline]
    pub(super) fn enter(&self) -> Option<Entered<'_>> {
        // One that cannot be entered is of a device that is lost. What needs no device goes on.
        self.cuda.get()?.enter().ok()
    }

    /// The types of memory that UCX can tell apart here, by its names.
    pub(crate) fn memory_types(&self) -> Vec<&'static str> {
        let mut attr = ucx::ucp_context_attr_t::zeroed();
        attr.field_mask = u64::from(ucx::ucp_context_attr_field_UCP_ATTR_FIELD_MEMORY_TYPES);
        // SAFETY: the context lives.
        let status = unsafe { ucx::ucp_context_query(self.raw, &raw mut attr) };
        let found = if Status::check(status).is_ok() { attr.memory_types } else { 0 };
        (0..u64::BITS).filter(|bit| found >> bit & 1 == 1).map(memory::name).collect()
    }

    /// What UCX found, each as `transport/device`. Empty if UCX will not tell.
    pub(crate) fn resources(&self) -> Vec<String> {
        // UCX tells only in print: `#  resource 0 :  md 0  dev 1  flags -- tcp/eth0`.
        let printed = printed(|stream| {
            // SAFETY: the context lives, and the stream is open.
            unsafe { ucx::ucp_context_print_info(self.raw, stream) };
        });
        let resources = printed.lines().filter(|line| line.contains(" resource "));
        resources.filter_map(|line| line.split_whitespace().last()).map(str::to_owned).collect()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.owned {
            // What its cache of registrations still holds ends here, and CUDA unlocks nothing without a context.
            let _entered = self.enter();
            // SAFETY: ours, and nothing that needs it lives any more: workers and mappings hold it.
            unsafe { ucx::ucp_cleanup(self.raw) };
        }
    }
}

// SAFETY: UCX locks a context that is shared between threads; a borrowed one is promised to be such.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The settings for one initialisation.
struct Config(*mut ucx::ucp_config_t);

impl Config {
    /// Those of the environment.
    fn read() -> Result<Self, UcxError> {
        let mut config = ptr::null_mut();
        // SAFETY: no prefix and no file are allowed.
        let status = unsafe { ucx::ucp_config_read(ptr::null(), ptr::null(), &raw mut config) };
        match Status::check(status) {
            Ok(()) => Ok(Self(config)),
            Err(status) => {
                let (call, variables) = ("ucp_config_read", variables());
                Err(UcxError::Environment { call, variables, status: status.text() })
            }
        }
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), UcxError> {
        let error = |status| UcxError::Setting { name: format!("UCX_{name}"), value: value.to_owned(), status };
        let nul = |_| error("it contains a zero byte");
        let (c_name, c_value) = (CString::new(name).map_err(nul)?, CString::new(value).map_err(nul)?);
        // SAFETY: the configuration is ours, the strings end in a zero, and UCX copies them.
        let status = unsafe { ucx::ucp_config_modify(self.0, c_name.as_ptr(), c_value.as_ptr()) };
        Status::check(status).map_err(|status| error(status.text()))
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        // SAFETY: ours, and released once.
        unsafe { ucx::ucp_config_release(self.0) };
    }
}

/// What `print` writes to a C stream; nothing if no stream can be had.
fn printed(print: impl FnOnce(*mut ucx::FILE)) -> String {
    let (mut text, mut length) = (ptr::null_mut::<c_char>(), 0);
    // SAFETY: both places outlive the stream.
    let stream = unsafe { open_memstream(&raw mut text, &raw mut length) };
    if stream.is_null() {
        return String::new();
    }
    print(stream);
    // SAFETY: open, and closed once. Closing settles `text`.
    let closed = unsafe { fclose(stream) };
    if text.is_null() {
        return String::new();
    }
    let printed = if closed == 0 {
        // SAFETY: a closed memory stream leaves a string with its zero.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    } else {
        String::new()
    };
    // SAFETY: the stream's buffer is the caller's to free.
    unsafe { free(text.cast()) };
    printed
}

unsafe extern "C" {
    fn open_memstream(text: *mut *mut c_char, length: *mut usize) -> *mut ucx::FILE;
    fn fclose(stream: *mut ucx::FILE) -> c_int;
    fn free(memory: *mut c_void);
}

#[cfg(all(test, feature = "rdma"))]
mod tests {
    use super::*;

    #[test]
    fn a_ucx_with_verbs_takes_our_settings_for_verbs() {
        let mut config = Config::read().unwrap();
        for (name, value) in VERBS {
            assert_eq!(config.set(name, value), Ok(()), "{name}");
        }
    }
}
