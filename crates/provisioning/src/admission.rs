//! Writes that must be refused because others still need what they take away. Pure: the API's hooks bring everything
//! that is looked at.

use drover_api::capi::v1beta2::Machine;
use drover_api::management::v3::NodeDriver;
use drover_api::provisioning::v1::{Cluster, RKEMachinePool};
use drover_api::rke::v1::RKEControlPlane;
use drover_plan::keys;
use drover_runtime::ObjectKey;
use serde_json::{Value, json};

use crate::init::objects::template::CONFIG_API_VERSION;
use crate::init::pools::{problems, scale, state};
use crate::machine::drivers::driver_name;
use crate::machine::schema::kind_prefix;

pub use crate::init::pools::problems::missing_roles;
pub use crate::init::validation::never::{Never, refusals};
pub use crate::init::validation::schemas::keep as keep_schemas;

/// Namespace of the credentials that every cluster may refer to.
pub(crate) const SHARED_CREDENTIALS: &str = "cattle-global-data";

/// Whether a change makes a driver unavailable to its users: it is deactivated or renamed.
pub fn ends_driver(old: &NodeDriver, new: &NodeDriver) -> bool {
    (old.spec.active && !new.spec.active) || driver_name(old) != driver_name(new)
}

/// What uses a driver, with the fix.
pub fn driver_in_use(driver: &NodeDriver, clusters: &[Cluster], machines: &[Machine]) -> Option<String> {
    let prefix = kind_prefix(&driver_name(driver));
    let (config, machine) = (format!("{prefix}Config"), format!("{prefix}Machine"));
    let uses = |pool: &&RKEMachinePool| {
        let reference = &pool.machine_config_ref;
        let ours = reference.api_version.as_deref().is_none_or(|v| v.is_empty() || v == CONFIG_API_VERSION);
        ours && reference.kind.as_deref() == Some(&config)
    };
    for cluster in clusters {
        if let Some(pool) = pools_of(cluster).find(uses) {
            let (name, cluster) = (&pool.name, ObjectKey::of(cluster));
            return Some(format!(
                "machine pool {name:?} of cluster {cluster} uses it; remove the pool first"
            ));
        }
    }
    let of_driver = |m: &&Machine| {
        let reference = &m.spec.infrastructure_ref;
        reference.api_group == "rke-machine.cattle.io" && reference.kind == machine
    };
    let left = machines.iter().find(of_driver)?;
    Some(format!("machine {} was created by it and could not be deleted without it", ObjectKey::of(left)))
}

/// What uses a cloud credential. Clusters that are being deleted need it, too.
pub fn credential_in_use(secret: &ObjectKey, clusters: &[Cluster]) -> Option<String> {
    clusters.iter().find_map(|cluster| {
        let namespace = cluster.metadata.namespace.as_deref().unwrap_or_default();
        let refers = |name: &str| !name.is_empty() && credential_key(namespace, name) == *secret;
        let key = ObjectKey::of(cluster);
        if refers(&cluster.spec.cloud_credential_secret_name) {
            return Some(format!("cluster {key} uses it as its cloud credential"));
        }
        let pool = pools_of(cluster).find(|pool| refers(&pool.cloud_credential_secret_name))?;
        Some(format!("machine pool {:?} of cluster {key} uses it as its cloud credential", pool.name))
    })
}

/// The cluster or machine that prevents the deletion of a namespace. Servers are deleted by Jobs, which cannot be created
/// in a terminating namespace: the servers would keep running without an object that represents them.
pub fn namespace_in_use(clusters: &[Cluster], machines: &[Machine]) -> Option<String> {
    let cluster = clusters.first().map(|cluster| format!("cluster {}", ObjectKey::of(cluster)));
    let who = cluster.or_else(|| Some(format!("machine {}", ObjectKey::of(machines.first()?))))?;
    Some(format!("it contains {who}, whose servers could then no longer be deleted; delete that first"))
}

/// Keys of a plan secret that only the server writes.
const SERVER_OWNED: [&str; 4] = [keys::PLAN, keys::APPLIED_PLAN, keys::MAX_FAILURES, keys::FAILURE_THRESHOLD];

/// An update of a plan secret by its machine's agent can change only the agent's own data: with another role, owner or
/// finalizer a machine could become a server or prevent its deletion, and with another plan it would run instructions
/// that are unknown to the server.
pub fn keep_marks(secret: &mut Value, old: &Value) {
    if !secret["data"].is_object() {
        secret["data"] = json!({});
    }
    for key in SERVER_OWNED {
        keep(&mut secret["data"], &old["data"], key);
        if let Some(texts) = secret.get_mut("stringData").and_then(Value::as_object_mut) {
            texts.remove(key);
        }
    }
    for part in ["labels", "annotations", "finalizers", "ownerReferences"] {
        keep(&mut secret["metadata"], &old["metadata"], part);
    }
    keep(secret, old, "immutable");
}

fn keep(object: &mut Value, old: &Value, field: &str) {
    let Some(object) = object.as_object_mut() else { return };
    match old.get(field) {
        Some(value) => drop(object.insert(field.to_owned(), value.clone())),
        None => drop(object.remove(field)),
    }
}

/// Why the MachineDeployment of a pool cannot be scaled to a number of machines: a quantity that is rejected in the Cluster
/// is also rejected here, because scaling takes effect before the quantity of the pool is updated.
pub fn scale_refused(
    cluster: &Cluster,
    deployment: &str,
    replicas: i32,
    control_plane: Option<&RKEControlPlane>,
    machines: &[Machine],
) -> Option<String> {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let config = scale::with_quantity(name, cluster.spec.rke_config.as_ref()?, deployment, replicas)?;
    let holders = state::state_holders(control_plane, machines);
    problems::too_many_servers(&config).or_else(|| state::no_state_left(&config, &holders))
}

/// Why machines cannot be deleted: they are the last etcd machines of their cluster.
pub fn last_etcd(
    cluster: &Cluster,
    control_plane: Option<&RKEControlPlane>,
    machines: &[Machine],
    goes: impl Fn(&Machine) -> bool,
) -> Option<String> {
    let mut etcd = machines.iter().filter(|machine| state::holds_state(machine)).peekable();
    let at_stake = cluster.metadata.deletion_timestamp.is_none() && state::has_run(control_plane);
    if !at_stake || etcd.peek().is_none() || etcd.any(|machine| !goes(machine)) {
        return None;
    }
    let key = ObjectKey::of(cluster);
    Some(format!(
        "cluster {key} has no other etcd machine, and all data in it would be lost; if that is intended, delete \
         clusters.provisioning.cattle.io {}",
        key.name
    ))
}

/// Why a Cluster API object of a cluster cannot be deleted on its own.
pub fn would_be_recreated(cluster: &Cluster) -> Option<String> {
    let key = ObjectKey::of(cluster);
    cluster.metadata.deletion_timestamp.is_none().then(|| {
        format!(
            "it is part of clusters.provisioning.cattle.io {}, which would recreate it with new machines and \
             without its data; delete that instead",
            key.name
        )
    })
}

/// The Secret that a `cloudCredentialSecretName` refers to: in the cluster's namespace, except for shared credentials.
pub fn credential_key(namespace: &str, name: &str) -> ObjectKey {
    match name.split_once(':') {
        Some((SHARED_CREDENTIALS, name)) => ObjectKey::new(SHARED_CREDENTIALS, name),
        _ => ObjectKey::new(namespace, name),
    }
}

fn pools_of(cluster: &Cluster) -> impl Iterator<Item = &RKEMachinePool> {
    cluster.spec.rke_config.iter().flat_map(|config| &config.machine_pools)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(own: &str, pool: &str) -> Cluster {
        serde_json::from_value(json!({
            "metadata": {"namespace": "team", "name": "demo"},
            "spec": {"cloudCredentialSecretName": own, "rkeConfig": {"machinePools": [{
                "name": "w", "cloudCredentialSecretName": pool,
                "machineConfigRef": {"kind": "LocalConfig", "name": "c"},
            }]}},
        }))
        .unwrap()
    }

    fn driver(name: &str, active: bool) -> NodeDriver {
        let mut driver = NodeDriver::new(name, Default::default());
        driver.spec.active = active;
        driver
    }

    #[test]
    fn provisioning_check_23_a_driver_is_in_use_by_pools_and_machines() {
        let (local, other) = (driver("local", true), driver("other", true));
        let clusters = [cluster("", "")];
        let said = driver_in_use(&local, &clusters, &[]).unwrap();
        assert!(said.contains("\"w\"") && said.contains("team/demo"), "{said}");
        assert_eq!(driver_in_use(&other, &clusters, &[]), None);
        let mut foreign = cluster("", "");
        foreign.spec.rke_config.as_mut().unwrap().machine_pools[0].machine_config_ref.api_version =
            Some("infrastructure.cluster.x-k8s.io/v1beta2".into());
        assert_eq!(driver_in_use(&local, &[foreign], &[]), None);
        let machine: Machine = serde_json::from_value(json!({
            "metadata": {"namespace": "team", "name": "m1"},
            "spec": {"clusterName": "demo", "bootstrap": {},
                "infrastructureRef": {"apiGroup": "rke-machine.cattle.io", "kind": "LocalMachine", "name": "m1"}},
        }))
        .unwrap();
        assert!(driver_in_use(&local, &[], std::slice::from_ref(&machine)).unwrap().contains("team/m1"));
        assert_eq!(driver_in_use(&other, &[], &[machine]), None);
        assert!(ends_driver(&local, &driver("local", false)) && ends_driver(&local, &other));
        assert!(!ends_driver(&local, &local) && !ends_driver(&driver("local", false), &local));
    }

    #[test]
    fn an_agent_changes_neither_its_plan_nor_its_marks() {
        let old =
            json!({"metadata": {"labels": {"a": "b"}}, "data": {"plan": "cA==", "failure-count": "MA=="}});
        let mut new = json!({
            "metadata": {"labels": {"a": "c"}},
            "data": {"plan": "eA==", "appliedPlan": "eA==", "max-failures": "eA==", "failure-count": "MQ=="},
            "stringData": {"plan": "x", "success-count": "1"},
        });
        keep_marks(&mut new, &old);
        let wanted = json!({
            "metadata": {"labels": {"a": "b"}},
            "data": {"plan": "cA==", "failure-count": "MQ=="},
            "stringData": {"success-count": "1"},
        });
        assert_eq!(new, wanted);
        let mut emptied = json!({"metadata": {}});
        keep_marks(&mut emptied, &old);
        assert_eq!(emptied["data"], json!({"plan": "cA=="}));
    }

    #[test]
    fn provisioning_check_38_a_credential_that_only_a_pool_refers_to_is_in_use() {
        let secret = ObjectKey::new("team", "mine");
        let said = credential_in_use(&secret, &[cluster("", "mine")]).unwrap();
        assert!(said.contains("machine pool \"w\" of cluster team/demo"), "{said}");
        assert!(credential_in_use(&secret, &[cluster("mine", "")]).is_some());
        assert_eq!(credential_in_use(&ObjectKey::new("other", "mine"), &[cluster("mine", "mine")]), None);
        let shared = ObjectKey::new("cattle-global-data", "cc-1");
        assert!(credential_in_use(&shared, &[cluster("", "cattle-global-data:cc-1")]).is_some());
        assert_eq!(credential_in_use(&shared, &[cluster("", "cc-1")]), None);
    }
}
