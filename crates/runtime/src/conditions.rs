//! Conditions in the Kubernetes form (`metav1.Condition`).
//!
//! The transition time changes only with the status, and lists are sorted by type, so that writing the same state
//! twice gives the same bytes.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

pub const TRUE: &str = "True";
pub const FALSE: &str = "False";
pub const UNKNOWN: &str = "Unknown";

/// A condition without a transition time.
pub fn new(type_: &str, status: &str, reason: &str, message: impl Into<String>) -> Condition {
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.into(),
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
        observed_generation: None,
    }
}

/// `status` as in the API.
pub fn status(value: bool) -> &'static str {
    if value { TRUE } else { FALSE }
}

pub fn get<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    get(conditions, type_).is_some_and(|c| c.status == TRUE)
}

pub fn is_false(conditions: &[Condition], type_: &str) -> bool {
    get(conditions, type_).is_some_and(|c| c.status == FALSE)
}

/// Sets `condition` in the list; keeps the transition time if the status has not changed.
pub fn set(conditions: &mut Vec<Condition>, mut condition: Condition, now: Timestamp) {
    let time = whole_seconds(now);
    match conditions.iter_mut().find(|c| c.type_ == condition.type_) {
        Some(old) => {
            condition.last_transition_time =
                if old.status == condition.status { old.last_transition_time.clone() } else { Time(time) };
            *old = condition;
        }
        None => {
            condition.last_transition_time = Time(time);
            conditions.push(condition);
        }
    }
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
}

/// The desired conditions, with the transition times of `live` if the status has not changed.
pub fn merge(
    live: &[Condition],
    desired: impl IntoIterator<Item = Condition>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut out = Vec::new();
    for mut condition in desired {
        condition.last_transition_time = match get(live, &condition.type_) {
            Some(old) if old.status == condition.status => old.last_transition_time.clone(),
            _ => Time(whole_seconds(now)),
        };
        out.push(condition);
    }
    out.sort_by(|a, b| a.type_.cmp(&b.type_));
    out
}

/// The API stores whole seconds; finer times would differ from what is read back.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_transition_time_changes_only_with_the_status() {
        let mut list = vec![];
        set(&mut list, new("Ready", FALSE, "Waiting", "a"), at(10));
        set(&mut list, new("Ready", FALSE, "Waiting", "b"), at(20));
        assert_eq!((list[0].message.as_str(), list[0].last_transition_time.0), ("b", at(10)));
        set(&mut list, new("Ready", TRUE, "Done", ""), at(30));
        assert_eq!(list[0].last_transition_time.0, at(30));
        set(&mut list, new("Available", TRUE, "Done", ""), at(30));
        assert_eq!(list.iter().map(|c| c.type_.as_str()).collect::<Vec<_>>(), ["Available", "Ready"]);
    }

    #[test]
    fn merge_of_the_same_state_is_the_same_list() {
        let first = merge(&[], [new("B", TRUE, "R", ""), new("A", FALSE, "R", "")], at(5));
        assert_eq!(merge(&first, [new("A", FALSE, "R", ""), new("B", TRUE, "R", "")], at(9)), first);
    }
}
