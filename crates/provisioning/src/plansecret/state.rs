//! What a machine plan secret says about its machine, derived from its data keys.

use std::collections::BTreeMap;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use drover_plan::{PeriodicInstructionOutput, Plan, PlanState, checksum, keys};
use k8s_openapi::api::core::v1::Secret;

use super::failure;
use super::garbage::{Data, Garbage, Reader, Repair};

/// The secret's data, understood.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeState {
    pub plan: Option<Plan>,
    pub plan_bytes: Vec<u8>,
    pub applied_plan: Option<Plan>,
    pub state: Option<PlanState>,
    pub in_sync: bool,
    pub failed: bool,
    /// All probes healthy, or none reported yet for this plan.
    pub healthy: bool,
    /// Names of unhealthy probes, sorted.
    pub unhealthy: Vec<String>,
    /// None of the unhealthy probes has failed: all of them are still to be asked for the first time.
    pub unasked: bool,
    pub failure_count: i64,
    /// Why this plan could not be applied the last time, if the agent said so.
    pub failure: String,
    /// -1: retry for ever.
    pub max_failures: i64,
    pub periodic_output: BTreeMap<String, PeriodicInstructionOutput>,
    /// Values that are not what their keys are for. Only this machine suffers from them.
    pub garbage: Vec<Garbage>,
}

impl NodeState {
    /// Reads a plan secret.
    pub fn of(secret: &Secret) -> Self {
        let empty = Data::new();
        read(secret.data.as_ref().unwrap_or(&empty))
    }

    /// Reads the data of a plan secret. Never fails: a value that cannot be used is recorded in `garbage`, and read as
    /// what it will be once it is repaired.
    pub fn from_data(data: &Data) -> Self {
        read(data)
    }

    /// The unusable value of a key.
    pub fn garbage_in(&self, key: &str) -> Option<&Garbage> {
        self.garbage.iter().find(|garbage| garbage.key == key)
    }

    /// The machine says something of its probes that cannot be read.
    pub fn health_unknown(&self) -> bool {
        self.garbage_in(keys::PROBE_STATUSES).is_some()
    }

    /// The plan was applied as it stands, but its probes did not pass.
    pub fn applied_but_unhealthy(&self) -> bool {
        self.applied_plan.is_some() && self.plan == self.applied_plan && !self.healthy
    }

    /// The file at `path` in the plan that was delivered last, decoded.
    pub fn delivered_file(&self, path: &str) -> Option<Vec<u8>> {
        let file = self.plan.as_ref()?.files.iter().find(|file| file.path == path)?;
        BASE64_STANDARD.decode(&file.content).ok()
    }
}

fn read(data: &Data) -> NodeState {
    let mut reader = Reader::new(data);
    let mut plan_bytes = reader.bytes(keys::PLAN).unwrap_or_default().to_vec();
    let plan = reader.plan(keys::PLAN, || Repair::Plan);
    if plan.is_none() {
        plan_bytes.clear();
    }
    let sum = (!plan_bytes.is_empty()).then(|| checksum(&plan_bytes));
    let is_this = |value: Option<&[u8]>| sum.is_some() && value == sum.as_deref().map(str::as_bytes);
    let failed_this = is_this(reader.bytes(keys::FAILED_CHECKSUM));
    let applied_this = is_this(reader.bytes(keys::APPLIED_CHECKSUM)) && !failed_this;

    // Where the agent has told the outcome, that is the state; else the plan is tried again.
    let told = match sum {
        None => None,
        Some(_) if applied_this => Some(PlanState::Succeeded),
        Some(_) => Some(PlanState::Pending),
    };
    let mut state =
        reader.state(|| told.map_or(Repair::Remove, |state| Repair::Value(state.as_str().into())));
    if reader.has_garbage(keys::PLAN_STATE) {
        state = told;
    }
    let is_applied = applied_this && state != Some(PlanState::Failed);
    let same = reader.bytes(keys::APPLIED_PLAN) == Some(&plan_bytes[..]) && plan.is_some();
    let mut applied_is_plan = same;
    let mut applied_plan = if same {
        plan.clone()
    } else {
        let copy = || if is_applied { Repair::Value(plan_bytes.clone()) } else { Repair::Remove };
        reader.plan(keys::APPLIED_PLAN, copy)
    };
    if reader.has_garbage(keys::APPLIED_PLAN) && is_applied {
        (applied_plan, applied_is_plan) = (plan.clone(), true);
    }
    // A failure that the agent has told of remains one.
    let counted = if failed_this { "1" } else { "0" };
    let mut failure_count = reader.count(keys::FAILURE_COUNT, || Repair::Value(counted.into())).unwrap_or(0);
    if reader.has_garbage(keys::FAILURE_COUNT) {
        failure_count = i64::from(failed_this);
    }
    let threshold = reader.limit(keys::FAILURE_THRESHOLD).unwrap_or(1);
    let max_failures = reader.limit(keys::MAX_FAILURES).unwrap_or(-1);
    let probes = reader.probes();
    let health_unknown = reader.has_garbage(keys::PROBE_STATUSES);
    let unhealthy: Vec<String> =
        probes.iter().flatten().filter(|(_, status)| !status.healthy).map(|(name, _)| name.clone()).collect();
    let unasked = !health_unknown
        && probes.iter().flatten().all(|(_, status)| status.healthy || status.failure_count == 0);

    let failure = if failed_this {
        failure::reason(plan.as_ref(), reader.bytes(keys::FAILED_OUTPUT))
    } else {
        String::new()
    };
    let checksum_failed = failure_count > 0 && failed_this && !(failure_count < threshold || threshold == -1);
    let failed = state == Some(PlanState::Failed) || (checksum_failed && state != Some(PlanState::Succeeded));
    let in_sync = plan.is_some()
        && match state {
            Some(PlanState::Succeeded) => true,
            Some(PlanState::InProgress | PlanState::Failed | PlanState::Cancelled) => false,
            Some(PlanState::Pending) | None => applied_is_plan,
        };
    let periodic_output = reader.output(keys::APPLIED_PERIODIC_OUTPUT);
    reader.look_at_the_rest();
    NodeState {
        plan,
        plan_bytes,
        applied_plan,
        state,
        in_sync,
        failed,
        healthy: unhealthy.is_empty() && !health_unknown,
        unhealthy,
        unasked,
        failure_count,
        failure,
        max_failures,
        periodic_output,
        garbage: reader.garbage,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;

    fn data(pairs: &[(&str, &str)]) -> BTreeMap<String, ByteString> {
        pairs.iter().map(|(k, v)| (k.to_string(), ByteString(v.as_bytes().to_vec()))).collect()
    }

    const PLAN: &str = r#"{"instructions":[{"name":"install"}]}"#;

    #[test]
    fn absent_probe_statuses_are_healthy_and_empty_ones_are_not() {
        assert!(NodeState::from_data(&data(&[("plan", PLAN)])).healthy);
        let state =
            NodeState::from_data(&data(&[("probe-statuses", r#"{"b":{},"a":{},"c":{"healthy":true}}"#)]));
        assert_eq!(state.unhealthy, ["a", "b"]);
        assert!(!state.healthy);
    }

    #[test]
    fn control_plane_check_19_old_agents_are_in_sync_by_applied_plan() {
        assert!(!NodeState::from_data(&data(&[("plan", PLAN)])).in_sync);
        assert!(NodeState::from_data(&data(&[("plan", PLAN), ("appliedPlan", PLAN)])).in_sync);
        let pending = data(&[("plan", PLAN), ("appliedPlan", "{}"), ("plan-state", "pending")]);
        assert!(!NodeState::from_data(&pending).in_sync);
        assert!(NodeState::from_data(&data(&[("plan", PLAN), ("plan-state", "succeeded")])).in_sync);
    }

    #[test]
    fn failure_counts_only_for_this_plan_and_from_the_threshold_on() {
        let sum = checksum(PLAN.as_bytes());
        let failed = |count: &str, threshold: &str, sum: &str| {
            let pairs = [
                ("plan", PLAN),
                ("failure-count", count),
                ("failure-threshold", threshold),
                ("failed-checksum", sum),
            ];
            NodeState::from_data(&data(&pairs)).failed
        };
        assert!(failed("1", "1", &sum));
        assert!(!failed("1", "5", &sum));
        assert!(!failed("9", "-1", &sum));
        assert!(!failed("1", "1", "other"));
        assert!(NodeState::from_data(&data(&[("plan", PLAN), ("plan-state", "failed")])).failed);
    }

    #[test]
    fn control_plane_check_20_garbage_is_recorded_and_nothing_else_is_believed() {
        for (key, value) in
            [("plan", "{"), ("failure-count", "x"), ("plan-state", "odd"), ("probe-statuses", "[]")]
        {
            let state = NodeState::from_data(&data(&[(key, value)]));
            assert!(state.garbage_in(key).is_some(), "{key}: {state:?}");
            assert!(!state.in_sync && state.plan.is_none());
        }
    }
}
