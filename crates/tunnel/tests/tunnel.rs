//! Two ends of a tunnel over real sockets.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{echo, loopback, tunnel_server};
use drover_tunnel::codec::{Body, Frame};
use drover_tunnel::{Error, Registry, client};
use futures::{SinkExt, StreamExt};
use http::{HeaderMap, Uri};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

const SOON: Duration = Duration::from_secs(90);

fn headers(client: &str, token: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("x-client", client.parse().unwrap());
    headers.insert("x-api-tunnel-token", token.parse().unwrap());
    headers
}

async fn connected(registry: &Registry, name: &str) -> tokio::task::JoinHandle<Error> {
    let address = tunnel_server(registry.clone()).await;
    let uri: Uri = format!("ws://{address}/v3/connect").parse().unwrap();
    let io = TcpStream::connect(address).await.unwrap();
    let (_session, run) = client::connect(io, &uri, headers(name, "secret"), loopback()).await.unwrap();
    let running = tokio::spawn(run);
    wait_until(|| registry.is_connected(name)).await;
    running
}

async fn wait_until(mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + SOON;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "the condition did not come true");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_connections_share_one_tunnel_without_mixing_their_bytes() {
    let registry = Registry::default();
    let _running = connected(&registry, "c").await;
    let target = echo().await.to_string();
    let mut tasks = vec![];
    for n in 0..20u8 {
        let (registry, target) = (registry.clone(), target.clone());
        tasks.push(tokio::spawn(async move {
            let stream = registry.dial("c", "tcp", &target).await.unwrap();
            let (mut read, mut write) = tokio::io::split(stream);
            let sent = vec![n; 1 << 20];
            let copy = sent.clone();
            let writer = tokio::spawn(async move {
                write.write_all(&copy).await.unwrap();
                write
            });
            let mut received = vec![0; sent.len()];
            read.read_exact(&mut received).await.unwrap();
            assert!(received == sent, "stream {n} received other bytes");
            writer.await.unwrap();
        }));
    }
    for task in tasks {
        tokio::time::timeout(SOON, task).await.unwrap().unwrap();
    }
}

/// access#9.
#[tokio::test]
async fn access_check_9_a_rejected_dial_fails_the_read_with_its_text() {
    let registry = Registry::default();
    let _running = connected(&registry, "c").await;
    let mut stream = registry.dial("c", "udp", "127.0.0.1:1").await.unwrap();
    let error = tokio::time::timeout(SOON, stream.read_u8()).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("udp is not allowed"), "{error}");
}

#[tokio::test]
async fn a_wrong_token_is_rejected_with_the_servers_message() {
    let registry = Registry::default();
    let address = tunnel_server(registry.clone()).await;
    let uri: Uri = format!("ws://{address}/v3/connect").parse().unwrap();
    let io = TcpStream::connect(address).await.unwrap();
    let Err(error) = client::connect(io, &uri, headers("c", "wrong"), loopback()).await else {
        panic!("must be rejected")
    };
    assert!(
        matches!(&error, Error::Refused { status: 401, body } if body == "failed authentication"),
        "{error:?}"
    );
    assert!(matches!(registry.dial("c", "tcp", "x:1").await, Err(Error::NoSession(_))));
}

/// access#11, the part about connections; and the client's run ends when the server ends the session.
#[tokio::test]
async fn the_end_of_a_session_ends_its_connections_and_its_registration() {
    let registry = Registry::default();
    let running = connected(&registry, "c").await;
    let target = echo().await.to_string();
    let mut stream = registry.dial("c", "tcp", &target).await.unwrap();
    stream.write_all(b"x").await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'x');
    let mut changes = registry.changes();
    registry.disconnect("c");
    let error = tokio::time::timeout(SOON, stream.read_u8()).await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "tunnel disconnect");
    tokio::time::timeout(SOON, running).await.unwrap().unwrap();
    assert_eq!(changes.recv().await.unwrap(), "c");
    assert!(!registry.is_connected("c"));
}

/// A raw client, for messages that our client never sends.
async fn raw(registry: &Registry) -> tokio_tungstenite::WebSocketStream<TcpStream> {
    let address = tunnel_server(registry.clone()).await;
    let uri: Uri = format!("ws://{address}/v3/connect").parse().unwrap();
    let mut request =
        tokio_tungstenite::tungstenite::client::IntoClientRequest::into_client_request(&uri).unwrap();
    request.headers_mut().extend(headers("raw", "secret"));
    let io = TcpStream::connect(address).await.unwrap();
    let (socket, _) = tokio_tungstenite::client_async(request, io).await.unwrap();
    wait_until(|| registry.is_connected("raw")).await;
    socket
}

/// A session whose peer causes control frames and never reads is ended, so that they do not fill the memory.
#[tokio::test(flavor = "multi_thread")]
async fn the_session_of_a_peer_that_reads_nothing_is_ended() {
    let registry = Registry::default();
    let mut socket = raw(&registry).await;
    // The sockets' own buffers can hold some hundred thousand short frames.
    for id in 0..4_000_000 {
        let nobodys = Frame { id, conn: 999, body: Body::Data(Default::default()) }.encode();
        if socket.send(Message::Binary(nobodys.into())).await.is_err() {
            break;
        }
    }
    wait_until(|| !registry.is_connected("raw")).await;
}

/// access#4, on the wire.
#[tokio::test]
async fn access_check_4_an_unknown_type_is_ignored_and_a_text_ends_the_session() {
    let registry = Registry::default();
    let mut socket = raw(&registry).await;
    let unknown = Frame { id: 1, conn: 2, body: Body::Unknown(99) }.encode();
    socket.send(Message::Binary(unknown.into())).await.unwrap();
    let mut stream = registry.dial("raw", "tcp", "somewhere:1").await.unwrap();
    let connect = Frame::decode(next_binary(&mut socket).await).unwrap();
    assert_eq!(connect.body, Body::Connect { proto: "tcp".into(), address: "somewhere:1".into() });
    // access#10: all data, then the end.
    for body in [Body::Data(b"all of it".to_vec().into()), Body::Error("EOF".into())] {
        let frame = Frame { id: 2, conn: connect.conn, body }.encode();
        socket.send(Message::Binary(frame.into())).await.unwrap();
    }
    let mut all = String::new();
    tokio::time::timeout(SOON, stream.read_to_string(&mut all)).await.unwrap().unwrap();
    assert_eq!(all, "all of it");
    socket.send(Message::Text("hello".into())).await.unwrap();
    wait_until(|| !registry.is_connected("raw")).await;
}

/// access#7.
#[tokio::test]
async fn access_check_7_a_stalled_reader_sends_one_pause_and_later_one_resume() {
    let registry = Registry::default();
    let mut socket = raw(&registry).await;
    let mut stream = registry.dial("raw", "tcp", "somewhere:1").await.unwrap();
    let conn = Frame::decode(next_binary(&mut socket).await).unwrap().conn;
    for _ in 0..96 {
        let data = Frame { id: 1, conn, body: Body::Data(vec![7; 32 << 10].into()) }.encode();
        socket.send(Message::Binary(data.into())).await.unwrap();
    }
    assert_eq!(Frame::decode(next_binary(&mut socket).await).unwrap().body, Body::Pause);
    let mut all = vec![0; 3 << 20];
    tokio::time::timeout(SOON, stream.read_exact(&mut all)).await.unwrap().unwrap();
    assert_eq!(Frame::decode(next_binary(&mut socket).await).unwrap().body, Body::Resume);
    drop(stream);
    assert_eq!(Frame::decode(next_binary(&mut socket).await).unwrap().body, Body::Error("EOF".into()));
}

#[tokio::test]
async fn a_paused_writer_waits_until_it_may_go_on() {
    let registry = Registry::default();
    let mut socket = raw(&registry).await;
    let mut stream = registry.dial("raw", "tcp", "somewhere:1").await.unwrap();
    let conn = Frame::decode(next_binary(&mut socket).await).unwrap().conn;
    let pause = Frame { id: 1, conn, body: Body::Pause }.encode();
    socket.send(Message::Binary(pause.into())).await.unwrap();
    // The pause is sent; after it arrives, no write completes.
    let paused = async {
        while tokio::time::timeout(Duration::from_millis(200), stream.write_all(b"x")).await.is_ok() {}
    };
    tokio::time::timeout(SOON, paused).await.unwrap();
    let resume = Frame { id: 1, conn, body: Body::Resume }.encode();
    socket.send(Message::Binary(resume.into())).await.unwrap();
    tokio::time::timeout(SOON, stream.write_all(b"on")).await.unwrap().unwrap();
}

async fn next_binary(socket: &mut tokio_tungstenite::WebSocketStream<TcpStream>) -> bytes::Bytes {
    loop {
        match tokio::time::timeout(SOON, socket.next()).await.unwrap().unwrap().unwrap() {
            Message::Binary(bytes) => return bytes,
            Message::Ping(_) | Message::Pong(_) => {}
            other => panic!("unexpected {other:?}"),
        }
    }
}
