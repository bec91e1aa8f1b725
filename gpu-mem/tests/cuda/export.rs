//! What a device's memory is exported as, and how devices are described.

use std::{fs::File, os::unix::fs::FileExt};

use gpu_mem::{DriverVersion, Kind, Memory, MemoryError, devices};

use crate::double::{Driver, ONE_DEVICE, Outstanding, on};

#[test]
fn a_dma_buf_reaches_all_of_the_memory_and_ends_with_its_last_piece() {
    on(ONE_DEVICE, |_| {
        let memory = Memory::allocate(Kind::Cuda { device: 0 }, 5000).unwrap();
        memory.copy_in(4990, b"kv!").unwrap();
        let file = File::from(memory.dma_buf().unwrap());
        let mut out = [0; 3];
        file.read_exact_at(&mut out, 4990).unwrap();
        assert_eq!(&out, b"kv!");
        assert_eq!(file.metadata().unwrap().len(), 2 << 20);
    });
}

#[test]
fn a_dma_buf_of_an_engine_s_memory_takes_whole_pages() {
    on(ONE_DEVICE, |double| {
        for (offset, len) in [(256, 4096), (0, 4097), (0, 100)] {
            let lent = double.lend("plain", 0, 8192);
            let refused = MemoryError::Misaligned { address: lent.address() + offset as u64, len, align: 4096 };
            let memory = lent.adopt_part(offset, len, &[]).unwrap();
            assert_eq!(memory.dma_buf().unwrap_err(), refused);
        }
        double.lend("plain", 0, 8192).adopt_part(0, 4096, &[]).unwrap().dma_buf().unwrap();
    });
}

#[test]
fn where_there_are_no_dma_bufs_it_is_said() {
    on(Driver::Double(&[("DOUBLE_DMA_BUF", "0")]), |_| {
        for kind in [Kind::Host, Kind::Pinned, Kind::Cuda { device: 0 }] {
            let memory = Memory::allocate(kind, 4096).unwrap();
            assert_eq!(memory.dma_buf().unwrap_err(), MemoryError::NoDmaBuf { kind });
        }
        assert!(!devices().unwrap()[0].dma_buf);
    });
}

#[test]
fn devices_are_described_without_a_context_on_any() {
    on(Driver::Double(&[("DOUBLE_DEVICES", "2"), ("DOUBLE_VERSION", "12040")]), |double| {
        let devices = devices().unwrap();
        let ordinals: Vec<u32> = devices.iter().map(|device| device.ordinal).collect();
        assert_eq!(ordinals, [0, 1]);
        let second = &devices[1];
        assert_eq!((&*second.name, &*second.pci_bus_id), ("Double 1", "0000:02:00.0"));
        assert_eq!(second.uuid, "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f");
        assert_eq!((second.total_memory, second.dma_buf), (2 << 30, true));
        assert_eq!(second.driver, DriverVersion { major: 12, minor: 4 });
        assert_eq!(second.driver.to_string(), "12.4");
        assert_eq!(double.outstanding(), Outstanding::default());
    });
}
