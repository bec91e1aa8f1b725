//! A process whose transport is raw UCX.

use std::{cell::OnceCell, process::ExitCode};

use conformance::{
    bench::node::Hooks,
    cli::peer::{Way, main as run},
    engine::{Elsewhere, on_thread},
};
use lease_proto::permits::Permits;
use transport_ucx::{EngineWorker, UcxConfig, UcxError, UcxThread, UcxTransport};

/// On an engine's worker, past the ids that an engine would use.
const FIRST_ID: u16 = 64;

/// By a registrar, which is for any thread; so are the ends of its registrations.
const ELSEWHERE: Elsewhere<UcxTransport> = Elsewhere {
    register: |transport, memory| {
        let registrar = transport.registrar();
        on_thread(move || registrar.register(memory))
    },
    end: |region| on_thread(move || drop(region)),
};

fn main() -> ExitCode {
    let owned = |lane: Option<&str>| Ok(with_permits(UcxTransport::new(config(lane))?));
    let threaded = |lane: Option<&str>| {
        let thread = UcxThread::spawn(config(lane))?;
        let permits = thread.permits();
        Ok((thread, permits))
    };
    // Outlives the transport, which is gone when `run` returns.
    let engine = OnceCell::new();
    let borrowed = |lane: Option<&str>| borrow(&engine, lane);
    let ways = vec![
        Way::new("borrowed", borrowed, UcxTransport::arm),
        Way::new("thread", threaded, |thread: &mut UcxThread| Ok(thread.arm())),
    ];
    let hooks = Hooks { wait: UcxTransport::wait, bare: UcxTransport::bare_progress, elsewhere: Some(ELSEWHERE) };
    run("kvlease", owned, UcxTransport::arm, &hooks, ways, None)
}

fn config(lane: Option<&str>) -> UcxConfig {
    UcxConfig { tls: lane.map(str::to_owned), ..UcxConfig::default() }
}

fn with_permits(transport: UcxTransport) -> (UcxTransport, Permits) {
    let permits = transport.permits();
    (transport, permits)
}

/// A transport on the worker of an engine that does nothing else with it.
fn borrow(engine: &OnceCell<EngineWorker>, lane: Option<&str>) -> Result<(UcxTransport, Permits), UcxError> {
    let made = EngineWorker::new(lane.unwrap_or("all"))?;
    let engine = engine.get_or_init(|| made);
    // SAFETY: the worker is of the context, stays on this thread and outlives the transport, and nobody uses the ids.
    let transport = unsafe { UcxTransport::borrow(engine.context(), engine.worker(), FIRST_ID, UcxConfig::default())? };
    Ok(with_permits(transport))
}
