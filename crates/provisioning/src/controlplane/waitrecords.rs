//! The waits of a control plane as records (`status.waits`): one per machine that is waited for, otherwise one for the
//! control plane itself. Pure; the texts are those of [`super::waits`].

use drover_api::wait::{Wait, WaitObject};

use super::decide::{Decision, End};
use super::scope::Scope;
use super::waits::{Activity, Detail, Failure, Group, MachineWait, Waiting};

/// Where the log of a machine's agent is.
const AGENT_LOG: &str = "look at the log of rancher-system-agent.service on the machine";

/// What is waited for after a pass; `error` is that of a write that failed.
pub fn records(scope: &Scope, decision: &Decision, error: Option<&str>) -> Vec<Wait> {
    let control_plane = || WaitObject::new("RKEControlPlane", &scope.namespace, &scope.name);
    if let Some(error) = error {
        let wait = Wait::new("WriteFailed", control_plane(), error);
        return vec![
            wait.expected("the API accepts the write").observed("the write failed and is tried again"),
        ];
    }
    let waiting = match &decision.end {
        End::Waiting(waiting) => waiting,
        End::Error(failure) => return vec![failed(failure, control_plane())],
        End::Ready | End::Again(_) | End::Silent => return vec![],
    };
    let own = match waiting {
        Waiting::Machines(_) => None,
        Waiting::JoinUrl { init_node, .. } => {
            let machine = WaitObject::new("Machine", &scope.namespace, init_node);
            let wait = Wait::new("WaitingForJoinURL", machine, waiting);
            Some(wait.expected("the first server reports the URL that others join").remedy(AGENT_LOG))
        }
        other => Some(of_control_plane(other, control_plane())),
    };
    let groups = decision.groups.iter().chain(&decision.unknown);
    let machines = groups.flat_map(|group| {
        let record = |wait| of_machine(group, wait, &scope.namespace);
        group.machines.iter().map(record)
    });
    own.into_iter().chain(machines).collect()
}

fn of_control_plane(waiting: &Waiting, object: WaitObject) -> Wait {
    let (reason, expected, remedy) = match waiting {
        Waiting::Release { .. } => (
            "UnknownVersion",
            "release data for the version",
            Some("set spec.kubernetesVersion to one of the versions that the message names"),
        ),
        Waiting::Cluster => ("WaitingForCluster", "the CAPI Cluster exists", None),
        Waiting::Infrastructure => {
            ("WaitingForInfrastructure", "the cluster infrastructure is provisioned", None)
        }
        Waiting::Paused => {
            ("Paused", "neither the Cluster nor the RKEControlPlane is paused", Some("unpause the cluster"))
        }
        Waiting::Uninitializing { .. } => ("Uninitializing", "the status is written", None),
        Waiting::Roles { .. } => (
            "WaitingForRoles",
            "at least one machine of every role",
            Some("add a pool with the role, or register a machine with it"),
        ),
        Waiting::EtcdDeletion => ("WaitingForEtcdDeletion", "all etcd machines are deleted", None),
        Waiting::EtcdReplaced => (
            "EtcdReplaced",
            "an etcd machine that has the cluster's data",
            Some("delete and recreate the Cluster"),
        ),
        Waiting::InitNode => ("WaitingForInitNode", "an etcd machine whose infrastructure is ready", None),
        Waiting::DesignatedInitNode { .. } => (
            "WaitingForInitNode",
            "the designated machine registers",
            Some("register the machine, or remove the label that designates it"),
        ),
        Waiting::RegistrationToken => ("WaitingForToken", "the cluster has a registration token", None),
        Waiting::NoMachine { .. } => ("WaitingForMachines", "a machine of the tier", None),
        Waiting::ControlPlane => ("WaitingForControlPlane", "a control plane machine can be joined", None),
        Waiting::Initialized => ("Initializing", "the status is written", None),
        Waiting::Machines(_) | Waiting::JoinUrl { .. } => {
            ("WaitingForMachines", "every machine is ready", None)
        }
    };
    let wait = Wait::new(reason, object, waiting).expected(expected);
    match remedy {
        Some(remedy) => wait.remedy(remedy),
        None => wait,
    }
}

fn of_machine(group: &Group, wait: &MachineWait, namespace: &str) -> Wait {
    let object = WaitObject::new("Machine", namespace, &wait.machine);
    let (reason, expected, remedy) = match wait.details.first() {
        Some(detail) => of_detail(detail),
        None => match group.activity {
            Activity::Uncordoning => ("Uncordoning", "the node takes pods again", None),
            Activity::Draining => ("Draining", "all pods have left the node", None),
            _ => ("WaitingForTurn", "fewer machines of the tier are unavailable", None),
        },
    };
    let record = Wait::new(reason, object, group.message(wait)).expected(expected);
    match remedy {
        Some(remedy) => record.remedy(remedy),
        None => record,
    }
}

fn of_detail(detail: &Detail) -> (&'static str, &'static str, Option<&'static str>) {
    match detail {
        Detail::BootstrapEtcd | Detail::Etcd => ("WaitingForEtcd", "etcd is available", None),
        Detail::ControlPlane | Detail::NoServer => {
            ("WaitingForControlPlane", "a control plane machine can be joined", None)
        }
        Detail::FirstPlan { failure } if failure.is_empty() => (
            "WaitingForAgent",
            "the agent of the machine connects and applies its first plan",
            Some("check that the machine runs and reaches the server, then look at the log of its agent"),
        ),
        Detail::FirstPlan { .. } | Detail::PlanError(_) | Detail::PlanFailed { .. } => {
            ("PlanFailed", "the agent applies the plan", Some(AGENT_LOG))
        }
        Detail::Probes(_) => {
            ("WaitingForProbes", "the probes pass", Some("look at the logs of the services on the machine"))
        }
        Detail::Plan => ("WaitingForPlan", "the agent applies the plan", None),
        Detail::Kubelet => ("WaitingForKubelet", "the kubelet runs the version of the plan", None),
        Detail::ClusterAgent => ("WaitingForClusterAgent", "the cluster connects to the server", None),
        Detail::MachineFailed(_) => ("MachineFailed", "the machine is replaced", Some("delete the Machine")),
        Detail::MachineNotReady(_) => ("MachineNotReady", "the Machine is ready", None),
        Detail::Unreadable(_) => (
            "PlanSecretUnreadable",
            "the agent reports again",
            Some("restart rancher-system-agent on the machine"),
        ),
        Detail::Drain { .. } => (
            "DrainFailed",
            "all pods have left the node",
            Some("remove what keeps the pods, or change the drain options of the cluster"),
        ),
        Detail::Render(_) => ("PlanNotRendered", "a plan can be made for the machine", None),
    }
}

fn failed(failure: &Failure, object: WaitObject) -> Wait {
    let (reason, expected) = match failure {
        Failure::Version { .. } => ("InvalidVersion", "spec.kubernetesVersion is a version"),
        Failure::StateSecretType { .. } | Failure::StateSecretMissing { .. } => {
            ("StateSecretUnusable", "the Secret with the cluster's join tokens")
        }
        Failure::Files(_) => ("FilesUnusable", "the files of machineSelectorFiles"),
        Failure::Concurrency(_) => ("InvalidConcurrency", "a number or a percentage"),
    };
    Wait::new(reason, object, failure).expected(expected)
}
