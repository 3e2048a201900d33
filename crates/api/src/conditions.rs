//! Condition types and reasons.
//!
//! Each constant is named like its value. The code that computes a condition documents which objects have it.

/// `metav1` status values.
pub mod status {
    /// `True`.
    pub const TRUE: &str = "True";
    /// `False`.
    pub const FALSE: &str = "False";
    /// `Unknown`.
    pub const UNKNOWN: &str = "Unknown";
}

/// Condition types of Cluster API (`api/core/v1beta2/condition_consts.go` and `*_types.go`).
pub mod types {
    /// `Available`.
    pub const AVAILABLE: &str = "Available";
    /// `BootstrapConfigReady`.
    pub const BOOTSTRAP_CONFIG_READY: &str = "BootstrapConfigReady";
    /// `ControlPlaneAvailable`.
    pub const CONTROL_PLANE_AVAILABLE: &str = "ControlPlaneAvailable";
    /// `ControlPlaneInitialized`.
    pub const CONTROL_PLANE_INITIALIZED: &str = "ControlPlaneInitialized";
    /// `ControlPlaneMachinesReady`.
    pub const CONTROL_PLANE_MACHINES_READY: &str = "ControlPlaneMachinesReady";
    /// `ControlPlaneMachinesUpToDate`.
    pub const CONTROL_PLANE_MACHINES_UP_TO_DATE: &str = "ControlPlaneMachinesUpToDate";
    /// `Deleting`.
    pub const DELETING: &str = "Deleting";
    /// `HealthCheckSucceeded`.
    pub const HEALTH_CHECK_SUCCEEDED: &str = "HealthCheckSucceeded";
    /// `InfrastructureReady`.
    pub const INFRASTRUCTURE_READY: &str = "InfrastructureReady";
    /// `MachinesReady`.
    pub const MACHINES_READY: &str = "MachinesReady";
    /// `MachinesUpToDate`.
    pub const MACHINES_UP_TO_DATE: &str = "MachinesUpToDate";
    /// `NodeHealthy`.
    pub const NODE_HEALTHY: &str = "NodeHealthy";
    /// `NodeReady`.
    pub const NODE_READY: &str = "NodeReady";
    /// `OwnerRemediated`.
    pub const OWNER_REMEDIATED: &str = "OwnerRemediated";
    /// `Paused`.
    pub const PAUSED: &str = "Paused";
    /// `Ready`.
    pub const READY: &str = "Ready";
    /// `Remediating`.
    pub const REMEDIATING: &str = "Remediating";
    /// `RemediationAllowed`.
    pub const REMEDIATION_ALLOWED: &str = "RemediationAllowed";
    /// `RemoteConnectionProbe`.
    pub const REMOTE_CONNECTION_PROBE: &str = "RemoteConnectionProbe";
    /// `RollingOut`.
    pub const ROLLING_OUT: &str = "RollingOut";
    /// `ScalingDown`.
    pub const SCALING_DOWN: &str = "ScalingDown";
    /// `ScalingUp`.
    pub const SCALING_UP: &str = "ScalingUp";
    /// `UpToDate`.
    pub const UP_TO_DATE: &str = "UpToDate";
    /// `Updating`.
    pub const UPDATING: &str = "Updating";
    /// `WorkerMachinesReady`.
    pub const WORKER_MACHINES_READY: &str = "WorkerMachinesReady";
    /// `WorkerMachinesUpToDate`.
    pub const WORKER_MACHINES_UP_TO_DATE: &str = "WorkerMachinesUpToDate";
    /// `WorkersAvailable`.
    pub const WORKERS_AVAILABLE: &str = "WorkersAvailable";
}

/// Condition reasons of Cluster API (same files).
pub mod reasons {
    /// `Available`.
    pub const AVAILABLE: &str = "Available";
    /// `AvailableUnknown`.
    pub const AVAILABLE_UNKNOWN: &str = "AvailableUnknown";
    /// `ConnectionDown`.
    pub const CONNECTION_DOWN: &str = "ConnectionDown";
    /// `DataSecretProvided`.
    pub const DATA_SECRET_PROVIDED: &str = "DataSecretProvided";
    /// `Deleting`.
    pub const DELETING: &str = "Deleting";
    /// `DeletingNode`.
    pub const DELETING_NODE: &str = "DeletingNode";
    /// `DeletionCompleted`.
    pub const DELETION_COMPLETED: &str = "DeletionCompleted";
    /// `DrainingNode`.
    pub const DRAINING_NODE: &str = "DrainingNode";
    /// `HealthCheckSucceeded`.
    pub const HEALTH_CHECK_SUCCEEDED: &str = "HealthCheckSucceeded";
    /// `Initialized`.
    pub const INITIALIZED: &str = "Initialized";
    /// `InspectionFailed`.
    pub const INSPECTION_FAILED: &str = "InspectionFailed";
    /// `InternalError`.
    pub const INTERNAL_ERROR: &str = "InternalError";
    /// `InvalidConditionReported`.
    pub const INVALID_CONDITION_REPORTED: &str = "InvalidConditionReported";
    /// `NoReplicas`.
    pub const NO_REPLICAS: &str = "NoReplicas";
    /// `NoWorkers`.
    pub const NO_WORKERS: &str = "NoWorkers";
    /// `NodeDeleted`.
    pub const NODE_DELETED: &str = "NodeDeleted";
    /// `NodeDoesNotExist`.
    pub const NODE_DOES_NOT_EXIST: &str = "NodeDoesNotExist";
    /// `NodeHealthy`.
    pub const NODE_HEALTHY: &str = "NodeHealthy";
    /// `NodeHealthyUnknown`.
    pub const NODE_HEALTHY_UNKNOWN: &str = "NodeHealthyUnknown";
    /// `NodeNotHealthy`.
    pub const NODE_NOT_HEALTHY: &str = "NodeNotHealthy";
    /// `NodeNotReady`.
    pub const NODE_NOT_READY: &str = "NodeNotReady";
    /// `NodeReady`.
    pub const NODE_READY: &str = "NodeReady";
    /// `NodeReadyUnknown`.
    pub const NODE_READY_UNKNOWN: &str = "NodeReadyUnknown";
    /// `NodeStartupTimeout`.
    pub const NODE_STARTUP_TIMEOUT: &str = "NodeStartupTimeout";
    /// `NotAvailable`.
    pub const NOT_AVAILABLE: &str = "NotAvailable";
    /// `NotDeleting`.
    pub const NOT_DELETING: &str = "NotDeleting";
    /// `NotInitialized`.
    pub const NOT_INITIALIZED: &str = "NotInitialized";
    /// `NotPaused`.
    pub const NOT_PAUSED: &str = "NotPaused";
    /// `NotReady`.
    pub const NOT_READY: &str = "NotReady";
    /// `NotRemediating`.
    pub const NOT_REMEDIATING: &str = "NotRemediating";
    /// `NotRollingOut`.
    pub const NOT_ROLLING_OUT: &str = "NotRollingOut";
    /// `NotScalingDown`.
    pub const NOT_SCALING_DOWN: &str = "NotScalingDown";
    /// `NotScalingUp`.
    pub const NOT_SCALING_UP: &str = "NotScalingUp";
    /// `NotUpToDate`.
    pub const NOT_UP_TO_DATE: &str = "NotUpToDate";
    /// `NotUpdating`.
    pub const NOT_UPDATING: &str = "NotUpdating";
    /// `ObjectDeleted`.
    pub const OBJECT_DELETED: &str = "ObjectDeleted";
    /// `ObjectDoesNotExist`.
    pub const OBJECT_DOES_NOT_EXIST: &str = "ObjectDoesNotExist";
    /// `Paused`.
    pub const PAUSED: &str = "Paused";
    /// `ProbeFailed`.
    pub const PROBE_FAILED: &str = "ProbeFailed";
    /// `ProbeSucceeded`.
    pub const PROBE_SUCCEEDED: &str = "ProbeSucceeded";
    /// `Provisioned`.
    pub const PROVISIONED: &str = "Provisioned";
    /// `Ready`.
    pub const READY: &str = "Ready";
    /// `ReadyUnknown`.
    pub const READY_UNKNOWN: &str = "ReadyUnknown";
    /// `Remediating`.
    pub const REMEDIATING: &str = "Remediating";
    /// `RemediationAllowed`.
    pub const REMEDIATION_ALLOWED: &str = "RemediationAllowed";
    /// `RollingOut`.
    pub const ROLLING_OUT: &str = "RollingOut";
    /// `ScalingDown`.
    pub const SCALING_DOWN: &str = "ScalingDown";
    /// `ScalingUp`.
    pub const SCALING_UP: &str = "ScalingUp";
    /// `UpToDate`.
    pub const UP_TO_DATE: &str = "UpToDate";
    /// `UpToDateUnknown`.
    pub const UP_TO_DATE_UNKNOWN: &str = "UpToDateUnknown";
    /// `Updating`.
    pub const UPDATING: &str = "Updating";
    /// `WaitingForBootstrapDeletion`.
    pub const WAITING_FOR_BOOTSTRAP_DELETION: &str = "WaitingForBootstrapDeletion";
    /// `WaitingForControlPlaneDeletion`.
    pub const WAITING_FOR_CONTROL_PLANE_DELETION: &str = "WaitingForControlPlaneDeletion";
    /// `WaitingForInfrastructureDeletion`.
    pub const WAITING_FOR_INFRASTRUCTURE_DELETION: &str = "WaitingForInfrastructureDeletion";
    /// `WaitingForMinReadySeconds`.
    pub const WAITING_FOR_MIN_READY_SECONDS: &str = "WaitingForMinReadySeconds";
    /// `WaitingForPreDrainHook`.
    pub const WAITING_FOR_PRE_DRAIN_HOOK: &str = "WaitingForPreDrainHook";
    /// `WaitingForPreTerminateHook`.
    pub const WAITING_FOR_PRE_TERMINATE_HOOK: &str = "WaitingForPreTerminateHook";
    /// `WaitingForReplicasSet`.
    pub const WAITING_FOR_REPLICAS_SET: &str = "WaitingForReplicasSet";
    /// `WaitingForVolumeDetach`.
    pub const WAITING_FOR_VOLUME_DETACH: &str = "WaitingForVolumeDetach";
    /// `WaitingForWorkersDeletion`.
    pub const WAITING_FOR_WORKERS_DELETION: &str = "WaitingForWorkersDeletion";
}

/// Condition types in the format of v1beta1 (`api/core/v1beta2/v1beta1_condition_consts.go`).
pub mod v1beta1_types {
    /// `Available`.
    pub const AVAILABLE: &str = "Available";
    /// `BootstrapReady`.
    pub const BOOTSTRAP_READY: &str = "BootstrapReady";
    /// `ControlPlaneInitialized`.
    pub const CONTROL_PLANE_INITIALIZED: &str = "ControlPlaneInitialized";
    /// `ControlPlaneReady`.
    pub const CONTROL_PLANE_READY: &str = "ControlPlaneReady";
    /// `DrainingSucceeded`.
    pub const DRAINING_SUCCEEDED: &str = "DrainingSucceeded";
    /// `HealthCheckSucceeded`.
    pub const HEALTH_CHECK_SUCCEEDED: &str = "HealthCheckSucceeded";
    /// `InfrastructureReady`.
    pub const INFRASTRUCTURE_READY: &str = "InfrastructureReady";
    /// `MachineSetReady`.
    pub const MACHINE_SET_READY: &str = "MachineSetReady";
    /// `MachinesCreated`.
    pub const MACHINES_CREATED: &str = "MachinesCreated";
    /// `MachinesReady`.
    pub const MACHINES_READY: &str = "MachinesReady";
    /// `NodeHealthy`.
    pub const NODE_HEALTHY: &str = "NodeHealthy";
    /// `OwnerRemediated`.
    pub const OWNER_REMEDIATED: &str = "OwnerRemediated";
    /// `PreDrainDeleteHookSucceeded`.
    pub const PRE_DRAIN_DELETE_HOOK_SUCCEEDED: &str = "PreDrainDeleteHookSucceeded";
    /// `PreTerminateDeleteHookSucceeded`.
    pub const PRE_TERMINATE_DELETE_HOOK_SUCCEEDED: &str = "PreTerminateDeleteHookSucceeded";
    /// `Ready`.
    pub const READY: &str = "Ready";
    /// `RemediationAllowed`.
    pub const REMEDIATION_ALLOWED: &str = "RemediationAllowed";
    /// `Resized`.
    pub const RESIZED: &str = "Resized";
    /// `VolumeDetachSucceeded`.
    pub const VOLUME_DETACH_SUCCEEDED: &str = "VolumeDetachSucceeded";
}

/// Condition reasons in the format of v1beta1 (same file).
pub mod v1beta1_reasons {
    /// `Deleted`.
    pub const DELETED: &str = "Deleted";
    /// `Deleting`.
    pub const DELETING: &str = "Deleting";
    /// `Draining`.
    pub const DRAINING: &str = "Draining";
    /// `MachineCreationFailed`.
    pub const MACHINE_CREATION_FAILED: &str = "MachineCreationFailed";
    /// `NodeConditionsFailed`.
    pub const NODE_CONDITIONS_FAILED: &str = "NodeConditionsFailed";
    /// `NodeInspectionFailed`.
    pub const NODE_INSPECTION_FAILED: &str = "NodeInspectionFailed";
    /// `NodeNotFound`.
    pub const NODE_NOT_FOUND: &str = "NodeNotFound";
    /// `NodeProvisioning`.
    pub const NODE_PROVISIONING: &str = "NodeProvisioning";
    /// `NodeStartupTimeout`.
    pub const NODE_STARTUP_TIMEOUT: &str = "NodeStartupTimeout";
    /// `PreflightCheckFailed`.
    pub const PREFLIGHT_CHECK_FAILED: &str = "PreflightCheckFailed";
    /// `ScalingDown`.
    pub const SCALING_DOWN: &str = "ScalingDown";
    /// `ScalingUp`.
    pub const SCALING_UP: &str = "ScalingUp";
    /// `WaitingExternalHook`.
    pub const WAITING_EXTERNAL_HOOK: &str = "WaitingExternalHook";
    /// `WaitingForAvailableMachines`.
    pub const WAITING_FOR_AVAILABLE_MACHINES: &str = "WaitingForAvailableMachines";
    /// `WaitingForControlPlane`.
    pub const WAITING_FOR_CONTROL_PLANE: &str = "WaitingForControlPlane";
    /// `WaitingForControlPlaneProviderInitialized`.
    pub const WAITING_FOR_CONTROL_PLANE_PROVIDER_INITIALIZED: &str =
        "WaitingForControlPlaneProviderInitialized";
    /// `WaitingForDataSecret`.
    pub const WAITING_FOR_DATA_SECRET: &str = "WaitingForDataSecret";
    /// `WaitingForInfrastructure`.
    pub const WAITING_FOR_INFRASTRUCTURE: &str = "WaitingForInfrastructure";
    /// `WaitingForMachineSet`.
    pub const WAITING_FOR_MACHINE_SET: &str = "WaitingForMachineSet";
    /// `WaitingForNodeRef`.
    pub const WAITING_FOR_NODE_REF: &str = "WaitingForNodeRef";
    /// `WaitingForVolumeDetach`.
    pub const WAITING_FOR_VOLUME_DETACH: &str = "WaitingForVolumeDetach";
}

/// Condition types of Rancher's objects (rancher/rancher `pkg/capr/common.go`, `pkg/apis/management.cattle.io/v3/cluster_types.go`).
pub mod cattle {
    /// `Active`.
    pub const ACTIVE: &str = "Active";
    /// `BootstrapReady`.
    pub const BOOTSTRAP_READY: &str = "BootstrapReady";
    /// `Bootstrapped`.
    pub const BOOTSTRAPPED: &str = "Bootstrapped";
    /// `Connected`.
    pub const CONNECTED: &str = "Connected";
    /// `CreateJob`.
    pub const CREATE_JOB: &str = "CreateJob";
    /// `Created`.
    pub const CREATED: &str = "Created";
    /// `DeleteJob`.
    pub const DELETE_JOB: &str = "DeleteJob";
    /// `Downloaded`.
    pub const DOWNLOADED: &str = "Downloaded";
    /// `Inactive`.
    pub const INACTIVE: &str = "Inactive";
    /// `InfrastructureReady`.
    pub const INFRASTRUCTURE_READY: &str = "InfrastructureReady";
    /// `Installed`.
    pub const INSTALLED: &str = "Installed";
    /// `NodeHealthy`.
    pub const NODE_HEALTHY: &str = "NodeHealthy";
    /// `Pending`.
    pub const PENDING: &str = "Pending";
    /// `PlanApplied`.
    pub const PLAN_APPLIED: &str = "PlanApplied";
    /// `Provisioned`.
    pub const PROVISIONED: &str = "Provisioned";
    /// `RKECluster`.
    pub const RKE_CLUSTER: &str = "RKECluster";
    /// `Ready`.
    pub const READY: &str = "Ready";
    /// `Reconciled`.
    pub const RECONCILED: &str = "Reconciled";
    /// `Reconciling`.
    pub const RECONCILING: &str = "Reconciling";
    /// `Removed`.
    pub const REMOVED: &str = "Removed";
    /// `RollingOut`.
    pub const ROLLING_OUT: &str = "RollingOut";
    /// `ScalingDown`.
    pub const SCALING_DOWN: &str = "ScalingDown";
    /// `ScalingUp`.
    pub const SCALING_UP: &str = "ScalingUp";
    /// `Stable`.
    pub const STABLE: &str = "Stable";
    /// `Stalled`.
    pub const STALLED: &str = "Stalled";
    /// `Updated`.
    pub const UPDATED: &str = "Updated";
    /// `Waiting`.
    pub const WAITING: &str = "Waiting";
}

/// Condition reasons of Rancher's controllers (rancher/rancher `pkg/capr/common.go`, wrangler `condition`).
pub mod cattle_reasons {
    /// The operation is in progress; the message describes what is missing.
    pub const WAITING: &str = "Waiting";
    /// The last attempt failed; the message describes the error.
    pub const ERROR: &str = "Error";
}
