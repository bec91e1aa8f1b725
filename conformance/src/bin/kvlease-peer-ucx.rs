//! A process whose transport is raw UCX.

use transport_ucx::{UcxConfig, UcxTransport};

fn main() -> std::process::ExitCode {
    let open = |lane: Option<&str>| UcxTransport::new(UcxConfig { tls: lane.map(str::to_owned), ..UcxConfig::default() });
    conformance::cli::peer::main("kvlease", open, UcxTransport::arm)
}
