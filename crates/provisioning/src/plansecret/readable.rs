//! The Machine's condition `PlanSecretReadable`: which keys of its plan secret hold what they are not for. Pure.
//!
//! A Machine whose secret was always readable has no such condition. After a repair the condition stays for an hour:
//! the repair itself is over too soon to be seen.

use jiff::{SignedDuration, Timestamp};

use super::garbage::Garbage;

/// How long a repair is told.
const TOLD: SignedDuration = SignedDuration::from_hours(1);
/// So many keys are told of; the others are counted.
const MOST: usize = 3;

/// The condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readable {
    pub value: &'static str,
    pub reason: &'static str,
    pub message: String,
}

/// The condition as it stands: status, message, and since when.
#[derive(Clone, Copy, Debug)]
pub struct Live<'a> {
    pub value: &'a str,
    pub message: &'a str,
    pub since: Timestamp,
}

/// The condition after a look at the secret, if there is one, and when to look again. `repaired` says whether what can
/// be repaired has been.
pub fn readable(
    garbage: &[Garbage],
    secret: &str,
    repaired: bool,
    live: Option<Live<'_>>,
    now: Timestamp,
) -> (Option<Readable>, Option<Timestamp>) {
    let left: Vec<&Garbage> = garbage.iter().filter(|one| !(repaired && one.is_repaired())).collect();
    if !left.is_empty() {
        let message = messages(&left, secret);
        return (Some(Readable { value: "False", reason: "Garbage", message }), None);
    }
    let message = match live {
        _ if !garbage.is_empty() => messages(&garbage.iter().collect::<Vec<_>>(), secret),
        Some(live) if live.value == "False" => live.message.to_owned(),
        Some(live) if now.duration_since(live.since) < TOLD => {
            let same = Readable { value: "True", reason: "Repaired", message: live.message.to_owned() };
            return (Some(same), live.since.checked_add(TOLD).ok());
        }
        _ => return (None, None),
    };
    let message = format!("repaired: {}", message.trim_start_matches("repaired: "));
    (Some(Readable { value: "True", reason: "Repaired", message }), now.checked_add(TOLD).ok())
}

fn messages(garbage: &[&Garbage], secret: &str) -> String {
    let told: Vec<String> = garbage.iter().take(MOST).map(|one| one.message(secret)).collect();
    let told = told.join("; ");
    if garbage.len() <= MOST { told } else { format!("{told}; and {} more keys", garbage.len() - MOST) }
}

#[cfg(test)]
mod tests {
    use super::super::NodeState;
    use super::*;
    use k8s_openapi::ByteString;

    fn garbage(key: &str) -> Vec<Garbage> {
        let data = [(key.to_owned(), ByteString(b"odd".to_vec()))].into();
        NodeState::from_data(&data).garbage
    }

    #[test]
    fn a_key_of_the_agent_is_told_until_it_is_readable_and_for_an_hour_after() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let (told, again) = readable(&garbage("probe-statuses"), "a/b", true, None, now);
        let told = told.unwrap();
        assert_eq!((told.value, told.reason, again), ("False", "Garbage", None));
        assert!(
            told.message.starts_with("key probe-statuses of Secret a/b holds 3 bytes"),
            "{}",
            told.message
        );
        let live = Live { value: "False", message: &told.message, since: now };
        let (after, again) = readable(&[], "a/b", true, Some(live), now);
        let after = after.unwrap();
        assert_eq!((after.value, after.reason), ("True", "Repaired"));
        assert_eq!(after.message, format!("repaired: {}", told.message));
        let live = Live { value: "True", message: &after.message, since: now };
        assert_eq!(readable(&[], "a/b", true, Some(live), now).0, Some(after.clone()));
        assert_eq!(readable(&[], "a/b", true, Some(live), again.unwrap()), (None, None));
        assert_eq!(readable(&[], "a/b", true, None, now), (None, None));
    }

    #[test]
    fn a_repair_is_told_when_it_is_made() {
        let now = Timestamp::UNIX_EPOCH;
        let garbage = garbage("failure-count");
        let told = readable(&garbage, "a/b", true, None, now).0.unwrap();
        assert_eq!(told.value, "True");
        assert!(told.message.starts_with("repaired: key failure-count of Secret a/b holds \"odd\""));
        assert_eq!(readable(&garbage, "a/b", false, None, now).0.unwrap().value, "False");
    }
}
