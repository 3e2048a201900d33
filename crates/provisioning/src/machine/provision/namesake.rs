//! Names that two servers must not share. Pure.
//!
//! The rules that make them from the machine's name are the original's: dots become dashes, and what is too long is cut
//! and ends in a few digits of a hash. That two machines end up with one name is therefore rare but possible, and then a
//! driver would take the one's server for the other's.

use std::sync::Arc;

use drover_runtime::ObjectKey;
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::json;

use super::state::Machine;
use crate::keys::{annotations, labels};
use crate::machine::args::{hostname, instance_name};

/// Index of infra machines by what they claim.
pub const INDEX: &str = "provisioning/claims";

/// What of a machine is its own: the server's name at the driver, and the host name in its cluster.
pub fn claims(object: &DynamicObject) -> Vec<String> {
    let name = object.name_any();
    let limit = object.annotations().get(annotations::HOSTNAME_LENGTH_LIMIT);
    let host = hostname(&name, limit.map(String::as_str));
    let cluster = object.labels().get(labels::capi::CLUSTER_NAME).cloned().unwrap_or_default();
    let namespace = object.namespace().unwrap_or_default();
    vec![format!("server {}", instance_name(&name)), format!("host {namespace}/{cluster}/{host}")]
}

/// The machine of the same kind that has to be deleted first: of two that claim the same, the one whose server is being
/// created comes first, then the older one.
pub fn blocked(object: &DynamicObject, others: &[Arc<DynamicObject>]) -> Option<ObjectKey> {
    let rank = |object: &DynamicObject| {
        let begun = Machine::read(&json!(object)).progress.attempt > 0;
        let created = object.creation_timestamp().map(|time| time.0);
        (!begun, created, object.namespace(), object.name_any())
    };
    let own = rank(object);
    let first = others
        .iter()
        .filter(|other| other.uid() != object.uid() && rank(other) < own)
        .min_by_key(|o| rank(o))?;
    Some(ObjectKey::of(first.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(name: &str, attempt: i64, limit: &str) -> Arc<DynamicObject> {
        let object = json!({
            "apiVersion": "rke-machine.cattle.io/v1", "kind": "LocalMachine",
            "metadata": {
                "namespace": "default", "name": name, "uid": format!("uid-{name}"),
                "labels": {"cluster.x-k8s.io/cluster-name": "demo"},
                "annotations": {"rke.cattle.io/hostname-length-limit": limit},
            },
            "status": {"attempt": attempt},
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn machine_drivers_check_28_no_two_servers_share_a_name() {
        let [dashed, dotted] = [machine("a-b", 0, ""), machine("a.b", 0, "")];
        assert_eq!(claims(&dashed), ["server a-b", "host default/demo/a-b"]);
        assert_eq!(claims(&dotted), claims(&dashed));
        let both = [dashed.clone(), dotted.clone()];
        assert_eq!(blocked(&dashed, &both), None, "one of them goes first");
        assert_eq!(blocked(&dotted, &both).unwrap().name, "a-b");
        // The one that has begun stays the first.
        let begun = machine("a.b", 1, "");
        let both = [dashed.clone(), begun.clone()];
        assert_eq!(blocked(&begun, &both), None);
        assert_eq!(blocked(&dashed, &both).unwrap().name, "a.b");
        assert_eq!(blocked(&dashed, std::slice::from_ref(&dashed)), None);
    }

    #[test]
    fn machine_drivers_check_28_long_names_and_tight_limits_stay_apart() {
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..200 {
            let long = format!("{}.{}-{number}", "m".repeat(60), "x".repeat(40));
            for claim in claims(&machine(&long, 0, "20")) {
                let name = claim.rsplit([' ', '/']).next().unwrap().to_owned();
                assert!(name.len() <= 63 && !name.contains('.'), "{name}");
                assert!(seen.insert(claim), "{name} twice");
            }
        }
    }
}
