//! Which pods leave a Node before its machine is re-configured, and which forbid it. Pure; as `kubectl drain` judges.

use drover_api::rke::v1::DrainOptions;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// What a drain has to do next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drain {
    /// Pods to evict or delete, as namespace and name.
    pub evict: Vec<(String, String)>,
    /// Pods that are on their way out.
    pub leaving: Vec<(String, String)>,
    /// Why nothing is evicted at all: the options forbid it.
    pub refused: Option<String>,
}

/// Sorts the pods of a Node.
pub fn judge(pods: &[Pod], options: &DrainOptions, now: Timestamp) -> Drain {
    let mut drain = Drain::default();
    let (mut unmanaged, mut daemons, mut local) = (vec![], vec![], vec![]);
    for pod in pods {
        let key = (pod.namespace().unwrap_or_default(), pod.name_any());
        if pod.annotations().contains_key("kubernetes.io/config.mirror") {
            continue;
        }
        if let Some(deleted) = &pod.metadata.deletion_timestamp {
            let patience = options.skip_wait_for_delete_timeout_seconds;
            if patience <= 0 || now.duration_since(deleted.0).as_secs() <= patience {
                drain.leaving.push(key);
            }
            continue;
        }
        let finished = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if matches!(finished, Some("Succeeded" | "Failed")) {
            drain.evict.push(key);
            continue;
        }
        let name = format!("{}/{}", key.0, key.1);
        match pod.owner_references().iter().find(|owner| owner.controller == Some(true)) {
            // It would come back at once.
            Some(owner) if owner.kind == "DaemonSet" => {
                if !options.ignore_daemon_sets.unwrap_or(true) {
                    daemons.push(name);
                }
                continue;
            }
            None if !options.force => unmanaged.push(name),
            _ if has_local_data(pod) && !options.delete_empty_dir_data => local.push(name),
            _ => drain.evict.push(key),
        }
    }
    let complaints = [
        (unmanaged, "that no controller manages would be lost (set force)"),
        (daemons, "belong to DaemonSets (set ignoreDaemonSets)"),
        (local, "have local data in emptyDir volumes (set deleteEmptyDirData)"),
    ];
    let told: Vec<String> = complaints
        .into_iter()
        .filter(|(pods, _)| !pods.is_empty())
        .map(|(pods, why)| format!("pods {why}: {}", pods.join(", ")))
        .collect();
    if !told.is_empty() {
        drain = Drain { refused: Some(told.join("; ")), ..Drain::default() };
    }
    drain
}

fn has_local_data(pod: &Pod) -> bool {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    volumes.into_iter().flatten().any(|volume| volume.empty_dir.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, rest: Value) -> Pod {
        let mut object =
            json!({"metadata": {"namespace": "a", "name": name}, "status": {"phase": "Running"}});
        kube_merge(&mut object, rest);
        serde_json::from_value(object).unwrap()
    }

    fn kube_merge(into: &mut Value, from: Value) {
        match (into, from) {
            (Value::Object(into), Value::Object(from)) => {
                from.into_iter()
                    .for_each(|(key, value)| kube_merge(into.entry(key).or_insert(Value::Null), value));
            }
            (into, from) => *into = from,
        }
    }

    fn owned(kind: &str) -> Value {
        json!({"metadata": {"ownerReferences": [
            {"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "u", "controller": true},
        ]}})
    }

    fn names(list: &[(String, String)]) -> Vec<&str> {
        list.iter().map(|(_, name)| name.as_str()).collect()
    }

    fn options(value: Value) -> DrainOptions {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn managed_and_finished_pods_go_mirrors_and_daemons_stay() {
        let pods = [
            pod("web", owned("ReplicaSet")),
            pod("done", json!({"status": {"phase": "Succeeded"}})),
            pod("ds", owned("DaemonSet")),
            pod("static", json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}})),
            pod("going", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})),
        ];
        let now = "2026-01-01T00:01:00Z".parse().unwrap();
        let drain = judge(&pods, &options(json!({"enabled": true})), now);
        assert_eq!((names(&drain.evict), names(&drain.leaving)), (vec!["web", "done"], vec!["going"]));
        assert_eq!(drain.refused, None);
        let impatient = options(json!({"enabled": true, "skipWaitForDeleteTimeoutSeconds": 30}));
        assert!(judge(&pods, &impatient, now).leaving.is_empty());
    }

    #[test]
    fn what_would_be_lost_needs_a_word() {
        let data = json!({"spec": {"containers": [], "volumes": [{"name": "v", "emptyDir": {}}]}});
        let mut cache = owned("ReplicaSet");
        kube_merge(&mut cache, data);
        let pods = [pod("bare", json!({})), pod("cache", cache), pod("ds", owned("DaemonSet"))];
        let now = Timestamp::UNIX_EPOCH;
        let refused = judge(&pods, &options(json!({"ignoreDaemonSets": false})), now);
        let why = refused.refused.unwrap();
        for word in ["a/bare", "force", "a/cache", "deleteEmptyDirData", "a/ds", "ignoreDaemonSets"] {
            assert!(why.contains(word), "{why}");
        }
        assert!(refused.evict.is_empty());
        let all = judge(&pods, &options(json!({"force": true, "deleteEmptyDirData": true})), now);
        assert_eq!(names(&all.evict), ["bare", "cache"]);
    }
}
