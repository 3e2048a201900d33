//! Label keys.

/// Cluster API (`api/core/v1beta2/{common,machine,machinedeployment}_types.go`).
pub mod capi {
    /// Name of the Cluster an object belongs to.
    pub const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";
    /// Marks control-plane Machines; the value is empty.
    pub const CONTROL_PLANE: &str = "cluster.x-k8s.io/control-plane";
    /// Control plane object that owns a Machine.
    pub const CONTROL_PLANE_NAME: &str = "cluster.x-k8s.io/control-plane-name";
    /// MachineSet that owns a Machine.
    pub const SET_NAME: &str = "cluster.x-k8s.io/set-name";
    /// MachineDeployment that owns a MachineSet or Machine.
    pub const DEPLOYMENT_NAME: &str = "cluster.x-k8s.io/deployment-name";
    /// MachinePool that owns a Machine.
    pub const POOL_NAME: &str = "cluster.x-k8s.io/pool-name";
    /// On pods: how a drain treats them (`skip` or `wait-completed`).
    pub const DRAIN: &str = "cluster.x-k8s.io/drain";
    /// Tells the Machines of one MachineSet of a deployment from those of the others.
    pub const MACHINE_TEMPLATE_HASH: &str = "machine-template-hash";
    /// Prefix of the labels on a provider's CRD that name its versions per contract.
    pub const CONTRACT_PREFIX: &str = "cluster.x-k8s.io/";
    /// Label domains that are carried from a Machine to its Node.
    pub const NODE_ROLE_PREFIX: &str = "node-role.kubernetes.io";
    /// Label domain that a kubelet may not set itself.
    pub const NODE_RESTRICTION_DOMAIN: &str = "node-restriction.kubernetes.io";
    /// Label domain managed by Cluster API.
    pub const MANAGED_NODE_DOMAIN: &str = "node.cluster.x-k8s.io";
}

/// Rancher's providers (rancher/rancher `pkg/capr/common.go`).
pub mod rke {
    /// Name of the cluster.
    pub const CLUSTER_NAME: &str = "rke.cattle.io/cluster-name";
    /// On machines that run the control plane.
    pub const CONTROL_PLANE_ROLE: &str = "rke.cattle.io/control-plane-role";
    /// On machines that run etcd.
    pub const ETCD_ROLE: &str = "rke.cattle.io/etcd-role";
    /// On machines that run workloads.
    pub const WORKER_ROLE: &str = "rke.cattle.io/worker-role";
    /// On the plan secret of the machine that starts the cluster.
    pub const INIT_NODE: &str = "rke.cattle.io/init-node";
    /// Machine id of the init node, kept across restores.
    pub const INIT_NODE_MACHINE_ID: &str = "rke.cattle.io/init-node-machine-id";
    /// Id that a machine made for itself.
    pub const MACHINE_ID: &str = "rke.cattle.io/machine-id";
    /// Name of the Machine.
    pub const MACHINE_NAME: &str = "rke.cattle.io/machine-name";
    /// Namespace of the Machine.
    pub const MACHINE_NAMESPACE: &str = "rke.cattle.io/machine-namespace";
    /// UID of the Machine.
    pub const MACHINE_UID: &str = "rke.cattle.io/machine";
    /// Hash of a machine template's driver fields.
    pub const MACHINE_TEMPLATE_HASH: &str = "rke.cattle.io/machine-template-hash";
    /// Pool of a machine.
    pub const MACHINE_POOL_NAME: &str = "rke.cattle.io/rke-machine-pool-name";
    /// Node name of a machine.
    pub const NODE_NAME: &str = "rke.cattle.io/node-name";
    /// Plan secret of a service account.
    pub const PLAN_SECRET_NAME: &str = "rke.cattle.io/plan-secret-name";
    /// RKEBootstrap of a service account or secret.
    pub const BOOTSTRAP_NAME: &str = "rke.cattle.io/rkebootstrap-name";
    /// What a service account is for: `bootstrap` or `plan`.
    pub const SERVICE_ACCOUNT_ROLE: &str = "rke.cattle.io/service-account-role";
    /// Value of [`SERVICE_ACCOUNT_ROLE`] for bootstrap.
    pub const ROLE_BOOTSTRAP: &str = "bootstrap";
    /// Value of [`SERVICE_ACCOUNT_ROLE`] for plans.
    pub const ROLE_PLAN: &str = "plan";
    /// On an infra machine and its Jobs: the CAPI Machine.
    pub const CAPI_MACHINE_NAME: &str = "rke.cattle.io/capi-machine-name";
    /// On provisioning Jobs: API group of the infra machine.
    pub const INFRA_MACHINE_GROUP: &str = "rke.cattle.io/infra-machine-group";
    /// On provisioning Jobs: API version of the infra machine.
    pub const INFRA_MACHINE_VERSION: &str = "rke.cattle.io/infra-machine-version";
    /// On provisioning Jobs: kind of the infra machine.
    pub const INFRA_MACHINE_KIND: &str = "rke.cattle.io/infra-machine-kind";
    /// On provisioning Jobs: name of the infra machine.
    pub const INFRA_MACHINE_NAME: &str = "rke.cattle.io/infra-machine-name";
    /// On provisioning Jobs: `true` when the Job removes the machine.
    pub const INFRA_REMOVE: &str = "rke.cattle.io/infra-remove";
}

/// Drover's own.
pub mod drover {
    /// On the Secrets of registration tokens: caches find them by it.
    pub const REGISTRATION_TOKEN: &str = "drover.io/registration-token";
}

/// Other labels of Rancher and wrangler.
pub mod cattle {
    /// Operating system of a pool or machine.
    pub const OS: &str = "cattle.io/os";
    /// Objects that a backup must contain.
    pub const BACKUP: &str = "resources.cattle.io/backup";
    /// CRDs whose objects are indexed by cluster.
    pub const CLUSTER_INDEXED: &str = "auth.cattle.io/cluster-indexed";
    /// Driver of a DynamicSchema.
    pub const NODE_DRIVER_NAME: &str = "io.cattle.node_driver.name";
    /// Hash of the set that wrangler's apply put an object in.
    pub const OBJECTSET_HASH: &str = "objectset.rio.cattle.io/hash";
    /// `false` keeps an object that has left its set.
    pub const OBJECTSET_PRUNE: &str = "objectset.rio.cattle.io/prune";
}
