//! Waiting on a tokio runtime (feature `tokio`).

use lease_proto::{time::Duration, transport::Control as _};
use rustix::io::Errno;
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::yield_now,
    time::timeout,
};

use crate::{UcxError, UcxTransport};

impl UcxTransport {
    /// Waits, and lets other tasks run, until [`Control::poll`](lease_proto::transport::Control::poll) may have something or the
    /// transport wants to be polled for its own sake: poll until it has nothing, then wait again.
    ///
    /// For runtimes of one thread, where the transport is: a current-thread runtime, or a `LocalSet`. Dropping the future loses
    /// nothing.
    ///
    /// ```
    /// # use lease_proto::{frame::{Frame, HEADER}, id::Incarnation};
    /// use lease_proto::transport::{Control as _, Incoming, PeerId};
    /// use transport_ucx::{UcxConfig, UcxError, UcxTransport};
    ///
    /// async fn next_notification(transport: &mut UcxTransport) -> Result<Vec<u8>, UcxError> {
    ///     loop {
    ///         match transport.poll()? {
    ///             Some(Incoming::Notification { bytes, .. }) => return Ok(bytes.to_vec()),
    ///             Some(_) => {}
    ///             None => transport.ready().await?,
    ///         }
    ///     }
    /// }
    /// # async fn connected(transport: &mut UcxTransport) -> Result<PeerId, UcxError> {
    /// #     loop {
    /// #         match transport.poll()? {
    /// #             Some(Incoming::Connected { peer, .. }) => return Ok(peer),
    /// #             Some(_) => {}
    /// #             None => transport.ready().await?,
    /// #         }
    /// #     }
    /// # }
    ///
    /// let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    /// tokio::task::LocalSet::new().block_on(&runtime, async {
    ///     let config = UcxConfig { tls: Some("tcp".to_owned()), ..UcxConfig::default() };
    ///     let (mut holder, mut reader) = (UcxTransport::new(config.clone())?, UcxTransport::new(config)?);
    ///     # let mut metadata = vec![0; holder.local_metadata().len() + HEADER];
    ///     # Frame::encode(Incarnation(1), holder.local_metadata(), &mut metadata)?;
    ///     let holder = tokio::task::spawn_local(async move { next_notification(&mut holder).await });
    ///     // … connect, as elsewhere …
    ///     # reader.connect(Frame::decode(&metadata)?)?;
    ///     # let peer = connected(&mut reader).await?;
    ///     reader.notify(peer, b"renew")?;
    ///     assert_eq!(holder.await??, b"renew");
    ///     # Ok::<(), Box<dyn std::error::Error>>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `BackendFailed`.
    ///
    /// # Panics
    /// Outside a runtime with its I/O and its time enabled, as all of tokio does.
    pub async fn ready(&mut self) -> Result<(), UcxError> {
        self.collect(); // may leave something to do
        let most = self.next_timeout().unwrap_or(Duration::MAX);
        let Some(fd) = self.arm()? else {
            // Something is there, for which another task may have to do its part.
            yield_now().await;
            return Ok(());
        };
        // Registered for each wait anew: the descriptor tells what has come since it was armed, and is told of no more.
        // (Deprecated since tokio 1.54 for types whose descriptor may change, in favour of an unsafe one. A borrowed one's cannot.)
        #[allow(deprecated)]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE).map_err(failed)?;
        match timeout(most.into(), fd.readable()).await {
            Ok(readable) => readable.map(drop).map_err(failed),
            Err(_elapsed) => Ok(()),
        }
    }
}

fn failed(error: std::io::Error) -> UcxError {
    UcxError::Wait(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
