//! Types of Secrets.

/// The plan of a machine (rancher/rancher `pkg/capr/common.go`).
pub const MACHINE_PLAN: &str = "rke.cattle.io/machine-plan";
/// The bootstrap script of a machine (rancher/rancher `pkg/capr/common.go`).
pub const BOOTSTRAP: &str = "rke.cattle.io/bootstrap";
/// The join tokens of a cluster (rancher/rancher `pkg/capr/common.go`).
pub const CLUSTER_STATE: &str = "rke.cattle.io/cluster-state";
/// The saved driver state of a machine (rancher/rancher `pkg/controllers/capr/machineprovision`).
pub const MACHINE_STATE: &str = "rke.cattle.io/machine-state";
/// The registration request of a custom machine (rancher/rancher `pkg/capr/common.go`).
pub const MACHINE_REQUEST: &str = "rke.cattle.io/machine-request";
/// The cloud credential of a user.
pub const CLOUD_CREDENTIAL: &str = "provisioning.cattle.io/cloud-credential";
