//! Helpers for any object: owner references, pause, selectors and label values.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use drover_api::annotations::capi as annotations;
use drover_api::capi::v1beta2::{API_VERSION, Cluster};
use drover_runtime::Change;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use kube::Resource;

/// The reference that makes `object` an owner.
pub fn owner_reference<K: Resource<DynamicType = ()>>(object: &K, controller: bool) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: object.meta().name.clone().unwrap_or_default(),
        uid: object.meta().uid.clone().unwrap_or_default(),
        controller: controller.then_some(true),
        block_owner_deletion: controller.then_some(true),
    }
}

/// The owner that controls the object.
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Whether `uid` controls the object.
pub fn is_controlled_by(meta: &ObjectMeta, uid: &str) -> bool {
    controller_of(meta).is_some_and(|owner| owner.uid == uid)
}

/// Owners are compared by group, kind and name, so that a new API version replaces the reference.
pub fn same_owner(a: &OwnerReference, b: &OwnerReference) -> bool {
    group(&a.api_version) == group(&b.api_version) && a.kind == b.kind && a.name == b.name
}

/// The group of an apiVersion.
pub fn group(api_version: &str) -> &str {
    api_version.rsplit_once('/').map_or("", |(group, _)| group)
}

/// Whether the owner is a kind of Cluster API's core.
pub fn is_core_owner(owner: &OwnerReference, kind: &str) -> bool {
    group(&owner.api_version) == group(API_VERSION) && owner.kind == kind
}

/// Whether the cluster is paused, or the object has the annotation with any value.
pub fn is_paused(cluster: Option<&Cluster>, meta: &ObjectMeta) -> bool {
    cluster.is_some_and(|cluster| cluster.spec.paused == Some(true))
        || has_annotation(meta, annotations::PAUSED)
}

/// Whether a Cluster was created or deleted, or changed in more than its status.
pub fn is_beyond_status(change: &Change<'_, Cluster>) -> bool {
    let (Some(old), Some(new)) = (change.old, change.new) else { return true };
    let of = |cluster: &Cluster| {
        let meta = &cluster.metadata;
        (meta.uid.clone(), meta.deletion_timestamp.clone(), meta.annotations.clone(), meta.labels.clone())
    };
    old.spec != new.spec || of(old) != of(new)
}

/// The label's value, if present.
pub fn label<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.labels.as_ref()?.get(key).map(String::as_str)
}

/// The annotation's value, if present.
pub fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Whether the object has the annotation.
pub fn has_annotation(meta: &ObjectMeta, key: &str) -> bool {
    annotation(meta, key).is_some()
}

/// The annotations whose key begins with `prefix` (deletion hooks).
pub fn annotations_with_prefix(meta: &ObjectMeta, prefix: &str) -> Vec<String> {
    meta.annotations
        .iter()
        .flatten()
        .map(|(key, _)| key.clone())
        .filter(|key| key.starts_with(prefix))
        .collect()
}

/// Whether the object is being deleted.
pub fn is_deleting(meta: &ObjectMeta) -> bool {
    meta.deletion_timestamp.is_some()
}

/// Whether `selector` selects `labels`. An empty selector selects nothing here, as in Cluster API.
pub fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let wanted = selector.match_labels.as_ref();
    let expressions = selector.match_expressions.as_deref().unwrap_or_default();
    if wanted.is_none_or(BTreeMap::is_empty) && expressions.is_empty() {
        return false;
    }
    wanted.into_iter().flatten().all(|(key, value)| labels.get(key) == Some(value))
        && expressions.iter().all(|expression| {
            let value = labels.get(&expression.key);
            let listed = value.is_some_and(|value| expression.values.iter().flatten().any(|v| v == value));
            match expression.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

/// The selector in the format of `.status.selector` for `kubectl scale` and autoscalers.
pub fn selector_string(selector: &LabelSelector) -> String {
    let mut terms: Vec<String> =
        selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}")).collect();
    for expression in selector.match_expressions.iter().flatten() {
        let values = expression.values.clone().unwrap_or_default().join(",");
        terms.push(match expression.operator.as_str() {
            "In" => format!("{} in ({values})", expression.key),
            "NotIn" => format!("{} notin ({values})", expression.key),
            "DoesNotExist" => format!("!{}", expression.key),
            _ => expression.key.clone(),
        });
    }
    terms.join(",")
}

/// The label value for `name`: the name itself, or a hash if it is not a valid value (cluster-api
/// `internal/labels/helpers.go`, MustFormatValue).
pub fn label_value(name: &str) -> String {
    if is_label_value(name) {
        return name.to_owned();
    }
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("hash_{}_z", URL_SAFE_NO_PAD.encode(hash.to_be_bytes()))
}

/// At most 63 characters of `[A-Za-z0-9._-]`, beginning and ending with a letter or digit.
pub fn is_label_value(value: &str) -> bool {
    let bytes = value.as_bytes();
    let ends = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    bytes.len() <= 63
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_become_hashed_label_values() {
        assert_eq!(label_value("demo-workers-abcde"), "demo-workers-abcde");
        let long = "a".repeat(64);
        let value = label_value(&long);
        assert!(value.starts_with("hash_") && value.ends_with("_z") && value.len() < 64, "{value}");
        assert_eq!(value, label_value(&long));
    }

    #[test]
    fn a_selector_selects_by_labels_and_expressions() {
        let selector: LabelSelector = serde_json::from_value(serde_json::json!({
            "matchLabels": { "a": "1" },
            "matchExpressions": [
                { "key": "b", "operator": "In", "values": ["x", "y"] },
                { "key": "c", "operator": "DoesNotExist" },
            ],
        }))
        .unwrap();
        let labels = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<BTreeMap<_, _>>()
        };
        assert!(selects(&selector, &labels(&[("a", "1"), ("b", "y")])));
        assert!(!selects(&selector, &labels(&[("a", "1"), ("b", "z")])));
        assert!(!selects(&selector, &labels(&[("a", "1"), ("b", "x"), ("c", "")])));
        assert!(!selects(&LabelSelector::default(), &labels(&[("a", "1")])));
        assert_eq!(selector_string(&selector), "a=1,b in (x,y),!c");
    }
}
