//! What devices there are.

use std::ffi::{CStr, c_char, c_int};

use super::{
    api::{Ordinal, call},
    bytes::DMA_BUF_SUPPORTED,
    driver::Driver,
};
use crate::{Device, Kind, MemoryError};

pub(crate) fn devices() -> Result<Vec<Device>, MemoryError> {
    let driver = Driver::of(Kind::Cuda { device: 0 })?;
    (0..driver.devices).map(|ordinal| describe(driver, ordinal)).collect()
}

fn describe(driver: Driver, ordinal: u32) -> Result<Device, MemoryError> {
    let (api, device) = (driver.api, driver.device(ordinal)?);
    let (mut uuid, mut total_memory) = ([0; 16], 0);
    // SAFETY: writes 16 bytes.
    unsafe { call!(api, cuDeviceGetUuid_v2(&mut uuid, device)) }?;
    // SAFETY: writes one number.
    unsafe { call!(api, cuDeviceTotalMem_v2(&mut total_memory, device)) }?;
    Ok(Device {
        ordinal,
        // SAFETY: writes at most as many bytes as it is given room for.
        name: text(|out, room| unsafe { call!(api, cuDeviceGetName(out, room, device)) })?,
        uuid: written(uuid),
        // SAFETY: as above.
        pci_bus_id: text(|out, room| unsafe { call!(api, cuDeviceGetPCIBusId(out, room, device)) })?,
        total_memory: total_memory as u64,
        dma_buf: dma_buf(driver, device)?,
        driver: api.version,
    })
}

fn dma_buf(driver: Driver, device: Ordinal) -> Result<bool, MemoryError> {
    driver.attribute(DMA_BUF_SUPPORTED, device).map(|supported| supported != 0)
}

/// What a function of the driver writes into a buffer.
fn text(write: impl FnOnce(*mut c_char, c_int) -> Result<(), MemoryError>) -> Result<String, MemoryError> {
    let mut buffer = [0u8; 256];
    write(buffer.as_mut_ptr().cast(), 256)?;
    Ok(CStr::from_bytes_until_nul(&buffer).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default())
}

/// `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
fn written(uuid: [u8; 16]) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let (first, rest) = uuid.split_at(4);
    let (middle, last) = rest.split_at(6);
    let middle: Vec<String> = middle.chunks(2).map(hex).collect();
    format!("GPU-{}-{}-{}", hex(first), middle.join("-"), hex(last))
}
