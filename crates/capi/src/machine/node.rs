//! What a Machine copies to its Node: labels and annotations; and the removal of the start-up taint.

use std::collections::{BTreeMap, BTreeSet};

use drover_api::annotations::{capi as annotations, taints};
use drover_api::capi::v1beta2::Machine;
use drover_api::labels::capi as labels;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use crate::meta;

/// The merge patch that updates the Node, or `None` if it is up to date. Foreign keys are not changed; keys that were
/// copied from the Machine and no longer exist there are removed.
pub fn patch(machine: &Machine, node: &Node) -> Option<Value> {
    let wanted_labels = select(machine.labels(), is_synced_label);
    let mut wanted_annotations = select(machine.annotations(), is_synced_annotation);
    let tracked_annotations = keys(&wanted_annotations);
    wanted_annotations.extend(identity(machine));
    wanted_annotations.insert(annotations::NODE_LABELS_FROM_MACHINE.into(), keys(&wanted_labels));
    wanted_annotations.insert(annotations::NODE_ANNOTATIONS_FROM_MACHINE.into(), tracked_annotations);

    let labels =
        changes(node.labels(), &wanted_labels, &tracked(node, annotations::NODE_LABELS_FROM_MACHINE));
    let annotations = changes(
        node.annotations(),
        &wanted_annotations,
        &tracked(node, annotations::NODE_ANNOTATIONS_FROM_MACHINE),
    );
    let taints = without_start_up_taint(node);
    if labels.is_empty() && annotations.is_empty() && taints.is_none() {
        return None;
    }
    let mut patch = json!({ "metadata": { "resourceVersion": node.resource_version() } });
    if !labels.is_empty() {
        patch["metadata"]["labels"] = Value::Object(labels);
    }
    if !annotations.is_empty() {
        patch["metadata"]["annotations"] = Value::Object(annotations);
    }
    if let Some(taints) = taints {
        patch["spec"] = json!({ "taints": taints });
    }
    Some(patch)
}

fn identity(machine: &Machine) -> BTreeMap<String, String> {
    let mut identity = BTreeMap::from([
        (annotations::NODE_CLUSTER_NAME.to_owned(), machine.spec.cluster_name.clone()),
        (annotations::NODE_CLUSTER_NAMESPACE.to_owned(), machine.namespace().unwrap_or_default()),
        (annotations::NODE_MACHINE.to_owned(), machine.name_any()),
    ]);
    if let Some(owner) = meta::controller_of(&machine.metadata) {
        identity.insert(annotations::NODE_OWNER_KIND.to_owned(), owner.kind.clone());
        identity.insert(annotations::NODE_OWNER_NAME.to_owned(), owner.name.clone());
    }
    identity
}

/// Labels for a Node's role, and those in domains that kubelets may not set themselves.
fn is_synced_label(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return false };
    domain == labels::NODE_ROLE_PREFIX
        || in_domain(domain, labels::NODE_RESTRICTION_DOMAIN)
        || in_domain(domain, labels::MANAGED_NODE_DOMAIN)
}

fn is_synced_annotation(key: &str) -> bool {
    key.split_once('/').is_some_and(|(domain, _)| in_domain(domain, labels::MANAGED_NODE_DOMAIN))
}

fn in_domain(domain: &str, parent: &str) -> bool {
    domain == parent || domain.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.'))
}

fn select(from: &BTreeMap<String, String>, wanted: fn(&str) -> bool) -> BTreeMap<String, String> {
    from.iter().filter(|(key, _)| wanted(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn keys(map: &BTreeMap<String, String>) -> String {
    map.keys().map(String::as_str).collect::<Vec<_>>().join(",")
}

fn tracked(node: &Node, annotation: &str) -> BTreeSet<String> {
    let list = meta::annotation(&node.metadata, annotation).unwrap_or_default();
    list.split(',').filter(|key| !key.is_empty()).map(str::to_owned).collect()
}

fn changes(
    live: &BTreeMap<String, String>,
    wanted: &BTreeMap<String, String>,
    tracked: &BTreeSet<String>,
) -> Map<String, Value> {
    let set = wanted.iter().filter(|(key, value)| live.get(*key) != Some(value));
    let mut changes: Map<String, Value> = set.map(|(key, value)| (key.clone(), json!(value))).collect();
    let removed = tracked.iter().filter(|key| !wanted.contains_key(*key) && live.contains_key(*key));
    changes.extend(removed.map(|key| (key.clone(), Value::Null)));
    changes
}

fn without_start_up_taint(node: &Node) -> Option<Value> {
    let present = node.spec.as_ref()?.taints.as_ref()?;
    let kept: Vec<_> = present.iter().filter(|taint| taint.key != taints::UNINITIALIZED).collect();
    (kept.len() < present.len()).then(|| json!(kept))
}
