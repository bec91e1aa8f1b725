//! An engine's own memory: what of it is taken, and for what.

use std::thread;

use gpu_mem::{Allocation, Kind, MemoryError};

use crate::double::{Double, Driver, ONE_DEVICE, Outstanding, TWO_DEVICES, on};

#[test]
fn an_engine_s_memory_is_recognised_and_given_back_with_the_last_clone() {
    on(TWO_DEVICES, |double| {
        let lent = double.lend("plain", 1, 8192);
        let address = lent.address();
        let memory = lent.adopt(&[]).unwrap();
        assert_eq!((memory.descriptor().address(), memory.len()), (address, 8192));
        assert_eq!((memory.kind(), memory.allocation()), (Kind::Cuda { device: 1 }, Allocation::Plain));
        assert!(memory.is_ipc_capable() && double.is_synchronous(&memory));
        memory.copy_in(4000, b"kv!").unwrap();
        let range = memory.range(4000, 3).unwrap();
        drop(memory);
        thread::spawn(move || {
            let mut out = [0; 3];
            range.copy_out(0, &mut out).unwrap();
            assert_eq!(&out, b"kv!");
        })
        .join()
        .unwrap();
        assert_eq!(double.outstanding(), Outstanding::default());
    });
}

#[test]
fn a_driver_that_wants_a_context_is_asked_in_one() {
    on(Driver::Double(&[("DOUBLE_SHY", "1")]), |double| {
        let memory = double.lend("plain", 0, 4096).adopt(&[]).unwrap();
        assert_eq!(memory.kind(), Kind::Cuda { device: 0 });
        drop(memory);
        assert_eq!(double.outstanding(), Outstanding::default());
    });
}

/// Refused unless it is accepted by name; then it works, and tells what it is.
fn only_if_accepted(double: &Double, how: &str, allocation: Allocation) {
    let others = [Allocation::Plain, Allocation::Managed, Allocation::Vmm, Allocation::StreamOrdered];
    let others = others.into_iter().filter(|other| *other != allocation).collect::<Vec<_>>();
    for accept in [&[], &others[..]] {
        assert_eq!(double.lend(how, 0, 4096).adopt(accept).unwrap_err(), MemoryError::Unfit { allocation });
        assert_eq!(double.outstanding(), Outstanding::default(), "and it went back to its owner");
    }
    let memory = double.lend(how, 0, 4096).adopt(&[allocation]).unwrap();
    assert_eq!((memory.allocation(), memory.is_ipc_capable()), (allocation, false));
    // The driver can't make copies to it synchronous, so this waits for them.
    memory.copy_in(0, b"kv!").unwrap();
    assert!(!double.is_synchronous(&memory));
    assert_eq!(double.outstanding().unfinished, 0);
}

#[test]
fn memory_in_pieces_is_taken_only_if_it_is_accepted() {
    on(ONE_DEVICE, |double| only_if_accepted(double, "vmm", Allocation::Vmm));
}

#[test]
fn stream_ordered_memory_is_taken_only_if_it_is_accepted() {
    on(ONE_DEVICE, |double| only_if_accepted(double, "pool", Allocation::StreamOrdered));
}

#[test]
fn managed_memory_is_never_taken() {
    on(ONE_DEVICE, |double| {
        let refused = MemoryError::Unfit { allocation: Allocation::Managed };
        for accept in [&[][..], &[Allocation::Managed]] {
            assert_eq!(double.lend("managed", 0, 4096).adopt(accept).unwrap_err(), refused);
            assert_eq!(double.lend_host("managed", 4096).adopt(accept).unwrap_err(), refused);
        }
    });
}

#[test]
fn what_to_do_about_memory_that_is_not_taken_is_said() {
    let said = MemoryError::Unfit { allocation: Allocation::Vmm }.to_string();
    assert!(said.contains("expandable_segments:False"), "{said}");
}

#[test]
fn host_memory_that_cuda_knows_is_pinned() {
    on(ONE_DEVICE, |double| {
        let memory = double.lend_host("plain", 4096).adopt(&[]).unwrap();
        assert_eq!((memory.kind(), memory.allocation()), (Kind::Pinned, Allocation::Plain));
        assert!(memory.context().is_none());
        memory.copy_in(4093, b"kv!").unwrap();
        let mut out = [0; 3];
        memory.copy_out(4093, &mut out).unwrap();
        assert_eq!(&out, b"kv!");
    });
}

#[test]
fn host_memory_that_cuda_does_not_know_is_host_memory() {
    on(ONE_DEVICE, |_| {
        let mut words = Box::new([7u64; 16]);
        let start = std::ptr::NonNull::from(&mut words[0]).cast();
        // SAFETY: the box is kept with it, and nobody looks into it any more.
        let memory = unsafe { gpu_mem::Memory::adopt(start, 128, words, &[]) }.unwrap();
        assert_eq!((memory.kind(), memory.context().is_none()), (Kind::Host, true));
    });
}

#[test]
fn a_part_of_an_allocation_is_taken_and_stays_a_part() {
    on(ONE_DEVICE, |double| {
        let memory = double.lend("plain", 0, 8192).adopt_part(100, 50, &[]).unwrap();
        assert_eq!((memory.len(), memory.kind()), (50, Kind::Cuda { device: 0 }));
        memory.copy_in(0, &[1; 50]).unwrap();
        assert!(matches!(memory.copy_in(0, &[1; 51]), Err(MemoryError::OutOfRange { .. })));
    });
}

#[test]
fn what_does_not_lie_in_one_allocation_is_refused() {
    on(Driver::Double(&[]), |double| {
        for (offset, len) in [(0, 8193), (8191, 2), (1, 8192), (4096, 1 << 40)] {
            let lent = [double.lend("plain", 0, 8192), double.lend_host("plain", 8192)];
            for lent in lent {
                let address = lent.address() + offset as u64;
                let refused = MemoryError::NotOneAllocation { address, len };
                assert_eq!(lent.adopt_part(offset, len, &[]).unwrap_err(), refused);
            }
            assert_eq!(double.outstanding(), Outstanding::default());
        }
    });
}

#[test]
fn memory_that_begins_before_an_allocation_is_refused() {
    on(ONE_DEVICE, |double| {
        let lent = double.lend("plain", 0, 4096);
        let start = std::ptr::NonNull::new((lent.address() - 8) as *mut u8).unwrap();
        // SAFETY: of no consequence, since it is refused.
        let refused = unsafe { gpu_mem::Memory::adopt(start, 4104, Box::new(lent), &[]) }.unwrap_err();
        assert!(matches!(refused, MemoryError::NotOneAllocation { len: 4104, .. }));
    });
}

#[test]
fn host_memory_is_taken_by_whole_words_and_a_device_s_by_bytes() {
    on(ONE_DEVICE, |double| {
        for (offset, len) in [(4, 64), (8, 63), (1, 7)] {
            let lent = double.lend_host("plain", 4096);
            let refused = MemoryError::Misaligned { address: lent.address() + offset as u64, len, align: 8 };
            assert_eq!(lent.adopt_part(offset, len, &[]).unwrap_err(), refused);
            double.lend("plain", 0, 4096).adopt_part(offset, len, &[]).unwrap();
        }
    });
}

#[test]
fn no_bytes_and_more_than_there_can_be_are_refused() {
    on(ONE_DEVICE, |double| {
        assert_eq!(double.lend("plain", 0, 4096).adopt_part(0, 0, &[]).unwrap_err(), MemoryError::ZeroSize);
        for len in [usize::MAX, isize::MAX as usize + 1] {
            let refused = double.lend("plain", 0, 4096).adopt_part(0, len, &[]).unwrap_err();
            assert!(matches!(refused, MemoryError::TooLarge { bytes, .. } if bytes == len));
        }
    });
}
