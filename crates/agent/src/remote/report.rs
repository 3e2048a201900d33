//! What the agent reports, and how it is merged into the secret. Pure.
//!
//! A report contains absolute values, so merging it twice changes nothing the second time. This makes it safe to retry
//! after a lost response or a crash.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use drover_plan::{PlanState, keys};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    decide::{failures, gives_up, number, state_bytes, text},
    gzip_json,
    secret::Data,
};
use crate::{
    apply::{Done, Outputs, PeriodicOutputs, share_periodic, truncate},
    unix_date,
};

/// The limit for all values of a secret is 1 MiB; metadata and the server's own keys need space too.
const SECRET_LIMIT: usize = 1_000_000;

/// The limit for outputs, because the next plan, which the server writes, needs space too.
const OUTPUTS_LIMIT: usize = 400_000;

/// Unpublished results.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// The uid of its secret.
    pub uid: String,
    /// The checksum of its plan.
    pub checksum: String,
    /// The `plan-revision` of the run; `None` if runs are not counted.
    pub revision: Option<String>,
    /// The keys to set.
    pub set: BTreeMap<String, String>,
    /// Saved outputs of a successful run, by instruction; base64.
    pub applied_output: BTreeMap<String, String>,
    /// Saved outputs of a failed run.
    pub failed_output: Option<BTreeMap<String, String>>,
    /// The results of periodic instructions.
    pub periodic: PeriodicOutputs,
    /// The plan is invalid, so another run would have the same result.
    pub refused: bool,
}

impl Report {
    /// The report before the first instruction of a plan that the server requested.
    pub fn commit(uid: &str, checksum: &str, data: &Data) -> Self {
        let mut report = Self { uid: uid.into(), checksum: checksum.into(), ..Self::default() };
        report.put(keys::PLAN_STATE, PlanState::InProgress.as_str());
        report.put(keys::PLAN_REVISION, number(data, keys::PLAN_REVISION).saturating_add(1).to_string());
        if text(data, keys::FAILED_CHECKSUM) != checksum && data.contains_key(keys::FAILURE_COUNT) {
            // The count belongs to an earlier plan and would raise the attempt number of this one.
            report.put(keys::FAILURE_COUNT, "0");
        }
        report
    }

    /// The report of a pass.
    pub fn outcome(
        uid: &str,
        checksum: &str,
        attempt: Option<i64>,
        done: Done,
        data: &Data,
        now: Timestamp,
    ) -> Self {
        let revision =
            Some(text(data, keys::PLAN_REVISION).to_owned()).filter(|revision| !revision.is_empty());
        let mut report = Self { uid: uid.into(), checksum: checksum.into(), revision, ..Self::default() };
        report.periodic = done.periodic;
        let Some(attempt) = attempt else { return report };
        let by_state = state_bytes(data).is_some();
        report.put(keys::LAST_APPLY_TIME, unix_date::format(now));
        match done.error {
            None => {
                report.put(keys::APPLIED_CHECKSUM, checksum);
                report.put(keys::FAILED_CHECKSUM, "");
                report.put(keys::FAILURE_COUNT, "0");
                report.put(
                    keys::SUCCESS_COUNT,
                    number(data, keys::SUCCESS_COUNT).saturating_add(1).to_string(),
                );
                report.put(keys::FAILED_OUTPUT, "");
                report.applied_output = encode(done.outputs);
                if by_state {
                    report.put(keys::PLAN_STATE, PlanState::Succeeded.as_str());
                }
            }
            Some(error) => {
                report.put(keys::FAILED_CHECKSUM, checksum);
                report.put(keys::FAILURE_COUNT, attempt.to_string());
                report.put(keys::SUCCESS_COUNT, "0");
                if text(data, keys::APPLIED_CHECKSUM) == checksum {
                    // The plan was applied once, but is no longer.
                    report.put(keys::APPLIED_CHECKSUM, "");
                }
                let mut outputs = done.outputs;
                outputs.insert(keys::AGENT_REASON.into(), error.into_bytes());
                report.failed_output = Some(encode(outputs));
                if by_state && gives_up(data, attempt) {
                    report.put(keys::PLAN_STATE, PlanState::Failed.as_str());
                }
            }
        }
        report
    }

    /// The report of an invalid plan. A retry cannot succeed, so in state mode it fails immediately.
    pub fn refusal(uid: &str, checksum: &str, why: &str, data: &Data, now: Timestamp) -> Self {
        let done = Done { error: Some(why.to_owned()), ..Done::default() };
        let attempt = failures(data, checksum).saturating_add(1);
        let mut report = Self::outcome(uid, checksum, Some(attempt), done, data, now);
        if state_bytes(data).is_some() {
            report.put(keys::PLAN_STATE, PlanState::Failed.as_str());
        }
        report.refused = true;
        report
    }

    fn put(&mut self, key: &str, value: impl Into<String>) {
        self.set.insert(key.to_owned(), value.into());
    }

    /// Whether there is nothing to report.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty()
            && self.applied_output.is_empty()
            && self.failed_output.is_none()
            && self.periodic.is_empty()
    }

    /// Merges a later report. Values of an earlier plan are replaced; outputs are kept.
    pub fn absorb(&mut self, later: Self) {
        if self.uid != later.uid || (self.revision.is_some() && self.revision != later.revision) {
            *self = later;
            return;
        }
        self.revision = later.revision;
        if self.checksum != later.checksum {
            self.set.clear();
            self.failed_output = None;
        }
        self.checksum = later.checksum;
        self.refused = later.refused;
        if later.set.contains_key(keys::FAILED_OUTPUT) {
            self.failed_output = None;
        }
        if later.failed_output.is_some() {
            self.set.remove(keys::FAILED_OUTPUT);
            self.failed_output = later.failed_output;
        }
        self.set.extend(later.set);
        self.applied_output.extend(later.applied_output);
        self.periodic.extend(later.periodic);
        // While the API is unreachable, the results of many passes accumulate.
        share_periodic(&mut self.periodic);
    }

    /// Merges the report into data whose plan has the given checksum.
    ///
    /// If the server has replaced the plan, only what is still true is written: outputs, and that the other plan was
    /// applied. If it requested the same plan again (`pending`), that request is kept, unless the result is known. If
    /// another run has started since, the report is a leftover on a disk that lost its removal, and nothing is written,
    /// because it would claim that the new run ended.
    pub fn merge_into(&self, data: &mut Data, checksum: Option<&str>) {
        if self.revision.as_deref().is_some_and(|revision| revision != text(data, keys::PLAN_REVISION)) {
            return;
        }
        let same = checksum == Some(self.checksum.as_str());
        let asked_again = !self.refused
            && data.get(keys::PLAN_STATE).is_some_and(|state| state == b"pending")
            && self.set.get(keys::PLAN_STATE).is_none_or(|state| state != "in-progress");
        for (key, value) in &self.set {
            let about_state = key == keys::PLAN_STATE || key == keys::PLAN_REVISION;
            let write = match (same, about_state) {
                (true, true) => !asked_again && state_bytes(data).is_some(),
                (true, false) => true,
                (false, _) => key == keys::APPLIED_CHECKSUM && !value.is_empty(),
            };
            if write {
                data.insert(key.clone(), value.clone().into_bytes());
            }
        }
        if !self.applied_output.is_empty()
            || (same && self.succeeded() && !gzip_json::is_readable(data.get(keys::APPLIED_OUTPUT)))
        {
            merge(data, keys::APPLIED_OUTPUT, &self.applied_output);
        }
        if let (true, Some(output)) = (same, &self.failed_output) {
            let now: BTreeMap<String, String> = gzip_json::decode(data.get(keys::FAILED_OUTPUT));
            if now != *output {
                drop(now);
                data.insert(keys::FAILED_OUTPUT.into(), gzip_json::encode(output));
            }
        }
        if !self.periodic.is_empty()
            || (same && self.succeeded() && !gzip_json::is_readable(data.get(keys::APPLIED_PERIODIC_OUTPUT)))
        {
            merge(data, keys::APPLIED_PERIODIC_OUTPUT, &self.periodic);
        }
        fit(data);
    }

    fn succeeded(&self) -> bool {
        self.set.get(keys::APPLIED_CHECKSUM) == Some(&self.checksum)
    }
}

/// Whether the data contain a different CA of the cluster, or none.
pub fn lacks_ca(data: &Data, pem: &[u8]) -> bool {
    data.get(keys::CLUSTER_CA).is_none_or(|known| known != pem)
}

/// Sets the CA of the cluster, if it differs. It does not belong to a plan, so it is kept when the plan changes.
pub fn set_ca(data: &mut Data, pem: &[u8]) {
    if lacks_ca(data, pem) {
        data.insert(keys::CLUSTER_CA.into(), pem.to_vec());
    }
}

fn encode(outputs: Outputs) -> BTreeMap<String, String> {
    outputs.into_iter().map(|(name, bytes)| (name, STANDARD.encode(bytes))).collect()
}

/// Adds entries to a compressed map; writes it only if it changed or does not exist.
fn merge<T>(data: &mut Data, key: &str, more: &BTreeMap<String, T>)
where
    T: Clone + PartialEq + Serialize + for<'de> Deserialize<'de>,
{
    let mut map: BTreeMap<String, T> = gzip_json::decode(data.get(key));
    let mut changed = !gzip_json::is_readable(data.get(key));
    // One by one, because together they can be large.
    for (name, value) in more {
        if map.get(name) != Some(value) {
            map.insert(name.clone(), value.clone());
            changed = true;
        }
    }
    if changed {
        data.insert(key.to_owned(), gzip_json::encode(&map));
    }
}

/// Truncates saved outputs, keeping their ends, until the secret can be stored, with the server's copy of the plan if
/// that can fit at all, and with space for the next plan.
fn fit(data: &mut Data) {
    let plan = data.get(keys::PLAN).map_or(0, Vec::len);
    let copy = if plan <= SECRET_LIMIT / 2 { plan } else { 0 };
    let size = |data: &Data| -> usize {
        let others = data.iter().filter(|(key, _)| copy == 0 || *key != keys::APPLIED_PLAN);
        copy + others.map(|(key, value)| key.len() + value.len()).sum::<usize>()
    };
    let printed = |data: &Data| -> usize {
        [keys::APPLIED_OUTPUT, keys::FAILED_OUTPUT, keys::APPLIED_PERIODIC_OUTPUT]
            .iter()
            .filter_map(|key| data.get(*key))
            .map(Vec::len)
            .sum()
    };
    let mut limit = 256 * 1024;
    while (size(data) > SECRET_LIMIT || printed(data) > OUTPUTS_LIMIT) && limit >= 64 {
        for key in [keys::APPLIED_OUTPUT, keys::FAILED_OUTPUT] {
            let mut map: BTreeMap<String, String> = gzip_json::decode(data.get(key));
            if map.is_empty() {
                continue;
            }
            for value in map.values_mut() {
                let bytes = STANDARD.decode(value.as_bytes()).unwrap_or_default();
                *value = STANDARD.encode(truncate(bytes, limit, 0));
            }
            data.insert(key.to_owned(), gzip_json::encode(&map));
        }
        let mut map: PeriodicOutputs = gzip_json::decode(data.get(keys::APPLIED_PERIODIC_OUTPUT));
        if !map.is_empty() {
            for output in map.values_mut() {
                output.stdout = truncate(std::mem::take(&mut output.stdout), limit, 0);
                output.stderr = truncate(std::mem::take(&mut output.stderr), limit, 0);
            }
            data.insert(keys::APPLIED_PERIODIC_OUTPUT.to_owned(), gzip_json::encode(&map));
        }
        limit /= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(entries: &[(&str, &str)]) -> Data {
        entries.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect()
    }

    fn now() -> Timestamp {
        "2026-01-01T15:04:05Z".parse().unwrap()
    }

    fn done(error: Option<&str>) -> Done {
        Done {
            error: error.map(str::to_owned),
            outputs: Outputs::from([("install".to_owned(), b"text".to_vec())]),
            ..Done::default()
        }
    }

    #[test]
    fn a_success_clears_the_failure_and_is_stable() {
        let mut secret =
            data(&[("plan-state", "in-progress"), ("failure-count", "2"), ("failed-checksum", "c")]);
        let report = Report::outcome("u", "c", Some(3), done(None), &secret, now());
        report.merge_into(&mut secret, Some("c"));
        for (key, value) in [
            ("plan-state", "succeeded"),
            ("applied-checksum", "c"),
            ("failed-checksum", ""),
            ("failed-output", ""),
            ("failure-count", "0"),
            ("success-count", "1"),
            ("last-apply-time", "Thu Jan  1 15:04:05 UTC 2026"),
        ] {
            assert_eq!(text(&secret, key), value, "{key}");
        }
        let output: BTreeMap<String, String> = gzip_json::decode(secret.get("applied-output"));
        assert_eq!(output["install"], "dGV4dA==");
        assert!(secret.contains_key("applied-periodic-output"), "an empty map, as in the original");
        let once = secret.clone();
        report.merge_into(&mut secret, Some("c"));
        assert_eq!(secret, once, "merging it again changes nothing");
    }

    #[test]
    fn agent_check_11_a_failure_stays_reported_and_nothing_false_is_claimed() {
        let mut secret =
            data(&[("plan-state", "in-progress"), ("max-failures", "1"), ("applied-checksum", "old")]);
        let report = Report::outcome("u", "c", Some(1), done(Some("boom")), &secret, now());
        report.merge_into(&mut secret, Some("c"));
        assert_eq!(text(&secret, "plan-state"), "failed");
        assert_eq!(text(&secret, "failed-checksum"), "c");
        assert_eq!(text(&secret, "failure-count"), "1");
        assert_eq!(text(&secret, "applied-checksum"), "old");
        let output: BTreeMap<String, String> = gzip_json::decode(secret.get("failed-output"));
        assert_eq!(output[keys::AGENT_REASON], STANDARD.encode("boom"));
        assert!(output.contains_key("install"));
    }

    #[test]
    fn without_a_limit_a_failing_plan_stays_in_progress() {
        let mut secret = data(&[("plan-state", "in-progress")]);
        Report::outcome("u", "c", Some(9), done(Some("boom")), &secret, now())
            .merge_into(&mut secret, Some("c"));
        assert_eq!(text(&secret, "plan-state"), "in-progress");
        assert_eq!(text(&secret, "failure-count"), "9");
    }

    #[test]
    fn agent_check_28_a_replaced_plan_gets_only_what_is_still_true() {
        let ran = data(&[("plan-state", "in-progress")]);
        let report = Report::outcome("u", "c", Some(1), done(None), &ran, now());
        let mut replaced = data(&[("plan-state", "pending"), ("plan-revision", "1")]);
        report.merge_into(&mut replaced, Some("new"));
        assert_eq!(text(&replaced, "plan-state"), "pending");
        assert_eq!(text(&replaced, "applied-checksum"), "c");
        assert!(replaced.contains_key("applied-output"));
        assert!(!replaced.contains_key("success-count") && !replaced.contains_key("last-apply-time"));
        let mut asked_again = data(&[("plan-state", "pending")]);
        report.merge_into(&mut asked_again, Some("c"));
        assert_eq!(text(&asked_again, "plan-state"), "pending", "the request for another run is kept");
        assert_eq!(text(&asked_again, "applied-checksum"), "c");
    }

    #[test]
    fn an_invalid_plan_fails_each_time_it_is_requested() {
        let mut secret = data(&[("plan-state", "pending"), ("max-failures", "5")]);
        for count in ["1", "2"] {
            let report = Report::refusal("u", "c", "nonsense", &secret, now());
            report.merge_into(&mut secret, Some("c"));
            assert_eq!((text(&secret, "plan-state"), text(&secret, "failure-count")), ("failed", count));
            secret.insert("plan-state".into(), b"pending".to_vec());
            report.merge_into(&mut secret, Some("other"));
            assert_eq!(text(&secret, "plan-state"), "pending", "the request for another plan is kept");
        }
        let mut by_checksum = data(&[]);
        Report::refusal("u", "c", "nonsense", &by_checksum, now()).merge_into(&mut by_checksum, Some("c"));
        assert!(!by_checksum.contains_key("plan-state"));
    }

    #[test]
    fn a_commit_increments_the_revision_and_resets_the_count_of_another_plan() {
        let mut secret = data(&[
            ("plan-state", "pending"),
            ("plan-revision", "4"),
            ("failure-count", "3"),
            ("failed-checksum", "x"),
        ]);
        Report::commit("u", "c", &secret).merge_into(&mut secret, Some("c"));
        assert_eq!(text(&secret, "plan-state"), "in-progress");
        assert_eq!(text(&secret, "plan-revision"), "5");
        assert_eq!(text(&secret, "failure-count"), "0");
    }

    #[test]
    fn counts_saturate() {
        let most = i64::MAX.to_string();
        let mut secret =
            data(&[("plan-state", "pending"), ("plan-revision", &most), ("success-count", &most)]);
        Report::commit("u", "c", &secret).merge_into(&mut secret, Some("c"));
        Report::outcome("u", "c", Some(1), done(None), &secret, now()).merge_into(&mut secret, Some("c"));
        assert_eq!((text(&secret, "plan-revision"), text(&secret, "success-count")), (&*most, &*most));
    }

    #[test]
    fn agent_check_16_outputs_are_shortened_until_the_secret_fits() {
        // Not compressible, like a log with many hashes.
        let mut seed = 1_u64;
        let noise: Vec<u8> = (0..200 * 1024)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 33) as u8
            })
            .collect();
        let outputs = (0..20).map(|index| (format!("i{index}"), noise.clone())).collect();
        let mut secret = data(&[]);
        let done = Done { outputs, ..Done::default() };
        Report::outcome("u", "c", Some(1), done, &secret, now()).merge_into(&mut secret, Some("c"));
        assert!(secret.values().map(Vec::len).sum::<usize>() <= SECRET_LIMIT);
        let output: BTreeMap<String, String> = gzip_json::decode(secret.get("applied-output"));
        assert_eq!(output.len(), 20);
        assert!(
            STANDARD.decode(&output["i0"]).unwrap().ends_with(&noise[noise.len() - 100..]),
            "the tail is kept"
        );
    }

    #[test]
    fn outputs_of_many_plans_leave_space_for_the_next_one() {
        let mut seed = 1_u64;
        let mut secret = data(&[("plan", "{}")]);
        for plan in 0..12 {
            let mut noise = || {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 33) as u8
            };
            let outputs: Outputs = (0..5)
                .map(|index| (format!("p{plan}-{index}"), (0..35_000).map(|_| noise()).collect()))
                .collect();
            let done = Done { outputs, ..Done::default() };
            Report::outcome("u", "c", Some(1), done, &secret, now()).merge_into(&mut secret, Some("c"));
        }
        assert!(secret["applied-output"].len() <= OUTPUTS_LIMIT);
        let output: BTreeMap<String, String> = gzip_json::decode(secret.get("applied-output"));
        assert_eq!(output.len(), 60, "truncated, but not removed");
    }

    #[test]
    fn invalid_earlier_output_is_replaced_even_by_a_plan_without_output() {
        let mut secret = data(&[("applied-output", "garbage"), ("applied-periodic-output", "garbage")]);
        let report = Report::outcome("u", "c", Some(1), Done::default(), &secret, now());
        report.merge_into(&mut secret, Some("c"));
        for key in ["applied-output", "applied-periodic-output"] {
            assert!(gzip_json::is_readable(secret.get(key)), "{key}");
        }
    }

    #[test]
    fn there_is_space_for_the_servers_copy_of_the_plan() {
        let mut seed = 1_u64;
        let mut noise = |length: usize| -> Vec<u8> {
            std::iter::repeat_with(|| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 33) as u8
            })
            .take(length)
            .collect()
        };
        let outputs: Outputs = (0..8).map(|index| (format!("i{index}"), noise(64 * 1024))).collect();
        for (plan, room) in [(321_000, true), (600_000, false)] {
            let mut secret = Data::from([("plan".to_owned(), vec![b'x'; plan])]);
            let done = Done { outputs: outputs.clone(), ..Done::default() };
            Report::outcome("u", "c", Some(1), done, &secret, now()).merge_into(&mut secret, Some("c"));
            let total = secret.values().map(Vec::len).sum::<usize>();
            assert_eq!(total + plan <= SECRET_LIMIT, room, "{plan}: {total}");
            assert!(total <= SECRET_LIMIT);
        }
    }

    #[test]
    fn later_reports_win() {
        let secret = data(&[]);
        let mut report = Report::outcome("u", "c", Some(1), done(Some("boom")), &secret, now());
        report.absorb(Report::outcome("u", "c", Some(2), done(None), &secret, now()));
        let mut target = data(&[]);
        report.merge_into(&mut target, Some("c"));
        assert_eq!(text(&target, "failed-output"), "");
        assert_eq!(text(&target, "applied-checksum"), "c");
        report.absorb(Report::outcome("u", "d", None, Done::default(), &secret, now()));
        assert!(report.set.is_empty() && !report.applied_output.is_empty());
    }

    #[test]
    fn a_leftover_report_does_not_affect_a_later_run() {
        let mut secret = data(&[("plan-state", "in-progress"), ("plan-revision", "5")]);
        let left = Report::outcome("u", "c", Some(1), done(None), &secret, now());
        left.merge_into(&mut secret, Some("c"));
        assert_eq!(text(&secret, "plan-state"), "succeeded");
        // Requested again and started, then the power failed; the disk still has the file.
        secret.insert("plan-state".into(), b"pending".to_vec());
        Report::commit("u", "c", &secret).merge_into(&mut secret, Some("c"));
        let under_way = secret.clone();
        left.merge_into(&mut secret, Some("c"));
        assert_eq!(secret, under_way);
        left.merge_into(&mut secret, Some("another plan"));
        assert_eq!(secret, under_way);
        let mut pending = left;
        pending.absorb(Report::outcome("u", "c", Some(1), done(Some("boom")), &secret, now()));
        pending.merge_into(&mut secret, Some("c"));
        assert_eq!((text(&secret, "failure-count"), text(&secret, "applied-checksum")), ("1", ""));
    }
}
