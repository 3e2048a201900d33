//! The status of a Machine from scope and decision. Pure.

use drover_api::capi::v1beta2::{
    Machine, MachineDeletionStatus, MachineDeprecatedStatus, MachineInitializationStatus,
    MachineNodeReference, MachineStatus, MachineV1Beta1DeprecatedStatus, NodeSystemInfo, V1Beta1Condition,
};
use drover_api::conditions::{reasons, types, v1beta1_reasons, v1beta1_types};
use drover_runtime::conditions::{FALSE, TRUE, UNKNOWN, get, merge, new, whole_seconds};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;

use super::decide::Decision;
use super::deletion::Stage;
use super::scope::{NodeView, Scope};
use crate::conditions::{
    self, INVALID_CONFIGURATION, Part, READY, Severity, external_condition, merge_old, old, old_false,
    old_summary, old_true,
};
use crate::machinedeployment::template_differences;
use crate::waits::{Hold, Subject};

/// The status to apply; `error` is the one that stopped the pass, if any.
pub fn status(scope: &Scope, decision: &Decision, error: Option<&str>, now: Timestamp) -> MachineStatus {
    let machine = &scope.machine;
    let live = machine.status.clone().unwrap_or_default();
    let cluster_paused = scope.cluster.as_ref().is_some_and(|cluster| cluster.spec.paused == Some(true));
    if decision.paused {
        // The status of a paused object does not change, except for the condition `Paused`.
        let mut conditions = live.conditions.clone();
        drover_runtime::conditions::set(&mut conditions, conditions::paused(true, cluster_paused), now);
        return MachineStatus { conditions: owned(conditions), ..live };
    }

    let mut wanted = vec![
        bootstrap_ready(scope, decision),
        infrastructure_ready(scope, decision),
        node_ready(scope, decision),
        node_healthy(scope, decision),
        deleting(decision, error),
        new(types::UPDATING, FALSE, reasons::NOT_UPDATING, ""),
        conditions::paused(false, false),
    ];
    wanted.extend(up_to_date(scope, now));
    let mut known = wanted.clone();
    known.extend(live.conditions.iter().filter(|c| !wanted.iter().any(|w| w.type_ == c.type_)).cloned());
    let ready = ready(machine, &known);
    wanted.push(available(machine, &ready, &live.conditions, now));
    wanted.push(ready);

    let phase = phase(scope, decision);
    let changed = live.phase.as_deref() != Some(phase);
    MachineStatus {
        addresses: decision.addresses.clone(),
        certificates_expiry_date: live.certificates_expiry_date.clone(),
        conditions: merge(&live.conditions, wanted, now),
        deletion: deletion_status(&live, decision, now),
        deprecated: Some(MachineDeprecatedStatus {
            v1beta1: Some(MachineV1Beta1DeprecatedStatus {
                conditions: merge_old(old_conditions(&live), older(scope, decision), now),
                failure_reason: decision.failure.as_ref().map(|_| INVALID_CONFIGURATION.to_owned()),
                failure_message: decision.failure.as_ref().map(Hold::to_string),
            }),
        }),
        failure_domain: decision.failure_domain.clone(),
        initialization: initialization(decision),
        last_updated: if changed { Some(Time(whole_seconds(now))) } else { live.last_updated.clone() },
        node_info: node_info(&scope.node).or_else(|| live.node_info.clone()),
        node_ref: decision.node_name.clone().map(|name| MachineNodeReference { name }),
        observed_generation: if error.is_none() {
            machine.metadata.generation
        } else {
            live.observed_generation
        },
        phase: Some(phase.to_owned()),
    }
}

/// The conditions of a paused object that this controller owns.
fn owned(conditions: Vec<Condition>) -> Vec<Condition> {
    let own = [
        types::AVAILABLE,
        types::READY,
        types::UP_TO_DATE,
        types::UPDATING,
        types::BOOTSTRAP_CONFIG_READY,
        types::INFRASTRUCTURE_READY,
        types::NODE_READY,
        types::NODE_HEALTHY,
        types::DELETING,
        types::PAUSED,
    ];
    conditions.into_iter().filter(|condition| own.contains(&condition.type_.as_str())).collect()
}

fn phase(scope: &Scope, decision: &Decision) -> &'static str {
    if scope.is_deleting() {
        "Deleting"
    } else if decision.node_name.is_some() && decision.infrastructure_provisioned {
        "Running"
    } else if decision.provider_id.is_some() && decision.infrastructure_provisioned {
        "Provisioned"
    } else if decision.data_secret_name.is_some() {
        "Provisioning"
    } else {
        "Pending"
    }
}

fn initialization(decision: &Decision) -> Option<MachineInitializationStatus> {
    let status = MachineInitializationStatus {
        bootstrap_data_secret_created: decision.data_secret_created.then_some(true),
        infrastructure_provisioned: decision.infrastructure_provisioned.then_some(true),
    };
    (status != MachineInitializationStatus::default()).then_some(status)
}

fn deletion_status(
    live: &MachineStatus,
    decision: &Decision,
    now: Timestamp,
) -> Option<MachineDeletionStatus> {
    let stage = decision.stage.as_ref()?;
    let mut status = live.deletion.clone().unwrap_or_default();
    let now = Time(whole_seconds(now));
    match stage {
        Stage::Draining { .. } | Stage::DrainBlocked(_) => {
            status.node_drain_start_time.get_or_insert(now);
        }
        Stage::VolumeDetach(_) => {
            status.wait_for_node_volume_detach_start_time.get_or_insert(now);
        }
        _ => {}
    }
    (status != MachineDeletionStatus::default()).then_some(status)
}

fn bootstrap_ready(scope: &Scope, decision: &Decision) -> Condition {
    let type_ = types::BOOTSTRAP_CONFIG_READY;
    let Some(reference) = &scope.machine.spec.bootstrap.config_ref else {
        return match &decision.data_secret_name {
            Some(_) => new(type_, TRUE, reasons::DATA_SECRET_PROVIDED, ""),
            None => new(type_, FALSE, reasons::NOT_READY, Hold::NoBootstrap.to_string()),
        };
    };
    let subject = Subject::from(reference);
    let waiting = Hold::NoData(subject.clone());
    external_condition(
        type_,
        types::READY,
        READY,
        &scope.bootstrap,
        &subject,
        decision.data_secret_created,
        waiting,
    )
}

fn infrastructure_ready(scope: &Scope, decision: &Decision) -> Condition {
    let reference = &scope.machine.spec.infrastructure_ref;
    let subject = Subject::from(reference);
    let waiting = match scope.infra.provided() {
        Some(infra) if infra.provisioned() => Hold::NoProviderId(subject.clone()),
        _ => Hold::NotProvisioned(subject.clone()),
    };
    let done = decision.infrastructure_provisioned;
    external_condition(
        types::INFRASTRUCTURE_READY,
        types::READY,
        READY,
        &scope.infra,
        &subject,
        done,
        waiting,
    )
}

fn node_condition<'a>(node: &'a Node, type_: &str) -> Option<(&'a str, &'a str)> {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let found = conditions.find(|condition| condition.type_ == type_)?;
    Some((found.status.as_str(), found.message.as_deref().unwrap_or_default()))
}

/// `None` if the Node exists; otherwise (status, reason, message).
fn node_trouble(scope: &Scope, decision: &Decision) -> Option<(&'static str, &'static str, Hold)> {
    Some(match &scope.node {
        NodeView::Found(_) => return None,
        NodeView::Disconnected(lost) => {
            (UNKNOWN, reasons::CONNECTION_DOWN, Hold::Disconnected(lost.why.to_string()))
        }
        NodeView::Several(names) => (UNKNOWN, reasons::INTERNAL_ERROR, Hold::SeveralNodes(names.clone())),
        NodeView::Absent => match &decision.node_name {
            Some(name) => (FALSE, reasons::NODE_DELETED, Hold::NodeDeleted(name.clone())),
            None => {
                let provider_id = decision.provider_id.clone().unwrap_or_default();
                (UNKNOWN, reasons::NODE_DOES_NOT_EXIST, Hold::NoNode { provider_id })
            }
        },
        NodeView::NotSought => {
            let kind = scope.machine.spec.infrastructure_ref.kind.clone();
            (UNKNOWN, reasons::INSPECTION_FAILED, Hold::NodeNotSought { kind })
        }
    })
}

/// Whether the last known state of the Node is still valid.
fn counts_as_known(scope: &Scope) -> bool {
    matches!(&scope.node, NodeView::Disconnected(lost) if lost.expected)
}

/// The existing condition, if it is still valid.
fn known(scope: &Scope, type_: &str) -> Option<Condition> {
    let live = scope.machine.status.as_ref().filter(|_| counts_as_known(scope))?;
    get(&live.conditions, type_).cloned()
}

fn node_ready(scope: &Scope, decision: &Decision) -> Condition {
    let type_ = types::NODE_READY;
    if let Some(known) = known(scope, type_) {
        return known;
    }
    if let Some((status, reason, message)) = node_trouble(scope, decision) {
        return new(type_, status, reason, message.to_string());
    }
    let NodeView::Found(node) = &scope.node else {
        return new(type_, UNKNOWN, reasons::NODE_READY_UNKNOWN, "");
    };
    match node_condition(node, "Ready") {
        Some((TRUE, _)) => new(type_, TRUE, reasons::NODE_READY, ""),
        Some((FALSE, message)) => {
            new(type_, FALSE, reasons::NODE_NOT_READY, format!("* Node.Ready: {message}"))
        }
        Some((_, message)) => {
            new(type_, UNKNOWN, reasons::NODE_READY_UNKNOWN, format!("* Node.Ready: {message}"))
        }
        None => new(type_, UNKNOWN, reasons::NODE_READY_UNKNOWN, "* Node.Ready: Condition not yet reported"),
    }
}

fn node_healthy(scope: &Scope, decision: &Decision) -> Condition {
    let type_ = types::NODE_HEALTHY;
    if let Some(known) = known(scope, type_) {
        return known;
    }
    if let Some((status, reason, message)) = node_trouble(scope, decision) {
        return new(type_, status, reason, message.to_string());
    }
    let NodeView::Found(node) = &scope.node else {
        return new(type_, UNKNOWN, reasons::NODE_HEALTHY_UNKNOWN, "");
    };
    let mut worst = TRUE;
    let mut lines = Vec::new();
    for (name, good) in
        [("Ready", TRUE), ("MemoryPressure", FALSE), ("DiskPressure", FALSE), ("PIDPressure", FALSE)]
    {
        let (status, message) = match node_condition(node, name) {
            Some(seen) => seen,
            // Only Ready is reported by every kubelet.
            None if name != "Ready" => continue,
            None => (UNKNOWN, "Condition not yet reported"),
        };
        if status == good {
            continue;
        }
        worst = if status == UNKNOWN && worst != FALSE {
            UNKNOWN
        } else if status == UNKNOWN {
            worst
        } else {
            FALSE
        };
        lines.push(format!("* Node.{name}: {message}"));
    }
    match worst {
        TRUE => new(type_, TRUE, reasons::NODE_HEALTHY, ""),
        FALSE => new(type_, FALSE, reasons::NODE_NOT_HEALTHY, lines.join("\n")),
        _ => new(type_, UNKNOWN, reasons::NODE_HEALTHY_UNKNOWN, lines.join("\n")),
    }
}

fn deleting(decision: &Decision, error: Option<&str>) -> Condition {
    let Some(stage) = &decision.stage else { return conditions::not_deleting() };
    if let Some(error) = error {
        return new(types::DELETING, TRUE, reasons::INTERNAL_ERROR, error);
    }
    new(types::DELETING, TRUE, stage.reason(), stage.to_string())
}

/// Only Machines of a deployment can be out of date.
fn up_to_date(scope: &Scope, now: Timestamp) -> Option<Condition> {
    let (deployment, set) = (scope.deployment.as_ref()?, scope.set.as_ref()?);
    let mut differences = template_differences(&deployment.spec.template.spec, &set.spec.template.spec);
    if let Some(after) = deployment.spec.rollout.as_ref().and_then(|rollout| rollout.after.as_ref())
        && after.0 <= now
        && scope.machine.creation_timestamp().is_some_and(|created| created.0 < after.0)
    {
        differences.push(format!("MachineDeployment spec.rollout.after {} has passed", after.0));
    }
    Some(if differences.is_empty() {
        new(types::UP_TO_DATE, TRUE, reasons::UP_TO_DATE, "")
    } else {
        let lines: Vec<String> = differences.iter().map(|difference| format!("* {difference}")).collect();
        new(types::UP_TO_DATE, FALSE, reasons::NOT_UP_TO_DATE, lines.join("\n"))
    })
}

fn ready(machine: &Machine, known: &[Condition]) -> Condition {
    let mut parts = vec![
        Part::must_not(types::DELETING),
        Part::must_not(types::UPDATING),
        Part::must(types::BOOTSTRAP_CONFIG_READY),
        Part::must(types::INFRASTRUCTURE_READY),
        Part::must(types::NODE_HEALTHY),
        Part::may(types::HEALTH_CHECK_SUCCEEDED),
    ];
    for gate in &machine.spec.readiness_gates {
        let negative = gate.polarity.as_deref() == Some("Negative");
        parts.push(Part { type_: &gate.condition_type, negative, optional: false });
    }
    conditions::summary(types::READY, READY, &parts, known)
}

fn available(machine: &Machine, ready: &Condition, live: &[Condition], now: Timestamp) -> Condition {
    if ready.status != TRUE {
        return new(types::AVAILABLE, FALSE, reasons::NOT_READY, "");
    }
    match until_available(machine, live, now) {
        None => new(types::AVAILABLE, TRUE, reasons::AVAILABLE, ""),
        Some(_) => new(types::AVAILABLE, FALSE, reasons::WAITING_FOR_MIN_READY_SECONDS, ""),
    }
}

/// How long a Ready Machine must still stay Ready; `None` if it has been long enough.
fn until_available(machine: &Machine, live: &[Condition], now: Timestamp) -> Option<SignedDuration> {
    let wanted = SignedDuration::from_secs(i64::from(machine.spec.min_ready_seconds.filter(|s| *s > 0)?));
    let since =
        get(live, types::READY).filter(|c| c.status == TRUE).map_or(now, |c| c.last_transition_time.0);
    let left = wanted - now.duration_since(since);
    (left > SignedDuration::ZERO).then_some(left)
}

/// When a Ready Machine becomes Available: the time of the next pass.
pub fn next_available(machine: &Machine, status: &MachineStatus, now: Timestamp) -> Option<SignedDuration> {
    let ready = get(&status.conditions, types::READY).is_some_and(|c| c.status == TRUE);
    let available = get(&status.conditions, types::AVAILABLE).is_some_and(|c| c.status == TRUE);
    if ready && !available { until_available(machine, &status.conditions, now) } else { None }
}

fn older(scope: &Scope, decision: &Decision) -> Vec<V1Beta1Condition> {
    let machine = &scope.machine;
    let info = |type_, reason: &str, message: &str| old_false(type_, Severity::Info, reason, message);
    let mut list = vec![
        match (&machine.spec.bootstrap.config_ref, &decision.data_secret_name) {
            (_, Some(_)) => old_true(v1beta1_types::BOOTSTRAP_READY),
            _ => info(v1beta1_types::BOOTSTRAP_READY, v1beta1_reasons::WAITING_FOR_DATA_SECRET, ""),
        },
        if decision.infrastructure_provisioned {
            old_true(v1beta1_types::INFRASTRUCTURE_READY)
        } else {
            info(v1beta1_types::INFRASTRUCTURE_READY, v1beta1_reasons::WAITING_FOR_INFRASTRUCTURE, "")
        },
        older_node_healthy(scope, decision),
    ];
    match &decision.stage {
        Some(Stage::PreDrainHook(hooks)) => list.push(info(
            v1beta1_types::PRE_DRAIN_DELETE_HOOK_SUCCEEDED,
            v1beta1_reasons::WAITING_EXTERNAL_HOOK,
            &hooks.join(", "),
        )),
        Some(Stage::Draining { .. } | Stage::DrainBlocked(_)) => {
            list.push(info(
                v1beta1_types::DRAINING_SUCCEEDED,
                v1beta1_reasons::DRAINING,
                "Draining the node before deletion",
            ));
        }
        Some(Stage::VolumeDetach(volumes)) => list.push(info(
            v1beta1_types::VOLUME_DETACH_SUCCEEDED,
            v1beta1_reasons::WAITING_FOR_VOLUME_DETACH,
            &volumes.join(", "),
        )),
        Some(Stage::PreTerminateHook(hooks)) => list.push(info(
            v1beta1_types::PRE_TERMINATE_DELETE_HOOK_SUCCEEDED,
            v1beta1_reasons::WAITING_EXTERNAL_HOOK,
            &hooks.join(", "),
        )),
        _ => {}
    }
    // A wait that has ended has succeeded.
    let live = machine.status.clone().unwrap_or_default();
    for condition in old_conditions(&live) {
        let passed = [
            v1beta1_types::PRE_DRAIN_DELETE_HOOK_SUCCEEDED,
            v1beta1_types::DRAINING_SUCCEEDED,
            v1beta1_types::VOLUME_DETACH_SUCCEEDED,
            v1beta1_types::PRE_TERMINATE_DELETE_HOOK_SUCCEEDED,
        ];
        if passed.contains(&condition.type_.as_str()) && !list.iter().any(|c| c.type_ == condition.type_) {
            list.push(old_true(&condition.type_));
        }
    }
    let summary = old_summary(&list);
    list.push(summary);
    list
}

fn older_node_healthy(scope: &Scope, decision: &Decision) -> V1Beta1Condition {
    let type_ = v1beta1_types::NODE_HEALTHY;
    let live = scope.machine.status.as_ref().filter(|_| counts_as_known(scope));
    if let Some(known) = live.and_then(|live| old_conditions(live).iter().find(|c| c.type_ == type_)) {
        return known.clone();
    }
    match &scope.node {
        NodeView::Found(node) => match node_condition(node, "Ready") {
            Some((TRUE, _)) => old_true(type_),
            Some((status, message)) => old(
                type_,
                status,
                (status == FALSE).then_some(Severity::Warning),
                v1beta1_reasons::NODE_CONDITIONS_FAILED,
                message,
            ),
            None => old(type_, UNKNOWN, None, v1beta1_reasons::NODE_CONDITIONS_FAILED, ""),
        },
        NodeView::Absent if decision.node_name.is_some() => {
            old_false(type_, Severity::Error, v1beta1_reasons::NODE_NOT_FOUND, "")
        }
        NodeView::Absent => old_false(type_, Severity::Warning, v1beta1_reasons::NODE_PROVISIONING, ""),
        NodeView::Disconnected(lost) => {
            old(type_, UNKNOWN, None, v1beta1_reasons::NODE_INSPECTION_FAILED, &lost.why.to_string())
        }
        NodeView::Several(names) => {
            old_false(type_, Severity::Error, v1beta1_reasons::NODE_INSPECTION_FAILED, &names.join(", "))
        }
        NodeView::NotSought => old_false(type_, Severity::Info, v1beta1_reasons::WAITING_FOR_NODE_REF, ""),
    }
}

fn old_conditions(live: &MachineStatus) -> &[V1Beta1Condition] {
    live.deprecated.as_ref().and_then(|d| d.v1beta1.as_ref()).map_or(&[], |status| &status.conditions)
}

fn node_info(node: &NodeView) -> Option<NodeSystemInfo> {
    let NodeView::Found(node) = node else { return None };
    let info = node.status.as_ref()?.node_info.as_ref()?;
    serde_json::from_value(serde_json::to_value(info).ok()?).ok()
}
