//! Every wait has a text, and its condition is converted back with what ends it.

use drover_api::conditions::{reasons, types};
use drover_api::wait::WaitObject;
use drover_runtime::conditions::{FALSE, TRUE, UNKNOWN, new};

use super::{DeleteReason, Hold, Subject, is_negative, of_condition};
use crate::cluster::decide::Stage as ClusterStage;
use crate::contract::ResolveError;
use crate::machine::deletion::Stage as MachineStage;
use crate::machine::drain::{DrainPlan, PodKey};

fn subject() -> Subject {
    Subject { kind: "LocalMachine".into(), name: "a".into() }
}

/// One value of each variant, with its text. The `match` does not compile without new variants.
fn holds() -> Vec<(Hold, &'static str)> {
    let s = subject;
    let text = |hold: &Hold| match hold {
        Hold::NoBootstrap => "spec.bootstrap has neither configRef nor dataSecretName",
        Hold::NoTopology => crate::admission::NO_TOPOLOGY,
        Hold::Unresolvable(_) => "no CustomResourceDefinition serves K.g; install its provider",
        Hold::Deleted(_) => "LocalMachine a has been deleted",
        Hold::Missing(_) => "LocalMachine a does not exist",
        Hold::Lost(_) => "LocalMachine a was deleted after it had been provisioned",
        Hold::InvalidStatus { .. } => "LocalMachine a reports Ready with the invalid status \"Maybe\"",
        Hold::NoData(_) => "waiting for LocalMachine a to report its data as created",
        Hold::NoDataSecret(_) => {
            "LocalMachine a reports its data as created, but status.dataSecretName is not set"
        }
        Hold::NoProviderId(_) => "waiting for LocalMachine a to set spec.providerID",
        Hold::NotProvisioned(_) => "waiting for LocalMachine a to report itself as provisioned",
        Hold::NotInitialized(_) => "waiting for LocalMachine a to report its control plane as initialized",
        Hold::NoControlPlaneNode => "waiting for the first control-plane Machine to have a Node",
        Hold::ControlPlaneNotInitialized => "waiting for the control plane to be initialized",
        Hold::Disconnected(_) => "no tunnel",
        Hold::SeveralNodes(_) => "Nodes a, b have the same provider ID",
        Hold::NodeDeleted(_) => "Node a has been deleted",
        Hold::NoNode { .. } => "waiting for a Node with spec.providerID local://a to exist",
        Hold::NodeNotSought { .. } => "waiting for LocalMachine to report spec.providerID",
        Hold::Unreadable(_) => "pods cannot be listed",
        Hold::DrainBlocked(_) => {
            "no tunnel; to continue without draining, set spec.deletion.nodeDrainTimeoutSeconds or the annotation \
             machine.cluster.x-k8s.io/exclude-node-draining"
        }
        Hold::Invalid(_) => "spec.selector: Required value",
        Hold::CreateDisabled => "the annotation cluster.x-k8s.io/disable-machine-create is set",
        Hold::ControlPlaneProvisioning => "the control plane is provisioning (ControlPlaneIsStable)",
        Hold::ControlPlaneUpgrading { .. } => {
            "the control plane is upgrading from v1 to v2 (ControlPlaneIsStable)"
        }
        Hold::TooNew { .. } => "version v2 is newer than the control plane's v1 (KubernetesVersionSkew)",
        Hold::TooOld { .. } => {
            "version v1 is more than three minors older than the control plane's v2 (KubernetesVersionSkew)"
        }
    };
    let (v1, v2) = ("v1".to_owned(), "v2".to_owned());
    let all = vec![
        Hold::NoBootstrap,
        Hold::NoTopology,
        Hold::Unresolvable(ResolveError::CrdMissing { kind: "K".into(), group: "g".into() }),
        Hold::Deleted(s()),
        Hold::Missing(s()),
        Hold::Lost(s()),
        Hold::InvalidStatus { subject: s(), condition: "Ready".into(), status: "Maybe".into() },
        Hold::NoData(s()),
        Hold::NoDataSecret(s()),
        Hold::NoProviderId(s()),
        Hold::NotProvisioned(s()),
        Hold::NotInitialized(s()),
        Hold::NoControlPlaneNode,
        Hold::ControlPlaneNotInitialized,
        Hold::Disconnected("no tunnel".into()),
        Hold::SeveralNodes(vec!["a".into(), "b".into()]),
        Hold::NodeDeleted("a".into()),
        Hold::NoNode { provider_id: "local://a".into() },
        Hold::NodeNotSought { kind: "LocalMachine".into() },
        Hold::Unreadable("pods cannot be listed".into()),
        Hold::DrainBlocked(Box::new(Hold::Disconnected("no tunnel".into()))),
        Hold::Invalid("spec.selector: Required value".into()),
        Hold::CreateDisabled,
        Hold::ControlPlaneProvisioning,
        Hold::ControlPlaneUpgrading { from: v1.clone(), to: v2.clone() },
        Hold::TooNew { version: v2.clone(), control_plane: v1.clone() },
        Hold::TooOld { version: v1, control_plane: v2 },
    ];
    all.into_iter().map(|hold| (hold.clone(), text(&hold))).collect()
}

#[test]
fn every_wait_has_its_text() {
    for (hold, text) in holds() {
        assert_eq!(hold.to_string(), text);
    }
    let texts =
        [DeleteReason::SetDeleted, DeleteReason::Surplus, DeleteReason::Unhealthy].map(|r| r.to_string());
    assert_eq!(
        texts,
        [
            "the MachineSet is being deleted",
            "the MachineSet has too many Machines",
            "the Machine is unhealthy"
        ]
    );
}

#[test]
fn every_stage_of_a_deletion_is_converted_back_with_what_ends_it() {
    let pods = |count| (0..count).map(|n| PodKey { namespace: "d".into(), name: format!("p{n}") }).collect();
    let plan = DrainPlan { evict: pods(4), leaving: pods(1), ..DrainPlan::default() };
    let blocked = || Hold::Disconnected("no tunnel".into());
    let machine = [
        MachineStage::PreDrainHook(vec!["pre".into()]),
        MachineStage::Draining { node: "n".into(), cordon: true, plan },
        MachineStage::DrainBlocked(blocked()),
        MachineStage::VolumeDetach(vec!["v".into()]),
        MachineStage::PreTerminateHook(vec!["pre".into()]),
        MachineStage::Infrastructure { delete: true },
        MachineStage::InfrastructureBlocked(blocked()),
        MachineStage::Bootstrap { delete: true },
        MachineStage::BootstrapBlocked(blocked()),
        MachineStage::Node("n".into()),
        MachineStage::NodeBlocked(blocked()),
        MachineStage::Done,
    ];
    let cluster = [
        ClusterStage::Workers((0..6).map(|n| format!("Machine m{n}")).collect()),
        ClusterStage::ControlPlane,
        ClusterStage::Infrastructure,
        ClusterStage::Blocked(blocked()),
        ClusterStage::Done,
    ];
    let machine = machine.iter().map(|stage| (stage.reason(), stage.to_string()));
    let cluster = cluster.iter().map(|stage| (stage.reason(), stage.to_string()));
    let mut texts = Vec::new();
    for (reason, text) in machine.chain(cluster) {
        let condition = new(types::DELETING, TRUE, reason, text.clone());
        let wait = of_condition(&WaitObject::new("Machine", "default", "a"), &condition).unwrap();
        assert_eq!((wait.message.as_str(), wait.reason.as_str()), (text.as_str(), reason));
        assert!(!wait.expected.is_empty() && !wait.observed.is_empty(), "{wait:?}");
        texts.push(text);
    }
    assert_eq!(
        texts[1],
        "Drain of Node n not completed yet\n* being evicted: d/p0, d/p1, d/p2, ... (1 more)\n* being deleted: d/p0"
    );
    assert_eq!(
        texts[12],
        "waiting for Machine m0, Machine m1, Machine m2, Machine m3, Machine m4, ... (1 more) to be deleted"
    );
}

#[test]
fn a_condition_is_converted_only_while_it_is_not_good() {
    let object = WaitObject::new("Machine", "default", "a");
    for type_ in [
        types::AVAILABLE,
        types::BOOTSTRAP_CONFIG_READY,
        types::CONTROL_PLANE_AVAILABLE,
        types::CONTROL_PLANE_INITIALIZED,
        types::DELETING,
        types::INFRASTRUCTURE_READY,
        types::MACHINES_READY,
        types::MACHINES_UP_TO_DATE,
        types::NODE_HEALTHY,
        types::NODE_READY,
        types::PAUSED,
        types::READY,
        types::REMEDIATING,
        types::REMOTE_CONNECTION_PROBE,
        types::ROLLING_OUT,
        types::SCALING_DOWN,
        types::SCALING_UP,
        types::UP_TO_DATE,
        types::WORKERS_AVAILABLE,
    ] {
        let (good, bad) = if is_negative(type_) { (FALSE, TRUE) } else { (TRUE, FALSE) };
        assert_eq!(of_condition(&object, &new(type_, good, "Fine", "")), None, "{type_}");
        for status in [bad, UNKNOWN] {
            let wait = of_condition(&object, &new(type_, status, "Because", "of this")).unwrap();
            assert_eq!((wait.message.as_str(), wait.observed), ("of this", format!("{type_} is {status}")));
            assert!(!wait.expected.starts_with(type_), "{type_} has no text of its own: {}", wait.expected);
        }
    }
    let without_message = of_condition(&object, &new("Foreign", UNKNOWN, "Because", "")).unwrap();
    assert_eq!(
        (without_message.message.as_str(), without_message.expected.as_str()),
        ("Because", "Foreign is True")
    );
    let unhealthy = new(types::NODE_HEALTHY, UNKNOWN, reasons::NODE_DOES_NOT_EXIST, "x");
    assert!(of_condition(&object, &unhealthy).unwrap().remedy.is_some());
}
