//! The tunnel of a control plane node: a real tunnel server over TLS on one side, a cluster's API on the other.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used)] // helpers outside #[test] functions

#[path = "../common/mod.rs"]
mod common;
mod downstream;
mod manager;
mod tls;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use common::{Api, machine::Machine};
use downstream::Downstream;
use drover_agent::{
    cluster_agent::{ADMIN_KUBECONFIGS, ClusterAgent},
    host::{Attr, Host as _, RealHost},
    status::{self, Board, Status},
};
use manager::Manager;
use serde_json::json;
use tls::Authority;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

const VAR: &str = "/var/lib/rancher/agent";
const OLD: &str = "2026-01-01T00:00:00Z";
const NEW: &str = "2026-01-02T00:00:00Z";

/// A node on which the agent's tunnel runs, with its cluster and its management plane.
struct Node {
    manager: Manager,
    cluster: Downstream,
    host: Arc<RealHost>,
    agent: JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Node {
    /// Trusts the manager's CA; the cluster is empty, and the node has no kubeconfig.
    async fn new() -> Self {
        let manager = Manager::start().await;
        let authority = manager.authority.clone();
        Self::with_authority(manager, &authority, false).await
    }

    async fn with_authority(manager: Manager, authority: &Authority, strict: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let host = Arc::new(RealHost::at(dir.path()));
        let file = Path::new(VAR).join("connection.json");
        let kubeconfig = json!({
            "current-context": "agent",
            "clusters": [{"name": "agent", "cluster": {
                "server": manager.url(), "certificate-authority-data": STANDARD.encode(&authority.pem),
            }}],
            "contexts": [{"name": "agent", "context": {"cluster": "agent", "user": "agent"}}],
            "users": [{"name": "agent", "user": {"token": "machine-credential"}}],
        });
        let connection =
            json!({"kubeConfig": kubeconfig.to_string(), "namespace": "fleet-default", "secretName": "plan"});
        host.make_dirs(Path::new(VAR), 0o700).unwrap();
        host.replace(&file, connection.to_string().as_bytes(), Attr { mode: 0o600, owner: None }).unwrap();
        let board = Arc::new(Board::new(host.clone(), Path::new(VAR)));
        let kubeconfigs = ADMIN_KUBECONFIGS.iter().map(PathBuf::from).collect();
        let agent = ClusterAgent::new(host.clone(), board, kubeconfigs, file, strict);
        let agent = tokio::spawn(agent.run());
        Self { manager, cluster: Downstream::start().await, host, agent, _dir: dir }
    }

    fn become_server(&self) {
        let path = Path::new(ADMIN_KUBECONFIGS[0]);
        self.host.make_dirs(path.parent().unwrap(), 0o755).unwrap();
        let text = self.cluster.kubeconfig();
        self.host.replace(path, text.as_bytes(), Attr { mode: 0o600, owner: None }).unwrap();
    }

    fn be_managed(&self) {
        self.cluster.make_account();
        self.cluster.put_credentials("cattle-credentials-1", OLD, &self.manager.url(), "registration-1");
    }

    async fn connected(&self) {
        self.until("connected", |node| node.manager.is_connected()).await;
    }

    fn status(&self) -> String {
        let read = self.host.read(&status::path(Path::new(VAR))).unwrap_or_default();
        let status: Status = serde_json::from_slice(&read).unwrap_or_default();
        status.tunnel.map(|tunnel| tunnel.state).unwrap_or_default()
    }

    async fn shows(&self, text: &str) {
        self.until(&format!("the status contains {text:?}"), |node| node.status().contains(text)).await;
    }

    async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !condition(self) {
            assert!(
                Instant::now() < deadline,
                "timed out waiting for: {what}; the status is {:?}",
                self.status()
            );
            assert!(!self.agent.is_finished(), "the agent must not end");
            sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.agent.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_manager_reaches_the_api_through_the_tunnel() {
    let node = Node::new().await;
    node.shows("waiting for /etc/rancher/k3s/k3s.yaml or /etc/rancher/rke2/rke2.yaml").await;
    node.become_server();
    node.shows("waiting for a Secret cattle-system/cattle-credentials-*").await;
    node.cluster.put_credentials("cattle-credentials-1", OLD, &node.manager.url(), "registration-1");
    node.shows("waiting for ServiceAccount cattle-system/cattle").await;
    node.cluster.make_account();
    node.connected().await;
    node.shows(&format!("connected to {}", node.manager.address)).await;

    let (token, params) = node.manager.registrations().remove(0);
    assert_eq!(token, "registration-1");
    assert_eq!(
        node.manager.bearers(),
        [Some("Bearer machine-credential".to_owned())],
        "the machine's own credential"
    );
    assert_eq!(params["address"], node.cluster.address.to_string());
    assert_eq!(node.manager.whoami().await.unwrap(), "token-of-cattle-1");

    // An invalid or failing dial fails alone (access#9); the tunnel stays open.
    let refused = node.manager.refused_dial("unix", "/var/run/docker.sock").await;
    assert!(refused.contains("connect not allowed"), "{refused}");
    let refused = node.manager.refused_dial("tcp", "nonsense").await;
    assert!(refused.contains("not host:port"), "{refused}");
    let refused = node.manager.refused_dial("tcp", "127.0.0.1:1").await;
    assert!(refused.contains("refused"), "{refused}");
    assert_eq!(node.manager.whoami().await.unwrap(), "token-of-cattle-1");
    assert_eq!(node.manager.registrations().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn access_check_14_registering_again_sends_the_same_and_writes_nothing() {
    let node = Node::new().await;
    node.be_managed();
    node.become_server();
    node.connected().await;
    node.manager.disconnect();
    node.until("registered again", |node| node.manager.registrations().len() == 2).await;
    let registrations = node.manager.registrations();
    assert_eq!(registrations[0], registrations[1]);
    assert_eq!(node.cluster.writes(), ["cattle-token"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_credentials_and_tokens_are_used() {
    let node = Node::new().await;
    node.be_managed();
    node.become_server();
    node.connected().await;

    // The registration token: the new Secret is created before the old one is deleted.
    node.cluster.put_credentials("cattle-credentials-0", NEW, &node.manager.url(), "registration-2");
    node.until("the new token", |node| node.manager.registrations().len() == 2).await;
    assert_eq!(node.manager.registrations()[1].0, "registration-2");
    node.cluster.delete("cattle-credentials-1");

    // The account's token.
    node.cluster.delete("cattle-token");
    node.until("the account's new token", |node| node.manager.registrations().len() == 3).await;
    node.connected().await;
    assert_eq!(node.manager.whoami().await.unwrap(), "token-of-cattle-2");
    assert_eq!(node.manager.registrations()[2].0, "registration-2");
    assert_eq!(node.cluster.writes(), ["cattle-token", "cattle-token"]);

    // The cluster is no longer managed.
    node.cluster.delete("cattle-credentials-0");
    node.shows("waiting for a Secret cattle-system/cattle-credentials-*").await;
    node.until("closed", |node| !node.manager.is_connected()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn access_check_33_a_restarted_manager_gets_its_tunnel_back() {
    let node = Node::new().await;
    node.be_managed();
    node.become_server();
    node.connected().await;
    node.manager.set_down(true);
    node.shows("not connected to").await;
    assert!(!node.manager.is_connected());
    node.manager.set_down(false);
    node.connected().await;
    assert_eq!(node.manager.whoami().await.unwrap(), "token-of-cattle-1");
    assert_eq!(node.cluster.writes(), ["cattle-token"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_tunnel_is_retried_with_growing_pauses() {
    let node = Node::new().await;
    node.manager.refuse(Some((401, "failed authentication")));
    node.be_managed();
    let start = Instant::now();
    node.become_server();
    node.shows("401: failed authentication").await;
    // A server that repeats a token in its message must not get it into the log.
    node.manager.refuse(Some((400, "cluster not found: registration-1")));
    node.shows("400: cluster not found: [redacted]").await;
    node.until("a few attempts", |node| node.manager.attempts() >= 4).await;
    // Between four attempts there are three pauses of at least half of 250, 500 and 1,000 milliseconds.
    assert!(start.elapsed() >= Duration::from_millis(875), "{:?}", start.elapsed());
    node.manager.refuse(None);
    node.connected().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_no_longer_a_server_closes_its_tunnel() {
    let node = Node::new().await;
    node.be_managed();
    node.become_server();
    node.connected().await;
    node.host.remove_file(Path::new(ADMIN_KUBECONFIGS[0])).unwrap();
    node.shows("waiting for /etc/rancher/k3s/k3s.yaml").await;
    node.until("closed", |node| !node.manager.is_connected()).await;
    node.become_server();
    node.connected().await;
    assert_eq!(node.manager.whoami().await.unwrap(), "token-of-cattle-1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_kubeconfig_with_another_ca_is_used() {
    let mut node = Node::new().await;
    node.be_managed();
    node.become_server();
    node.connected().await;
    node.cluster = Downstream::start().await;
    node.be_managed();
    node.become_server();
    node.until("registered again", |node| node.manager.registrations().len() == 2).await;
    node.connected().await;
    assert_eq!(node.manager.registrations()[1].1["address"], node.cluster.address.to_string());
    assert_eq!(node.manager.whoami().await.unwrap(), "token-of-cattle-1");
}

/// A manager without the pinned CA gets neither a token nor a tunnel (access#20).
#[tokio::test(flavor = "multi_thread")]
async fn a_manager_with_another_ca_gets_no_token() {
    let manager = Manager::start().await;
    let node = Node::with_authority(manager, &Authority::new(), true).await;
    node.be_managed();
    node.become_server();
    node.shows("TLS with").await;
    assert_eq!(node.manager.attempts(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_ends_closes_its_tunnel_and_its_connections() {
    let node = Node::new().await;
    node.be_managed();
    node.become_server();
    node.connected().await;
    let session = node.manager.registry.clone();
    let mut open = session.dial("c-m-1", "tcp", &node.cluster.address.to_string()).await.unwrap();
    assert_eq!(node.manager.whoami().await.unwrap(), "token-of-cattle-1");
    node.agent.abort();
    let mut rest = Vec::new();
    let ended = tokio::io::AsyncReadExt::read_to_end(&mut open, &mut rest);
    let ended = tokio::time::timeout(Duration::from_secs(30), ended).await.expect("the connection ends");
    assert!(ended.is_err() || rest.is_empty());
    let deadline = Instant::now() + Duration::from_secs(30);
    while node.manager.is_connected() {
        assert!(Instant::now() < deadline, "the session ends");
        sleep(Duration::from_millis(10)).await;
    }
}

/// A Secret of the downstream cluster names another server, which must not get the machine's credential.
#[tokio::test(flavor = "multi_thread")]
async fn the_machines_credential_is_sent_only_to_its_own_management_plane() {
    let node = Node::new().await;
    let other = Manager::start_with(node.manager.authority.clone()).await;
    node.cluster.make_account();
    node.cluster.put_credentials("cattle-credentials-1", OLD, &other.url(), "registration-1");
    node.become_server();
    // Its own management plane can have another address by now, and is tried first.
    node.connected().await;
    node.shows(&format!("connected to {}", node.manager.address)).await;
    assert_eq!(node.manager.bearers(), [Some("Bearer machine-credential".to_owned())]);
    assert_eq!(other.attempts(), 0);
    // The other one is tried when its own rejects the tunnel, and gets no credential of the machine.
    node.manager.refuse(Some((403, "not with machine-credential")));
    node.manager.disconnect();
    node.until("connected to the other", |_| other.is_connected()).await;
    assert!(other.bearers().iter().all(Option::is_none), "{:?}", other.bearers());
    other.refuse(Some((403, "not here either")));
    other.disconnect();
    node.shows("not with [redacted]; ").await;
    node.shows("not here either").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_binary_keeps_a_tunnel_and_shows_its_status() {
    let (manager, cluster, api) = (Manager::start().await, Downstream::start().await, Api::new());
    api.create(&[("plan", "{}"), ("plan-state", "pending")]);
    let server = format!("https://{}", api.listen_tls(manager.authority.acceptor().config().clone()).await);
    let mut machine = Machine::with_connection(&api.connection_with(&server, Some(&manager.authority.pem)));
    cluster.make_account();
    cluster.put_credentials("cattle-credentials-1", OLD, &manager.url(), "registration-1");
    machine.start();
    api.until_text("plan-state", "succeeded").await;
    assert!(!manager.is_connected(), "a node without a kubeconfig has no tunnel");
    machine.private("admin.yaml", &cluster.kubeconfig());
    let deadline = Instant::now() + Duration::from_secs(60);
    while !manager.is_connected() {
        assert!(Instant::now() < deadline, "the tunnel opens");
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(manager.whoami().await.unwrap(), "token-of-cattle-1");
    // The registered CA is also in its plan secret, where nothing else changed.
    api.until_text("cluster-ca", &cluster.authority.pem).await;
    api.until_text("plan-state", "succeeded").await;
    let status = String::from_utf8(machine.command(&["status"]).output().unwrap().stdout).unwrap();
    assert!(status.contains(&format!("tunnel        connected to {}", manager.address)), "{status}");
    let log = machine.log();
    for secret in ["registration-1", "token-of-cattle-1"] {
        assert!(!log.contains(secret) && !status.contains(secret), "{log}");
    }
    if let Ok(proc) = std::fs::read_to_string(format!("/proc/{}/status", machine.pid())) {
        println!("{}", proc.lines().filter(|line| line.starts_with("VmRSS")).collect::<String>());
    }
}
