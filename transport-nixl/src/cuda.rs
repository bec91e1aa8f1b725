//! Memory of CUDA devices: registered with the proof that the backend treats it as such, or refused with the cause.
//!
//! NIXL says of its UCX backend that it takes such memory, whether or not its UCX knows CUDA. As it registers, it asks UCX what it found,
//! and refuses what UCX takes for the host's; older versions only warn. Which of the two it is, a piece of the host's memory tells that is
//! said to be a device's: a backend that takes that proves nothing by what it takes.

use std::{env, fmt, fs};

use gpu_mem::Memory;

use crate::{
    Backend, NixlError,
    metadata::{Place, Segment},
    sys::{Agent, Registered},
};

/// UCX's module for CUDA, as part of its file's name.
const MODULE: &str = "libuct_cuda";
/// What names the transports that UCX may use.
const TLS: &str = "UCX_TLS";

/// Why memory of a CUDA device cannot be registered with NIXL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoCuda {
    /// The UCX that NIXL has loaded has not loaded its module for CUDA.
    Module,
    /// It has, and may not use it.
    LeftOut {
        /// The value of `UCX_TLS`.
        tls: String,
    },
    /// The backend takes any memory for a device's.
    Unproven,
}

impl NoCuda {
    /// Whether a backend has what such memory takes, as far as this process shows.
    pub(crate) fn ready(backend: &Backend) -> bool {
        is_ucx(backend) && Self::seen(backend).is_none()
    }

    /// What is missing, as far as this process shows. Nothing is known of other backends than UCX.
    fn seen(backend: &Backend) -> Option<Self> {
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        is_ucx(backend).then(|| Self::judge(&maps, env::var(TLS).ok())).flatten()
    }

    fn judge(maps: &str, tls: Option<String>) -> Option<Self> {
        if !maps.contains(MODULE) {
            return Some(Self::Module);
        }
        tls.filter(|tls| leaves_out(tls)).map(|tls| Self::LeftOut { tls })
    }
}

fn is_ucx(backend: &Backend) -> bool {
    *backend == Backend::default()
}

/// Whether a list of UCX's transports, or of those that it may not use, keeps it from looking at memory of CUDA.
fn leaves_out(tls: &str) -> bool {
    let tls = tls.trim();
    let (forbids, names) = tls.strip_prefix('^').map_or((false, tls), |names| (true, names));
    let mut names = names.split(',').map(|name| name.trim().trim_start_matches('\\'));
    let named = names.any(|name| ["cuda", "cuda_copy"].contains(&name) || (name == "all" && !forbids));
    named == forbids
}

impl fmt::Display for NoCuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Module => write!(
                f,
                "the ucx that nixl has loaded is without cuda ({MODULE} is not loaded); install nvidia's driver (libcuda.so.1, \
                 libnvidia-ml.so.1) and a nixl with such a ucx, as the python wheels nixl-cu12 and nixl-cu13 are, let UCX_MODULES not \
                 leave it out, and set UCX_MODULE_DIR to the folder of the module if it is not found"
            ),
            Self::LeftOut { tls } => write!(f, "{TLS}={tls} leaves cuda out; add `cuda` to it, or unset it"),
            Self::Unproven => f.write_str(
                "it takes memory of the host for a device's as well, so nothing is proven; install a newer nixl (1.0 looks)",
            ),
        }
    }
}

/// Registers memory; that of a device only where the backend has looked at it.
pub(crate) fn register(agent: &Agent, backend: &Backend, memory: &Memory) -> Result<Registered, NixlError> {
    let (kind, bytes) = (memory.kind(), memory.len());
    warn_unless_plain(memory);
    let no_cuda = |why| NixlError::Cuda { kind, backend: backend.name().to_owned(), why };
    let is_device = matches!(Place::of(memory), Some(Place { segment: Segment::Vram, .. }));
    let registered = agent.register(memory)?.map_err(|why| match NoCuda::seen(backend).filter(|_| is_device) {
        Some(cause) => no_cuda(cause),
        None => NixlError::Register { kind, bytes, backend: backend.name().to_owned(), why },
    })?;
    if is_device && !agent.tells_memory_apart(registered.place.device)? {
        return Err(no_cuda(NoCuda::Unproven));
    }
    Ok(registered)
}

/// Memory that fabrics may not reach by themselves is registered all the same, and its owner is told.
fn warn_unless_plain(memory: &Memory) {
    let (kind, allocation, bytes) = (memory.kind(), memory.allocation(), memory.len());
    if let Some(advice) = allocation.advice() {
        tracing::warn!(%kind, %allocation, bytes, "fabrics may be slow on such memory; {advice}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NixlConfig, NixlTransport};
    use gpu_mem::HostSlab;

    const MAPS: &str = "7f00-7f01 r-xp 0 08:01 5 /venv/nixl_cu12.libs/ucx/libuct_cuda.so.0.0.0\n";

    #[test]
    fn what_keeps_cuda_from_ucx_is_named() {
        assert_eq!(NoCuda::judge("7f00-7f01 r-xp 0 08:01 5 /venv/libuct-1.so\n", None), Some(NoCuda::Module));
        assert_eq!(NoCuda::judge(MAPS, None), None);
        for tls in ["all", "tcp,cuda", " rc , cuda_copy", "^ib", "^tcp,cuda_ipc", "tcp,\\cuda_copy"] {
            assert_eq!(NoCuda::judge(MAPS, Some(tls.to_owned())), None, "{tls}");
        }
        for tls in ["tcp", "rc,cuda_ipc", "^cuda", "^tcp, cuda_copy", ""] {
            let why = NoCuda::judge(MAPS, Some(tls.to_owned()));
            assert_eq!(why, Some(NoCuda::LeftOut { tls: tls.to_owned() }));
            assert!(why.unwrap().to_string().contains(&format!("UCX_TLS={tls} leaves cuda out")));
        }
        // Of another backend only its own words tell.
        assert_eq!(NoCuda::seen(&"nixl:LIBFABRIC".parse().unwrap()), None);
        assert!(!NoCuda::ready(&"nixl:LIBFABRIC".parse().unwrap()));
    }

    /// Where there is a NIXL; the crate's other tests say so where there is none.
    #[test]
    fn this_nixl_refuses_memory_of_the_host_that_is_said_to_be_a_devices() {
        let Ok(mut transport) = NixlTransport::new(NixlConfig::default()) else { return };
        let memory = Memory::from(HostSlab::new(1 << 16).unwrap());
        assert!(transport.with_agent(|agent| agent.tells_memory_apart(0)).unwrap());
        assert_eq!(transport.capabilities.cuda, fs::read_to_string("/proc/self/maps").unwrap().contains(MODULE));
        let backend = Backend::default();
        assert!(transport.with_agent(|agent| register(agent, &backend, &memory)).is_ok(), "the trial has left nothing behind");
    }
}
