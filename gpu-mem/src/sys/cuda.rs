//! CUDA's driver, found at run time. Nothing else names `cudarc`.
//!
//! Of cudarc only the loaded library is used, and its constants. Its functions panic where a symbol is missing, and their result is
//! a Rust enum: the code of an error that a newer driver has and cudarc has not would be undefined behaviour. So the symbols are
//! resolved here, once, and their results are numbers.

mod api;
mod bytes;
mod context;
mod devices;
mod driver;
mod find;
mod owned;

pub(crate) use api::error_name;
pub(crate) use bytes::Bytes;
pub(crate) use context::{Primary, Pushed};
pub(crate) use devices::devices;
pub(super) use find::find;
pub(crate) use owned::{device, pinned};
