//! Deployments, ReplicaSets, StatefulSets, DaemonSets and disruption budgets.

use jiff::Timestamp;
use serde_json::Value;

use super::{BuiltIn, age, at, containers, define, labels, number, selector};
use crate::object::ObjectExt;

pub(super) fn printers() -> Vec<BuiltIn> {
    let replica_set = "Name,Desired:integer,Current:integer,Ready:integer,Age,Containers*,Images*,Selector*";
    vec![
        define(
            "apps",
            "Deployment",
            "Name,Ready,Up-to-date:integer,Available:integer,Age,Containers*,Images*,Selector*",
            deployment,
        ),
        define("apps", "ReplicaSet", replica_set, replica_set_cells),
        define("", "ReplicationController", replica_set, replica_set_cells),
        define("apps", "StatefulSet", "Name,Ready,Age,Containers*,Images*", stateful_set),
        define(
            "apps",
            "DaemonSet",
            "Name,Desired:integer,Current:integer,Ready:integer,Up-to-date:integer,Available:integer,Node Selector,Age,\
             Containers*,Images*,Selector*",
            daemon_set,
        ),
        define("apps", "ControllerRevision", "Name,Controller,Revision:integer,Age", controller_revision),
        define(
            "policy",
            "PodDisruptionBudget",
            "Name,Min Available,Max Unavailable,Allowed Disruptions:integer,Age",
            budget,
        ),
    ]
}

fn wanted(object: &Value) -> i64 {
    at(object, &["spec", "replicas"]).and_then(Value::as_i64).unwrap_or(1)
}

fn deployment(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(at(object, &["spec", "template"]));
    vec![
        object.name().into(),
        format!("{}/{}", number(object, &["status", "readyReplicas"]), wanted(object)).into(),
        number(object, &["status", "updatedReplicas"]).into(),
        number(object, &["status", "availableReplicas"]).into(),
        age(object, now),
        names,
        images,
        selector(at(object, &["spec", "selector"])),
    ]
}

fn replica_set_cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(at(object, &["spec", "template"]));
    let chosen = at(object, &["spec", "selector"]);
    vec![
        object.name().into(),
        wanted(object).into(),
        number(object, &["status", "replicas"]).into(),
        number(object, &["status", "readyReplicas"]).into(),
        age(object, now),
        names,
        images,
        if object.kind() == "ReplicationController" { labels(chosen) } else { selector(chosen) },
    ]
}

fn stateful_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(at(object, &["spec", "template"]));
    vec![
        object.name().into(),
        format!("{}/{}", number(object, &["status", "readyReplicas"]), wanted(object)).into(),
        age(object, now),
        names,
        images,
    ]
}

fn daemon_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(at(object, &["spec", "template"]));
    let status = |field: &str| Value::from(number(object, &["status", field]));
    vec![
        object.name().into(),
        status("desiredNumberScheduled"),
        status("currentNumberScheduled"),
        status("numberReady"),
        status("updatedNumberScheduled"),
        status("numberAvailable"),
        labels(at(object, &["spec", "template", "spec", "nodeSelector"])),
        age(object, now),
        names,
        images,
        selector(at(object, &["spec", "selector"])),
    ]
}

fn controller_revision(object: &Value, now: Timestamp) -> Vec<Value> {
    let owners = super::list(object, &["metadata", "ownerReferences"]);
    let owner = owners.iter().find(|o| o.get("controller").and_then(Value::as_bool) == Some(true));
    let owner = owner.map(|o| {
        let group = o.api_version().split_once('/').map(|(g, _)| format!(".{g}")).unwrap_or_default();
        format!("{}{group}/{}", o.kind().to_lowercase(), o.top_str("name"))
    });
    vec![
        object.name().into(),
        owner.unwrap_or_else(|| "<none>".to_owned()).into(),
        number(object, &["revision"]).into(),
        age(object, now),
    ]
}

fn budget(object: &Value, now: Timestamp) -> Vec<Value> {
    let limit = |field: &str| match at(object, &["spec", field]) {
        Some(Value::String(s)) => s.as_str().into(),
        Some(Value::Number(n)) => n.to_string().into(),
        _ => Value::from("N/A"),
    };
    vec![
        object.name().into(),
        limit("minAvailable"),
        limit("maxUnavailable"),
        number(object, &["status", "disruptionsAllowed"]).into(),
        age(object, now),
    ]
}
