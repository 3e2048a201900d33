//! Annotation keys.

/// Cluster API (`api/core/v1beta2/{common,machine,machineset,machinedeployment}_types.go`).
pub mod capi {
    /// If present, with any value, reconciliation of the object is paused.
    pub const PAUSED: &str = "cluster.x-k8s.io/paused";
    /// Marks a Machine to be deleted first when the number of replicas is reduced.
    pub const DELETE_MACHINE: &str = "cluster.x-k8s.io/delete-machine";
    /// Requests remediation of a Machine.
    pub const REMEDIATE_MACHINE: &str = "cluster.x-k8s.io/remediate-machine";
    /// If `true`, a MachineSet creates no Machines.
    pub const DISABLE_MACHINE_CREATE: &str = "cluster.x-k8s.io/disable-machine-create";
    /// The name of the template from which an object was created.
    pub const CLONED_FROM_NAME: &str = "cluster.x-k8s.io/cloned-from-name";
    /// The `Kind.group` of that template.
    pub const CLONED_FROM_GROUP_KIND: &str = "cluster.x-k8s.io/cloned-from-groupkind";
    /// The minimum size for the autoscaler.
    pub const AUTOSCALER_MIN_SIZE: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size";
    /// The maximum size for the autoscaler.
    pub const AUTOSCALER_MAX_SIZE: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size";
    /// The object in its newer version, on an object that was converted to an older version.
    pub const CONVERSION_DATA: &str = "cluster.x-k8s.io/conversion-data";
    /// The revision of a MachineDeployment and of its MachineSets.
    pub const REVISION: &str = "machinedeployment.clusters.x-k8s.io/revision";
    /// The previous revisions of a MachineSet, separated by commas.
    pub const REVISION_HISTORY: &str = "machinedeployment.clusters.x-k8s.io/revision-history";
    /// The replicas of the MachineDeployment when the MachineSet was last scaled.
    pub const DESIRED_REPLICAS: &str = "machinedeployment.clusters.x-k8s.io/desired-replicas";
    /// The replicas plus the surge of the MachineDeployment when the MachineSet was last scaled.
    pub const MAX_REPLICAS: &str = "machinedeployment.clusters.x-k8s.io/max-replicas";
    /// If present, the Node is not drained when its Machine is deleted.
    pub const EXCLUDE_NODE_DRAINING: &str = "machine.cluster.x-k8s.io/exclude-node-draining";
    /// If present, the deletion of a Machine does not wait for volumes to be detached.
    pub const EXCLUDE_WAIT_FOR_NODE_VOLUME_DETACH: &str =
        "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach";
    /// The preflight checks that a MachineSet skips.
    pub const SKIP_PREFLIGHT_CHECKS: &str = "machineset.cluster.x-k8s.io/skip-preflight-checks";
    /// An annotation with this prefix blocks the deletion of a Machine before its Node is drained.
    pub const PRE_DRAIN_HOOK_PREFIX: &str = "pre-drain.delete.hook.machine.cluster.x-k8s.io";
    /// An annotation with this prefix blocks the deletion of a Machine before its server is deleted.
    pub const PRE_TERMINATE_HOOK_PREFIX: &str = "pre-terminate.delete.hook.machine.cluster.x-k8s.io";
    /// Marks a Machine that is being updated in place.
    pub const UPDATE_IN_PROGRESS: &str = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress";

    /// On Nodes: the name of the Cluster.
    pub const NODE_CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";
    /// On Nodes: the namespace of the Cluster.
    pub const NODE_CLUSTER_NAMESPACE: &str = "cluster.x-k8s.io/cluster-namespace";
    /// On Nodes: the name of the Machine.
    pub const NODE_MACHINE: &str = "cluster.x-k8s.io/machine";
    /// On Nodes: the kind of the Machine's owner.
    pub const NODE_OWNER_KIND: &str = "cluster.x-k8s.io/owner-kind";
    /// On Nodes: the name of the Machine's owner.
    pub const NODE_OWNER_NAME: &str = "cluster.x-k8s.io/owner-name";
    /// On Nodes: the keys of labels that were copied from the Machine.
    pub const NODE_LABELS_FROM_MACHINE: &str = "cluster.x-k8s.io/labels-from-machine";
    /// On Nodes: the keys of annotations that were copied from the Machine.
    pub const NODE_ANNOTATIONS_FROM_MACHINE: &str = "cluster.x-k8s.io/annotations-from-machine";
}

/// Taint keys that Cluster API sets on Nodes.
pub mod taints {
    /// Removed when a Machine is first copied to its Node.
    pub const UNINITIALIZED: &str = "node.cluster.x-k8s.io/uninitialized";
}

/// Rancher's providers (rancher/rancher `pkg/capr/common.go`).
pub mod rke {
    /// The address of a custom machine.
    pub const ADDRESS: &str = "rke.cattle.io/address";
    /// The internal address of a custom machine.
    pub const INTERNAL_ADDRESS: &str = "rke.cattle.io/internal-address";
    /// Marks Secrets of bootstrap tokens.
    pub const BOOTSTRAP_TOKEN: &str = "rke.cattle.io/bootstrap-token";
    /// Marks Secrets of bootstrap tokens that are no longer valid.
    pub const BOOTSTRAP_TOKEN_INVALIDATED: &str = "rke.cattle.io/bootstrap-token-invalidated";
    /// The time at which a bootstrap token was last used.
    pub const LAST_ACCESS_TIMESTAMP: &str = "rke.cattle.io/last-access-timestamp";
    /// base64(gzip(JSON)) of the Cluster's spec from which an RKEControlPlane was created.
    pub const CLUSTER_SPEC: &str = "rke.cattle.io/cluster-spec";
    /// Requests a drain with these options.
    pub const DRAIN_OPTIONS: &str = "rke.cattle.io/drain-options";
    /// The options of the drain that was completed.
    pub const DRAIN_DONE: &str = "rke.cattle.io/drain-done";
    /// The error of a failed drain.
    pub const DRAIN_ERROR: &str = "rke.cattle.io/drain-error";
    /// Requests the pre-drain hooks; the value is the drain options.
    pub const PRE_DRAIN: &str = "rke.cattle.io/pre-drain";
    /// Requests the post-drain hooks; the value is the drain options.
    pub const POST_DRAIN: &str = "rke.cattle.io/post-drain";
    /// Requests an uncordon.
    pub const UNCORDON: &str = "rke.cattle.io/uncordon";
    /// Removes an etcd machine without removing its member from etcd first.
    pub const ETCD_FORCE_REMOVE: &str = "rke.cattle.io/etcd-force-remove";
    /// The maximum length of a machine's hostname.
    pub const HOSTNAME_LENGTH_LIMIT: &str = "rke.cattle.io/hostname-length-limit";
    /// The URL at which other machines join the cluster through this machine.
    pub const JOIN_URL: &str = "rke.cattle.io/join-url";
    /// If set, the join URL is not set automatically.
    pub const JOIN_URL_AUTOSET_DISABLED: &str = "rke.cattle.io/join-url-autoset-disabled";
    /// The join URL that a machine used.
    pub const JOINED_TO: &str = "rke.cattle.io/joined-to";
    /// The labels of a machine's Node, as a JSON map.
    pub const LABELS: &str = "rke.cattle.io/labels";
    /// The taints of a machine's Node, as a JSON array.
    pub const TAINTS: &str = "rke.cattle.io/taints";
    /// The clusters that can read an object.
    pub const AUTHORIZED_FOR_CLUSTERS: &str = "rke.cattle.io/object-authorized-for-clusters";
    /// The duration after which a missing custom machine is deleted.
    pub const DELETE_MISSING_CUSTOM_MACHINES_AFTER: &str =
        "rke.cattle.io/delete-missing-custom-machines-after";
    /// The apiVersion of the Config from which a machine template was created.
    pub const CLONED_FROM_GROUP_VERSION: &str = "rke.cattle.io/cloned-from-group-version";
    /// The kind of that Config.
    pub const CLONED_FROM_KIND: &str = "rke.cattle.io/cloned-from-kind";
    /// The name of that Config.
    pub const CLONED_FROM_NAME: &str = "rke.cattle.io/cloned-from-name";
}

/// The provisioning Cluster and its management Cluster (rancher/rancher `pkg/controllers/provisioningv2`).
pub mod provisioning {
    /// `true` on a management Cluster that is generated from a provisioning Cluster.
    pub const ADMINISTRATED: &str = "provisioning.cattle.io/administrated";
    /// The requested name of the management Cluster.
    pub const MANAGEMENT_CLUSTER_NAME: &str = "provisioning.cattle.io/management-cluster-name";
    /// The display name of the management Cluster.
    pub const MANAGEMENT_CLUSTER_DISPLAY_NAME: &str =
        "provisioning.cattle.io/management-cluster-display-name";
    /// The Fleet workspace of the management Cluster.
    pub const FLEET_WORKSPACE_NAME: &str = "provisioning.cattle.io/fleet-workspace-name";
    /// If `true`, an update can remove the recorded driver schema of a pool.
    pub const ALLOW_DYNAMIC_SCHEMA_DROP: &str = "provisioning.cattle.io/allow-dynamic-schema-drop";
    /// If `true`, a machine object is removed even if its server may still exist.
    pub const FORCE_MACHINE_REMOVE: &str = "provisioning.cattle.io/force-machine-remove";
    /// `true` if a pool of the cluster is scaled automatically.
    pub const CLUSTER_AUTOSCALER_ENABLED: &str = "provisioning.cattle.io/cluster-autoscaler-enabled";
    /// If set, automatic scaling is paused.
    pub const CLUSTER_AUTOSCALER_PAUSED: &str = "provisioning.cattle.io/cluster-autoscaler-paused";
    /// Whether the prime variant of RKE2 is used.
    pub const RKE2_PRIME_ENABLED: &str = "provisioning.cattle.io/rke2-prime-enabled";
}

/// Other annotations of Rancher and wrangler.
pub mod cattle {
    /// The user who created an object.
    pub const CREATOR_ID: &str = "field.cattle.io/creatorId";
    /// The description that is shown in user interfaces.
    pub const DESCRIPTION: &str = "field.cattle.io/description";
    /// The provider that the dashboard shows.
    pub const UI_PROVIDER: &str = "ui.rancher/provider";
    /// The ID of the object set in which wrangler's apply created an object.
    pub const OBJECTSET_ID: &str = "objectset.rio.cattle.io/id";
    /// The group, version and kind of the owner of that set.
    pub const OBJECTSET_OWNER_GVK: &str = "objectset.rio.cattle.io/owner-gvk";
    /// The name of the owner of that set.
    pub const OBJECTSET_OWNER_NAME: &str = "objectset.rio.cattle.io/owner-name";
    /// The namespace of the owner of that set.
    pub const OBJECTSET_OWNER_NAMESPACE: &str = "objectset.rio.cattle.io/owner-namespace";
    /// On NodeDrivers: the fields of the credential that are not secret.
    pub const PUBLIC_CREDENTIAL_FIELDS: &str = "publicCredentialFields";
    /// On NodeDrivers: the fields of the credential that are secret.
    pub const PRIVATE_CREDENTIAL_FIELDS: &str = "privateCredentialFields";
    /// On NodeDrivers: the fields of the credential that can be empty.
    pub const OPTIONAL_CREDENTIAL_FIELDS: &str = "optionalCredentialFields";
    /// On NodeDrivers: the fields that are passwords.
    pub const PASSWORD_FIELDS: &str = "passwordFields";
    /// On NodeDrivers: the default values of fields, `key:value,…`.
    pub const DEFAULTS: &str = "defaults";
    /// On NodeDrivers: `schemaField:driverField,…` for fields whose value is the content of a file.
    pub const FILE_TO_FIELD_ALIASES: &str = "nodedriver.cattle.io/file-to-field-aliases";
    /// On NodeDrivers: hints for forms.
    pub const UI_FIELD_HINTS: &str = "io.cattle.nodedriver/ui-field-hints";
}

/// Annotations of Drover.
pub mod drover {
    /// On ClusterRegistrationTokens and their Secrets: the roles with which a machine can register,
    /// `worker,etcd,controlplane`. If unset, all roles are allowed, as with Rancher's tokens.
    pub const REGISTRATION_ROLES: &str = "drover.io/registration-roles";
    /// On ClusterRegistrationTokens and their Secrets: the number of machines that can register.
    pub const REGISTRATION_LIMIT: &str = "drover.io/registration-limit";
    /// On machine requests and custom Machines: the name of the ClusterRegistrationToken with which the
    /// machine registered.
    pub const REGISTRATION_TOKEN: &str = "drover.io/registration-token";
    /// On NodeDrivers: `spec.managedBy` of the Jobs that create and delete the driver's machines. If unset,
    /// they are run by Drover's own runner, [`crate::names::JOB_RUNNER`].
    pub const JOB_MANAGED_BY: &str = "drover.io/job-managed-by";
    /// On management Clusters and their namespaces: the UID of the provisioning Cluster that they belong to.
    /// It is not copied from the annotations of a provisioning Cluster.
    pub const CLUSTER_UID: &str = "drover.io/cluster-uid";
}
