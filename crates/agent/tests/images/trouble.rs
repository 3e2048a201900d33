//! What a registry can do wrong, and what a person reads then.

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
async fn refusals_are_told_in_words() {
    for (status, expected) in [
        (401, "401 Unauthorized: a login is needed; give one as configs.\"127.0.0.1:"),
        (403, "403 Forbidden: no permission to pull a/b"),
        (404, "404 Not Found: it is not there"),
        (418, "418 I'm a teapot"),
    ] {
        let (fake, node, name, _) = bench().await;
        fake.status("/manifests/", status, 1);
        let error = node.stage(&name).await.unwrap_err();
        assert!(error.starts_with(&format!("image {name}: not found among the 0 tarballs in /var/lib/rancher/agent/images, and not pulled: http://{}/v2/a/b: ", fake.address)), "{error}");
        assert!(error.contains(expected), "{error}");
        assert_eq!(fake.seen().len(), 1, "asking again would not help");
    }
    let (fake, node, _, _) = bench().await;
    let error = node.stage(&format!("{}/a/c:1", fake.address)).await.unwrap_err();
    assert!(error.contains("it is not there (MANIFEST_UNKNOWN: no such thing here)"), "{error}");
}

#[tokio::test]
async fn a_wrong_login_is_told_and_its_password_is_not() {
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
    assert!(node.stage(&name).await.unwrap_err().contains("gave no token"));
}

#[tokio::test]
async fn what_passes_is_tried_again() {
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
async fn what_does_not_pass_ends() {
    for (status, expected) in [
        (429, "429 Too Many Requests: the registry limits the rate of requests (after 4 tries)"),
        (500, "500 Internal Server Error (after 4 tries)"),
    ] {
        let (fake, node, name, _) = bench().await;
        fake.status("/manifests/", status, 9);
        let error = node.stage(&name).await.unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert_eq!(fake.seen().len(), 4);
    }
}

#[tokio::test]
async fn a_broken_layer_is_taken_up_where_it_broke() {
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
async fn a_layer_that_always_breaks_off_is_told_and_leaves_nothing() {
    let (fake, node, name, image) = bench().await;
    let digest = images::digest(&image.blobs[2]);
    for _ in 0..9 {
        fake.next(&digest, Reply::CutAfter(1));
    }
    let error = node.stage(&name).await.unwrap_err();
    assert!(error.contains(&format!("layer {digest} broke off after 4 of ")), "{error}");
    assert!(error.contains("(after 4 tries)"), "{error}");
    assert_eq!(node.cached().len(), 1, "the other layer is kept for the next try: {:?}", node.cached());
}

#[tokio::test]
async fn nothing_with_another_digest_is_believed() {
    let (fake, node, name, image) = bench().await;
    let layer = images::digest(&image.blobs[2]);
    let mut evil = image.blobs[2].clone();
    let last = evil.len() - 1;
    evil[last] ^= 1;
    fake.next(&layer, Reply::Bytes(evil));
    let error = node.stage(&name).await.unwrap_err();
    assert!(error.contains(&format!("layer {layer} should have")) && error.contains("came"), "{error}");
    assert_eq!(node.staged("run.sh"), None);
    assert!(!node.cached().contains(&layer.trim_start_matches("sha256:").to_owned()));
    fake.next(&images::digest(&image.blobs[0]), Reply::Bytes(b"{}".to_vec()));
    let error = node.stage(&name).await.unwrap_err();
    assert!(error.contains("config sha256:"), "{error}");
    let mut long = image.blobs[2].clone();
    long.extend_from_slice(&[0; 1000]);
    fake.next(&layer, Reply::Bytes(long));
    let error = node.stage(&name).await.unwrap_err();
    assert!(error.contains("is longer than the"), "{error}");
    fake.next(&layer, Reply::Bytes(image.blobs[2][..10].to_vec()));
    node.stage(&name).await.unwrap();
}

#[tokio::test]
async fn manifests_that_make_no_sense_are_told() {
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
async fn agent_check_33_a_pulled_layer_writes_nothing_outside() {
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
    // A layer that is no tar file at all.
    let image = images::image(&[b"no tar".repeat(200)], "linux", images::architecture());
    fake.image("/v2/a/b", Some("2"), &image);
    let error = node.stage(&format!("{}/a/b:2", fake.address)).await.unwrap_err();
    assert!(error.starts_with("cannot unpack /stage: "), "{error}");
}

#[tokio::test]
async fn redirects_are_followed_with_care() {
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
async fn a_registries_file_that_cannot_be_read_is_named() {
    let (_fake, node, name, _) = bench().await;
    node.registries("mirrors: [x]");
    let error = node.stage(&name).await.unwrap_err();
    assert!(
        error.ends_with("not pulled: /etc/rancher/agent/registries.yaml: mirrors must be a map"),
        "{error}"
    );
}

#[tokio::test]
async fn a_dead_mirror_costs_a_few_tries_and_then_the_next_is_asked() {
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
async fn trouble_of_this_machine_is_told_and_no_other_registry_is_asked() {
    let (fake, node, _, _) = bench().await;
    node.registries(&format!(
        "mirrors: {{r.x: {{endpoint: ['http://{}', 'http://other.example.com']}}}}",
        fake.address
    ));
    // Nothing can be kept where a file has the place of the cache.
    let attr = Attr { mode: 0o600, owner: None };
    node.host.make_dirs(Path::new("/var/lib/rancher/agent"), 0o700).unwrap();
    node.host.replace(Path::new("/var/lib/rancher/agent/cache"), b"", attr).unwrap();
    let error = node.stage("r.x/a/b:1").await.unwrap_err().to_string();
    assert!(error.contains("cannot keep /var/lib/rancher/agent/cache/"), "{error}");
    assert!(!error.contains("example.com"), "{error}");
    assert!(!node.dialled().iter().any(|name| name.contains("other.example.com")));
}
