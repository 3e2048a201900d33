//! Custom machines whose Node was deleted. Too small for rooms of its own: [`decide`] is pure.
//!
//! Nobody makes a new server for a custom machine, so its Machine stays when its Node was deleted, unless the
//! cluster says for how long it may: `rke.cattle.io/delete-missing-custom-machines-after`. The time counts from when
//! the Machine first said that its Node was deleted, and only an answer of the cluster itself ends a Machine: while
//! the cluster is out of reach nothing is known, and nothing is deleted.

use std::time::Duration;

use drover_api::capi::v1beta2 as capi;
use drover_api::conditions::{reasons, types};
use drover_api::rke::v1::RKECluster;
use drover_runtime::events::Note;
use drover_runtime::{Error, Next, ObjectKey, Reconciler};
use jiff::{SignedDuration, Timestamp};

use crate::context::Context;
use crate::init::pools::parse_duration;
use crate::keys::annotations;
use crate::store::Writer;

/// A cluster that did not answer is asked again.
const AGAIN: Duration = Duration::from_secs(15);

/// What to do about a Machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing is missing, or it may be missing for ever.
    Nothing,
    /// It is missing, and this is when it has been for long enough.
    At(Timestamp),
    /// It has been missing long enough: ask the cluster whether this Node is really gone.
    Confirm(String),
}

/// Decides; `after` is how long the cluster lets a Node be missing.
pub fn decide(machine: &capi::Machine, after: SignedDuration, now: Timestamp) -> Step {
    let Some((node, since)) = missing(machine) else { return Step::Nothing };
    match since.checked_add(after) {
        Ok(due) if now >= due => Step::Confirm(node.to_owned()),
        Ok(due) => Step::At(due),
        // So long that there is no such time.
        Err(_) => Step::Nothing,
    }
}

/// Whether a person brought the server.
pub fn is_custom(machine: &capi::Machine) -> bool {
    let reference = &machine.spec.infrastructure_ref;
    reference.api_group == "rke.cattle.io" && reference.kind == "CustomMachine"
}

/// How long a cluster lets a Node be missing, as its annotation says.
pub fn patience_of(cluster: &RKECluster) -> Option<&String> {
    cluster.metadata.annotations.as_ref()?.get(annotations::DELETE_MISSING_CUSTOM_MACHINES_AFTER)
}

/// A custom machine's Node that was deleted, and when the Machine said so.
fn missing(machine: &capi::Machine) -> Option<(&str, Timestamp)> {
    if !is_custom(machine) || machine.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let status = machine.status.as_ref()?;
    let healthy = status.conditions.iter().find(|condition| condition.type_ == types::NODE_HEALTHY)?;
    let deleted = healthy.status == "False" && healthy.reason == reasons::NODE_DELETED;
    let node = status.node_ref.as_ref().filter(|_| deleted)?;
    Some((&node.name, healthy.last_transition_time.0))
}

/// Reconciles one Machine.
pub struct MissingNodes {
    context: Context,
    writer: Writer,
}

impl MissingNodes {
    pub fn new(context: &Context) -> Self {
        Self { context: context.clone(), writer: Writer::new(&context.store, "unmanaged", "missing") }
    }

    /// How long the Machine's cluster lets a Node be missing.
    fn patience(&self, machine: &capi::Machine) -> Option<SignedDuration> {
        let key = ObjectKey::of(machine).sibling(&machine.spec.cluster_name);
        let cluster = self.context.store.rke_clusters.get(&key)?;
        let note = annotations::DELETE_MISSING_CUSTOM_MACHINES_AFTER;
        let text = patience_of(&cluster)?;
        let parsed = parse_duration(text);
        if parsed.is_none() {
            let message =
                format!("annotation {note}: {text:?} is not a duration like 10m; nothing is deleted");
            let note = Note::warning("InvalidAnnotation", message).standing();
            self.context.events.publish(cluster.as_ref(), [&note]);
        }
        parsed
    }
}

impl Reconciler for MissingNodes {
    const NAME: &'static str = "missingnodes";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let store = &self.context.store;
        let machine = store.machines.get(&key).filter(|machine| missing(machine).is_some());
        let Some(machine) = machine else { return Ok(Next::EVENT) };
        let Some(after) = self.patience(&machine) else { return Ok(Next::EVENT) };
        let node = match decide(&machine, after, self.context.now()) {
            Step::Nothing => return Ok(Next::EVENT),
            Step::At(due) => return Ok(self.context.next(Some(due))),
            Step::Confirm(node) => node,
        };
        let cluster = key.sibling(&machine.spec.cluster_name);
        let paused =
            store.capi_clusters.get(&cluster).is_none_or(|cluster| cluster.spec.paused.unwrap_or(false));
        if paused || store.control_planes.get(&cluster).is_none() {
            return Ok(Next::EVENT);
        }
        let Ok(handle) = self.context.downstream.cluster(&cluster) else { return Ok(Next::after(AGAIN)) };
        // The live copy may lack a Node that was registered just now.
        match handle.node(&node).await {
            Ok(None) => {
                tracing::info!(machine = %key, node, "deleting a custom machine whose Node is gone");
                self.writer.delete::<capi::Machine>(&key).await?;
                Ok(Next::EVENT)
            }
            Ok(Some(_)) => Ok(Next::after(AGAIN)),
            Err(error) => {
                tracing::debug!(machine = %key, %error, "cannot see whether the Node is gone");
                Ok(Next::after(AGAIN))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn machine(kind: &str, status: &str, reason: &str) -> capi::Machine {
        serde_json::from_value(json!({
            "metadata": {"name": "custom-1", "namespace": "default"},
            "spec": {"clusterName": "demo", "bootstrap": {},
                "infrastructureRef": {"apiGroup": "rke.cattle.io", "kind": kind, "name": "custom-1"}},
            "status": {"nodeRef": {"name": "n1"}, "conditions": [{
                "type": "NodeHealthy", "status": status, "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        }))
        .unwrap()
    }

    #[test]
    fn provisioning_check_37_a_node_may_be_missing_for_so_long() {
        let after = SignedDuration::from_mins(1);
        let at = |text: &str| -> Timestamp { text.parse().unwrap() };
        let missing = machine("CustomMachine", "False", "NodeDeleted");
        assert_eq!(decide(&missing, after, at("2026-01-01T00:00:59Z")), Step::At(at("2026-01-01T00:01:00Z")));
        let late = at("2026-01-01T00:01:00Z");
        assert_eq!(decide(&missing, after, late), Step::Confirm("n1".into()));
        // Out of reach, sick, made by a driver, or going already: not ours to delete.
        let mut going = missing;
        going.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(late));
        for other in [
            machine("CustomMachine", "Unknown", "ConnectionDown"),
            machine("CustomMachine", "False", "NodeNotHealthy"),
            machine("LocalMachine", "False", "NodeDeleted"),
            going,
        ] {
            assert_eq!(decide(&other, after, late), Step::Nothing);
        }
    }
}
