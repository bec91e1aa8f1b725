//! The functions of the driver that are used, resolved once.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    sync::OnceLock,
};

use cudarc::driver::sys::cudaError_enum::CUDA_ERROR_STUB_LIBRARY;
use libloading::Library;

use crate::{DriverVersion, MemoryError, Unavailable};

/// `CUresult`, `CUdevice`, `CUdeviceptr`, `CUmemGenericAllocationHandle`, `CUcontext` and `CUstream`: as C passes them.
pub(super) type Code = c_uint;
pub(super) type Ordinal = c_int;
pub(super) type Address = u64;
pub(super) type Handle = u64;
pub(super) type RawContext = *mut c_void;
pub(super) type RawStream = *mut c_void;

/// The driver's own name of its library, which engines and fabrics load it by. cudarc would take a `libcuda.so` first, which may be the
/// toolkit's stub beside a driver that is there: then what is the driver's would be taken for the host's.
const LIBRARY: &str = "libcuda.so.1";

/// The oldest driver supported: CUDA 12.0.
const NEEDED: DriverVersion = DriverVersion { major: 12, minor: 0 };

/// A struct of functions, each under its name in the library, and how to resolve them all.
macro_rules! api {
    ($($name:ident($($argument:ty),*);)*) => {
        #[allow(non_snake_case)]
        #[derive(Debug)]
        pub(super) struct Api {
            pub(super) version: DriverVersion,
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> Code,)*
        }

        impl Api {
            fn resolve(library: &Library, version: DriverVersion) -> Result<Self, Unavailable> {
                Ok(Self { version, $(
                    // SAFETY: the type is that of the function of this name, which CUDA never changes: it adds `_v2` instead.
                    $name: unsafe { symbol(library, stringify!($name)) }?,
                )* })
            }
        }
    };
}

api! {
    cuInit(c_uint);
    cuGetErrorName(Code, *mut *const c_char);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut Ordinal, c_int);
    cuDeviceGetName(*mut c_char, c_int, Ordinal);
    cuDeviceGetUuid_v2(*mut [u8; 16], Ordinal);
    cuDeviceGetPCIBusId(*mut c_char, c_int, Ordinal);
    cuDeviceTotalMem_v2(*mut usize, Ordinal);
    cuDeviceGetAttribute(*mut c_int, c_uint, Ordinal);
    cuDevicePrimaryCtxRetain(*mut RawContext, Ordinal);
    cuDevicePrimaryCtxRelease_v2(Ordinal);
    cuCtxPushCurrent_v2(RawContext);
    cuCtxPopCurrent_v2(*mut RawContext);
    cuStreamSynchronize(RawStream);
    cuMemAlloc_v2(*mut Address, usize);
    cuMemFree_v2(Address);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);
    cuMemsetD8_v2(Address, u8, usize);
    cuMemcpyHtoD_v2(Address, *const c_void, usize);
    cuMemcpyDtoH_v2(*mut c_void, Address, usize);
    cuPointerGetAttributes(c_uint, *mut c_uint, *mut *mut c_void, Address);
    cuPointerSetAttribute(*const c_void, c_uint, Address);
    cuMemRetainAllocationHandle(*mut Handle, *mut c_void);
    cuMemRelease(Handle);
    cuMemGetHandleForAddressRange(*mut c_void, Address, usize, c_uint, u64);
}

/// Calls a function of the table, and says in an error which one it was. Unsafe where it is written, as the function is.
macro_rules! call {
    ($api:expr, $name:ident($($argument:expr),* $(,)?)) => {
        $crate::sys::cuda::api::done(stringify!($name), ($api.$name)($($argument),*))
    };
}
pub(super) use call;

/// What a call has come to.
pub(super) fn done(call: &'static str, code: Code) -> Result<(), MemoryError> {
    if code == 0 { Ok(()) } else { Err(MemoryError::Driver { call, code }) }
}

/// The table, or why there is none; found out once.
pub(super) fn api() -> Result<&'static Api, Unavailable> {
    static API: OnceLock<Result<Api, Unavailable>> = OnceLock::new();
    API.get_or_init(load).as_ref().map_err(|cause| *cause)
}

fn load() -> Result<Api, Unavailable> {
    // SAFETY: loading the driver runs its initialisers, as in every program that is linked with it.
    let library = unsafe { Library::new(LIBRARY) }.map_err(|_| Unavailable::NoDriver)?;
    // Never unloaded: its functions are used for as long as the process lives.
    let library: &'static Library = Box::leak(Box::new(library));
    // Before anything else: a driver that is too old lacks functions too, and its age is the better answer.
    let found = version(library)?;
    if found < NEEDED {
        return Err(Unavailable::DriverTooOld { found, needed: NEEDED });
    }
    Api::resolve(library, found)
}

fn version(library: &Library) -> Result<DriverVersion, Unavailable> {
    // SAFETY: its type since it exists.
    let ask: unsafe extern "C" fn(*mut c_int) -> Code = unsafe { symbol(library, "cuDriverGetVersion") }?;
    let mut version: c_int = 0;
    // SAFETY: it may be called before `cuInit`, and writes one number.
    let code = unsafe { ask(&mut version) };
    if code == CUDA_ERROR_STUB_LIBRARY as Code {
        return Err(Unavailable::StubLibrary); // some of its versions say so of every function, others of `cuInit` alone
    }
    // 1000 * major + 10 * minor.
    let version =
        u32::try_from(version).ok().filter(|_| code == 0).ok_or(Unavailable::Init { call: "cuDriverGetVersion", code })?;
    Ok(DriverVersion { major: version / 1000, minor: version % 1000 / 10 })
}

/// # Safety
/// `F` is the type of the function of that name, and it is not used when the library is unloaded.
unsafe fn symbol<F: Copy>(library: &Library, name: &'static str) -> Result<F, Unavailable> {
    // SAFETY: promised by the caller.
    let found = unsafe { library.get::<F>(name) };
    found.map(|function| *function).map_err(|_| Unavailable::MissingSymbol { name })
}

/// The driver's own name of an error, if there is a driver and it knows one.
pub(crate) fn error_name(code: u32) -> Option<&'static str> {
    let api = api().ok()?;
    let mut name = std::ptr::null();
    // SAFETY: takes any number, and writes one pointer.
    unsafe { call!(api, cuGetErrorName(code, &mut name)) }.ok()?;
    if name.is_null() {
        return None;
    }
    // SAFETY: a constant of the driver, which is never unloaded, with a zero at its end.
    unsafe { CStr::from_ptr(name) }.to_str().ok()
}
