//! A response that is sent before the request's body was read arrives, in both versions of HTTP.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

const LARGE: usize = 12 << 20;

#[tokio::test]
async fn curl_shows_a_413_and_its_text() {
    let server = Server::start(patient()).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("body");
    std::fs::write(&file, vec![b'x'; LARGE]).unwrap();
    for version in ["--http2", "--http1.1"] {
        // `Expect` would delay the body; twice, so that a kept connection is reused.
        let url = format!("https://localhost:{}/413", server.address.port());
        let mut curl = Command::new("curl");
        curl.args([
            "-sS",
            "-k",
            version,
            "-H",
            "Expect:",
            "-m",
            "20",
            "-w",
            "%{http_version} %{http_code}\n",
        ])
        .arg("--data-binary")
        .arg(format!("@{}", file.display()))
        .args([&url, &url]);
        let output = curl.output().await.unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let version = if version == "--http2" { "2" } else { "1.1" };
        let once = format!("too large, and here is why\n{version} 413\n");
        assert_eq!((stdout.as_ref(), stderr.as_ref()), (once.repeat(2).as_str(), ""), "{}", output.status);
    }
}

#[tokio::test]
async fn kubectl_shows_a_413() {
    if std::process::Command::new("kubectl").arg("help").output().is_err() {
        eprintln!("\n*** SKIPPED: kubectl is not installed ***\n");
        return;
    }
    let server = Server::start(patient()).await;
    let dir = tempfile::tempdir().unwrap();
    let (file, kubeconfig) = (dir.path().join("body"), dir.path().join("kubeconfig"));
    std::fs::write(&file, vec![b'x'; LARGE]).unwrap();
    std::fs::write(&kubeconfig, "apiVersion: v1\nkind: Config\n").unwrap();
    let mut kubectl = Command::new("kubectl");
    kubectl
        .args(["create", "--token=x", "--raw=/413", "--insecure-skip-tls-verify"])
        .arg(format!("--server=https://{}", server.address))
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--filename={}", file.display()));
    let output = tokio::time::timeout(PATIENCE, kubectl.output()).await.unwrap().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("413"), "{error}");
}

#[tokio::test]
async fn http_2_discards_the_body_and_keeps_the_connection() {
    let server = Server::start(patient()).await;
    let mut tls = server.http2().await;
    let mut block = get("/413", false);
    // POST instead of GET.
    block[0] = 0x83;
    tls.write_all(&frame(HEADERS, END_HEADERS, 1, &block)).await.unwrap();
    assert_eq!(next(&mut tls, DATA).await.unwrap(), (1, b"too large, and here is why\n".to_vec()));
    // Sends as much as the initial window allows; the window is extended while the body is discarded.
    for _ in 0..16 {
        tls.write_all(&frame(DATA, 0, 1, &[b'x'; 16 << 10])).await.unwrap();
    }
    assert!(next(&mut tls, WINDOW_UPDATE).await.is_some());
    tls.write_all(&frame(DATA, END_STREAM, 1, b"x")).await.unwrap();
    tls.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 3, &get("/", false))).await.unwrap();
    assert_eq!(next(&mut tls, DATA).await.unwrap(), (3, b"ok".to_vec()));
}

#[tokio::test]
async fn http_2_does_not_wait_long_for_a_body_that_is_not_read() {
    let server = Server::start(patient()).await;
    let mut tls = server.http2().await;
    let mut block = get("/413", false);
    block[0] = 0x83;
    tls.write_all(&frame(HEADERS, END_HEADERS, 1, &block)).await.unwrap();
    assert!(next(&mut tls, DATA).await.is_some());
    let (stream, reason) = next(&mut tls, RST_STREAM).await.unwrap();
    assert_eq!((stream, reason), (1, vec![0; 4]), "expected NO_ERROR, as RFC 9113 8.1 says");
}

#[tokio::test]
async fn http_1_reads_the_rest_for_a_moment_so_that_the_response_arrives() {
    let server = Server::start(patient()).await;
    let mut tls = server.tls("http/1.1").await;
    let head = format!("POST /413 HTTP/1.1\r\nHost: h\r\nContent-Length: {LARGE}\r\n\r\n");
    tls.write_all(head.as_bytes()).await.unwrap();
    // A client that does not read before it has sent a good part of its body.
    for _ in 0..64 {
        tls.write_all(&[b'x'; 64 << 10]).await.expect("the connection was reset");
    }
    let mut output = [0; 12];
    tls.read_exact(&mut output).await.expect("the response was lost");
    assert_eq!(&output, b"HTTP/1.1 413");
}
