//! The socket of a connection: counts what moves, and is closed so that the last answer arrives.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::activity::Activity;
use crate::limits::{LINGER_BYTES, LINGER_LIMIT, PROBE_AFTER, PROBE_EVERY, UNREAD_LIMIT};

/// Lets the kernel find peers that are gone, or take nothing of what they are sent. A peer that reads slowly, or has
/// nothing to say, stays.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    let probes = socket2::TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY);
    socket.set_tcp_keepalive(&probes)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNREAD_LIMIT))?;
    Ok(())
}

/// Keeps the connection's place until the socket is closed.
#[derive(Debug)]
pub(crate) struct Held(pub(crate) Arc<Activity>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.place.leave();
    }
}

/// A socket after the handshake; also what an upgraded connection goes on with.
pub(crate) struct Socket {
    /// Both until it is dropped.
    stream: Option<(TlsStream<TcpStream>, Held)>,
    /// The peer sends nothing more, and we said that we do not.
    ended: bool,
    shut: bool,
}

impl Socket {
    pub(crate) fn new(stream: TlsStream<TcpStream>, held: Held) -> Self {
        Self { stream: Some((stream, held)), ended: false, shut: false }
    }

    fn parts(&mut self) -> io::Result<(Pin<&mut TlsStream<TcpStream>>, &Activity)> {
        let (stream, held) = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        Ok((Pin::new(stream), &held.0))
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
    /// A socket that is closed with unread bytes resets the connection, and the peer may lose an answer that it has not
    /// read yet, for instance why its request is too large. So what it still sends is read, for a moment.
    fn drop(&mut self) {
        let Some((stream, held)) = self.stream.take() else { return };
        if !self.shut || self.ended || held.0.is_cut() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(linger(stream.into_inner().0, held));
        }
    }
}

async fn linger(stream: TcpStream, held: Held) {
    let mut sink = tokio::io::sink();
    let mut rest = stream.take(LINGER_BYTES);
    let reading = tokio::io::copy(&mut rest, &mut sink);
    tokio::select! {
        _ = tokio::time::timeout(LINGER_LIMIT, reading) => {}
        () = held.0.place.evicted.cancelled() => {}
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_looks_for_peers_that_are_gone_or_do_not_read() {
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
