//! The real binary on real files: a plan whose image comes over TLS.

use std::sync::Arc;

use drover_testkit::{images, tls::Authority};
use serde_json::json;

use crate::{
    common::{FakeApi, machine::Machine},
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
    let api = FakeApi::new();
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
    // The manifest is asked for each time: a tag may have moved. Without anybody to ask, the plan fails and says so;
    // nothing leaves this machine, since the name's own registry is configured with a file that is not there.
    drop(manager);
    api.plan(&plan("two"), Some("pending"));
    api.until("the failure", |api| api.text("failure-count") == "1").await;
    let error = api.output("failed-output", "drover-agent/error");
    assert!(error.contains(IMAGE) && error.contains("cannot connect to 127.0.0.1:"), "{error}");
    assert!(error.contains("ca_file /does/not/exist"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_of_the_plan_is_the_registry() {
    let authority = Authority::new("server of the binary");
    let manager = Manager::start(&authority.identity()).await;
    let layers = [images::layer(&[("run.sh", b"#!/bin/sh\necho from the server\n", 0o755)])];
    manager.archive("k3s.tar", &images::docker_save(&[IMAGE], &layers));
    // One port for plan and images, as the management plane has it.
    let api = FakeApi::new();
    let front = front(api.clone(), manager.dir.path(), authority.identity().server(None)).await;
    let connection =
        crate::common::connection(&format!("https://{front}"), crate::common::TOKEN, Some(&authority.pem));
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

async fn front(api: FakeApi, dir: &std::path::Path, tls: Arc<rustls::ServerConfig>) -> std::net::SocketAddr {
    use http_body_util::BodyExt as _;
    let registry = drover_registry::Registry::new(dir.join("images"), dir.join("scratch"));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let handler = move |request: http::Request<hyper::body::Incoming>| {
        let (api, registry) = (api.clone(), registry.clone());
        async move {
            if request.uri().path().starts_with("/v2/") {
                let answer = registry.answer(request.method(), request.uri(), request.headers()).await;
                answer.map(|body| body.map_err(|error| error.to_string()).boxed_unsync())
            } else {
                let answer = api.answer(request).await.unwrap();
                answer.map(|body| body.map_err(|never| match never {}).boxed_unsync())
            }
        }
    };
    // Lives as long as the test's runtime.
    tokio::spawn(drover_https::serve(listener, tls, handler, tokio_util::sync::CancellationToken::new()));
    address
}
