//! The original at the other end (access#2): its client with our server, and our client with its server.
#![allow(clippy::unwrap_used)]

mod common;

use std::process::Stdio;

use common::{echo, loopback, tunnel_server};
use drover_testkit::{SOON, eventually, peer};
use drover_tunnel::{Registry, client};
use http::{HeaderMap, Uri};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;

#[tokio::test(flavor = "multi_thread")]
async fn access_check_2_the_original_client_serves_our_dials() {
    let Some(program) = peer("tests/peers/remotedialer") else { return };
    let registry = Registry::default();
    let address = tunnel_server(registry.clone()).await;
    let url = format!("ws://{address}/v3/connect");
    let _client = Command::new(program).args(["client", &url]).kill_on_drop(true).spawn().unwrap();
    eventually(|| async { registry.is_connected("go").then_some(()).ok_or("no session") }).await;

    let stream = registry.dial("go", "tcp", &echo().await.to_string()).await.unwrap();
    let (mut read, mut write) = tokio::io::split(stream);
    // access#3: the Go client sends continuation frames of 4 KiB.
    let sent: Vec<u8> = (0..1 << 20).map(|n: u32| n.to_le_bytes()[1]).collect();
    let copy = sent.clone();
    let writing = tokio::spawn(async move { write.write_all(&copy).await.map(|()| write) });
    let mut received = vec![0; sent.len()];
    tokio::time::timeout(SOON, read.read_exact(&mut received)).await.unwrap().unwrap();
    assert!(received == sent);
    drop(writing.await.unwrap().unwrap());

    let mut refused = registry.dial("go", "tcp", "127.0.0.1:1").await.unwrap();
    let error = tokio::time::timeout(SOON, refused.read_u8()).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn our_client_serves_the_dials_of_the_original_server() {
    let Some(program) = peer("tests/peers/remotedialer") else { return };
    let web = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", web.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = web.accept().await.unwrap();
        let mut request = [0; 1024];
        let _ = stream.read(&mut request).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").await.unwrap();
        let _ = stream.read(&mut request).await;
    });
    let mut server = Command::new(program)
        .args(["server", &url])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let address = tokio::time::timeout(SOON, lines.next_line()).await.unwrap().unwrap().unwrap();

    let io = TcpStream::connect(&address).await.unwrap();
    let uri: Uri = format!("ws://{address}/").parse().unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("x-client", "rust".parse().unwrap());
    headers.insert("x-api-tunnel-token", "secret".parse().unwrap());
    let (_session, run) = client::connect(io, &uri, headers, loopback()).await.unwrap();
    tokio::spawn(run);
    let answer = tokio::time::timeout(SOON, lines.next_line()).await.unwrap().unwrap().unwrap();
    assert_eq!(answer, "200 hello");
}
