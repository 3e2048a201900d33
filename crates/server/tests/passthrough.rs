//! What is sent for a forwarded request: the caller's credentials, never the manager's, and upgraded connections. The
//! API is a socket that records requests.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::convert::Infallible;
use std::sync::Arc;

use drover_server::external::passthrough::Passthrough;
use drover_testkit::SOON;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use kube::Config;
use kube::config::AuthInfo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// A front that forwards to `api`, with a manager whose token and certificate must not be sent.
async fn front(api: &TcpListener) -> TcpStream {
    let url = format!("http://{}/prefix", api.local_addr().unwrap());
    let mut config = Config::new(url.parse().unwrap());
    config.auth_info = AuthInfo {
        token: Some("secret-of-the-manager".to_owned().into()),
        impersonate: Some("manager".into()),
        ..AuthInfo::default()
    };
    config.headers =
        vec![(http::HeaderName::from_static("x-manager"), "secret-of-the-manager".parse().unwrap())];
    let passthrough = Arc::new(Passthrough::new(&config).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
            let passthrough = passthrough.clone();
            async move {
                Ok::<_, Infallible>(passthrough.answer(request.map(drover_access::downstream::boxed)).await)
            }
        });
        let server = auto::Builder::new(TokioExecutor::new());
        let _ = server.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
    });
    TcpStream::connect(address).await.unwrap()
}

/// Reads up to the empty line.
async fn head(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        text.push(timeout(SOON, stream.read_u8()).await.unwrap().unwrap());
    }
    String::from_utf8(text).unwrap().to_lowercase()
}

#[tokio::test]
async fn the_callers_credentials_are_forwarded_and_the_managers_never() {
    let api = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut caller = front(&api).await;
    caller
        .write_all(
            b"GET /api/v1/pods?watch=1 HTTP/1.1\r\nhost: drover\r\nauthorization: Bearer caller\r\n\
              impersonate-user: bob\r\nx-remote-user: admin\r\ncookie: c\r\n\r\n",
        )
        .await
        .unwrap();
    let (mut api, _) = timeout(SOON, api.accept()).await.unwrap().unwrap();
    let asked = head(&mut api).await;
    assert!(asked.starts_with("get /prefix/api/v1/pods?watch=1 http/1.1\r\n"), "{asked}");
    assert!(asked.contains("authorization: bearer caller\r\n"), "{asked}");
    assert!(asked.contains("impersonate-user: bob\r\n"), "{asked}");
    for hidden in
        ["secret-of-the-manager", "x-remote-user", "impersonate-user: manager", "cookie", "host: drover"]
    {
        assert!(!asked.contains(hidden), "{hidden}: {asked}");
    }
    // A watch is forwarded while it is open.
    api.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n").await.unwrap();
    let answer = head(&mut caller).await;
    assert!(answer.starts_with("http/1.1 200"), "{answer}");
    let mut got = [0; 10];
    timeout(SOON, caller.read_exact(&mut got)).await.unwrap().unwrap();
    assert_eq!(&got, b"5\r\nfirst\r\n");
}

#[tokio::test]
async fn an_upgraded_connection_is_joined() {
    let api = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut caller = front(&api).await;
    caller
        .write_all(
            b"GET /api/v1/namespaces/a/pods/b/exec HTTP/1.1\r\nhost: drover\r\nauthorization: Bearer caller\r\n\
              connection: Upgrade\r\nupgrade: websocket\r\n\r\n",
        )
        .await
        .unwrap();
    let (mut api, _) = timeout(SOON, api.accept()).await.unwrap().unwrap();
    let asked = head(&mut api).await;
    assert!(asked.contains("upgrade: websocket\r\n") && asked.contains("connection: upgrade\r\n"), "{asked}");
    api.write_all(b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n")
        .await
        .unwrap();
    let answer = head(&mut caller).await;
    assert!(answer.starts_with("http/1.1 101"), "{answer}");
    let mut got = [0; 4];
    caller.write_all(b"ping").await.unwrap();
    timeout(SOON, api.read_exact(&mut got)).await.unwrap().unwrap();
    assert_eq!(&got, b"ping");
    api.write_all(b"pong").await.unwrap();
    timeout(SOON, caller.read_exact(&mut got)).await.unwrap().unwrap();
    assert_eq!(&got, b"pong");
}

#[tokio::test]
async fn an_unreachable_api_and_a_missing_token_are_reported() {
    let api = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut caller = front(&api).await;
    caller.write_all(b"GET /api/v1/secrets HTTP/1.1\r\nhost: drover\r\n\r\n").await.unwrap();
    let (mut refusing, _) = timeout(SOON, api.accept()).await.unwrap().unwrap();
    head(&mut refusing).await;
    refusing
        .write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    drop((refusing, api));
    assert!(head(&mut caller).await.starts_with("http/1.1 401"));
    let mut body = vec![0; 4096];
    let length = timeout(SOON, caller.read(&mut body)).await.unwrap().unwrap();
    let body = String::from_utf8_lossy(&body[..length]);
    assert!(body.contains("cannot forward client certificates"), "{body}");
    caller
        .write_all(b"GET /version HTTP/1.1\r\nhost: drover\r\nauthorization: Bearer caller\r\n\r\n")
        .await
        .unwrap();
    assert!(head(&mut caller).await.starts_with("http/1.1 503"));
}
