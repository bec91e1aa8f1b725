//! What keeps CUDA memory from being had, and that it is said rather than panicked about.

use gpu_mem::{DriverVersion, HostSlab, Kind, Memory, MemoryError, Unavailable, devices};

use crate::double::{Driver, TWO_DEVICES, on, there_is_a_driver};

const KINDS: [Kind; 2] = [Kind::Pinned, Kind::Cuda { device: 0 }];

/// Every way to ask for CUDA, twice, comes to this; and host memory is there all the same.
fn nothing_but(cause: Unavailable) {
    for kind in KINDS.into_iter().chain(KINDS) {
        assert_eq!(Memory::allocate(kind, 100).unwrap_err(), MemoryError::Unavailable { kind, cause });
    }
    assert_eq!(devices().unwrap_err(), MemoryError::Unavailable { kind: Kind::Cuda { device: 0 }, cause });
    assert_eq!(Memory::allocate(Kind::Host, 100).unwrap().kind(), Kind::Host);
}

fn adopt_host_memory() -> Result<Memory, MemoryError> {
    let mut words = Box::new([7u64; 16]);
    let start = std::ptr::NonNull::from(&mut words[0]).cast();
    // SAFETY: the box is kept with it, and nobody looks into it any more.
    unsafe { Memory::adopt(start, 128, words, &[]) }
}

#[test]
fn a_machine_without_a_driver_has_no_cuda_memory() {
    on(Driver::Missing, |_| {
        if there_is_a_driver() {
            return eprintln!("this machine has a driver: not tested");
        }
        nothing_but(Unavailable::NoDriver);
        assert_eq!(adopt_host_memory().unwrap().kind(), Kind::Host, "without a driver nothing is CUDA's");
    });
}

#[test]
fn a_driver_without_a_device_has_no_cuda_memory() {
    on(Driver::Double(&[("DOUBLE_DEVICES", "0")]), |_| {
        nothing_but(Unavailable::NoDevice);
        assert_eq!(adopt_host_memory().unwrap().kind(), Kind::Host);
    });
}

#[test]
fn a_driver_that_is_too_old_is_refused_and_says_what_is_needed() {
    on(Driver::Double(&[("DOUBLE_VERSION", "11080")]), |_| {
        let [found, needed] = [(11, 8), (12, 0)].map(|(major, minor)| DriverVersion { major, minor });
        let cause = Unavailable::DriverTooOld { found, needed };
        nothing_but(cause);
        assert_eq!(cause.to_string(), "the driver speaks CUDA 11.8, at least 12.0 is needed: update the NVIDIA driver");
        // An engine may have memory of that driver, so this may be anything.
        assert_eq!(adopt_host_memory().unwrap_err(), MemoryError::UnknownMemory { cause });
    });
}

#[test]
fn a_driver_that_lacks_a_function_is_refused_by_that_function_s_name() {
    on(Driver::Lacking, |_| nothing_but(Unavailable::MissingSymbol { name: "cuMemGetHandleForAddressRange" }));
}

#[test]
fn a_driver_that_does_not_start_says_with_which_error() {
    on(Driver::Double(&[("DOUBLE_INIT", "201")]), |_| {
        let cause = Unavailable::Init { call: "cuInit", code: 201 };
        nothing_but(cause);
        let said = "cuInit failed with CUDA error 201 (CUDA_ERROR_INVALID_CONTEXT): does nvidia-smi work here?";
        assert_eq!(cause.to_string(), said);
    });
}

#[test]
fn an_error_that_nobody_knows_is_shown_by_its_number() {
    on(Driver::Double(&[("DOUBLE_INIT", "54321")]), |_| {
        let cause = Unavailable::Init { call: "cuInit", code: 54321 };
        nothing_but(cause);
        assert_eq!(cause.to_string(), "cuInit failed with CUDA error 54321: does nvidia-smi work here?");
    });
}

#[test]
fn the_toolkit_s_stub_is_not_taken_for_a_driver() {
    on(Driver::Double(&[("DOUBLE_INIT", "34")]), |_| nothing_but(Unavailable::StubLibrary));
}

#[test]
fn a_stub_that_will_not_tell_its_version_is_known_for_one() {
    on(Driver::Stub, |_| {
        nothing_but(Unavailable::StubLibrary);
        let cause = Unavailable::StubLibrary;
        assert_eq!(adopt_host_memory().unwrap_err(), MemoryError::UnknownMemory { cause }, "an engine may have found the driver");
    });
}

#[test]
fn a_stub_beside_the_driver_is_left_alone() {
    on(TWO_DEVICES, |double| {
        assert_eq!(devices().unwrap().len(), 2);
        assert_eq!(double.lend("plain", 1, 4096).adopt(&[]).unwrap().kind(), Kind::Cuda { device: 1 });
    });
}

#[test]
fn a_device_that_is_not_there_is_refused_with_how_many_there_are() {
    on(TWO_DEVICES, |_| {
        for device in [2, 3, u32::MAX] {
            let kind = Kind::Cuda { device };
            let cause = Unavailable::NoSuchDevice { device, devices: 2 };
            assert_eq!(Memory::allocate(kind, 100).unwrap_err(), MemoryError::Unavailable { kind, cause });
        }
    });
}

#[test]
fn host_memory_does_not_start_the_driver() {
    on(TWO_DEVICES, |double| {
        let memory = Memory::from(HostSlab::new(100).unwrap());
        assert!(memory.context().is_none() && !memory.is_ipc_capable());
        assert_eq!(memory.dma_buf().unwrap_err(), MemoryError::NoDmaBuf { kind: Kind::Host });
        assert!(!double.is_started());
        devices().unwrap();
        assert!(double.is_started());
    });
}
