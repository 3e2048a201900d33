//! One WebSocket and the connections inside it.
//!
//! Both ends run the same [`Session`]; the client also sends pings and dials what the server requests.
//! Reading never waits for a slow connection: each has its own queue, asks its peer to pause when the queue grows,
//! and is closed if the peer does not pause.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt, Stream, StreamExt};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Error;
use crate::codec::{Body, Frame};
use crate::stream::{self, Handle, Received, TunnelStream};

/// A peer that sends nothing for this long is considered dead.
pub const READ_DEADLINE: Duration = Duration::from_secs(60);
/// The time limit for the response to the upgrade request.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// A WebSocket allocates its read buffer at once and clears it before every read. The default of 128 KiB would be most
/// of the memory of an idle tunnel. Larger frames work too.
const SOCKET_BUFFER: usize = 8 << 10;
const PING_PERIOD: Duration = Duration::from_secs(5);
const DIAL_LIMIT: Duration = Duration::from_secs(60);
/// Frames waiting to be sent. Small, so that pings and control frames are sent soon.
const QUEUE: usize = 16;
/// Control frames waiting to be sent. The limit is far above what all connections of a busy tunnel need: a session
/// whose peer causes that many and reads none of them is ended, before it uses the memory of the others.
const CONTROL_QUEUE: usize = 65_536;

/// The WebSocket options of both ends.
pub(crate) fn socket_config() -> WebSocketConfig {
    WebSocketConfig::default().read_buffer_size(SOCKET_BUFFER).write_buffer_size(SOCKET_BUFFER)
}

/// A byte stream to the dialed address.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

/// A running dial.
pub type Dialing = Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send>>;

/// How one end opens the connections that the other end requests.
pub trait Dial: Send + Sync + 'static {
    /// Opens `proto`/`address`. The text of an error becomes the read error of the requesting side.
    fn dial(&self, proto: String, address: String) -> Dialing;
}

/// Rejects all requests: used by the server.
pub struct RefuseAll;

impl Dial for RefuseAll {
    fn dial(&self, _: String, _: String) -> Dialing {
        Box::pin(async { Err(io::Error::other("connect not allowed")) })
    }
}

/// The end of the WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Opened the WebSocket; sends pings.
    Client,
    /// Accepted the WebSocket.
    Server,
}

/// A running tunnel, for dialing through it. Clones share it.
#[derive(Clone)]
pub struct Session {
    outbox: Outbox,
    next_conn: Arc<AtomicI64>,
    traffic: Arc<Traffic>,
}

/// Bytes of all frames since the session began.
#[derive(Debug, Default)]
struct Traffic {
    received: AtomicU64,
    sent: AtomicU64,
}

/// Sends frames to the peer.
#[derive(Clone)]
pub(crate) struct Outbox {
    data: mpsc::Sender<Vec<u8>>,
    control: mpsc::Sender<Vec<u8>>,
    next_id: Arc<AtomicI64>,
    connections: Arc<Mutex<HashMap<i64, Handle>>>,
    ended: CancellationToken,
}

impl Outbox {
    pub(crate) fn data(&self) -> mpsc::Sender<Vec<u8>> {
        self.data.clone()
    }

    pub(crate) fn encode(&self, conn: i64, body: Body) -> Vec<u8> {
        Frame { id: self.next_id.fetch_add(1, Ordering::Relaxed) & i64::MAX, conn, body }.encode()
    }

    /// Sends a frame that may overtake data: Pause, Resume, and errors for unknown connections.
    pub(crate) fn control(&self, conn: i64, body: Body) {
        let frame = self.encode(conn, body);
        // Closed only after the session ended, when the frame is no longer needed.
        if let Err(mpsc::error::TrySendError::Full(_)) = self.control.try_send(frame)
            && !self.ended.is_cancelled()
        {
            tracing::warn!("ending a tunnel: the peer does not read its control frames");
            self.ended.cancel();
        }
    }

    /// A stream was dropped. With `tell`, the peer is notified after the remaining data, which can wait.
    pub(crate) fn forget(&self, conn: i64, tell: bool) {
        let open = self.connections.lock().remove(&conn).is_some();
        if !tell || !open || self.ended.is_cancelled() {
            return;
        }
        let frame = self.encode(conn, Body::Error(crate::codec::EOF.into()));
        if let Err(mpsc::error::TrySendError::Full(frame)) = self.data.try_send(frame) {
            let data = self.data.clone();
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(async move { data.send(frame).await });
            }
        }
    }

    fn open(&self, conn: i64) -> TunnelStream {
        let (handle, stream) = stream::connection(conn, self.clone());
        self.connections.lock().insert(conn, handle);
        stream
    }
}

impl Session {
    /// Opens a connection to `address` from the other end. Returns at once: the protocol has no response to Connect, so
    /// a failed dial becomes the error of the first read.
    pub async fn dial(&self, proto: &str, address: &str) -> Result<TunnelStream, Error> {
        let conn = self.next_conn.fetch_add(1, Ordering::Relaxed);
        let stream = self.outbox.open(conn);
        let connect = Body::Connect { proto: proto.to_owned(), address: address.to_owned() };
        let frame = self.outbox.encode(conn, connect);
        self.outbox.data.send(frame).await.map_err(|_| Error::Closed)?;
        Ok(stream)
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        self.outbox.connections.lock().len()
    }

    /// Bytes of all frames received and sent since the session began.
    pub fn traffic(&self) -> (u64, u64) {
        (self.traffic.received.load(Ordering::Relaxed), self.traffic.sent.load(Ordering::Relaxed))
    }

    pub fn is_ended(&self) -> bool {
        self.outbox.ended.is_cancelled()
    }

    /// Ends the tunnel and every connection in it.
    pub fn end(&self) {
        self.outbox.ended.cancel();
    }
}

/// Starts a session on an open WebSocket. Returns a handle and the future that runs it until it ends.
///
/// At the end, open connections fail with `tunnel disconnect`, and all dialed ones are closed.
pub fn start<S>(
    socket: WebSocketStream<S>,
    role: Role,
    dial: Arc<dyn Dial>,
) -> (Session, impl Future<Output = Error> + Send)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (data, data_rx) = mpsc::channel(QUEUE);
    let (control, control_rx) = mpsc::channel(CONTROL_QUEUE);
    let outbox = Outbox {
        data,
        control,
        next_id: Arc::new(AtomicI64::new(i64::from(rand::random::<u32>()))),
        connections: Arc::default(),
        ended: CancellationToken::new(),
    };
    // The original's server starts at 2. The numbers of the two ends do not conflict, because only one end dials.
    let traffic = Arc::new(Traffic::default());
    let next_conn = Arc::new(AtomicI64::new(2));
    let session = Session { outbox: outbox.clone(), next_conn, traffic: traffic.clone() };
    let run = async move {
        let (sink, source) = socket.split();
        let dialed = TaskTracker::new();
        let ended = outbox.ended.clone();
        let error = tokio::select! {
            error = read(source, &outbox, &dial, &dialed, &traffic.received) => error,
            error = write(sink, data_rx, control_rx, role, &traffic.sent) => error,
            () = ended.cancelled() => Error::Closed,
        };
        ended.cancel();
        for (_, handle) in outbox.connections.lock().drain() {
            handle.close("tunnel disconnect");
        }
        dialed.close();
        dialed.wait().await;
        error
    };
    (session, run)
}

async fn read(
    mut source: impl Stream<Item = Result<Message, tungstenite::Error>> + Unpin,
    outbox: &Outbox,
    dial: &Arc<dyn Dial>,
    dialed: &TaskTracker,
    received: &AtomicU64,
) -> Error {
    loop {
        let message = match tokio::time::timeout(READ_DEADLINE, source.next()).await {
            Err(_) => return Error::Silent,
            Ok(None) => return Error::Closed,
            Ok(Some(Err(error))) => return error.into(),
            Ok(Some(Ok(message))) => message,
        };
        let bytes = match message {
            Message::Binary(bytes) => bytes,
            Message::Text(_) => return Error::TextMessage,
            Message::Close(_) => return Error::Closed,
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
        };
        received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        match Frame::decode(bytes) {
            Ok(frame) => on_frame(frame, outbox, dial, dialed),
            Err(error) => return error.into(),
        }
    }
}

fn on_frame(frame: Frame, outbox: &Outbox, dial: &Arc<dyn Dial>, dialed: &TaskTracker) {
    let conn = frame.conn;
    match frame.body {
        Body::Data(bytes) => on_data(conn, bytes, outbox),
        Body::Connect { proto, address } => {
            let stream = outbox.open(conn);
            let opening = dial.dial(proto, address);
            let (outbox, ended) = (outbox.clone(), outbox.ended.clone());
            dialed.spawn(async move {
                tokio::select! {
                    () = serve(conn, stream, opening, outbox) => {}
                    () = ended.cancelled() => {}
                }
            });
        }
        Body::Error(why) => {
            // Respond to the end of a connection once; for an unknown connection, ignore it.
            if let Some(handle) = outbox.connections.lock().remove(&conn) {
                handle.close(&why);
                outbox.control(conn, Body::Error(why));
            }
        }
        Body::Pause | Body::Resume => {
            if let Some(handle) = outbox.connections.lock().get(&conn) {
                handle.pause(frame.body == Body::Pause);
            }
        }
        // Peering and the cleanup of lost connections are only for servers with replicas.
        Body::AddClient(_) | Body::RemoveClient(_) | Body::Sync(_) | Body::Unknown(_) => {}
    }
}

fn on_data(conn: i64, bytes: Bytes, outbox: &Outbox) {
    let mut connections = outbox.connections.lock();
    let received = connections.get(&conn).map(|handle| handle.data(bytes));
    match received {
        Some(Received::Fine) => {}
        Some(Received::Pause) => outbox.control(conn, Body::Pause),
        Some(Received::Overrun) => {
            if let Some(handle) = connections.remove(&conn) {
                handle.close("receive buffer overrun");
            }
            outbox.control(conn, Body::Error("receive buffer overrun".into()));
        }
        None => outbox.control(conn, Body::Error(format!("connection not found {conn}"))),
    }
}

/// Dials for the peer and copies bytes in both directions; the end of either direction ends both.
async fn serve(conn: i64, mut stream: TunnelStream, opening: Dialing, outbox: Outbox) {
    let opened = match tokio::time::timeout(DIAL_LIMIT, opening).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => return refuse(conn, &outbox, &error.to_string()),
        Err(_) => return refuse(conn, &outbox, "dial timed out"),
    };
    let (mut local_read, mut local_write) = tokio::io::split(opened);
    let (mut tunnel_read, mut tunnel_write) = tokio::io::split(&mut stream);
    let failed = tokio::select! {
        sent = tokio::io::copy(&mut local_read, &mut tunnel_write) => sent.err(),
        received = tokio::io::copy(&mut tunnel_read, &mut local_write) => received.err(),
    };
    if let Some(error) = failed {
        tracing::debug!(conn, %error, "tunneled connection ended");
    }
    let _ = local_write.shutdown().await;
    drop((tunnel_read, tunnel_write));
    let _ = stream.shutdown().await;
}

fn refuse(conn: i64, outbox: &Outbox, why: &str) {
    if outbox.connections.lock().remove(&conn).is_some() {
        outbox.control(conn, Body::Error(why.chars().take(90).collect()));
    }
}

async fn write<K>(
    mut sink: K,
    mut data: mpsc::Receiver<Vec<u8>>,
    mut control: mpsc::Receiver<Vec<u8>>,
    role: Role,
    total: &AtomicU64,
) -> Error
where
    K: futures::Sink<Message, Error = tungstenite::Error> + Unpin,
{
    let mut ping = tokio::time::interval(PING_PERIOD);
    ping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            biased;
            _ = ping.tick(), if role == Role::Client => Message::Ping(Bytes::new()),
            Some(frame) = control.recv() => Message::Binary(frame.into()),
            Some(frame) = data.recv() => Message::Binary(frame.into()),
            else => return Error::Closed,
        };
        let length = message.len() as u64;
        let sent = tokio::time::timeout(READ_DEADLINE, sink.send(message)).await;
        match sent {
            Ok(Ok(())) => _ = total.fetch_add(length, Ordering::Relaxed),
            Ok(Err(error)) => return error.into(),
            Err(_) => return Error::Silent,
        }
    }
}
