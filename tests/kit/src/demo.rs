//! The cluster of tests of the whole line: `default/demo`, with one server and two workers of the driver `local`.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::eventually_within;
use crate::objects::{Objects, condition};

/// Time limit for a step of a cluster's life.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Creates it, once the driver's kinds are served.
pub async fn make(objects: &Objects) {
    eventually_within(PATIENCE, || async {
        let crds = objects.list("apiextensions.k8s.io/v1", "CustomResourceDefinition").await;
        let of_driver =
            |crd: &&Value| crd["spec"]["group"].as_str().is_some_and(|g| g.starts_with("rke-machine"));
        let served = crds.iter().filter(of_driver).count() == 3
            && crds.iter().all(|crd| condition(crd, "Established").0 == "True");
        if served { Ok(()) } else { Err("the local driver's kinds are not served") }
    })
    .await;
    for name in ["cp", "w"] {
        objects
            .create(json!({
                "apiVersion": "rke-machine-config.cattle.io/v1", "kind": "LocalConfig",
                "metadata": {"namespace": "default", "name": name},
            }))
            .await;
    }
    objects
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

pub async fn cluster(objects: &Objects) -> Value {
    objects.get("provisioning.cattle.io/v1", "Cluster", "default", "demo").await.unwrap_or_default()
}

/// Patches the Cluster.
pub async fn merge(objects: &Objects, patch: Value) {
    objects.merge("provisioning.cattle.io/v1", "Cluster", "default", "demo", patch).await;
}

/// Replaces the pools of the Cluster.
pub async fn edit_pools(objects: &Objects, edit: impl Fn(&mut Vec<Value>)) {
    let cluster = cluster(objects).await;
    let mut pools = cluster["spec"]["rkeConfig"]["machinePools"].as_array().unwrap().clone();
    edit(&mut pools);
    merge(objects, json!({"spec": {"rkeConfig": {"machinePools": pools}}})).await;
}

/// Waits until its last specification is complete.
pub async fn ready(objects: &Objects, what: &str) {
    eventually_within(PATIENCE, || async {
        let cluster = cluster(objects).await;
        let observed = cluster["status"]["observedGeneration"] == cluster["metadata"]["generation"];
        let plane =
            objects.get("rke.cattle.io/v1", "RKEControlPlane", "default", "demo").await.unwrap_or_default();
        let settled = plane["status"]["observedGeneration"] == plane["metadata"]["generation"]
            && condition(&plane, "Ready").0 == "True"
            && plane["status"]["appliedSpec"]["kubernetesVersion"] == plane["spec"]["kubernetesVersion"];
        if condition(&cluster, "Ready").0 == "True" && observed && settled {
            return Ok(());
        }
        let machines: Vec<String> = machines(objects).await.iter().map(state_of).collect();
        Err(format!("{what}: {:?}\n{machines:#?}\n{cluster:#}", condition(&cluster, "Ready")))
    })
    .await;
}

/// Name, phase and unhealthy conditions.
fn state_of(machine: &Value) -> String {
    let conditions = machine["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let unhealthy = conditions.iter().filter(|c| c["status"] != "True" || c["type"] == "Reconciled");
    let unhealthy: Vec<String> =
        unhealthy.map(|c| format!("{}={} {}", c["type"], c["status"], c["message"])).collect();
    format!("{} {}: {}", machine["metadata"]["name"], machine["status"]["phase"], unhealthy.join("; "))
}

pub async fn machines(objects: &Objects) -> Vec<Value> {
    objects.list("cluster.x-k8s.io/v1beta2", "Machine").await
}

/// The uids of the Machines, which differ from those of replacements with the same name.
pub async fn machine_uids(objects: &Objects) -> BTreeSet<String> {
    machines(objects).await.iter().map(|m| m["metadata"]["uid"].as_str().unwrap().to_owned()).collect()
}

/// Fails unless every object of a Ready cluster exists exactly once.
pub async fn exactly_once(objects: &Objects, after: &str) {
    for (api_version, kind, wanted) in [
        ("cluster.x-k8s.io/v1beta2", "Cluster", 1),
        ("cluster.x-k8s.io/v1beta2", "MachineDeployment", 2),
        ("cluster.x-k8s.io/v1beta2", "MachineSet", 2),
        ("cluster.x-k8s.io/v1beta2", "Machine", 3),
        ("rke.cattle.io/v1", "RKEControlPlane", 1),
        ("rke.cattle.io/v1", "RKEBootstrap", 3),
        ("rke-machine.cattle.io/v1", "LocalMachine", 3),
        ("management.cattle.io/v3", "Cluster", 1),
        ("management.cattle.io/v3", "ClusterRegistrationToken", 1),
    ] {
        let found = objects.list(api_version, kind).await;
        assert_eq!(found.len(), wanted, "{kind} after {after}: {found:#?}");
    }
}

/// Deletes it and waits until nothing is left.
pub async fn remove(objects: &Objects, after: &str) {
    objects.delete("provisioning.cattle.io/v1", "Cluster", "default", "demo").await;
    eventually_within(PATIENCE, || async {
        let left = leftovers(objects).await;
        if left.is_empty() { Ok(()) } else { Err(format!("left after {after}: {left:#?}")) }
    })
    .await;
}

/// Everything that belongs to it.
async fn leftovers(objects: &Objects) -> Vec<String> {
    let mut left = Vec::new();
    for (api_version, kind) in [
        ("provisioning.cattle.io/v1", "Cluster"),
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
        for object in objects.list(api_version, kind).await {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
            let its = name.starts_with("demo") || namespace.starts_with("c-m-");
            if its || kind == "LocalConfig" || kind == "Cluster" {
                left.push(format!("{kind} {namespace}/{name}: {}", object["metadata"]["finalizers"]));
            }
        }
    }
    left
}
