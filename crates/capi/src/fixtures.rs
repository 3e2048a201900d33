//! Objects for tests.

use std::sync::Arc;

use drover_api::capi::v1beta2::{Cluster, Machine, MachineDeployment, MachineSet};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value, json};

use crate::contract::Contract;
use crate::external::External;

pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

/// Applies `over` to `base` as a merge patch.
pub(crate) fn merged(mut base: Value, over: Value) -> Value {
    json_merge(&mut base, over);
    base
}

fn json_merge(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                if value.is_null() {
                    base.remove(&key);
                } else {
                    json_merge(base.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (base, over) => *base = over,
    }
}

fn machine_spec() -> Value {
    json!({
        "clusterName": "demo",
        "version": "v1.34.1+k3s1",
        "bootstrap": { "configRef": { "apiGroup": "rke.cattle.io", "kind": "RKEBootstrap", "name": "m" } },
        "infrastructureRef": { "apiGroup": "rke-machine.cattle.io", "kind": "LocalMachine", "name": "m" },
    })
}

fn template_spec() -> Value {
    json!({
        "metadata": { "labels": { "cluster.x-k8s.io/cluster-name": "demo", "pool": "workers" } },
        "spec": {
            "clusterName": "demo",
            "version": "v1.34.1+k3s1",
            "bootstrap": {
                "configRef": { "apiGroup": "rke.cattle.io", "kind": "RKEBootstrapTemplate", "name": "boot" },
            },
            "infrastructureRef": {
                "apiGroup": "rke-machine.cattle.io", "kind": "LocalMachineTemplate", "name": "infra-1",
            },
        },
    })
}

pub(crate) fn machine(name: &str, over: Value) -> Machine {
    let base = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {
            "name": name, "namespace": "ns", "uid": format!("uid-{name}"), "generation": 1,
            "creationTimestamp": at(0).to_string(),
            "finalizers": ["machine.cluster.x-k8s.io"],
            "labels": { "cluster.x-k8s.io/cluster-name": "demo" },
        },
        "spec": machine_spec(),
    });
    serde_json::from_value(merged(base, over)).unwrap()
}

pub(crate) fn cluster(over: Value) -> Arc<Cluster> {
    let base = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {
            "name": "demo", "namespace": "ns", "uid": "uid-demo", "generation": 1,
            "finalizers": ["cluster.cluster.x-k8s.io"],
        },
        "spec": {
            "infrastructureRef": { "apiGroup": "rke.cattle.io", "kind": "RKECluster", "name": "demo" },
            "controlPlaneRef": { "apiGroup": "rke.cattle.io", "kind": "RKEControlPlane", "name": "demo" },
        },
    });
    Arc::new(serde_json::from_value(merged(base, over)).unwrap())
}

pub(crate) fn set(name: &str, over: Value) -> MachineSet {
    let base = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet",
        "metadata": {
            "name": name, "namespace": "ns", "uid": format!("uid-{name}"), "generation": 1,
            "creationTimestamp": at(0).to_string(),
            "finalizers": ["cluster.x-k8s.io/machineset"],
            "labels": { "cluster.x-k8s.io/cluster-name": "demo", "cluster.x-k8s.io/deployment-name": "md" },
        },
        "spec": {
            "clusterName": "demo", "replicas": 3,
            "selector": { "matchLabels": { "pool": "workers" } },
            "template": template_spec(),
        },
    });
    serde_json::from_value(merged(base, over)).unwrap()
}

pub(crate) fn deployment(over: Value) -> MachineDeployment {
    let base = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
        "metadata": {
            "name": "md", "namespace": "ns", "uid": "uid-md", "generation": 1,
            "finalizers": ["cluster.x-k8s.io/machinedeployment"],
        },
        "spec": {
            "clusterName": "demo", "replicas": 3,
            "selector": { "matchLabels": { "pool": "workers" } },
            "template": template_spec(),
        },
    });
    serde_json::from_value(merged(base, over)).unwrap()
}

pub(crate) fn resource(group: &str, kind: &str) -> ApiResource {
    ApiResource {
        group: group.into(),
        version: "v1".into(),
        api_version: format!("{group}/v1"),
        kind: kind.into(),
        plural: format!("{}s", kind.to_lowercase()),
    }
}

/// A provider's object of the newer contract.
pub(crate) fn found(kind: &str, over: Value) -> External {
    let base = json!({
        "apiVersion": "rke.cattle.io/v1", "kind": kind,
        "metadata": { "name": "m", "namespace": "ns", "uid": format!("uid-{kind}"), "resourceVersion": "1" },
    });
    let object: DynamicObject = serde_json::from_value(merged(base, over)).unwrap();
    External::Found {
        resource: resource("rke.cattle.io", kind),
        contract: Contract::V1Beta2,
        object: Arc::new(object),
    }
}

pub(crate) fn not_found(kind: &str) -> External {
    External::NotFound(resource("rke.cattle.io", kind))
}

pub(crate) fn node(name: &str, over: Value) -> Arc<Node> {
    let base = json!({
        "metadata": { "name": name, "resourceVersion": "7" },
        "spec": { "providerID": format!("local://{name}") },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    Arc::new(serde_json::from_value(merged(base, over)).unwrap())
}

pub(crate) fn condition(type_: &str, status: &str) -> Value {
    json!({ "type": type_, "status": status, "reason": "R", "message": "", "lastTransitionTime": at(0).to_string() })
}
