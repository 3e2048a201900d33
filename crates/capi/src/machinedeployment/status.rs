//! The status of a MachineDeployment. Pure.

use drover_api::capi::v1beta2::{
    MachineDeploymentDeprecatedStatus, MachineDeploymentStatus, MachineDeploymentV1Beta1DeprecatedStatus,
    MachineSet, V1Beta1Condition,
};
use drover_api::conditions::{reasons, types, v1beta1_reasons, v1beta1_types};
use drover_runtime::conditions::{FALSE, TRUE, get, merge, new, set};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::decide::Decision;
use super::scope::{Scope, Strategy};
use crate::conditions::{self, READY, Severity, UP_TO_DATE, merge_old, old_false, old_summary, old_true};
use crate::machineset::status::machines_condition;
use crate::meta;
use crate::waits::{DELETION_COMPLETED, Hold};

/// The status to apply; `error` is the one that stopped the pass, if any.
pub fn status(
    scope: &Scope,
    decision: &Decision,
    error: Option<&str>,
    now: Timestamp,
) -> MachineDeploymentStatus {
    let deployment = &scope.deployment;
    let live = deployment.status.clone().unwrap_or_default();
    if decision.paused {
        let mut conditions = live.conditions.clone();
        let cluster_paused = scope.cluster.as_ref().is_some_and(|cluster| cluster.spec.paused == Some(true));
        set(&mut conditions, conditions::paused(true, cluster_paused), now);
        return MachineDeploymentStatus { conditions, ..live };
    }
    let sum =
        |value: fn(&MachineSet) -> Option<i32>| scope.sets.iter().filter_map(|set| value(set)).sum::<i32>();
    let total = sum(|set| set.status.as_ref()?.replicas);
    let available = sum(|set| set.status.as_ref()?.available_replicas);
    let newest = scope.sets.iter().find(|set| decision.newest.as_deref() == Some(set.name_any().as_str()));
    let updated = newest.and_then(|set| set.status.as_ref()?.replicas).unwrap_or(0);
    let wanted = vec![
        availability(scope, available),
        machines_condition(types::MACHINES_READY, types::READY, READY, &scope.machines),
        machines_condition(types::MACHINES_UP_TO_DATE, types::UP_TO_DATE, UP_TO_DATE, &scope.machines),
        rolling_out(scope, decision),
        scaling_up(scope, decision, total, error),
        scaling_down(scope, total),
        remediating(scope),
        deleting(scope, error),
        conditions::paused(false, false),
    ];
    let old = live.deprecated.as_ref().and_then(|d| d.v1beta1.as_ref()).map_or(&[][..], |s| &s.conditions);
    MachineDeploymentStatus {
        selector: Some(meta::selector_string(&deployment.spec.selector))
            .filter(|selector| !selector.is_empty()),
        replicas: Some(total),
        ready_replicas: Some(sum(|set| set.status.as_ref()?.ready_replicas)),
        available_replicas: Some(available),
        up_to_date_replicas: Some(sum(|set| set.status.as_ref()?.up_to_date_replicas)),
        phase: Some(phase(scope, total).to_owned()),
        conditions: merge(&live.conditions, wanted, now),
        deprecated: Some(MachineDeploymentDeprecatedStatus {
            v1beta1: Some(MachineDeploymentV1Beta1DeprecatedStatus {
                ready_replicas: Some(sum(|set| {
                    set.status.as_ref()?.deprecated.as_ref()?.v1beta1.as_ref()?.ready_replicas
                })),
                available_replicas: Some(available),
                unavailable_replicas: Some((total.max(scope.replicas()) - available).max(0)),
                updated_replicas: Some(updated),
                conditions: merge_old(old, older(scope, available, newest.map(|set| &**set)), now),
            }),
        }),
        observed_generation: if error.is_none() {
            deployment.metadata.generation
        } else {
            live.observed_generation
        },
    }
}

fn phase(scope: &Scope, total: i32) -> &'static str {
    let wanted = scope.replicas();
    if scope.is_deleting() || total > wanted {
        "ScalingDown"
    } else if total < wanted {
        "ScalingUp"
    } else {
        "Running"
    }
}

/// Machines that must be available.
fn min_available(scope: &Scope) -> i32 {
    match scope.strategy() {
        Strategy::RollingUpdate { max_unavailable, .. } => scope.replicas() - max_unavailable,
        Strategy::OnDelete => scope.replicas(),
    }
}

fn availability(scope: &Scope, available: i32) -> Condition {
    let needed = min_available(scope);
    if available >= needed {
        return new(types::AVAILABLE, TRUE, reasons::AVAILABLE, "");
    }
    let message = format!("{available} available replicas, at least {needed} required");
    new(types::AVAILABLE, FALSE, reasons::NOT_AVAILABLE, message)
}

fn rolling_out(scope: &Scope, decision: &Decision) -> Condition {
    let old: Vec<&str> = scope
        .sets
        .iter()
        .filter(|set| decision.newest.as_deref() != Some(set.name_any().as_str()))
        .filter(|set| set.status.as_ref().and_then(|status| status.replicas).unwrap_or(0) > 0)
        .filter_map(|set| set.metadata.name.as_deref())
        .collect();
    if old.is_empty() || scope.is_deleting() {
        return new(types::ROLLING_OUT, FALSE, reasons::NOT_ROLLING_OUT, "");
    }
    let mut message = format!("replacing the Machines of MachineSet {}", old.join(", "));
    if let Some(why) = &decision.blocked {
        message.push_str(&format!(" is blocked because:\n* {why}"));
    }
    new(types::ROLLING_OUT, TRUE, reasons::ROLLING_OUT, message)
}

fn scaling_up(scope: &Scope, decision: &Decision, total: i32, error: Option<&str>) -> Condition {
    let wanted = scope.replicas();
    if scope.is_deleting() || total >= wanted {
        return new(types::SCALING_UP, FALSE, reasons::NOT_SCALING_UP, "");
    }
    let mut message = format!("Scaling up from {total} to {wanted} replicas");
    let blocked = decision.blocked.as_ref().map(Hold::to_string);
    if let Some(why) = blocked.as_deref().or(error) {
        message.push_str(&format!(" is blocked because:\n* {why}"));
    }
    new(types::SCALING_UP, TRUE, reasons::SCALING_UP, message)
}

fn scaling_down(scope: &Scope, total: i32) -> Condition {
    let wanted = if scope.is_deleting() { 0 } else { scope.replicas() };
    if total <= wanted {
        return new(types::SCALING_DOWN, FALSE, reasons::NOT_SCALING_DOWN, "");
    }
    new(
        types::SCALING_DOWN,
        TRUE,
        reasons::SCALING_DOWN,
        format!("Scaling down from {total} to {wanted} replicas"),
    )
}

fn remediating(scope: &Scope) -> Condition {
    let condition = |set: &MachineSet| get(&set.status.as_ref()?.conditions, types::REMEDIATING).cloned();
    let found = scope.sets.iter().filter_map(|set| condition(set)).find(|condition| condition.status == TRUE);
    found.unwrap_or_else(|| new(types::REMEDIATING, FALSE, reasons::NOT_REMEDIATING, ""))
}

fn deleting(scope: &Scope, error: Option<&str>) -> Condition {
    if !scope.is_deleting() {
        return conditions::not_deleting();
    }
    if let Some(error) = error {
        return new(types::DELETING, TRUE, reasons::INTERNAL_ERROR, error);
    }
    if scope.sets.is_empty() {
        return new(types::DELETING, TRUE, reasons::DELETION_COMPLETED, DELETION_COMPLETED);
    }
    let names: Vec<String> = scope.sets.iter().map(|set| set.name_any()).collect();
    new(
        types::DELETING,
        TRUE,
        reasons::DELETING,
        format!("waiting for MachineSets {} to be deleted", names.join(", ")),
    )
}

fn older(scope: &Scope, available: i32, newest: Option<&MachineSet>) -> Vec<V1Beta1Condition> {
    let needed = min_available(scope);
    let mut list = vec![
        if available >= needed {
            old_true(v1beta1_types::AVAILABLE)
        } else {
            old_false(
                v1beta1_types::AVAILABLE,
                Severity::Warning,
                v1beta1_reasons::WAITING_FOR_AVAILABLE_MACHINES,
                &format!("Minimum availability requires {needed} replicas, current {available} available"),
            )
        },
        if newest.is_some() {
            old_true(v1beta1_types::MACHINE_SET_READY)
        } else {
            old_false(
                v1beta1_types::MACHINE_SET_READY,
                Severity::Info,
                v1beta1_reasons::WAITING_FOR_MACHINE_SET,
                "MachineSet not found",
            )
        },
    ];
    let summary = old_summary(&list);
    list.push(summary);
    list
}
