//! A change of a finished cluster on its way to the machines: what it is, since when, and how it ended. Pure.
//!
//! The condition `Updating` is there as long as a change is under way and says which. Comparing it with what is under way
//! now gives every beginning an end, also where a person changes their mind in the middle.

use std::cmp::Ordering;

use drover_api::rke::v1::GenericCondition;
use drover_runtime::events::Note;

use super::decide::{Decision, End};
use super::scope::Scope;
use crate::conditions as generic;
use crate::keys::conditions::UPDATING;

/// What is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    kind: Kind,
    /// What happens, in words.
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Upgrade,
    Downgrade,
    /// Anything but the version.
    Configuration,
    /// Back to what every machine had, before the change that was under way had reached them all.
    Return,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Upgrade, Self::Downgrade, Self::Configuration, Self::Return];

    /// Reason of the condition, and of the events at the beginning, the end, and where another change overtakes it.
    fn reasons(self) -> [&'static str; 4] {
        match self {
            Self::Upgrade => ["Upgrading", "UpgradeStarted", "UpgradeFinished", "UpgradeSuperseded"],
            Self::Downgrade => {
                ["Downgrading", "DowngradeStarted", "DowngradeFinished", "DowngradeSuperseded"]
            }
            Self::Configuration => ["Reconfiguring", "UpdateStarted", "UpdateFinished", "UpdateSuperseded"],
            Self::Return => ["GoingBack", "UpdateStarted", "UpdateFinished", "UpdateSuperseded"],
        }
    }
}

impl Change {
    /// What is under way between the specification that every machine had and that of now.
    pub fn of(scope: &Scope) -> Option<Self> {
        let applied = scope.status.applied_spec.as_deref()?;
        let (old, new) = (&applied.kubernetes_version, &scope.spec.kubernetes_version);
        let (kind, message) = match order(old, new) {
            Ordering::Less => (Kind::Upgrade, format!("Upgrading from {old} to {new}")),
            Ordering::Greater => (Kind::Downgrade, format!("Downgrading from {old} to {new}")),
            Ordering::Equal if *applied != scope.spec => {
                (Kind::Configuration, "The configuration changed".to_owned())
            }
            Ordering::Equal if Self::announced(scope).is_some() => {
                (Kind::Return, format!("Going back to {new} and the configuration as it was"))
            }
            Ordering::Equal => return None,
        };
        Some(Self { kind, message })
    }

    /// What was said to be under way.
    fn announced(scope: &Scope) -> Option<Self> {
        let GenericCondition { reason, message, .. } = generic::get(&scope.status.conditions, UPDATING)?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.reasons()[0] == reason)?;
        Some(Self { kind, message: message.clone() })
    }

    /// Reason of the condition.
    pub fn reason(&self) -> &'static str {
        self.kind.reasons()[0]
    }

    fn started(&self) -> Note {
        let message = match self.kind {
            Kind::Configuration => format!("{}; it goes out machine by machine", self.message),
            _ => format!("{}, machine by machine", self.message),
        };
        Note::normal(self.kind.reasons()[1], message)
    }

    fn finished(&self, version: &str) -> Note {
        let message = match self.kind {
            Kind::Upgrade | Kind::Downgrade => format!("Every machine runs {version}"),
            Kind::Configuration => "Every machine has the changed configuration".to_owned(),
            Kind::Return => format!("Every machine runs {version} and has the configuration as it was"),
        };
        Note::normal(self.kind.reasons()[2], message)
    }

    fn superseded(&self) -> Note {
        let message =
            format!("Not finished, because the specification changed again before: {}", self.message);
        Note::normal(self.kind.reasons()[3], message)
    }
}

/// A change that begins, and one that the specification has overtaken. Told before the first write of the change; whether
/// something begins is compared with the status, so a pass whose writes fail tells it again.
pub fn begun(scope: &Scope, decision: &Decision) -> Vec<Note> {
    if !matches!(decision.end, End::Ready | End::Waiting(_)) {
        return Vec::new();
    }
    let (before, now) = (Change::announced(scope), Change::of(scope));
    let overtaken = before.as_ref().filter(|before| now.as_ref() != Some(*before)).map(Change::superseded);
    let starts = now.as_ref().filter(|now| decision.end != End::Ready && before.as_ref() != Some(*now));
    overtaken.into_iter().chain(starts.map(Change::started)).collect()
}

/// A change that every machine has.
pub fn finished(scope: &Scope, decision: &Decision) -> Option<Note> {
    let now = Change::of(scope).filter(|_| decision.end == End::Ready)?;
    Some(now.finished(&scope.spec.kubernetes_version))
}

/// Which version comes first; what is no version comes nowhere.
fn order(old: &str, new: &str) -> Ordering {
    let parse = |text: &str| semver::Version::parse(text.trim_start_matches('v')).ok();
    let (Some(old), Some(new)) = (parse(old), parse(new)) else { return Ordering::Equal };
    let numbers = |version: &semver::Version| (version.major, version.minor, version.patch);
    numbers(&old)
        .cmp(&numbers(&new))
        .then_with(|| old.pre.cmp(&new.pre))
        .then_with(|| build(&old.build).cmp(&build(&new.build)))
}

/// `k3s10` as words with their numbers, because text alone would put it before `k3s2`.
fn build(text: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let word = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let end = rest[word..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |at| word + at);
        parts.push((rest[..word].to_owned(), rest[word..end].parse().unwrap_or_default()));
        rest = &rest[end..];
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_with_their_builds() {
        for (old, new) in [
            ("v1.34.1+k3s1", "v1.34.2+k3s1"),
            ("v1.34.2+k3s1", "v1.35.0+k3s1"),
            ("v1.34.1+k3s2", "v1.34.1+k3s10"),
            ("v1.34.1-rc1+k3s1", "v1.34.1+k3s1"),
            ("1.34.1+rke2r1", "v1.34.1+rke2r2"),
        ] {
            assert_eq!(
                (order(old, new), order(new, old)),
                (Ordering::Less, Ordering::Greater),
                "{old} {new}"
            );
        }
        assert_eq!(order("v1.34.1+k3s1", "1.34.1+k3s1"), Ordering::Equal);
        assert_eq!(order("v1.34.1+k3s1", "newest"), Ordering::Equal);
    }
}
