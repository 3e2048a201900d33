//! machinenodelookup: the Node of an infra machine gives it its provider id and addresses.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

/// Groups of infra machines that are looked up.
pub const GROUPS: [&str; 3] = ["rke-machine.cattle.io", "rke.cattle.io", "elemental.cattle.io"];

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub provider_id: String,
    /// `status.addresses`.
    pub addresses: Value,
}

/// Whether a machine is to be looked up now: it has bootstrap data, its server is ready, and its provider id is
/// not known. Before that the infra machine must not be touched.
pub fn is_due(data_secret_created: bool, provider_id: &str, infra_ready: bool) -> bool {
    data_secret_created && provider_id.is_empty() && infra_ready
}

/// Finds the Node among those that carry the Machine's UID: it must be Ready and know its provider id.
pub fn find(nodes: &[Arc<Node>]) -> Option<Found> {
    let node = nodes.iter().find(|node| is_ready(node) && provider_id(node).is_some())?;
    let addresses: Vec<Value> = node
        .status
        .iter()
        .flat_map(|status| status.addresses.iter().flatten())
        .filter(|address| {
            ["InternalIP", "ExternalIP", "Hostname", "InternalDNS", "ExternalDNS"]
                .contains(&address.type_.as_str())
        })
        .map(|address| json!({"type": address.type_, "address": address.address}))
        .collect();
    Some(Found { provider_id: provider_id(node)?.to_owned(), addresses: json!(addresses) })
}

fn provider_id(node: &Node) -> Option<&str> {
    node.spec.as_ref()?.provider_id.as_deref().filter(|id| !id.is_empty())
}

pub fn is_ready(node: &Node) -> bool {
    node.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provisioning_check_32_a_ready_node_with_a_provider_id() {
        let node = |ready: &str, id: &str| -> Arc<Node> {
            Arc::new(
                serde_json::from_value(json!({
                    "metadata": {"name": "n"}, "spec": {"providerID": id},
                    "status": {
                        "conditions": [{"type": "Ready", "status": ready}],
                        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                    },
                }))
                .unwrap(),
            )
        };
        assert_eq!(find(&[node("False", "k3s://n")]), None);
        assert_eq!(find(&[node("True", "")]), None);
        let found = find(&[node("False", "k3s://old"), node("True", "k3s://n")]).unwrap();
        assert_eq!(found.provider_id, "k3s://n");
        assert_eq!(found.addresses, json!([{"type": "InternalIP", "address": "10.0.0.1"}]));
        assert!(is_due(true, "", true) && !is_due(true, "x", true) && !is_due(true, "", false));
    }
}
