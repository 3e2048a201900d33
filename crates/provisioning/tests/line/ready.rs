//! Ready refers to the current spec, not to a previous one.

use drover_testkit::demo;
use drover_testkit::objects::{History, Objects, condition};
use serde_json::{Value, json};

use crate::players::provisioned;
use crate::world::until;

const CORE: &str = "cluster.x-k8s.io/v1beta2";

/// What `kubectl wait --for=condition=Ready` waits for.
fn is_ready(object: &Value) -> bool {
    condition(object, "Ready").0 == "True"
        && object["status"]["observedGeneration"] == object["metadata"]["generation"]
}

async fn once(what: &str, history: &History, is_so: impl Fn(&Value) -> bool) -> u64 {
    until(what, || async { history.first(&is_so).is_some() }).await;
    history.first(is_so).unwrap()
}

async fn records(objects: &Objects) -> (History, History) {
    (
        objects.record("provisioning.cattle.io/v1", "Cluster").await,
        objects.record("management.cattle.io/v3", "Cluster").await,
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_version_is_ready_only_once_every_machine_has_it() {
    let (world, _manager, _players) = provisioned().await;
    let objects = &world.objects;
    let (clusters, twins) = records(objects).await;
    let planes = objects.record("rke.cattle.io/v1", "RKEControlPlane").await;
    let version = "v1.34.2+k3s1";
    demo::merge(objects, json!({"spec": {"kubernetesVersion": version}})).await;
    let of_it = |cluster: &Value| cluster["spec"]["kubernetesVersion"] == version;
    let ready_at =
        once("the Cluster is Ready", &clusters, |cluster| of_it(cluster) && is_ready(cluster)).await;
    let carried_out = once("the planner is done", &planes, |plane| {
        plane["status"]["appliedSpec"]["kubernetesVersion"] == version && is_ready(plane)
    })
    .await;
    assert!(carried_out < ready_at, "Ready at revision {ready_at}, carried out at {carried_out}");
    let twin = once("the twin is not Ready meanwhile", &twins, |twin| condition(twin, "Ready").0 != "True");
    assert!(twin.await < ready_at);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_kind_of_server_is_ready_only_once_every_machine_is_replaced() {
    let (world, _manager, _players) = provisioned().await;
    let objects = &world.objects;
    objects
        .create(json!({
            "apiVersion": "rke-machine-config.cattle.io/v1", "kind": "LocalConfig",
            "metadata": {"namespace": "default", "name": "larger"}, "cpus": "4",
        }))
        .await;
    let old: Vec<Value> = demo::machines(objects).await;
    let old = old.iter().filter(|m| m["metadata"]["name"].as_str().unwrap().starts_with("demo-w-"));
    let clusters = objects.record("provisioning.cattle.io/v1", "Cluster").await;
    let machines = objects.record(CORE, "Machine").await;
    demo::edit_pools(objects, |pools| {
        pools[1]["machineConfigRef"]["name"] = json!("larger");
        pools[1].as_object_mut().unwrap().remove("dynamicSchemaSpec");
    })
    .await;
    let ready_at = once("the Cluster is Ready", &clusters, |cluster| {
        let pool = &cluster["spec"]["rkeConfig"]["machinePools"][1];
        pool["machineConfigRef"]["name"] == "larger" && is_ready(cluster)
    })
    .await;
    for machine in old {
        let leaves = once("an old machine is deleted", &machines, |version| {
            version["metadata"]["uid"] == machine["metadata"]["uid"]
                && !version["metadata"]["deletionTimestamp"].is_null()
        })
        .await;
        assert!(leaves < ready_at, "Ready at revision {ready_at}, replaced from {leaves} on");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_smaller_pool_is_ready_only_once_the_surplus_is_gone() {
    let (world, _manager, _players) = provisioned().await;
    let objects = &world.objects;
    let clusters = objects.record("provisioning.cattle.io/v1", "Cluster").await;
    let ends = objects.record_ends(&[(CORE, "Machine")]).await;
    demo::edit_pools(objects, |pools| pools[1]["quantity"] = json!(1)).await;
    once("the Cluster is Ready", &clusters, |cluster| {
        cluster["spec"]["rkeConfig"]["machinePools"][1]["quantity"] == 1 && is_ready(cluster)
    })
    .await;
    assert_eq!(demo::machines(objects).await.len(), 2);
    until("its end is noted", || async { ends.order().len() == 1 }).await;
}

/// The rest of the spec may be refused meanwhile, for whatever reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_14_a_pool_follows_there_and_back_while_its_cluster_is_refused() {
    let (world, _manager, _players) = provisioned().await;
    let objects = &world.objects;
    let quantity =
        async || demo::cluster(objects).await["spec"]["rkeConfig"]["machinePools"][1]["quantity"].clone();
    demo::merge(objects, json!({"spec": {"kubernetesVersion": "v9.9.9+k3s1"}})).await;
    until("the version is refused", || async {
        condition(&demo::cluster(objects).await, "RKECluster").0 == "False"
    })
    .await;
    for size in [3, 2, 4, 2] {
        let patch = json!({"spec": {"replicas": size}});
        objects.merge(CORE, "MachineDeployment", "default", "demo-w", patch).await;
        until(&format!("the pool follows to {size}"), || async { quantity().await == size }).await;
        until("that is noted", || async {
            let deployment = objects.get(CORE, "MachineDeployment", "default", "demo-w").await.unwrap();
            let noted = &deployment["metadata"]["annotations"]["drover.io/applied-quantity"];
            *noted == size.to_string().as_str()
        })
        .await;
    }
    demo::merge(objects, json!({"spec": {"kubernetesVersion": "v1.34.1+k3s1"}})).await;
    demo::ready(objects, "corrected").await;
    assert_eq!((quantity().await, demo::machines(objects).await.len()), (json!(2), 3));
}
