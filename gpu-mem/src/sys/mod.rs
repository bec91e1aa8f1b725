//! Memory from the system and from the CUDA driver. The one module with `unsafe`.

mod adopt;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
pub(crate) mod cuda;
mod place;
pub(crate) mod slab;
mod words;

pub(crate) use place::Place;
