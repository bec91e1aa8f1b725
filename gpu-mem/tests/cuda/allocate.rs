//! Memory that is allocated: what it is, who reaches it from where, and when it is freed.

use std::thread;

use gpu_mem::{Allocation, Kind, Memory, MemoryError};

use crate::double::{Double, Driver, ONE_DEVICE, Outstanding, TWO_DEVICES, on};

fn cuda(device: u32, len: usize) -> Memory {
    Memory::allocate(Kind::Cuda { device }, len).unwrap()
}

/// What is left while this many contexts are held and allocations live.
fn living(double: &Double, contexts: i32, allocations: i32) -> bool {
    double.outstanding() == Outstanding { contexts, allocations, ..Outstanding::default() }
}

fn bytes(memory: &Memory) -> Vec<u8> {
    let mut out = vec![0xaa; memory.len()];
    memory.copy_out(0, &mut out).unwrap();
    out
}

#[test]
fn a_device_s_memory_is_zeroed_and_what_was_asked_for() {
    on(ONE_DEVICE, |double| {
        for len in [1, 4095, 4096, 4097, 1 << 20] {
            let memory = cuda(0, len);
            assert_eq!((memory.len(), memory.kind(), memory.allocation()), (len, Kind::Cuda { device: 0 }, Allocation::Plain));
            assert_eq!((memory.descriptor().kind(), memory.descriptor().device_id()), (Kind::Cuda { device: 0 }, 0));
            assert!(memory.is_ipc_capable() && double.is_synchronous(&memory));
            assert_eq!(bytes(&memory), vec![0; len]);
        }
        assert_eq!(double.outstanding(), Outstanding::default(), "each was freed");
    });
}

#[test]
fn pinned_memory_is_zeroed_and_needs_no_context() {
    on(ONE_DEVICE, |double| {
        for len in [1, 4095, 4097] {
            let memory = Memory::allocate(Kind::Pinned, len).unwrap();
            assert_eq!((memory.len(), memory.kind(), memory.allocation()), (len, Kind::Pinned, Allocation::Plain));
            assert!(memory.context().is_none());
            assert_eq!(bytes(&memory), vec![0; len]);
            memory.copy_in(len - 1, &[7]).unwrap();
            assert_eq!(bytes(&memory)[len - 1], 7);
            assert!(living(double, 1, 1), "its context lives as long as it does");
        }
    });
}

#[test]
fn copies_touch_what_they_say_and_nothing_beside_it() {
    on(ONE_DEVICE, |_| {
        for kind in [Kind::Cuda { device: 0 }, Kind::Pinned] {
            let memory = Memory::allocate(kind, 64).unwrap();
            for (offset, len) in [(0, 64), (0, 0), (64, 0), (3, 16), (63, 1), (7, 9)] {
                memory.copy_in(0, &[0xee; 64]).unwrap();
                memory.copy_in(offset, &vec![1; len]).unwrap();
                let mut expected = [0xee; 64];
                expected[offset..offset + len].fill(1);
                assert_eq!(bytes(&memory), expected, "{len} bytes at {offset} of {kind}");
                let mut part = vec![0; len];
                memory.copy_out(offset, &mut part).unwrap();
                assert_eq!(part, vec![1; len]);
            }
            let refused = MemoryError::OutOfRange { offset: 60, len: 5, of: 64 };
            assert_eq!(memory.copy_in(60, &[0; 5]), Err(refused));
            assert_eq!(memory.copy_out(60, &mut [0; 5]), Err(refused));
        }
    });
}

#[test]
fn a_fresh_thread_copies_and_another_one_frees() {
    on(TWO_DEVICES, |double| {
        for kind in [Kind::Cuda { device: 1 }, Kind::Pinned] {
            let memory = thread::spawn(move || Memory::allocate(kind, 100).unwrap()).join().unwrap();
            let clone = memory.clone();
            thread::spawn(move || clone.copy_in(50, b"kv!").unwrap()).join().unwrap();
            let mut out = [0; 3];
            memory.copy_out(50, &mut out).unwrap();
            assert_eq!(&out, b"kv!");
            thread::spawn(move || drop(memory)).join().unwrap();
            assert_eq!(double.outstanding(), Outstanding::default());
        }
    });
}

#[test]
fn devices_are_told_apart_and_each_is_reached_in_its_own_context() {
    on(TWO_DEVICES, |double| {
        let (first, second) = (cuda(0, 100), cuda(1, 100));
        assert_eq!(second.descriptor().device_id(), 1);
        // Whatever is current already.
        let _entered = first.context().unwrap().enter().unwrap();
        first.copy_in(0, &[1; 100]).unwrap();
        second.copy_in(0, &[2; 100]).unwrap();
        assert_eq!((bytes(&first), bytes(&second)), (vec![1; 100], vec![2; 100]));
        drop(second);
        assert_eq!(double.outstanding(), Outstanding { contexts: 1, entered: 1, allocations: 1, ..Outstanding::default() });
    });
}

#[test]
fn a_context_outlives_its_memory_and_is_left_as_often_as_it_is_entered() {
    on(ONE_DEVICE, |double| {
        let memory = cuda(0, 100);
        let context = memory.context().unwrap().clone();
        drop(memory);
        assert!(living(double, 1, 0));
        {
            let _outer = context.enter().unwrap();
            let _inner = context.enter().unwrap();
            assert_eq!(double.outstanding().entered, 2);
        }
        thread::scope(|scope| scope.spawn(|| drop(context.enter().unwrap())).join().unwrap());
        assert!(living(double, 1, 0));
    });
}

#[test]
fn clones_and_ranges_keep_it_alive() {
    on(ONE_DEVICE, |double| {
        let memory = cuda(0, 100);
        let (clone, range) = (memory.clone(), memory.range(40, 20).unwrap());
        drop(memory);
        assert!(living(double, 1, 1));
        drop(clone);
        range.copy_in(5, b"kv!").unwrap();
        let mut out = [0; 20];
        range.copy_out(0, &mut out).unwrap();
        assert_eq!(&out[4..9], b"\0kv!\0");
        assert_eq!(range.copy_in(18, b"kv!"), Err(MemoryError::OutOfRange { offset: 18, len: 3, of: 20 }));
        let descriptor = range.descriptor();
        assert_eq!(descriptor.address(), range.memory().descriptor().address() + 40);
        assert_eq!(descriptor.kind(), Kind::Cuda { device: 0 });
        assert!(living(double, 1, 1));
        drop(range);
        assert_eq!(double.outstanding(), Outstanding::default());
    });
}

#[test]
fn what_never_was_a_slab_does_not_become_one() {
    on(ONE_DEVICE, |double| {
        for kind in [Kind::Cuda { device: 0 }, Kind::Pinned] {
            let memory = Memory::allocate(kind, 100).unwrap();
            memory.copy_in(0, &[7; 100]).unwrap();
            let (address, watch) = (memory.descriptor().address(), memory.watch());
            let memory = memory.try_into_slab().unwrap_err();
            assert!(watch.memory().is_some(), "whoever watches it goes on");
            assert_eq!((memory.descriptor().address(), memory.kind(), bytes(&memory)), (address, kind, vec![7; 100]));
            assert!(living(double, 1, 1));
        }
    });
}

#[test]
fn sizes_that_cannot_be_are_refused_before_the_driver_is_asked() {
    on(ONE_DEVICE, |double| {
        for kind in [Kind::Cuda { device: 0 }, Kind::Pinned] {
            assert_eq!(Memory::allocate(kind, 0).unwrap_err(), MemoryError::ZeroSize);
            for len in [usize::MAX, isize::MAX as usize] {
                assert!(matches!(Memory::allocate(kind, len), Err(MemoryError::TooLarge { bytes, .. }) if bytes == len));
            }
        }
        assert!(!double.is_started());
    });
}

#[test]
fn a_full_device_says_so_and_has_room_again_once_something_is_freed() {
    const ALL: usize = 4 << 20;
    on(Driver::Double(&[("DOUBLE_BYTES", "4194304")]), |double| {
        for kind in [Kind::Cuda { device: 0 }, Kind::Pinned] {
            let held = Memory::allocate(kind, ALL - 5000).unwrap();
            for bytes in [8192, isize::MAX as usize / 2] {
                assert_eq!(Memory::allocate(kind, bytes).unwrap_err(), MemoryError::OutOfMemory { bytes });
            }
            assert!(living(double, 1, 1));
            drop(held);
            Memory::allocate(kind, ALL).unwrap();
        }
    });
}

fn gives_other_memory(double: &Double, allocation: Allocation, kinds: &[Kind]) {
    for &asked in kinds {
        let refused = MemoryError::OtherMemory { asked, given: asked, allocation };
        assert_eq!(Memory::allocate(asked, 100).unwrap_err(), refused);
        assert_eq!(double.outstanding(), Outstanding::default(), "and what was given went back");
    }
}

#[test]
fn a_driver_that_gives_managed_memory_is_caught() {
    on(Driver::Double(&[("DOUBLE_GIVES", "managed")]), |double| {
        gives_other_memory(double, Allocation::Managed, &[Kind::Cuda { device: 0 }, Kind::Pinned]);
    });
}

#[test]
fn a_driver_that_gives_memory_in_pieces_is_caught() {
    on(Driver::Double(&[("DOUBLE_GIVES", "vmm")]), |double| {
        gives_other_memory(double, Allocation::Vmm, &[Kind::Cuda { device: 0 }]);
    });
}
