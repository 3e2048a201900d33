//! How many Machines a set creates or deletes, and which. Pure.

use std::cmp::Reverse;
use std::sync::Arc;

use drover_api::annotations::capi as annotations;
use drover_api::capi::v1beta2::{Machine, MachineSet};
use drover_api::conditions::types;
use drover_api::labels::capi as labels;
use drover_runtime::conditions::is_false;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use super::naming;
use super::preflight;
use super::scope::Scope;
use crate::admission::{complaints, validate_machine_set};
use crate::meta;
use crate::waits::{DeleteReason, Hold};

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Add the finalizer, before anything else.
    AddFinalizer,
    /// Label the set, and set its Cluster as owner if it has no deployment.
    Label,
    /// Set the Cluster as owner of the templates.
    OwnTemplates,
    /// Adopt a Machine without a controller.
    Adopt(String),
    /// Update a Machine and its two objects in place.
    Update(String),
    /// Create a Machine with its two objects, all with this name.
    Create(String),
    /// Delete a Machine.
    Delete {
        /// Its name.
        name: String,
        /// Its uid.
        uid: Option<String>,
        /// The reason.
        reason: DeleteReason,
    },
    /// Delete the clones of an interrupted creation.
    DeleteClones(String),
    /// Remove the finalizer of the set.
    RemoveFinalizer,
}

/// The result of a pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Writes, in order.
    pub actions: Vec<Action>,
    /// Repeat after this time, if no event comes first.
    pub next: Option<SignedDuration>,
    /// The object is paused.
    pub paused: bool,
    /// Why missing Machines are not created.
    pub blocked: Option<Hold>,
    /// Unhealthy Machines that are being replaced.
    pub remediating: Vec<String>,
}

/// Decides one pass. `random` returns a new suffix for each call.
pub fn decide(scope: &Scope, now: Timestamp, random: &mut dyn FnMut() -> String) -> Decision {
    let mut decision = Decision::default();
    if !scope.has_finalizer() {
        if !scope.is_deleting() {
            decision.actions.push(Action::AddFinalizer);
        }
        return decision;
    }
    if scope.is_paused() {
        decision.paused = true;
        return decision;
    }
    if scope.is_deleting() {
        decide_deletion(scope, &mut decision);
        return decision;
    }
    if let Some(why) = complaints(&validate_machine_set(&scope.set, None)) {
        decision.blocked = Some(Hold::Invalid(why));
        return decision;
    }
    decision.actions.extend(scope.lacks_label().then_some(Action::Label));
    decision.actions.extend(scope.lacks_template_owner().then_some(Action::OwnTemplates));
    let orphans = scope.machines.iter().filter(|machine| {
        meta::controller_of(&machine.metadata).is_none() && !meta::is_deleting(&machine.metadata)
    });
    decision.actions.extend(orphans.map(|machine| Action::Adopt(machine.name_any())));
    decision.actions.extend(scope.outdated.iter().cloned().map(Action::Update));
    remediate(scope, &mut decision);
    scale(scope, now, random, &mut decision);
    decision
}

fn decide_deletion(scope: &Scope, decision: &mut Decision) {
    let staying = scope.machines.iter().filter(|machine| !meta::is_deleting(&machine.metadata));
    decision.actions.extend(staying.map(|machine| delete(machine, DeleteReason::SetDeleted)));
    decision.actions.extend(scope.unfinished.iter().cloned().map(Action::DeleteClones));
    if scope.machines.is_empty() {
        decision.actions.push(Action::RemoveFinalizer);
    }
}

fn scale(scope: &Scope, now: Timestamp, random: &mut dyn FnMut() -> String, decision: &mut Decision) {
    let Some(wanted) = scope.set.spec.replicas.and_then(|replicas| usize::try_from(replicas).ok()) else {
        return;
    };
    let present = scope.machines.len();
    let missing = wanted.saturating_sub(present);
    let mut unfinished = scope.unfinished.iter();
    if missing > 0 {
        if let Some(why) = blocked(scope) {
            decision.blocked = Some(why);
            // Control planes report stability in many objects; this repetition covers missed events.
            decision.next = Some(SignedDuration::from_secs(15));
            return;
        }
        let template = scope.set.spec.machine_naming.as_ref().and_then(|naming| naming.template.as_deref());
        let mut taken: Vec<String> = scope.machines.iter().map(|machine| machine.name_any()).collect();
        for _ in 0..missing {
            // An interrupted creation is completed before another one starts.
            let name =
                unfinished.next().cloned().unwrap_or_else(|| fresh_name(scope, template, &taken, random));
            taken.push(name.clone());
            decision.actions.push(Action::Create(name));
        }
    }
    decision.actions.extend(unfinished.cloned().map(Action::DeleteClones));
    let surplus = present.saturating_sub(wanted);
    for machine in to_delete(&scope.set, &scope.machines, surplus, now) {
        if !meta::is_deleting(&machine.metadata) {
            decision.actions.push(delete(machine, DeleteReason::Surplus));
        }
    }
}

fn fresh_name(
    scope: &Scope,
    template: Option<&str>,
    taken: &[String],
    random: &mut dyn FnMut() -> String,
) -> String {
    let render = |suffix: &str| {
        let template = template.unwrap_or(naming::DEFAULT_TEMPLATE);
        naming::render(template, &scope.set.spec.cluster_name, &scope.set.name_any(), suffix)
    };
    let mut name = render(&random());
    // Collisions among a few thousand names are rare but possible; a few attempts are enough.
    for _ in 0..16 {
        if !taken.contains(&name) {
            break;
        }
        name = render(&random());
    }
    name
}

/// Why no Machine can be created now.
fn blocked(scope: &Scope) -> Option<Hold> {
    if meta::annotation(&scope.set.metadata, annotations::DISABLE_MACHINE_CREATE) == Some("true") {
        return Some(Hold::CreateDisabled);
    }
    let template = &scope.set.spec.template.spec;
    let parts = [
        (&scope.bootstrap_template, template.bootstrap.config_ref.as_ref()),
        (&scope.infra_template, Some(&template.infrastructure_ref)),
    ];
    let missing = parts.into_iter().find_map(|(external, reference)| external.hold(reference?));
    missing.or_else(|| preflight::failure(scope))
}

/// The Machines to delete if there are `surplus` too many, including those that are already being deleted.
pub fn to_delete<'a>(
    set: &MachineSet,
    machines: &'a [Arc<Machine>],
    surplus: usize,
    now: Timestamp,
) -> Vec<&'a Arc<Machine>> {
    let order = set.spec.deletion.as_ref().and_then(|deletion| deletion.order.as_deref()).unwrap_or("Random");
    let mut sorted: Vec<&Arc<Machine>> = machines.iter().collect();
    sorted.sort_by(|a, b| {
        let (x, y) = (priority(a, order, now), priority(b, order, now));
        y.total_cmp(&x).then_with(|| a.name_any().cmp(&b.name_any()))
    });
    sorted.truncate(surplus);
    sorted
}

/// Higher is deleted first (`internal/controllers/machineset/machineset_delete_policy.go`).
fn priority(machine: &Machine, order: &str, now: Timestamp) -> f64 {
    let conditions = machine.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
    let has_node = machine.status.as_ref().is_some_and(|status| status.node_ref.is_some());
    let unhealthy = !has_node
        || is_false(conditions, types::NODE_HEALTHY)
        || is_false(conditions, types::HEALTH_CHECK_SUCCEEDED);
    if meta::is_deleting(&machine.metadata) {
        100.0
    } else if meta::has_annotation(&machine.metadata, annotations::DELETE_MACHINE) {
        80.0
    } else if meta::has_annotation(&machine.metadata, annotations::UPDATE_IN_PROGRESS) {
        75.0
    } else if unhealthy {
        50.0
    } else {
        let age =
            machine.creation_timestamp().map_or(0.0, |created| now.duration_since(created.0).as_secs_f64());
        let oldest = if age > 0.0 { 50.0 * (1.0 - (-age / 864_000.0).exp()) } else { 0.0 };
        match order {
            "Oldest" => oldest,
            "Newest" => 50.0 - oldest,
            _ => 20.0,
        }
    }
}

/// Unhealthy Machines are deleted, a few at a time; the set then creates new ones.
fn remediate(scope: &Scope, decision: &mut Decision) {
    if !scope.is_current() {
        return;
    }
    let marked = |machine: &&Arc<Machine>| {
        let conditions = machine.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
        is_false(conditions, types::HEALTH_CHECK_SUCCEEDED) && is_false(conditions, types::OWNER_REMEDIATED)
    };
    let (deleting, mut waiting): (Vec<_>, Vec<_>) =
        scope.machines.iter().filter(marked).partition(|machine| meta::is_deleting(&machine.metadata));
    waiting.sort_by_key(|machine| {
        let asked = meta::has_annotation(&machine.metadata, annotations::REMEDIATE_MACHINE);
        (!asked, Reverse(machine.creation_timestamp().map(|created| created.0)), machine.name_any())
    });
    let budget = remediation_budget(scope).saturating_sub(deleting.len());
    decision.remediating = deleting.iter().chain(&waiting).map(|machine| machine.name_any()).collect();
    decision
        .actions
        .extend(waiting.into_iter().take(budget).map(|machine| delete(machine, DeleteReason::Unhealthy)));
}

fn remediation_budget(scope: &Scope) -> usize {
    let replicas = scope.set.spec.replicas.unwrap_or(0);
    let remediation = scope.deployment.as_ref().and_then(|deployment| deployment.spec.remediation.as_ref());
    match remediation.and_then(|remediation| remediation.max_in_flight.as_ref()) {
        Some(limit) => usize::try_from(scaled(limit, replicas, true)).unwrap_or(0),
        None => usize::MAX,
    }
}

/// A number, or a percentage of `total` rounded up or down; invalid values count as zero.
pub fn scaled(value: &IntOrString, total: i32, up: bool) -> i32 {
    match value {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => {
            let percent: f64 = text.trim_end_matches('%').parse().unwrap_or(0.0);
            let exact = f64::from(total) * percent / 100.0;
            // Percentages of replicas are far inside i32.
            (if up { exact.ceil() } else { exact.floor() }) as i32
        }
    }
}

fn delete(machine: &Machine, reason: DeleteReason) -> Action {
    Action::Delete { name: machine.name_any(), uid: machine.uid(), reason }
}

/// Labels of every Machine of the set.
pub fn machine_labels(set: &MachineSet) -> std::collections::BTreeMap<String, String> {
    let mut all = set.spec.template.metadata.as_ref().map(|meta| meta.labels.clone()).unwrap_or_default();
    all.insert(labels::CLUSTER_NAME.to_owned(), set.spec.cluster_name.clone());
    all.insert(labels::SET_NAME.to_owned(), meta::label_value(&set.name_any()));
    if let Some(deployment) = meta::label(&set.metadata, labels::DEPLOYMENT_NAME) {
        all.insert(labels::DEPLOYMENT_NAME.to_owned(), deployment.to_owned());
    }
    all
}
