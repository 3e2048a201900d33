//! Finalizers.

/// Cluster API (`api/core/v1beta2/*_types.go`).
pub mod capi {
    /// On Clusters.
    pub const CLUSTER: &str = "cluster.cluster.x-k8s.io";
    /// On Machines.
    pub const MACHINE: &str = "machine.cluster.x-k8s.io";
    /// On MachineSets.
    pub const MACHINE_SET: &str = "cluster.x-k8s.io/machineset";
    /// On MachineDeployments.
    pub const MACHINE_DEPLOYMENT: &str = "cluster.x-k8s.io/machinedeployment";
}

/// Rancher (`wrangler.cattle.io/<handler>`, named where the handler is registered).
pub mod cattle {
    /// On provisioning Clusters: removal of the management Cluster.
    pub const PROVISIONING_CLUSTER: &str = "wrangler.cattle.io/provisioning-cluster-remove";
    /// On provisioning Clusters: removal of the CAPI objects.
    pub const RKE_CLUSTER: &str = "wrangler.cattle.io/rke-cluster-remove";
    /// On RKEControlPlanes.
    pub const RKE_CONTROL_PLANE: &str = "wrangler.cattle.io/rke-control-plane-remove";
    /// On infrastructure machines.
    pub const MACHINE_PROVISION: &str = "wrangler.cattle.io/machine-provision-remove";
}
