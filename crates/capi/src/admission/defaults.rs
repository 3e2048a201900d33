//! Default values of unset fields.

use std::collections::BTreeMap;

use drover_api::annotations::capi as annotations;
use drover_api::capi::v1beta2::{
    Machine, MachineDeployment, MachineDeploymentRolloutStrategyRollingUpdate, MachineHealthCheck,
    MachineSet, MachineSpec, MachineTemplateSpec,
};
use drover_api::labels::capi as labels;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use crate::meta;

const NODE_DELETION_TIMEOUT: i32 = 10;
const NODE_STARTUP_TIMEOUT: i32 = 600;

/// Sets defaults of a Machine.
pub fn default_machine(machine: &mut Machine) {
    let cluster = machine.spec.cluster_name.clone();
    label(&mut machine.metadata, labels::CLUSTER_NAME, &cluster);
    default_machine_spec(&mut machine.spec);
    let deletion = machine.spec.deletion.get_or_insert_default();
    deletion.node_deletion_timeout_seconds.get_or_insert(NODE_DELETION_TIMEOUT);
}

/// Sets defaults of a MachineSet; `old` is the object before an update.
pub fn default_machine_set(set: &mut MachineSet, old: Option<&MachineSet>) {
    let (cluster, name) = (set.spec.cluster_name.clone(), set.name_any());
    label(&mut set.metadata, labels::CLUSTER_NAME, &cluster);
    set.spec.replicas = default_replicas(&set.metadata, set.spec.replicas, old.map(|old| old.spec.replicas));
    default_machine_spec(&mut set.spec.template.spec);
    let deletion = set.spec.template.spec.deletion.get_or_insert_default();
    deletion.node_deletion_timeout_seconds.get_or_insert(NODE_DELETION_TIMEOUT);
    if is_empty(&set.spec.selector) {
        select(&mut set.spec.selector, &mut set.spec.template, labels::SET_NAME, &meta::label_value(&name));
    }
}

/// Sets defaults of a MachineDeployment; `old` is the object before an update.
pub fn default_machine_deployment(deployment: &mut MachineDeployment, old: Option<&MachineDeployment>) {
    let (cluster, name) = (deployment.spec.cluster_name.clone(), deployment.name_any());
    label(&mut deployment.metadata, labels::CLUSTER_NAME, &cluster);
    let spec = &mut deployment.spec;
    spec.replicas = default_replicas(&deployment.metadata, spec.replicas, old.map(|old| old.spec.replicas));
    default_machine_spec(&mut spec.template.spec);
    let deletion = spec.template.spec.deletion.get_or_insert_default();
    deletion.node_deletion_timeout_seconds.get_or_insert(NODE_DELETION_TIMEOUT);
    let strategy = spec.rollout.get_or_insert_default().strategy.get_or_insert_default();
    if strategy.type_.is_empty() {
        strategy.type_ = "RollingUpdate".to_owned();
    }
    if strategy.type_ == "RollingUpdate" {
        let limits = strategy
            .rolling_update
            .get_or_insert_with(MachineDeploymentRolloutStrategyRollingUpdate::default);
        limits.max_surge.get_or_insert(IntOrString::Int(1));
        limits.max_unavailable.get_or_insert(IntOrString::Int(0));
    }
    if is_empty(&spec.selector) {
        select(&mut spec.selector, &mut spec.template, labels::DEPLOYMENT_NAME, &name);
    }
    select(&mut spec.selector, &mut spec.template, labels::CLUSTER_NAME, &cluster);
}

/// Sets defaults of a MachineHealthCheck.
pub fn default_machine_health_check(check: &mut MachineHealthCheck) {
    let cluster = check.spec.cluster_name.clone();
    label(&mut check.metadata, labels::CLUSTER_NAME, &cluster);
    let checks = check.spec.checks.get_or_insert_default();
    checks.node_startup_timeout_seconds.get_or_insert(NODE_STARTUP_TIMEOUT);
}

fn default_machine_spec(spec: &mut MachineSpec) {
    if let Some(version) = &mut spec.version
        && !version.is_empty()
        && !version.starts_with('v')
    {
        version.insert(0, 'v');
    }
}

/// One, or a number within the autoscaler's bounds: the lower bound for a new object, otherwise the old value within
/// them.
fn default_replicas(metadata: &ObjectMeta, wanted: Option<i32>, old: Option<Option<i32>>) -> Option<i32> {
    if wanted.is_some() {
        return wanted;
    }
    let bound = |key| meta::annotation(metadata, key).and_then(|text| text.parse::<i32>().ok());
    let bounds = (bound(annotations::AUTOSCALER_MIN_SIZE), bound(annotations::AUTOSCALER_MAX_SIZE));
    Some(match (bounds, old.flatten()) {
        ((Some(min), Some(max)), Some(old)) if min <= max => old.clamp(min, max),
        ((Some(min), Some(_)), None) => min,
        (_, Some(old)) => old,
        _ => 1,
    })
}

fn is_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

fn select(selector: &mut LabelSelector, template: &mut MachineTemplateSpec, key: &str, value: &str) {
    selector.match_labels.get_or_insert_default().insert(key.to_owned(), value.to_owned());
    template.metadata.get_or_insert_default().labels.insert(key.to_owned(), value.to_owned());
}

fn label(metadata: &mut ObjectMeta, key: &str, value: &str) {
    metadata.labels.get_or_insert_default().insert(key.to_owned(), value.to_owned());
}
