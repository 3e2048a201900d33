//! Validation, with the path of each invalid field.

use drover_api::annotations::capi as annotations;
use drover_api::capi::v1beta2::{
    Cluster, ClusterNetwork, Machine, MachineDeployment, MachineHealthCheck, MachineNamingSpec, MachineSet,
    MachineSpec, MachineTemplateSpec,
};
use drover_api::labels::capi as labels;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use super::FieldError;
use crate::machineset::naming;
use crate::meta;
use crate::version::is_kubernetes_version;

type Errors = Vec<FieldError>;

const PREFLIGHT_CHECKS: [&str; 5] =
    ["All", "ControlPlaneIsStable", "ControlPlaneVersionSkew", "KubeadmVersionSkew", "KubernetesVersionSkew"];
const CONTROL_PLANE_TAINT: &str = "node-role.kubernetes.io/control-plane";

/// Validates a Cluster.
pub fn validate_cluster(new: &Cluster, old: Option<&Cluster>) -> Errors {
    let mut errors = Errors::new();
    label_name("metadata.name", &new.name_any(), &mut errors);
    let spec = &new.spec;
    if spec.infrastructure_ref.is_none() && spec.control_plane_ref.is_none() && spec.topology.is_none() {
        errors.push(FieldError::new(
            "spec",
            "must set at least one of infrastructureRef, controlPlaneRef, topology",
        ));
    }
    if let Some(old) = old {
        let removed = [
            (
                "spec.infrastructureRef",
                old.spec.infrastructure_ref.is_some(),
                spec.infrastructure_ref.is_none(),
            ),
            ("spec.controlPlaneRef", old.spec.control_plane_ref.is_some(), spec.control_plane_ref.is_none()),
            ("spec.topology", old.spec.topology.is_some(), spec.topology.is_none()),
        ];
        for (path, was, is_gone) in removed {
            if was && is_gone {
                errors.push(FieldError::new(path, "cannot be removed"));
            }
        }
    }
    networks(spec.cluster_network.as_ref(), &mut errors);
    errors
}

/// Validates a Machine.
pub fn validate_machine(new: &Machine, old: Option<&Machine>) -> Errors {
    let mut errors = Errors::new();
    let control_plane = meta::label(&new.metadata, labels::CONTROL_PLANE).is_some();
    machine_spec("spec", &new.spec, control_plane, &mut errors);
    immutable_cluster(&new.spec.cluster_name, old.map(|old| old.spec.cluster_name.as_str()), &mut errors);
    errors
}

/// Validates a MachineSet.
pub fn validate_machine_set(new: &MachineSet, old: Option<&MachineSet>) -> Errors {
    let mut errors = Errors::new();
    let spec = &new.spec;
    immutable_cluster(&spec.cluster_name, old.map(|old| old.spec.cluster_name.as_str()), &mut errors);
    template(&spec.cluster_name, &spec.selector, &spec.template, &mut errors);
    machine_naming(spec.machine_naming.as_ref(), &mut errors);
    preflight(&new.metadata, &mut errors);
    errors
}

/// Validates a MachineDeployment.
pub fn validate_machine_deployment(new: &MachineDeployment, old: Option<&MachineDeployment>) -> Errors {
    let mut errors = Errors::new();
    let spec = &new.spec;
    label_name("metadata.name", &new.name_any(), &mut errors);
    immutable_cluster(&spec.cluster_name, old.map(|old| old.spec.cluster_name.as_str()), &mut errors);
    template(&spec.cluster_name, &spec.selector, &spec.template, &mut errors);
    machine_naming(spec.machine_naming.as_ref(), &mut errors);
    preflight(&new.metadata, &mut errors);
    if let Some(strategy) = spec.rollout.as_ref().and_then(|rollout| rollout.strategy.as_ref()) {
        let path = "spec.rollout.strategy";
        match (strategy.type_.as_str(), &strategy.rolling_update) {
            ("RollingUpdate", Some(limits)) => {
                let path = format!("{path}.rollingUpdate");
                int_or_percent(&format!("{path}.maxSurge"), limits.max_surge.as_ref(), &mut errors);
                int_or_percent(
                    &format!("{path}.maxUnavailable"),
                    limits.max_unavailable.as_ref(),
                    &mut errors,
                );
                let zero = Some(&IntOrString::Int(0));
                if limits.max_surge.as_ref() == zero && limits.max_unavailable.as_ref() == zero {
                    errors.push(FieldError::new(
                        format!("{path}.maxUnavailable"),
                        "cannot be 0 when maxSurge is 0",
                    ));
                }
            }
            ("OnDelete", Some(_)) => {
                errors.push(FieldError::new(
                    format!("{path}.rollingUpdate"),
                    "may be set only with type RollingUpdate",
                ));
            }
            ("RollingUpdate" | "OnDelete", None) => {}
            _ => errors.push(FieldError::new(format!("{path}.type"), "must be RollingUpdate or OnDelete")),
        }
    }
    let in_flight = spec.remediation.as_ref().and_then(|remediation| remediation.max_in_flight.as_ref());
    int_or_percent("spec.remediation.maxInFlight", in_flight, &mut errors);
    errors
}

/// Validates a MachineHealthCheck.
pub fn validate_machine_health_check(new: &MachineHealthCheck, old: Option<&MachineHealthCheck>) -> Errors {
    let mut errors = Errors::new();
    let spec = &new.spec;
    immutable_cluster(&spec.cluster_name, old.map(|old| old.spec.cluster_name.as_str()), &mut errors);
    let labels_wanted = spec.selector.match_labels.clone().unwrap_or_default();
    if labels_wanted.is_empty() && spec.selector.match_expressions.as_ref().is_none_or(Vec::is_empty) {
        errors.push(FieldError::new("spec.selector", "must not be empty"));
    }
    if labels_wanted.get(labels::CLUSTER_NAME).is_some_and(|name| *name != spec.cluster_name) {
        errors.push(FieldError::new("spec.selector.matchLabels", "must not refer to another cluster"));
    }
    if let Some(seconds) = spec.checks.as_ref().and_then(|checks| checks.node_startup_timeout_seconds)
        && seconds != 0
        && seconds < 30
    {
        errors.push(FieldError::new("spec.checks.nodeStartupTimeoutSeconds", "must be 0 or at least 30"));
    }
    for (index, condition) in spec.checks.iter().flat_map(|c| &c.unhealthy_machine_conditions).enumerate() {
        let own = ["Ready", "Available", "HealthCheckSucceeded", "OwnerRemediated", "ExternallyRemediated"];
        if own.contains(&condition.type_.as_str()) {
            let path = format!("spec.checks.unhealthyMachineConditions[{index}].type");
            errors.push(FieldError::new(path, format!("{} is set by the check itself", condition.type_)));
        }
    }
    errors
}

fn template(cluster: &str, selector: &LabelSelector, template: &MachineTemplateSpec, errors: &mut Errors) {
    if template.spec.cluster_name != cluster {
        let message = format!("must be {cluster}, as spec.clusterName");
        errors.push(FieldError::new("spec.template.spec.clusterName", message));
    }
    let template_labels = template.metadata.as_ref().map(|meta| meta.labels.clone()).unwrap_or_default();
    if !meta::selects(selector, &template_labels) {
        errors.push(FieldError::new("spec.template.metadata.labels", "must match spec.selector"));
    }
    let control_plane = template_labels.contains_key(labels::CONTROL_PLANE);
    machine_spec("spec.template.spec", &template.spec, control_plane, errors);
}

fn machine_spec(path: &str, spec: &MachineSpec, control_plane: bool, errors: &mut Errors) {
    if spec.bootstrap.config_ref.is_none() && spec.bootstrap.data_secret_name.is_none() {
        errors.push(FieldError::new(format!("{path}.bootstrap"), "must set configRef or dataSecretName"));
    }
    if let Some(version) = spec.version.as_deref().filter(|version| !version.is_empty())
        && !is_kubernetes_version(version)
    {
        errors.push(FieldError::new(
            format!("{path}.version"),
            format!("{version:?} is not a version such as v1.34.1+k3s1"),
        ));
    }
    for (index, taint) in spec.taints.iter().enumerate() {
        if taint.key == CONTROL_PLANE_TAINT && !control_plane {
            let path = format!("{path}.taints[{index}].key");
            errors.push(FieldError::new(path, "is only for control-plane Machines"));
        }
    }
}

fn immutable_cluster(new: &str, old: Option<&str>, errors: &mut Errors) {
    if new.is_empty() {
        errors.push(FieldError::new("spec.clusterName", "must be set"));
    }
    if let Some(old) = old.filter(|old| *old != new) {
        errors.push(FieldError::new("spec.clusterName", format!("cannot be changed from {old} to {new}")));
    }
}

fn machine_naming(naming: Option<&MachineNamingSpec>, errors: &mut Errors) {
    if let Some(template) = naming.and_then(|naming| naming.template.as_deref())
        && let Err(message) = naming::check(template)
    {
        errors.push(FieldError::new("spec.machineNaming.template", message));
    }
}

fn preflight(metadata: &ObjectMeta, errors: &mut Errors) {
    let Some(skipped) = meta::annotation(metadata, annotations::SKIP_PREFLIGHT_CHECKS) else { return };
    for name in skipped.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        if !PREFLIGHT_CHECKS.contains(&name) {
            let path = format!("metadata.annotations[{}]", annotations::SKIP_PREFLIGHT_CHECKS);
            errors.push(FieldError::new(
                path,
                format!("unknown check {name}; use {}", PREFLIGHT_CHECKS.join(", ")),
            ));
        }
    }
}

fn int_or_percent(path: &str, value: Option<&IntOrString>, errors: &mut Errors) {
    let valid = match value {
        None => true,
        Some(IntOrString::Int(number)) => *number >= 0,
        Some(IntOrString::String(text)) => {
            text.strip_suffix('%').is_some_and(|number| number.parse::<u32>().is_ok())
        }
    };
    if !valid {
        errors.push(FieldError::new(path, "must be a whole number or a percentage such as 10%"));
    }
}

fn label_name(path: &str, name: &str, errors: &mut Errors) {
    if !meta::is_label_value(name) {
        errors.push(FieldError::new(
            path,
            "must be usable as a label value: at most 63 letters, digits, '-', '_', '.'",
        ));
    }
}

fn networks(network: Option<&ClusterNetwork>, errors: &mut Errors) {
    let Some(network) = network else { return };
    for (name, ranges) in [("pods", &network.pods), ("services", &network.services)] {
        for (index, cidr) in ranges.iter().flat_map(|ranges| &ranges.cidr_blocks).enumerate() {
            if !is_cidr(cidr) {
                let path = format!("spec.clusterNetwork.{name}.cidrBlocks[{index}]");
                errors.push(FieldError::new(path, format!("{cidr:?} is not a CIDR")));
            }
        }
    }
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let limit = match address.parse::<std::net::IpAddr>() {
        Ok(std::net::IpAddr::V4(_)) => 32,
        Ok(std::net::IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    bits.parse::<u8>().is_ok_and(|bits| bits <= limit)
}
