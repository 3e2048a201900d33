//! One connection inside a tunnel, as a byte stream.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio_util::sync::PollSender;

use crate::codec::{Body, EOF};
use crate::session::Outbox;

/// Received and not yet read beyond this: ask the peer to pause.
const PAUSE_ABOVE: usize = 1 << 21;
/// Read down to this: let it go on.
const RESUME_BELOW: usize = 256 << 10;
/// A peer that does not pause is cut off here; memory is not its to take.
const HARD_CAP: usize = 16 << 20;
const MAX_DATA: usize = 32 << 10;

/// What the session hands to a connection.
pub(crate) enum Inbound {
    Data(Bytes),
    Closed(String),
}

/// The session's end of a connection.
pub(crate) struct Handle {
    inbox: mpsc::UnboundedSender<Inbound>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Bytes received and not yet read.
    buffered: AtomicUsize,
    /// We asked the peer to pause.
    rx_paused: AtomicBool,
    /// The peer asked us to pause. Kept apart from `rx_paused`: the two directions are independent.
    tx_paused: AtomicBool,
    /// The peer has ended the connection.
    closed: AtomicBool,
    writer: AtomicWaker,
}

/// A connection through the tunnel. Reads give every byte that arrived before the end, then the end: a clean one
/// as end of file, any other as an error with the peer's text.
pub struct TunnelStream {
    conn: i64,
    inbox: mpsc::UnboundedReceiver<Inbound>,
    current: Bytes,
    ended: Option<String>,
    shared: Arc<Shared>,
    out: PollSender<Vec<u8>>,
    outbox: Outbox,
    shut: bool,
}

pub(crate) fn connection(conn: i64, outbox: Outbox) -> (Handle, TunnelStream) {
    let (sender, inbox) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared::default());
    let handle = Handle { inbox: sender, shared: shared.clone() };
    let out = PollSender::new(outbox.data());
    let stream =
        TunnelStream { conn, inbox, current: Bytes::new(), ended: None, shared, out, outbox, shut: false };
    (handle, stream)
}

/// What the session must do after it handed over data.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Fine,
    Pause,
    /// The peer ignores pauses, or the reader is gone: end this connection.
    Overrun,
}

impl Handle {
    pub(crate) fn data(&self, bytes: Bytes) -> Received {
        let buffered = self.shared.buffered.fetch_add(bytes.len(), Ordering::AcqRel) + bytes.len();
        if buffered > HARD_CAP || self.inbox.send(Inbound::Data(bytes)).is_err() {
            return Received::Overrun;
        }
        let pause = buffered > PAUSE_ABOVE && !self.shared.rx_paused.swap(true, Ordering::AcqRel);
        if pause { Received::Pause } else { Received::Fine }
    }

    pub(crate) fn close(&self, why: &str) {
        self.shared.closed.store(true, Ordering::Release);
        // The reader may be gone already, which is as good.
        let _ = self.inbox.send(Inbound::Closed(why.to_owned()));
        self.shared.writer.wake();
    }

    pub(crate) fn pause(&self, paused: bool) {
        self.shared.tx_paused.store(paused, Ordering::Release);
        self.shared.writer.wake();
    }
}

impl TunnelStream {
    fn took(&self, count: usize) {
        let left = self.shared.buffered.fetch_sub(count, Ordering::AcqRel) - count;
        if left < RESUME_BELOW && self.shared.rx_paused.swap(false, Ordering::AcqRel) {
            self.outbox.control(self.conn, Body::Resume);
        }
    }
}

impl AsyncRead for TunnelStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.current.has_remaining() {
                let count = self.current.len().min(buf.remaining());
                buf.put_slice(&self.current.split_to(count));
                self.took(count);
                return Poll::Ready(Ok(()));
            }
            if let Some(why) = &self.ended {
                let clean = why == EOF;
                return Poll::Ready(if clean { Ok(()) } else { Err(io::Error::other(why.clone())) });
            }
            match ready!(self.inbox.poll_recv(cx)) {
                Some(Inbound::Data(bytes)) => self.current = bytes,
                Some(Inbound::Closed(why)) => self.ended = Some(why),
                None => self.ended = Some("tunnel disconnect".into()),
            }
        }
    }
}

impl AsyncWrite for TunnelStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.shared.writer.register(cx.waker());
        if self.shut || self.shared.closed.load(Ordering::Acquire) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if self.shared.tx_paused.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        ready!(self.out.poll_reserve(cx)).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        let count = buf.len().min(MAX_DATA);
        let frame = self.outbox.encode(self.conn, Body::Data(Bytes::copy_from_slice(&buf[..count])));
        self.out.send_item(frame).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Every write is a frame in the session's queue already.
        Poll::Ready(Ok(()))
    }

    /// Ends the connection: the protocol knows no half-close.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.shut {
            // Through the same queue as the data, so that the end never overtakes it.
            if ready!(self.out.poll_reserve(cx)).is_ok() {
                let frame = self.outbox.encode(self.conn, Body::Error(EOF.into()));
                let _ = self.out.send_item(frame);
            }
            self.shut = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for TunnelStream {
    fn drop(&mut self) {
        self.outbox.forget(self.conn, !self.shut);
    }
}
