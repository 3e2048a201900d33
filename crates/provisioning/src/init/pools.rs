//! Machine pools: what is wrong with them, and the MachineDeployment and MachineHealthCheck of each.

use std::collections::BTreeSet;

use drover_api::capi::v1beta2::Machine;
use drover_api::names::safe_concat_name;
use drover_api::provisioning::v1::{RKEConfig, RKEMachinePool};
use drover_api::rke::v1::RKEControlPlane;
use jiff::SignedDuration;
use serde_json::{Map, Value, json};

use super::nodemarks;
use crate::conditions as generic;
use crate::keys::{annotations, conditions, labels};

/// The quantity that was applied last, to tell a scaled MachineDeployment from a changed pool.
pub const APPLIED_QUANTITY: &str = "drover.io/applied-quantity";

/// Name of a pool's MachineDeployment.
pub fn deployment_name(cluster: &str, pool: &str) -> String {
    safe_concat_name(&[cluster, pool])
}

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

pub(super) const DNS_LABEL: &str =
    "name must be at most 63 lower-case letters, digits and '-', and begin and end with a letter or digit";

/// Pools become parts of names and values of labels.
pub(super) fn is_dns_label(name: &str) -> bool {
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

/// Everything that a running cluster knows is on its etcd machines: the last of them goes with the Cluster, not with a
/// number or a name. `holders` are the pools of which one has to stay, if any.
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
            // Somebody's own machine holds it too.
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

/// The configuration with another number of machines in the pool of a MachineDeployment.
pub fn with_quantity(
    cluster: &str,
    config: &RKEConfig,
    deployment: &str,
    quantity: i32,
) -> Option<RKEConfig> {
    let mut config = config.clone();
    let mut pools = config.machine_pools.iter_mut();
    pools.find(|pool| deployment_name(cluster, &pool.name) == deployment)?.quantity = Some(quantity);
    Some(config)
}

/// Labels that say what a machine is; a pool's own label must not change that.
pub fn is_reserved(key: &str) -> bool {
    [
        labels::ETCD_ROLE,
        labels::CONTROL_PLANE_ROLE,
        labels::WORKER_ROLE,
        labels::CLUSTER_NAME,
        labels::MACHINE_POOL_NAME,
        labels::capi::CLUSTER_NAME,
        labels::capi::DEPLOYMENT_NAME,
        labels::capi::CONTROL_PLANE,
        labels::OS,
    ]
    .contains(&key)
}

/// A Go duration (`10m`, `1h30m`, `90s`) or a bare number of seconds.
pub fn parse_duration(text: &str) -> Option<SignedDuration> {
    if text == "0" {
        return Some(SignedDuration::ZERO);
    }
    let mut rest = text;
    let mut total = 0.0_f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        total += number
            * match &rest[..end] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 0.001,
                "us" | "µs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &rest[end..];
    }
    SignedDuration::try_from_secs_f64(total).ok()
}

fn seconds(text: Option<&str>) -> Option<i32> {
    let duration = parse_duration(text.filter(|text| !text.is_empty())?)?;
    Some(i32::try_from(duration.as_secs()).unwrap_or(i32::MAX))
}

/// Where a pool's machines come from.
pub struct References {
    pub infrastructure: Value,
    pub bootstrap_template: String,
}

/// The MachineDeployment of a pool.
pub fn machine_deployment(
    namespace: &str,
    cluster: &str,
    pool: &RKEMachinePool,
    defaults: Option<i64>,
    refs: &References,
) -> Value {
    let name = deployment_name(cluster, &pool.name);
    let os = if pool.machine_os.is_empty() { "linux" } else { &pool.machine_os };
    let mut top_labels: Map<String, Value> = to_map(&pool.labels);
    top_labels.extend(to_map(&pool.machine_deployment_labels));
    top_labels.insert(labels::OS.into(), json!(os));
    top_labels.insert(labels::capi::CLUSTER_NAME.into(), json!(cluster));
    let mut notes = to_map(&pool.machine_deployment_annotations);
    for (key, size) in [
        (annotations::capi::AUTOSCALER_MIN_SIZE, pool.autoscaling_min_size),
        (annotations::capi::AUTOSCALER_MAX_SIZE, pool.autoscaling_max_size),
    ] {
        if let Some(size) = size {
            notes.insert(key.into(), json!(size.to_string()));
        }
    }

    let mut strategy = json!({"type": "RollingUpdate"});
    if let Some(rolling) = &pool.rolling_update {
        strategy["rollingUpdate"] = json!(rolling);
    }
    let mut machine_spec = json!({
        "clusterName": cluster,
        "bootstrap": {"configRef": {
            "apiGroup": "rke.cattle.io", "kind": "RKEBootstrapTemplate", "name": refs.bootstrap_template,
        }},
        "infrastructureRef": refs.infrastructure,
    });
    if let Some(limit) = seconds(pool.drain_before_delete_timeout.as_deref()) {
        machine_spec["deletion"] = json!({"nodeDrainTimeoutSeconds": limit});
    }
    let mut spec = json!({
        "clusterName": cluster,
        "selector": {"matchLabels": {
            labels::capi::CLUSTER_NAME: cluster, labels::capi::DEPLOYMENT_NAME: name,
        }},
        "rollout": {"strategy": strategy},
        "deletion": {"order": "Oldest"},
        "template": {
            "metadata": {
                "labels": template_labels(cluster, &name, pool, os),
                "annotations": template_annotations(pool, defaults),
            },
            "spec": machine_spec,
        },
    });
    if let Some(quantity) = pool.quantity {
        spec["replicas"] = json!(quantity);
    }
    if pool.paused {
        spec["paused"] = json!(true);
    }
    json!({
        "apiVersion": drover_api::capi::v1beta2::API_VERSION,
        "kind": "MachineDeployment",
        "metadata": {"namespace": namespace, "name": name, "labels": top_labels, "annotations": notes},
        "spec": spec,
    })
}

fn template_labels(cluster: &str, deployment: &str, pool: &RKEMachinePool, os: &str) -> Value {
    let mut all = to_map(&pool.labels);
    let mut set = |key: &str, value: &str| {
        all.insert(key.to_owned(), json!(value));
    };
    set(labels::capi::CLUSTER_NAME, cluster);
    set(labels::capi::DEPLOYMENT_NAME, deployment);
    set(labels::CLUSTER_NAME, cluster);
    set(labels::MACHINE_POOL_NAME, &pool.name);
    set(labels::OS, os);
    if pool.etcd_role {
        set(labels::ETCD_ROLE, "true");
    }
    if pool.control_plane_role {
        set(labels::CONTROL_PLANE_ROLE, "true");
        set(labels::capi::CONTROL_PLANE, "true");
    }
    if pool.worker_role {
        set(labels::WORKER_ROLE, "true");
    }
    Value::Object(all)
}

fn template_annotations(pool: &RKEMachinePool, default_limit: Option<i64>) -> Value {
    let mut notes = Map::new();
    if !pool.drain_before_delete {
        notes.insert(annotations::capi::EXCLUDE_NODE_DRAINING.into(), json!("true"));
    }
    if !pool.labels.is_empty() {
        notes.insert(annotations::LABELS.into(), json!(compact(&json!(pool.labels))));
    }
    if !pool.taints.is_empty() {
        notes.insert(annotations::TAINTS.into(), json!(compact(&json!(pool.taints))));
    }
    let limit = Some(pool.hostname_length_limit).filter(|limit| *limit > 0).or(default_limit);
    if let Some(limit) = limit.filter(|limit| *limit > 0) {
        notes.insert(annotations::HOSTNAME_LENGTH_LIMIT.into(), json!(limit.to_string()));
    }
    Value::Object(notes)
}

/// The MachineHealthCheck of a pool, if it wants one.
pub fn health_check(namespace: &str, cluster: &str, pool: &RKEMachinePool) -> Option<Value> {
    let timeout = seconds(pool.unhealthy_node_timeout.as_deref()).filter(|seconds| *seconds > 0)?;
    let name = deployment_name(cluster, &pool.name);
    let startup = seconds(pool.node_startup_timeout.as_deref()).unwrap_or(600);
    let mut spec = json!({
        "clusterName": cluster,
        "selector": {"matchLabels": {labels::capi::DEPLOYMENT_NAME: name}},
        "checks": {
            "nodeStartupTimeoutSeconds": startup,
            "unhealthyNodeConditions": [
                {"type": "Ready", "status": "Unknown", "timeoutSeconds": timeout},
                {"type": "Ready", "status": "False", "timeoutSeconds": timeout},
            ],
        },
    });
    let mut trigger = Map::new();
    if let Some(limit) = pool.max_unhealthy.as_deref().filter(|limit| !limit.is_empty()) {
        let limit = limit.parse::<i32>().map_or_else(|_| json!(limit), |number| json!(number));
        trigger.insert("unhealthyLessThanOrEqualTo".into(), limit);
    }
    if let Some(range) = pool.unhealthy_range.as_deref().filter(|range| !range.is_empty()) {
        trigger.insert("unhealthyInRange".into(), json!(range));
    }
    if !trigger.is_empty() {
        spec["remediation"] = json!({"triggerIf": trigger});
    }
    Some(json!({
        "apiVersion": drover_api::capi::v1beta2::API_VERSION,
        "kind": "MachineHealthCheck",
        "metadata": {
            "namespace": namespace, "name": name, "labels": {labels::capi::CLUSTER_NAME: cluster},
        },
        "spec": spec,
    }))
}

fn to_map(map: &std::collections::BTreeMap<String, String>) -> Map<String, Value> {
    map.iter().map(|(key, value)| (key.clone(), json!(value))).collect()
}

fn compact(value: &Value) -> String {
    String::from_utf8_lossy(&crate::digest::go_json(value)).into_owned()
}

/// Number of machines, as it is applied beside the rest of a MachineDeployment, under a manager of its own and only
/// when the pool's quantity changes: applied with everything else it would undo a scale that is not seen yet.
pub fn scale(pool: &RKEMachinePool) -> Value {
    let mut fields = json!({"metadata": {"annotations": {APPLIED_QUANTITY: quantity_text(pool.quantity)}}});
    if let Some(quantity) = pool.quantity {
        fields["spec"] = json!({"replicas": quantity});
    }
    fields
}

/// A quantity as it is noted.
pub fn quantity_text(quantity: Option<i32>) -> String {
    quantity.map(|quantity| quantity.to_string()).unwrap_or_default()
}

/// A MachineDeployment was scaled by someone (for instance by an autoscaler) while its pool stayed as it was:
/// the pool should follow. Returns the new quantity.
pub fn scaled_to(
    replicas: Option<i32>,
    applied_quantity: Option<&str>,
    quantity: Option<i32>,
) -> Option<i32> {
    let applied = applied_quantity?;
    let replicas = replicas?;
    let unchanged_pool = applied == quantity_text(quantity);
    // A pool without a quantity stands for one machine.
    (unchanged_pool && replicas != quantity.unwrap_or(1)).then_some(replicas)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_go_writes_them() {
        assert_eq!(parse_duration("10m"), Some(SignedDuration::from_mins(10)));
        assert_eq!(parse_duration("1h30m0s"), Some(SignedDuration::from_mins(90)));
        assert_eq!(parse_duration("0"), Some(SignedDuration::ZERO));
        assert_eq!(parse_duration("1.5s"), Some(SignedDuration::from_millis(1500)));
        for bad in ["ten", "10", "5x", "m"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }

    #[test]
    fn provisioning_check_14_a_scaled_deployment_is_followed_and_a_changed_pool_wins() {
        assert_eq!(scaled_to(Some(4), Some("2"), Some(2)), Some(4));
        assert_eq!(scaled_to(Some(2), Some("2"), Some(2)), None);
        assert_eq!(scaled_to(Some(4), Some("2"), Some(3)), None, "the pool changed as well");
        assert_eq!(scaled_to(Some(3), Some(""), None), Some(3), "no quantity before");
        assert_eq!(scaled_to(Some(1), Some(""), None), None);
        assert_eq!(scaled_to(Some(3), None, Some(2)), None, "nothing was applied yet");
    }
}
