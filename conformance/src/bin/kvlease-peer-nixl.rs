//! A process whose transport is NIXL.

use std::process::ExitCode;

use conformance::{
    bench::node::Hooks,
    cli::peer::{Live, Way, main as run},
    engine::{Carrier, EngineError, Hand},
    vllm,
};
use lease_proto::{
    permits::Permits,
    time::Duration,
    transport::{Control, ErrorKind, PeerId},
};
use transport_nixl::{
    Failure, NixlConfig, NixlError, NixlTransport, load,
    nixl_sys::{self, Agent, NotificationMap},
};

fn main() -> ExitCode {
    // Nobody is asked when a peer reads, so permits are kept for nothing.
    let owned = |lane: Option<&str>| Ok((open(lane)?, Permits::new()));
    let hooks = Hooks { wait, bare: |_| false, elsewhere: None };
    let live = Live {
        prefill: &|args| vllm::prefill(args, &open),
        decode: &|args, params| vllm::decode(args, params, &open),
        request: vllm::request,
    };
    let ways = vec![Way::carried("borrowed", borrowed, NixlTransport::arm), Way::carried("bytes", by_hand, NixlTransport::arm)];
    run("kvlease", owned, NixlTransport::arm, &hooks, ways, Some(&live))
}

fn open(lane: Option<&str>) -> Result<NixlTransport, NixlError> {
    NixlTransport::new(config(lane)?)
}

/// A lane is a backend, with its way behind a slash: that has been put into the environment.
fn config(lane: Option<&str>) -> Result<NixlConfig, NixlError> {
    let backend = lane.map(|lane| lane.split_once('/').map_or(lane, |(backend, _)| backend));
    let backend = backend.map_or(Ok(Default::default()), |backend| format!("nixl:{backend}").parse())?;
    Ok(NixlConfig { backend, ..NixlConfig::default() })
}

fn wait(transport: &mut NixlTransport, within: Duration) -> Result<(), NixlError> {
    let soon = transport.next_timeout().unwrap_or(within).min(within);
    std::thread::sleep(soon.into());
    Ok(())
}

/// An engine's own agent, which carries its bytes.
struct Engine(Agent);

impl Engine {
    /// The agent, and a transport that borrows it.
    fn new(lane: Option<&str>) -> Result<(Self, NixlTransport), NixlError> {
        load()?;
        let config = config(lane)?;
        let failed = |call| move |error: nixl_sys::NixlError| NixlError::Call { call, failure: Failure::from(error) };
        let agent = Agent::new(&format!("engine-{}", std::process::id())).map_err(failed("creating an agent"))?;
        let backend = config.backend.name();
        let (_, params) = agent.get_plugin_params(backend).map_err(failed("asking for a backend"))?;
        agent.create_backend(backend, &params).map_err(failed("creating a backend"))?;
        let transport = NixlTransport::borrow(&agent, config)?;
        Ok((Self(agent), transport))
    }
}

impl Hand<NixlTransport> for Engine {
    fn receive(&mut self) -> Result<Vec<Vec<u8>>, EngineError> {
        let receive = || -> Result<Vec<Vec<u8>>, nixl_sys::NixlError> {
            let mut map = NotificationMap::new()?;
            self.0.get_notifications(&mut map, None)?;
            let mut all = Vec::new();
            for sender in map.agents() {
                for bytes in map.get_notifications(sender?)? {
                    all.push(bytes?);
                }
            }
            Ok(all)
        };
        receive().map_err(|error| EngineError::Invalid(format!("the agent gives no notifications: {error}")))
    }

    fn send(&mut self, transport: &NixlTransport, to: PeerId, bytes: &[u8]) -> Result<(), ErrorKind> {
        let name = transport.agent_of(to).ok_or(ErrorKind::NotConnected)?;
        self.0.send_notification(name, bytes, None).map_err(|_| ErrorKind::BackendFailed)
    }
}

fn borrowed(lane: Option<&str>) -> Result<(NixlTransport, Carrier<NixlTransport>), NixlError> {
    let (mut engine, transport) = Engine::new(lane)?;
    let hand_in = move |transport: &mut NixlTransport| {
        let full = |_| EngineError::Invalid("the transport takes no more notifications".into());
        engine.receive()?.into_iter().try_for_each(|bytes| transport.hand_in(bytes).map_err(full))
    };
    Ok((transport, Carrier::HandsIn(Box::new(hand_in))))
}

fn by_hand(lane: Option<&str>) -> Result<(NixlTransport, Carrier<NixlTransport>), NixlError> {
    let (engine, transport) = Engine::new(lane)?;
    Ok((transport, Carrier::ByHand(Box::new(engine))))
}
