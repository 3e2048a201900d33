//! The status of a MachineSet. Pure.

use std::sync::Arc;

use drover_api::capi::v1beta2::{
    Machine, MachineSetDeprecatedStatus, MachineSetStatus, MachineSetV1Beta1DeprecatedStatus,
};
use drover_api::conditions::{reasons, types, v1beta1_reasons, v1beta1_types};
use drover_runtime::conditions::{FALSE, TRUE, get, is_true, merge, new, set};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::decide::{Action, Decision, machine_labels};
use super::scope::Scope;
use crate::conditions::{
    self, READY, Severity, UP_TO_DATE, aggregate, merge_old, old_false, old_summary, old_true,
};
use crate::meta;
use crate::waits::{DELETION_COMPLETED, Hold};

/// How many Machines have a condition.
pub fn count(machines: &[Arc<Machine>], type_: &str) -> i32 {
    let has = |machine: &&Arc<Machine>| {
        machine.status.as_ref().is_some_and(|status| is_true(&status.conditions, type_))
    };
    i32::try_from(machines.iter().filter(has).count()).unwrap_or(i32::MAX)
}

/// A condition of a Machine.
pub fn machine_condition<'a>(machine: &'a Machine, type_: &str) -> Option<&'a Condition> {
    get(&machine.status.as_ref()?.conditions, type_)
}

/// The status to apply; `error` is the one that stopped the pass, if any.
pub fn status(scope: &Scope, decision: &Decision, error: Option<&str>, now: Timestamp) -> MachineSetStatus {
    let live = scope.set.status.clone().unwrap_or_default();
    if decision.paused {
        let mut conditions = live.conditions.clone();
        let cluster_paused = scope.cluster.as_ref().is_some_and(|cluster| cluster.spec.paused == Some(true));
        set(&mut conditions, conditions::paused(true, cluster_paused), now);
        return MachineSetStatus { conditions, ..live };
    }
    let machines = &scope.machines;
    let total = i32::try_from(machines.len()).unwrap_or(i32::MAX);
    let wanted = vec![
        scaling_up(scope, decision, error),
        scaling_down(scope),
        machines_condition(types::MACHINES_READY, types::READY, READY, machines),
        machines_condition(types::MACHINES_UP_TO_DATE, types::UP_TO_DATE, UP_TO_DATE, machines),
        remediating(decision),
        deleting(scope, error),
        conditions::paused(false, false),
    ];
    let ready = count(machines, types::READY);
    let available = count(machines, types::AVAILABLE);
    let template = machine_labels(&scope.set);
    let labelled =
        machines.iter().filter(|machine| template.iter().all(|(k, v)| machine.labels().get(k) == Some(v)));
    let old = live.deprecated.as_ref().and_then(|d| d.v1beta1.as_ref()).map_or(&[][..], |s| &s.conditions);
    MachineSetStatus {
        selector: Some(meta::selector_string(&scope.set.spec.selector))
            .filter(|selector| !selector.is_empty()),
        replicas: Some(total),
        ready_replicas: Some(ready),
        available_replicas: Some(available),
        up_to_date_replicas: Some(count(machines, types::UP_TO_DATE)),
        conditions: merge(&live.conditions, wanted, now),
        deprecated: Some(MachineSetDeprecatedStatus {
            v1beta1: Some(MachineSetV1Beta1DeprecatedStatus {
                ready_replicas: Some(count(machines, types::NODE_READY)),
                available_replicas: Some(available),
                fully_labeled_replicas: i32::try_from(labelled.count()).ok(),
                conditions: merge_old(old, older(scope, decision, error, ready), now),
                ..Default::default()
            }),
        }),
        observed_generation: if error.is_none() {
            scope.set.metadata.generation
        } else {
            live.observed_generation
        },
    }
}

fn scaling_up(scope: &Scope, decision: &Decision, error: Option<&str>) -> Condition {
    let type_ = types::SCALING_UP;
    let Some(wanted) = scope.set.spec.replicas else {
        return new(
            type_,
            drover_runtime::conditions::UNKNOWN,
            reasons::WAITING_FOR_REPLICAS_SET,
            "spec.replicas is not set",
        );
    };
    let present = i32::try_from(scope.machines.len()).unwrap_or(i32::MAX);
    if scope.is_deleting() || present >= wanted {
        return new(type_, FALSE, reasons::NOT_SCALING_UP, "");
    }
    let mut message = format!("Scaling up from {present} to {wanted} replicas");
    let creating = decision.actions.iter().any(|action| matches!(action, Action::Create(_)));
    let blocked = decision.blocked.as_ref().map(Hold::to_string);
    let trouble = blocked.as_deref().or(if creating { error } else { None });
    if let Some(why) = trouble {
        message.push_str(&format!(" is blocked because:\n* {why}"));
    }
    new(type_, TRUE, reasons::SCALING_UP, message)
}

fn scaling_down(scope: &Scope) -> Condition {
    let present = i32::try_from(scope.machines.len()).unwrap_or(i32::MAX);
    let wanted = if scope.is_deleting() { 0 } else { scope.set.spec.replicas.unwrap_or(present) };
    if present <= wanted {
        return new(types::SCALING_DOWN, FALSE, reasons::NOT_SCALING_DOWN, "");
    }
    new(
        types::SCALING_DOWN,
        TRUE,
        reasons::SCALING_DOWN,
        format!("Scaling down from {present} to {wanted} replicas"),
    )
}

/// Aggregates a condition of all Machines.
pub fn machines_condition(
    type_: &str,
    source: &str,
    reasons_: [&str; 3],
    machines: &[Arc<Machine>],
) -> Condition {
    if machines.is_empty() {
        return new(type_, TRUE, reasons::NO_REPLICAS, "");
    }
    let names: Vec<String> = machines.iter().map(|machine| machine.name_any()).collect();
    let objects =
        names.iter().zip(machines).map(|(name, machine)| (name.as_str(), machine_condition(machine, source)));
    aggregate(type_, reasons_, ("Machine", "Machines"), false, objects)
}

fn remediating(decision: &Decision) -> Condition {
    if decision.remediating.is_empty() {
        return new(types::REMEDIATING, FALSE, reasons::NOT_REMEDIATING, "");
    }
    let message = format!("replacing unhealthy Machines {}", decision.remediating.join(", "));
    new(types::REMEDIATING, TRUE, reasons::REMEDIATING, message)
}

fn deleting(scope: &Scope, error: Option<&str>) -> Condition {
    if !scope.is_deleting() {
        return conditions::not_deleting();
    }
    match (error, scope.machines.len()) {
        (Some(error), _) => new(types::DELETING, TRUE, reasons::INTERNAL_ERROR, error),
        (None, 0) => new(types::DELETING, TRUE, reasons::DELETION_COMPLETED, DELETION_COMPLETED),
        (None, _) => {
            let names: Vec<String> = scope.machines.iter().map(|machine| machine.name_any()).collect();
            new(
                types::DELETING,
                TRUE,
                reasons::DELETING,
                format!("waiting for Machines {} to be deleted", names.join(", ")),
            )
        }
    }
}

fn older(
    scope: &Scope,
    decision: &Decision,
    error: Option<&str>,
    ready: i32,
) -> Vec<drover_api::capi::v1beta2::V1Beta1Condition> {
    let present = i32::try_from(scope.machines.len()).unwrap_or(i32::MAX);
    let wanted = scope.set.spec.replicas.unwrap_or(present);
    let mut list = Vec::new();
    list.push(match (error, &decision.blocked) {
        (Some(error), _) => old_false(
            v1beta1_types::MACHINES_CREATED,
            Severity::Error,
            v1beta1_reasons::MACHINE_CREATION_FAILED,
            error,
        ),
        (None, Some(why)) => old_false(
            v1beta1_types::MACHINES_CREATED,
            Severity::Error,
            v1beta1_reasons::PREFLIGHT_CHECK_FAILED,
            &why.to_string(),
        ),
        _ => old_true(v1beta1_types::MACHINES_CREATED),
    });
    list.push(match present.cmp(&wanted) {
        std::cmp::Ordering::Less => old_false(
            v1beta1_types::RESIZED,
            Severity::Warning,
            v1beta1_reasons::SCALING_UP,
            &format!("Scaling up MachineSet to {wanted} replicas (actual {present})"),
        ),
        std::cmp::Ordering::Greater => old_false(
            v1beta1_types::RESIZED,
            Severity::Warning,
            v1beta1_reasons::SCALING_DOWN,
            &format!("Scaling down MachineSet to {wanted} replicas (actual {present})"),
        ),
        std::cmp::Ordering::Equal => old_true(v1beta1_types::RESIZED),
    });
    list.push(if ready == present {
        old_true(v1beta1_types::MACHINES_READY)
    } else {
        let message = format!("{ready} of {present} Machines are ready");
        old_false(v1beta1_types::MACHINES_READY, Severity::Info, "WaitingForMachines", &message)
    });
    let summary = old_summary(&list);
    list.push(summary);
    list
}
