//! The registry's responses to each kind of request.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use drover_registry::Registry;
use drover_testkit::images;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::Value;

struct Bench {
    dir: tempfile::TempDir,
    registry: Registry,
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn error(&self) -> (u16, String) {
        (self.status.as_u16(), self.json()["errors"][0]["code"].as_str().unwrap().to_owned())
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::new(dir.path().join("images"), dir.path().join("scratch"));
        Self { dir, registry }
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        let path = self.dir.path().join("images").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    async fn ask(&self, method: Method, uri: &str, range: Option<&str>) -> Answer {
        let mut headers = HeaderMap::new();
        headers.extend(range.map(|range| (header::RANGE, HeaderValue::from_str(range).unwrap())));
        let response: Response<_> = self.registry.answer(&method, &uri.parse().unwrap(), &headers).await;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes().to_vec();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    async fn get(&self, uri: &str) -> Answer {
        self.ask(Method::GET, uri, None).await
    }
}

fn layers() -> Vec<Vec<u8>> {
    vec![
        images::layer(&[("program", &[7; 100_000], 0o755)]),
        images::layer(&[("run.sh", b"#!/bin/sh\n", 0o755)]),
    ]
}

#[tokio::test]
async fn an_empty_or_missing_folder_is_an_empty_registry() {
    let bench = Bench::new();
    let base = bench.get("/v2/").await;
    assert_eq!(
        (base.status, base.header("docker-distribution-api-version")),
        (StatusCode::OK, "registry/2.0")
    );
    assert_eq!(bench.get("/v2").await.status, StatusCode::OK);
    assert_eq!(bench.get("/v2/_catalog").await.json()["repositories"], serde_json::json!([]));
    assert_eq!(bench.get("/v2/a/b/manifests/1").await.error(), (404, "NAME_UNKNOWN".into()));
}

#[tokio::test]
async fn docker_save_archives_are_served_by_tag_and_digest() {
    let bench = Bench::new();
    let layers = layers();
    bench.put("sub/a.tar", &images::docker_save(&["rancher/x-k3s:v1-k3s1", "r.x/other:2"], &layers));
    bench.put(".hidden.tar", &images::docker_save(&["hidden:1"], &layers));
    bench.put("broken.tar", b"no");
    let manifest = bench.get("/v2/rancher/x-k3s/manifests/v1-k3s1").await;
    assert_eq!(manifest.status, StatusCode::OK);
    assert_eq!(manifest.header("content-type"), "application/vnd.oci.image.manifest.v1+json");
    let digest = images::digest(&manifest.body);
    assert_eq!(manifest.header("docker-content-digest"), digest);
    let again = bench.get(&format!("/v2/rancher/x-k3s/manifests/{digest}?ns=docker.io")).await;
    assert_eq!(again.body, manifest.body);
    for (index, layer) in layers.iter().enumerate() {
        let descriptor = &manifest.json()["layers"][index];
        assert_eq!(descriptor["size"], layer.len());
        let uri = format!("/v2/rancher/x-k3s/blobs/{}", descriptor["digest"].as_str().unwrap());
        let blob = bench.get(&uri).await;
        assert_eq!(blob.body, *layer);
        assert_eq!(blob.header("content-length"), layer.len().to_string());
        let head = bench.ask(Method::HEAD, &uri, None).await;
        assert_eq!((head.status, head.body.len()), (StatusCode::OK, 0));
        assert_eq!(head.header("content-length"), layer.len().to_string());
        let part = bench.ask(Method::GET, &uri, Some("bytes=10-19")).await;
        assert_eq!((part.status, part.body.as_slice()), (StatusCode::PARTIAL_CONTENT, &layer[10..20]));
        assert_eq!(part.header("content-range"), format!("bytes 10-19/{}", layer.len()));
        let none = bench.ask(Method::GET, &uri, Some("bytes=99999999-")).await;
        assert_eq!(none.error(), (416, "RANGE_INVALID".into()));
    }
    let config = manifest.json()["config"]["digest"].as_str().unwrap().to_owned();
    assert_eq!(bench.get(&format!("/v2/rancher/x-k3s/blobs/{config}")).await.json()["os"], "linux");
}

#[tokio::test]
async fn an_oci_layout_keeps_the_publishers_digests() {
    let bench = Bench::new();
    let layers = layers();
    let here = images::image(&layers, "linux", images::architecture());
    let there = images::image(&layers[1..], "linux", "s390x");
    let index = images::index(&[
        (&here.manifest, "linux", images::architecture()),
        (&there.manifest, "linux", "s390x"),
    ]);
    let kind = "application/vnd.oci.image.index.v1+json";
    // The archive does not contain the other platform.
    let mut parts: Vec<&[u8]> = vec![&here.manifest];
    parts.extend(here.blobs.iter().map(Vec::as_slice));
    bench.put("a.tar", &images::oci_layout("docker.io/rancher/x-k3s:v1", &index, kind, &parts));
    let found = bench.get("/v2/rancher/x-k3s/manifests/v1").await;
    assert_eq!((found.body.as_slice(), found.header("content-type")), (index.as_slice(), kind));
    let child = images::digest(&here.manifest);
    assert_eq!(bench.get(&format!("/v2/rancher/x-k3s/manifests/{child}")).await.body, here.manifest);
    let other = images::digest(&there.manifest);
    let missing = bench.get(&format!("/v2/rancher/x-k3s/manifests/{other}")).await;
    assert_eq!(missing.error(), (404, "MANIFEST_UNKNOWN".into()));
}

#[tokio::test]
async fn compressed_archives_are_served_and_replaced_archives_are_noticed() {
    let bench = Bench::new();
    let plain = images::docker_save(&["a/b:1"], &layers());
    let gzip = images::gzip(&plain);
    let zstd = ruzstd::encoding::compress_to_vec(
        &images::docker_save(&["c/d:1"], &layers())[..],
        ruzstd::encoding::CompressionLevel::Fastest,
    );
    bench.put("a.tgz", &gzip);
    bench.put("b.tar.zst", &zstd);
    let manifest = bench.get("/v2/a/b/manifests/1").await;
    assert_eq!(manifest.status, StatusCode::OK);
    assert_eq!(bench.get("/v2/c/d/manifests/1").await.status, StatusCode::OK);
    let digest = manifest.json()["layers"][0]["digest"].as_str().unwrap().to_owned();
    assert_eq!(bench.get(&format!("/v2/a/b/blobs/{digest}")).await.body, layers()[0]);
    std::fs::remove_file(bench.dir.path().join("images/a.tgz")).unwrap();
    bench.put("a.tar", &images::docker_save(&["a/b:2"], &layers()));
    assert_eq!(bench.get("/v2/a/b/manifests/1").await.error(), (404, "MANIFEST_UNKNOWN".into()));
    assert_eq!(bench.get("/v2/a/b/tags/list").await.json()["tags"], serde_json::json!(["2"]));
    let left = std::fs::read_dir(bench.dir.path().join("scratch")).unwrap().count();
    assert_eq!(left, 1, "only the zstd archive still has a decompressed copy");
}

#[tokio::test]
async fn lists_are_paginated_and_namespaces_are_distinguished() {
    let bench = Bench::new();
    for tag in ["a/b:1", "a/b:2", "a/b:3", "r.x/a/b:9"] {
        bench.put(
            &format!("{}.tar", tag.replace(['/', ':'], "-")),
            &images::docker_save(&[tag], &layers()[1..]),
        );
    }
    let first = bench.get("/v2/a/b/tags/list?n=2&ns=docker.io").await;
    assert_eq!(first.json(), serde_json::json!({"name": "a/b", "tags": ["1", "2"]}));
    assert_eq!(first.header("link"), "</v2/a/b/tags/list?n=2&last=2>; rel=\"next\"");
    let second = bench.get("/v2/a/b/tags/list?n=2&last=2&ns=docker.io").await;
    assert_eq!((second.json()["tags"].clone(), second.header("link")), (serde_json::json!(["3"]), ""));
    assert_eq!(bench.get("/v2/a/b/tags/list?ns=r.x").await.json()["tags"], serde_json::json!(["9"]));
    assert_eq!(bench.get("/v2/a/b/manifests/9?ns=docker.io").await.error().0, 404);
    assert_eq!(bench.get("/v2/a/b/manifests/9").await.status, StatusCode::OK);
    assert_eq!(bench.get("/v2/a/b/tags/list?n=x").await.error().0, 400);
}

#[tokio::test]
async fn errors_use_the_codes_of_the_specification() {
    let bench = Bench::new();
    bench.put("a.tar", &images::docker_save(&["a/b:1"], &layers()[1..]));
    let zero = format!("sha256:{}", "0".repeat(64));
    for (method, uri, status, code) in [
        (Method::GET, "/v2/a/b/manifests/2".to_owned(), 404, "MANIFEST_UNKNOWN"),
        (Method::GET, "/v2/a/c/manifests/1".to_owned(), 404, "NAME_UNKNOWN"),
        (Method::GET, format!("/v2/a/b/blobs/{zero}"), 404, "BLOB_UNKNOWN"),
        (Method::GET, "/v2/a/b/blobs/sha256:..".to_owned(), 400, "DIGEST_INVALID"),
        (Method::GET, "/v2/A/manifests/1".to_owned(), 400, "NAME_INVALID"),
        (Method::GET, "/v2/../../etc/passwd/manifests/1".to_owned(), 400, "NAME_INVALID"),
        (Method::GET, "/v2/a/b/manifests/%2e%2e".to_owned(), 400, "MANIFEST_INVALID"),
        (Method::GET, "/v2/a/b/nothing".to_owned(), 404, "UNSUPPORTED"),
        (Method::PUT, "/v2/a/b/manifests/1".to_owned(), 405, "UNSUPPORTED"),
        (Method::POST, "/v2/a/b/blobs/uploads/".to_owned(), 405, "UNSUPPORTED"),
        (Method::DELETE, "/v2/a/b/manifests/1".to_owned(), 405, "UNSUPPORTED"),
    ] {
        assert_eq!(bench.ask(method, &uri, None).await.error(), (status, code.to_owned()), "{uri}");
    }
}
