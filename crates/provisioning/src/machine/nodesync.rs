//! A pool's labels, taints and worker role on a living Node. Pure.
//!
//! What came from the pool is noted on the Node, so that what the pool drops can be told from what others
//! set. Labels that the node registered with count as the pool's until there is a note.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Taint};
use serde_json::{Map, Value, json};

use crate::keys::annotations;

/// What the pool wants.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// A kubelet may not give itself a role, and K3s gives none to workers.
    pub worker: bool,
}

const WORKER_ROLE: &str = "node-role.kubernetes.io/worker";

/// The merge patch that makes the Node follow, or nothing if it does.
pub fn patch(node: &Node, wanted: &Wanted, registered_with: &[String]) -> Option<Value> {
    let empty = BTreeMap::new();
    let live = node.metadata.labels.as_ref().unwrap_or(&empty);
    let notes = node.metadata.annotations.as_ref().unwrap_or(&empty);
    let noted = |key: &str| -> Option<Vec<String>> { serde_json::from_str(notes.get(key)?).ok() };

    let former = noted(annotations::NODE_LABELS_FROM_POOL).unwrap_or_else(|| registered_with.to_vec());
    let mut labels = Map::new();
    for (key, value) in &wanted.labels {
        if live.get(key) != Some(value) {
            labels.insert(key.clone(), json!(value));
        }
    }
    if wanted.worker && !live.contains_key(WORKER_ROLE) {
        labels.insert(WORKER_ROLE.to_owned(), json!("true"));
    }
    for key in former.iter().filter(|key| !wanted.labels.contains_key(*key) && live.contains_key(*key)) {
        labels.insert(key.clone(), Value::Null);
    }

    let current: Vec<Taint> = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let id = |taint: &Taint| format!("{}:{}", taint.key, taint.effect);
    let wanted_ids: BTreeSet<String> = wanted.taints.iter().map(id).collect();
    let former_ids: BTreeSet<String> =
        noted(annotations::NODE_TAINTS_FROM_POOL).unwrap_or_default().into_iter().collect();
    let mut taints: Vec<Taint> = current
        .iter()
        .filter(|taint| !wanted_ids.contains(&id(taint)) && !former_ids.contains(&id(taint)))
        .cloned()
        .collect();
    taints.extend(wanted.taints.iter().cloned());
    let same_taints = {
        let key = |list: &[Taint]| -> BTreeSet<String> {
            list.iter()
                .map(|t| format!("{}={}:{}", t.key, t.value.as_deref().unwrap_or_default(), t.effect))
                .collect()
        };
        key(&taints) == key(&current)
    };

    let mut annotations_patch = Map::new();
    let label_keys = json!(wanted.labels.keys().collect::<Vec<_>>()).to_string();
    let taint_keys = json!(wanted_ids).to_string();
    for (key, value) in
        [(annotations::NODE_LABELS_FROM_POOL, label_keys), (annotations::NODE_TAINTS_FROM_POOL, taint_keys)]
    {
        // A pool that never set anything leaves no note.
        let worth = value != "[]" || notes.contains_key(key);
        if worth && notes.get(key) != Some(&value) {
            annotations_patch.insert(key.to_owned(), json!(value));
        }
    }
    if labels.is_empty() && same_taints && annotations_patch.is_empty() {
        return None;
    }
    let mut patch = json!({"metadata": {"resourceVersion": node.metadata.resource_version}});
    if !labels.is_empty() {
        patch["metadata"]["labels"] = Value::Object(labels);
    }
    if !annotations_patch.is_empty() {
        patch["metadata"]["annotations"] = Value::Object(annotations_patch);
    }
    if !same_taints {
        patch["spec"] = json!({"taints": taints});
    }
    Some(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(value: Value) -> Node {
        serde_json::from_value(value).unwrap()
    }

    fn wanted(labels: Value, taints: Value) -> Wanted {
        Wanted {
            labels: serde_json::from_value(labels).unwrap(),
            taints: serde_json::from_value(taints).unwrap(),
            worker: false,
        }
    }

    #[test]
    fn labels_and_taints_follow_the_pool_and_leave_others_alone() {
        let before = node(json!({
            "metadata": {"resourceVersion": "5", "labels": {"old": "1", "foreign": "x", "tier": "silver"}},
            "spec": {"taints": [{"key": "foreign", "effect": "NoExecute"}]},
        }));
        let want =
            wanted(json!({"tier": "gold"}), json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]));
        let patch = patch(&before, &want, &["old".to_owned(), "tier".to_owned()]).unwrap();
        assert_eq!(patch["metadata"]["labels"], json!({"old": null, "tier": "gold"}));
        assert_eq!(patch["metadata"]["resourceVersion"], "5");
        assert_eq!(
            patch["spec"]["taints"],
            json!([{"effect": "NoExecute", "key": "foreign"}, {"effect": "NoSchedule", "key": "k", "value": "v"}])
        );
        assert_eq!(
            patch["metadata"]["annotations"][annotations::NODE_TAINTS_FROM_POOL],
            r#"["k:NoSchedule"]"#
        );
    }

    #[test]
    fn a_worker_is_called_one_and_a_label_of_others_is_kept() {
        let worker = Wanted { worker: true, ..Wanted::default() };
        let fresh = patch(&node(json!({"metadata": {}})), &worker, &[]).unwrap();
        assert_eq!(fresh["metadata"]["labels"], json!({WORKER_ROLE: "true"}));
        let named = node(json!({"metadata": {"labels": {WORKER_ROLE: ""}}}));
        assert_eq!(patch(&named, &worker, &[]), None);
    }

    #[test]
    fn a_node_that_follows_is_not_touched() {
        let still = node(json!({"metadata": {"labels": {"foreign": "x"}}}));
        assert_eq!(patch(&still, &Wanted::default(), &[]), None);
        let noted = node(json!({
            "metadata": {
                "labels": {"tier": "gold"},
                "annotations": {
                    annotations::NODE_LABELS_FROM_POOL: r#"["tier"]"#,
                    annotations::NODE_TAINTS_FROM_POOL: r#"["k:NoSchedule"]"#,
                },
            },
            "spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
        }));
        let want =
            wanted(json!({"tier": "gold"}), json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]));
        assert_eq!(patch(&noted, &want, &["tier".to_owned()]), None);
        let dropped = patch(&noted, &Wanted::default(), &[]).unwrap();
        assert_eq!(dropped["metadata"]["labels"], json!({"tier": null}));
        assert_eq!(dropped["spec"]["taints"], json!([]));
    }
}
