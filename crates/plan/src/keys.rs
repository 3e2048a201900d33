//! Keys and type of the machine plan secret. Each key has one writer, and neither side writes the keys of the other.

/// The type of the secret.
pub const SECRET_TYPE: &str = "rke.cattle.io/machine-plan";

/// Server: the plan as JSON.
pub const PLAN: &str = "plan";
/// The server writes `pending`, the agent the other values; absent in the checksum protocol.
pub const PLAN_STATE: &str = "plan-state";
/// Agent: decimal, incremented at each `pending` → `in-progress`.
pub const PLAN_REVISION: &str = "plan-revision";
/// Server: decimal; absent, invalid or `-1` means no limit.
pub const MAX_FAILURES: &str = "max-failures";
/// Server, and read only by it: the number of failures at which it considers the plan failed.
pub const FAILURE_THRESHOLD: &str = "failure-threshold";
/// Anyone: the interval of probes in decimal seconds.
pub const PROBE_PERIOD_SECONDS: &str = "probe-period-seconds";
/// Agent: the checksum of the last plan that was applied successfully.
pub const APPLIED_CHECKSUM: &str = "applied-checksum";
/// Agent: gzip of JSON `{instruction: base64(output)}`.
pub const APPLIED_OUTPUT: &str = "applied-output";
/// Agent, pruned by the server: gzip of JSON `{instruction: PeriodicInstructionOutput}`.
pub const APPLIED_PERIODIC_OUTPUT: &str = "applied-periodic-output";
/// Agent, deleted by the server with each plan: JSON `{probe: ProbeStatus}`.
pub const PROBE_STATUSES: &str = "probe-statuses";
/// Agent: the checksum of the last plan that failed.
pub const FAILED_CHECKSUM: &str = "failed-checksum";
/// Agent: like [`APPLIED_OUTPUT`], for the failed attempt.
pub const FAILED_OUTPUT: &str = "failed-output";
/// The name of the agent's own error message in [`FAILED_OUTPUT`], next to the outputs of instructions. Its second line
/// is the last line of output of the failed instruction.
pub const AGENT_REASON: &str = "drover-agent/error";
/// Agent: decimal, the failures of the current plan.
pub const FAILURE_COUNT: &str = "failure-count";
/// Agent: decimal, the consecutive successful runs.
pub const SUCCESS_COUNT: &str = "success-count";
/// Agent: Go `UnixDate` in UTC.
pub const LAST_APPLY_TIME: &str = "last-apply-time";
/// Server: a copy of the plan after it was applied.
pub const APPLIED_PLAN: &str = "appliedPlan";
/// Agent, on control plane machines: the CA of the cluster's API as PEM. Drover only; the original does not have this
/// key.
pub const CLUSTER_CA: &str = "cluster-ca";

/// Every key that the agent writes. On a write conflict exactly these are copied to the current secret.
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
