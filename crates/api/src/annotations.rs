//! Annotation keys.

/// Cluster API (`api/core/v1beta2/{common,machine,machineset,machinedeployment}_types.go`).
pub mod capi {
    /// Presence, with any value, pauses an object.
    pub const PAUSED: &str = "cluster.x-k8s.io/paused";
    /// Marks a Machine to be removed first when its set shrinks.
    pub const DELETE_MACHINE: &str = "cluster.x-k8s.io/delete-machine";
    /// Asks for a Machine to be remediated.
    pub const REMEDIATE_MACHINE: &str = "cluster.x-k8s.io/remediate-machine";
    /// `true` on a MachineSet stops it from creating Machines.
    pub const DISABLE_MACHINE_CREATE: &str = "cluster.x-k8s.io/disable-machine-create";
    /// Template an object was cloned from.
    pub const CLONED_FROM_NAME: &str = "cluster.x-k8s.io/cloned-from-name";
    /// `Kind.group` of that template.
    pub const CLONED_FROM_GROUP_KIND: &str = "cluster.x-k8s.io/cloned-from-groupkind";
    /// Smallest size that the autoscaler may choose.
    pub const AUTOSCALER_MIN_SIZE: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size";
    /// Largest size that the autoscaler may choose.
    pub const AUTOSCALER_MAX_SIZE: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size";
    /// The newer version of an object that was read as an older one.
    pub const CONVERSION_DATA: &str = "cluster.x-k8s.io/conversion-data";
    /// Revision of a MachineDeployment and of its MachineSets.
    pub const REVISION: &str = "machinedeployment.clusters.x-k8s.io/revision";
    /// Former revisions of a MachineSet, separated by commas.
    pub const REVISION_HISTORY: &str = "machinedeployment.clusters.x-k8s.io/revision-history";
    /// Replicas of the MachineDeployment when the set was last scaled.
    pub const DESIRED_REPLICAS: &str = "machinedeployment.clusters.x-k8s.io/desired-replicas";
    /// Replicas plus surge of the MachineDeployment when the set was last scaled.
    pub const MAX_REPLICAS: &str = "machinedeployment.clusters.x-k8s.io/max-replicas";
    /// Skips draining when a Machine is deleted.
    pub const EXCLUDE_NODE_DRAINING: &str = "machine.cluster.x-k8s.io/exclude-node-draining";
    /// Skips waiting for volumes when a Machine is deleted.
    pub const EXCLUDE_WAIT_FOR_NODE_VOLUME_DETACH: &str =
        "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach";
    /// Preflight checks that a MachineSet skips.
    pub const SKIP_PREFLIGHT_CHECKS: &str = "machineset.cluster.x-k8s.io/skip-preflight-checks";
    /// Any key with this prefix holds a deleting Machine before its Node is drained.
    pub const PRE_DRAIN_HOOK_PREFIX: &str = "pre-drain.delete.hook.machine.cluster.x-k8s.io";
    /// Any key with this prefix holds a deleting Machine before its server is removed.
    pub const PRE_TERMINATE_HOOK_PREFIX: &str = "pre-terminate.delete.hook.machine.cluster.x-k8s.io";
    /// Marks a Machine that is being updated in place.
    pub const UPDATE_IN_PROGRESS: &str = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress";

    /// On Nodes: name of the Cluster.
    pub const NODE_CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";
    /// On Nodes: namespace of the Cluster.
    pub const NODE_CLUSTER_NAMESPACE: &str = "cluster.x-k8s.io/cluster-namespace";
    /// On Nodes: name of the Machine.
    pub const NODE_MACHINE: &str = "cluster.x-k8s.io/machine";
    /// On Nodes: kind of the Machine's owner.
    pub const NODE_OWNER_KIND: &str = "cluster.x-k8s.io/owner-kind";
    /// On Nodes: name of the Machine's owner.
    pub const NODE_OWNER_NAME: &str = "cluster.x-k8s.io/owner-name";
    /// On Nodes: label keys that came from the Machine.
    pub const NODE_LABELS_FROM_MACHINE: &str = "cluster.x-k8s.io/labels-from-machine";
    /// On Nodes: annotation keys that came from the Machine.
    pub const NODE_ANNOTATIONS_FROM_MACHINE: &str = "cluster.x-k8s.io/annotations-from-machine";
}

/// Taint keys that Cluster API sets on Nodes.
pub mod taints {
    /// Removed when a Node is first synchronised.
    pub const UNINITIALIZED: &str = "node.cluster.x-k8s.io/uninitialized";
}

/// Rancher's providers (rancher/rancher `pkg/capr/common.go`).
pub mod rke {
    /// Address of a custom machine.
    pub const ADDRESS: &str = "rke.cattle.io/address";
    /// Internal address of a custom machine.
    pub const INTERNAL_ADDRESS: &str = "rke.cattle.io/internal-address";
    /// Marks bootstrap token secrets.
    pub const BOOTSTRAP_TOKEN: &str = "rke.cattle.io/bootstrap-token";
    /// Marks bootstrap token secrets that no longer authenticate.
    pub const BOOTSTRAP_TOKEN_INVALIDATED: &str = "rke.cattle.io/bootstrap-token-invalidated";
    /// When a bootstrap token was last used.
    pub const LAST_ACCESS_TIMESTAMP: &str = "rke.cattle.io/last-access-timestamp";
    /// base64(gzip(JSON)) of the cluster spec an RKEControlPlane was made from.
    pub const CLUSTER_SPEC: &str = "rke.cattle.io/cluster-spec";
    /// Drain asked for, with its options.
    pub const DRAIN_OPTIONS: &str = "rke.cattle.io/drain-options";
    /// Drain finished, with the options it had.
    pub const DRAIN_DONE: &str = "rke.cattle.io/drain-done";
    /// Why a drain failed.
    pub const DRAIN_ERROR: &str = "rke.cattle.io/drain-error";
    /// Before a drain.
    pub const PRE_DRAIN: &str = "rke.cattle.io/pre-drain";
    /// After a drain.
    pub const POST_DRAIN: &str = "rke.cattle.io/post-drain";
    /// Uncordon asked for.
    pub const UNCORDON: &str = "rke.cattle.io/uncordon";
    /// Removes an etcd machine without asking etcd.
    pub const ETCD_FORCE_REMOVE: &str = "rke.cattle.io/etcd-force-remove";
    /// Longest hostname of a machine.
    pub const HOSTNAME_LENGTH_LIMIT: &str = "rke.cattle.io/hostname-length-limit";
    /// Where other machines join a cluster through this one.
    pub const JOIN_URL: &str = "rke.cattle.io/join-url";
    /// Keeps the join URL from being set by itself.
    pub const JOIN_URL_AUTOSET_DISABLED: &str = "rke.cattle.io/join-url-autoset-disabled";
    /// Join URL that a machine joined to.
    pub const JOINED_TO: &str = "rke.cattle.io/joined-to";
    /// Node labels of a machine: a JSON map.
    pub const LABELS: &str = "rke.cattle.io/labels";
    /// Node taints of a machine: a JSON array.
    pub const TAINTS: &str = "rke.cattle.io/taints";
    /// Clusters that may read an object.
    pub const AUTHORIZED_FOR_CLUSTERS: &str = "rke.cattle.io/object-authorized-for-clusters";
    /// After how long an absent custom machine is deleted.
    pub const DELETE_MISSING_CUSTOM_MACHINES_AFTER: &str =
        "rke.cattle.io/delete-missing-custom-machines-after";
    /// apiVersion of the Config a machine template was made from.
    pub const CLONED_FROM_GROUP_VERSION: &str = "rke.cattle.io/cloned-from-group-version";
    /// Kind of that Config.
    pub const CLONED_FROM_KIND: &str = "rke.cattle.io/cloned-from-kind";
    /// Name of that Config.
    pub const CLONED_FROM_NAME: &str = "rke.cattle.io/cloned-from-name";
}

/// The provisioning Cluster and its management twin (rancher/rancher `pkg/controllers/provisioningv2`).
pub mod provisioning {
    /// `true` on a management Cluster that is generated from a provisioning Cluster.
    pub const ADMINISTRATED: &str = "provisioning.cattle.io/administrated";
    /// Chosen name of the management twin.
    pub const MANAGEMENT_CLUSTER_NAME: &str = "provisioning.cattle.io/management-cluster-name";
    /// Display name of the management twin.
    pub const MANAGEMENT_CLUSTER_DISPLAY_NAME: &str =
        "provisioning.cattle.io/management-cluster-display-name";
    /// Fleet workspace of the management twin.
    pub const FLEET_WORKSPACE_NAME: &str = "provisioning.cattle.io/fleet-workspace-name";
    /// Allows a pool to lose its recorded driver schema.
    pub const ALLOW_DYNAMIC_SCHEMA_DROP: &str = "provisioning.cattle.io/allow-dynamic-schema-drop";
    /// Lets a machine object go although its server may remain.
    pub const FORCE_MACHINE_REMOVE: &str = "provisioning.cattle.io/force-machine-remove";
    /// A pool of the cluster is scaled automatically.
    pub const CLUSTER_AUTOSCALER_ENABLED: &str = "provisioning.cattle.io/cluster-autoscaler-enabled";
    /// Automatic scaling is held.
    pub const CLUSTER_AUTOSCALER_PAUSED: &str = "provisioning.cattle.io/cluster-autoscaler-paused";
    /// Uses the prime variant of RKE2.
    pub const RKE2_PRIME_ENABLED: &str = "provisioning.cattle.io/rke2-prime-enabled";
}

/// Other annotations of Rancher and wrangler.
pub mod cattle {
    /// User who created an object.
    pub const CREATOR_ID: &str = "field.cattle.io/creatorId";
    /// Description shown to people.
    pub const DESCRIPTION: &str = "field.cattle.io/description";
    /// Provider shown by the dashboard.
    pub const UI_PROVIDER: &str = "ui.rancher/provider";
    /// Id of the set that wrangler's apply put an object in.
    pub const OBJECTSET_ID: &str = "objectset.rio.cattle.io/id";
    /// Owner of that set: group, version, kind.
    pub const OBJECTSET_OWNER_GVK: &str = "objectset.rio.cattle.io/owner-gvk";
    /// Owner of that set: name.
    pub const OBJECTSET_OWNER_NAME: &str = "objectset.rio.cattle.io/owner-name";
    /// Owner of that set: namespace.
    pub const OBJECTSET_OWNER_NAMESPACE: &str = "objectset.rio.cattle.io/owner-namespace";
    /// NodeDriver: credential fields that are not secret.
    pub const PUBLIC_CREDENTIAL_FIELDS: &str = "publicCredentialFields";
    /// NodeDriver: credential fields that are secret.
    pub const PRIVATE_CREDENTIAL_FIELDS: &str = "privateCredentialFields";
    /// NodeDriver: credential fields that may be empty.
    pub const OPTIONAL_CREDENTIAL_FIELDS: &str = "optionalCredentialFields";
    /// NodeDriver: fields that are passwords.
    pub const PASSWORD_FIELDS: &str = "passwordFields";
    /// NodeDriver: defaults of fields, `key:value,…`.
    pub const DEFAULTS: &str = "defaults";
    /// NodeDriver: `schemaField:driverField,…` for fields whose content is a file.
    pub const FILE_TO_FIELD_ALIASES: &str = "nodedriver.cattle.io/file-to-field-aliases";
    /// NodeDriver: hints for forms.
    pub const UI_FIELD_HINTS: &str = "io.cattle.nodedriver/ui-field-hints";
}

/// Drover's own.
pub mod drover {
    /// On ClusterRegistrationTokens and their Secrets: the roles that a machine may register with, `worker,etcd,controlplane`.
    /// Without it a token gives every role, as Rancher's do.
    pub const REGISTRATION_ROLES: &str = "drover.io/registration-roles";
    /// On ClusterRegistrationTokens and their Secrets: how many machines may register.
    pub const REGISTRATION_LIMIT: &str = "drover.io/registration-limit";
    /// On machine requests and custom Machines: name of the ClusterRegistrationToken that the machine registered with.
    pub const REGISTRATION_TOKEN: &str = "drover.io/registration-token";
    /// On NodeDrivers: `spec.managedBy` of the Jobs that create and remove the driver's machines. Without it they are run by
    /// Drover's own runner, [`crate::names::JOB_RUNNER`].
    pub const JOB_MANAGED_BY: &str = "drover.io/job-managed-by";
    /// On management Clusters and their namespaces: uid of the provisioning Cluster that they belong to. It is not copied from
    /// the annotations of a provisioning Cluster.
    pub const CLUSTER_UID: &str = "drover.io/cluster-uid";
}
