//! Crane, a common registry client, works with this registry over TLS.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::Stdio;

use drover_registry::Registry;
use drover_testkit::{images, peer, tls::Authority};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

#[tokio::test(flavor = "multi_thread")]
async fn crane_pulls_lists_and_validates() {
    let Some(crane) = peer("tests/peers/crane") else { return };
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("images");
    std::fs::create_dir(&folder).unwrap();
    let layers = [
        images::layer(&[("program", &[7; 3_000_000], 0o755)]),
        images::layer(&[("run.sh", b"#!/bin/sh\n", 0o755)]),
    ];
    let tags = ["rancher/x-k3s:v1", "rancher/x-k3s:v2"];
    std::fs::write(folder.join("a.tar"), images::docker_save(&tags, &layers)).unwrap();
    let image = images::gzip_image(&layers, "linux", images::architecture());
    let index = images::index(&[(&image.manifest, "linux", images::architecture())]);
    let mut parts: Vec<&[u8]> = vec![&image.manifest];
    parts.extend(image.blobs.iter().map(Vec::as_slice));
    let kind = "application/vnd.oci.image.index.v1+json";
    std::fs::write(folder.join("b.tar"), images::oci_layout("docker.io/a/indexed:1", &index, kind, &parts))
        .unwrap();

    let authority = Authority::new("crane test");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = format!("localhost:{}", listener.local_addr().unwrap().port());
    let registry = Registry::new(&folder, dir.path().join("scratch"));
    let handler = move |request: http::Request<drover_https::Incoming>| {
        let registry = registry.clone();
        async move { registry.answer(request.method(), request.uri(), request.headers()).await }
    };
    let stop = CancellationToken::new();
    let serving =
        tokio::spawn(drover_https::serve(listener, authority.identity().server(None), handler, stop.clone()));
    let ca = dir.path().join("ca.pem");
    std::fs::write(&ca, &authority.pem).unwrap();
    let run = |args: Vec<String>| {
        let mut command = Command::new(&crane);
        command
            .args(args)
            .env("SSL_CERT_FILE", &ca)
            .env("HOME", dir.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        async move {
            let limit = std::time::Duration::from_secs(60);
            let output = tokio::time::timeout(limit, command.output()).await.unwrap().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
            text
        }
    };
    let words = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(run(words(format!("ls {at}/rancher/x-k3s"))).await, "v1\nv2");
    assert_eq!(run(words(format!("catalog {at}"))).await, "a/indexed\nrancher/x-k3s");
    assert_eq!(run(words(format!("digest {at}/a/indexed:1"))).await, images::digest(&index));
    // Fetches everything and compares every digest and size. (It requires compressed layers, which the plain archive
    // does not have.)
    run(words(format!("validate --remote {at}/a/indexed:1"))).await;
    let out = dir.path().join("pulled.tar");
    run(words(format!("export {at}/rancher/x-k3s:v2 {}", out.display()))).await;
    let names: Vec<String> = tar::Archive::new(std::fs::File::open(&out).unwrap())
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().path().unwrap().display().to_string())
        .collect();
    assert!(names.contains(&"run.sh".into()) && names.contains(&"program".into()), "{names:?}");
    stop.cancel();
    serving.await.unwrap();
}
