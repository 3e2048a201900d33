//! The status of a Cluster. Pure.

use std::sync::Arc;

use drover_api::capi::v1beta2::{
    ClusterInitializationStatus, ClusterStatus, Machine, MachineDeployment, MachineDeprecatedStatus,
    MachineV1Beta1DeprecatedStatus, ReplicaCounters, V1Beta1Condition,
};
use drover_api::conditions::{reasons, types, v1beta1_reasons, v1beta1_types};
use drover_runtime::conditions::{FALSE, TRUE, get, merge, new, set};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::decide::Decision;
use super::scope::Scope;
use crate::conditions::{
    self, AVAILABLE, INVALID_CONFIGURATION, Part, READY, Severity, UP_TO_DATE, aggregate, external_condition,
    merge_old, old_false, old_summary, old_true,
};
use crate::machineset::status::{count, machines_condition};
use crate::waits::{Hold, Subject};

/// The status to apply; `error` is the one that stopped the pass, if any.
pub fn status(scope: &Scope, decision: &Decision, error: Option<&str>, now: Timestamp) -> ClusterStatus {
    let cluster = &scope.cluster;
    let live = cluster.status.clone().unwrap_or_default();
    if decision.paused {
        let mut conditions = live.conditions.clone();
        set(&mut conditions, conditions::paused(true, cluster.spec.paused == Some(true)), now);
        return ClusterStatus { conditions, ..live };
    }
    let control_plane_machines: Vec<Arc<Machine>> = scope.control_plane_machines().cloned().collect();
    let workers: Vec<Arc<Machine>> = scope.worker_machines().cloned().collect();
    let mut wanted = vec![
        remote_connection(scope),
        infrastructure_ready(scope, decision),
        control_plane_initialized(scope, decision),
        control_plane_available(scope, decision),
        machines_condition(types::CONTROL_PLANE_MACHINES_READY, types::READY, READY, &control_plane_machines),
        machines_condition(
            types::CONTROL_PLANE_MACHINES_UP_TO_DATE,
            types::UP_TO_DATE,
            UP_TO_DATE,
            &control_plane_machines,
        ),
        workers_available(scope),
        machines_condition(types::WORKER_MACHINES_READY, types::READY, READY, &workers),
        machines_condition(types::WORKER_MACHINES_UP_TO_DATE, types::UP_TO_DATE, UP_TO_DATE, &workers),
        any_of(scope, types::ROLLING_OUT, reasons::ROLLING_OUT, reasons::NOT_ROLLING_OUT),
        any_of(scope, types::SCALING_UP, reasons::SCALING_UP, reasons::NOT_SCALING_UP),
        any_of(scope, types::SCALING_DOWN, reasons::SCALING_DOWN, reasons::NOT_SCALING_DOWN),
        any_of(scope, types::REMEDIATING, reasons::REMEDIATING, reasons::NOT_REMEDIATING),
        deleting(decision, error),
        conditions::paused(false, false),
    ];
    let mut known = wanted.clone();
    known.extend(live.conditions.iter().filter(|c| !wanted.iter().any(|w| w.type_ == c.type_)).cloned());
    wanted.push(available(scope, &known));
    let old = live.deprecated.as_ref().and_then(|d| d.v1beta1.as_ref()).map_or(&[][..], |s| &s.conditions);
    let initialization = ClusterInitializationStatus {
        infrastructure_provisioned: decision.infrastructure_provisioned.then_some(true),
        control_plane_initialized: decision.control_plane_initialized.then_some(true),
    };
    ClusterStatus {
        phase: Some(phase(scope, decision).to_owned()),
        initialization: (initialization != ClusterInitializationStatus::default()).then_some(initialization),
        failure_domains: decision.failure_domains.clone(),
        control_plane: control_plane_counters(scope, &control_plane_machines),
        workers: Some(worker_counters(scope)),
        conditions: merge(&live.conditions, wanted, now),
        deprecated: Some(MachineDeprecatedStatus {
            v1beta1: Some(MachineV1Beta1DeprecatedStatus {
                conditions: merge_old(old, older(decision), now),
                failure_reason: decision.failure.as_ref().map(|_| INVALID_CONFIGURATION.to_owned()),
                failure_message: decision.failure.as_ref().map(Hold::to_string),
            }),
        }),
        observed_generation: if error.is_none() {
            cluster.metadata.generation
        } else {
            live.observed_generation
        },
    }
}

fn phase(scope: &Scope, decision: &Decision) -> &'static str {
    let spec = &scope.cluster.spec;
    let endpoint = spec.control_plane_endpoint.as_ref().is_some_and(|e| e.host.is_some() && e.port.is_some());
    if scope.is_deleting() {
        "Deleting"
    } else if decision.infrastructure_provisioned && endpoint {
        "Provisioned"
    } else if spec.infrastructure_ref.is_some() || spec.control_plane_ref.is_some() {
        "Provisioning"
    } else {
        "Pending"
    }
}

fn remote_connection(scope: &Scope) -> Condition {
    let type_ = types::REMOTE_CONNECTION_PROBE;
    let live = scope.cluster.status.as_ref().and_then(|status| get(&status.conditions, type_));
    match (&scope.disconnected, live) {
        (None, _) => new(type_, TRUE, reasons::PROBE_SUCCEEDED, ""),
        (Some(lost), Some(known)) if lost.expected => known.clone(),
        (Some(lost), _) => {
            new(type_, FALSE, reasons::PROBE_FAILED, Hold::Disconnected(lost.why.to_string()).to_string())
        }
    }
}

fn infrastructure_ready(scope: &Scope, decision: &Decision) -> Condition {
    let type_ = types::INFRASTRUCTURE_READY;
    let Some(reference) = &scope.cluster.spec.infrastructure_ref else {
        return match &scope.cluster.spec.topology {
            None => new(type_, TRUE, reasons::READY, ""),
            Some(_) => new(type_, FALSE, reasons::OBJECT_DOES_NOT_EXIST, Hold::NoTopology.to_string()),
        };
    };
    let subject = Subject::from(reference);
    let waiting = Hold::NotProvisioned(subject.clone());
    external_condition(
        type_,
        types::READY,
        READY,
        &scope.infra,
        &subject,
        decision.infrastructure_provisioned,
        waiting,
    )
}

fn control_plane_initialized(scope: &Scope, decision: &Decision) -> Condition {
    let type_ = types::CONTROL_PLANE_INITIALIZED;
    if decision.control_plane_initialized {
        return new(type_, TRUE, reasons::INITIALIZED, "");
    }
    let waiting = match &scope.cluster.spec.control_plane_ref {
        Some(reference) => Hold::NotInitialized(reference.into()),
        None => Hold::NoControlPlaneNode,
    };
    new(type_, FALSE, reasons::NOT_INITIALIZED, waiting.to_string())
}

fn control_plane_available(scope: &Scope, decision: &Decision) -> Condition {
    let type_ = types::CONTROL_PLANE_AVAILABLE;
    let Some(reference) = &scope.cluster.spec.control_plane_ref else {
        return match decision.control_plane_initialized {
            true => new(type_, TRUE, reasons::AVAILABLE, ""),
            false => new(type_, FALSE, reasons::NOT_AVAILABLE, Hold::ControlPlaneNotInitialized.to_string()),
        };
    };
    let subject = Subject::from(reference);
    let waiting = Hold::NotInitialized(subject.clone());
    let done = decision.control_plane_initialized;
    external_condition(type_, types::AVAILABLE, AVAILABLE, &scope.control_plane, &subject, done, waiting)
}

fn deployment_condition<'a>(deployment: &'a MachineDeployment, type_: &str) -> Option<&'a Condition> {
    get(&deployment.status.as_ref()?.conditions, type_)
}

fn workers_available(scope: &Scope) -> Condition {
    if scope.deployments.is_empty() {
        return new(types::WORKERS_AVAILABLE, TRUE, reasons::NO_WORKERS, "");
    }
    let objects = scope.deployments.iter().map(|deployment| {
        (
            deployment.metadata.name.as_deref().unwrap_or_default(),
            deployment_condition(deployment, types::AVAILABLE),
        )
    });
    aggregate(
        types::WORKERS_AVAILABLE,
        AVAILABLE,
        ("MachineDeployment", "MachineDeployments"),
        false,
        objects,
    )
}

/// True if it is true of the control plane or of any MachineDeployment.
fn any_of(scope: &Scope, type_: &str, yes: &str, no: &str) -> Condition {
    let mut lines = Vec::new();
    if let Some((status, _, message)) = scope.control_plane.provided().and_then(|cp| cp.condition(type_))
        && status == TRUE
    {
        let reference = scope.cluster.spec.control_plane_ref.clone().unwrap_or_default();
        lines.push(format!("* {} {}: {message}", reference.kind, reference.name));
    }
    for deployment in &scope.deployments {
        if let Some(condition) =
            deployment_condition(deployment, type_).filter(|condition| condition.status == TRUE)
        {
            lines.push(format!("* MachineDeployment {}: {}", deployment.name_any(), condition.message));
        }
    }
    if lines.is_empty() { new(type_, FALSE, no, "") } else { new(type_, TRUE, yes, lines.join("\n")) }
}

fn deleting(decision: &Decision, error: Option<&str>) -> Condition {
    let Some(stage) = &decision.stage else { return conditions::not_deleting() };
    if let Some(error) = error {
        return new(types::DELETING, TRUE, reasons::INTERNAL_ERROR, error);
    }
    new(types::DELETING, TRUE, stage.reason(), stage.to_string())
}

fn available(scope: &Scope, known: &[Condition]) -> Condition {
    let mut parts = vec![
        Part::must_not(types::DELETING),
        Part::must(types::REMOTE_CONNECTION_PROBE),
        Part::must(types::INFRASTRUCTURE_READY),
        Part::must(types::CONTROL_PLANE_AVAILABLE),
        Part::must(types::WORKERS_AVAILABLE),
    ];
    for gate in &scope.cluster.spec.availability_gates {
        let negative = gate.polarity.as_deref() == Some("Negative");
        parts.push(Part { type_: &gate.condition_type, negative, optional: false });
    }
    conditions::summary(types::AVAILABLE, AVAILABLE, &parts, known)
}

/// From the provider where it counts its Machines, else from the Machines that are labelled so.
fn control_plane_counters(scope: &Scope, machines: &[Arc<Machine>]) -> Option<ReplicaCounters> {
    if let Some(control_plane) = scope.control_plane.provided()
        && control_plane.integer("/status/replicas").is_some()
    {
        return Some(ReplicaCounters {
            desired_replicas: control_plane.integer("/spec/replicas"),
            replicas: control_plane.integer("/status/replicas"),
            ready_replicas: control_plane.integer("/status/readyReplicas"),
            available_replicas: control_plane.integer("/status/availableReplicas"),
            up_to_date_replicas: control_plane.integer("/status/upToDateReplicas"),
        });
    }
    (!machines.is_empty()).then(|| ReplicaCounters {
        desired_replicas: i32::try_from(machines.len()).ok(),
        replicas: i32::try_from(machines.len()).ok(),
        ready_replicas: Some(count(machines, types::READY)),
        available_replicas: Some(count(machines, types::AVAILABLE)),
        up_to_date_replicas: Some(count(machines, types::UP_TO_DATE)),
    })
}

fn worker_counters(scope: &Scope) -> ReplicaCounters {
    let sum = |value: fn(&MachineDeployment) -> Option<i32>| {
        Some(scope.deployments.iter().filter_map(|deployment| value(deployment)).sum())
    };
    ReplicaCounters {
        desired_replicas: sum(|deployment| deployment.spec.replicas),
        replicas: sum(|deployment| deployment.status.as_ref()?.replicas),
        ready_replicas: sum(|deployment| deployment.status.as_ref()?.ready_replicas),
        available_replicas: sum(|deployment| deployment.status.as_ref()?.available_replicas),
        up_to_date_replicas: sum(|deployment| deployment.status.as_ref()?.up_to_date_replicas),
    }
}

fn older(decision: &Decision) -> Vec<V1Beta1Condition> {
    let info = |type_, reason: &str| old_false(type_, Severity::Info, reason, "");
    let mut list = vec![
        match decision.infrastructure_provisioned {
            true => old_true(v1beta1_types::INFRASTRUCTURE_READY),
            false => info(v1beta1_types::INFRASTRUCTURE_READY, v1beta1_reasons::WAITING_FOR_INFRASTRUCTURE),
        },
        match decision.control_plane_initialized {
            true => old_true(v1beta1_types::CONTROL_PLANE_READY),
            false => info(v1beta1_types::CONTROL_PLANE_READY, v1beta1_reasons::WAITING_FOR_CONTROL_PLANE),
        },
        match decision.control_plane_initialized {
            true => old_true(v1beta1_types::CONTROL_PLANE_INITIALIZED),
            false => info(
                v1beta1_types::CONTROL_PLANE_INITIALIZED,
                v1beta1_reasons::WAITING_FOR_CONTROL_PLANE_PROVIDER_INITIALIZED,
            ),
        },
    ];
    let summary = old_summary(&list);
    list.push(summary);
    list
}
