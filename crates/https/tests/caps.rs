//! How many unauthenticated connections may be open, and which callers are served nevertheless.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::*;
use drover_https::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Waits until a known caller at this address gets an answer.
async fn is_served(server: &Server, last: u8) {
    drover_testkit::eventually(async || {
        let tls = server.try_tls(server.tcp_from(last).await, "http/1.1").await;
        let mut tls = tls.map_err(|error| error.to_string())?;
        tls.write_all(format!("GET / HTTP/1.1\r\nHost: h\r\n{KNOWN}\r\n").as_bytes())
            .await
            .map_err(|error| error.to_string())?;
        let mut said = [0; 12];
        tls.read_exact(&mut said).await.map_err(|error| error.to_string())?;
        if &said == b"HTTP/1.1 200" { Ok(()) } else { Err(String::from_utf8_lossy(&said).into_owned()) }
    })
    .await;
}

async fn silent(server: &Server, last: u8, count: usize) -> Vec<TcpStream> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(server.tcp_from(last).await);
    }
    all
}

#[tokio::test]
async fn a_flood_from_one_address_is_bounded_and_others_are_served() {
    let server = Server::start(Limits { per_address: 20, total: 50, ..patient() }).await;
    let mut watch = server.tls("http/1.1").await;
    assert!(ask(&mut watch, "/watch", KNOWN).await.starts_with("HTTP/1.1 200 "));
    let flood = silent(&server, 2, 300).await;
    let seen = drover_testkit::eventually(async || {
        let counts = server.gate.counts();
        if counts.refused + counts.evicted >= 280 { Ok(counts) } else { Err(format!("{counts:?}")) }
    });
    assert_eq!(seen.await.unknown, 20);
    is_served(&server, 3).await;
    server.events.send("happened\n".to_owned()).unwrap();
    assert!(read_until(&mut watch, "happened\n").await.ends_with("happened\n"));
    // Also at the address of the flood: the oldest of it make room.
    is_served(&server, 2).await;
    drop(flood);
    let seen = drover_testkit::eventually(async || {
        let unknown = server.gate.counts().unknown;
        if unknown == 0 { Ok(()) } else { Err(format!("{unknown} are counted")) }
    });
    seen.await;
}

#[tokio::test]
async fn a_flood_from_many_addresses_is_bounded_and_another_address_gets_in() {
    let server = Server::start(Limits { per_address: 20, total: 50, ..patient() }).await;
    let mut flood = Vec::new();
    for last in 10..30 {
        flood.extend(silent(&server, last, 5).await);
    }
    drover_testkit::eventually(async || {
        let counts = server.gate.counts();
        if counts.refused + counts.evicted >= 50 { Ok(()) } else { Err(format!("{counts:?}")) }
    })
    .await;
    assert!(server.gate.counts().unknown <= 50);
    is_served(&server, 3).await;
}

#[tokio::test]
async fn connections_of_known_callers_do_not_count() {
    let server = Server::start(Limits { per_address: 4, total: 4, ..patient() }).await;
    let mut agents = Vec::new();
    for _ in 0..20 {
        let mut agent = server.tls("http/1.1").await;
        assert!(ask(&mut agent, "/watch", KNOWN).await.starts_with("HTTP/1.1 200 "));
        agents.push(agent);
    }
    assert_eq!(server.gate.counts().unknown, 0);
    server.events.send("happened\n".to_owned()).unwrap();
    for agent in &mut agents {
        assert!(read_until(agent, "happened\n").await.ends_with("happened\n"));
    }
}

#[tokio::test]
async fn anonymous_requests_in_flight_leave_room_for_known_callers_of_the_same_address() {
    let server = Server::start(Limits { per_address: 8, total: 100, ..patient() }).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        let mut watch = server.tls("http/1.1").await;
        assert!(ask(&mut watch, "/watch", "").await.starts_with("HTTP/1.1 200 "));
        held.push(watch);
    }
    // Half of the places are taken by anonymous requests: more are told to come back.
    let mut refused = server.tls("http/1.1").await;
    let answer = ask(&mut refused, "/watch", "").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("\r\nretry-after: 5\r\n"), "{answer}");
    assert!(
        String::from_utf8(closed(&mut refused).await)
            .unwrap()
            .contains("too many unauthenticated connections")
    );
    is_served(&server, 1).await;
    // One that ends makes room.
    held.pop();
    drover_testkit::eventually(async || {
        let answer = ask(&mut server.tls("http/1.1").await, "/", "").await;
        if answer.starts_with("HTTP/1.1 200 ") { Ok(()) } else { Err(answer) }
    })
    .await;
}
