//! Types of Secrets.

/// A machine's plan (rancher/rancher `pkg/capr/common.go`).
pub const MACHINE_PLAN: &str = "rke.cattle.io/machine-plan";
/// A machine's bootstrap script (rancher/rancher `pkg/capr/common.go`).
pub const BOOTSTRAP: &str = "rke.cattle.io/bootstrap";
/// A cluster's join tokens (rancher/rancher `pkg/capr/common.go`).
pub const CLUSTER_STATE: &str = "rke.cattle.io/cluster-state";
/// A driver's saved state of one machine (rancher/rancher `pkg/controllers/capr/machineprovision`).
pub const MACHINE_STATE: &str = "rke.cattle.io/machine-state";
/// A custom machine's request to register (rancher/rancher `pkg/capr/common.go`).
pub const MACHINE_REQUEST: &str = "rke.cattle.io/machine-request";
/// A cloud credential of a user.
pub const CLOUD_CREDENTIAL: &str = "provisioning.cattle.io/cloud-credential";
