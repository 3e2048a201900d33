use std::{io, sync::Mutex};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::StatusCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use super::*;
use crate::host::{BoxFuture, MemoryHost, Program};

const ORIGIN: &str = "http://a.example.com";

/// The peer of all connections of a machine, with the requests that it received.
#[derive(Clone)]
struct FakePeer {
    answer: fn(DuplexStream, FakePeer) -> BoxFuture<'static, io::Result<()>>,
    dialled: Arc<Mutex<Vec<String>>>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl FakePeer {
    fn new(answer: fn(DuplexStream, FakePeer) -> BoxFuture<'static, io::Result<()>>) -> Self {
        Self { answer, dialled: Arc::default(), requests: Arc::default() }
    }

    fn client(&self, env: &[(&str, &str)]) -> Client {
        let host = MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, self.clone());
        let host = env.iter().fold(host, |host, (name, value)| host.with_env(name, value));
        Client::new(Arc::new(host), Url::parse(ORIGIN).unwrap(), None, None).unwrap()
    }

    fn dialled(&self) -> Vec<String> {
        self.dialled.lock().unwrap().clone()
    }
}

impl Program for FakePeer {
    fn dial<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<BoxIo>> {
        self.dialled.lock().unwrap().push(format!("{host}:{port}"));
        let (here, there) = tokio::io::duplex(4096);
        tokio::spawn((self.answer)(there, self.clone()));
        Box::pin(async { Ok(Box::new(here) as BoxIo) })
    }
}

fn get() -> Request<Full<Bytes>> {
    Request::get("/x").body(Full::default()).unwrap()
}

async fn head(line: &mut DuplexStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(line.read_u8().await?);
    }
    Ok(String::from_utf8(head).unwrap())
}

/// A proxy that requires a password, and the origin behind it; or only the origin.
fn proxy(mut line: DuplexStream, peer: FakePeer) -> BoxFuture<'static, io::Result<()>> {
    Box::pin(async move {
        let mut asked = head(&mut line).await?;
        peer.requests.lock().unwrap().push(asked.clone());
        if asked.starts_with("CONNECT ") {
            let known = format!("Proxy-Authorization: Basic {}\r\n", STANDARD.encode("me:p@ss"));
            if !asked.contains(&known) {
                return line.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n").await;
            }
            line.write_all(b"HTTP/1.1 200 Connection established\r\nVia: px\r\n\r\n").await?;
            asked = head(&mut line).await?;
            peer.requests.lock().unwrap().push(asked.clone());
        }
        line.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await
    })
}

#[tokio::test(start_paused = true)]
async fn a_proxy_is_used_with_its_password() {
    let peer = FakePeer::new(proxy);
    let client = peer.client(&[("HTTP_PROXY", "http://me:p%40ss@px:3128")]);
    let answer = client.send(get()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(&read_body(answer.into_body(), 10, ANSWER_TIMEOUT).await.unwrap()[..], b"hi");
    assert_eq!(peer.dialled(), ["px:3128"]);
    let requests = peer.requests.lock().unwrap().clone();
    assert!(
        requests[0].starts_with("CONNECT a.example.com:80 HTTP/1.1\r\nHost: a.example.com:80\r\n"),
        "{requests:?}"
    );
    assert!(requests[1].starts_with("GET /x HTTP/1.1\r\n"), "{requests:?}");
    assert!(!requests[1].to_lowercase().contains("proxy-authorization"), "the origin does not receive it");
}

#[tokio::test(start_paused = true)]
async fn errors_of_a_proxy_name_it_without_the_password() {
    let peer = FakePeer::new(proxy);
    let client = peer.client(&[("HTTP_PROXY", "http://me:secret@px:3128")]);
    let error = client.send(get()).await.unwrap_err().to_string();
    assert!(error.contains("px:3128") && error.contains("407") && !error.contains("secret"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_proxy_is_bypassed_only_for_no_proxy() {
    let peer = FakePeer::new(proxy);
    let client = peer.client(&[("HTTP_PROXY", "px:3128"), ("NO_PROXY", ".example.com")]);
    assert_eq!(client.send(get()).await.unwrap().status(), StatusCode::OK);
    assert_eq!(peer.dialled(), ["a.example.com:80"]);
    let peer = FakePeer::new(proxy);
    let client = peer.client(&[("HTTP_PROXY", "socks5://me:secret@px:1080")]);
    let error = client.send(get()).await.unwrap_err().to_string();
    assert!(error.contains("socks5://px:1080") && !error.contains("secret"), "{error}");
    assert_eq!(peer.dialled(), Vec::<String>::new());
}

/// The proxy has no valid certificate, so only the start of the connection is checked.
#[tokio::test(start_paused = true)]
async fn the_password_is_not_sent_to_an_https_proxy_in_plain_text() {
    let peer = FakePeer::new(|mut line, peer| {
        Box::pin(async move {
            let kind = line.read_u8().await?;
            peer.requests.lock().unwrap().push(kind.to_string());
            Ok(())
        })
    });
    let client = peer.client(&[("HTTP_PROXY", "https://me:secret@px")]);
    let error = client.send(get()).await.unwrap_err().to_string();
    assert!(error.contains("px:443") && error.contains("TLS"), "{error}");
    assert_eq!(peer.requests.lock().unwrap()[..], ["22"], "a TLS handshake");
}

/// The data of half a second.
const PIECE: usize = 10 * 1024;

async fn rest() {
    tokio::time::sleep(Duration::from_millis(500)).await;
}

/// Accepts one megabyte and returns one, at 20 KiB per second; then nothing more.
fn slow(mut line: DuplexStream, _: FakePeer) -> BoxFuture<'static, io::Result<()>> {
    Box::pin(async move {
        head(&mut line).await?;
        let mut left = 1 << 20;
        while left > 0 {
            let mut piece = vec![0; PIECE.min(left)];
            line.read_exact(&mut piece).await?;
            left -= piece.len();
            rest().await;
        }
        line.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1048577\r\n\r\n").await?;
        let mut left = 1 << 20;
        while left > 0 {
            let piece = vec![0; PIECE.min(left)];
            line.write_all(&piece).await?;
            left -= piece.len();
            rest().await;
        }
        std::future::pending().await
    })
}

#[tokio::test(start_paused = true)]
async fn a_slow_connection_succeeds_and_a_dead_one_times_out() {
    let client = FakePeer::new(slow).client(&[]);
    let request = Request::put("/x").body(Full::new(vec![0; 1 << 20].into())).unwrap();
    let started = tokio::time::Instant::now();
    let answer = client.send(request).await.unwrap();
    assert!(started.elapsed() > ANSWER_TIMEOUT, "it was slow");
    let started = tokio::time::Instant::now();
    let within = Duration::from_secs(10);
    let error = read_body(answer.into_body(), 8 << 20, within).await.unwrap_err();
    // The last byte never arrives, and the client does not wait for it forever.
    assert!(matches!(error, Error::Timeout(waited) if waited == within + Duration::from_secs(64)), "{error}");
    assert!(started.elapsed() <= Duration::from_secs(75));
}
