//! Label keys.

/// Cluster API (`api/core/v1beta2/{common,machine,machinedeployment}_types.go`).
pub mod capi {
    /// The name of the Cluster that an object belongs to.
    pub const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";
    /// Marks control plane Machines; the value is empty.
    pub const CONTROL_PLANE: &str = "cluster.x-k8s.io/control-plane";
    /// The control plane object that owns a Machine.
    pub const CONTROL_PLANE_NAME: &str = "cluster.x-k8s.io/control-plane-name";
    /// The MachineSet that owns a Machine.
    pub const SET_NAME: &str = "cluster.x-k8s.io/set-name";
    /// The MachineDeployment that owns a MachineSet or Machine.
    pub const DEPLOYMENT_NAME: &str = "cluster.x-k8s.io/deployment-name";
    /// The MachinePool that owns a Machine.
    pub const POOL_NAME: &str = "cluster.x-k8s.io/pool-name";
    /// On Pods: how a drain handles them (`skip` or `wait-completed`).
    pub const DRAIN: &str = "cluster.x-k8s.io/drain";
    /// Distinguishes the Machines of the MachineSets of a MachineDeployment.
    pub const MACHINE_TEMPLATE_HASH: &str = "machine-template-hash";
    /// The prefix of the labels of a provider's CRD that list its versions by contract.
    pub const CONTRACT_PREFIX: &str = "cluster.x-k8s.io/";
    /// A label domain that is copied from a Machine to its Node.
    pub const NODE_ROLE_PREFIX: &str = "node-role.kubernetes.io";
    /// A label domain that a kubelet cannot set on its own Node.
    pub const NODE_RESTRICTION_DOMAIN: &str = "node-restriction.kubernetes.io";
    /// The label domain that is managed by Cluster API.
    pub const MANAGED_NODE_DOMAIN: &str = "node.cluster.x-k8s.io";
}

/// Rancher's providers (rancher/rancher `pkg/capr/common.go`).
pub mod rke {
    /// The name of the cluster.
    pub const CLUSTER_NAME: &str = "rke.cattle.io/cluster-name";
    /// On machines that run the control plane.
    pub const CONTROL_PLANE_ROLE: &str = "rke.cattle.io/control-plane-role";
    /// On machines that run etcd.
    pub const ETCD_ROLE: &str = "rke.cattle.io/etcd-role";
    /// On machines that run workloads.
    pub const WORKER_ROLE: &str = "rke.cattle.io/worker-role";
    /// On the plan secret of the machine that initializes the cluster.
    pub const INIT_NODE: &str = "rke.cattle.io/init-node";
    /// The machine ID of the init node, which is kept across restores.
    pub const INIT_NODE_MACHINE_ID: &str = "rke.cattle.io/init-node-machine-id";
    /// The ID that a machine generated for itself.
    pub const MACHINE_ID: &str = "rke.cattle.io/machine-id";
    /// The name of the Machine.
    pub const MACHINE_NAME: &str = "rke.cattle.io/machine-name";
    /// The namespace of the Machine.
    pub const MACHINE_NAMESPACE: &str = "rke.cattle.io/machine-namespace";
    /// The UID of the Machine.
    pub const MACHINE_UID: &str = "rke.cattle.io/machine";
    /// The hash of the driver fields of a machine template.
    pub const MACHINE_TEMPLATE_HASH: &str = "rke.cattle.io/machine-template-hash";
    /// The pool of a machine.
    pub const MACHINE_POOL_NAME: &str = "rke.cattle.io/rke-machine-pool-name";
    /// The Node name of a machine.
    pub const NODE_NAME: &str = "rke.cattle.io/node-name";
    /// The plan secret of a service account.
    pub const PLAN_SECRET_NAME: &str = "rke.cattle.io/plan-secret-name";
    /// The RKEBootstrap of a service account or Secret.
    pub const BOOTSTRAP_NAME: &str = "rke.cattle.io/rkebootstrap-name";
    /// The purpose of a service account: `bootstrap` or `plan`.
    pub const SERVICE_ACCOUNT_ROLE: &str = "rke.cattle.io/service-account-role";
    /// The value of [`SERVICE_ACCOUNT_ROLE`] for bootstrap.
    pub const ROLE_BOOTSTRAP: &str = "bootstrap";
    /// The value of [`SERVICE_ACCOUNT_ROLE`] for plans.
    pub const ROLE_PLAN: &str = "plan";
    /// On an infrastructure machine and its Jobs: the name of the CAPI Machine.
    pub const CAPI_MACHINE_NAME: &str = "rke.cattle.io/capi-machine-name";
    /// On provisioning Jobs: the API group of the infrastructure machine.
    pub const INFRA_MACHINE_GROUP: &str = "rke.cattle.io/infra-machine-group";
    /// On provisioning Jobs: the API version of the infrastructure machine.
    pub const INFRA_MACHINE_VERSION: &str = "rke.cattle.io/infra-machine-version";
    /// On provisioning Jobs: the kind of the infrastructure machine.
    pub const INFRA_MACHINE_KIND: &str = "rke.cattle.io/infra-machine-kind";
    /// On provisioning Jobs: the name of the infrastructure machine.
    pub const INFRA_MACHINE_NAME: &str = "rke.cattle.io/infra-machine-name";
    /// On provisioning Jobs: `true` if the Job deletes the machine.
    pub const INFRA_REMOVE: &str = "rke.cattle.io/infra-remove";
}

/// Labels of Drover.
pub mod drover {
    /// On the Secrets of registration tokens. Caches select them by it.
    pub const REGISTRATION_TOKEN: &str = "drover.io/registration-token";
}

/// Other labels of Rancher and wrangler.
pub mod cattle {
    /// The operating system of a pool or machine.
    pub const OS: &str = "cattle.io/os";
    /// Marks objects that a backup must include.
    pub const BACKUP: &str = "resources.cattle.io/backup";
    /// Marks CRDs whose objects are indexed by cluster.
    pub const CLUSTER_INDEXED: &str = "auth.cattle.io/cluster-indexed";
    /// The driver of a DynamicSchema.
    pub const NODE_DRIVER_NAME: &str = "io.cattle.node_driver.name";
    /// The hash of the object set in which wrangler's apply created an object.
    pub const OBJECTSET_HASH: &str = "objectset.rio.cattle.io/hash";
    /// `false` keeps an object that is no longer in its set.
    pub const OBJECTSET_PRUNE: &str = "objectset.rio.cattle.io/prune";
}
