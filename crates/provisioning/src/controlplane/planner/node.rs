//! What a machine plan secret says about its machine, derived from its data keys.

use std::collections::BTreeMap;
use std::io::Read;

use drover_plan::{PeriodicInstructionOutput, Plan, PlanState, ProbeStatus, checksum, keys};
use k8s_openapi::ByteString;

use super::failure;

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
    /// Why this secret cannot be understood. Only this machine suffers from it.
    pub corrupt: Option<String>,
}

impl NodeState {
    /// Reads the data of a plan secret. Never fails: what cannot be read is recorded in `corrupt`.
    pub fn from_data(data: &BTreeMap<String, ByteString>) -> Self {
        match read(data) {
            Ok(state) => state,
            Err(problem) => Self { corrupt: Some(problem), ..Self::default() },
        }
    }

    /// The plan was applied as it stands, but its probes did not pass.
    pub fn applied_but_unhealthy(&self) -> bool {
        self.applied_plan.is_some() && self.plan == self.applied_plan && !self.healthy
    }

    /// The file at `path` in the plan that was delivered last, decoded.
    pub fn delivered_file(&self, path: &str) -> Option<Vec<u8>> {
        let file = self.plan.as_ref()?.files.iter().find(|file| file.path == path)?;
        base64_decode(&file.content)
    }
}

/// Standard base64, or nothing.
pub fn base64_decode(text: &str) -> Option<Vec<u8>> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).ok()
}

/// Standard base64.
pub fn base64_encode(bytes: impl AsRef<[u8]>) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn read(data: &BTreeMap<String, ByteString>) -> Result<NodeState, String> {
    let bytes = |key: &str| data.get(key).map(|value| value.0.as_slice()).filter(|value| !value.is_empty());
    let plan_bytes = bytes(keys::PLAN).unwrap_or_default().to_vec();
    let plan = parse_plan(keys::PLAN, bytes(keys::PLAN))?;
    let applied_plan = parse_plan(keys::APPLIED_PLAN, bytes(keys::APPLIED_PLAN))?;
    let failure_count = parse_number(keys::FAILURE_COUNT, bytes(keys::FAILURE_COUNT))?.unwrap_or(0);
    let threshold = parse_number(keys::FAILURE_THRESHOLD, bytes(keys::FAILURE_THRESHOLD))?.unwrap_or(1);
    let max_failures = parse_number(keys::MAX_FAILURES, bytes(keys::MAX_FAILURES))?.unwrap_or(-1);
    let state = match bytes(keys::PLAN_STATE) {
        None => None,
        Some(value) => Some(
            PlanState::parse(value)
                .ok_or_else(|| format!("key plan-state holds {:?}", String::from_utf8_lossy(value)))?,
        ),
    };
    let probes: Option<BTreeMap<String, ProbeStatus>> = match bytes(keys::PROBE_STATUSES) {
        None => None,
        Some(value) => Some(
            drover_plan::from_slice(value)
                .map_err(|error| format!("key probe-statuses is not valid: {error}"))?,
        ),
    };
    let unhealthy: Vec<String> =
        probes.iter().flatten().filter(|(_, status)| !status.healthy).map(|(name, _)| name.clone()).collect();

    let unasked = probes.iter().flatten().all(|(_, status)| status.healthy || status.failure_count == 0);

    let of_this_plan =
        !plan_bytes.is_empty() && bytes(keys::FAILED_CHECKSUM) == Some(checksum(&plan_bytes).as_bytes());
    let failure =
        if of_this_plan { failure::reason(plan.as_ref(), bytes(keys::FAILED_OUTPUT)) } else { String::new() };
    let checksum_failed =
        failure_count > 0 && of_this_plan && !(failure_count < threshold || threshold == -1);
    let failed = state == Some(PlanState::Failed) || (checksum_failed && state != Some(PlanState::Succeeded));
    let in_sync = match state {
        Some(PlanState::Succeeded) => true,
        Some(PlanState::InProgress | PlanState::Failed | PlanState::Cancelled) => false,
        Some(PlanState::Pending) | None => {
            !plan_bytes.is_empty() && bytes(keys::APPLIED_PLAN) == Some(plan_bytes.as_slice())
        }
    };
    Ok(NodeState {
        plan,
        plan_bytes,
        applied_plan,
        state,
        in_sync,
        failed,
        healthy: unhealthy.is_empty(),
        unhealthy,
        unasked,
        failure_count,
        failure,
        max_failures,
        periodic_output: read_periodic_output(bytes(keys::APPLIED_PERIODIC_OUTPUT))?,
        corrupt: None,
    })
}

/// The periodic output as the agent packed it: gzip around JSON. Bounded, because it comes from a machine.
pub fn read_periodic_output(
    packed: Option<&[u8]>,
) -> Result<BTreeMap<String, PeriodicInstructionOutput>, String> {
    const LIMIT: u64 = 16 << 20;
    let Some(packed) = packed.filter(|bytes| !bytes.is_empty()) else { return Ok(BTreeMap::new()) };
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(packed)
        .take(LIMIT)
        .read_to_end(&mut text)
        .map_err(|error| format!("key applied-periodic-output is not gzip: {error}"))?;
    drover_plan::from_slice(&text)
        .map_err(|error| format!("key applied-periodic-output is not valid: {error}"))
}

fn parse_plan(key: &str, bytes: Option<&[u8]>) -> Result<Option<Plan>, String> {
    let Some(bytes) = bytes else { return Ok(None) };
    drover_plan::from_slice(bytes).map(Some).map_err(|error| format!("key {key} is not a plan: {error}"))
}

fn parse_number(key: &str, bytes: Option<&[u8]>) -> Result<Option<i64>, String> {
    let Some(bytes) = bytes else { return Ok(None) };
    let text = String::from_utf8_lossy(bytes);
    text.trim().parse().map(Some).map_err(|_| format!("key {key} holds {text:?}, which is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert!(state.corrupt.as_deref().unwrap_or_default().contains(key), "{key}: {state:?}");
            assert!(!state.in_sync && state.plan.is_none());
        }
    }
}
