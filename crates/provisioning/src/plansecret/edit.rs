//! Edits of a plan secret by the server, each with its reason. The secret is written whole, with the resourceVersion that
//! it was read with, because the server and the agent remove keys of each other.

use std::fmt;

use drover_plan::{AGENT_OFFER, AgentOffer, Plan, PlanState, keys};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use serde::Serialize;

use crate::keys::annotations;

/// Why the server edits a plan secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Reason {
    /// Keys that the server writes too held unusable values.
    KeysRepaired,
    /// The plan has become the applied one.
    PlanApplied,
    /// The probes of the plan have passed for the first time.
    ProbesPassed,
    /// Output of periodic instructions that the plan no longer has is removed.
    OutputPruned,
    /// A plan that failed is tried again.
    Retry,
    /// The agent that the server offers is another one.
    AgentOffer,
    JoinUrl,
    JoinedTo,
    InitNodeElected,
    InitNodeDismissed,
    DrainStarted,
    DrainEnded,
    InitialPlan,
    PlanChanged,
    /// Only files changed that nothing is restarted for.
    MinorChange,
    /// The plan was overwritten or removed by someone else.
    PlanRepaired,
}

impl Reason {
    /// The machine gets a plan.
    pub fn is_plan(&self) -> bool {
        matches!(self, Self::InitialPlan | Self::PlanChanged | Self::MinorChange | Self::PlanRepaired)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KeysRepaired => "keys repaired",
            Self::PlanApplied => "plan applied",
            Self::ProbesPassed => "probes passed",
            Self::OutputPruned => "old output removed",
            Self::Retry => "failed plan is tried again",
            Self::AgentOffer => "offered agent changed",
            Self::JoinUrl => "join url known",
            Self::JoinedTo => "joined to known",
            Self::InitNodeElected => "elected init node",
            Self::InitNodeDismissed => "no longer init node",
            Self::DrainStarted => "start drain",
            Self::DrainEnded => "end drain",
            Self::InitialPlan => "initial plan",
            Self::PlanChanged => "plan changed",
            Self::MinorChange => "minor change",
            Self::PlanRepaired => "plan repaired",
        })
    }
}

/// How often an agent may fail before it gives up (-1: never), and from how many failures on we call it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailurePolicy {
    pub max_failures: i64,
    pub failure_threshold: i64,
}

impl FailurePolicy {
    /// Plans of a tier are tried for ever, and shown as failing from the first failure on.
    pub const TIER: Self = Self { max_failures: -1, failure_threshold: 1 };
    /// Windows machines are slow to come up.
    pub const WINDOWS: Self = Self { max_failures: -1, failure_threshold: 5 };
}

/// The secret with a new plan: state `pending`, no word of the agent about an older plan, and a fresh count
/// of failures.
pub fn with_plan(
    secret: &Secret,
    plan: &Plan,
    joined_to: &str,
    policy: FailurePolicy,
    now: Timestamp,
) -> Secret {
    let mut secret = secret.clone();
    let bytes = drover_plan::to_vec(plan).unwrap_or_default();
    let data = secret.data.get_or_insert_default();
    let mut set = |key: &str, value: Vec<u8>| {
        data.insert(key.to_owned(), ByteString(value));
    };
    set(keys::PLAN, bytes);
    set(keys::PLAN_STATE, PlanState::Pending.as_str().as_bytes().to_vec());
    set_or_remove(data, keys::MAX_FAILURES, policy.max_failures);
    set_or_remove(data, keys::FAILURE_THRESHOLD, policy.failure_threshold);
    data.remove(keys::PROBE_STATUSES);
    if data.contains_key(keys::FAILURE_COUNT) {
        data.insert(keys::FAILURE_COUNT.to_owned(), ByteString(b"0".to_vec()));
    }
    let notes = secret.metadata.annotations.get_or_insert_default();
    notes.insert(annotations::PLAN_LAST_UPDATED.to_owned(), rfc3339(now));
    notes.insert(annotations::PLAN_PROBES_PASSED.to_owned(), String::new());
    notes.insert(annotations::JOINED_TO.to_owned(), joined_to.to_owned());
    notes.remove(annotations::PLAN_REARMED);
    secret
}

/// The secret with a plan that changes nothing but minor files: nothing restarts, so probes that passed have passed.
pub fn with_minor_plan(
    secret: &Secret,
    plan: &Plan,
    joined_to: &str,
    policy: FailurePolicy,
    now: Timestamp,
) -> Secret {
    let mut next = with_plan(secret, plan, joined_to, policy, now);
    let key = annotations::PLAN_PROBES_PASSED;
    if let Some(passed) = secret.metadata.annotations.as_ref().and_then(|notes| notes.get(key)) {
        next.metadata.annotations.get_or_insert_default().insert(key.to_owned(), passed.clone());
    }
    next
}

/// The secret with one annotation set, or removed when the value is empty.
pub fn with_annotation(secret: &Secret, key: &str, value: &str) -> Secret {
    let mut secret = secret.clone();
    let notes = secret.metadata.annotations.get_or_insert_default();
    if value.is_empty() {
        notes.remove(key);
    } else {
        notes.insert(key.to_owned(), value.to_owned());
    }
    secret
}

/// The secret with one label set, or removed when the value is empty.
pub fn with_label(secret: &Secret, key: &str, value: &str) -> Secret {
    let mut secret = secret.clone();
    let labels = secret.metadata.labels.get_or_insert_default();
    if value.is_empty() {
        labels.remove(key);
    } else {
        labels.insert(key.to_owned(), value.to_owned());
    }
    secret
}

/// The secret with the offer of an agent beside its plan, unless it is there. The plan stays as it is: an agent is replaced
/// between plans, and nothing on the node is restarted for it.
pub fn with_offer(secret: &Secret, offer: &AgentOffer) -> Option<Secret> {
    if offer.sha256.is_empty() {
        return None;
    }
    let text = offer.to_text();
    let known = secret.metadata.annotations.as_ref().and_then(|notes| notes.get(AGENT_OFFER));
    (known != Some(&text)).then(|| with_annotation(secret, AGENT_OFFER, &text))
}

/// Times are written in whole seconds of UTC.
pub fn rfc3339(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

fn set_or_remove(data: &mut std::collections::BTreeMap<String, ByteString>, key: &str, value: i64) {
    if value > 0 || value == -1 {
        data.insert(key.to_owned(), ByteString(value.to_string().into_bytes()));
    } else {
        data.remove(key);
    }
}
