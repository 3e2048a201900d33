//! What something waits for, as a value.
//!
//! A wait is written once and shown three times: as the message of a condition, as the message of an event, and by
//! `drover why`. All three come from one enum per folder of controllers. The enum's `Display` is the only place with
//! the text, and `From<&Enum> for Wait` adds what the text alone does not say. Code dispatches on variants, never on
//! text (`xtask/src/prose.rs` checks that). The example is `an_enum_is_the_only_place_with_the_text` in the tests of this file.
//!
//! Kinds whose CRD is Drover's keep the waits in `status.waits`, written together with the conditions. Kinds of others
//! (Cluster API, Jobs) have only conditions, from which [`Wait`]s are read back by their reasons.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The most waits that an object lists: its size must not grow with the number of its machines.
pub const MOST: usize = 16;

/// The object that is waited for.
#[derive(Clone, Debug, Default, Deserialize, Eq, Hash, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitObject {
    /// Its kind.
    pub kind: String,
    /// Its namespace; empty for objects of the whole cluster.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Its name.
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

/// Something that is waited for.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// One CamelCase word for programs; it never changes.
    pub reason: String,
    /// The object that is waited for.
    pub object: WaitObject,
    /// The text of the condition and of the event.
    pub message: String,
    /// What would end the wait.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub expected: String,
    /// What is seen instead.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub observed: String,
    /// When the wait began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// What a person can do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Wait {
    /// `message` is the value that renders to the text, usually the enum itself.
    pub fn new(reason: &'static str, object: WaitObject, message: impl fmt::Display) -> Self {
        Self { reason: reason.to_owned(), object, message: message.to_string(), ..Self::default() }
    }

    /// What would end the wait.
    #[must_use]
    pub fn expected(self, expected: impl Into<String>) -> Self {
        Self { expected: expected.into(), ..self }
    }

    /// What is seen instead. It must not change more often than the message: each change is a write.
    #[must_use]
    pub fn observed(self, observed: impl Into<String>) -> Self {
        Self { observed: observed.into(), ..self }
    }

    /// What a person can do.
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

/// The waits to write: a wait of the same reason and object as before keeps its time.
pub fn merge(live: &[Wait], current: impl IntoIterator<Item = Wait>, now: Timestamp) -> Vec<Wait> {
    // The API keeps whole seconds; finer times would differ from what is read back.
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
