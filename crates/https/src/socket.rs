//! The socket of a connection: counts the bytes, and closes so that the last response arrives.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::activity::Activity;
use crate::limits::{LINGER_BYTES, LINGER_LIMIT, PROBE_AFTER, PROBE_EVERY, UNREAD_LIMIT};

/// Enables the kernel to detect peers that are dead or do not read at all. Slow and silent peers stay connected.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    let probes = socket2::TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY);
    socket.set_tcp_keepalive(&probes)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNREAD_LIMIT))?;
    Ok(())
}

/// Keeps the connection counted until the socket is closed.
#[derive(Debug)]
pub(crate) struct SlotGuard(pub(crate) Arc<Activity>);

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.0.slot.leave();
    }
}

/// A socket after the handshake, also after an upgrade.
pub(crate) struct Socket {
    /// `None` once dropped.
    stream: Option<(TlsStream<TcpStream>, SlotGuard)>,
    /// The peer has ended its side; `shut`: we have ended ours.
    ended: bool,
    shut: bool,
}

impl Socket {
    pub(crate) fn new(stream: TlsStream<TcpStream>, guard: SlotGuard) -> Self {
        Self { stream: Some((stream, guard)), ended: false, shut: false }
    }

    fn parts(&mut self) -> io::Result<(Pin<&mut TlsStream<TcpStream>>, &Activity)> {
        let (stream, guard) = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        Ok((Pin::new(stream), &guard.0))
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let (stream, activity) = self.parts()?;
        let read = stream.poll_read(cx, buffer);
        let bytes = buffer.filled().len() - before;
        if bytes > 0 {
            activity.read(bytes);
        } else if matches!(read, Poll::Ready(Ok(()))) && buffer.remaining() > 0 {
            self.ended = true;
        }
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let (stream, activity) = self.parts()?;
        let wrote = stream.poll_write(cx, bytes);
        if let Poll::Ready(Ok(bytes)) = &wrote {
            activity.wrote(*bytes);
        }
        wrote
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let (stream, activity) = self.parts()?;
        let wrote = stream.poll_write_vectored(cx, bytes);
        if let Poll::Ready(Ok(bytes)) = &wrote {
            activity.wrote(*bytes);
        }
        wrote
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(|(stream, _)| stream.is_write_vectored())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.parts()?.0.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = self.parts()?.0.poll_shutdown(cx);
        self.shut |= matches!(shut, Poll::Ready(Ok(())));
        shut
    }
}

impl Drop for Socket {
    /// Closing a socket with unread bytes resets the connection, and the peer may lose a response that it has not read
    /// yet, for instance why its request is too large. Therefore the rest is read for a moment.
    fn drop(&mut self) {
        let Some((stream, guard)) = self.stream.take() else { return };
        if !self.shut || self.ended || guard.0.is_cut() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(linger(stream.into_inner().0, guard));
        }
    }
}

async fn linger(stream: TcpStream, guard: SlotGuard) {
    let mut sink = tokio::io::sink();
    let mut rest = stream.take(LINGER_BYTES);
    let reading = tokio::io::copy(&mut rest, &mut sink);
    tokio::select! {
        _ = tokio::time::timeout(LINGER_LIMIT, reading) => {}
        () = guard.0.slot.evicted.cancelled() => {}
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_detects_peers_that_are_dead_or_do_not_read() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        prepare(&stream).unwrap();
        let socket = socket2::SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), PROBE_AFTER);
        #[cfg(target_os = "linux")]
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(UNREAD_LIMIT));
    }
}
