//! The real binary with real files: a plan whose image is pulled over TLS.

use std::sync::Arc;

use drover_testkit::{images, tls::Authority};
use serde_json::json;

use crate::{
    common::{Api, machine::Machine},
    fake::{Door, Fake},
    manager::Manager,
};

const IMAGE: &str = "rancher/system-agent-installer-k3s:v1-k3s1";

fn plan(stamp: &str) -> String {
    json!({"instructions": [{
        "name": "install", "image": IMAGE, "command": "sh", "args": ["-c", "run.sh"],
        "env": [format!("RESTART_STAMP={stamp}")], "saveOutput": true,
    }]})
    .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_installs_from_a_registry_and_again_without_it() {
    let authority = Authority::new("registry of the binary");
    let manager = Manager::start(&authority.identity()).await;
    let layers = [
        images::layer(&[("k3s", &[7; 5_000_000], 0o755)]),
        images::layer(&[("run.sh", b"#!/bin/sh\necho \"stamp=$RESTART_STAMP size=$(wc -c <k3s)\"\n", 0o755)]),
    ];
    manager.archive("k3s.tar", &images::docker_save(&[IMAGE], &layers));
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let config = machine.read("config.yaml").unwrap();
    let file = machine.path("registries.yaml");
    machine.private("config.yaml", &format!("{config}agentRegistriesFile: {}\n", file.display()));
    machine.private("ca.pem", &authority.pem);
    machine.private(
        "registries.yaml",
        &format!(
            "{{mirrors: {{docker.io: {{endpoint: ['{url}']}}}}, configs: {{'{host}': {{tls: {{ca_file: {ca}}}}}, \
             docker.io: {{tls: {{ca_file: /does/not/exist}}}}}}}}",
            url = manager.url,
            host = manager.url.trim_start_matches("https://"),
            ca = machine.path("ca.pem").display(),
        ),
    );
    api.create(&[("plan", &plan("one")), ("plan-state", "pending")]);
    machine.start();
    api.until_text("plan-state", "succeeded").await;
    assert_eq!(api.output("applied-output", "install"), "stamp=one size=5000000\n");
    let kept = std::fs::read_dir(machine.path("var/cache/blobs/sha256")).unwrap().count();
    assert_eq!(kept, 3, "two layers and the list");
    // The manifest is requested each time, because a tag can be moved. Without a registry, the plan fails with the
    // reason; nothing leaves this host, because the image's registry is configured with a missing file.
    drop(manager);
    api.plan(&plan("two"), Some("pending"));
    api.until("the failure", |api| api.text("failure-count") == "1").await;
    let error = api.output("failed-output", "drover-agent/error");
    assert!(error.contains(IMAGE) && error.contains("failed to connect to 127.0.0.1:"), "{error}");
    assert!(error.contains("ca_file /does/not/exist"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_of_the_plan_is_the_registry() {
    let authority = Authority::new("server of the binary");
    let manager = Manager::start(&authority.identity()).await;
    let layers = [images::layer(&[("run.sh", b"#!/bin/sh\necho from the server\n", 0o755)])];
    manager.archive("k3s.tar", &images::docker_save(&[IMAGE], &layers));
    // One port for plan and images, as on the management plane.
    let api = Api::new();
    let front = front(api.clone(), manager.dir.path(), authority.identity().server(None)).await;
    let connection = api.connection_with(&format!("https://{front}"), Some(&authority.pem));
    let mut machine = Machine::with_connection(&connection);
    let config = machine.read("config.yaml").unwrap();
    let empty = machine.path("registries.yaml");
    machine.private("registries.yaml", "{}");
    machine.private(
        "config.yaml",
        &format!("{config}imagesFromServer: true\nagentRegistriesFile: {}\n", empty.display()),
    );
    api.create(&[("plan", &plan("one")), ("plan-state", "pending")]);
    machine.start();
    api.until_text("plan-state", "succeeded").await;
    assert_eq!(api.output("applied-output", "install"), "from the server\n");
}

/// A plan that runs the content of an image.
fn run(image: &str) -> String {
    json!({"instructions": [{
        "name": "install", "image": image, "command": "sh", "args": ["-c", "run.sh"], "saveOutput": true,
    }]})
    .to_string()
}

fn saying(text: &str) -> images::Image {
    let script = format!("#!/bin/sh\necho {text}\n");
    let layers = [images::layer(&[("run.sh", script.as_bytes(), 0o755)])];
    images::image(&layers, "linux", images::architecture())
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_32_33_34_mirrors_digests_and_malicious_images_with_the_real_agent() {
    let (mirror, original) = (Fake::plain().await, Fake::plain().await);
    mirror.image("/v2/mirrored/x-k3s", Some("v1"), &saying("from the mirror"));
    mirror.guard(Door::Basic("u", "p"));
    original.image("/v2/rancher/x-k3s", Some("v1"), &saying("from the original"));
    original.image("/v2/rancher/x-k3s", Some("v2"), &saying("from the original"));
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let config = machine.read("config.yaml").unwrap();
    let file = machine.path("registries.yaml");
    machine.private("config.yaml", &format!("{config}agentRegistriesFile: {}\n", file.display()));
    machine.private(
        "registries.yaml",
        &format!(
            "mirrors:\n  \"{original}\":\n    endpoint: [\"http://{mirror}\"]\n    \
             rewrite: {{\"^rancher/(.*)\": \"mirrored/$1\"}}\n\
             configs:\n  \"{mirror}\": {{auth: {{username: u, password: p}}}}\n",
            original = original.address,
            mirror = mirror.address,
        ),
    );
    let first = run(&format!("{}/rancher/x-k3s:v1", original.address));
    api.create(&[("plan", &first), ("plan-state", "pending"), ("max-failures", "1")]);
    machine.start();
    api.until_text("plan-state", "succeeded").await;
    assert_eq!(api.output("applied-output", "install"), "from the mirror\n");
    let host = format!("ns=127.0.0.1%3A{}", original.address.port());
    let asked: Vec<String> = mirror.seen().into_iter().map(|seen| seen.line).collect();
    let right = |line: &String| line.contains("/v2/mirrored/x-k3s/") && line.contains(&host);
    assert!(!asked.is_empty() && asked.iter().all(right), "{asked:?}");
    assert!(original.seen().is_empty());
    // The mirror does not have it.
    api.plan(&run(&format!("{}/rancher/x-k3s:v2", original.address)), Some("pending"));
    api.until_text("plan-state", "succeeded").await;
    assert_eq!(api.output("applied-output", "install"), "from the original\n");
    assert!(
        original.seen().iter().all(|seen| seen.authorization.is_none()),
        "the credentials are only for the mirror"
    );

    // By digest; then the manifest is replaced.
    let image = saying("by digest");
    original.image("/v2/a/b", None, &image);
    let digest = images::digest(&image.manifest);
    let named = format!("{}/a/b@{digest}", original.address);
    api.plan(&run(&named), Some("pending"));
    api.until_text("plan-state", "succeeded").await;
    assert_eq!(api.output("applied-output", "install"), "by digest\n");
    original.put(&format!("/v2/a/b/manifests/{digest}"), "x", &saying("evil").manifest);
    let again = json!({"error": "again", "instructions": serde_json::from_str::<serde_json::Value>(&run(&named)).unwrap()["instructions"]});
    api.plan(&again.to_string(), Some("pending"));
    api.until_text("plan-state", "failed").await;
    let error = api.output("failed-output", "drover-agent/error");
    assert!(error.contains("does not match its digest"), "{error}");

    // A layer that would write outside of its directory.
    let mut header = tar::Header::new_ustar();
    let evil = b"../../../../evil";
    header.as_old_mut().name[..evil.len()].copy_from_slice(evil);
    header.set_size(4);
    header.set_mode(0o644);
    header.set_cksum();
    let mut layer = tar::Builder::new(Vec::new());
    layer.append(&header, &b"evil"[..]).unwrap();
    let image = images::image(&[layer.into_inner().unwrap()], "linux", images::architecture());
    original.image("/v2/a/evil", Some("1"), &image);
    api.plan(&run(&format!("{}/a/evil:1", original.address)), Some("pending"));
    api.until_text("plan-state", "failed").await;
    let error = api.output("failed-output", "drover-agent/error");
    assert!(error.contains("outside of the staging directory"), "{error}");
    for folder in ["", "var", "var/work"] {
        assert!(!machine.path(folder).join("evil").exists(), "in {folder:?}");
    }
}

async fn front(api: Api, dir: &std::path::Path, tls: Arc<rustls::ServerConfig>) -> std::net::SocketAddr {
    use http_body_util::BodyExt as _;
    let registry = drover_registry::Registry::new(dir.join("images"), dir.join("scratch"));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let handler = move |request: http::Request<drover_https::Incoming>| {
        let (api, registry) = (api.clone(), registry.clone());
        if let Some(peer) = request.extensions().get::<drover_https::Peer>() {
            peer.mark_authenticated();
        }
        async move {
            if request.uri().path().starts_with("/v2/") {
                let answer = registry.answer(request.method(), request.uri(), request.headers()).await;
                answer.map(|body| body.map_err(|error| error.to_string()).boxed_unsync())
            } else {
                let answer = api.answer(request).await.unwrap();
                answer.map(|body| body.map_err(|error| error.to_string()).boxed_unsync())
            }
        }
    };
    // Runs until the end of the test's runtime.
    tokio::spawn(drover_https::serve(listener, tls, handler, tokio_util::sync::CancellationToken::new()));
    address
}
