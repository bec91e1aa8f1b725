//! A process whose transport is raw UCX.

use transport_ucx::{UcxConfig, UcxTransport};

fn main() -> std::process::ExitCode {
    conformance::cli::peer::main("kvlease-peer-ucx", |lane| {
        UcxTransport::new(UcxConfig { tls: lane.map(str::to_owned), ..UcxConfig::default() })
    })
}
