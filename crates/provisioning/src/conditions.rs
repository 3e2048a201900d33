//! Conditions in Rancher's form (`GenericCondition`), where Unknown means "in progress".
//!
//! The transition time moves only with the status, the update time only when anything changes.

use drover_api::rke::v1::GenericCondition;
use jiff::Timestamp;

pub const TRUE: &str = "True";
pub const FALSE: &str = "False";
pub const UNKNOWN: &str = "Unknown";

pub fn get<'a>(conditions: &'a [GenericCondition], type_: &str) -> Option<&'a GenericCondition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

pub fn is_true(conditions: &[GenericCondition], type_: &str) -> bool {
    get(conditions, type_).is_some_and(|condition| condition.status == TRUE)
}

/// Puts a condition into the list, which stays sorted by type.
pub fn set(
    conditions: &mut Vec<GenericCondition>,
    type_: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let time = Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
    let mut fresh = GenericCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: time.clone(),
        last_update_time: time,
    };
    match conditions.iter_mut().find(|condition| condition.type_ == type_) {
        Some(old) => {
            if old.status == status && old.reason == reason && old.message == message {
                return;
            }
            if old.status == status {
                fresh.last_transition_time.clone_from(&old.last_transition_time);
            }
            *old = fresh;
        }
        None => conditions.push(fresh),
    }
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
}

/// Copies a condition under another name.
pub fn copy(conditions: &mut Vec<GenericCondition>, type_: &str, source: &GenericCondition, now: Timestamp) {
    set(conditions, type_, &source.status, &source.reason, &source.message, now);
}
