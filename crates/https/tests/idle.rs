//! Connections between requests, and requests that make no progress. Watches and tunnels of authenticated callers stay.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::*;
use drover_https::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn short_deadlines() -> Limits {
    Limits { headers: SOON, idle: SOON, stall: SOON, ..patient() }
}

/// Waits until every deadline that a connection has now has passed.
async fn deadlines_pass(server: &Server) {
    for _ in 0..3 {
        let mut idle = server.tls("http/1.1").await;
        assert!(ask(&mut idle, "/", AUTHENTICATED).await.starts_with("HTTP/1.1 200 "));
        closed(&mut idle).await;
    }
}

#[tokio::test]
async fn a_keep_alive_connection_is_closed_at_the_idle_deadline() {
    let server = Server::start(Limits { idle: SOON, ..patient() }).await;
    for authenticated in ["", AUTHENTICATED] {
        let mut kept = server.tls("http/1.1").await;
        assert!(ask(&mut kept, "/", authenticated).await.starts_with("HTTP/1.1 200 "));
        kept.read_exact(&mut [0; 2]).await.unwrap();
        assert!(ask(&mut kept, "/", authenticated).await.starts_with("HTTP/1.1 200 "), "not kept alive");
        closed(&mut kept).await;
    }
    // HTTP/2 announces the close with GOAWAY.
    let mut kept = server.http2().await;
    kept.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &get("/", true))).await.unwrap();
    assert!(next(&mut kept, DATA).await.is_some());
    let (_, payload) = next(&mut kept, GOAWAY).await.expect("no GOAWAY");
    assert_eq!(payload[4..8], [0; 4], "expected NO_ERROR");
    closed(&mut kept).await;
}

#[tokio::test]
async fn watches_and_upgraded_connections_of_authenticated_callers_outlive_every_deadline() {
    let server = Server::start(short_deadlines()).await;
    let mut watch = server.tls("http/1.1").await;
    assert!(ask(&mut watch, "/watch", AUTHENTICATED).await.starts_with("HTTP/1.1 200 "));
    let mut watch2 = server.http2().await;
    watch2.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &get("/watch", true))).await.unwrap();
    assert!(next(&mut watch2, HEADERS).await.is_some());
    let mut tunnel = server.tls("http/1.1").await;
    let upgrade = format!("{AUTHENTICATED}Connection: Upgrade\r\nUpgrade: echo\r\n");
    assert!(ask(&mut tunnel, "/echo", &upgrade).await.starts_with("HTTP/1.1 101 "));

    deadlines_pass(&server).await;
    server.events.send("happened\n".to_owned()).unwrap();
    assert!(read_until(&mut watch, "happened\n").await.ends_with("happened\n"));
    assert_eq!(next(&mut watch2, DATA).await.unwrap().1, b"happened\n");
    tunnel.write_all(b"hello").await.unwrap();
    let mut payload = [0; 5];
    tunnel.read_exact(&mut payload).await.unwrap();
    assert_eq!(&payload, b"hello");
}

#[tokio::test]
async fn a_watch_of_a_dead_peer_is_closed() {
    let server = Server::start(Limits { ping: SOON, pong: SOON, ..patient() }).await;
    let mut dead = server.http2().await;
    dead.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &get("/watch", true))).await.unwrap();
    assert!(next(&mut dead, HEADERS).await.is_some());
    // It does not answer the PING.
    assert!(next(&mut dead, PING).await.is_some());
    closed(&mut dead).await;
}

#[tokio::test]
async fn an_authenticated_caller_may_read_slowly() {
    let server = Server::start(short_deadlines()).await;
    let mut slow = server.tls("http/1.1").await;
    assert!(ask(&mut slow, "/large", AUTHENTICATED).await.starts_with("HTTP/1.1 200 "));
    deadlines_pass(&server).await;
    let mut rest = vec![0; 256 << 20];
    tokio::time::timeout(PATIENCE, slow.read_exact(&mut rest)).await.expect("too slow").unwrap();
}

#[tokio::test]
async fn anonymous_requests_that_transfer_nothing_are_cut() {
    let server = Server::start(Limits { stall: SOON, ..patient() }).await;
    // Never answered.
    let mut hung = server.tls("http/1.1").await;
    hung.write_all(b"GET /never HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
    assert_eq!(closed(&mut hung).await, b"");
    // An anonymous watch without events.
    let mut watch = server.http2().await;
    watch.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &get("/watch", false))).await.unwrap();
    closed(&mut watch).await;
    assert_eq!(server.limiter.counts().expired, 2);
}

#[tokio::test]
async fn a_trickling_anonymous_body_is_cut() {
    let server = Server::start(Limits { stall: SOON, ..patient() }).await;
    let (mut read, mut write) = tokio::io::split(server.tls("http/1.1").await);
    let trickle = tokio::spawn(async move {
        write.write_all(b"POST /read HTTP/1.1\r\nHost: h\r\nContent-Length: 99999\r\n\r\n").await.unwrap();
        while write.write_all(b"x").await.is_ok() && write.flush().await.is_ok() {
            tokio::time::sleep(SOON / 20).await;
        }
    });
    assert_eq!(closed(&mut read).await, b"");
    trickle.abort();
}

#[tokio::test]
async fn an_unread_anonymous_response_is_cut() {
    let server = Server::start(Limits { stall: SOON, ..patient() }).await;
    let counted = async |count: u64| {
        drover_testkit::eventually(async || {
            let expired = server.limiter.counts().expired;
            if expired >= count { Ok(()) } else { Err(format!("{expired} were cut")) }
        })
        .await;
    };
    // The kernel's buffers are full.
    let mut unread = server.tls("http/1.1").await;
    unread.write_all(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
    counted(1).await;
    // The peer opens no window for the body, but sends frames.
    let mut unread = server.tls("h2").await;
    let window = settings(&[(4, 0)]);
    let request = frame(HEADERS, END_HEADERS | END_STREAM, 1, &get("/large", false));
    unread.write_all(&[PREFACE, &window, &request].concat()).await.unwrap();
    assert!(next(&mut unread, HEADERS).await.is_some());
    counted(2).await;
    assert_eq!(server.limiter.counts().unauthenticated, 0);
}

#[tokio::test]
async fn an_anonymous_download_that_progresses_is_not_cut() {
    let server = Server::start(Limits { stall: SOON, progress: 1, ..patient() }).await;
    let mut slow = server.tls("http/1.1").await;
    assert!(ask(&mut slow, "/large", "").await.starts_with("HTTP/1.1 200 "));
    let mut rest = vec![0; 256 << 20];
    for part in rest.chunks_mut(16 << 20) {
        slow.read_exact(part).await.unwrap();
        tokio::time::sleep(SOON / 10).await;
    }
}
