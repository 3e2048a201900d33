//! Connections that send no request are closed.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::*;
use drover_https::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn short_deadlines() -> Limits {
    Limits { handshake: SOON, headers: SOON, ..patient() }
}

#[tokio::test]
async fn a_connection_without_a_byte_or_with_half_a_handshake_is_closed() {
    let server = Server::start(short_deadlines()).await;
    closed(&mut server.tcp().await).await;
    for part in [&b"\x16"[..], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"] {
        let mut half = server.tcp().await;
        half.write_all(part).await.unwrap();
        closed(&mut half).await;
    }
    assert_eq!(server.limiter.counts().expired, 3);
    assert_eq!(server.limiter.counts().unauthenticated, 0);
}

#[tokio::test]
async fn a_connection_that_is_silent_after_the_handshake_is_closed() {
    let server = Server::start(short_deadlines()).await;
    for protocol in ["h2", "http/1.1", "other"] {
        let Ok(mut silent) = server.try_tls(server.tcp().await, protocol).await else { continue };
        assert_eq!(closed(&mut silent).await, b"", "{protocol}");
    }
    // The server detects HTTP/2 by its first line, which does not end here.
    let mut half = server.tls("h2").await;
    half.write_all(&PREFACE[..10]).await.unwrap();
    closed(&mut half).await;
}

#[tokio::test]
async fn http_2_without_a_request_is_closed_despite_other_frames() {
    let server = Server::start(short_deadlines()).await;
    let mut preface = server.tls("h2").await;
    preface.write_all(PREFACE).await.unwrap();
    closed(&mut preface).await;

    // PINGs are answered, but do not count as requests.
    let (mut read, mut write) = tokio::io::split(server.http2().await);
    let pings = tokio::spawn(async move {
        while write.write_all(&frame(PING, 0, 0, &[7; 8])).await.is_ok() {
            tokio::time::sleep(SOON / 10).await;
        }
    });
    let mut received = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, read.read_to_end(&mut received)).await.expect("still open");
    assert!(received.windows(9).any(|part| part == [0, 0, 8, PING, 1, 0, 0, 0, 0]), "no PING was answered");
    pings.abort();
}

#[tokio::test]
async fn trickling_headers_are_cut() {
    let server = Server::start(short_deadlines()).await;
    // Both the first request of a connection and the second.
    for before in [0, 1] {
        let mut slow = server.tls("http/1.1").await;
        for _ in 0..before {
            assert!(ask(&mut slow, "/", "").await.starts_with("HTTP/1.1 200 "));
            slow.read_exact(&mut [0; 2]).await.unwrap();
        }
        let (mut read, mut write) = tokio::io::split(slow);
        let trickle = tokio::spawn(async move {
            write.write_all(b"GET / HTTP/1.1\r\nX: ").await.unwrap();
            while write.write_all(b"x").await.is_ok() && write.flush().await.is_ok() {
                tokio::time::sleep(SOON / 20).await;
            }
        });
        assert_eq!(closed(&mut read).await, b"");
        trickle.abort();
    }
}

#[tokio::test]
async fn endless_http_2_headers_are_cut() {
    let server = Server::start(short_deadlines()).await;
    let mut open = server.http2().await;
    open.write_all(&frame(HEADERS, END_STREAM, 1, &get("/", false))).await.unwrap();
    closed(&mut open).await;
}

#[tokio::test]
async fn a_flood_of_continuations_ends_the_connection_before_any_deadline() {
    let server = Server::start(patient()).await;
    let (mut read, mut write) = tokio::io::split(server.http2().await);
    let flood = tokio::spawn(async move {
        let _ = write.write_all(&frame(HEADERS, END_STREAM, 1, &get("/", false))).await;
        // A literal that never ends.
        while write.write_all(&frame(CONTINUATION, 0, 1, &[0x40; 1024])).await.is_ok() {}
    });
    closed(&mut read).await;
    tokio::time::timeout(PATIENCE, flood).await.expect("still read").unwrap();
}
