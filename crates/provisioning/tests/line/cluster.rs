//! A cluster's life: made, changed in place, scaled, removed.

use std::collections::BTreeSet;

use drover_testkit::objects::Objects;
use drover_testkit::{demo, eventually_within};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::players::{connect, provisioned};
use crate::world::World;

pub(crate) async fn nodes(world: &World) -> Vec<Value> {
    let api: Api<Node> = Api::all(world.downstream.clone());
    api.list(&ListParams::default()).await.unwrap().items.into_iter().map(|node| json!(node)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_1_35_a_cluster_from_nothing_to_nothing() {
    let (world, _manager, _players) = provisioned().await;
    let objects = &world.objects;
    let twin = demo::cluster(objects).await["status"]["clusterName"].as_str().unwrap().to_owned();
    assert!(twin.starts_with("c-m-"), "{twin}");
    assert_eq!(nodes(&world).await.len(), 3);
    let secret = objects.get("v1", "Secret", "default", "demo-kubeconfig").await.unwrap();
    assert_eq!(secret["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"], "demo");
    let log = objects.get("v1", "ConfigMap", &twin, "provisioning-log").await.unwrap();
    assert!(log["data"]["log"].as_str().unwrap().contains("[INFO ]"), "{log}");

    // In place: version and labels, no machine replaced. What runs on a worker leaves it first.
    let before = demo::machine_uids(objects).await;
    run_pod(&world, "work").await;
    let patch = json!({"spec": {
        "kubernetesVersion": "v1.34.2+k3s1",
        "rkeConfig": {"upgradeStrategy": {"workerDrainOptions": {"enabled": true}}},
    }});
    demo::merge(objects, patch).await;
    demo::ready(objects, "upgraded").await;
    let versions: BTreeSet<String> =
        nodes(&world).await.iter().map(|n| n["status"]["nodeInfo"]["kubeletVersion"].to_string()).collect();
    assert_eq!(versions, BTreeSet::from(["\"v1.34.2+k3s1\"".to_owned()]));
    assert_eq!(demo::machine_uids(objects).await, before);
    // Each worker was cordoned and drained, and nothing of it remains (control-plane check 13).
    let marks = objects
        .list("v1", "Secret")
        .await
        .iter()
        .filter(|s| s.to_string().contains("rke.cattle.io/drain-"))
        .count();
    assert_eq!(marks, 0);
    assert!(nodes(&world).await.iter().all(|node| node["spec"]["unschedulable"] != true));
    let pods: Api<Pod> = Api::namespaced(world.downstream.clone(), "default");
    assert!(pods.get_opt("work").await.unwrap().is_none(), "the pod was not evicted");
    demo::edit_pools(objects, |pools| {
        pools[1]["labels"] = json!({"tier": "silver"});
        pools[1]["taints"] = json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]);
    })
    .await;
    eventually_within(demo::PATIENCE, || async {
        let nodes = nodes(&world).await;
        let follow = nodes.iter().filter(|node| {
            node["metadata"]["labels"]["tier"] == "silver" && node["spec"]["taints"][0]["key"] == "k"
        });
        if follow.count() == 2 { Ok(()) } else { Err(format!("labels and taints: {nodes:#?}")) }
    })
    .await;
    assert_eq!(demo::machine_uids(objects).await, before);

    // A scaled MachineDeployment is followed by its pool (provisioning check 14).
    let patch = json!({"spec": {"replicas": 3}});
    objects.merge("cluster.x-k8s.io/v1beta2", "MachineDeployment", "default", "demo-w", patch).await;
    eventually_within(demo::PATIENCE, || async {
        let quantity = &demo::cluster(objects).await["spec"]["rkeConfig"]["machinePools"][1]["quantity"];
        let workers = nodes(&world).await.len() - 1;
        if *quantity == 3 && workers == 3 { Ok(()) } else { Err(format!("{quantity}, {workers} workers")) }
    })
    .await;
    demo::edit_pools(objects, |pools| pools[1]["quantity"] = json!(1)).await;
    eventually_within(demo::PATIENCE, || async {
        let machines = demo::machines(objects).await.len();
        if machines == 2 { Ok(()) } else { Err(format!("{machines} Machines")) }
    })
    .await;
    demo::ready(objects, "scaled").await;
    let followed = "Pool w follows its MachineDeployment, which was scaled: 2 -> 3 machine(s)";
    let edited = "Pool w: 3 -> 1 machine(s)";
    let reported = messages_until(objects, "PoolScaled", edited).await;
    assert_eq!(reported, BTreeSet::from([followed.into(), edited.into()]), "each change is reported once");

    // Removal leaves nothing, and goes in order: twin, Machines, CAPI Cluster, and last what the person made.
    let wanted = [
        ("management.cattle.io/v3", "Cluster"),
        ("cluster.x-k8s.io/v1beta2", "Machine"),
        ("cluster.x-k8s.io/v1beta2", "Cluster"),
        ("provisioning.cattle.io/v1", "Cluster"),
    ];
    let ends = objects.record_ends(&wanted).await;
    demo::remove(objects, "removal").await;
    let wanted = wanted.map(|(api_version, kind)| format!("{api_version} {kind}"));
    eventually_within(demo::PATIENCE, || async {
        if ends.order() == wanted { Ok(()) } else { Err(ends.order()) }
    })
    .await;
}

/// The messages of the demo cluster's events with a reason, after the message `last`.
/// What every machine of a new cluster has by then: the bootstrap provider's objects, and what machineprovision left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_16_32_machines_have_their_objects_and_jobs_go() {
    let (world, _manager, _players) = provisioned().await;
    let objects = &world.objects;
    let get = async |api_version: &str, kind: &str, name: &str| {
        let found = objects.get(api_version, kind, "default", name).await;
        found.unwrap_or_else(|| panic!("there is no {kind} {name}"))
    };
    let rbac = "rbac.authorization.k8s.io/v1";
    let bootstraps = objects.list("rke.cattle.io/v1", "RKEBootstrap").await;
    assert_eq!(bootstraps.len(), 3);
    for bootstrap in &bootstraps {
        let plan = format!("{}-machine-plan", bootstrap["metadata"]["name"].as_str().unwrap());
        assert_eq!(get("v1", "Secret", &plan).await["type"], "rke.cattle.io/machine-plan");
        get("v1", "ServiceAccount", &plan).await;
        let rules = get(rbac, "Role", &plan).await["rules"].clone();
        let only = json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": [plan],
                           "verbs": ["watch", "get", "update", "list"]}]);
        assert_eq!(rules, only);
        let binding = get(rbac, "RoleBinding", &plan).await;
        assert_eq!(
            (&binding["roleRef"]["name"], &binding["subjects"][0]["name"]),
            (&json!(plan), &json!(plan))
        );
        let data = bootstrap["status"]["dataSecretName"].as_str().unwrap();
        assert!(get("v1", "Secret", data).await["data"]["value"].is_string(), "{data}");
    }
    let machines = objects.list("rke-machine.cattle.io/v1", "LocalMachine").await;
    assert_eq!(machines.len(), 3);
    for machine in &machines {
        let name = machine["metadata"]["name"].as_str().unwrap();
        assert!(machine["spec"]["providerID"].as_str().is_some_and(|id| !id.is_empty()), "{machine:#}");
        assert!(
            machine["status"]["addresses"].as_array().is_some_and(|list| !list.is_empty()),
            "{machine:#}"
        );
        get("v1", "Secret", &format!("{name}-machine-state")).await;
    }
    eventually_within(demo::PATIENCE, || async {
        let jobs = objects.list("batch/v1", "Job").await;
        if jobs.is_empty() { Ok(()) } else { Err(jobs) }
    })
    .await;
}

async fn messages_until(objects: &Objects, reason: &str, last: &str) -> BTreeSet<String> {
    eventually_within(demo::PATIENCE, || async {
        let events = objects.list("v1", "Event").await;
        let its = |event: &&Value| {
            event["reason"] == reason && event["involvedObject"]["apiVersion"] == "provisioning.cattle.io/v1"
        };
        let message = |event: &Value| event["message"].as_str().unwrap_or_default().to_owned();
        let reported: BTreeSet<String> = events.iter().filter(its).map(message).collect();
        if reported.contains(last) { Ok(reported) } else { Err(reported) }
    })
    .await
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
    let (world, _manager, _players) = provisioned().await;
    let objects = &world.objects;

    let machines = demo::machines(objects).await;
    let worker =
        machines.iter().find(|m| m["metadata"]["name"].as_str().unwrap().starts_with("demo-w-")).unwrap();
    let (name, node) =
        (worker["metadata"]["name"].as_str().unwrap(), worker["status"]["nodeRef"]["name"].as_str().unwrap());
    connect(&world, "False").await;
    let (group, kind) = ("cluster.x-k8s.io/v1beta2", "Machine");
    let impatient = json!({"spec": {"deletion": {"nodeDeletionTimeoutSeconds": 1}}});
    objects.merge(group, kind, "default", name, impatient).await;
    objects.delete(group, kind, "default", name).await;
    eventually_within(demo::PATIENCE, || async {
        let machine = objects.get(group, kind, "default", name).await;
        machine.map_or(Ok(()), |machine| Err(format!("its cluster is away, but it has to go: {machine:#}")))
    })
    .await;
    let is_there = || async { nodes(&world).await.iter().any(|n| n["metadata"]["name"] == node) };
    assert!(is_there().await);

    // Back again: a Node that reports is left alone, a silent one is not.
    connect(&world, "True").await;
    demo::ready(objects, "a new worker").await;
    assert!(is_there().await, "a Node that reports was deleted");
    let silent = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
        "message": "", "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    let api: Api<Node> = Api::all(world.downstream.clone());
    api.patch_status(node, &PatchParams::default(), &Patch::Merge(silent)).await.unwrap();
    eventually_within(demo::PATIENCE, || async {
        if is_there().await { Err("the silent Node is still there") } else { Ok(()) }
    })
    .await;
}
