//! Keys and type of the machine plan secret. Who writes which key is a contract: either side only touches its own.

/// Type of the secret.
pub const SECRET_TYPE: &str = "rke.cattle.io/machine-plan";

/// Server: the plan's JSON.
pub const PLAN: &str = "plan";
/// Server writes `pending`, the agent the rest; absent in the checksum protocol.
pub const PLAN_STATE: &str = "plan-state";
/// Agent: decimal, one more at each `pending` → `in-progress`.
pub const PLAN_REVISION: &str = "plan-revision";
/// Server: decimal; absent, unparsable or `-1` means retry for ever.
pub const MAX_FAILURES: &str = "max-failures";
/// Server, and read only by it: from how many failures on it calls the plan failed.
pub const FAILURE_THRESHOLD: &str = "failure-threshold";
/// Anyone: decimal seconds between two rounds of probes.
pub const PROBE_PERIOD_SECONDS: &str = "probe-period-seconds";
/// Agent: checksum of the plan applied last with success.
pub const APPLIED_CHECKSUM: &str = "applied-checksum";
/// Agent: gzip of JSON `{instruction: base64(output)}`.
pub const APPLIED_OUTPUT: &str = "applied-output";
/// Agent, pruned by the server: gzip of JSON `{instruction: PeriodicInstructionOutput}`.
pub const APPLIED_PERIODIC_OUTPUT: &str = "applied-periodic-output";
/// Agent, deleted by the server with each plan: JSON `{probe: ProbeStatus}`.
pub const PROBE_STATUSES: &str = "probe-statuses";
/// Agent: checksum of the plan that failed last.
pub const FAILED_CHECKSUM: &str = "failed-checksum";
/// Agent: like [`APPLIED_OUTPUT`], of the attempt that failed.
pub const FAILED_OUTPUT: &str = "failed-output";
/// Under this name the agent's own reason stands in [`FAILED_OUTPUT`], beside the outputs of instructions. A second line
/// of it is what the instruction that failed said last.
pub const AGENT_REASON: &str = "drover-agent/error";
/// Agent: decimal, failures of the current plan.
pub const FAILURE_COUNT: &str = "failure-count";
/// Agent: decimal, successful applies in a row.
pub const SUCCESS_COUNT: &str = "success-count";
/// Agent: Go `UnixDate` in UTC.
pub const LAST_APPLY_TIME: &str = "last-apply-time";
/// Server: copy of the plan once it was applied.
pub const APPLIED_PLAN: &str = "appliedPlan";
/// Agent, on machines that serve their cluster's API: PEM of the authority behind that API. Of Drover; the original has no
/// such key.
pub const CLUSTER_CA: &str = "cluster-ca";

/// Every key the agent writes. On a write conflict exactly these are carried over to the fresh secret.
pub const AGENT_OWNED: &[&str] = &[
    PLAN_STATE,
    PLAN_REVISION,
    APPLIED_CHECKSUM,
    APPLIED_OUTPUT,
    APPLIED_PERIODIC_OUTPUT,
    PROBE_STATUSES,
    FAILED_CHECKSUM,
    FAILED_OUTPUT,
    FAILURE_COUNT,
    SUCCESS_COUNT,
    LAST_APPLY_TIME,
    CLUSTER_CA,
];
