//! CUDA memory, on a driver that is a double: host memory behind the driver's functions, stricter than the driver. No device is
//! needed, and none is used. It shows what is asked of the driver in which order and what is given back; not that a device agrees.
#![cfg(all(feature = "cuda", target_os = "linux"))]

mod adopt;
mod allocate;
mod double;
mod export;
mod failures;
mod start;
