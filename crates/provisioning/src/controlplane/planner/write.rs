//! What a write of the planner makes of a plan secret. The secret is written whole, with the resourceVersion
//! it was read with, because both sides own keys that the other removes.

use crate::keys::annotations;
use drover_plan::{Plan, PlanState, keys};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

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
