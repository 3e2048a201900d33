//! Keys and words of the providers, in one place: those of `drover_api`, and the few that are only spoken here.

/// Label keys.
pub mod labels {
    pub use drover_api::labels::capi;
    pub use drover_api::labels::cattle::*;
    pub use drover_api::labels::drover::*;
    pub use drover_api::labels::rke::*;

    /// Group of the cluster-like object a plan secret belongs to (rancher `pkg/plan`); `…-kind`, `…-name`.
    pub const PLAN_CLUSTER_PREFIX: &str = "plan.cattle.io/cluster-";
    /// Group of the machine-like object a plan secret belongs to; `…-kind`, `…-name`.
    pub const PLAN_MACHINE_PREFIX: &str = "plan.cattle.io/machine-";
    /// On token secrets: the ServiceAccount (wrangler `pkg/…/serviceaccounttoken`).
    pub const SERVICE_ACCOUNT_NAME: &str = "cattle.io/service-account.name";
}

/// Annotation keys.
pub mod annotations {
    pub use drover_api::annotations::capi;
    pub use drover_api::annotations::cattle::*;
    pub use drover_api::annotations::drover::*;
    pub use drover_api::annotations::provisioning::*;
    pub use drover_api::annotations::rke::*;

    /// On plan secrets: when the plan was written (rancher `pkg/capr/common.go`).
    pub const PLAN_LAST_UPDATED: &str = "rke.cattle.io/plan-last-updated";
    /// On plan secrets: when the plan's probes first passed; empty until then.
    pub const PLAN_PROBES_PASSED: &str = "rke.cattle.io/plan-probes-passed";
    /// On plan secrets: the plan that was let try again, and how often it had failed by then.
    pub const PLAN_REARMED: &str = "drover.io/plan-rearmed";
    /// On Machines of etcd nodes: holds them until etcd let go.
    pub const ETCD_HOOK: &str = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/rke-bootstrap-cleanup";
    /// Value of [`ETCD_HOOK`].
    pub const ETCD_HOOK_OWNER: &str = "rke-bootstrap-controller";
    /// On Nodes: keys of labels that came from the pool.
    pub const NODE_LABELS_FROM_POOL: &str = "drover.io/labels-from-pool";
    /// On Nodes: taints that came from the pool.
    pub const NODE_TAINTS_FROM_POOL: &str = "drover.io/taints-from-pool";
    /// On infra machines: the attempt whose Job is under way.
    pub const PROVISION_ATTEMPT: &str = "drover.io/provision-attempt";
}

/// Condition types.
pub mod conditions {
    pub use drover_api::conditions::cattle::*;

    /// False when configuration was left out because nothing would understand it.
    pub const CONFIG_ACCEPTED: &str = "ConfigAccepted";
    /// On RKEControlPlanes, only while a change is on its way to the machines: which.
    pub const UPDATING: &str = "Updating";
    /// On Machines: False while keys of the plan secret hold what they are not for; absent if they never did.
    pub const PLAN_SECRET_READABLE: &str = "PlanSecretReadable";
    /// Reason of a Machine's `Reconciled` that is Unknown though it has its plan: what it says of its probes cannot be read.
    pub const HEALTH_UNKNOWN: &str = "HealthUnknown";
}
