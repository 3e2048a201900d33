//! Errors of registries, and their messages.

use std::path::Path;

use drover_agent::host::{Attr, Host as _};
use drover_testkit::images;

use crate::{
    fake::{Door, Fake, Reply},
    node::Node,
};

fn image() -> images::Image {
    let layers =
        [images::layer(&[("program", &[7; 2_000_000], 0o755)]), images::layer(&[("run.sh", b"one", 0o755)])];
    images::image(&layers, "linux", images::architecture())
}

async fn bench() -> (Fake, Node, String, images::Image) {
    let fake = Fake::plain().await;
    let image = image();
    fake.image("/v2/a/b", Some("1"), &image);
    let name = format!("{}/a/b:1", fake.address);
    (fake, Node::new(), name, image)
}

#[tokio::test]
async fn error_responses_have_clear_messages() {
    for (status, expected) in [
        (401, "401 Unauthorized: the registry requires a login; set configs.\"127.0.0.1:"),
        (403, "403 Forbidden: no permission to pull a/b"),
        (404, "404 Not Found: the image or tag does not exist"),
        (418, "418 I'm a teapot"),
    ] {
        let (fake, node, name, _) = bench().await;
        fake.status("/manifests/", status, 1);
        let error = node.stage(&name).await.unwrap_err();
        assert!(error.starts_with(&format!("image {name}: not found among the 0 tarballs in /var/lib/rancher/agent/images, and pulling it failed: http://{}/v2/a/b: ", fake.address)), "{error}");
        assert!(error.contains(expected), "{error}");
        assert_eq!(fake.seen().len(), 1, "a retry cannot succeed");
    }
    let (fake, node, _, _) = bench().await;
    let error = node.stage(&format!("{}/a/c:1", fake.address)).await.unwrap_err();
    assert!(
        error.contains("the image or tag does not exist (MANIFEST_UNKNOWN: no such thing here)"),
        "{error}"
    );
}

#[tokio::test]
async fn wrong_credentials_are_reported_without_the_password() {
    let (fake, node, name, _) = bench().await;
    fake.guard(Door::Basic("u", "right"));
    node.registries(&format!(
        "{{configs: {{'{}': {{auth: {{username: u, password: sesame}}}}}}}}",
        fake.address
    ));
    let error = node.stage(&name).await.unwrap_err();
    assert!(error.contains("401 Unauthorized: the configured credentials were refused"), "{error}");
    assert!(!error.contains("sesame"));
    fake.guard(Door::Bearer("t", format!("http://{}/token", fake.address)));
    fake.next(
        "/token",
        Reply::Status(403, vec![], r#"{"errors":[{"code":"DENIED","message":"not you"}]}"#.into()),
    );
    let error = node.stage(&name).await.unwrap_err();
    assert!(error.contains("token server") && error.contains("DENIED: not you"), "{error}");
    fake.next("/token", Reply::Status(200, vec![], "{}".into()));
    assert!(node.stage(&name).await.unwrap_err().contains("returned no token"));
}

#[tokio::test]
async fn temporary_errors_are_retried() {
    let (fake, node, name, image) = bench().await;
    fake.next("/manifests/", Reply::Status(429, vec![("retry-after", "1".into())], String::new()));
    fake.status("/manifests/", 503, 1);
    fake.status(&images::digest(&image.blobs[1]), 500, 1);
    fake.next(&images::digest(&image.blobs[0]), Reply::CutAfter(5));
    node.stage(&name).await.unwrap();
    assert_eq!(node.staged("run.sh").as_deref(), Some("one"));
    assert_eq!(fake.count("/manifests/"), 3);
}

#[tokio::test]
async fn retries_end_after_the_last_attempt() {
    for (status, expected) in [
        (429, "429 Too Many Requests: the registry's rate limit was exceeded (after 4 attempts)"),
        (500, "500 Internal Server Error (after 4 attempts)"),
    ] {
        let (fake, node, name, _) = bench().await;
        fake.status("/manifests/", status, 9);
        let error = node.stage(&name).await.unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert_eq!(fake.seen().len(), 4);
    }
}

#[tokio::test]
async fn an_interrupted_layer_is_resumed() {
    for ranges in [true, false] {
        let (fake, node, name, image) = bench().await;
        let digest = images::digest(&image.blobs[1]);
        if !ranges {
            fake.without_ranges();
        }
        fake.next(&digest, Reply::CutAfter(1_500_000));
        node.stage(&name).await.unwrap();
        assert_eq!(node.staged("program").map(|text| text.len()), Some(2_000_000));
        let asked: Vec<_> = fake.seen().into_iter().filter(|seen| seen.line.contains(&digest)).collect();
        assert_eq!(asked.len(), 2);
        assert_eq!(asked[1].range.as_deref(), Some("bytes=1500000-"));
    }
}

#[tokio::test]
async fn a_layer_that_is_always_interrupted_is_reported_and_not_kept() {
    let (fake, node, name, image) = bench().await;
    let digest = images::digest(&image.blobs[2]);
    for _ in 0..9 {
        fake.next(&digest, Reply::CutAfter(1));
    }
    let error = node.stage(&name).await.unwrap_err();
    assert!(
        error.contains(&format!("the download of layer {digest} was interrupted after 4 of ")),
        "{error}"
    );
    assert!(error.contains("(after 4 attempts)"), "{error}");
    assert_eq!(node.cached().len(), 1, "the other layer is kept for the next attempt: {:?}", node.cached());
}

#[tokio::test]
async fn blobs_with_a_wrong_digest_are_rejected() {
    let (fake, node, name, image) = bench().await;
    let layer = images::digest(&image.blobs[2]);
    let mut evil = image.blobs[2].clone();
    let last = evil.len() - 1;
    evil[last] ^= 1;
    fake.next(&layer, Reply::Bytes(evil));
    let error = node.stage(&name).await.unwrap_err();
    assert!(
        error.contains(&format!("layer {layer} does not match its digest")) && error.contains("got "),
        "{error}"
    );
    assert_eq!(node.staged("run.sh"), None);
    assert!(!node.cached().contains(&layer.trim_start_matches("sha256:").to_owned()));
    fake.next(&images::digest(&image.blobs[0]), Reply::Bytes(b"{}".to_vec()));
    let error = node.stage(&name).await.unwrap_err();
    assert!(error.contains("config sha256:"), "{error}");
    let mut long = image.blobs[2].clone();
    long.extend_from_slice(&[0; 1000]);
    fake.next(&layer, Reply::Bytes(long));
    let error = node.stage(&name).await.unwrap_err();
    assert!(error.contains("is larger than the"), "{error}");
    fake.next(&layer, Reply::Bytes(image.blobs[2][..10].to_vec()));
    node.stage(&name).await.unwrap();
}

#[tokio::test]
async fn invalid_manifests_are_reported() {
    for (bytes, expected) in [
        (b"<html>".to_vec(), "invalid manifest"),
        (br#"{"schemaVersion":1}"#.to_vec(), "schema version 1"),
        (vec![b' '; 5 << 20], "larger than 4194304 bytes"),
    ] {
        let (fake, node, name, _) = bench().await;
        for _ in 0..4 {
            fake.next("/manifests/", Reply::Bytes(bytes.clone()));
        }
        let error = node.stage(&name).await.unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn agent_check_33_a_pulled_layer_writes_nothing_outside_of_the_directory() {
    let mut header = tar::Header::new_ustar();
    let evil = b"../../etc/x";
    header.as_old_mut().name[..evil.len()].copy_from_slice(evil);
    header.set_size(4);
    header.set_mode(0o644);
    header.set_cksum();
    let mut out = tar::Builder::new(Vec::new());
    out.append(&header, &b"evil"[..]).unwrap();
    let image = images::image(&[out.into_inner().unwrap()], "linux", images::architecture());
    let fake = Fake::plain().await;
    fake.image("/v2/a/b", Some("1"), &image);
    let node = Node::new();
    let error = node.stage(&format!("{}/a/b:1", fake.address)).await.unwrap_err();
    assert_eq!(error, "image entry \"../../etc/x\" would be written outside of the staging directory");
    use drover_agent::host::Host as _;
    assert!(node.host.stat(std::path::Path::new("/etc/x")).is_err());
    // A layer that is not a tar file.
    let image = images::image(&[b"no tar".repeat(200)], "linux", images::architecture());
    fake.image("/v2/a/b", Some("2"), &image);
    let error = node.stage(&format!("{}/a/b:2", fake.address)).await.unwrap_err();
    assert!(error.starts_with("failed to unpack /stage: "), "{error}");
}

#[tokio::test]
async fn only_safe_redirects_are_followed() {
    let (fake, node, name, _) = bench().await;
    let to = |location: &str| Reply::Status(302, vec![("location", location.to_owned())], String::new());
    fake.next("/manifests/", to("ftp://x"));
    assert!(node.stage(&name).await.unwrap_err().contains("302 Found without a usable Location"));
    for _ in 0..9 {
        fake.next("/manifests/", to("/v2/a/b/manifests/1"));
    }
    assert!(node.stage(&name).await.unwrap_err().contains("more than 5 redirects"));
}

#[tokio::test]
async fn an_invalid_registries_file_is_reported() {
    let (_fake, node, name, _) = bench().await;
    node.registries("mirrors: [x]");
    let error = node.stage(&name).await.unwrap_err();
    assert!(
        error.ends_with("pulling it failed: /etc/rancher/agent/registries.yaml: mirrors must be a map"),
        "{error}"
    );
}

#[tokio::test]
async fn after_a_few_attempts_the_next_mirror_is_used() {
    let (fake, node, _, _) = bench().await;
    let dead = Fake::plain().await;
    dead.stop();
    node.registries(&format!(
        "mirrors: {{r.x: {{endpoint: ['http://dead.example.com', 'http://{}']}}}}",
        fake.address
    ));
    node.stage("r.x/a/b:1").await.unwrap();
    assert_eq!(node.dialled().iter().filter(|name| *name == "dead.example.com:80").count(), 4);
}

#[tokio::test]
async fn an_error_of_this_host_is_reported_without_trying_other_registries() {
    let (fake, node, _, _) = bench().await;
    node.registries(&format!(
        "mirrors: {{r.x: {{endpoint: ['http://{}', 'http://other.example.com']}}}}",
        fake.address
    ));
    // A file in place of the cache directory, so that nothing can be stored.
    let attr = Attr { mode: 0o600, owner: None };
    node.host.make_dirs(Path::new("/var/lib/rancher/agent"), 0o700).unwrap();
    node.host.replace(Path::new("/var/lib/rancher/agent/cache"), b"", attr).unwrap();
    let error = node.stage("r.x/a/b:1").await.unwrap_err().to_string();
    assert!(error.contains("failed to store /var/lib/rancher/agent/cache/"), "{error}");
    assert!(!error.contains("example.com"), "{error}");
    assert!(!node.dialled().iter().any(|name| name.contains("other.example.com")));
}
