//! Silent peers are considered dead; time is simulated.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::loopback;
use drover_tunnel::session::READ_DEADLINE;
use drover_tunnel::{Registry, client};
use futures::{SinkExt, StreamExt};
use http::{HeaderMap, Uri};
use tokio::io::{AsyncReadExt, DuplexStream};
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

/// Longer than any step takes that does not wait for the clock.
const MOMENT: Duration = Duration::from_secs(1);
/// The interval at which a client sends something.
const PING_PERIOD: Duration = Duration::from_secs(5);

/// A peer that sends only what the test sends, and the end of its session.
async fn peer(
    registry: &Registry,
) -> (WebSocketStream<DuplexStream>, tokio::task::JoinHandle<drover_tunnel::Error>) {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let serving = registry.clone();
    let session = tokio::spawn(async move { serving.serve("raw", ours).await });
    while !registry.is_connected("raw") {
        tokio::task::yield_now().await;
    }
    (WebSocketStream::from_raw_socket(theirs, Role::Client, None).await, session)
}

#[tokio::test(start_paused = true)]
async fn access_check_11_the_session_and_connections_of_a_silent_peer_end_at_the_read_deadline() {
    let registry = Registry::default();
    let (mut socket, session) = peer(&registry).await;
    let mut stream = registry.dial("raw", "tcp", "somewhere:1").await.unwrap();
    // A ping shortly before the deadline extends it.
    tokio::time::sleep(READ_DEADLINE - MOMENT).await;
    assert!(!session.is_finished());
    socket.send(Message::Ping(vec![].into())).await.unwrap();
    let last = Instant::now();
    // The socket stays open, but nothing more is received.
    let error = tokio::time::timeout(READ_DEADLINE * 2, stream.read_u8()).await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "tunnel disconnect");
    let silent = last.elapsed();
    assert!(silent >= READ_DEADLINE && silent < READ_DEADLINE + MOMENT, "{silent:?}");
    tokio::time::timeout(MOMENT, session).await.unwrap().unwrap();
    assert!(!registry.is_connected("raw"));
    drop(socket);
}

#[tokio::test(start_paused = true)]
async fn access_check_11_our_client_pings_within_its_period_and_ends_the_session_of_a_silent_server() {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let uri: Uri = "ws://manager.example/v3/connect".parse().unwrap();
    let (accepted, connected) = tokio::join!(
        tokio_tungstenite::accept_async(theirs),
        client::connect(ours, &uri, HeaderMap::new(), loopback()),
    );
    let (mut socket, (_session, run)) = (accepted.unwrap(), connected.unwrap());
    let mut running = tokio::spawn(run);
    // Reading responds to each ping, so the client has no reason to end the session.
    let start = Instant::now();
    while start.elapsed() < READ_DEADLINE * 3 {
        let asked = Instant::now();
        let said = tokio::time::timeout(READ_DEADLINE, socket.next()).await.unwrap().unwrap().unwrap();
        assert!(matches!(said, Message::Ping(_)), "{said:?}");
        assert!(asked.elapsed() <= PING_PERIOD + MOMENT, "{:?}", asked.elapsed());
    }
    assert!(!running.is_finished());
    // From now on nothing is read or sent.
    let silent = Instant::now();
    tokio::time::timeout(READ_DEADLINE * 2, &mut running).await.unwrap().unwrap();
    assert!(silent.elapsed() + PING_PERIOD >= READ_DEADLINE, "{:?}", silent.elapsed());
}
