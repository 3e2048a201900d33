//! A plain HTTP request is answered with the advice to use https.
#![allow(clippy::unwrap_used)]

use drover_https::Incoming;
use drover_testkit::tls::Authority;
use http::{Request, Response};
use http_body_util::Empty;
use hyper::body::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn plain_http_is_answered_with_advice() {
    let authority = Authority::new("plain");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let handler = |_: Request<Incoming>| async { Response::new(Empty::<Bytes>::new()) };
    tokio::spawn(drover_https::serve(listener, authority.identity().server(None), handler, stop));

    // The second body is longer than what a socket can hold unread without a reset.
    for body in [String::new(), "x".repeat(20_000)] {
        let mut plain = TcpStream::connect(address).await.unwrap();
        let request =
            format!("POST /readyz HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        plain.write_all(request.as_bytes()).await.unwrap();
        plain.shutdown().await.unwrap();
        let mut answer = String::new();
        plain.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
        assert!(
            answer.ends_with("\r\n\r\nThis port speaks HTTPS: use https:// instead of http://.\n"),
            "{answer}"
        );
    }
}
