//! Converts a condition to a [`Wait`], with what would end it and a remedy, by type and reason.

use drover_api::conditions::{reasons, types};
use drover_api::wait::{Wait, WaitObject};
use drover_runtime::conditions::{FALSE, TRUE};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// Whether False is the good status of a condition.
pub fn is_negative(type_: &str) -> bool {
    [
        types::DELETING,
        types::PAUSED,
        types::REMEDIATING,
        types::ROLLING_OUT,
        types::SCALING_DOWN,
        types::SCALING_UP,
        types::UPDATING,
        "Reconciling",
        "Stalled",
    ]
    .contains(&type_)
}

/// The wait of `object` according to one of its conditions; `None` if the condition is good.
pub fn of_condition(object: &WaitObject, condition: &Condition) -> Option<Wait> {
    let good = if is_negative(&condition.type_) { FALSE } else { TRUE };
    if condition.status == good {
        return None;
    }
    let message = if condition.message.is_empty() { &condition.reason } else { &condition.message };
    Some(Wait {
        reason: condition.reason.clone(),
        object: object.clone(),
        message: message.clone(),
        expected: expected(&condition.type_, &condition.reason, good),
        observed: format!("{} is {}", condition.type_, condition.status),
        since: Some(condition.last_transition_time.clone()),
        remedy: remedy(&condition.type_, &condition.reason).map(str::to_owned),
    })
}

fn expected(type_: &str, reason: &str, good: &str) -> String {
    let text = match type_ {
        types::AVAILABLE => "enough replicas are available",
        types::BOOTSTRAP_CONFIG_READY => "the bootstrap provider creates the bootstrap data",
        types::CONTROL_PLANE_AVAILABLE => "the control plane is available",
        types::CONTROL_PLANE_INITIALIZED => "the control plane is initialized",
        types::DELETING => match reason {
            reasons::DRAINING_NODE => "every pod has left the Node",
            reasons::WAITING_FOR_PRE_DRAIN_HOOK | reasons::WAITING_FOR_PRE_TERMINATE_HOOK => {
                "the component that set the annotations removes them"
            }
            reasons::WAITING_FOR_VOLUME_DETACH => "no volume is attached to the Node",
            reasons::WAITING_FOR_INFRASTRUCTURE_DELETION => {
                "the infrastructure provider deletes the infrastructure"
            }
            reasons::WAITING_FOR_BOOTSTRAP_DELETION => "the bootstrap provider deletes the bootstrap config",
            reasons::WAITING_FOR_CONTROL_PLANE_DELETION => {
                "the control plane provider deletes the control plane"
            }
            reasons::WAITING_FOR_WORKERS_DELETION => "every Machine is deleted",
            reasons::DELETING_NODE => "the Node is deleted",
            _ => "it is deleted",
        },
        types::INFRASTRUCTURE_READY => "the infrastructure is provisioned",
        types::MACHINES_READY | types::CONTROL_PLANE_MACHINES_READY | types::WORKER_MACHINES_READY => {
            "every Machine is Ready"
        }
        types::MACHINES_UP_TO_DATE
        | types::CONTROL_PLANE_MACHINES_UP_TO_DATE
        | types::WORKER_MACHINES_UP_TO_DATE
        | types::UP_TO_DATE => "every Machine matches the current template",
        types::NODE_HEALTHY | types::NODE_READY => {
            "the Node is Ready and has enough memory, disk and process IDs"
        }
        types::PAUSED => "it is not paused",
        types::READY => "it is Ready",
        types::REMEDIATING => "the unhealthy Machines are replaced",
        types::REMOTE_CONNECTION_PROBE => "the API of the cluster answers",
        types::ROLLING_OUT => "every Machine belongs to the newest MachineSet",
        types::SCALING_DOWN => "there are no more Machines than spec.replicas",
        types::SCALING_UP => "there are as many Machines as spec.replicas",
        types::WORKERS_AVAILABLE => "every MachineDeployment is available",
        _ => return format!("{type_} is {good}"),
    };
    text.to_owned()
}

fn remedy(type_: &str, reason: &str) -> Option<&'static str> {
    Some(match (type_, reason) {
        (types::PAUSED, _) => {
            "set spec.paused of the Cluster to false, or remove the annotation cluster.x-k8s.io/paused"
        }
        (types::DELETING, reasons::DRAINING_NODE) => {
            "check for PodDisruptionBudgets and pods that do not terminate; to continue without draining, set \
             spec.deletion.nodeDrainTimeoutSeconds of the Machine"
        }
        (types::DELETING, reasons::WAITING_FOR_PRE_DRAIN_HOOK | reasons::WAITING_FOR_PRE_TERMINATE_HOOK) => {
            "check the component that set the annotations; remove them if it no longer runs"
        }
        (types::DELETING, reasons::WAITING_FOR_VOLUME_DETACH) => {
            "check the VolumeAttachments in the cluster; to continue, set \
             spec.deletion.nodeVolumeDetachTimeoutSeconds of the Machine"
        }
        (_, reasons::CONNECTION_DOWN | reasons::PROBE_FAILED) => {
            "check that a control plane machine is running and that its agent is connected"
        }
        (_, reasons::NODE_DOES_NOT_EXIST) => {
            "check the agent and Kubernetes on the machine: `journalctl -u rancher-system-agent`"
        }
        (_, reasons::NODE_DELETED) => "delete the Machine to have it replaced",
        (_, reasons::NODE_NOT_READY | reasons::NODE_READY_UNKNOWN)
        | (_, reasons::NODE_NOT_HEALTHY | reasons::NODE_HEALTHY_UNKNOWN) => {
            "check that the machine is running, then check its kubelet; delete the Machine to have it replaced"
        }
        (_, reasons::OBJECT_DELETED) => "delete the Machine to have it replaced",
        (_, reasons::OBJECT_DOES_NOT_EXIST) => "create the object, or correct the reference to it",
        (_, reasons::WAITING_FOR_REPLICAS_SET) => "set spec.replicas",
        (_, reasons::INTERNAL_ERROR) => "see the message; it is retried automatically",
        _ => return None,
    })
}
