//! What the server adds to an agent's report: `appliedPlan`, the stamp of passed probes, pruned output, the offer of
//! another agent, a second try after a failure, and the Machine's condition `PlanApplied`. Pure.

use std::fmt;
use std::io::Write;

use crate::keys::{annotations, labels};
use drover_plan::{AgentOffer, PlanState, checksum, keys};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use serde::Serialize;

use super::edit::{Reason, rfc3339, with_annotation, with_offer};
use super::failure::with_reason;
use super::garbage::{Garbage, Repair};
use super::state::NodeState;
use crate::controlplane::planner::runtime::Runtime;

/// Pause before a failed plan is tried again: this long per failure, at most six times.
const COOLDOWN: SignedDuration = SignedDuration::from_secs(30);

/// What to do about a plan secret.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Upkeep {
    /// The secret as it should be, and why, if anything changes.
    pub edit: Option<(Secret, Vec<Reason>)>,
    /// The edit is worth a write of its own. Otherwise it can wait for the next write, because everything that reads
    /// the secret derives the same from what is there.
    pub due: bool,
    /// `PlanApplied` of the Machine; none while there is no plan.
    pub plan_applied: Option<PlanApplied>,
    /// Look again then.
    pub again: Option<Timestamp>,
}

/// Condition `PlanApplied`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum PlanApplied {
    True,
    /// The plan fails: the unit whose log says more, and what the agent reported.
    False {
        unit: &'static str,
        failure: String,
    },
}

impl fmt::Display for PlanApplied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::False { unit, failure } = self else { return Ok(()) };
        let what = format!(
            "error applying plan -- check rancher-system-agent.service and {unit}.service logs on node for more \
             information"
        );
        f.write_str(&with_reason(&what, failure))
    }
}

/// Decides about one plan secret, of which `node` was parsed.
pub fn upkeep(
    secret: &Secret,
    node: &NodeState,
    runtime: Runtime,
    offer: &AgentOffer,
    now: Timestamp,
) -> Upkeep {
    let mut next = secret.clone();
    let mut reasons = Vec::new();
    let mut upkeep = Upkeep::default();
    if repair(&mut next, &node.garbage) {
        reasons.push(Reason::KeysRepaired);
        upkeep.due = true;
    }
    if !node.plan_bytes.is_empty() {
        report(&mut next, secret, node, &mut upkeep, &mut reasons, now);
        retry(&mut next, secret, node, runtime, &mut upkeep, &mut reasons, now);
    }
    if let Some(told) = with_offer(&next, offer) {
        next = told;
        reasons.push(Reason::AgentOffer);
        // A machine without a plan is told of the agent together with its plan.
        upkeep.due |= !node.plan_bytes.is_empty();
    }
    upkeep.edit = (!reasons.is_empty()).then_some((next, reasons));
    upkeep
}

fn bytes<'a>(secret: &'a Secret, key: &str) -> &'a [u8] {
    secret.data.as_ref().and_then(|data| data.get(key)).map(|value| value.0.as_slice()).unwrap_or_default()
}

fn note<'a>(secret: &'a Secret, key: &str) -> &'a str {
    let notes = secret.metadata.annotations.as_ref();
    notes.and_then(|notes| notes.get(key)).map(String::as_str).unwrap_or_default()
}

/// Keeps what the agent reported of its plan.
fn report(
    next: &mut Secret,
    secret: &Secret,
    node: &NodeState,
    upkeep: &mut Upkeep,
    reasons: &mut Vec<Reason>,
    now: Timestamp,
) {
    let applied = bytes(secret, keys::APPLIED_CHECKSUM) == checksum(&node.plan_bytes).as_bytes();
    let copied = bytes(next, keys::APPLIED_PLAN) == node.plan_bytes;
    if applied && node.state != Some(PlanState::Failed) && !copied {
        put(next, keys::APPLIED_PLAN, node.plan_bytes.clone());
        reasons.push(Reason::PlanApplied);
        // The copy is stored together with the stamp of the probes, which pass soon after.
        let probed = node.plan.as_ref().is_some_and(|plan| !plan.probes.is_empty());
        upkeep.due |= !probed || !note(secret, annotations::PLAN_PROBES_PASSED).is_empty();
    }
    let reported = !bytes(secret, keys::PROBE_STATUSES).is_empty();
    let untold = matches!(node.state, None | Some(PlanState::Pending));
    let in_sync = node.in_sync || (untold && reasons.contains(&Reason::PlanApplied));
    if note(secret, annotations::PLAN_PROBES_PASSED).is_empty() && in_sync && node.healthy && reported {
        *next = with_annotation(next, annotations::PLAN_PROBES_PASSED, &rfc3339(now));
        reasons.push(Reason::ProbesPassed);
        upkeep.due = true;
    }
    if prune_periodic_output(next, node) {
        reasons.push(Reason::OutputPruned);
        upkeep.due = true;
    }
}

/// Lets a plan that failed be tried again when its time has come, and says whether it fails.
fn retry(
    next: &mut Secret,
    secret: &Secret,
    node: &NodeState,
    runtime: Runtime,
    upkeep: &mut Upkeep,
    reasons: &mut Vec<Reason>,
    now: Timestamp,
) {
    let sum = checksum(&node.plan_bytes);
    let given_up = node.state == Some(PlanState::Failed);
    let failures = failures(node, note(secret, annotations::PLAN_REARMED), &sum);
    if given_up && (node.max_failures == -1 || failures < node.max_failures) {
        let due = retry_at(bytes(secret, keys::LAST_APPLY_TIME), failures, now);
        if due <= now {
            rearm(next, &sum, failures);
            reasons.push(Reason::Retry);
            upkeep.due = true;
        } else {
            upkeep.again = Some(due);
        }
    }
    let failed_this = bytes(secret, keys::FAILED_CHECKSUM) == sum.as_bytes() && node.failure_count > 0;
    let failing = given_up
        || (failed_this
            && node.state != Some(PlanState::Succeeded)
            && (node.max_failures == -1 || node.failure_count >= node.max_failures));
    upkeep.plan_applied = Some(match failing {
        true => PlanApplied::False { unit: unit(secret, runtime), failure: node.failure.clone() },
        false => PlanApplied::True,
    });
}

/// How often this plan has failed. The original forgets its count soon after a failure; what was noted with the last
/// re-arming remembers, and the failure since then is one more.
fn failures(node: &NodeState, rearmed: &str, sum: &str) -> i64 {
    let noted = rearmed.split_once(' ').filter(|(plan, _)| *plan == sum);
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

fn put(secret: &mut Secret, key: &str, value: Vec<u8>) {
    secret.data.get_or_insert_default().insert(key.to_owned(), ByteString(value));
}

/// The service that a machine of these roles runs.
fn unit(secret: &Secret, runtime: Runtime) -> &'static str {
    let is =
        |key: &str| secret.metadata.labels.as_ref().and_then(|l| l.get(key)).is_some_and(|v| v == "true");
    runtime.unit(is(labels::ETCD_ROLE) || is(labels::CONTROL_PLANE_ROLE))
}

/// Writes the right values of keys that are Drover's to write; whether there were any.
fn repair(secret: &mut Secret, garbage: &[Garbage]) -> bool {
    for Garbage { key, repair, .. } in garbage {
        let data = secret.data.get_or_insert_default();
        match repair {
            Repair::Value(value) => drop(data.insert(key.to_string(), ByteString(value.clone()))),
            Repair::Remove => drop(data.remove(*key)),
            Repair::Plan | Repair::Agent => {}
        }
    }
    garbage.iter().any(Garbage::is_repaired)
}

/// Removes output of periodic instructions that the plan no longer has; whether there was any.
fn prune_periodic_output(secret: &mut Secret, node: &NodeState) -> bool {
    let mut output = node.periodic_output.clone();
    let before = output.len();
    output.retain(|name, _| {
        node.plan.as_ref().is_some_and(|plan| plan.periodic_instructions.iter().any(|p| &p.name == name))
    });
    if output.len() == before {
        return false;
    }
    let bytes =
        if output.is_empty() { Vec::new() } else { gzip(&drover_plan::to_vec(&output).unwrap_or_default()) };
    put(secret, keys::APPLIED_PERIODIC_OUTPUT, bytes);
    true
}

/// Packs as agents do.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
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
    use super::*;
    use base64::prelude::{BASE64_STANDARD, Engine as _};
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

    fn decide(secret: &Secret, now: Timestamp) -> Upkeep {
        upkeep(secret, &NodeState::of(secret), Runtime::K3s, &AgentOffer::default(), now)
    }

    fn edited(upkeep: Upkeep) -> Option<Secret> {
        upkeep.edit.map(|(secret, _)| secret)
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
        let decision = decide(&before, now);
        let after = edited(decision.clone()).unwrap();
        assert_eq!(value(&after, "appliedPlan"), PLAN.as_bytes());
        assert_eq!(decision.plan_applied, Some(PlanApplied::True));
        assert_eq!(edited(decide(&after, now)), None, "nothing more to write");
    }

    #[test]
    fn probes_are_stamped_once_and_only_when_reported() {
        let sum = checksum(PLAN.as_bytes());
        let now = at("2026-01-01T00:00:00Z");
        let quiet = secret(&[("plan", PLAN), ("applied-checksum", &sum), ("appliedPlan", PLAN)]);
        assert_eq!(edited(decide(&quiet, now)), None);
        let pairs = [
            ("plan", PLAN),
            ("applied-checksum", sum.as_str()),
            ("appliedPlan", PLAN),
            ("probe-statuses", r#"{"kubelet":{"healthy":true}}"#),
        ];
        let stamped = edited(decide(&secret(&pairs), now)).unwrap();
        assert_eq!(
            stamped.metadata.annotations.as_ref().unwrap()[annotations::PLAN_PROBES_PASSED],
            "2026-01-01T00:00:00Z"
        );
        assert_eq!(edited(decide(&stamped, at("2026-01-02T00:00:00Z"))), None);
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
        let early = decide(&failed, at("2026-01-01T00:00:59Z"));
        assert_eq!((early.edit.clone(), early.again), (None, Some(at("2026-01-01T00:01:00Z"))));
        let message = early.plan_applied.unwrap().to_string();
        assert_eq!(
            message,
            "error applying plan -- check rancher-system-agent.service and k3s-agent.service logs on node for \
             more information"
        );
        // Why is told behind the words that people search for.
        let mut told = failed.clone();
        let why = BASE64_STANDARD.encode("cannot write /etc/x: No space left on device");
        let output = json!({"drover-agent/error": why}).to_string();
        put(&mut told, "failed-output", gzip(output.as_bytes()));
        let told = decide(&told, at("2026-01-01T00:00:59Z")).plan_applied;
        let with_reason = format!("{message}: cannot write /etc/x: No space left on device");
        assert_eq!(told.unwrap().to_string(), with_reason);
        let armed = edited(decide(&failed, at("2026-01-01T00:01:00Z"))).unwrap();
        assert_eq!(value(&armed, "plan-state"), b"in-progress");
        assert_eq!(value(&armed, "failure-count"), b"2", "attempts go on counting");
        assert_eq!(edited(decide(&armed, at("2026-01-01T00:01:01Z"))), None, "once");
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
            let decision = decide(&now, at("2027-01-01T00:00:00Z"));
            assert!(matches!(decision.plan_applied, Some(PlanApplied::False { .. })));
            let Some(next) = edited(decision) else { break };
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
        let decision = decide(&failed, at("2027-01-01T00:00:00Z"));
        assert_eq!((&decision.edit, decision.again), (&None, None));
        assert!(matches!(decision.plan_applied, Some(PlanApplied::False { .. })));
    }

    #[test]
    fn output_of_removed_periodic_instructions_goes() {
        let packed = gzip(br#"{"gone":{"name":"gone"}}"#);
        let mut with_output = secret(&[("plan", PLAN)]);
        put(&mut with_output, "applied-periodic-output", packed);
        let after = edited(decide(&with_output, at("2026-01-01T00:00:00Z"))).unwrap();
        assert_eq!(value(&after, "applied-periodic-output"), b"");
    }

    #[test]
    fn the_copy_of_an_applied_plan_is_stored_with_the_stamp_of_its_probes() {
        let plan = r#"{"instructions":[{"name":"install"}],"probes":{"kubelet":{"name":"kubelet"}}}"#;
        let sum = checksum(plan.as_bytes());
        let now = at("2026-01-01T00:00:00Z");
        let mut pairs = vec![("plan", plan), ("plan-state", "succeeded"), ("applied-checksum", sum.as_str())];
        let applied = decide(&secret(&pairs), now);
        assert_eq!((applied.edit.unwrap().1, applied.due), (vec![Reason::PlanApplied], false));
        pairs.push(("probe-statuses", r#"{"kubelet":{"healthy":true}}"#));
        let passed = decide(&secret(&pairs), now);
        assert_eq!(
            (passed.edit.unwrap().1, passed.due),
            (vec![Reason::PlanApplied, Reason::ProbesPassed], true)
        );
    }

    #[test]
    fn the_offered_agent_is_announced_once_and_the_plan_is_left_alone() {
        let sum = checksum(PLAN.as_bytes());
        let before = secret(&[("plan", PLAN), ("applied-checksum", &sum), ("appliedPlan", PLAN)]);
        let announce = |secret: &Secret, offer: &AgentOffer| {
            upkeep(secret, &NodeState::of(secret), Runtime::K3s, offer, at("2026-01-01T00:00:00Z"))
        };
        assert_eq!(announce(&before, &AgentOffer::default()).edit, None, "a server without an agent");
        let offer = AgentOffer { sha256: [("amd64".to_owned(), sum.clone())].into() };
        let told = announce(&before, &offer);
        assert!(told.due);
        let told = edited(told).unwrap();
        assert_eq!(told.data, before.data);
        assert_eq!(announce(&told, &offer).edit, None);
        let other = AgentOffer { sha256: [("amd64".to_owned(), checksum(b"other"))].into() };
        assert!(announce(&told, &other).due);
        assert!(!announce(&secret(&[]), &offer).due, "with the first plan");
    }
}
