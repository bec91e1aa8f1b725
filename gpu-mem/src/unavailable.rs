//! Why there is no memory of a kind.

use crate::DriverVersion;

/// Why there is no memory of a kind, and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// This build leaves CUDA out.
    #[error("built without CUDA: turn on the feature `cuda` of gpu-mem")]
    NotBuilt,
    /// There is no driver.
    #[error("libcuda.so.1 not found: install the NVIDIA driver, or give the container its devices (--gpus)")]
    NoDriver,
    /// What was found is the library to link against, not the driver.
    #[error("the libcuda.so found is the toolkit's stub: take its folder out of LD_LIBRARY_PATH")]
    StubLibrary,
    /// The driver is older than the oldest one supported.
    #[error("the driver speaks CUDA {found}, at least {needed} is needed: update the NVIDIA driver")]
    DriverTooOld {
        /// What it speaks.
        found: DriverVersion,
        /// What is needed.
        needed: DriverVersion,
    },
    /// The driver lacks a function that every driver has.
    #[error("libcuda.so.1 has no {name}: is it NVIDIA's?")]
    MissingSymbol {
        /// The function.
        name: &'static str,
    },
    /// The driver is there and does not start.
    #[error("{call} failed with CUDA error {}: does nvidia-smi work here?", crate::error_code(*code))]
    Init {
        /// The driver's function.
        call: &'static str,
        /// Its `CUresult`.
        code: u32,
    },
    /// The driver is there and sees no device.
    #[error("the driver sees no device: look at CUDA_VISIBLE_DEVICES, and at who may open /dev/nvidia*")]
    NoDevice,
    /// Fewer devices than that.
    #[error("no device {device} among the {devices} there are: look at CUDA_VISIBLE_DEVICES")]
    NoSuchDevice {
        /// The ordinal asked for.
        device: u32,
        /// How many there are.
        devices: u32,
    },
}
