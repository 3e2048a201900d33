//! The two condition formats of Cluster API, created from one state.

use drover_api::capi::v1beta2::V1Beta1Condition;
use drover_api::conditions::{reasons, types};
use drover_runtime::conditions::{FALSE, TRUE, UNKNOWN, get, new, whole_seconds};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::external::External;
use crate::waits::{Hold, Shown, Subject};

/// Reason of a failure that only a person can correct.
pub const INVALID_CONFIGURATION: &str = "InvalidConfiguration";

/// Severity of a False in the older format.
#[derive(Clone, Copy, Debug)]
pub enum Severity {
    /// Requires a person.
    Error,
    /// Should be resolved automatically, but may not.
    Warning,
    /// Part of the normal process.
    Info,
}

/// A condition of the older format that is True.
pub fn old_true(type_: &str) -> V1Beta1Condition {
    old(type_, TRUE, None, "", "")
}

/// A condition of the older format that is False.
pub fn old_false(type_: &str, severity: Severity, reason: &str, message: &str) -> V1Beta1Condition {
    old(type_, FALSE, Some(severity), reason, message)
}

/// A condition of the older format.
pub fn old(
    type_: &str,
    status: &str,
    severity: Option<Severity>,
    reason: &str,
    message: &str,
) -> V1Beta1Condition {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    V1Beta1Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        severity: severity.map(|severity| format!("{severity:?}")),
        reason: text(reason),
        message: text(message),
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
    }
}

/// Sets our conditions of the older format in the live list, which others also write.
///
/// `Ready` comes first, as clients of that format expect; the rest is sorted by type.
pub fn merge_old(
    live: &[V1Beta1Condition],
    own: Vec<V1Beta1Condition>,
    now: Timestamp,
) -> Vec<V1Beta1Condition> {
    let mut merged: Vec<V1Beta1Condition> = live.to_vec();
    for mut condition in own {
        match merged.iter_mut().find(|old| old.type_ == condition.type_) {
            Some(old) => {
                condition.last_transition_time = old.last_transition_time.clone();
                if *old != condition {
                    condition.last_transition_time = Time(whole_seconds(now));
                    *old = condition;
                }
            }
            None => {
                condition.last_transition_time = Time(whole_seconds(now));
                merged.push(condition);
            }
        }
    }
    merged.sort_by(|a, b| (a.type_ != "Ready", &a.type_).cmp(&(b.type_ != "Ready", &b.type_)));
    merged
}

/// `Ready` of the older format: the worst of the others.
pub fn old_summary(others: &[V1Beta1Condition]) -> V1Beta1Condition {
    let rank =
        |condition: &&V1Beta1Condition| match (condition.status.as_str(), condition.severity.as_deref()) {
            (FALSE, Some("Error")) => 0,
            (FALSE, Some("Warning")) => 1,
            (FALSE, _) => 2,
            (UNKNOWN, _) => 3,
            _ => 4,
        };
    match others.iter().min_by_key(rank) {
        Some(worst) if worst.status != TRUE => V1Beta1Condition { type_: "Ready".into(), ..worst.clone() },
        _ => old_true("Ready"),
    }
}

/// What a condition means for its object.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Verdict {
    Good,
    Unknown,
    Bad,
}

fn verdict(condition: &Condition, negative: bool) -> Verdict {
    match (condition.status.as_str(), negative) {
        (TRUE, false) | (FALSE, true) => Verdict::Good,
        (TRUE, true) | (FALSE, false) => Verdict::Bad,
        _ => Verdict::Unknown,
    }
}

/// An input of a summary.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Type of the condition.
    pub type_: &'a str,
    /// Whether True is bad.
    pub negative: bool,
    /// Whether a missing condition counts as good.
    pub optional: bool,
}

impl<'a> Part<'a> {
    /// A condition that must be True.
    pub fn must(type_: &'a str) -> Self {
        Self { type_, negative: false, optional: false }
    }

    /// A condition that must not be True.
    pub fn must_not(type_: &'a str) -> Self {
        Self { type_, negative: true, optional: false }
    }

    /// A condition that must be True if it is present.
    pub fn may(type_: &'a str) -> Self {
        Self { type_, negative: false, optional: true }
    }
}

/// Summarizes other conditions of the same object; the message lists those that are not good.
pub fn summary(type_: &str, reasons: [&str; 3], parts: &[Part<'_>], conditions: &[Condition]) -> Condition {
    let mut worst = Verdict::Good;
    let mut lines = Vec::new();
    for part in parts {
        let found = get(conditions, part.type_);
        let (verdict, message) = match found {
            Some(condition) => (verdict(condition, part.negative), condition.message.clone()),
            None if part.optional => continue,
            None => (Verdict::Unknown, "Condition not yet reported".to_owned()),
        };
        if verdict != Verdict::Good {
            let reason = found.map(|condition| condition.reason.clone()).unwrap_or_default();
            lines.push(bullet(part.type_, if message.is_empty() { &reason } else { &message }));
        }
        worst = worse(worst, verdict);
    }
    from_verdict(type_, reasons, worst, lines.join("\n"))
}

/// Aggregates one condition of many objects; equal messages are combined.
///
/// `objects` are (name, condition). `kind` is the plural shown for more than one.
pub fn aggregate<'a>(
    type_: &str,
    reasons: [&str; 3],
    kind: (&str, &str),
    negative: bool,
    objects: impl IntoIterator<Item = (&'a str, Option<&'a Condition>)>,
) -> Condition {
    let mut worst = Verdict::Good;
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for (name, condition) in objects {
        let (verdict, message) = match condition {
            Some(condition) => (verdict(condition, negative), condition.message.clone()),
            None => (Verdict::Unknown, format!("Condition {type_} not yet reported")),
        };
        worst = worse(worst, verdict);
        if verdict == Verdict::Good {
            continue;
        }
        let message = if message.is_empty() {
            condition.map(|c| c.reason.clone()).unwrap_or_default()
        } else {
            message
        };
        match groups.iter_mut().find(|(known, _)| *known == message) {
            Some((_, names)) => names.push(name),
            None => groups.push((message, vec![name])),
        }
    }
    let lines: Vec<String> = groups
        .iter()
        .map(|(message, names)| {
            let kind = if names.len() == 1 { kind.0 } else { kind.1 };
            bullet(&format!("{kind} {}", Shown { items: names, most: 3 }), message)
        })
        .collect();
    from_verdict(type_, reasons, worst, lines.join("\n"))
}

/// Reasons of a readiness condition: good, unknown, bad.
pub const READY: [&str; 3] = [reasons::READY, reasons::READY_UNKNOWN, reasons::NOT_READY];
/// Reasons of an availability condition: good, unknown, bad.
pub const AVAILABLE: [&str; 3] = [reasons::AVAILABLE, reasons::AVAILABLE_UNKNOWN, reasons::NOT_AVAILABLE];
/// Reasons of an up-to-date condition: good, unknown, bad.
pub const UP_TO_DATE: [&str; 3] = [reasons::UP_TO_DATE, reasons::UP_TO_DATE_UNKNOWN, reasons::NOT_UP_TO_DATE];

/// `Paused`.
pub fn paused(is_paused: bool, cluster_paused: bool) -> Condition {
    if !is_paused {
        return new(types::PAUSED, FALSE, reasons::NOT_PAUSED, "");
    }
    let why = if cluster_paused {
        "Cluster spec.paused is set to true"
    } else {
        "The object has the cluster.x-k8s.io/paused annotation"
    };
    new(types::PAUSED, TRUE, reasons::PAUSED, why)
}

/// `Deleting` of an object that is not being deleted.
pub fn not_deleting() -> Condition {
    new(types::DELETING, FALSE, reasons::NOT_DELETING, "")
}

/// A condition that is copied from a provider's object if present, otherwise derived from its flags.
pub fn external_condition(
    type_: &str,
    source: &str,
    [good, _, bad]: [&str; 3],
    external: &External,
    subject: &Subject,
    done: bool,
    waiting: Hold,
) -> Condition {
    match external {
        External::Unresolvable(error) => {
            new(type_, UNKNOWN, reasons::INTERNAL_ERROR, Hold::Unresolvable(error.clone()).to_string())
        }
        External::NotFound(_) if done => {
            new(type_, FALSE, reasons::OBJECT_DELETED, Hold::Deleted(subject.clone()).to_string())
        }
        External::NotFound(_) | External::Unset => {
            new(type_, FALSE, reasons::OBJECT_DOES_NOT_EXIST, Hold::Missing(subject.clone()).to_string())
        }
        External::Found { .. } => match external.provided().and_then(|object| object.condition(source)) {
            Some((status, reason, message)) if [TRUE, FALSE, UNKNOWN].contains(&status.as_str()) => {
                let fallback = if status == TRUE { good } else { bad };
                let reason = if is_reason(&reason) { reason } else { fallback.to_owned() };
                let silent = message.is_empty() && status != TRUE;
                let message = if silent { waiting.to_string() } else { message };
                new(type_, &status, &reason, message)
            }
            Some((status, ..)) => {
                let (subject, condition) = (subject.clone(), source.to_owned());
                let invalid = Hold::InvalidStatus { subject, condition, status };
                new(type_, UNKNOWN, reasons::INVALID_CONDITION_REPORTED, invalid.to_string())
            }
            None if done => new(type_, TRUE, good, ""),
            None => new(type_, FALSE, bad, waiting.to_string()),
        },
    }
}

/// Providers with the older format use reasons that our schema rejects.
fn is_reason(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_,:".contains(&byte))
        && text.bytes().last().is_some_and(|last| last.is_ascii_alphanumeric() || last == b'_')
}

fn bullet(subject: &str, message: &str) -> String {
    if message.contains('\n') {
        let indented: Vec<String> = message.lines().map(|line| format!("  {line}")).collect();
        format!("* {subject}:\n{}", indented.join("\n"))
    } else {
        format!("* {subject}: {message}")
    }
}

fn worse(a: Verdict, b: Verdict) -> Verdict {
    match (a, b) {
        (Verdict::Bad, _) | (_, Verdict::Bad) => Verdict::Bad,
        (Verdict::Unknown, _) | (_, Verdict::Unknown) => Verdict::Unknown,
        _ => Verdict::Good,
    }
}

fn from_verdict(
    type_: &str,
    [good, unknown, bad]: [&str; 3],
    verdict: Verdict,
    message: String,
) -> Condition {
    match verdict {
        Verdict::Good => new(type_, TRUE, good, ""),
        Verdict::Unknown => new(type_, UNKNOWN, unknown, message),
        Verdict::Bad => new(type_, FALSE, bad, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_lists_the_conditions_that_are_not_good() {
        let conditions = [
            new("Deleting", FALSE, "NotDeleting", ""),
            new("Infra", FALSE, "NotReady", "no server yet"),
            new("Node", UNKNOWN, "ConnectionDown", "a\nb"),
        ];
        let parts =
            [Part::must_not("Deleting"), Part::must("Infra"), Part::must("Node"), Part::may("Health")];
        let ready = summary("Ready", READY, &parts, &conditions);
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), (FALSE, "NotReady"));
        assert_eq!(ready.message, "* Infra: no server yet\n* Node:\n  a\n  b");
        let ready = summary("Ready", READY, &[Part::must_not("Deleting"), Part::must("Absent")], &conditions);
        assert_eq!(ready.status, UNKNOWN);
    }

    #[test]
    fn an_aggregate_combines_equal_messages() {
        let bad = new("Ready", FALSE, "NotReady", "no node");
        let good = new("Ready", TRUE, "Ready", "");
        let objects = [("a", Some(&bad)), ("b", Some(&bad)), ("c", Some(&good)), ("d", None)];
        let all = aggregate("MachinesReady", READY, ("Machine", "Machines"), false, objects);
        assert_eq!(all.status, FALSE);
        assert_eq!(
            all.message,
            "* Machines a, b: no node\n* Machine d: Condition MachinesReady not yet reported"
        );
    }

    #[test]
    fn the_older_format_keeps_foreign_conditions_and_times() {
        let now = Timestamp::from_second(1000).unwrap();
        let later = Timestamp::from_second(2000).unwrap();
        let first = merge_old(&[old_true("Foreign")], vec![old_false("B", Severity::Info, "X", "y")], now);
        let second =
            merge_old(&first, vec![old_false("B", Severity::Info, "X", "y"), old_true("Ready")], later);
        assert_eq!(second.iter().map(|c| c.type_.as_str()).collect::<Vec<_>>(), ["Ready", "B", "Foreign"]);
        assert_eq!(second[1].last_transition_time.0, now);
        assert_eq!(second[0].last_transition_time.0, later);
    }
}
