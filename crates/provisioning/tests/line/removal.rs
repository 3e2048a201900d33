//! Removal, when what it needs is gone already or not yet heard of.

use std::sync::Arc;

use drover_testkit::demo;
use drover_testkit::objects::{Objects, condition};
use serde_json::{Value, json};

use crate::players::{play, provisioned};
use crate::world::{World, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_30_a_cluster_goes_although_its_driver_and_credential_are_gone() {
    let (world, _manager, players) = provisioned().await;
    let objects = &world.objects;
    let metadata = json!({"namespace": "default", "name": "one"});
    let data = json!({"localcredentialConfig-token": "t"});
    objects
        .create(json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}))
        .await;
    demo::edit_pools(objects, |pools| {
        (pools[1]["cloudCredentialSecretName"], pools[1]["quantity"]) = (json!("one"), json!(3));
    })
    .await;
    until("a machine was made with the credential", || async {
        let machines = objects.list("rke-machine.cattle.io/v1", "LocalMachine").await;
        let with = |machine: &&Value| machine["status"]["cloudCredentialSecretName"] == "one";
        machines.len() == 4 && machines.iter().filter(with).count() == 1
    })
    .await;
    demo::ready(objects, "with a credential").await;
    drop(players);
    objects.delete("v1", "Secret", "default", "one").await;
    objects.delete("management.cattle.io/v3", "NodeDriver", "", "local").await;
    objects.delete("provisioning.cattle.io/v1", "Cluster", "default", "demo").await;
    until("a Job removes each worker", || async {
        let jobs = objects.list("batch/v1", "Job").await;
        let removes = |job: &&Value| {
            let labels = &job["metadata"]["labels"];
            let name = labels["rke.cattle.io/infra-machine-name"].as_str().unwrap_or_default();
            labels["rke.cattle.io/infra-remove"] == "true" && name.starts_with("demo-w-")
        };
        jobs.iter().filter(removes).count() == 3
    })
    .await;
    let _players = play(&world);
    demo::remove(objects, "without driver and credential").await;
}

/// A world without a manager, in which the cluster was deleted while its servers were on their way.
pub(crate) async fn deleted_between_managers() -> Arc<World> {
    let world = Arc::new(World::start().await);
    let objects = &world.objects;
    let manager = world.manager(None);
    demo::make(objects).await;
    // Nobody runs Jobs yet, so they stay unfinished.
    until("every machine has its Job", || async { objects.list("batch/v1", "Job").await.len() == 3 }).await;
    manager.stop().await;
    objects.delete("provisioning.cattle.io/v1", "Cluster", "default", "demo").await;
    world
}

async fn capi_cluster(objects: &Objects) -> Option<Value> {
    objects.get("cluster.x-k8s.io/v1beta2", "Cluster", "default", "demo").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_34_a_cluster_deleted_right_after_the_start_takes_its_objects_along() {
    let world = deleted_between_managers().await;
    let objects = &world.objects;
    let _manager = world.manager(None);
    until("its Cluster API object is deleted too", || async {
        let deleted = |cluster: Value| !cluster["metadata"]["deletionTimestamp"].is_null();
        capi_cluster(objects).await.is_some_and(deleted)
    })
    .await;
    until("it says what it waits for", || async {
        let (status, message) = condition(&demo::cluster(objects).await, "Removed");
        status == "Unknown" && message.contains("waiting for machine [demo-")
    })
    .await;
    assert!(capi_cluster(objects).await.is_some(), "its machines are still there");
    let finalizers = demo::cluster(objects).await["metadata"]["finalizers"].clone();
    assert!(finalizers.as_array().is_some_and(|list| list.len() >= 2), "{finalizers}");

    let _players = play(&world);
    demo::remove(objects, "right after the start").await;
}
