//! A server and an agent on separate loopback addresses, as K3s nodes.
#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use drover_sim::config::Role;
use drover_sim::node::{self, NodeOptions};
use drover_testkit::eventually;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::DeleteParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// Loopback is a /8, so every simulated host gets its own address, with the ports of K3s.
fn some_address() -> IpAddr {
    let [a, b, c] = rand::random::<[u8; 3]>();
    Ipv4Addr::new(127, 64 | (a >> 2), b, c.clamp(1, 254)).into()
}

struct Host {
    root: tempfile::TempDir,
    address: IpAddr,
}

impl Host {
    fn new(config: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("etc/rancher/k3s/config.yaml.d");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("50-rancher.yaml"), config).unwrap();
        Self { root, address: some_address() }
    }

    async fn start(
        &self,
        role: Role,
        name: &str,
        stop: &CancellationToken,
    ) -> oneshot::Receiver<Result<(), drover_sim::Error>> {
        let options = NodeOptions {
            role,
            version: "v1.34.1+k3s1".into(),
            flags: vec![],
            root: self.root.path().to_owned(),
            hostname: name.into(),
            address: Some(self.address),
            only_address: true,
            datastore: drover_sim::server::Datastore::default(),
        };
        let (ready, is_ready) = oneshot::channel();
        let stop = stop.clone();
        // A node is a separate program, so it gets its own runtime.
        let (ended, is_ended) = oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let result =
                runtime.block_on(node::run(options, move || ready.send(()).unwrap_or_default(), stop));
            drop(runtime);
            drop(ended.send(result));
        });
        match is_ready.await {
            Ok(()) => is_ended,
            Err(_) => panic!("exited early: {:?}", is_ended.await),
        }
    }
}

async fn admin(root: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(root.join("etc/rancher/k3s/k3s.yaml")).unwrap();
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

async fn ready_node(nodes: &Api<Node>, name: &str) -> Node {
    eventually(|| async {
        let node = nodes.get_opt(name).await.unwrap().ok_or("no Node")?;
        if is_ready(&node) { Ok(node) } else { Err("not Ready") }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_and_an_agent_form_a_cluster_that_survives_a_restart() {
    let server = Host::new(
        r#"{"token": "srv", "agent-token": "agt", "cluster-init": true, "node-label": ["pool=cp"]}"#,
    );
    let stop = CancellationToken::new();
    let running = server.start(Role::Server, "cp", &stop).await;
    let nodes = Api::<Node>::all(admin(server.root.path()).await);
    let cp = ready_node(&nodes, "cp").await;
    assert_eq!(cp.labels()["node-role.kubernetes.io/control-plane"], "true");
    assert_eq!(cp.labels()["pool"], "cp");
    assert_eq!(cp.spec.as_ref().unwrap().provider_id.as_deref(), Some("k3s://cp"));

    let config = format!(
        r#"{{"server": "https://{}:6443", "token": "agt", "node-taint": ["a=b:NoSchedule"]}}"#,
        server.address
    );
    let agent = Host::new(&config);
    let agent_stop = CancellationToken::new();
    let agent_running = agent.start(Role::Agent, "worker", &agent_stop).await;
    let worker = ready_node(&nodes, "worker").await;
    assert_eq!(worker.status.as_ref().unwrap().node_info.as_ref().unwrap().kubelet_version, "v1.34.1+k3s1");
    assert_eq!(worker.spec.as_ref().unwrap().taints.as_ref().unwrap()[0].key, "a");

    // The manifests folder: objects are applied, updated, and deleted when they are removed from the file.
    let maps = Api::<ConfigMap>::namespaced(admin(server.root.path()).await, "default");
    let manifest = server.root.path().join("var/lib/rancher/k3s/server/manifests/rancher/addons.yaml");
    let map = |name: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n---\n");
    std::fs::write(&manifest, map("one") + &map("two")).unwrap();
    eventually(|| async { maps.get_opt("two").await.unwrap().ok_or("no two") }).await;
    std::fs::write(&manifest, map("two")).unwrap();
    eventually(|| async { maps.get_opt("one").await.unwrap().map_or(Ok(()), |_| Err("one is still there")) })
        .await;

    // A restart keeps everything, and the agent reconnects.
    stop.cancel();
    running.await.unwrap().unwrap();
    let stop = CancellationToken::new();
    let running = server.start(Role::Server, "cp", &stop).await;
    let nodes = Api::<Node>::all(admin(server.root.path()).await);
    assert_eq!(nodes.get("cp").await.unwrap().uid(), cp.uid());
    assert!(maps.get_opt("two").await.unwrap().is_some());

    // A deleted Node is not registered again until its kubelet is restarted.
    let leases = Api::<Lease>::namespaced(admin(server.root.path()).await, "kube-node-lease");
    nodes.delete("worker", &DeleteParams::default()).await.unwrap();
    for _ in 0..2 {
        let before = leases.get("worker").await.unwrap().spec.unwrap().renew_time;
        eventually(|| async {
            let renewed = leases.get("worker").await.unwrap().spec.unwrap().renew_time != before;
            if renewed { Ok(()) } else { Err("no heartbeat") }
        })
        .await;
    }
    assert!(nodes.get_opt("worker").await.unwrap().is_none());
    agent_stop.cancel();
    agent_running.await.unwrap().unwrap();
    let agent_stop = CancellationToken::new();
    let agent_running = agent.start(Role::Agent, "worker", &agent_stop).await;
    assert_ne!(ready_node(&nodes, "worker").await.uid(), worker.uid());
    agent_stop.cancel();
    agent_running.await.unwrap().unwrap();
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_is_refused_and_leaves_no_node() {
    let server = Host::new(r#"{"token": "srv", "cluster-init": true}"#);
    let stop = CancellationToken::new();
    let running = server.start(Role::Server, "cp", &stop).await;
    let agent = Host::new(&format!(r#"{{"server": "https://{}:6443", "token": "wrong"}}"#, server.address));
    let options = NodeOptions {
        role: Role::Agent,
        version: "v1.34.1+k3s1".into(),
        flags: vec![],
        root: agent.root.path().to_owned(),
        hostname: "intruder".into(),
        address: Some(agent.address),
        only_address: true,
        datastore: drover_sim::server::Datastore::default(),
    };
    let error = node::run(options, || panic!("must not join"), stop.clone()).await.unwrap_err();
    assert!(error.to_string().contains("join token is not valid"), "{error}");
    let nodes = Api::<Node>::all(admin(server.root.path()).await);
    assert!(nodes.get_opt("intruder").await.unwrap().is_none());
    stop.cancel();
    running.await.unwrap().unwrap();
}
