//! The requests of successful pulls.

use drover_testkit::{images, tls::Authority};

use crate::{
    fake::{Door, Fake, Reply},
    node::Node,
};

fn hello(text: &str) -> images::Image {
    let layers = [
        images::layer(&[("bin/program", b"elf", 0o755), ("gone", b"x", 0o644)]),
        images::layer(&[("run.sh", text.as_bytes(), 0o755), (".wh.gone", b"", 0o644)]),
    ];
    images::image(&layers, "linux", images::architecture())
}

#[tokio::test]
async fn an_image_is_pulled_once_and_its_layers_are_reused() {
    let fake = Fake::plain().await;
    fake.image("/v2/a/b", Some("1"), &hello("one"));
    let second = hello("two");
    fake.image("/v2/a/b", Some("2"), &second);
    let node = Node::new();
    let name = |tag: &str| format!("{}/a/b:{tag}", fake.address);
    node.stage(&name("1")).await.unwrap();
    assert_eq!(node.staged("run.sh").as_deref(), Some("one"));
    assert_eq!((node.staged("bin/program").as_deref(), node.staged("gone")), (Some("elf"), None));
    assert_eq!(node.cached().len(), 2);
    node.stage(&name("1")).await.unwrap();
    let shared = images::digest(&second.blobs[1]);
    assert_eq!(fake.count(&shared), 1, "the second time it is read from disk");
    node.stage(&name("2")).await.unwrap();
    assert_eq!(node.staged("run.sh").as_deref(), Some("two"));
    assert_eq!((fake.count(&shared), node.cached().len()), (1, 3), "the shared layer is pulled once");
}

#[tokio::test]
async fn a_corrupt_layer_in_the_cache_is_pulled_again() {
    let fake = Fake::plain().await;
    let image = hello("one");
    fake.image("/v2/a/b", Some("1"), &image);
    let node = Node::new();
    let name = format!("{}/a/b:1", fake.address);
    node.stage(&name).await.unwrap();
    let digest = images::digest(&image.blobs[2]);
    let path = format!("/var/lib/rancher/agent/cache/blobs/sha256/{}", digest.trim_start_matches("sha256:"));
    node.write(&path, &"\0".repeat(image.blobs[2].len()));
    node.stage(&name).await.unwrap();
    assert_eq!((fake.count(&digest), node.staged("run.sh").as_deref()), (2, Some("one")));
}

#[tokio::test]
async fn agent_check_34_a_digest_reference_is_pulled_and_verified() {
    let fake = Fake::plain().await;
    let image = hello("one");
    fake.image("/v2/a/b", None, &image);
    let node = Node::new();
    let digest = images::digest(&image.manifest);
    node.stage(&format!("{}/a/b@{digest}", fake.address)).await.unwrap();
    node.stage(&format!("{}/a/b:sometag@{digest}", fake.address)).await.unwrap();
    assert_eq!(node.staged("run.sh").as_deref(), Some("one"));
    assert_eq!(fake.count("manifests/sometag"), 0);
    // The registry returns a different image than requested.
    fake.put(&format!("/v2/a/b/manifests/{digest}"), "x", &hello("evil").manifest);
    let error = node.stage(&format!("{}/a/b@{digest}", fake.address)).await.unwrap_err();
    assert!(
        error.contains(&format!(
            "manifest {digest} does not match its digest: expected {digest}, got sha256:"
        )),
        "{error}"
    );
    assert_eq!(node.staged("run.sh"), None);
}

#[tokio::test]
async fn an_index_is_resolved_for_this_platform_and_compressed_layers_are_supported() {
    let gzip = images::gzip(&images::layer(&[("run.sh", b"gzip", 0o755)]));
    let zstd = ruzstd::encoding::compress_to_vec(
        &images::layer(&[("two", b"zstd", 0o644)])[..],
        ruzstd::encoding::CompressionLevel::Fastest,
    );
    let here = images::image(&[gzip, zstd], "linux", images::architecture());
    let there = images::image(&[], "linux", "s390x");
    let index = images::index(&[
        (&there.manifest, "linux", "s390x"),
        (&here.manifest, "linux", images::architecture()),
    ]);
    let fake = Fake::plain().await;
    fake.image("/v2/a/b", None, &here);
    fake.image("/v2/a/b", None, &there);
    fake.put("/v2/a/b/manifests/1", "application/vnd.oci.image.index.v1+json", &index);
    let node = Node::new();
    node.stage(&format!("{}/a/b:1", fake.address)).await.unwrap();
    assert_eq!(
        (node.staged("run.sh").as_deref(), node.staged("two").as_deref()),
        (Some("gzip"), Some("zstd"))
    );
    let other = images::index(&[(&there.manifest, "linux", "s390x")]);
    fake.put("/v2/a/b/manifests/2", "application/vnd.oci.image.index.v1+json", &other);
    let error = node.stage(&format!("{}/a/b:2", fake.address)).await.unwrap_err();
    let expected =
        format!("no image for platform linux/{}; available platforms: linux/s390x", images::architecture());
    assert!(error.contains(&expected), "{error}");
}

#[tokio::test]
async fn agent_check_32_mirror_with_rewrite_and_login_then_the_original() {
    let authority = Authority::new("mirror and original");
    let mirror = Fake::start(Some(authority.identity().server(None))).await;
    let original = Fake::start(Some(authority.identity().server(None))).await;
    mirror.image("/v2/mirrored/x-k3s", Some("v1"), &hello("from the mirror"));
    mirror.guard(Door::Basic("u", "p"));
    original.image("/v2/rancher/x-k3s", Some("v1"), &hello("from the original"));
    let node = Node::new();
    node.write("/etc/ca.pem", &authority.pem);
    // The original's certificate is for localhost; only the trust in the mirror is tested here.
    node.registries(&format!(
        "mirrors:\n  docker.io:\n    endpoint: [\"https://127.0.0.1:{port}\"]\n    rewrite: {{\"^rancher/(.*)\": \"mirrored/$1\"}}\n\
         configs:\n  \"127.0.0.1:{port}\":\n    auth: {{username: u, password: p}}\n    tls: {{ca_file: /etc/ca.pem}}\n  \
         docker.io: {{tls: {{insecure_skip_verify: true}}}}\n",
        port = mirror.address.port()
    ));
    node.route("index.docker.io:443", original.address);
    node.stage("rancher/x-k3s:v1").await.unwrap();
    assert_eq!(node.staged("run.sh").as_deref(), Some("from the mirror"));
    let lines: Vec<String> = mirror.seen().into_iter().map(|seen| seen.line).collect();
    assert!(
        lines.iter().all(|line| line.contains("/v2/mirrored/x-k3s/") && line.contains("?ns=docker.io")),
        "{lines:?}"
    );
    assert!(original.seen().is_empty() && !node.dialled().contains(&"index.docker.io:443".to_owned()));
    // The mirror does not have it: the original is used, with the original name and without the mirror's credentials.
    original.image("/v2/rancher/x-k3s", Some("v2"), &hello("from the original"));
    node.stage("rancher/x-k3s:v2").await.unwrap();
    assert_eq!(node.staged("run.sh").as_deref(), Some("from the original"));
    let seen = original.seen();
    assert!(seen.iter().all(|seen| seen.authorization.is_none() && !seen.line.contains("ns=")), "{seen:?}");
}

#[tokio::test]
async fn a_client_certificate_is_sent_and_an_unknown_ca_is_rejected() {
    let (authority, strangers) = (Authority::new("registry"), Authority::new("strangers"));
    let fake = Fake::start(Some(authority.identity().server(Some(&authority)))).await;
    fake.image("/v2/a/b", Some("1"), &hello("one"));
    let node = Node::new();
    let pair = authority.identity();
    node.write("/etc/ca.pem", &authority.pem);
    node.write("/etc/strangers.pem", &strangers.pem);
    node.write("/etc/cert.pem", &pair.certificate);
    node.write("/etc/key.pem", &pair.key);
    node.route("r.example.com:443", fake.address);
    let tls = |files: &str| {
        let port = fake.address.port();
        format!(
            "{{mirrors: {{r.example.com: {{endpoint: ['https://127.0.0.1:{port}']}}}}, \
             configs: {{'127.0.0.1:{port}': {{tls: {{{files}}}}}}}}}"
        )
    };
    node.registries(&tls("ca_file: /etc/ca.pem, cert_file: /etc/cert.pem, key_file: /etc/key.pem"));
    node.stage("r.example.com/a/b:1").await.unwrap();
    node.registries(&tls("ca_file: /etc/strangers.pem"));
    let error = node.stage("r.example.com/a/b:1").await.unwrap_err();
    assert!(error.contains("UnknownIssuer"), "{error}");
    node.registries(&tls("ca_file: /etc/nothing.pem"));
    let error = node.stage("r.example.com/a/b:1").await.unwrap_err();
    assert!(error.contains("ca_file /etc/nothing.pem"), "{error}");
}

#[tokio::test]
async fn a_token_is_requested_with_the_credentials_and_sent_only_to_the_registry() {
    let fake = Fake::plain().await;
    let storage = Fake::plain().await;
    let realm = format!("http://{}/token", fake.address);
    let image = hello("one");
    fake.image("/v2/a/b", Some("1"), &image);
    fake.guard(Door::Bearer("letmein", realm));
    fake.next("/token", Reply::Status(200, vec![], r#"{"token":"letmein"}"#.into()));
    // Blobs are stored on another server, as in most large registries.
    let layer = images::digest(&image.blobs[1]);
    storage.put("/storage", "x", &image.blobs[1]);
    let away = format!("http://{}/storage", storage.address);
    let node = Node::new();
    node.registries(&format!("{{configs: {{'{}': {{auth: {{username: u, password: p}}}}}}}}", fake.address));
    fake.next(&format!("blobs/{layer}"), Reply::Status(307, vec![("location", away)], String::new()));
    node.stage(&format!("{}/a/b:1", fake.address)).await.unwrap();
    assert_eq!(node.staged("run.sh").as_deref(), Some("one"));
    let seen = fake.seen();
    let token = seen.iter().find(|seen| seen.line.contains("/token")).unwrap();
    assert_eq!(token.line, "GET /token?scope=repository%3Aa%2Fb%3Apull&service=fake%20service");
    assert_eq!(token.authorization.as_deref(), Some("Basic dTpw"));
    assert_eq!(fake.count("/token"), 1, "the token is reused");
    assert!(storage.seen().iter().all(|seen| seen.authorization.is_none()));
}

#[tokio::test]
async fn an_identity_token_is_exchanged() {
    let fake = Fake::plain().await;
    fake.image("/v2/a/b", Some("1"), &hello("one"));
    fake.guard(Door::Bearer("access", format!("http://{}/token", fake.address)));
    fake.next("/token", Reply::Status(200, vec![], r#"{"access_token":"access"}"#.into()));
    let node = Node::new();
    node.registries(&format!("{{configs: {{'{}': {{auth: {{identity_token: 'r/t'}}}}}}}}", fake.address));
    node.stage(&format!("{}/a/b:1", fake.address)).await.unwrap();
    let seen = fake.seen();
    let post = seen.iter().find(|seen| seen.line.starts_with("POST /token")).unwrap();
    assert!(
        post.body.contains("grant_type=refresh_token") && post.body.contains("refresh_token=r%2Ft"),
        "{post:?}"
    );
}

#[tokio::test]
async fn the_wildcard_mirror_and_a_path_in_an_endpoint_are_used() {
    let fake = Fake::plain().await;
    fake.image("/proxy/a/b", Some("1"), &hello("one"));
    let node = Node::new();
    node.write(
        "/etc/rancher/k3s/registries.yaml",
        &format!("mirrors: {{'*': {{endpoint: ['http://{}/proxy/']}}}}", fake.address),
    );
    node.stage("r.example.com/a/b:1").await.unwrap();
    assert_eq!(node.staged("run.sh").as_deref(), Some("one"));
    assert_eq!(fake.count("/proxy/a/b/manifests/1?ns=r.example.com"), 1);
}
