//! Blocks that stay until their lease is over: a pool beside a holder, with the lease's token as the key.
//!
//! `cargo run --release -p gpu-mem --example leases`

use gpu_mem::{BlockPool, HostSlab, Layout};
use lease_proto::{
    config::Config,
    counters::Counters,
    drive::Machine,
    event::{Context, Event},
    holder::{Grant, Holder},
    id::{ClockId, EngineId, Identity, Incarnation, RequestId, Token},
    table::slots,
    time::{Duration, Instant},
    wire::Wire,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let slab = HostSlab::with_huge_pages(64 * 4096)?;
    let pool = BlockPool::<Token>::new([(slab.into(), Layout::new(64, 4096)?)])?;

    // The lives and seeds are random in earnest; `transport-ucx/examples/lease.rs` has the other side and a fabric between them.
    let terms = Config::default().validate(Wire::Native)?;
    let engine = EngineId::try_from("p")?;
    let p = Identity { engine, incarnation: Incarnation(1), rank: 0, ranks: 1, clock: ClockId(1), max_message: 4096 };
    let mut holder = Holder::new(p, terms, [1; 16], slots::<_, 8>(), slots::<_, 2>(), slots::<_, 8>());
    let mut counters = Counters::default();
    // A lease that is over, whether by completion, release or expiry: its blocks are free once they are dropped. Where reads are served,
    // the permits hear of it before the pool does.
    let mut events = |event: Event<'_>| {
        if let Event::Freed { token, why, .. } = event {
            let blocks = pool.end(&token);
            println!("{}: blocks {:?} are free", why.name(), blocks.as_ref().map(|blocks| blocks.ids()).unwrap_or_default());
        }
    };
    let mut cx = Context { now: Instant::from_nanos(1), counters: &mut counters, events: &mut events };

    for request in ["cmpl-1", "cmpl-2"] {
        let mut prompt = pool.allocate(2)?;
        // It grows while it is computed.
        prompt.append(pool.allocate(1)?)?;
        for id in prompt.ids() {
            pool.regions()[0].block(*id)?.copy_in(0, request.as_bytes())?;
        }
        // Lent before the grant, so that whoever hears of its end finds the blocks.
        let token = holder.mint();
        pool.lend(token, prompt)?;
        let (request, ends) = (RequestId::try_from(request)?, pool.counts().lent);
        if let Err(refused) = holder.grant(&mut cx, Grant { request: &request, token, consumers: None, ttl: None }) {
            drop(pool.end(&token)); // no lease, so nothing is lent
            return Err(format!("no lease: {refused:?}").into());
        }
        println!("granted; {ends} blocks are lent");
    }
    // Nobody renews them.
    cx.now = cx.now.saturating_add(Duration::from_secs(120));
    holder.handle_timeout(&mut cx);
    assert_eq!(pool.counts().free, 64);
    Ok(())
}
