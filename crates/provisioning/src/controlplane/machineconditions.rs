//! The conditions of Machines that the planner sets. All of them are applied together, under one field manager, so that
//! Cluster API's own conditions stay. Pure.

use std::collections::BTreeMap;

use drover_api::conditions::{reasons, types};
use drover_runtime::conditions::whole_seconds;
use drover_runtime::events::Note;
use jiff::Timestamp;
use serde::Serialize;

use super::planner::entry::{CUSTOM_MACHINE, Entry};
use crate::conditions::{FALSE, TRUE, UNKNOWN};
use crate::keys::conditions;
use crate::plansecret::readable::{Live, Readable};
use crate::plansecret::upkeep::PlanApplied;

/// What the planner sets. `UpToDate` only of machines that no MachineDeployment speaks for.
pub const TYPES: [&str; 4] =
    [conditions::PLAN_APPLIED, conditions::PLAN_SECRET_READABLE, conditions::RECONCILED, types::UP_TO_DATE];

/// Conditions by type.
pub type MachineConditions = BTreeMap<&'static str, MachineCondition>;

/// One condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MachineCondition {
    pub status: String,
    pub reason: String,
    pub message: String,
    pub since: Timestamp,
}

impl MachineCondition {
    pub fn is_true(&self) -> bool {
        self.status == TRUE
    }

    /// As `readable` wants it.
    pub fn live(&self) -> Live<'_> {
        Live { value: &self.status, message: &self.message, since: self.since }
    }

    fn says(&self) -> (&str, &str, &str) {
        (&self.status, &self.reason, &self.message)
    }
}

/// What a pass found out about a machine. None leaves the condition as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Of the plan secret.
    pub secret: Option<SecretFacts>,
    /// Of the machine's tier.
    pub tier: Option<TierFacts>,
}

/// What the plan secret says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SecretFacts {
    /// None while there is no plan.
    pub plan_applied: Option<PlanApplied>,
    /// None if the secret always was readable.
    pub readable: Option<Readable>,
}

/// How far a machine is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TierFacts {
    /// What it is waited for; none if it is as it should be.
    pub waiting: Option<String>,
    /// The Machine has its plan, and only its health cannot be read.
    pub unknown: bool,
    /// It has applied the plan that it should have.
    pub current: bool,
}

/// The conditions that a Machine should have, if they differ from those that it has.
pub fn changed(entry: &Entry, facts: &Facts, now: Timestamp) -> Option<MachineConditions> {
    let live = &entry.machine.conditions;
    let mut next = live.clone();
    let mut set = |type_: &'static str, condition: Option<(&str, &str, &str)>| {
        let Some((status, reason, message)) = condition else { return drop(next.remove(type_)) };
        let same = live.get(type_).filter(|live| live.status == status);
        let condition = MachineCondition {
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            since: same.map_or(whole_seconds(now), |live| live.since),
        };
        next.insert(type_, condition);
    };
    if let Some(secret) = &facts.secret {
        let text = secret.plan_applied.as_ref().map(PlanApplied::to_string).unwrap_or_default();
        let applied = secret.plan_applied.as_ref().map(|applied| match applied {
            PlanApplied::True => (TRUE, "PlanApplied", ""),
            PlanApplied::False { .. } => (FALSE, "Error", text.as_str()),
        });
        set(conditions::PLAN_APPLIED, applied);
        let readable = secret.readable.as_ref();
        set(conditions::PLAN_SECRET_READABLE, readable.map(|r| (r.value, r.reason, r.message.as_str())));
    }
    if let Some(tier) = facts.tier.as_ref().filter(|_| entry.machine.infrastructure_ready) {
        let reason = if tier.unknown { conditions::HEALTH_UNKNOWN } else { "Waiting" };
        let text = tier.waiting.as_deref().unwrap_or_default();
        let reconciled =
            if tier.waiting.is_some() { (UNKNOWN, reason, text) } else { (TRUE, "Reconciled", "") };
        set(conditions::RECONCILED, Some(reconciled));
        if entry.machine.infrastructure_kind == CUSTOM_MACHINE {
            let up_to_date = match tier.current {
                true => (TRUE, reasons::UP_TO_DATE, ""),
                false => (FALSE, reasons::NOT_UP_TO_DATE, text),
            };
            set(types::UP_TO_DATE, Some(up_to_date));
        }
    }
    let same = live.len() == next.len()
        && next
            .iter()
            .all(|(type_, condition)| live.get(type_).is_some_and(|l| l.says() == condition.says()));
    (!same).then_some(next)
}

/// What the Machine tells of conditions that changed; what is only waited for is in the condition.
pub fn notes(live: &MachineConditions, next: &MachineConditions) -> Vec<Note> {
    let is_news = |type_: &str, condition: &MachineCondition| {
        live.get(type_).is_none_or(|l| l.status != condition.status || l.message != condition.message)
    };
    let changed = next.iter().filter(|(type_, condition)| is_news(type_, condition));
    let note = |(type_, condition): (&&'static str, &MachineCondition)| {
        let message = condition.message.as_str();
        match *type_ {
            conditions::PLAN_APPLIED if !condition.is_true() => Some(Note::warning("PlanFailed", message)),
            conditions::PLAN_SECRET_READABLE if !condition.is_true() => {
                Some(Note::warning("PlanSecretUnreadable", message))
            }
            conditions::PLAN_SECRET_READABLE => Some(Note::warning("PlanSecretRepaired", message)),
            _ => None,
        }
    };
    changed.filter_map(note).collect()
}
