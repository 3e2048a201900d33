//! Which set is the newest, how many Machines each set has, and which sets are deleted. Pure.

use std::sync::Arc;

use drover_api::capi::v1beta2::MachineSet;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::rollout::{self, Counts};
use super::scope::{Scope, Strategy};
use super::template::{SetPlan, revision, template_differences};
use crate::admission::{complaints, validate_machine_deployment};
use crate::meta;
use crate::waits::Hold;

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Add the finalizer.
    AddFinalizer,
    /// Add the finalizer, label the deployment, set its Cluster as owner and its revision; before anything else.
    Label {
        /// The revision.
        revision: Option<i64>,
    },
    /// Set the Cluster as owner of the templates.
    OwnTemplates,
    /// Adopt a set without a controller.
    Adopt(String),
    /// Create or update a set.
    Set(SetPlan),
    /// Delete a set.
    Delete {
        /// Its name.
        name: String,
        /// Its uid.
        uid: Option<String>,
    },
    /// Remove the finalizer of the deployment.
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
    /// Name of the newest set.
    pub newest: Option<String>,
    /// Why no new set can be created, or nothing at all is done.
    pub blocked: Option<Hold>,
}

/// Decides one pass. `random` returns a new suffix for each call.
pub fn decide(scope: &Scope, now: Timestamp, random: &mut dyn FnMut() -> String) -> Decision {
    let mut decision = Decision::default();
    if scope.is_deleting() && !scope.has_finalizer() {
        return decision;
    }
    if scope.is_paused() {
        if !scope.has_finalizer() {
            decision.actions.push(Action::AddFinalizer);
        }
        decision.paused = true;
        return decision;
    }
    if scope.is_deleting() {
        let staying = scope.sets.iter().filter(|set| !meta::is_deleting(&set.metadata));
        decision.actions.extend(staying.map(|set| delete(set)));
        if scope.sets.is_empty() {
            decision.actions.push(Action::RemoveFinalizer);
        }
        return decision;
    }
    if let Some(why) = complaints(&validate_machine_deployment(&scope.deployment, None)) {
        decision.blocked = Some(Hold::Invalid(why));
        return decision;
    }
    let orphans = scope.sets.iter().filter(|set| meta::controller_of(&set.metadata).is_none());
    let adopt: Vec<Action> = orphans.map(|set| Action::Adopt(set.name_any())).collect();
    let newest = newest_set(scope, now);
    decision.newest = newest.map(|set| set.name_any());
    decision.next = until_rollout(scope, now);
    let held = scope.deployment.spec.paused == Some(true);
    let sets =
        if held { proportional_plans(scope) } else { rollout_plans(scope, newest, random, &mut decision) };
    let current = decision.newest.as_deref().and_then(|name| sets.iter().find(|plan| plan.name == name));
    let revision = current.map(|plan| plan.revision).or_else(|| sets.iter().map(|plan| plan.revision).max());
    decision.actions.push(Action::Label { revision });
    decision.actions.push(Action::OwnTemplates);
    decision.actions.extend(adopt);
    decision.actions.extend(sets.into_iter().map(Action::Set));
    if !held && is_complete(scope, newest) {
        let finished = |set: &&Arc<MachineSet>| {
            decision.newest.as_deref() != Some(set.name_any().as_str())
                && counts(set) == Counts::default()
                && !meta::is_deleting(&set.metadata)
        };
        let deletes: Vec<Action> = scope.sets.iter().filter(finished).map(|set| delete(set)).collect();
        decision.actions.retain(|action| !matches!(action, Action::Set(plan) if deletes.iter().any(|d| matches!(d, Action::Delete { name, .. } if *name == plan.name))));
        decision.actions.extend(deletes);
    }
    decision
}

/// The set that matches the template: the one with most replicas, then the oldest, then by name.
pub fn newest_set(scope: &Scope, now: Timestamp) -> Option<&Arc<MachineSet>> {
    let wanted = &scope.deployment.spec.template.spec;
    let after = rollout_after(scope).filter(|after| *after <= now);
    let matches = |set: &&Arc<MachineSet>| {
        let fresh =
            after.is_none_or(|after| set.creation_timestamp().is_some_and(|created| created.0 >= after));
        fresh
            && !meta::is_deleting(&set.metadata)
            && template_differences(wanted, &set.spec.template.spec).is_empty()
    };
    scope.sets.iter().filter(matches).min_by_key(|set| {
        let created = set.creation_timestamp().map(|created| created.0);
        (std::cmp::Reverse(set.spec.replicas.unwrap_or(0)), created, set.name_any())
    })
}

fn rollout_after(scope: &Scope) -> Option<Timestamp> {
    scope.deployment.spec.rollout.as_ref()?.after.as_ref().map(|after| after.0)
}

fn until_rollout(scope: &Scope, now: Timestamp) -> Option<SignedDuration> {
    rollout_after(scope).filter(|after| *after > now).map(|after| after.duration_since(now))
}

/// Machines of a set, in numbers.
pub fn counts(set: &MachineSet) -> Counts {
    let status = set.status.clone().unwrap_or_default();
    Counts {
        spec: set.spec.replicas.unwrap_or(0),
        present: status.replicas.unwrap_or(0),
        available: status.available_replicas.unwrap_or(0),
    }
}

fn rollout_plans(
    scope: &Scope,
    newest: Option<&Arc<MachineSet>>,
    random: &mut dyn FnMut() -> String,
    decision: &mut Decision,
) -> Vec<SetPlan> {
    let newest_name = newest.map(|set| set.name_any());
    let mut old: Vec<&Arc<MachineSet>> = scope
        .sets
        .iter()
        .filter(|set| Some(set.name_any()) != newest_name && !meta::is_deleting(&set.metadata))
        .collect();
    old.sort_by_key(|set| (set.creation_timestamp().map(|created| created.0), set.name_any()));
    let next_revision = old.iter().map(|set| revision(set)).max().unwrap_or(0) + 1;
    let strategy = scope.strategy();
    let Some(newest) = newest else {
        if let Some(why) = templates_missing(scope) {
            decision.blocked = Some(why);
        } else {
            // The first set is created with its replicas. One that replaces others is created empty, and the next
            // pass scales it within the limits of the rollout.
            let replicas = if old.is_empty() { scope.replicas() } else { 0 };
            let name = format!("{}-{}", scope.deployment.name_any(), random());
            decision.newest = Some(name.clone());
            let mut plans: Vec<SetPlan> = old.iter().map(|set| keep(set, strategy)).collect();
            plans.push(SetPlan {
                name,
                create: true,
                replicas,
                revision: next_revision,
                disable_create: false,
            });
            return plans;
        }
        return old.iter().map(|set| SetPlan { disable_create: false, ..keep(set, strategy) }).collect();
    };
    let old_counts: Vec<Counts> = old.iter().map(|set| counts(set)).collect();
    let (new_replicas, old_replicas) = rollout::plan(strategy, scope.replicas(), counts(newest), &old_counts);
    let mut plans: Vec<SetPlan> = old
        .iter()
        .zip(old_replicas)
        .map(|(set, replicas)| SetPlan { replicas, ..keep(set, strategy) })
        .collect();
    plans.push(SetPlan {
        name: newest.name_any(),
        create: false,
        replicas: new_replicas,
        revision: revision(newest).max(next_revision),
        disable_create: false,
    });
    plans
}

fn keep(set: &MachineSet, strategy: Strategy) -> SetPlan {
    SetPlan {
        name: set.name_any(),
        create: false,
        replicas: set.spec.replicas.unwrap_or(0),
        revision: revision(set),
        disable_create: strategy == Strategy::OnDelete,
    }
}

fn proportional_plans(scope: &Scope) -> Vec<SetPlan> {
    let surge = match scope.strategy() {
        Strategy::RollingUpdate { max_surge, .. } => max_surge,
        Strategy::OnDelete => 0,
    };
    let mut sets: Vec<&Arc<MachineSet>> =
        scope.sets.iter().filter(|set| !meta::is_deleting(&set.metadata)).collect();
    sets.sort_by_key(|set| (revision(set), set.name_any()));
    let all: Vec<Counts> = sets.iter().map(|set| counts(set)).collect();
    let replicas = rollout::proportional(scope.replicas(), surge, &all);
    let plan =
        |(set, replicas): (&&Arc<MachineSet>, i32)| SetPlan { replicas, ..keep(set, scope.strategy()) };
    sets.iter().zip(replicas).map(plan).map(|plan| SetPlan { disable_create: false, ..plan }).collect()
}

fn templates_missing(scope: &Scope) -> Option<Hold> {
    let template = &scope.deployment.spec.template.spec;
    let parts = [
        (&scope.bootstrap_template, template.bootstrap.config_ref.as_ref()),
        (&scope.infra_template, Some(&template.infrastructure_ref)),
    ];
    parts.into_iter().find_map(|(external, reference)| external.hold(reference?))
}

/// Whether every Machine belongs to the newest set and is available.
fn is_complete(scope: &Scope, newest: Option<&Arc<MachineSet>>) -> bool {
    let Some(newest) = newest else { return false };
    let replicas = scope.replicas();
    let done = Counts { spec: replicas, present: replicas, available: replicas };
    let others = scope.sets.iter().filter(|set| set.name_any() != newest.name_any());
    let observed = newest.status.as_ref().and_then(|status| status.observed_generation);
    let current = newest.metadata.generation.is_none() || observed >= newest.metadata.generation;
    current && counts(newest) == done && others.into_iter().all(|set| counts(set).present == 0)
}

fn delete(set: &MachineSet) -> Action {
    Action::Delete { name: set.name_any(), uid: set.uid() }
}
