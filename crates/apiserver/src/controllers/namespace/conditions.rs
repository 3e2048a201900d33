//! The conditions of a namespace that is being deleted: which objects and finalizers remain. Pure.
//! Types and reasons: kubernetes pkg/controller/namespace/deletion/status_condition_utils.go.

use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A message names at most this many objects.
const MAX_NAMED: usize = 20;

/// A remaining object.
#[derive(Clone, Debug)]
pub(super) struct Remaining {
    /// `widgets.example.com`.
    pub(super) resource: String,
    pub(super) name: String,
    pub(super) finalizers: Vec<String>,
}

/// The result of a round of deletion.
#[derive(Clone, Debug, Default)]
pub(super) struct Round {
    pub(super) remaining: Vec<Remaining>,
    /// The errors of failed deletions.
    pub(super) failures: Vec<String>,
}

/// The conditions after a round; unchanged ones keep their transition time.
pub(super) fn conditions(old: &Value, round: &Round, now: Timestamp) -> Vec<Value> {
    let wanted = [
        (
            "NamespaceDeletionDiscoveryFailure",
            false,
            "ResourcesDiscovered",
            "All resources successfully discovered".into(),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed".into(),
        ),
        content_failure(round),
        content_remaining(round),
        finalizers_remaining(round),
    ];
    let old = old.as_array().map(Vec::as_slice).unwrap_or_default();
    let mut all: Vec<Value> =
        old.iter().filter(|c| !wanted.iter().any(|w| c["type"] == w.0)).cloned().collect();
    for (kind, status, reason, message) in wanted {
        let status = if status { "True" } else { "False" };
        let before = old.iter().find(|c| c["type"] == kind && c["status"] == status);
        let since = before
            .map_or_else(|| crate::clock::rfc3339_seconds(now).into(), |c| c["lastTransitionTime"].clone());
        all.push(json!({
            "type": kind, "status": status, "lastTransitionTime": since, "reason": reason, "message": message,
        }));
    }
    all
}

type Wanted = (&'static str, bool, &'static str, String);

fn content_failure(round: &Round) -> Wanted {
    let kind = "NamespaceDeletionContentFailure";
    if round.failures.is_empty() {
        let message = "All content successfully deleted, may be waiting on finalization";
        return (kind, false, "ContentDeleted", message.into());
    }
    let text: Vec<&str> = round.failures.iter().take(MAX_NAMED).map(String::as_str).collect();
    (kind, true, "ContentDeletionFailed", format!("Failed to delete all resource types: {}", text.join(", ")))
}

fn content_remaining(round: &Round) -> Wanted {
    let kind = "NamespaceContentRemaining";
    if round.remaining.is_empty() {
        return (kind, false, "ContentRemoved", "All content successfully removed".into());
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for r in &round.remaining {
        *counts.entry(&r.resource).or_default() += 1;
    }
    let counts: Vec<String> = counts.iter().map(|(r, n)| format!("{r} has {n} resource instances")).collect();
    let message =
        format!("Some resources are remaining: {} ({})", counts.join(", "), names(round.remaining.iter()));
    (kind, true, "SomeResourcesRemain", message)
}

fn finalizers_remaining(round: &Round) -> Wanted {
    let kind = "NamespaceFinalizersRemaining";
    let held: Vec<&Remaining> = round.remaining.iter().filter(|r| !r.finalizers.is_empty()).collect();
    if held.is_empty() {
        return (kind, false, "ContentHasNoFinalizers", "All content-preserving finalizers finished".into());
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for finalizer in held.iter().flat_map(|r| &r.finalizers) {
        *counts.entry(finalizer).or_default() += 1;
    }
    let counts: Vec<String> = counts.iter().map(|(f, n)| format!("{f} in {n} resource instances")).collect();
    let message = format!(
        "Some content in the namespace has finalizers remaining: {} ({})",
        counts.join(", "),
        names(held.into_iter())
    );
    (kind, true, "SomeFinalizersRemain", message)
}

fn names<'a>(objects: impl Iterator<Item = &'a Remaining>) -> String {
    let mut all: Vec<String> = objects.map(|r| format!("{}/{}", r.resource, r.name)).collect();
    let more = all.len().saturating_sub(MAX_NAMED);
    all.truncate(MAX_NAMED);
    if more > 0 {
        all.push(format!("and {more} more"));
    }
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn find<'a>(all: &'a [Value], kind: &str) -> &'a Value {
        all.iter().find(|c| c["type"] == kind).unwrap()
    }

    #[test]
    fn kubernetes_check_20_the_conditions_name_the_blocking_object_and_its_finalizer() {
        let stuck = Remaining {
            resource: "widgets.x".into(),
            name: "w".into(),
            finalizers: vec!["example.com/hold".into()],
        };
        let round = Round { remaining: vec![stuck], failures: Vec::new() };
        let first = conditions(&Value::Null, &round, at(100));
        let remaining = find(&first, "NamespaceContentRemaining");
        assert_eq!(remaining["status"], "True");
        assert_eq!(
            remaining["message"],
            "Some resources are remaining: widgets.x has 1 resource instances (widgets.x/w)"
        );
        let finalizers = find(&first, "NamespaceFinalizersRemaining");
        assert_eq!(finalizers["reason"], "SomeFinalizersRemain");
        assert!(
            finalizers["message"]
                .as_str()
                .unwrap()
                .contains("example.com/hold in 1 resource instances (widgets.x/w)")
        );

        assert_eq!(conditions(&json!(first), &round, at(200)), first, "unchanged except for the time");
        let done = conditions(&json!(first), &Round::default(), at(300));
        assert_eq!(find(&done, "NamespaceContentRemaining")["status"], "False");
        assert_ne!(
            find(&done, "NamespaceContentRemaining")["lastTransitionTime"],
            remaining["lastTransitionTime"]
        );
        assert_eq!(
            find(&done, "NamespaceDeletionDiscoveryFailure"),
            find(&first, "NamespaceDeletionDiscoveryFailure")
        );
    }

    #[test]
    fn many_objects_are_counted_and_other_conditions_are_kept() {
        let many =
            (0..50).map(|i| Remaining { resource: "pods".into(), name: i.to_string(), finalizers: vec![] });
        let round = Round { remaining: many.collect(), failures: vec!["pods/1: no".into()] };
        let all = conditions(&json!([{"type": "Mine", "status": "True"}]), &round, at(1));
        assert_eq!(find(&all, "Mine")["status"], "True");
        assert!(
            find(&all, "NamespaceContentRemaining")["message"].as_str().unwrap().ends_with("and 30 more)")
        );
        assert_eq!(find(&all, "NamespaceDeletionContentFailure")["status"], "True");
    }
}
