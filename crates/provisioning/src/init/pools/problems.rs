//! What is wrong with machine pools. Pure.

use std::collections::BTreeSet;

use drover_api::provisioning::v1::{RKEConfig, RKEMachinePool};

use super::{is_reserved, nodemarks, parse_duration};

/// Where a pool stands in the Cluster, for messages.
pub fn path(index: usize, pool: &RKEMachinePool) -> String {
    let path = format!("spec.rkeConfig.machinePools[{index}]");
    if pool.name.is_empty() { path } else { format!("{path} ({})", pool.name) }
}

/// Everything that is wrong with the pools, each naming the pool and the field.
pub fn problems(config: &RKEConfig) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for (index, pool) in config.machine_pools.iter().enumerate() {
        let path = path(index, pool);
        let mut refuse = |why: &str| found.push(format!("{path}: {why}"));
        if pool.name.is_empty() {
            refuse("name is missing");
        } else if !seen.insert(&pool.name) {
            refuse("there is another pool of that name");
        } else if !is_dns_label(&pool.name) {
            refuse(DNS_LABEL);
        }
        if !pool.etcd_role && !pool.control_plane_role && !pool.worker_role {
            refuse("at least one of etcdRole, controlPlaneRole, workerRole must be true");
        }
        let reference = &pool.machine_config_ref;
        let empty = |field: &Option<String>| field.as_deref().unwrap_or_default().is_empty();
        if empty(&reference.name) || empty(&reference.kind) {
            refuse("machineConfigRef must name a machine config (kind and name)");
        }
        for (key, value) in &pool.labels {
            if is_reserved(key) {
                refuse(&format!("label {key} is set by Drover and cannot be set on a pool"));
            } else if let Err(why) = nodemarks::check_label(key, value) {
                refuse(&why);
            }
        }
        pool.taints
            .iter()
            .filter_map(|taint| nodemarks::check_taint(taint).err())
            .for_each(|why| refuse(&why));
        for (field, value) in [
            ("drainBeforeDeleteTimeout", &pool.drain_before_delete_timeout),
            ("nodeStartupTimeout", &pool.node_startup_timeout),
            ("unhealthyNodeTimeout", &pool.unhealthy_node_timeout),
        ] {
            let text = value.as_deref().unwrap_or_default();
            if !text.is_empty() && parse_duration(text).is_none() {
                refuse(&format!("{field} {text:?} is not a duration like 10m"));
            }
        }
    }
    found.extend(too_many_servers(config));
    found
}

pub(in crate::init) const DNS_LABEL: &str =
    "name must be at most 63 lower-case letters, digits and '-', and begin and end with a letter or digit";

/// Pools become parts of names and values of labels.
pub(in crate::init) fn is_dns_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    bytes.len() <= 63
        && bytes.iter().all(|byte| inner(*byte) || *byte == b'-')
        && bytes.first().is_some_and(|byte| inner(*byte))
        && bytes.last().is_some_and(|byte| inner(*byte))
}

/// The roles that no pool gives a machine. Machines that people bring themselves may have them, so that alone it is no
/// mistake.
pub fn missing_roles(config: &RKEConfig) -> Option<String> {
    let has = |role: fn(&RKEMachinePool) -> bool| {
        config.machine_pools.iter().any(|pool| pool.quantity != Some(0) && role(pool))
    };
    let missing: Vec<&str> = [
        ("etcdRole", has(|pool| pool.etcd_role)),
        ("controlPlaneRole", has(|pool| pool.control_plane_role)),
        ("workerRole", has(|pool| pool.worker_role)),
    ]
    .into_iter()
    .filter(|(_, there)| !there)
    .map(|(name, _)| name)
    .collect();
    if missing.is_empty() || config.machine_pools.is_empty() {
        return None;
    }
    let names = missing.join(" and ");
    Some(format!(
        "spec.rkeConfig.machinePools: no pool with machines has {names}, without which the cluster does not start: set \
         {names} to true in a pool with a quantity of at least 1, or register machines of your own with the role"
    ))
}

/// The only distribution there is keeps its state in one server: a second one would begin an empty cluster of its own.
pub fn too_many_servers(config: &RKEConfig) -> Option<String> {
    let servers = config.machine_pools.iter().filter(|pool| pool.etcd_role || pool.control_plane_role);
    let count: i64 = servers.map(|pool| i64::from(pool.quantity.unwrap_or(1))).sum();
    (count > 1).then(|| {
        format!(
            "spec.rkeConfig.machinePools: {count} machines have etcdRole or controlPlaneRole, but the simulated distribution \
             runs one server per cluster: set quantity to 1 in one such pool, and give it both roles"
        )
    })
}
