//! The MachineHealthCheck of a pool. Pure.

use drover_api::capi::v1beta2::{
    MachineHealthCheck, MachineHealthCheckChecks, MachineHealthCheckRemediation,
    MachineHealthCheckRemediationTriggerIf, MachineHealthCheckSpec, UnhealthyNodeCondition,
};
use drover_api::provisioning::v1::RKEMachinePool;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::deployment_name;
use super::duration::seconds;
use crate::keys::labels;

/// How long a Node may take to register, if the pool does not say.
const NODE_STARTUP_SECONDS: i32 = 600;

/// The MachineHealthCheck of a pool, if it wants one.
pub fn health_check(namespace: &str, cluster: &str, pool: &RKEMachinePool) -> Option<MachineHealthCheck> {
    let timeout = seconds(pool.unhealthy_node_timeout.as_deref()).filter(|seconds| *seconds > 0)?;
    let name = deployment_name(cluster, &pool.name);
    let startup = seconds(pool.node_startup_timeout.as_deref()).unwrap_or(NODE_STARTUP_SECONDS);
    let unhealthy = |status: &str| UnhealthyNodeCondition {
        type_: "Ready".into(),
        status: status.to_owned(),
        timeout_seconds: timeout,
    };
    let limit = pool.max_unhealthy.as_deref().filter(|limit| !limit.is_empty());
    let trigger = MachineHealthCheckRemediationTriggerIf {
        unhealthy_in_range: pool.unhealthy_range.clone().filter(|range| !range.is_empty()),
        unhealthy_less_than_or_equal_to: limit.map(|limit| {
            limit.parse().map_or_else(|_| IntOrString::String(limit.to_owned()), IntOrString::Int)
        }),
    };
    let is_limited =
        trigger.unhealthy_in_range.is_some() || trigger.unhealthy_less_than_or_equal_to.is_some();
    let selected = [(labels::capi::DEPLOYMENT_NAME.to_owned(), name.clone())];
    let spec = MachineHealthCheckSpec {
        cluster_name: cluster.to_owned(),
        selector: LabelSelector { match_labels: Some(selected.into()), ..LabelSelector::default() },
        checks: Some(MachineHealthCheckChecks {
            node_startup_timeout_seconds: Some(startup),
            unhealthy_node_conditions: vec![unhealthy("Unknown"), unhealthy("False")],
            ..MachineHealthCheckChecks::default()
        }),
        remediation: is_limited.then(|| MachineHealthCheckRemediation {
            trigger_if: Some(trigger),
            ..MachineHealthCheckRemediation::default()
        }),
    };
    let mut check = MachineHealthCheck::new(&name, spec);
    check.metadata.namespace = Some(namespace.to_owned());
    check.metadata.labels = Some([(labels::capi::CLUSTER_NAME.to_owned(), cluster.to_owned())].into());
    Some(check)
}
