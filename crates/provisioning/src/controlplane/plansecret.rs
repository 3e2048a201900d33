//! What the server makes of an agent's answers: `appliedPlan`, the stamp of passed probes, pruned output, a
//! second try after a failure, and the Machine's condition `PlanApplied`.

use std::io::Write;

use crate::keys::{annotations, labels};
use drover_plan::{AGENT_OFFER, AgentOffer, PlanState, checksum, keys};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::planner::garbage::{Garbage, Repair};
use super::planner::node::NodeState;
use super::planner::runtime::Runtime;
use super::planner::tier::with_reason;
use super::planner::write::rfc3339;

/// Pause before a failed plan is tried again: this long per failure, at most six times.
const COOLDOWN: SignedDuration = SignedDuration::from_secs(30);

/// What to do about a plan secret.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The secret as it should be, if anything changes.
    pub secret: Option<Secret>,
    /// `PlanApplied` of the Machine; none leaves it alone.
    pub plan_applied: Option<PlanApplied>,
    /// Look again then.
    pub look_again: Option<Timestamp>,
    /// Values that are not what their keys are for. Those that can be repaired are, in `secret`.
    pub garbage: Vec<Garbage>,
}

/// Condition `PlanApplied`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanApplied {
    True,
    False(String),
}

/// Decides about one plan secret.
pub fn decide(secret: &Secret, runtime: Runtime, now: Timestamp) -> Decision {
    let empty = Default::default();
    let data = secret.data.as_ref().unwrap_or(&empty);
    let node = NodeState::from_data(data);
    let mut next = secret.clone();
    repair(&mut next, &node.garbage);
    let mut decision = Decision { garbage: node.garbage.clone(), ..Decision::default() };
    if node.plan_bytes.is_empty() {
        decision.secret = (next != *secret).then_some(next);
        return decision;
    }
    let bytes = |key: &str| data.get(key).map(|value| value.0.as_slice()).unwrap_or_default();
    let sum = checksum(&node.plan_bytes);

    let failed_this = bytes(keys::FAILED_CHECKSUM) == sum.as_bytes() && node.failure_count > 0;
    let given_up = node.state == Some(PlanState::Failed);
    if bytes(keys::APPLIED_CHECKSUM) == sum.as_bytes()
        && !given_up
        && bytes(keys::APPLIED_PLAN) != node.plan_bytes.as_slice()
    {
        put(&mut next, keys::APPLIED_PLAN, node.plan_bytes.clone());
    }
    let note = |key: &str| secret.metadata.annotations.as_ref().and_then(|a| a.get(key)).map(String::as_str);
    let probes_reported = !bytes(keys::PROBE_STATUSES).is_empty();
    if note(annotations::PLAN_PROBES_PASSED).unwrap_or_default().is_empty()
        && node.in_sync
        && node.healthy
        && probes_reported
    {
        next.metadata
            .annotations
            .get_or_insert_default()
            .insert(annotations::PLAN_PROBES_PASSED.to_owned(), rfc3339(now));
    }
    prune_periodic_output(&mut next, &node);

    let failures = failures(&node, note(annotations::PLAN_REARMED), &sum);
    if given_up && (node.max_failures == -1 || failures < node.max_failures) {
        let due = retry_at(bytes(keys::LAST_APPLY_TIME), failures, now);
        if due <= now {
            rearm(&mut next, &sum, failures);
        } else {
            decision.look_again = Some(due);
        }
    }
    let failing = given_up
        || (failed_this
            && node.state != Some(PlanState::Succeeded)
            && (node.max_failures == -1 || node.failure_count >= node.max_failures));
    decision.plan_applied = Some(if failing {
        PlanApplied::False(with_reason(&hint(secret, runtime), &node.failure))
    } else {
        PlanApplied::True
    });
    decision.secret = (next != *secret).then_some(next);
    decision
}

/// How often this plan has failed. The original forgets its count soon after a failure; what was noted with the last
/// re-arming remembers, and the failure since then is one more.
fn failures(node: &NodeState, rearmed: Option<&str>, sum: &str) -> i64 {
    let noted = rearmed.and_then(|text| text.split_once(' ')).filter(|(plan, _)| *plan == sum);
    let before = noted.and_then(|(_, count)| count.parse::<i64>().ok()).unwrap_or(0);
    node.failure_count.max(before.saturating_add(1))
}

/// Lets the plan be tried again, as the next attempt: with attempt 1 again, actions that run once per attempt would be
/// skipped and called done. All agents take that number from the count when they find a plan under way, but the
/// original begins anew when it finds one pending.
fn rearm(secret: &mut Secret, sum: &str, failures: i64) {
    put(secret, keys::PLAN_STATE, PlanState::InProgress.as_str().as_bytes().to_vec());
    put(secret, keys::FAILED_CHECKSUM, sum.as_bytes().to_vec());
    put(secret, keys::FAILURE_COUNT, failures.to_string().into_bytes());
    // The original claims also what failed.
    put(secret, keys::APPLIED_CHECKSUM, Vec::new());
    let notes = secret.metadata.annotations.get_or_insert_default();
    notes.insert(annotations::PLAN_REARMED.to_owned(), format!("{sum} {failures}"));
}

/// The secret with the offer beside its plan, if it says something else so far. The plan stays as it is: an agent is
/// replaced between plans, and nothing on the node is restarted for it.
pub fn announce(secret: &Secret, offer: &AgentOffer) -> Option<Secret> {
    if offer.sha256.is_empty() {
        return None;
    }
    let text = offer.to_text();
    let said = secret.metadata.annotations.as_ref().and_then(|annotations| annotations.get(AGENT_OFFER));
    if said == Some(&text) {
        return None;
    }
    let mut next = secret.clone();
    next.metadata.annotations.get_or_insert_default().insert(AGENT_OFFER.to_owned(), text);
    Some(next)
}

fn put(secret: &mut Secret, key: &str, value: Vec<u8>) {
    secret.data.get_or_insert_default().insert(key.to_owned(), ByteString(value));
}

fn hint(secret: &Secret, runtime: Runtime) -> String {
    let is =
        |key: &str| secret.metadata.labels.as_ref().and_then(|l| l.get(key)).is_some_and(|v| v == "true");
    let unit = runtime.unit(is(labels::ETCD_ROLE) || is(labels::CONTROL_PLANE_ROLE));
    format!(
        "error applying plan -- check rancher-system-agent.service and {unit}.service logs on node for more \
         information"
    )
}

/// Writes the right values of keys that are Drover's to write.
fn repair(secret: &mut Secret, garbage: &[Garbage]) {
    for Garbage { key, repair, .. } in garbage {
        let data = secret.data.get_or_insert_default();
        match repair {
            Repair::Value(value) => drop(data.insert(key.to_string(), ByteString(value.clone()))),
            Repair::Remove => drop(data.remove(*key)),
            Repair::Plan | Repair::Agent => {}
        }
    }
}

/// Output of periodic instructions that the plan no longer has.
fn prune_periodic_output(secret: &mut Secret, node: &NodeState) {
    let mut output = node.periodic_output.clone();
    let before = output.len();
    output.retain(|name, _| {
        node.plan.as_ref().is_some_and(|plan| plan.periodic_instructions.iter().any(|p| &p.name == name))
    });
    if output.len() == before {
        return;
    }
    let bytes =
        if output.is_empty() { Vec::new() } else { gzip(&drover_plan::to_vec(&output).unwrap_or_default()) };
    put(secret, keys::APPLIED_PERIODIC_OUTPUT, bytes);
}

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    // Writing to memory does not fail.
    if encoder.write_all(bytes).is_err() {
        return Vec::new();
    }
    encoder.finish().unwrap_or_default()
}

fn retry_at(last_apply: &[u8], failures: i64, now: Timestamp) -> Timestamp {
    let pause = COOLDOWN * i32::try_from(failures.clamp(1, 6)).unwrap_or(6);
    match parse_unix_date(&String::from_utf8_lossy(last_apply)) {
        // A time in the far future tells nothing, and would keep the plan from ever being tried again.
        Some(last) if last <= now.saturating_add(pause).unwrap_or(now) => {
            last.checked_add(pause).unwrap_or(now)
        }
        _ => now,
    }
}

/// Go's UnixDate (`Thu Jan  1 15:04:05 UTC 2026`), which the agent writes in UTC, or RFC 3339.
pub fn parse_unix_date(text: &str) -> Option<Timestamp> {
    if let Ok(time) = text.trim().parse::<Timestamp>() {
        return Some(time);
    }
    let parts: Vec<&str> = text.split_whitespace().collect();
    let [_, month, day, time, _, year] = parts[..] else { return None };
    let month = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
        .iter()
        .position(|name| *name == month)?
        + 1;
    let day: u8 = day.parse().ok()?;
    format!("{year}-{month:02}-{day:02}T{time}Z").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::planner::node::base64_encode;
    use super::*;
    use serde_json::json;

    const PLAN: &str = r#"{"instructions":[{"name":"install"}]}"#;

    fn secret(pairs: &[(&str, &str)]) -> Secret {
        let mut secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": "m1", "labels": {"rke.cattle.io/worker-role": "true"}}
        }))
        .unwrap();
        secret.data =
            Some(pairs.iter().map(|(k, v)| (k.to_string(), ByteString(v.as_bytes().to_vec()))).collect());
        secret
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn value<'a>(secret: &'a Secret, key: &str) -> &'a [u8] {
        &secret.data.as_ref().unwrap()[key].0
    }

    #[test]
    fn control_plane_check_19_applied_plan_is_copied_for_agents_without_plan_state() {
        let sum = checksum(PLAN.as_bytes());
        let now = at("2026-01-01T00:00:00Z");
        let before = secret(&[("plan", PLAN), ("applied-checksum", &sum)]);
        let decision = decide(&before, Runtime::K3s, now);
        let after = decision.secret.unwrap();
        assert_eq!(value(&after, "appliedPlan"), PLAN.as_bytes());
        assert_eq!(decision.plan_applied, Some(PlanApplied::True));
        assert_eq!(decide(&after, Runtime::K3s, now).secret, None, "nothing more to write");
    }

    #[test]
    fn probes_are_stamped_once_and_only_when_reported() {
        let sum = checksum(PLAN.as_bytes());
        let now = at("2026-01-01T00:00:00Z");
        let quiet = secret(&[("plan", PLAN), ("applied-checksum", &sum), ("appliedPlan", PLAN)]);
        assert_eq!(decide(&quiet, Runtime::K3s, now).secret, None);
        let pairs = [
            ("plan", PLAN),
            ("applied-checksum", sum.as_str()),
            ("appliedPlan", PLAN),
            ("probe-statuses", r#"{"kubelet":{"healthy":true}}"#),
        ];
        let stamped = decide(&secret(&pairs), Runtime::K3s, now).secret.unwrap();
        assert_eq!(
            stamped.metadata.annotations.as_ref().unwrap()[annotations::PLAN_PROBES_PASSED],
            "2026-01-01T00:00:00Z"
        );
        assert_eq!(decide(&stamped, Runtime::K3s, at("2026-01-02T00:00:00Z")).secret, None);
    }

    #[test]
    fn control_plane_check_18_a_failure_is_shown_and_tried_again() {
        let sum = checksum(PLAN.as_bytes());
        let failed = secret(&[
            ("plan", PLAN),
            ("plan-state", "failed"),
            ("failed-checksum", &sum),
            ("failure-count", "2"),
            ("max-failures", "-1"),
            ("last-apply-time", "Thu Jan  1 00:00:00 UTC 2026"),
        ]);
        let early = decide(&failed, Runtime::K3s, at("2026-01-01T00:00:59Z"));
        assert_eq!((early.secret, early.look_again), (None, Some(at("2026-01-01T00:01:00Z"))));
        let Some(PlanApplied::False(message)) = early.plan_applied else {
            panic!("{early:?}", early = early.plan_applied)
        };
        assert_eq!(
            message,
            "error applying plan -- check rancher-system-agent.service and k3s-agent.service logs on node for \
             more information"
        );
        // Why is told behind the words that people search for.
        let mut told = failed.clone();
        let why = base64_encode("cannot write /etc/x: No space left on device");
        let output = json!({"drover-agent/error": why}).to_string();
        put(&mut told, "failed-output", gzip(output.as_bytes()));
        let told = decide(&told, Runtime::K3s, at("2026-01-01T00:00:59Z")).plan_applied;
        let with_reason = format!("{message}: cannot write /etc/x: No space left on device");
        assert_eq!(told, Some(PlanApplied::False(with_reason)));
        let armed = decide(&failed, Runtime::K3s, at("2026-01-01T00:01:00Z")).secret.unwrap();
        assert_eq!(value(&armed, "plan-state"), b"in-progress");
        assert_eq!(value(&armed, "failure-count"), b"2", "attempts go on counting");
        assert_eq!(decide(&armed, Runtime::K3s, at("2026-01-01T00:01:01Z")).secret, None, "once");
    }

    /// The original takes its failure back a moment later: no count, and a checksum of what it has not applied.
    #[test]
    fn an_agent_that_forgets_its_failures_is_let_try_as_often_as_any_other() {
        let sum = checksum(PLAN.as_bytes());
        let forgetful = |secret: &mut Secret| {
            for (key, value) in [
                ("plan-state", "failed"),
                ("applied-checksum", &sum),
                ("failed-checksum", ""),
                ("failure-count", "0"),
            ] {
                put(secret, key, value.as_bytes().to_vec());
            }
        };
        let mut now = secret(&[("plan", PLAN), ("max-failures", "3")]);
        let mut counts = vec![];
        for _ in 0..5 {
            forgetful(&mut now);
            let decision = decide(&now, Runtime::K3s, at("2027-01-01T00:00:00Z"));
            assert!(matches!(decision.plan_applied, Some(PlanApplied::False(_))));
            let Some(next) = decision.secret else { break };
            now = next;
            counts.push(String::from_utf8_lossy(value(&now, "failure-count")).into_owned());
            assert_eq!(value(&now, "plan-state"), b"in-progress");
            assert_eq!(value(&now, "applied-checksum"), b"");
            assert!(!now.data.as_ref().unwrap().contains_key("appliedPlan"));
        }
        assert_eq!(counts, ["1", "2"], "three attempts, then no more");
    }

    #[test]
    fn a_spent_plan_is_not_tried_again() {
        let failed = secret(&[
            ("plan", PLAN),
            ("plan-state", "failed"),
            ("failure-count", "3"),
            ("max-failures", "3"),
        ]);
        let decision = decide(&failed, Runtime::K3s, at("2027-01-01T00:00:00Z"));
        assert_eq!((decision.secret, decision.look_again), (None, None));
        assert!(matches!(decision.plan_applied, Some(PlanApplied::False(_))));
    }

    #[test]
    fn output_of_removed_periodic_instructions_goes() {
        let packed = gzip(br#"{"gone":{"name":"gone"}}"#);
        let mut with_output = secret(&[("plan", PLAN)]);
        put(&mut with_output, "applied-periodic-output", packed);
        let after = decide(&with_output, Runtime::K3s, at("2026-01-01T00:00:00Z")).secret.unwrap();
        assert_eq!(value(&after, "applied-periodic-output"), b"");
    }

    #[test]
    fn the_agent_that_is_served_is_told_once_and_the_plan_is_left_alone() {
        let sum = checksum(PLAN.as_bytes());
        let before = secret(&[("plan", PLAN), ("applied-checksum", &sum), ("appliedPlan", PLAN)]);
        assert_eq!(announce(&before, &AgentOffer::default()), None, "a server without an agent says nothing");
        let offer = AgentOffer { sha256: [("amd64".to_owned(), sum.clone())].into() };
        let told = announce(&before, &offer).unwrap();
        assert_eq!(told.data, before.data);
        assert_eq!(announce(&told, &offer), None);
        assert_eq!(decide(&told, Runtime::K3s, at("2026-01-01T00:00:00Z")).secret, None);
        let other = AgentOffer { sha256: [("amd64".to_owned(), checksum(b"other"))].into() };
        assert!(announce(&told, &other).is_some());
    }
}
