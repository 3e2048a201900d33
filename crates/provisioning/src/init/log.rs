//! The provisioning log: what a cluster waited for, as lines in a ConfigMap. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use drover_api::provisioning::v1::ClusterStatus;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;

use crate::conditions;
use crate::keys::conditions as types;

/// Name of the ConfigMap, in the management cluster's namespace.
pub const NAME: &str = "provisioning-log";
/// At most so many bytes; the oldest lines go first.
pub const LIMIT: usize = 10_000;

/// How often a line is written at most while the cluster is on its way.
pub const WINDOW: Duration = Duration::from_secs(2);

/// What a cluster reports now, and whether it is an error.
pub fn message(status: &ClusterStatus) -> Option<(String, bool)> {
    let of = |type_: &str| conditions::get(&status.conditions, type_);
    let provisioned = of(types::PROVISIONED)?;
    let mut current = provisioned;
    if provisioned.status == conditions::TRUE && provisioned.message.is_empty() {
        current = of(types::UPDATED).unwrap_or(provisioned);
    }
    let failed = current.status == conditions::FALSE;
    let mut text = current.message.clone();
    if text.is_empty() && status.ready {
        text = "provisioning done".to_owned();
    }
    if text.contains("the object has been modified") {
        text = format!("Transient error encountered: {text}");
    }
    (!text.is_empty()).then_some((text, failed))
}

/// What to do about the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Nothing,
    /// A line was written a moment ago.
    Later(Duration),
    /// The new content of the ConfigMap.
    Write(BTreeMap<String, String>),
}

/// Appends what a cluster reports. Messages that follow each other quickly are skipped, as in the original, which looks
/// every [`WINDOW`]; errors and the end are written at once.
pub fn next(live: Option<&ConfigMap>, status: &ClusterStatus, now: Timestamp) -> Step {
    let field = |key: &str| live.and_then(|map| map.data.as_ref()?.get(key).cloned()).unwrap_or_default();
    let Some((message, failed)) = message(status) else { return Step::Nothing };
    let log = field("log");
    let Some(text) = append(&log, &field("last"), &message, failed, now) else { return Step::Nothing };
    let of = |type_: &str| conditions::get(&status.conditions, type_);
    let settled = of(types::READY).is_some_and(|ready| ready.status != conditions::UNKNOWN);
    if let Some(rest) = rest(&log, now).filter(|_| !failed && !settled) {
        return Step::Later(rest);
    }
    Step::Write([("log".to_owned(), text), ("last".to_owned(), message)].into())
}

/// How long the next line has to wait.
fn rest(log: &str, now: Timestamp) -> Option<Duration> {
    let line = log.lines().next_back()?;
    let last: Timestamp = line.split_once(' ')?.0.parse().ok()?;
    let elapsed = Duration::try_from(now.duration_since(last)).ok()?;
    WINDOW.checked_sub(elapsed).filter(|rest| !rest.is_zero())
}

/// The log with the message appended, or nothing if it is the last one again.
pub fn append(log: &str, last: &str, message: &str, failed: bool, now: Timestamp) -> Option<String> {
    if message == last {
        return None;
    }
    let time = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let level = if failed { "[ERROR]" } else { "[INFO ]" };
    let mut text = log.to_owned();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(&format!("{time} {level} {}\n", message.replace('\n', " ")));
    while text.len() > LIMIT {
        match text.find('\n') {
            Some(end) if end + 1 < text.len() => drop(text.drain(..=end)),
            _ => {
                // One line alone is too long: keep its beginning.
                let mut end = LIMIT;
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                text.truncate(end);
            }
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn provisioning_check_36_no_repeats_bounded_size_and_errors_marked() {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let log = append("", "", "waiting for viable init node", false, now).unwrap();
        assert_eq!(log, "2026-01-01T00:00:00Z [INFO ] waiting for viable init node\n");
        assert_eq!(
            append(&log, "waiting for viable init node", "waiting for viable init node", false, now),
            None
        );
        let log = append(&log, "x", "broken", true, now).unwrap();
        assert!(log.ends_with("[ERROR] broken\n"), "{log}");
        let mut long = String::new();
        for number in 0..500 {
            long = append(&long, "", &format!("line {number}"), false, now).unwrap();
        }
        assert!(long.len() <= LIMIT && long.starts_with("2026-") && long.ends_with("line 499\n"));
        assert!(append("", "", &"ä".repeat(LIMIT), false, now).unwrap().len() <= LIMIT);
    }

    #[test]
    fn a_line_waits_for_two_seconds_after_the_last_unless_the_cluster_fails_or_is_done() {
        let status = |ready: &str, message: &str| -> ClusterStatus {
            let of = |type_: &str| json!({"type": type_, "status": ready, "message": message});
            serde_json::from_value(json!({"conditions": [of("Provisioned"), of("Updated"), of("Ready")]}))
                .unwrap()
        };
        let at = |text: &str| -> Timestamp { text.parse().unwrap() };
        let first = next(None, &status("Unknown", "a"), at("2026-01-01T00:00:00Z"));
        let Step::Write(data) = first else { panic!("{first:?}") };
        let map = ConfigMap { data: Some(data), ..ConfigMap::default() };
        let later = |status: &ClusterStatus, time: &str| next(Some(&map), status, at(time));
        assert_eq!(later(&status("Unknown", "a"), "2026-01-01T00:00:05Z"), Step::Nothing);
        let soon = "2026-01-01T00:00:00.5Z";
        assert_eq!(later(&status("Unknown", "b"), soon), Step::Later(Duration::from_millis(1500)));
        for (status, time) in [
            (status("Unknown", "b"), "2026-01-01T00:00:02Z"),
            (status("False", "broken"), soon),
            (status("True", "done"), soon),
        ] {
            assert!(matches!(later(&status, time), Step::Write(_)), "{status:?}");
        }
    }

    #[test]
    fn the_message_follows_the_conditions() {
        let status =
            |provisioned: serde_json::Value, updated: serde_json::Value, ready: bool| -> ClusterStatus {
                serde_json::from_value(json!({"conditions": [provisioned, updated], "ready": ready})).unwrap()
            };
        let condition = |type_: &str, status: &str, message: &str| json!({"type": type_, "status": status, "message": message});
        let waiting =
            status(condition("Provisioned", "Unknown", "a"), condition("Updated", "Unknown", "b"), false);
        assert_eq!(message(&waiting), Some(("a".into(), false)));
        let failed =
            status(condition("Provisioned", "False", "a"), condition("Updated", "Unknown", "b"), false);
        assert_eq!(message(&failed), Some(("a".into(), true)));
        let updating =
            status(condition("Provisioned", "True", ""), condition("Updated", "Unknown", "b"), true);
        assert_eq!(message(&updating), Some(("b".into(), false)));
        let done = status(condition("Provisioned", "True", ""), condition("Updated", "True", ""), true);
        assert_eq!(message(&done), Some(("provisioning done".into(), false)));
    }
}
