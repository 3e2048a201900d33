//! Nodes, namespaces, leases and storage.

use jiff::Timestamp;
use serde_json::Value;

use super::{BuiltIn, age, at, condition, define, list, or_none, text};
use crate::object::ObjectExt;

pub(super) fn printers() -> Vec<BuiltIn> {
    vec![
        define(
            "",
            "Node",
            "Name,Status,Roles,Age,Version,Internal-IP*,External-IP*,OS-Image*,Kernel-Version*,Container-Runtime*",
            node,
        ),
        define("", "Namespace", "Name,Status,Age", |o, now| {
            vec![o.name().into(), text(o, &["status", "phase"]).into(), age(o, now)]
        }),
        define("coordination.k8s.io", "Lease", "Name,Holder,Age", |o, now| {
            vec![o.name().into(), text(o, &["spec", "holderIdentity"]).into(), age(o, now)]
        }),
        define(
            "scheduling.k8s.io",
            "PriorityClass",
            "Name,Value:integer,Global-Default:boolean,Age,PreemptionPolicy",
            |o, now| {
                let global = at(o, &["globalDefault"]).and_then(Value::as_bool).unwrap_or(false);
                let policy = match text(o, &["preemptionPolicy"]) {
                    "" => "PreemptLowerPriority",
                    policy => policy,
                };
                vec![
                    o.name().into(),
                    super::number(o, &["value"]).into(),
                    global.into(),
                    age(o, now),
                    policy.into(),
                ]
            },
        ),
    ]
}

fn node(node: &Value, now: Timestamp) -> Vec<Value> {
    let mut status = match condition(node, "Ready").map(|c| c.top_str("status")) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if at(node, &["spec", "unschedulable"]).and_then(Value::as_bool) == Some(true) {
        status.push_str(",SchedulingDisabled");
    }
    let info = |field: &str| match text(node, &["status", "nodeInfo", field]) {
        "" => Value::from("<unknown>"),
        found => found.into(),
    };
    vec![
        node.name().into(),
        status.into(),
        or_none(&roles(node).join(",")),
        age(node, now),
        text(node, &["status", "nodeInfo", "kubeletVersion"]).into(),
        address(node, "InternalIP"),
        address(node, "ExternalIP"),
        info("osImage"),
        info("kernelVersion"),
        info("containerRuntimeVersion"),
    ]
}

fn roles(node: &Value) -> Vec<&str> {
    let labels = at(node, &["metadata", "labels"]).and_then(Value::as_object);
    let mut roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.as_str() {
            "kubernetes.io/role" => value.as_str(),
            key => key.strip_prefix("node-role.kubernetes.io/"),
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    roles
}

fn address(node: &Value, kind: &str) -> Value {
    let addresses = list(node, &["status", "addresses"]);
    or_none(addresses.iter().find(|a| a.top_str("type") == kind).map_or("", |a| a.top_str("address")))
}
