//! A build without CUDA in a process that has a driver: what an engine has of it is not known for what it is, and is not taken.
#![cfg(not(feature = "cuda"))]

use std::{env, fs, ptr, ptr::NonNull};

use gpu_mem::{Kind, Memory, MemoryError, Unavailable};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

fn adopt() -> Result<Memory, MemoryError> {
    let mut words = Box::new([7u64; 16]);
    let start = NonNull::from(&mut words[0]).cast();
    // SAFETY: the box is kept with it, and nobody looks into it any more.
    unsafe { Memory::adopt(start, 128, words, &[]) }
}

#[test]
fn beside_a_driver_nothing_is_taken_for_the_host_s_unasked() {
    assert_eq!(adopt().unwrap().kind(), Kind::Host, "no driver is loaded yet");

    // Any file of its name, as a loader maps the driver.
    let folder = env::temp_dir().join(format!("kvlease-driver-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let path = folder.join("libcuda.so.550.54");
    fs::write(&path, [0; 4096]).unwrap();
    let file = fs::File::open(&path).unwrap();
    // SAFETY: a new mapping that nobody looks into.
    let mapped = unsafe { mmap(ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) }.unwrap();
    let cause = Unavailable::NotBuilt;
    assert_eq!(adopt().unwrap_err(), MemoryError::UnknownMemory { cause });
    // SAFETY: as it was mapped.
    unsafe { munmap(mapped, 4096) }.unwrap();
    fs::remove_dir_all(folder).unwrap();
    assert!(adopt().is_ok());
}
