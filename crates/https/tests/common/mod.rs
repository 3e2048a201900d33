//! A server with short deadlines, and clients that speak TLS, HTTP/1.1 and HTTP/2 by hand.
#![allow(dead_code)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use drover_https::{ConnectionLimiter, Incoming, Limits, Peer};
use drover_testkit::tls::Authority;
use http::{Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Timeout of waits: long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// A deadline that the test expects to pass.
pub const SOON: Duration = Duration::from_millis(300);
/// A deadline that must not pass in the test.
pub const NEVER: Duration = Duration::from_secs(3600);

pub type Tls = TlsStream<TcpStream>;

/// Deadlines that never pass; each test shortens the one it checks.
pub fn patient() -> Limits {
    Limits { handshake: NEVER, headers: NEVER, idle: NEVER, stall: NEVER, ..Limits::default() }
}

pub struct Server {
    pub address: SocketAddr,
    pub limiter: ConnectionLimiter,
    pub authority: Authority,
    /// Sends a line to every watch.
    pub events: tokio::sync::broadcast::Sender<String>,
    _stop: DropGuard,
}

impl Server {
    pub async fn start(limits: Limits) -> Self {
        let authority = Authority::new("limits");
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], listener.local_addr().unwrap().port()));
        let mut tls = (*authority.identity().server(None)).clone();
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let (limiter, stop) = (ConnectionLimiter::new(limits), CancellationToken::new());
        let events = tokio::sync::broadcast::Sender::new(16);
        let sender = events.clone();
        let handler = move |request| answer(request, sender.clone());
        tokio::spawn(drover_https::serve_through(
            limiter.clone(),
            listener,
            Arc::new(tls),
            handler,
            stop.clone(),
        ));
        Self { address, limiter, authority, events, _stop: stop.drop_guard() }
    }

    pub async fn tcp(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Connects from another address of this host.
    pub async fn tcp_from(&self, last: u8) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    pub async fn tls(&self, protocol: &str) -> Tls {
        self.try_tls(self.tcp().await, protocol).await.unwrap()
    }

    pub async fn try_tls(&self, stream: TcpStream, protocol: &str) -> std::io::Result<Tls> {
        let mut config = self.authority.client();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect("localhost".try_into().unwrap(), stream).await
    }

    /// An HTTP/2 connection after its preface.
    pub async fn http2(&self) -> Tls {
        let mut tls = self.tls("h2").await;
        tls.write_all(&[PREFACE, &settings(&[])].concat()).await.unwrap();
        assert!(next(&mut tls, SETTINGS).await.is_some());
        tls.write_all(&frame(SETTINGS, ACK, 0, &[])).await.unwrap();
        tls
    }
}

async fn answer(
    mut request: Request<Incoming>,
    events: tokio::sync::broadcast::Sender<String>,
) -> Response<UnsyncBoxBody<Bytes, std::convert::Infallible>> {
    let peer = request.extensions().get::<Peer>().cloned().unwrap();
    if request.headers().contains_key(header::AUTHORIZATION) {
        peer.mark_authenticated();
    }
    match request.uri().path() {
        "/watch" => {
            let events = events.subscribe();
            let stream = futures::stream::unfold(events, |mut events| async {
                let line = events.recv().await.ok()?;
                Some((Ok(Frame::data(Bytes::from(line))), events))
            });
            Response::new(StreamBody::new(futures::StreamExt::boxed(stream)).boxed_unsync())
        }
        "/never" => std::future::pending().await,
        "/large" => {
            let chunk = || Ok(Frame::data(Bytes::from_static(&[b'x'; 64 << 10])));
            Response::new(
                StreamBody::new(futures::stream::iter((0..4096).map(move |_| chunk()))).boxed_unsync(),
            )
        }
        "/read" => {
            let length = request.into_body().collect().await.map_or(0, |body| body.to_bytes().len());
            Response::new(Full::from(length.to_string()).boxed_unsync())
        }
        "/413" => {
            let mut response = Response::new(Full::from("too large, and here is why\n").boxed_unsync());
            *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
            response
        }
        "/echo" => {
            let upgraded = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let (mut read, mut write) = tokio::io::split(TokioIo::new(upgraded.await.unwrap()));
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
            let mut response = Response::new(Empty::new().boxed_unsync());
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response.headers_mut().insert(header::CONNECTION, "upgrade".parse().unwrap());
            response.headers_mut().insert(header::UPGRADE, "echo".parse().unwrap());
            response
        }
        _ => Response::new(Full::from("ok").boxed_unsync()),
    }
}

/// Waits until the other side has closed; returns what it sent before.
pub async fn closed(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Vec<u8> {
    let mut received = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut received)).await;
    // A reset, or an end without close_notify, counts as closed.
    let _ = ended.expect("the connection is still open");
    received
}

/// Sends an HTTP/1.1 request and reads the head of the answer.
pub async fn ask(stream: &mut Tls, path: &str, headers: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    read_until(stream, "\r\n\r\n").await
}

pub async fn read_until(stream: &mut Tls, end: &str) -> String {
    let mut received = Vec::new();
    let reading = async {
        while !received.ends_with(end.as_bytes()) {
            match stream.read_u8().await {
                Ok(byte) => received.push(byte),
                Err(_) => break,
            }
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("no answer");
    String::from_utf8(received).unwrap()
}

/// Authenticates a request.
pub const AUTHENTICATED: &str = "Authorization: Bearer x\r\n";

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
pub const ACK: u8 = 1;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

pub fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let payload: Vec<u8> = values
        .iter()
        .flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
        .collect();
    frame(SETTINGS, 0, 0, &payload)
}

/// The header block of a GET, made of HPACK's static table and literals.
pub fn get(path: &str, authenticated: bool) -> Vec<u8> {
    let mut block = vec![0x82, 0x87, 0x01, 9];
    block.extend(b"localhost");
    block.extend([0x04, u8::try_from(path.len()).unwrap()]);
    block.extend(path.as_bytes());
    if authenticated {
        // "authorization" is entry 23.
        block.extend([0x0f, 23 - 15, 1, b'x']);
    }
    block
}

/// Reads frames until one of this kind arrives; returns its stream and payload.
pub async fn next(stream: &mut Tls, kind: u8) -> Option<(u32, Vec<u8>)> {
    let reading = async {
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.ok()?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            stream.read_exact(&mut payload).await.ok()?;
            if head[3] == kind {
                return Some((u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload));
            }
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("no such frame")
}
