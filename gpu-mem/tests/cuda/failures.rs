//! Every function of the driver fails once: the error names it, and nothing is left behind.

use gpu_mem::{Kind, Memory, MemoryError, devices};

use crate::double::{Double, ONE_DEVICE, Outstanding, on};

const ILLEGAL_ADDRESS: u32 = 700;

/// Makes `function` fail while `act` runs, whose error names it.
fn fails(double: &Double, function: &'static str, act: impl Fn() -> Result<(), MemoryError>) {
    double.fail(function);
    let failed = act().unwrap_err();
    double.fail("");
    assert_eq!(failed, MemoryError::Driver { call: function, code: ILLEGAL_ADDRESS });
    assert_eq!(failed.to_string(), format!("{function} failed with CUDA error 700 (CUDA_ERROR_ILLEGAL_ADDRESS)"));
}

#[test]
fn an_allocation_that_fails_half_way_leaves_nothing_behind() {
    on(ONE_DEVICE, |double| {
        devices().unwrap(); // starts the driver
        let shared = ["cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuPointerGetAttributes"];
        for (kind, own) in [
            (Kind::Cuda { device: 0 }, &["cuMemAlloc_v2", "cuPointerSetAttribute", "cuMemsetD8_v2"][..]),
            (Kind::Pinned, &["cuMemHostAlloc"]),
        ] {
            for function in shared.iter().chain(own) {
                fails(double, function, || Memory::allocate(kind, 100).map(drop));
                assert_eq!(double.outstanding(), Outstanding::default(), "{function}");
            }
        }
    });
}

#[test]
fn a_copy_that_fails_leaves_the_context_as_it_was() {
    on(ONE_DEVICE, |double| {
        let memory = Memory::allocate(Kind::Cuda { device: 0 }, 100).unwrap();
        for function in ["cuCtxPushCurrent_v2", "cuMemcpyHtoD_v2", "cuStreamSynchronize"] {
            fails(double, function, || memory.copy_in(0, b"kv!"));
        }
        for function in ["cuCtxPushCurrent_v2", "cuMemcpyDtoH_v2"] {
            fails(double, function, || memory.copy_out(0, &mut [0; 3]));
        }
        for function in ["cuDeviceGetAttribute", "cuCtxPushCurrent_v2", "cuMemGetHandleForAddressRange"] {
            fails(double, function, || memory.dma_buf().map(drop));
        }
        fails(double, "cuCtxPushCurrent_v2", || memory.context().unwrap().enter().map(drop));
        memory.copy_in(0, b"kv!").unwrap();
    });
}

#[test]
fn an_adoption_that_fails_gives_the_memory_back() {
    on(ONE_DEVICE, |double| {
        devices().unwrap();
        for function in
            ["cuPointerGetAttributes", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuPointerSetAttribute"]
        {
            fails(double, function, || double.lend("plain", 0, 4096).adopt(&[]).map(drop));
            assert_eq!(double.outstanding(), Outstanding::default(), "{function}");
        }
    });
}

#[test]
fn a_device_that_cannot_be_described_is_an_error() {
    on(ONE_DEVICE, |double| {
        devices().unwrap();
        for function in [
            "cuDeviceGet",
            "cuDeviceGetName",
            "cuDeviceGetUuid_v2",
            "cuDeviceGetPCIBusId",
            "cuDeviceTotalMem_v2",
            "cuDeviceGetAttribute",
        ] {
            fails(double, function, || devices().map(drop));
        }
    });
}

#[test]
fn a_driver_that_no_longer_frees_is_no_panic() {
    on(ONE_DEVICE, |double| {
        for function in ["cuMemFree_v2", "cuMemFreeHost", "cuDevicePrimaryCtxRelease_v2", "cuMemRelease"] {
            for kind in [Kind::Cuda { device: 0 }, Kind::Pinned] {
                let memory = Memory::allocate(kind, 100).unwrap();
                double.fail(function);
                drop(memory);
                double.fail("");
            }
        }
        double.forget();
    });
}
