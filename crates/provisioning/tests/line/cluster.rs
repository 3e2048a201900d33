//! A cluster's life: made, changed in place, scaled, removed.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::players::{connect, play};
use crate::world::{World, condition, eventually, text_map};

pub(crate) async fn make(world: &World) {
    eventually("the local driver's kinds", || async {
        let crds = world.list("apiextensions.k8s.io/v1", "CustomResourceDefinition").await;
        crds.iter().filter(|crd| crd["spec"]["group"].as_str().unwrap().starts_with("rke-machine")).count()
            == 3
            && crds.iter().all(|crd| condition(crd, "Established").0 == "True")
    })
    .await;
    for name in ["cp", "w"] {
        world
            .create(json!({
                "apiVersion": "rke-machine-config.cattle.io/v1", "kind": "LocalConfig",
                "metadata": {"namespace": "default", "name": name},
            }))
            .await;
    }
    world
        .create(json!({
            "apiVersion": "provisioning.cattle.io/v1", "kind": "Cluster",
            "metadata": {"namespace": "default", "name": "demo"},
            "spec": {"kubernetesVersion": "v1.34.1+k3s1", "rkeConfig": {"machinePools": [
                {"name": "cp", "quantity": 1, "etcdRole": true, "controlPlaneRole": true,
                 "machineConfigRef": {"kind": "LocalConfig", "name": "cp"}},
                {"name": "w", "quantity": 2, "workerRole": true, "labels": {"tier": "gold"},
                 "machineConfigRef": {"kind": "LocalConfig", "name": "w"}},
            ]}},
        }))
        .await;
}

pub(crate) async fn ready(world: &World, what: &str) {
    let start = std::time::Instant::now();
    loop {
        let cluster = world.cluster().await;
        let observed = cluster["status"]["observedGeneration"] == cluster["metadata"]["generation"];
        let plane =
            world.get("rke.cattle.io/v1", "RKEControlPlane", "default", "demo").await.unwrap_or_default();
        let settled = plane["status"]["observedGeneration"] == plane["metadata"]["generation"]
            && condition(&plane, "Ready").0 == "True"
            && plane["status"]["appliedSpec"]["kubernetesVersion"] == plane["spec"]["kubernetesVersion"];
        if condition(&cluster, "Ready").0 == "True" && observed && settled {
            return;
        }
        let (status, message) = condition(&cluster, "Ready");
        assert!(
            start.elapsed() < std::time::Duration::from_secs(60),
            "{what}: {status} {message}\n{cluster:#}"
        );
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

async fn uids(world: &World) -> BTreeSet<String> {
    world.machines().await.iter().map(|m| m["metadata"]["uid"].as_str().unwrap().to_owned()).collect()
}

pub(crate) async fn nodes(world: &World) -> Vec<Value> {
    let api: Api<Node> = Api::all(world.downstream.clone());
    api.list(&ListParams::default()).await.unwrap().items.into_iter().map(|node| json!(node)).collect()
}

async fn patch_pools(world: &World, edit: impl Fn(&mut Vec<Value>)) {
    let cluster = world.cluster().await;
    let mut pools = cluster["spec"]["rkeConfig"]["machinePools"].as_array().unwrap().clone();
    edit(&mut pools);
    let patch = json!({"spec": {"rkeConfig": {"machinePools": pools}}});
    world.merge("provisioning.cattle.io/v1", "Cluster", "default", "demo", patch).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_1_35_a_cluster_from_nothing_to_nothing() {
    let world = Arc::new(World::start().await);
    let _manager = world.manager(None);
    let players = play(&world);
    make(&world).await;
    ready(&world, "provisioned").await;
    let twin = world.cluster().await["status"]["clusterName"].as_str().unwrap().to_owned();
    assert!(twin.starts_with("c-m-"), "{twin}");
    assert_eq!(nodes(&world).await.len(), 3);
    let secret = world.get("v1", "Secret", "default", "demo-kubeconfig").await.unwrap();
    assert_eq!(secret["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"], "demo");
    let log = world.get("v1", "ConfigMap", &twin, "provisioning-log").await.unwrap();
    assert!(log["data"]["log"].as_str().unwrap().contains("[INFO ]"), "{log}");

    // In place: version and labels, no machine replaced. What runs on a worker leaves it first.
    let before = uids(&world).await;
    run_pod(&world, "work").await;
    let patch = json!({"spec": {
        "kubernetesVersion": "v1.34.2+k3s1",
        "rkeConfig": {"upgradeStrategy": {"workerDrainOptions": {"enabled": true}}},
    }});
    world.merge("provisioning.cattle.io/v1", "Cluster", "default", "demo", patch).await;
    ready(&world, "upgraded").await;
    let versions: BTreeSet<String> =
        nodes(&world).await.iter().map(|n| n["status"]["nodeInfo"]["kubeletVersion"].to_string()).collect();
    assert_eq!(versions, BTreeSet::from(["\"v1.34.2+k3s1\"".to_owned()]));
    assert_eq!(uids(&world).await, before);
    // Each worker was cordoned and drained, and nothing of it remains (control-plane check 13).
    let marks = world
        .list("v1", "Secret")
        .await
        .iter()
        .filter(|s| s.to_string().contains("rke.cattle.io/drain-"))
        .count();
    assert_eq!(marks, 0);
    assert!(nodes(&world).await.iter().all(|node| node["spec"]["unschedulable"] != true));
    let pods: Api<Pod> = Api::namespaced(world.downstream.clone(), "default");
    assert!(pods.get_opt("work").await.unwrap().is_none(), "the pod was not evicted");
    patch_pools(&world, |pools| {
        pools[1]["labels"] = json!({"tier": "silver"});
        pools[1]["taints"] = json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]);
    })
    .await;
    eventually("nodes follow the pool's labels and taints", || async {
        let nodes = nodes(&world).await;
        nodes
            .iter()
            .filter(|n| text_map(&n["metadata"]["labels"]).get("tier").is_some_and(|t| t == "silver"))
            .count()
            == 2
            && nodes.iter().filter(|n| n["spec"]["taints"][0]["key"] == "k").count() == 2
    })
    .await;
    assert_eq!(uids(&world).await, before);

    // A scaled MachineDeployment is followed by its pool (provisioning check 14).
    let patch = json!({"spec": {"replicas": 3}});
    world.merge("cluster.x-k8s.io/v1beta2", "MachineDeployment", "default", "demo-w", patch).await;
    eventually("three workers, and the pool says so", || async {
        world.cluster().await["spec"]["rkeConfig"]["machinePools"][1]["quantity"] == 3
            && nodes(&world).await.len() == 4
    })
    .await;
    patch_pools(&world, |pools| pools[1]["quantity"] = json!(1)).await;
    eventually("one worker", || async { world.machines().await.len() == 2 }).await;
    ready(&world, "scaled").await;

    // Removal leaves nothing, and goes in order: twin, Machines, CAPI Cluster, and last what the person made.
    let ends = world.record_ends(&[
        ("management.cattle.io/v3", "Cluster"),
        ("cluster.x-k8s.io/v1beta2", "Machine"),
        ("cluster.x-k8s.io/v1beta2", "Cluster"),
        ("provisioning.cattle.io/v1", "Cluster"),
    ]);
    let api = world.api("provisioning.cattle.io/v1", "Cluster", "default");
    api.delete("demo", &DeleteParams::default()).await.unwrap();
    let start = std::time::Instant::now();
    while world.get("provisioning.cattle.io/v1", "Cluster", "default", "demo").await.is_some() {
        let cluster = world.cluster().await;
        assert!(start.elapsed() < std::time::Duration::from_secs(60), "not removed: {cluster:#}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    eventually("no object is left", || async { leftovers(&world).await.is_empty() }).await;
    eventually("every end was seen", || async {
        ends.lock().iter().any(|(_, g)| g == "provisioning.cattle.io/v1 Cluster")
    })
    .await;
    let mut ends = ends.lock().clone();
    ends.sort();
    ends.dedup_by_key(|(_, kind)| kind.clone());
    let order: Vec<&str> = ends.iter().map(|(_, kind)| kind.as_str()).collect();
    let wanted = [
        "management.cattle.io/v3 Cluster",
        "cluster.x-k8s.io/v1beta2 Machine",
        "cluster.x-k8s.io/v1beta2 Cluster",
        "provisioning.cattle.io/v1 Cluster",
    ];
    assert_eq!(order, wanted);
    players.abort();
}

/// A pod of a ReplicaSet, on a worker.
async fn run_pod(world: &World, name: &str) {
    let nodes = nodes(world).await;
    let worker = nodes.iter().find(|n| n["metadata"]["labels"]["tier"] == "gold").unwrap();
    let pods: Api<Pod> = Api::namespaced(world.downstream.clone(), "default");
    let pod = serde_json::from_value(json!({
        "metadata": {"name": name, "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o", "uid": "u", "controller": true},
        ]},
        "spec": {"nodeName": worker["metadata"]["name"], "containers": [{"name": "c", "image": "i"}]},
    }));
    pods.create(&PostParams::default(), &pod.unwrap()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_machine_went_while_the_cluster_was_away_is_deleted_later() {
    let world = Arc::new(World::start().await);
    let _manager = world.manager(None);
    let players = play(&world);
    make(&world).await;
    ready(&world, "provisioned").await;

    let machines = world.machines().await;
    let worker =
        machines.iter().find(|m| m["metadata"]["name"].as_str().unwrap().starts_with("demo-w-")).unwrap();
    let (name, node) =
        (worker["metadata"]["name"].as_str().unwrap(), worker["status"]["nodeRef"]["name"].as_str().unwrap());
    connect(&world, "False").await;
    let (group, kind) = ("cluster.x-k8s.io/v1beta2", "Machine");
    let impatient = json!({"spec": {"deletion": {"nodeDeletionTimeoutSeconds": 1}}});
    world.merge(group, kind, "default", name, impatient).await;
    world.api(group, kind, "default").delete(name, &DeleteParams::default()).await.unwrap();
    eventually("the Machine goes, though its cluster is away", || async {
        world.get(group, kind, "default", name).await.is_none()
    })
    .await;
    let is_there = || async { nodes(&world).await.iter().any(|n| n["metadata"]["name"] == node) };
    assert!(is_there().await);

    // Back again: a Node that reports is left alone, a silent one is not.
    connect(&world, "True").await;
    ready(&world, "a new worker").await;
    assert!(is_there().await, "a Node that reports was deleted");
    let silent = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
        "message": "", "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    let api: Api<Node> = Api::all(world.downstream.clone());
    api.patch_status(node, &PatchParams::default(), &Patch::Merge(silent)).await.unwrap();
    eventually("the silent Node is deleted", || async { !is_there().await }).await;
    players.abort();
}

pub(crate) async fn leftovers(world: &World) -> Vec<String> {
    let mut left = Vec::new();
    for (api_version, kind) in [
        ("cluster.x-k8s.io/v1beta2", "Cluster"),
        ("cluster.x-k8s.io/v1beta2", "Machine"),
        ("cluster.x-k8s.io/v1beta2", "MachineSet"),
        ("cluster.x-k8s.io/v1beta2", "MachineDeployment"),
        ("rke.cattle.io/v1", "RKECluster"),
        ("rke.cattle.io/v1", "RKEControlPlane"),
        ("rke.cattle.io/v1", "RKEBootstrap"),
        ("rke.cattle.io/v1", "RKEBootstrapTemplate"),
        ("rke-machine.cattle.io/v1", "LocalMachine"),
        ("rke-machine.cattle.io/v1", "LocalMachineTemplate"),
        ("rke-machine-config.cattle.io/v1", "LocalConfig"),
        ("management.cattle.io/v3", "Cluster"),
        ("management.cattle.io/v3", "ClusterRegistrationToken"),
        ("batch/v1", "Job"),
        ("v1", "Secret"),
        ("v1", "ServiceAccount"),
        ("rbac.authorization.k8s.io/v1", "Role"),
        ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ] {
        for object in world.list(api_version, kind).await {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
            if (name.starts_with("demo") || namespace.starts_with("c-m-") || kind == "LocalConfig")
                || (kind == "Cluster")
            {
                left.push(format!("{kind} {namespace}/{name}"));
            }
        }
    }
    left
}
