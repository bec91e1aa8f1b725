//! Depth 2: leases on the engine's own NIXL agent, beside whatever else the engine does with it.
//!
//! `cargo run --release -p transport-nixl --features borrowed-agent --example borrowed_agent`, once `cargo xtask nixl` has told what NIXL
//! needs here.

use lease_proto::{
    frame::{Frame, HEADER},
    id::Incarnation,
    transport::{Control as _, Incoming},
};
use transport_nixl::{
    NixlConfig, NixlTransport,
    nixl_sys::{Agent, NotificationMap},
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut ours = NixlTransport::new(NixlConfig::default())?; // finds and loads NIXL, too
    let engine = Agent::new("the engine's")?;
    engine.create_backend("UCX", &engine.get_plugin_params("UCX")?.1)?;
    let mut borrowed = NixlTransport::borrow(&engine, NixlConfig::default())?;

    // From here on it is a transport like any other.
    let mut metadata = vec![0; borrowed.local_metadata().len() + HEADER];
    Frame::encode(Incarnation(1), borrowed.local_metadata(), &mut metadata)?;
    ours.connect(Frame::decode(&metadata)?)?;
    loop {
        let mut map = NotificationMap::new()?; // the engine's own loop: what its agent got, it hands in
        engine.get_notifications(&mut map, None)?;
        for sender in map.agents() {
            map.get_notifications(sender?)?
                .try_for_each(|bytes| borrowed.hand_in(bytes?).map_err(|_| "full".into()))
                .map_err(|error: Box<dyn std::error::Error>| error)?;
        }
        if let Some(Incoming::Connected { peer, .. }) = ours.poll()? {
            ours.notify(peer, b"renew")?;
        }
        if let Some(Incoming::Notification { bytes, .. }) = borrowed.poll()? {
            println!("the engine's agent got {:?}", String::from_utf8_lossy(bytes));
            return Ok(());
        }
    }
}
