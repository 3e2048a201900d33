//! Node health: a Node without heartbeats is not Ready.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// As in the node lifecycle controller: after 40 s without a heartbeat the conditions of a Node become Unknown.
const GRACE: SignedDuration = SignedDuration::from_secs(40);
const PERIOD: Duration = Duration::from_secs(5);

/// Monitors all Nodes until `stop` is cancelled.
pub async fn run(client: Client, stop: CancellationToken) {
    let (nodes, leases) =
        (Api::<Node>::all(client.clone()), Api::<Lease>::namespaced(client, "kube-node-lease"));
    loop {
        tokio::select! {
            () = stop.clone().cancelled_owned() => return,
            () = tokio::time::sleep(PERIOD) => {}
        }
        let all = ListParams::default();
        let (Ok(nodes_now), Ok(leases_now)) = (nodes.list(&all).await, leases.list(&all).await) else {
            continue;
        };
        for node in nodes_now.items {
            let name = node.name_any();
            let lease = leases_now.items.iter().find(|lease| lease.name_any() == name);
            let renewed = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref().map(|time| time.0));
            let Some(condition) = judge(&node, renewed, Timestamp::now()) else { continue };
            let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
            if let Err(error) = nodes.patch_status(&name, &PatchParams::default(), &patch).await {
                tracing::warn!(node = name, %error, "failed to write node health");
            }
        }
    }
}

/// The Ready condition to write, if it changes.
fn judge(node: &Node, renewed: Option<Timestamp>, now: Timestamp) -> Option<NodeCondition> {
    let ready = node.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == "Ready")?;
    // If a Node never had a Lease, its creation time counts.
    let last = renewed.or_else(|| ready.last_heartbeat_time.as_ref().map(|time| time.0))?;
    let silent = now.duration_since(last) > GRACE;
    let (status, reason, message) = match (silent, ready.status.as_str()) {
        (true, "True" | "False") => ("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."),
        (false, "Unknown") => ("True", "KubeletReady", "kubelet is posting ready status"),
        _ => return None,
    };
    let now = Time(drover_runtime::conditions::whole_seconds(now));
    Some(NodeCondition {
        type_: "Ready".into(),
        status: status.into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_heartbeat_time: Some(now.clone()),
        last_transition_time: Some(now),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::NodeStatus;

    fn node(ready: &str) -> Node {
        let condition =
            NodeCondition { type_: "Ready".into(), status: ready.into(), ..NodeCondition::default() };
        Node {
            status: Some(NodeStatus { conditions: Some(vec![condition]), ..NodeStatus::default() }),
            ..Node::default()
        }
    }

    #[test]
    fn a_node_without_heartbeats_becomes_unknown_and_then_ready_again() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(judge(&node("True"), Some(at(100)), at(130)), None);
        assert_eq!(judge(&node("True"), Some(at(100)), at(141)).unwrap().status, "Unknown");
        assert_eq!(judge(&node("Unknown"), Some(at(100)), at(200)), None);
        assert_eq!(judge(&node("Unknown"), Some(at(199)), at(200)).unwrap().status, "True");
        assert_eq!(judge(&node("True"), None, at(200)), None);
    }
}
