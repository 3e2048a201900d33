//! Request bodies over TLS: unauthorized requests are rejected before the body arrives, and clients that are still
//! sending it receive the response.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use drover_apiserver::auth::pki::Pair;
use drover_apiserver::storage::MemoryStorage;
use futures::stream::{self, BoxStream, StreamExt};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::Timestamp;
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::harness::{DEADLINE, Setup};
use crate::tls::{Listening, listen};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];
type Body = StreamBody<BoxStream<'static, Result<Frame<Bytes>, Infallible>>>;

enum Sender {
    One(hyper::client::conn::http1::SendRequest<Body>),
    Two(hyper::client::conn::http2::SendRequest<Body>),
}

async fn connect(listening: &Listening, client: Option<&Pair>, alpn: &[u8]) -> Sender {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(listening.cluster.pki.ca_der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match client {
        Some(pair) => builder.with_client_auth_cert(pair.chain(), pair.key().unwrap()).unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    let stream = TcpStream::connect(listening.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let tls = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    let io = TokioIo::new(tls);
    if alpn == b"h2" {
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        return Sender::Two(sender);
    }
    let (sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    Sender::One(sender)
}

async fn post(sender: &mut Sender, length: Option<usize>, body: Body) -> (u16, Value) {
    let mut request = hyper::Request::builder()
        .method("POST")
        .uri(format!("https://localhost{MAPS}"))
        .header("host", "localhost")
        .header("content-type", "application/json");
    if let Some(length) = length {
        request = request.header("content-length", length);
    }
    let request = request.body(body).unwrap();
    let work = async {
        let response = match sender {
            Sender::One(sender) => sender.send_request(request).await.unwrap(),
            Sender::Two(sender) => sender.send_request(request).await.unwrap(),
        };
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    };
    tokio::time::timeout(DEADLINE, work).await.expect("an answer must come")
}

fn pieces(count: usize) -> Body {
    let piece = Bytes::from(vec![b'x'; 64 << 10]);
    StreamBody::new(stream::repeat(piece).take(count).map(|piece| Ok(Frame::data(piece))).boxed())
}

/// A body that never arrives.
fn pending() -> Body {
    StreamBody::new(stream::pending().boxed())
}

#[tokio::test]
async fn unauthorized_requests_are_rejected_before_the_body_arrives() {
    let listening = listen(Setup::new(Arc::new(MemoryStorage::new())).start().await).await;
    for alpn in PROTOCOLS {
        let since = std::time::Instant::now();
        let mut anonymous = connect(&listening, None, alpn).await;
        let (code, status) = post(&mut anonymous, Some(1 << 20), pending()).await;
        assert_eq!((code, status["kind"].as_str()), (403, Some("Status")), "{status}");
        // The response used to wait for the body for a minute.
        assert!(since.elapsed() < Duration::from_secs(30));
    }
}

#[tokio::test]
async fn an_answer_of_413_arrives_while_the_body_is_sent() {
    let listening = listen(Setup::new(Arc::new(MemoryStorage::new())).start().await).await;
    let admin = listening.cluster.pki.admin(Timestamp::now()).unwrap();
    for alpn in PROTOCOLS {
        for (pieces_sent, declared) in [(80, true), (80, false), (160, true), (160, false)] {
            let mut sender = connect(&listening, Some(&admin), alpn).await;
            let length = declared.then_some(pieces_sent * (64 << 10));
            let (code, status) = post(&mut sender, length, pieces(pieces_sent)).await;
            assert_eq!((code, status["reason"].as_str()), (413, Some("RequestEntityTooLarge")), "{status}");
            assert_eq!(status["message"], "Request entity too large: limit is 3145728");
            // The connection stays open.
            if let Sender::Two(_) = &sender {
                let (code, _) = post(&mut sender, Some(0), pieces(0)).await;
                assert_eq!(code, 400);
            }
        }
    }
}

/// A client that sends more than the server discards still receives the response.
#[tokio::test]
async fn an_endless_body_does_not_hide_the_answer() {
    let listening = listen(Setup::new(Arc::new(MemoryStorage::new())).start().await).await;
    let admin = listening.cluster.pki.admin(Timestamp::now()).unwrap();
    let mut sender = connect(&listening, Some(&admin), b"h2").await;
    let endless = stream::repeat(Bytes::from(vec![b'x'; 16 << 10])).map(|piece| Ok(Frame::data(piece)));
    let (code, status) = post(&mut sender, None, StreamBody::new(endless.boxed())).await;
    assert_eq!((code, status["code"].as_u64()), (413, Some(413)), "{status}");
}

/// Common clients show the Status.
#[tokio::test]
async fn curl_shows_the_status_of_413() {
    if !std::process::Command::new("curl")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
    {
        eprintln!("SKIPPED: curl is not installed");
        return;
    }
    let listening = listen(Setup::new(Arc::new(MemoryStorage::new())).start().await).await;
    let admin = listening.cluster.pki.admin(Timestamp::now()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| {
        std::fs::write(dir.path().join(name), content).unwrap();
        dir.path().join(name).display().to_string()
    };
    let ca = file("ca.pem", listening.cluster.pki.ca_pem().as_bytes());
    let cert = file("cert.pem", admin.cert_pem.as_bytes());
    let key = file("key.pem", admin.key_pem.as_bytes());
    let url = format!("https://localhost:{}{MAPS}", listening.address.port());
    for megabytes in [4, 40] {
        let body = format!("@{}", file("body", &vec![b'x'; megabytes << 20]));
        for protocol in ["--http2", "--http1.1"] {
            let resolve = format!("localhost:{}:127.0.0.1", listening.address.port());
            let run = tokio::process::Command::new("curl")
                .args([
                    "--silent",
                    "--show-error",
                    "--max-time",
                    "60",
                    protocol,
                    "--resolve",
                    &resolve,
                    "--cacert",
                    &ca,
                ])
                .args(["--cert", &cert, "--key", &key, "-H", "Content-Type: application/json"])
                .args(["--data-binary", &body, &url])
                .kill_on_drop(true)
                .output();
            let output = tokio::time::timeout(DEADLINE, run).await.unwrap().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(text.contains("RequestEntityTooLarge"), "{protocol} {megabytes}: {text} {errors}");
            assert!(megabytes > 4 || output.status.success(), "{protocol} {megabytes}: {errors}");
        }
    }
}
