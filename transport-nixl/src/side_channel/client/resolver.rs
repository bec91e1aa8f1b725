//! Names of peers.

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::Arc,
};

use tokio::{sync::Semaphore, task::spawn_blocking};

use crate::side_channel::host;

/// Of one name; more come from nobody who wants to be reached.
const MAX_ADDRESSES: usize = 16;

/// Looks names up, each on a thread of the runtime's, since the system's function waits.
///
/// It cannot be called off: a look-up that hangs keeps its thread when its handshake is long over. So their number is bounded here,
/// and not only the handshakes'; beyond it new ones wait, which costs nothing but their deadline. Addresses need none of this.
#[derive(Clone, Debug)]
pub(super) struct Resolver(Arc<Semaphore>);

impl Resolver {
    /// At most so many look-ups at once.
    pub(super) fn new(at_once: usize) -> Self {
        Self(Arc::new(Semaphore::new(at_once.min(Semaphore::MAX_PERMITS))))
    }

    /// IPv4 comes first, as for ZeroMQ: vLLM's P listens there unless its host is an IPv6 address.
    pub(super) async fn look_up(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let host = host::without_brackets(host);
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let permit = Arc::clone(&self.0).acquire_owned().await.map_err(io::Error::other)?;
        let host = host.to_owned();
        let looked_up = spawn_blocking(move || {
            let addresses = (&*host, port).to_socket_addrs().map(|found| found.take(MAX_ADDRESSES).collect::<Vec<_>>());
            drop(permit);
            addresses
        });
        let mut addresses = looked_up.await.map_err(io::Error::other)??;
        addresses.sort_by_key(SocketAddr::is_ipv6);
        Ok(addresses)
    }
}
