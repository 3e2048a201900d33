//! A Cluster cannot take the management Cluster or the namespace of another by naming its id.

use std::sync::Arc;

use drover_api::names::management_cluster_name;
use drover_testkit::demo;
use drover_testkit::objects::{Objects, condition};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::players::provisioned;
use crate::world::{World, until};

const PROVISIONING: &str = "provisioning.cattle.io/v1";
const MANAGEMENT: &str = "management.cattle.io/v3";
const ANNOTATION: &str = "provisioning.cattle.io/management-cluster-name";

async fn make(objects: &Objects, name: &str, id: &str) -> Value {
    objects
        .create(json!({
            "apiVersion": PROVISIONING, "kind": "Cluster",
            "metadata": {"namespace": "default", "name": name, "annotations": {ANNOTATION: id}},
            "spec": {"kubernetesVersion": "v1.34.1+k3s1", "rkeConfig": {}},
        }))
        .await;
    cluster(objects, name).await
}

async fn cluster(objects: &Objects, name: &str) -> Value {
    objects.get(PROVISIONING, "Cluster", "default", name).await.unwrap_or_default()
}

async fn twin(objects: &Objects, id: &str) -> Option<Value> {
    objects.get(MANAGEMENT, "Cluster", "", id).await
}

/// Waits until the cluster is refused; its message.
async fn refused(objects: &Objects, name: &str) -> String {
    until(&format!("{name} is refused"), || async {
        condition(&cluster(objects, name).await, "Created").0 == "False"
    })
    .await;
    let cluster = cluster(objects, name).await;
    assert_eq!(condition(&cluster, "Ready").0, "False", "{cluster:#}");
    condition(&cluster, "Created").1
}

async fn remove(objects: &Objects, name: &str) {
    objects.delete(PROVISIONING, "Cluster", "default", name).await;
    until(&format!("{name} is gone"), || async { cluster(objects, name).await.is_null() }).await;
}

async fn set_status(objects: &Objects, name: &str, id: &str) {
    let patch = Patch::Merge(json!({"status": {"clusterName": id}}));
    let api = objects.api(PROVISIONING, "Cluster", "default");
    api.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

fn name_of(object: &Value) -> &str {
    object["status"]["clusterName"].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_is_not_an_id_is_refused_and_the_namespace_of_that_name_stays() {
    let world = Arc::new(World::start().await);
    let objects = &world.objects;
    let _manager = world.manager(None);
    let before = objects.get("v1", "Namespace", "", "kube-system").await.unwrap();
    make(objects, "thief", "kube-system").await;
    let message = refused(objects, "thief").await;
    for part in [ANNOTATION, "\"kube-system\" is not the id", "remove the annotation"] {
        assert!(message.contains(part), "{message}");
    }
    assert!(twin(objects, "kube-system").await.is_none());
    assert_eq!(name_of(&cluster(objects, "thief").await), "");
    remove(objects, "thief").await;
    assert_eq!(objects.get("v1", "Namespace", "", "kube-system").await.unwrap(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_id_of_another_cluster_is_refused_and_deleting_the_claimant_leaves_it_alone() {
    let (world, _manager, _players) = provisioned().await;
    let objects = &world.objects;
    let id = name_of(&demo::cluster(objects).await).to_owned();
    let state = async || {
        let twin = twin(objects, &id).await.unwrap();
        let namespace = objects.get("v1", "Namespace", "", &id).await.unwrap();
        (twin["metadata"]["uid"].clone(), twin["spec"].clone(), namespace["metadata"].clone())
    };
    let before = state().await;
    assert_eq!(
        before.2["annotations"]["drover.io/cluster-uid"],
        demo::cluster(objects).await["metadata"]["uid"]
    );

    make(objects, "thief", &id).await;
    let message = refused(objects, "thief").await;
    assert!(message.contains(&format!("management cluster {id} belongs to another cluster")), "{message}");
    assert!(!message.contains("demo"), "{message}");
    // The same by its status.
    set_status(objects, "thief", &id).await;
    until("the claim is cleared", || async { name_of(&cluster(objects, "thief").await).is_empty() }).await;
    assert_eq!(state().await, before);
    remove(objects, "thief").await;
    assert_eq!(state().await, before);
    demo::ready(objects, "after the attempt").await;
    demo::remove(objects, "its own").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_clusters_that_name_one_free_id_the_older_has_it_until_it_is_deleted() {
    let world = Arc::new(World::start().await);
    let objects = &world.objects;
    let id = "c-m-chosen12";
    // Their creation times differ, and both are there when the manager starts.
    let older = make(objects, "older", id).await;
    until("a second passes", || async {
        let created: jiff::Timestamp =
            older["metadata"]["creationTimestamp"].as_str().unwrap().parse().unwrap();
        jiff::Timestamp::now().as_second() > created.as_second()
    })
    .await;
    make(objects, "younger", id).await;
    let _manager = world.manager(None);
    let message = refused(objects, "younger").await;
    assert!(message.contains("set it to an id that is not in use"), "{message}");
    until("the older has it", || async { name_of(&cluster(objects, "older").await) == id }).await;
    let owner = async || {
        twin(objects, id).await.map(|twin| twin["metadata"]["annotations"]["drover.io/cluster-uid"].clone())
    };
    assert_eq!(owner().await.as_ref(), Some(&older["metadata"]["uid"]));
    remove(objects, "older").await;
    until("the younger gets it", || async { name_of(&cluster(objects, "younger").await) == id }).await;
    assert_eq!(owner().await.as_ref(), Some(&cluster(objects, "younger").await["metadata"]["uid"]));
    remove(objects, "younger").await;
    until("nothing is left", || async {
        twin(objects, id).await.is_none() && objects.get("v1", "Namespace", "", id).await.is_none()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_management_cluster_or_namespace_is_neither_written_nor_deleted() {
    let world = Arc::new(World::start().await);
    let objects = &world.objects;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "c-m-foreign1"}});
    objects.create(namespace).await;
    let theirs = json!({
        "apiVersion": MANAGEMENT, "kind": "Cluster", "metadata": {"name": "c-m-foreign2"},
        "spec": {"displayName": "other", "fleetWorkspaceName": "default"},
    });
    objects.create(theirs).await;
    let _manager = world.manager(None);
    make(objects, "first", "c-m-foreign1").await;
    make(objects, "second", "c-m-foreign2").await;
    let message = refused(objects, "first").await;
    assert!(message.contains("namespace c-m-foreign1 exists and was not created"), "{message}");
    let message = refused(objects, "second").await;
    assert!(message.contains("management cluster c-m-foreign2 exists and was not created"), "{message}");
    remove(objects, "first").await;
    remove(objects, "second").await;
    assert!(twin(objects, "c-m-foreign1").await.is_none());
    assert_eq!(twin(objects, "c-m-foreign2").await.unwrap()["spec"]["displayName"], "other");
    let namespace = objects.get("v1", "Namespace", "", "c-m-foreign1").await.unwrap();
    assert!(namespace["metadata"]["annotations"]["drover.io/cluster-uid"].is_null(), "{namespace:#}");
}

/// A cluster that an older version created has no mark on its management Cluster and namespace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_an_older_version_keeps_its_management_cluster_and_takes_it_along() {
    let world = Arc::new(World::start().await);
    let objects = &world.objects;
    let id = "c-m-0lder123";
    for (kind, api_version, spec) in [
        ("Cluster", MANAGEMENT, json!({"displayName": "demo", "fleetWorkspaceName": "default"})),
        ("Namespace", "v1", Value::Null),
    ] {
        let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": id}, "spec": spec});
        objects.create(object).await;
    }
    make(objects, "demo", "").await;
    set_status(objects, "demo", id).await;
    let manager = world.manager(None);
    let marked = async |kind: &str, api_version: &str| {
        let object = objects.get(api_version, kind, "", id).await.unwrap();
        object["metadata"]["annotations"]["drover.io/cluster-uid"].is_string()
    };
    until("both are marked", || async {
        marked("Cluster", MANAGEMENT).await && marked("Namespace", "v1").await
    })
    .await;
    let derived =
        management_cluster_name(cluster(objects, "demo").await["metadata"]["uid"].as_str().unwrap());
    assert!(twin(objects, &derived).await.is_none());
    // Without a pass in between, only the management Cluster proves whose the namespace is.
    manager.stop().await;
    let unmarked = json!({"metadata": {"annotations": {"drover.io/cluster-uid": null}}});
    objects.merge(MANAGEMENT, "Cluster", "", id, unmarked.clone()).await;
    objects.merge("v1", "Namespace", "", id, unmarked).await;
    objects.delete(PROVISIONING, "Cluster", "default", "demo").await;
    let _manager = world.manager(None);
    until("nothing is left", || async {
        cluster(objects, "demo").await.is_null()
            && twin(objects, id).await.is_none()
            && objects.get("v1", "Namespace", "", id).await.is_none()
    })
    .await;
}
