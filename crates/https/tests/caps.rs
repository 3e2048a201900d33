//! How many unauthenticated connections may be open, and which callers are still served.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::*;
use drover_https::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Waits until an authenticated caller at this address gets a response.
async fn is_served(server: &Server, last: u8) {
    drover_testkit::eventually(async || {
        let tls = server.try_tls(server.tcp_from(last).await, "http/1.1").await;
        let mut tls = tls.map_err(|error| error.to_string())?;
        tls.write_all(format!("GET / HTTP/1.1\r\nHost: h\r\n{AUTHENTICATED}\r\n").as_bytes())
            .await
            .map_err(|error| error.to_string())?;
        let mut status = [0; 12];
        tls.read_exact(&mut status).await.map_err(|error| error.to_string())?;
        if &status == b"HTTP/1.1 200" { Ok(()) } else { Err(String::from_utf8_lossy(&status).into_owned()) }
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
    assert!(ask(&mut watch, "/watch", AUTHENTICATED).await.starts_with("HTTP/1.1 200 "));
    let flood = silent(&server, 2, 300).await;
    let seen = drover_testkit::eventually(async || {
        let counts = server.limiter.counts();
        if counts.refused + counts.evicted >= 280 { Ok(counts) } else { Err(format!("{counts:?}")) }
    });
    assert_eq!(seen.await.unauthenticated, 20);
    is_served(&server, 3).await;
    server.events.send("happened\n".to_owned()).unwrap();
    assert!(read_until(&mut watch, "happened\n").await.ends_with("happened\n"));
    // The flooding address is served as well: its oldest connections are replaced.
    is_served(&server, 2).await;
    drop(flood);
    let seen = drover_testkit::eventually(async || {
        let unauthenticated = server.limiter.counts().unauthenticated;
        if unauthenticated == 0 { Ok(()) } else { Err(format!("{unauthenticated} are counted")) }
    });
    seen.await;
}

#[tokio::test]
async fn a_flood_from_many_addresses_is_bounded_and_another_address_is_served() {
    let server = Server::start(Limits { per_address: 20, total: 50, ..patient() }).await;
    let mut flood = Vec::new();
    for last in 10..30 {
        flood.extend(silent(&server, last, 5).await);
    }
    drover_testkit::eventually(async || {
        let counts = server.limiter.counts();
        if counts.refused + counts.evicted >= 50 { Ok(()) } else { Err(format!("{counts:?}")) }
    })
    .await;
    assert!(server.limiter.counts().unauthenticated <= 50);
    is_served(&server, 3).await;
}

#[tokio::test]
async fn connections_of_authenticated_callers_do_not_count() {
    let server = Server::start(Limits { per_address: 4, total: 4, ..patient() }).await;
    let mut agents = Vec::new();
    for _ in 0..20 {
        let mut agent = server.tls("http/1.1").await;
        assert!(ask(&mut agent, "/watch", AUTHENTICATED).await.starts_with("HTTP/1.1 200 "));
        agents.push(agent);
    }
    assert_eq!(server.limiter.counts().unauthenticated, 0);
    server.events.send("happened\n".to_owned()).unwrap();
    for agent in &mut agents {
        assert!(read_until(agent, "happened\n").await.ends_with("happened\n"));
    }
}

#[tokio::test]
async fn anonymous_requests_in_flight_leave_room_for_authenticated_callers_of_the_same_address() {
    let server = Server::start(Limits { per_address: 8, total: 100, ..patient() }).await;
    let mut watches = Vec::new();
    for _ in 0..4 {
        let mut watch = server.tls("http/1.1").await;
        assert!(ask(&mut watch, "/watch", "").await.starts_with("HTTP/1.1 200 "));
        watches.push(watch);
    }
    // Anonymous requests use half of the connections: further ones are refused and must retry.
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
    // A connection that ends makes room.
    watches.pop();
    drover_testkit::eventually(async || {
        let answer = ask(&mut server.tls("http/1.1").await, "/", "").await;
        if answer.starts_with("HTTP/1.1 200 ") { Ok(()) } else { Err(answer) }
    })
    .await;
}
