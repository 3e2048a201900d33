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

/// If more unread bytes are buffered, ask the peer to pause.
const PAUSE_ABOVE: usize = 1 << 21;
/// If fewer unread bytes are buffered, ask the peer to resume.
const RESUME_BELOW: usize = 256 << 10;
/// A connection whose peer does not pause is closed at this size, to limit its memory.
const HARD_CAP: usize = 16 << 20;
const MAX_DATA: usize = 32 << 10;

/// A message from the session to a connection.
pub(crate) enum Inbound {
    Data(Bytes),
    Closed(String),
}

/// The session's handle of a connection.
pub(crate) struct Handle {
    inbox: mpsc::UnboundedSender<Inbound>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The number of buffered unread bytes.
    buffered: AtomicUsize,
    /// This end asked the peer to pause.
    rx_paused: AtomicBool,
    /// The peer asked this end to pause. Separate from `rx_paused`, because the directions are independent.
    tx_paused: AtomicBool,
    /// The peer has ended the connection.
    closed: AtomicBool,
    writer: AtomicWaker,
}

/// A connection through the tunnel. All bytes that arrived before the end can be read, then the end: a regular end is
/// an end of file, any other an error with the peer's text.
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

/// What the session must do after it delivered data.
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
        // Fails only if the reader is gone, which is fine.
        let _ = self.inbox.send(Inbound::Closed(why.to_owned()));
        self.shared.writer.wake();
    }

    pub(crate) fn pause(&self, paused: bool) {
        self.shared.tx_paused.store(paused, Ordering::Release);
        self.shared.writer.wake();
    }
}

impl TunnelStream {
    fn consumed(&self, count: usize) {
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
                self.consumed(count);
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
        // Every write is already a frame in the session's queue.
        Poll::Ready(Ok(()))
    }

    /// Ends the connection, because the protocol does not support half-close.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.shut {
            // Through the same queue as the data, so that it does not overtake them.
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
