//! What a controller waits for, as a value.
//!
//! A wait is defined once and shown in three places: as the message of a condition, as the message of an
//! event, and by `drover why`. The source of all three is one enum per folder of controllers. Only the enum's
//! `Display` contains the text; `From<&Enum> for Wait` adds what the text does not contain. Code dispatches
//! on variants, never on text (`xtask/src/prose.rs` checks that). For an example, see
//! `an_enum_is_the_only_place_with_the_text` in the tests of this file.
//!
//! Kinds whose CRD belongs to Drover list the waits in `status.waits`, which is written together with the
//! conditions. Other kinds (of Cluster API, and Jobs) have only conditions, from whose reasons [`Wait`]s are
//! reconstructed.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The maximum number of waits in an object, so that its size does not grow with the number of machines.
pub const MOST: usize = 16;

/// The object that a controller waits for.
#[derive(Clone, Debug, Default, Deserialize, Eq, Hash, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitObject {
    /// The kind of the object.
    pub kind: String,
    /// The namespace of the object. Empty for cluster-scoped objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name of the object.
    pub name: String,
}

impl WaitObject {
    pub fn new(kind: impl Into<String>, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { kind: kind.into(), namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for WaitObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            return write!(f, "{} {}", self.kind, self.name);
        }
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// A state that a controller waits for.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// The reason for the wait, as one CamelCase word for programs. It is stable across releases.
    pub reason: String,
    /// The object that the controller waits for.
    pub object: WaitObject,
    /// A human-readable description. It is also the message of the condition and of the event.
    pub message: String,
    /// The state that ends the wait.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub expected: String,
    /// The current state.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub observed: String,
    /// The time at which the wait started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// What a user can do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Wait {
    /// `message` is the value that renders the text, usually the enum itself.
    pub fn new(reason: &'static str, object: WaitObject, message: impl fmt::Display) -> Self {
        Self { reason: reason.to_owned(), object, message: message.to_string(), ..Self::default() }
    }

    /// Sets the state that ends the wait.
    #[must_use]
    pub fn expected(self, expected: impl Into<String>) -> Self {
        Self { expected: expected.into(), ..self }
    }

    /// Sets the current state. It must not change more often than the message, because each change causes a
    /// write.
    #[must_use]
    pub fn observed(self, observed: impl Into<String>) -> Self {
        Self { observed: observed.into(), ..self }
    }

    /// Sets what a user can do about it.
    #[must_use]
    pub fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The waits to write. A wait with the same reason and object as before keeps its start time.
pub fn merge(live: &[Wait], current: impl IntoIterator<Item = Wait>, now: Timestamp) -> Vec<Wait> {
    // The API stores whole seconds. A more precise time would differ from the stored one.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let known = |wait: &Wait| live.iter().find(|old| old.reason == wait.reason && old.object == wait.object);
    let timed = current.into_iter().map(|wait| {
        let since = known(&wait).and_then(|old| old.since.clone()).unwrap_or(Time(now));
        Wait { since: Some(since), ..wait }
    });
    timed.take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn wait(reason: &'static str, name: &str) -> Wait {
        Wait::new(reason, WaitObject::new("Machine", "default", name), format!("waiting for {name}"))
    }

    /// What the control plane can wait for.
    enum Hold {
        JoinUrl { machine: WaitObject },
        Members { left: u32 },
    }

    impl fmt::Display for Hold {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self {
                Self::JoinUrl { .. } => f.write_str("waiting for join url to be available on bootstrap node"),
                Self::Members { left } => write!(f, "waiting for {left} etcd members to be removed"),
            }
        }
    }

    impl From<&Hold> for Wait {
        fn from(hold: &Hold) -> Self {
            match hold {
                Hold::JoinUrl { machine } => Wait::new("WaitingForJoinURL", machine.clone(), hold)
                    .expected("the first server reports the URL that the others join")
                    .observed("it has not reported one")
                    .remedy("look at the log of the agent on that machine"),
                Hold::Members { left } => {
                    Wait::new("WaitingForEtcd", WaitObject::new("Cluster", "default", "demo"), hold)
                        .expected("no etcd member is left")
                        .observed(format!("{left} are left"))
                }
            }
        }
    }

    #[test]
    fn an_enum_is_the_only_place_with_the_text() {
        let hold = Hold::JoinUrl { machine: WaitObject::new("Machine", "default", "a") };
        assert_eq!(Wait::from(&hold).message, hold.to_string());
        assert_eq!(Wait::from(&Hold::Members { left: 2 }).observed, "2 are left");
    }

    #[test]
    fn a_wait_keeps_its_time_while_reason_and_object_stay() {
        let first = merge(&[], [wait("A", "x"), wait("A", "y")], at(10));
        let moved = Wait { message: "waiting longer for x".into(), ..wait("A", "x") };
        let second = merge(&first, [moved.clone(), wait("B", "y")], at(20));
        assert_eq!(second[0].since.as_ref().unwrap().0, at(10), "another text is the same wait");
        assert_eq!(second[0].message, moved.message);
        assert_eq!(second[1].since.as_ref().unwrap().0, at(20), "another reason is another wait");
        let later = at(30) + k8s_openapi::jiff::SignedDuration::from_millis(7);
        assert_eq!(
            merge(&second, [moved, wait("B", "y")], later),
            second,
            "nothing changes, nothing is written"
        );
    }

    #[test]
    fn the_list_is_bounded_and_reads_back_as_it_was_written() {
        let many = (0..100).map(|n| wait("A", &format!("m{n}")).expected("e").observed("o").remedy("r"));
        let waits = merge(&[], many, at(5));
        assert_eq!(waits.len(), MOST);
        let text = serde_json::to_string(&waits).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Wait>>(&text).unwrap(), waits);
        assert_eq!(waits[0].object.to_string(), "Machine default/m0");
    }
}
