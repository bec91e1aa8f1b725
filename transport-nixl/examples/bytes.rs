//! Depth 1 for vLLM's bytes: no transport of ours. A prefill instance keeps blocks for a decode instance of vLLM's on its own NIXL agent,
//! and passes to the protocol what that receives.
//!
//! `cargo run --release -p transport-nixl --features borrowed-agent --example bytes`, once `cargo xtask nixl` has told what NIXL needs
//! here.

use lease_proto::{
    clock::SystemClock,
    config::Config,
    counters::Counters,
    drive::Machine as _,
    event::{Context, Event},
    holder::{Grant, Holder},
    id::{ClockId, EngineId, Identity, Incarnation, RequestId},
    table::slots,
    wire::{Message, Wire, decode},
};
use transport_nixl::nixl_sys::{Agent, NotificationMap};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    transport_nixl::load()?;
    let [p, d] = ["the engine's", "vLLM's"].map(agent);
    let (p, d) = (p?, d?);
    d.load_remote_md(&p.get_local_md()?)?;
    for said in ["HB:cmpl-1", "PUSH_REG:not ours", "cmpl-1:1"] {
        d.send_notification("the engine's", said.as_bytes(), None)?; // as vLLM's decode worker does, while it waits and once it has read
    }

    let (engine, incarnation, clock) = (EngineId::try_from("p")?, Incarnation(1), ClockId(1)); // random in earnest, as is the seed
    let identity = Identity { engine, incarnation, rank: 0, ranks: 1, clock, max_message: 65_536 };
    let terms = Config::default().validate(Wire::Vllm)?;
    let mut holder = Holder::new(identity, terms, [7; 16], slots::<_, 8>(), slots::<_, 8>(), slots::<_, 8>());
    let request = RequestId::try_from("cmpl-1")?;
    let (mut counters, mut events) = (Counters::default(), |event: Event<'_>| println!("{event:?}")); // `Freed`: the blocks are free
    let cx = &mut Context { now: SystemClock.now(), counters: &mut counters, events: &mut events };
    let token = holder.mint();
    holder.grant(cx, Grant { request: &request, token, consumers: None, ttl: None }).map_err(|why| why.name())?;

    while holder.live() > 0 {
        let mut map = NotificationMap::new()?;
        p.get_notifications(&mut map, None)?;
        for sender in map.agents() {
            for bytes in map.get_notifications(sender?)? {
                let bytes = bytes?;
                cx.now = SystemClock.now();
                match decode(Wire::Vllm, &bytes) {
                    Ok(Message::Foreign(bytes)) => println!("not ours: {:?}", String::from_utf8_lossy(bytes)),
                    Ok(message) => drop(holder.handle(cx, None, message, &mut [])), // nothing is answered on vLLM's wire
                    Err(why) => println!("dropped: {why}"),
                }
            }
        }
        cx.now = SystemClock.now();
        holder.handle_timeout(cx); // only now: a beat that waited rescues its lease
        d.get_notifications(&mut NotificationMap::new()?, None)?; // so that what vLLM's agent sent leaves
    }
    Ok(())
}

fn agent(name: &str) -> Result<Agent, Box<dyn std::error::Error>> {
    let agent = Agent::new(name)?;
    agent.create_backend("UCX", &agent.get_plugin_params("UCX")?.1)?;
    Ok(agent)
}
