//! Which pods of a Node are evicted, ignored or waited for.

use drover_api::labels::capi as labels;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;

use super::scope::DrainView;
use crate::meta;

/// A pod, as `namespace/name`.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct PodKey {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
}

impl std::fmt::Display for PodKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The remaining work of a drain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DrainPlan {
    /// Pods to evict.
    pub evict: Vec<PodKey>,
    /// Pods that are being deleted.
    pub leaving: Vec<PodKey>,
    /// Pods that are waited for until they complete.
    pub completing: Vec<PodKey>,
    /// Grace period of evicted pods: 1 s if the Node does not respond.
    pub grace_seconds: Option<u32>,
}

impl DrainPlan {
    /// Whether the drain is complete.
    pub fn is_done(&self) -> bool {
        self.evict.is_empty() && self.leaving.is_empty() && self.completing.is_empty()
    }
}

/// Sorts the pods of a Node.
pub fn plan(view: &DrainView, node: &Node, now: Timestamp) -> DrainPlan {
    let unreachable = is_unreachable(node);
    let mut plan = DrainPlan { grace_seconds: unreachable.then_some(1), ..DrainPlan::default() };
    for pod in &view.pods {
        if is_skipped(pod, view) {
            continue;
        }
        let key = PodKey { namespace: pod.namespace().unwrap_or_default(), name: pod.name_any() };
        match &pod.metadata.deletion_timestamp {
            // The kubelet of an unreachable Node never confirms the deletion.
            Some(deleted) if unreachable && now.duration_since(deleted.0).as_secs() > 1 => {}
            Some(_) => plan.leaving.push(key),
            None if meta::label(&pod.metadata, labels::DRAIN)
                .is_some_and(|v| v.eq_ignore_ascii_case("wait-completed")) =>
            {
                plan.completing.push(key);
            }
            None => plan.evict.push(key),
        }
    }
    for list in [&mut plan.evict, &mut plan.leaving, &mut plan.completing] {
        list.sort();
    }
    plan
}

/// The Node's heartbeat has stopped.
pub fn is_unreachable(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "Unknown")
}

fn is_skipped(pod: &Pod, view: &DrainView) -> bool {
    let meta = &pod.metadata;
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed"))
        || meta::has_annotation(meta, "kubernetes.io/config.mirror")
    {
        return true;
    }
    if meta::label(meta, labels::DRAIN).is_some_and(|value| value.eq_ignore_ascii_case("skip")) {
        return true;
    }
    // A DaemonSet would recreate its pod at once, unless the DaemonSet has been deleted.
    meta::controller_of(meta).is_some_and(|owner| {
        let key = format!("{}/{}", pod.namespace().unwrap_or_default(), owner.name);
        owner.kind == "DaemonSet" && view.daemon_sets.contains(&key)
    })
}
