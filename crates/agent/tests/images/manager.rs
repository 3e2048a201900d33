//! The management plane's own registry, over TLS: a node without any other network can install from it.

use drover_https::Incoming;
use drover_registry::Registry;
use drover_testkit::{
    images,
    tls::{Authority, Identity},
};
use http::Request;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{fake::Fake, node::Node};

/// A server that serves `/v2` from a directory.
pub struct Manager {
    pub dir: tempfile::TempDir,
    pub url: String,
    stop: CancellationToken,
}

impl Manager {
    pub async fn start(identity: &Identity) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::new(dir.path().join("images"), dir.path().join("scratch"));
        std::fs::create_dir(dir.path().join("images")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let handler = move |request: Request<Incoming>| {
            let registry = registry.clone();
            async move { registry.answer(request.method(), request.uri(), request.headers()).await }
        };
        let stop = CancellationToken::new();
        tokio::spawn(drover_https::serve(listener, identity.server(None), handler, stop.clone()));
        Self { dir, url, stop }
    }

    pub fn archive(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.dir.path().join("images").join(name), bytes).unwrap();
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn installer(text: &str) -> Vec<u8> {
    let layers = [
        images::layer(&[("k3s", &[7; 3_000_000], 0o755)]),
        images::layer(&[("run.sh", text.as_bytes(), 0o755)]),
    ];
    images::docker_save(&["rancher/system-agent-installer-k3s:v1-k3s1"], &layers)
}

const IMAGE: &str = "rancher/system-agent-installer-k3s:v1-k3s1";

fn connect(node: &mut Node, url: &str, ca: &str) {
    use base64::Engine as _;
    let ca = base64::engine::general_purpose::STANDARD.encode(ca);
    let kubeconfig = serde_json::json!({
        "current-context": "agent",
        "clusters": [{"name": "agent", "cluster": {"server": url, "certificate-authority-data": ca}}],
        "contexts": [{"name": "agent", "context": {"cluster": "agent", "user": "agent"}}],
        "users": [{"name": "agent", "user": {"token": "secret"}}],
    });
    let connection =
        serde_json::json!({"kubeConfig": kubeconfig.to_string(), "namespace": "n", "secretName": "s"});
    node.write("/var/lib/rancher/agent/connection.json", &connection.to_string());
    node.config.images_from_server = true;
}

#[tokio::test]
async fn a_node_installs_from_the_server_alone() {
    let authority = Authority::new("manager");
    let manager = Manager::start(&authority.identity()).await;
    manager.archive("k3s.tar", &installer("from the server"));
    let mut node = Node::new();
    connect(&mut node, &manager.url, &authority.pem);
    node.stage(IMAGE).await.unwrap();
    assert_eq!(node.staged("run.sh").as_deref(), Some("from the server"));
    assert_eq!(node.staged("k3s").map(|text| text.len()), Some(3_000_000));
    assert_eq!(node.dialled().len(), 1, "{:?}", node.dialled());
    // The same archive in the node's own directory takes precedence.
    let local = installer("from the folder");
    use drover_agent::host::{Attr, Host as _};
    node.write("/var/lib/rancher/agent/images/x", "");
    let path = std::path::Path::new("/var/lib/rancher/agent/images/k3s.tar");
    node.host.replace(path, &local, Attr { mode: 0o644, owner: None }).unwrap();
    node.stage(IMAGE).await.unwrap();
    assert_eq!(node.staged("run.sh").as_deref(), Some("from the folder"));
}

#[tokio::test]
async fn mirrors_are_tried_before_the_server_and_the_images_registry_after_it() {
    let authority = Authority::new("manager");
    let manager = Manager::start(&authority.identity()).await;
    manager.archive("k3s.tar", &installer("from the server"));
    let mut node = Node::new();
    connect(&mut node, &manager.url, &authority.pem);
    let image = |text: &str| {
        images::image(
            &[images::layer(&[("run.sh", text.as_bytes(), 0o755)])],
            "linux",
            images::architecture(),
        )
    };
    let hub = Fake::start(Some(authority.identity().server(None))).await;
    hub.image("/v2/rancher/system-agent-installer-k3s", Some("v2-k3s1"), &image("from the hub"));
    node.route("index.docker.io:443", hub.address);
    node.registries("configs: {docker.io: {tls: {insecure_skip_verify: true}}}");
    // An image that the server does not have is pulled from the image's registry.
    node.stage("rancher/system-agent-installer-k3s:v2-k3s1").await.unwrap();
    assert_eq!(node.staged("run.sh").as_deref(), Some("from the hub"));
    let mirror = Fake::plain().await;
    mirror.image("/v2/rancher/system-agent-installer-k3s", Some("v1-k3s1"), &image("from the mirror"));
    node.registries(&format!("mirrors: {{docker.io: {{endpoint: ['http://{}']}}}}", mirror.address));
    node.stage(IMAGE).await.unwrap();
    assert_eq!(node.staged("run.sh").as_deref(), Some("from the mirror"));
    // Without the setting the server is not used.
    node.config.images_from_server = false;
    node.registries("{}");
    node.route("index.docker.io:443", "127.0.0.1:1".parse().unwrap());
    let before = node.dialled().len();
    node.stage("rancher/system-agent-installer-k3s:v3").await.unwrap_err();
    let asked = node.dialled().split_off(before);
    assert!(asked.iter().all(|name| name == "index.docker.io:443"), "{asked:?}");
}

#[tokio::test]
async fn the_server_is_trusted_only_with_the_connections_ca() {
    let (authority, other) = (Authority::new("manager"), Authority::new("other"));
    let manager = Manager::start(&authority.identity()).await;
    manager.archive("k3s.tar", &installer("from the server"));
    let mut node = Node::new();
    connect(&mut node, &manager.url, &other.pem);
    let error = node.stage(IMAGE).await.unwrap_err();
    assert!(error.contains(&manager.url) && error.contains("UnknownIssuer"), "{error}");
}

#[tokio::test]
async fn an_image_named_after_the_server_is_found_there() {
    let authority = Authority::new("manager");
    let manager = Manager::start(&authority.identity()).await;
    manager.archive("k3s.tar", &installer("from the server"));
    let mut node = Node::new();
    connect(&mut node, &manager.url, &authority.pem);
    let host = manager.url.trim_start_matches("https://");
    node.stage(&format!("{host}/{IMAGE}")).await.unwrap();
    assert_eq!(node.staged("run.sh").as_deref(), Some("from the server"));
}
