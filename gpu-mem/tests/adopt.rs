//! Host memory of an engine's own, which needs no driver.

use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

use gpu_mem::{Allocation, Kind, Memory, MemoryError};

/// Sixteen words, and whether they were given back.
struct Engine {
    words: Box<[u64; 16]>,
    given_back: Arc<AtomicBool>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.given_back.store(true, SeqCst);
    }
}

/// Adopts the `len` bytes at `offset` of 128 bytes, each of which is 7.
fn adopt(offset: usize, len: usize) -> (Result<Memory, MemoryError>, NonNull<u8>, Arc<AtomicBool>) {
    let given_back = Arc::new(AtomicBool::new(false));
    let mut engine = Engine { words: Box::new([0x0707_0707_0707_0707; 16]), given_back: given_back.clone() };
    let start = NonNull::from(&mut *engine.words).cast::<u8>();
    let start = start.with_addr(start.addr().checked_add(offset).unwrap());
    // SAFETY: the words live in the box, which is kept with the memory and not looked into. What is not in it is refused.
    (unsafe { Memory::adopt(start, len, Box::new(engine), &[]) }, start, given_back)
}

#[test]
fn an_engine_s_host_memory_is_used_where_it_is() {
    let (memory, start, given_back) = adopt(8, 112);
    let memory = memory.unwrap();
    assert_eq!((memory.descriptor().ptr(), memory.len()), (start, 112));
    assert_eq!((memory.kind(), memory.allocation()), (Kind::Host, Allocation::Plain));
    assert!(memory.context().is_none() && !memory.is_ipc_capable());
    memory.copy_in(109, b"kv!").unwrap();
    let mut out = [0; 5];
    memory.copy_out(107, &mut out).unwrap();
    assert_eq!(&out, b"\x07\x07kv!");

    let memory = memory.try_into_slab().unwrap_err();
    let range = memory.range(0, 1).unwrap();
    drop(memory);
    assert!(!given_back.load(SeqCst));
    thread::spawn(move || drop(range)).join().unwrap();
    assert!(given_back.load(SeqCst));
}

#[test]
fn what_is_not_whole_words_is_refused_and_given_back() {
    for (offset, len) in [(1, 8), (0, 7), (4, 12), (3, 5)] {
        let (refused, start, given_back) = adopt(offset, len);
        assert_eq!(
            refused.unwrap_err(),
            MemoryError::Misaligned { address: start.as_ptr() as u64, len, align: size_of::<usize>() }
        );
        assert!(given_back.load(SeqCst));
    }
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    assert_eq!(adopt(0, 0).0.unwrap_err(), MemoryError::ZeroSize);
    for len in [usize::MAX, isize::MAX as usize + 1] {
        assert!(matches!(adopt(0, len).0.unwrap_err(), MemoryError::TooLarge { bytes, .. } if bytes == len));
    }
}

#[test]
fn there_is_no_dma_buf_of_host_memory() {
    assert_eq!(adopt(0, 128).0.unwrap().dma_buf().unwrap_err(), MemoryError::NoDmaBuf { kind: Kind::Host });
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_build_without_cuda_says_what_to_turn_on() {
    use gpu_mem::{Unavailable, devices};
    let cause = Unavailable::NotBuilt;
    for kind in [Kind::Pinned, Kind::Cuda { device: 1 }] {
        assert_eq!(Memory::allocate(kind, 100).unwrap_err(), MemoryError::Unavailable { kind, cause });
    }
    assert_eq!(devices().unwrap_err().to_string(), "no cuda:0 memory: built without CUDA: turn on the feature `cuda` of gpu-mem");
}
