//! Clusters of other Cluster API providers are used with the kubeconfig in their Secret.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::provider::{CORE, condition, kubeconfig, make_cluster, make_kinds, make_machine, set_kubeconfig};
use crate::world::{Dialer, Downstream, World, until};

const LABEL: &str = "cluster.x-k8s.io/cluster-name";

async fn probe_says(world: &World, status: &str, part: &str) {
    let reported = async || {
        let [is, _, message] = condition(world, "Cluster", "demo", "RemoteConnectionProbe").await;
        if is == status && message.contains(part) { Ok(()) } else { Err((is, message)) }
    };
    drover_testkit::eventually(reported).await;
}

async fn own_kubeconfig(cluster: &Downstream) -> String {
    let params = cluster.params().await;
    let token = params["cluster"]["token"].as_str().unwrap();
    kubeconfig(&format!("https://{}", cluster.address), Some(&cluster.ca), token)
}

async fn make_node(cluster: &Downstream, name: &str, provider_id: &str) {
    let node = json!({"metadata": {"name": name}, "spec": {"providerID": provider_id}});
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    set_ready(cluster, name, "True").await;
}

async fn set_ready(cluster: &Downstream, node: &str, ready: &str) {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let conditions = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"].map(|type_| {
        let status = if type_ == "Ready" { ready } else { "False" };
        json!({"type": type_, "status": status, "reason": "Test", "message": "by the test"})
    });
    let patch = Patch::Merge(json!({"status": {"conditions": conditions}}));
    nodes.patch_status(node, &PatchParams::default(), &patch).await.unwrap();
}

async fn has_node(world: &World, machine: &str, node: &str) {
    until(async || {
        let machine = world.get(CORE, "Machine", "default", machine).await.unwrap();
        machine["status"]["nodeRef"]["name"] == node
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capi_check_26_a_foreign_cluster_gets_node_refs_conditions_and_drains() {
    let (world, cluster) = (World::start().await, Downstream::start().await);
    make_kinds(&world).await;
    make_cluster(&world, "demo").await;
    make_machine(&world, "demo", "one", "test://one").await;
    make_node(&cluster, "node-1", "test://one").await;
    let labelled = json!({LABEL: "demo"});

    // Each problem of the Secret is reported.
    probe_says(&world, "False", "Secret default/demo-kubeconfig with the cluster's kubeconfig was not found")
        .await;
    let good = own_kubeconfig(&cluster).await;
    set_kubeconfig(&world, "demo", json!({}), &good).await;
    probe_says(&world, "False", "does not have the label cluster.x-k8s.io/cluster-name=demo").await;
    set_kubeconfig(&world, "demo", labelled.clone(), "no kubeconfig").await;
    probe_says(&world, "False", "the kubeconfig in Secret default/demo-kubeconfig cannot be used").await;
    let wrong = kubeconfig(&format!("https://{}", cluster.address), Some(&cluster.ca), "wrong");
    set_kubeconfig(&world, "demo", labelled.clone(), &wrong).await;
    probe_says(&world, "False", "rejected the credential (401 Unauthorized)").await;

    // With the right kubeconfig the Node is found and watched.
    set_kubeconfig(&world, "demo", labelled, &good).await;
    probe_says(&world, "True", "").await;
    has_node(&world, "one", "node-1").await;
    let is_ready = async || condition(&world, "Machine", "one", "NodeReady").await[0].clone();
    until(async || is_ready().await == "True").await;
    set_ready(&cluster, "node-1", "False").await;
    until(async || is_ready().await == "False").await;
    set_ready(&cluster, "node-1", "True").await;
    until(async || is_ready().await == "True").await;

    // A deleted Machine is drained first, then its Node is deleted.
    let pod = json!({
        "metadata": {"name": "web"},
        "spec": {"nodeName": "node-1", "containers": [{"name": "web", "image": "web"}]},
    });
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let machines = world.api(CORE, "Machine", "default");
    machines.delete("one", &DeleteParams::default()).await.unwrap();
    until(async || match pods.get_opt("web").await.unwrap() {
        None => true,
        // The kubelet terminates it.
        Some(pod) if pod.metadata.deletion_timestamp.is_some() => {
            let node = Api::<Node>::all(cluster.client.clone()).get("node-1").await.unwrap();
            assert_eq!(node.spec.unwrap().unschedulable, Some(true), "cordoned first");
            let _ = pods.delete("web", &DeleteParams::default().grace_period(0)).await;
            false
        }
        Some(_) => false,
    })
    .await;
    until(async || machines.get_opt("one").await.unwrap().is_none()).await;
    assert!(Api::<Node>::all(cluster.client.clone()).get_opt("node-1").await.unwrap().is_none());
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capi_check_27_a_foreign_cluster_comes_back_with_a_rotated_kubeconfig() {
    let (world, cluster) = (World::start().await, Downstream::start().await);
    make_kinds(&world).await;
    make_cluster(&world, "demo").await;
    let labelled = json!({LABEL: "demo"});
    set_kubeconfig(&world, "demo", labelled.clone(), &own_kubeconfig(&cluster).await).await;
    probe_says(&world, "True", "").await;

    // The service account is recreated: its token is rejected until the Secret has the new one.
    cluster.accounts().delete("cattle", &DeleteParams::default()).await.unwrap();
    cluster.make_account().await;
    probe_says(&world, "False", "401 Unauthorized").await;
    set_kubeconfig(&world, "demo", labelled.clone(), &own_kubeconfig(&cluster).await).await;
    probe_says(&world, "True", "").await;
    make_machine(&world, "demo", "one", "test://one").await;
    make_node(&cluster, "node-1", "test://one").await;
    has_node(&world, "one", "node-1").await;

    // The cluster moves to another address.
    let moved = Downstream::start().await;
    make_node(&moved, "node-2", "test://two").await;
    drop(cluster);
    probe_says(&world, "False", "cannot be reached").await;
    set_kubeconfig(&world, "demo", labelled, &own_kubeconfig(&moved).await).await;
    probe_says(&world, "True", "").await;
    make_machine(&world, "demo", "two", "test://two").await;
    has_node(&world, "two", "node-2").await;

    // Without its Secret it is disconnected.
    let secrets = world.api("v1", "Secret", "default");
    secrets.delete("demo-kubeconfig", &DeleteParams::default()).await.unwrap();
    probe_says(&world, "False", "was not found").await;
    world.stop().await;
}

/// The kubeconfig of a provisioned cluster points to the proxy: its controllers use the tunnel instead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provisioned_cluster_is_not_used_through_the_proxy() {
    let (world, cluster) = (World::start().await, Downstream::start().await);
    let (id, token) = world.make_cluster("demo").await;
    let dialer = Arc::new(Dialer::default());
    let agent = world.agent(&token, &cluster.params().await, dialer).await.unwrap();
    probe_says(&world, "True", "").await;
    let value = world.kubeconfig("demo", "value").await;
    assert!(value.contains(&format!("{}/k8s/clusters/{id}", world.manager.url)), "{value}");
    let secret = world.api("v1", "Secret", "default").get("demo-kubeconfig").await.unwrap();
    assert_eq!(secret.labels()[LABEL], "demo");
    // Without the tunnel, the kubeconfig is not used either.
    agent.abort();
    probe_says(&world, "False", &format!("cluster default/demo ({id}) is not connected")).await;
    world.stop().await;
}
