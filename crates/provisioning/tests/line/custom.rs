//! Clusters of servers that people bring.

use std::sync::Arc;

use drover_testkit::objects::condition;
use drover_testkit::{demo, eventually_within};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams};
use serde_json::{Value, json};

use crate::players::{connect, play};
use crate::registration::{call, registration_token};
use crate::world::{Manager, World, until};

const CAPI: &str = "cluster.x-k8s.io/v1beta2";

/// A cluster without pools, once servers can register: the name of its twin.
pub(crate) async fn announced(world: &World) -> String {
    world
        .objects
        .create(json!({
            "apiVersion": "provisioning.cattle.io/v1", "kind": "Cluster",
            "metadata": {"namespace": "default", "name": "demo"},
            "spec": {"kubernetesVersion": "v1.34.1+k3s1", "rkeConfig": {}},
        }))
        .await;
    until("the cluster's token", || async {
        let cluster = demo::cluster(&world.objects).await;
        let twin = cluster["status"]["clusterName"].as_str().unwrap_or_default();
        !twin.is_empty()
            && world
                .objects
                .get("v1", "Secret", twin, "crt-token-default-token")
                .await
                .is_some_and(|s| !s["data"].is_null())
            && world.objects.get("rke.cattle.io/v1", "RKEControlPlane", "default", "demo").await.is_some()
    })
    .await;
    demo::cluster(&world.objects).await["status"]["clusterName"].as_str().unwrap().to_owned()
}

/// A cluster without pools, and a server with every role: the name of its Machine.
async fn make(world: &World, manager: &Manager) -> String {
    announced(world).await;
    join(world, manager, "server", &["role-etcd", "role-control-plane", "role-worker"]).await
}

async fn join(world: &World, manager: &Manager, id: &str, roles: &[&str]) -> String {
    let token = registration_token(world).await;
    let mut headers = vec![("id", id), ("node-name", id)];
    headers.extend(roles.iter().map(|role| (*role, "true")));
    // As the install script does: a manager that has not heard of the token yet is asked again.
    let answer = eventually_within(demo::PATIENCE, || async {
        let answer = manager.connect.agent(&call(&token, &headers)).await;
        if answer.status == 200 { Ok(answer) } else { Err(answer) }
    })
    .await;
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    let machine = body["secretName"].as_str().unwrap().strip_suffix("-machine-plan").unwrap().to_owned();
    world.answered.lock().insert(machine.clone());
    machine
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_plane_check_36_custom_machines_go_with_the_control_plane() {
    let world = Arc::new(World::start().await);
    let manager = world.manager(None);
    let _players = play(&world);
    let machine = make(&world, &manager).await;
    demo::ready(&world.objects, "a custom server").await;

    // Something holds the machine.
    let hook = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/test";
    let held = json!({"metadata": {"annotations": {hook: "me"}}});
    world.objects.merge(CAPI, "Machine", "default", &machine, held).await;
    let clusters = world.objects.api("provisioning.cattle.io/v1", "Cluster", "default");
    clusters.delete("demo", &DeleteParams::default()).await.unwrap();
    let wanted = format!("waiting for machine [{machine}] to delete");
    let plane =
        || async { world.objects.get("rke.cattle.io/v1", "RKEControlPlane", "default", "demo").await };
    until("the control plane names the machine", || async {
        condition(&plane().await.unwrap(), "Removed").1.contains(&wanted)
    })
    .await;
    until("so does the cluster", || async {
        condition(&demo::cluster(&world.objects).await, "Removed").1.contains(&wanted)
    })
    .await;
    let found = world.objects.get(CAPI, "Machine", "default", &machine).await.unwrap();
    assert!(found["metadata"]["deletionTimestamp"].is_string(), "{found:#}");
    let finalizers = plane().await.unwrap()["metadata"]["finalizers"].to_string();
    assert!(finalizers.contains("rke-control-plane-remove"), "{finalizers}");

    let released = json!({"metadata": {"annotations": {hook: null}}});
    world.objects.merge(CAPI, "Machine", "default", &machine, released).await;
    demo::remove(&world.objects, "nothing holds it").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_37_a_machine_whose_node_is_gone_is_deleted_but_not_while_nobody_can_tell() {
    let world = Arc::new(World::start().await);
    let manager = world.manager(None);
    let _players = play(&world);
    let server = make(&world, &manager).await;
    demo::ready(&world.objects, "a custom server").await;
    let worker = join(&world, &manager, "worker", &["role-worker"]).await;
    let found = || async { world.objects.get(CAPI, "Machine", "default", &worker).await };
    until("the worker has a Node", || async {
        found().await.is_some_and(|machine| machine["status"]["nodeRef"]["name"].is_string())
    })
    .await;
    let note = "rke.cattle.io/delete-missing-custom-machines-after";
    let patch = json!({"metadata": {"annotations": {note: "1m"}}});
    world.objects.merge("provisioning.cattle.io/v1", "Cluster", "default", "demo", patch).await;
    until("the annotation is handed on", || async {
        let cluster = world.objects.get("rke.cattle.io/v1", "RKECluster", "default", "demo").await.unwrap();
        cluster["metadata"]["annotations"][note] == "1m"
    })
    .await;

    // Out of reach: whatever became of the Node, the Machine stays.
    let healthy = || async { condition(&found().await.unwrap(), "NodeHealthy").0 };
    connect(&world, "False").await;
    let nodes: Api<Node> = Api::all(world.downstream.clone());
    let node = found().await.unwrap()["status"]["nodeRef"]["name"].as_str().unwrap().to_owned();
    nodes.delete(&node, &DeleteParams::default()).await.unwrap();
    until("nobody knows of the Node", || async { healthy().await == "Unknown" }).await;
    world.clock.advance(61);
    connect(&world, "True").await;

    // In reach again: the minute begins now.
    until("the Node is missing", || async { healthy().await == "False" }).await;
    assert!(found().await.unwrap()["metadata"]["deletionTimestamp"].is_null());
    world.clock.advance(61);
    // The timer runs on real time; any event makes the controller look at the clock.
    let patch = json!({"metadata": {"annotations": {"look": "again"}}});
    world.objects.merge(CAPI, "Machine", "default", &worker, patch).await;
    until("the Machine is deleted", || async { found().await.is_none() }).await;
    let server = world.objects.get(CAPI, "Machine", "default", &server).await.unwrap();
    assert!(server["metadata"]["deletionTimestamp"].is_null());
}
