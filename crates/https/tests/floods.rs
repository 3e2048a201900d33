//! Requests that cost the sender little: many streams, resets, large headers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::*;
use tokio::io::AsyncWriteExt;

fn request(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &get(path, false))
}

#[tokio::test]
async fn streams_beyond_the_limit_are_refused() {
    let server = Server::start(patient()).await;
    let mut many = server.tls("h2").await;
    many.write_all(&[PREFACE, &settings(&[])].concat()).await.unwrap();
    let settings_payload = next(&mut many, SETTINGS).await.unwrap().1;
    let streams = settings_payload
        .chunks(6)
        .find(|setting| setting[..2] == [0, 3])
        .expect("the settings have no stream limit");
    assert_eq!(streams[2..], 250_u32.to_be_bytes());
    for number in 0..251 {
        many.write_all(&request(2 * number + 1, "/never")).await.unwrap();
    }
    many.flush().await.unwrap();
    let (stream, reason) = next(&mut many, RST_STREAM).await.expect("not refused");
    assert_eq!(
        (stream, reason),
        (501, 7_u32.to_be_bytes().to_vec()),
        "expected REFUSED_STREAM for the last one"
    );
}

#[tokio::test]
async fn rapid_resets_end_the_connection() {
    let server = Server::start(patient()).await;
    let (mut read, mut write) = tokio::io::split(server.http2().await);
    let flood = tokio::spawn(async move {
        for number in 0.. {
            let stream = 2 * number + 1;
            let reset = frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
            if write.write_all(&[request(stream, "/never"), reset].concat()).await.is_err() {
                break;
            }
        }
    });
    closed(&mut read).await;
    tokio::time::timeout(PATIENCE, flood).await.expect("still read").unwrap();
}

#[tokio::test]
async fn repeatedly_cancelled_requests_end_the_connection() {
    let server = Server::start(patient()).await;
    let mut slow = server.http2().await;
    // The server has seen each request before the reset: a PING behind it is answered.
    for number in 0..200 {
        let stream = 2 * number + 1;
        let ping = frame(PING, 0, 0, &[1; 8]);
        if slow.write_all(&[request(stream, "/never"), ping].concat()).await.is_err() {
            break;
        }
        if next(&mut slow, PING).await.is_none() {
            break;
        }
        let reset = frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
        if slow.write_all(&reset).await.is_err() {
            break;
        }
    }
    closed(&mut slow).await;
}

#[tokio::test]
async fn headers_that_are_too_large_or_too_many_are_refused() {
    let server = Server::start(patient()).await;
    let large = format!("X: {}\r\n", "x".repeat(80 << 10));
    let many: String = (0..200).map(|number| format!("X{number}: x\r\n")).collect();
    for headers in [large, many] {
        let mut tls = server.tls("http/1.1").await;
        assert!(ask(&mut tls, "/", &headers).await.starts_with("HTTP/1.1 431 "));
        closed(&mut tls).await;
    }
    // Registration and tunnels send large headers.
    let fits = format!("X: {}\r\n", "x".repeat(32 << 10));
    assert!(ask(&mut server.tls("http/1.1").await, "/", &fits).await.starts_with("HTTP/1.1 200 "));

    // HTTP/2: five times 16 KiB, one header per frame.
    let mut tls = server.http2().await;
    let mut block = get("/", false);
    block.extend([0x00, 1, b'x', 0x7f, 0x80, 0x7d]);
    block.extend([b'x'; 16_000 - 1]);
    let mut frames = frame(HEADERS, END_STREAM, 1, &block);
    for number in 0..5 {
        let mut part = vec![0x00, 1, b'x', 0x7f, 0x80, 0x7d];
        part.extend([b'x'; 16_000 - 1]);
        frames.extend(frame(CONTINUATION, if number == 4 { END_HEADERS } else { 0 }, 1, &part));
    }
    tls.write_all(&frames).await.unwrap();
    let answer = next(&mut tls, HEADERS).await;
    // 431 is not in HPACK's static table: the value is a plain or a Huffman-coded literal.
    assert!(answer.is_none_or(|(_, block)| !block.contains(&0x88)), "answered with 200");
}
