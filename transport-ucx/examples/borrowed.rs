//! Depth 2: leases on the engine's own UCX worker, beside whatever else the engine does with it.
//!
//! `cargo run --release -p transport-ucx --features borrowed-worker --example borrowed`

use lease_proto::{
    frame::{Frame, HEADER},
    id::Incarnation,
    transport::{Control as _, Incoming},
};
use transport_ucx::{EngineWorker, UcxConfig, UcxTransport};

/// The engine takes messages 0 to 63; the six from here on are free.
const FIRST_ID: u16 = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = EngineWorker::new("tcp")?;
    let mut ours = UcxTransport::new(UcxConfig { tls: Some("tcp".to_owned()), ..UcxConfig::default() })?;
    // SAFETY: the worker is of the context, both outlive the transport, and the ids are free.
    let mut borrowed = unsafe { UcxTransport::borrow(engine.context(), engine.worker(), FIRST_ID, UcxConfig::default())? };

    // From here on it is a transport like any other.
    let mut metadata = vec![0; borrowed.local_metadata().len() + HEADER];
    Frame::encode(Incarnation(1), borrowed.local_metadata(), &mut metadata)?;
    ours.connect(Frame::decode(&metadata)?)?;
    loop {
        engine.progress(); // the engine's own loop, which moves both
        if let Some(Incoming::Connected { peer, .. }) = ours.poll()? {
            ours.notify(peer, b"renew")?;
        }
        if let Some(Incoming::Notification { bytes, .. }) = borrowed.poll()? {
            println!("the engine's worker got {:?}", String::from_utf8_lossy(bytes));
            return Ok(());
        }
    }
}
