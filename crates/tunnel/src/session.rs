//! One WebSocket and the connections inside it.
//!
//! Both ends run the same [`Session`]; the client's additionally pings and dials what the server asks for.
//! Reading never blocks on a slow connection: each has its own queue, asks its peer to pause when that grows,
//! and is cut off when the peer does not listen.

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

/// A peer that says nothing for this long is gone.
pub const READ_DEADLINE: Duration = Duration::from_secs(60);
/// A server that does not answer the upgrade within this is no server.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// A WebSocket allocates its read buffer at once and clears it before every read. The default of 128 KiB would be most of
/// what an idle tunnel costs; larger frames are read as well.
const SOCKET_BUFFER: usize = 8 << 10;
const PING_PERIOD: Duration = Duration::from_secs(5);
const DIAL_LIMIT: Duration = Duration::from_secs(60);
/// Frames waiting for the socket. Small, so that a ping or a short answer is never far behind.
const QUEUE: usize = 16;
/// Short answers waiting for the socket. Far more than all connections of a busy tunnel can owe at once: a peer that
/// asks for so many and reads none of them is ended, before it costs the others their memory.
const CONTROL_QUEUE: usize = 65_536;

/// How both ends read and write their WebSocket.
pub(crate) fn socket_config() -> WebSocketConfig {
    WebSocketConfig::default().read_buffer_size(SOCKET_BUFFER).write_buffer_size(SOCKET_BUFFER)
}

/// A byte stream that a dial opened.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

/// A dial under way.
pub type Dialing = Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send>>;

/// How one end opens the connections that the other end asks for.
pub trait Dial: Send + Sync + 'static {
    /// Opens `proto`/`address`, or says why not: the text reaches the asking side as its read error.
    fn dial(&self, proto: String, address: String) -> Dialing;
}

/// Refuses everything: the server's end.
pub struct RefuseAll;

impl Dial for RefuseAll {
    fn dial(&self, _: String, _: String) -> Dialing {
        Box::pin(async { Err(io::Error::other("connect not allowed")) })
    }
}

/// Which end of the WebSocket this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Opened the WebSocket; pings.
    Client,
    /// Accepted it.
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

/// Where frames to the peer go.
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

    /// Frames that may overtake data: Pause, Resume, and answers about connections that have none.
    pub(crate) fn control(&self, conn: i64, body: Body) {
        let frame = self.encode(conn, body);
        // Closed only when the session is over, and then nothing is owed.
        if let Err(mpsc::error::TrySendError::Full(_)) = self.control.try_send(frame)
            && !self.ended.is_cancelled()
        {
            tracing::warn!("a tunnel is ended: its other end reads no answers");
            self.ended.cancel();
        }
    }

    /// A stream was dropped. `tell` when the peer does not know yet; behind its data, so it may have to wait.
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
    /// A connection to `address` as the other end sees it. Returns at once: the protocol has no answer to a
    /// Connect, so a refused dial shows as the first read's error.
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

/// Starts a session on an open WebSocket: a handle to dial with, and the future that runs it to its end.
///
/// Whatever ends it, open connections fail with `tunnel disconnect`, and all dialed ones are closed.
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
    // The original's server begins at 2; the numbers of the two ends never mix, since only one end dials.
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
            // An end is answered with an end, once; for a connection that is not there it is dropped.
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
        // Peering and the reaping of lost connections belong to servers with replicas.
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

/// Opens what the peer asked for and moves bytes both ways; either direction's end ends both.
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
        tracing::debug!(conn, %error, "tunnelled connection ended");
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
