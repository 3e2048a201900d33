//! Which pools hold the state of a cluster, and must not be removed before it. Pure.

use std::collections::BTreeSet;

use drover_api::capi::v1beta2::Machine;
use drover_api::provisioning::v1::{RKEConfig, RKEMachinePool};
use drover_api::rke::v1::RKEControlPlane;

use crate::conditions as generic;
use crate::keys::{conditions, labels};

/// All state of a running cluster is on its etcd machines: the last of them is deleted with the Cluster, not by a change
/// of a pool's quantity or name. `holders` are the pools of which one must remain, if any.
pub fn no_state_left(config: &RKEConfig, holders: &BTreeSet<String>) -> Option<String> {
    let stays =
        |pool: &RKEMachinePool| pool.etcd_role && pool.quantity != Some(0) && holders.contains(&pool.name);
    if holders.is_empty() || config.machine_pools.iter().any(stays) {
        return None;
    }
    let names: Vec<&str> = holders.iter().map(String::as_str).collect();
    Some(format!(
        "spec.rkeConfig.machinePools: no machine with etcdRole would be left of pool {}, and everything in the cluster would be \
         lost with the last one: keep the pool, its role and a quantity of 1, or delete the Cluster if that is what you want",
        names.join(" or ")
    ))
}

/// The pools whose machines are all that holds the state of a cluster that has run.
pub fn state_holders<'a>(
    control_plane: Option<&RKEControlPlane>,
    machines: impl IntoIterator<Item = &'a Machine>,
) -> BTreeSet<String> {
    let mut pools = BTreeSet::new();
    for machine in machines.into_iter().filter(|machine| holds_state(machine)) {
        let pool = machine.metadata.labels.as_ref().and_then(|labels| labels.get(labels::MACHINE_POOL_NAME));
        match pool {
            Some(pool) => pools.insert(pool.clone()),
            // A custom machine also holds the state.
            None => return BTreeSet::new(),
        };
    }
    if has_run(control_plane) { pools } else { BTreeSet::new() }
}

/// Whether there was something in the cluster once.
pub fn has_run(control_plane: Option<&RKEControlPlane>) -> bool {
    let status = control_plane.and_then(|plane| plane.status.as_ref());
    status.is_some_and(|status| generic::is_true(&status.conditions, conditions::BOOTSTRAPPED))
}

/// An etcd machine that is to stay.
pub fn holds_state(machine: &Machine) -> bool {
    let role = machine.metadata.labels.as_ref().and_then(|labels| labels.get(labels::ETCD_ROLE));
    role.is_some_and(|role| role == "true") && machine.metadata.deletion_timestamp.is_none()
}
