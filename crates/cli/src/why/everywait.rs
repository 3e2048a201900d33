//! A table of every wait and failure that the controllers can produce: `why` finds each of them from the cluster, and
//! shows the text of the condition.
//!
//! Each row is a pattern, a value that matches it and the object that shows it. A new variant of an enum does not
//! compile until it has a row.

use std::sync::Arc;

use drover_api::capi::v1beta2::{Cluster as CapiCluster, Machine, MachineDeployment, MachineSet};
use drover_api::conditions::{reasons, types};
use drover_api::rke::v1::{RKEBootstrap, RKEControlPlane, RKEControlPlaneStatus};
use drover_capi::cluster::decide::Stage as ClusterStage;
use drover_capi::contract::ResolveError;
use drover_capi::machine::deletion::Stage as MachineStage;
use drover_capi::machine::drain::{DrainPlan, PodKey};
use drover_capi::waits::{Hold, Subject};
use drover_jobs::decide::{Action, Attempts};
use drover_provisioning::bootstrap::decide as bootstrap;
use drover_provisioning::bootstrap::scope::Scope as BootstrapScope;
use drover_provisioning::bootstrap::status::status as bootstrap_status;
use drover_provisioning::controlplane::decide::{Decision, End, Marks};
use drover_provisioning::controlplane::planner::releases::Releases;
use drover_provisioning::controlplane::scope::{Scope, StateSecret};
use drover_provisioning::controlplane::status::status as control_plane_status;
use drover_provisioning::controlplane::waits::{
    Activity, Detail, Failure, Group, MachineWait, Role, Waiting,
};
use drover_provisioning::init::decide::Outcome;
use drover_provisioning::init::scope::Scope as ClusterScope;
use drover_provisioning::init::status::status as cluster_status;
use drover_provisioning::init::twin::identity;
use drover_provisioning::init::waits::{self as init, MachineBlock};
use drover_provisioning::machine::provision::decide::Decision as MachineDecision;
use drover_provisioning::machine::provision::scope::Scope as MachineScope;
use drover_provisioning::machine::provision::state::Machine as InfraMachine;
use drover_provisioning::machine::provision::status::status as machine_status;
use drover_provisioning::machine::provision::waits as server;
use drover_provisioning::settings::Settings;
use drover_runtime::ObjectKey;
use drover_runtime::conditions::{FALSE, TRUE, UNKNOWN};
use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::show;
use super::tests::{SINCE, cluster, condition, infra, path, why, with, with_conditions};
use crate::family::Key;

/// Rows as `pattern => value, carrier;`. The patterns must cover the type, and each value must match its own pattern.
macro_rules! table {
    ($type:ty: $($pattern:pat => $value:expr, $carrier:expr;)+) => {{
        fn _every_variant_has_a_row(value: &$type) {
            match value { $($pattern => {})+ }
        }
        let rows = vec![$({
            let value: $type = $value;
            assert!(matches!(value, $pattern), "{value:?} is in the wrong row");
            (value, $carrier)
        }),+];
        rows
    }};
}

/// A change of one object of the healthy cluster, and the text that `why` has to show.
fn assert_shown(key: &Key, change: Value, message: &str) {
    let family = with(vec![(key.clone(), change)]);
    for root in [&cluster(), key] {
        let report = why(&family, root);
        let shown = report.chain.iter().chain(&report.also).find(|step| step.wait.message == message);
        let step = shown.unwrap_or_else(|| panic!("{message:?} of {key:?} is missing in {report:?}"));
        assert!(!step.wait.reason.is_empty() && !step.wait.expected.is_empty(), "{step:?}");
        assert!(report.waiting && !path(&report).is_empty());
        let text = show::text(&report, SINCE.parse().unwrap());
        let first = message.lines().next().unwrap();
        assert!(text.contains(&first[..first.len().min(60)]), "{first:?} is missing in {text}");
    }
}

fn now() -> jiff::Timestamp {
    SINCE.parse().unwrap()
}

/// Where a wait of the core controllers is shown.
enum Shown {
    /// As a condition.
    Condition(Key, &'static str, &'static str, &'static str),
    /// In the message of a condition, as the reason why replicas are missing.
    Blocked(Key, &'static str),
    /// As the failure of an object.
    Failure(Key),
}

#[test]
fn every_wait_of_the_core_controllers() {
    let (machine, capi) = (|| Key::of::<Machine>("m"), || Key::of::<CapiCluster>("demo"));
    let set = |type_| Shown::Blocked(Key::of::<MachineSet>("demo-w-1"), type_);
    let pool = |type_| Shown::Blocked(Key::of::<MachineDeployment>("demo-w"), type_);
    let on = Shown::Condition;
    let subject = || Subject { kind: "LocalMachine".into(), name: "m".into() };
    let drain = || Hold::DrainBlocked(Box::new(Hold::Disconnected("no tunnel".into())));
    let rows = table! { Hold:
        Hold::NoBootstrap => Hold::NoBootstrap,
            on(machine(), types::BOOTSTRAP_CONFIG_READY, FALSE, reasons::NOT_READY);
        Hold::NoTopology => Hold::NoTopology,
            on(capi(), types::INFRASTRUCTURE_READY, FALSE, reasons::OBJECT_DOES_NOT_EXIST);
        Hold::Unresolvable(_) => Hold::Unresolvable(ResolveError::CrdMissing { kind: "K".into(), group: "g".into() }),
            on(machine(), types::INFRASTRUCTURE_READY, UNKNOWN, reasons::INTERNAL_ERROR);
        Hold::Deleted(_) => Hold::Deleted(subject()),
            on(machine(), types::INFRASTRUCTURE_READY, FALSE, reasons::OBJECT_DELETED);
        Hold::Missing(_) => Hold::Missing(subject()),
            on(machine(), types::INFRASTRUCTURE_READY, FALSE, reasons::OBJECT_DOES_NOT_EXIST);
        Hold::Lost(_) => Hold::Lost(subject()), Shown::Failure(machine());
        Hold::InvalidStatus { .. } =>
            Hold::InvalidStatus { subject: subject(), condition: "Ready".into(), status: "Maybe".into() },
            on(machine(), types::INFRASTRUCTURE_READY, UNKNOWN, reasons::INVALID_CONDITION_REPORTED);
        Hold::NoData(_) => Hold::NoData(subject()),
            on(machine(), types::BOOTSTRAP_CONFIG_READY, FALSE, reasons::NOT_READY);
        Hold::NoDataSecret(_) => Hold::NoDataSecret(subject()), Shown::Failure(machine());
        Hold::NoProviderId(_) => Hold::NoProviderId(subject()),
            on(machine(), types::INFRASTRUCTURE_READY, FALSE, reasons::NOT_READY);
        Hold::NotProvisioned(_) => Hold::NotProvisioned(subject()),
            on(capi(), types::INFRASTRUCTURE_READY, FALSE, reasons::NOT_READY);
        Hold::NotInitialized(_) => Hold::NotInitialized(subject()),
            on(capi(), types::CONTROL_PLANE_INITIALIZED, FALSE, reasons::NOT_INITIALIZED);
        Hold::NoControlPlaneNode => Hold::NoControlPlaneNode,
            on(capi(), types::CONTROL_PLANE_INITIALIZED, FALSE, reasons::NOT_INITIALIZED);
        Hold::ControlPlaneNotInitialized => Hold::ControlPlaneNotInitialized,
            on(capi(), types::CONTROL_PLANE_AVAILABLE, FALSE, reasons::NOT_AVAILABLE);
        Hold::Disconnected(_) => Hold::Disconnected("no tunnel".into()),
            on(capi(), types::REMOTE_CONNECTION_PROBE, FALSE, reasons::PROBE_FAILED);
        Hold::SeveralNodes(_) => Hold::SeveralNodes(vec!["a".into(), "b".into()]),
            on(machine(), types::NODE_HEALTHY, UNKNOWN, reasons::INTERNAL_ERROR);
        Hold::NodeDeleted(_) => Hold::NodeDeleted("a".into()),
            on(machine(), types::NODE_HEALTHY, FALSE, reasons::NODE_DELETED);
        Hold::NoNode { .. } => Hold::NoNode { provider_id: "local://a".into() },
            on(machine(), types::NODE_HEALTHY, UNKNOWN, reasons::NODE_DOES_NOT_EXIST);
        Hold::NodeNotSought { .. } => Hold::NodeNotSought { kind: "LocalMachine".into() },
            on(machine(), types::NODE_HEALTHY, UNKNOWN, reasons::INSPECTION_FAILED);
        Hold::Unreadable(_) => Hold::Unreadable("pods cannot be listed".into()),
            on(machine(), types::DELETING, TRUE, reasons::DRAINING_NODE);
        Hold::DrainBlocked(_) => drain(), on(machine(), types::DELETING, TRUE, reasons::DRAINING_NODE);
        Hold::Invalid(_) => Hold::Invalid("spec.selector: Required value".into()), pool(types::SCALING_UP);
        Hold::CreateDisabled => Hold::CreateDisabled, set(types::SCALING_UP);
        Hold::ControlPlaneProvisioning => Hold::ControlPlaneProvisioning, set(types::SCALING_UP);
        Hold::ControlPlaneUpgrading { .. } => Hold::ControlPlaneUpgrading { from: "v1".into(), to: "v2".into() },
            set(types::SCALING_UP);
        Hold::TooNew { .. } => Hold::TooNew { version: "v2".into(), control_plane: "v1".into() },
            set(types::SCALING_UP);
        Hold::TooOld { .. } => Hold::TooOld { version: "v1".into(), control_plane: "v2".into() },
            pool(types::ROLLING_OUT);
    };
    for (hold, shown) in rows {
        let text = hold.to_string();
        match shown {
            Shown::Condition(key, type_, status, reason) => {
                assert_shown(&key, with_conditions(&[condition(type_, status, reason, &text)]), &text);
            }
            Shown::Blocked(key, type_) => {
                let text = format!("Scaling up from 0 to 1 replicas is blocked because:\n* {text}");
                assert_shown(&key, with_conditions(&[condition(type_, TRUE, type_, &text)]), &text);
            }
            Shown::Failure(key) => {
                let failure = json!({"failureReason": "InvalidConfiguration", "failureMessage": text});
                assert_shown(&key, json!({"status": {"deprecated": {"v1beta1": failure}}}), &text);
            }
        }
    }
}

#[test]
fn every_stage_of_a_deletion() {
    let pods = vec![PodKey { namespace: "default".into(), name: "p".into() }];
    let plan = DrainPlan { evict: pods, ..DrainPlan::default() };
    let blocked = || Hold::Disconnected("no tunnel".into());
    let machine = table! { MachineStage:
        MachineStage::PreDrainHook(_) => MachineStage::PreDrainHook(vec!["pre".into()]), ();
        MachineStage::Draining { .. } => MachineStage::Draining { node: "n".into(), cordon: true, plan }, ();
        MachineStage::DrainBlocked(_) => MachineStage::DrainBlocked(blocked()), ();
        MachineStage::VolumeDetach(_) => MachineStage::VolumeDetach(vec!["v".into()]), ();
        MachineStage::PreTerminateHook(_) => MachineStage::PreTerminateHook(vec!["pre".into()]), ();
        MachineStage::Infrastructure { .. } => MachineStage::Infrastructure { delete: true }, ();
        MachineStage::InfrastructureBlocked(_) => MachineStage::InfrastructureBlocked(blocked()), ();
        MachineStage::Bootstrap { .. } => MachineStage::Bootstrap { delete: true }, ();
        MachineStage::BootstrapBlocked(_) => MachineStage::BootstrapBlocked(blocked()), ();
        MachineStage::Node(_) => MachineStage::Node("n".into()), ();
        MachineStage::NodeBlocked(_) => MachineStage::NodeBlocked(blocked()), ();
        MachineStage::Done => MachineStage::Done, ();
    };
    let cluster = table! { ClusterStage:
        ClusterStage::Workers(_) => ClusterStage::Workers(vec!["Machine a".into()]), ();
        ClusterStage::ControlPlane => ClusterStage::ControlPlane, ();
        ClusterStage::Infrastructure => ClusterStage::Infrastructure, ();
        ClusterStage::Blocked(_) => ClusterStage::Blocked(blocked()), ();
        ClusterStage::Done => ClusterStage::Done, ();
    };
    let stages =
        machine.iter().map(|(stage, ())| (Key::of::<Machine>("m"), stage.reason(), stage.to_string()));
    let capi = Key::of::<CapiCluster>("demo");
    let clusters = cluster.iter().map(|(stage, ())| (capi.clone(), stage.reason(), stage.to_string()));
    for (key, reason, text) in stages.chain(clusters) {
        assert_shown(&key, with_conditions(&[condition(types::DELETING, TRUE, reason, &text)]), &text);
    }
}

fn scope() -> Scope {
    Scope {
        namespace: "default".into(),
        name: "demo".into(),
        generation: 1,
        has_finalizer: true,
        designated_init_node: String::new(),
        cluster_spec_annotation: String::new(),
        paused: false,
        spec: Default::default(),
        status: RKEControlPlaneStatus::default(),
        cluster: None,
        entries: vec![],
        state_secret: StateSecret::Missing,
        releases: Arc::new(Releases::builtin()),
        settings: Settings::default(),
        machine_addresses: Default::default(),
        file_objects: Default::default(),
        cluster_agent_manifest: None,
        connected: false,
    }
}

/// The status that the planner writes after such a pass.
fn after(end: End, groups: Vec<Group>) -> Value {
    let decision = Decision {
        actions: vec![],
        end,
        marks: Marks::default(),
        refused: Default::default(),
        groups,
        unknown: vec![],
        again: None,
    };
    json!({"status": control_plane_status(&scope(), &decision, None, now())})
}

fn group(activity: Activity, details: Vec<Detail>) -> Group {
    Group { tier: "worker", activity, machines: vec![MachineWait { machine: "m".into(), details }] }
}

#[test]
fn every_wait_of_the_control_plane() {
    let details = table! { Detail:
        Detail::BootstrapEtcd => Detail::BootstrapEtcd, ();
        Detail::Etcd => Detail::Etcd, ();
        Detail::ControlPlane => Detail::ControlPlane, ();
        Detail::FirstPlan { .. } => Detail::FirstPlan { failure: String::new() }, ();
        Detail::PlanError(_) => Detail::PlanError("the plan has an error".into()), ();
        Detail::PlanFailed { .. } => Detail::PlanFailed { failure: "exit code 1".into() }, ();
        Detail::Probes(_) => Detail::Probes(vec!["kubelet".into()]), ();
        Detail::Plan => Detail::Plan, ();
        Detail::Kubelet => Detail::Kubelet, ();
        Detail::ClusterAgent => Detail::ClusterAgent, ();
        Detail::MachineFailed(_) => Detail::MachineFailed("the machine failed".into()), ();
        Detail::MachineNotReady(_) => Detail::MachineNotReady("the machine is not ready".into()), ();
        Detail::Unreadable(_) => Detail::Unreadable("plan secret m cannot be read".into()), ();
        Detail::Drain { .. } => Detail::Drain { machine: "m".into(), error: "timed out".into() }, ();
        Detail::NoServer => Detail::NoServer, ();
        Detail::Render(_) => Detail::Render("no plan for m".into()), ();
    };
    let activities = table! { Activity:
        Activity::Uncordoning => Activity::Uncordoning, ();
        Activity::Draining => Activity::Draining, ();
        Activity::Configuring => Activity::Configuring, ();
        Activity::Failing => Activity::Failing, ();
        Activity::NonReady => Activity::NonReady, ();
        Activity::Unknown => Activity::Unknown, ();
    };
    let of_machines = details.into_iter().map(|(detail, ())| group(Activity::Configuring, vec![detail]));
    let of_tiers = activities.into_iter().map(|(activity, ())| group(activity, vec![]));
    let key = Key::of::<RKEControlPlane>("demo");
    for group in of_machines.chain(of_tiers) {
        let message = group.message(&group.machines[0]);
        assert_shown(&key, after(End::Waiting(Waiting::Machines(group.clone())), vec![group]), &message);
    }
    let text = String::from;
    let waits = table! { Waiting:
        Waiting::Release { .. } => Waiting::Release {
            control_plane: text("default/demo"), version: text("v9"), known: vec![text("v1")] }, ();
        Waiting::Cluster => Waiting::Cluster, ();
        Waiting::Infrastructure => Waiting::Infrastructure, ();
        Waiting::Paused => Waiting::Paused, ();
        Waiting::Uninitializing { .. } => Waiting::Uninitializing { control_plane: text("default/demo") }, ();
        Waiting::Roles { .. } =>
            Waiting::Roles { missing: vec![Role::Etcd, Role::ControlPlane, Role::Worker] }, ();
        Waiting::EtcdDeletion => Waiting::EtcdDeletion, ();
        Waiting::EtcdReplaced => Waiting::EtcdReplaced, ();
        Waiting::InitNode => Waiting::InitNode, ();
        Waiting::DesignatedInitNode { .. } => Waiting::DesignatedInitNode { machine_id: text("id") }, ();
        Waiting::RegistrationToken => Waiting::RegistrationToken, ();
        Waiting::NoMachine { .. } => Waiting::NoMachine { tier: "worker" }, ();
        // Shown above, one wait per machine.
        Waiting::Machines(_) => Waiting::Machines(group(Activity::Configuring, vec![Detail::Plan])), ();
        Waiting::JoinUrl { .. } => Waiting::JoinUrl { init_node: text("m"), after: None, why: text("no Node") }, ();
        Waiting::ControlPlane => Waiting::ControlPlane, ();
        Waiting::Initialized => Waiting::Initialized, ();
    };
    for (waiting, ()) in waits {
        if !matches!(waiting, Waiting::Machines(_)) {
            let message = waiting.to_string();
            assert_shown(&key, after(End::Waiting(waiting), vec![]), &message);
        }
    }
    let failures = table! { Failure:
        Failure::Version { .. } => Failure::Version { version: text("x"), error: text("unexpected character") }, ();
        Failure::StateSecretType { .. } => Failure::StateSecretType { secret: text("s"), type_: text("Opaque") }, ();
        Failure::StateSecretMissing { .. } => Failure::StateSecretMissing { secret: text("s") }, ();
        Failure::Files(_) => Failure::Files(text("Secret f does not exist")), ();
        Failure::Concurrency(_) => Failure::Concurrency(text("\"x\" is not a number")), ();
    };
    for (failure, ()) in failures {
        let message = failure.to_string();
        assert_shown(&key, after(End::Error(failure), vec![]), &message);
    }
}

#[test]
fn every_wait_of_a_bootstrap() {
    let waits = table! { bootstrap::Waiting:
        bootstrap::Waiting::Machine => bootstrap::Waiting::Machine, ();
        bootstrap::Waiting::Infrastructure { .. } =>
            bootstrap::Waiting::Infrastructure { cluster: "other".into() }, ();
        bootstrap::Waiting::Token { .. } => bootstrap::Waiting::Token { account: "m-machine-bootstrap".into() }, ();
    };
    let mut object = RKEBootstrap::default();
    object.metadata.name = Some("m".into());
    object.metadata.namespace = Some("default".into());
    let scope = BootstrapScope { bootstrap: Arc::new(object), ..BootstrapScope::default() };
    for (waiting, ()) in waits {
        let message = waiting.to_string();
        let decision = bootstrap::Decision { wait: Some(waiting), ..bootstrap::Decision::default() };
        let status = bootstrap_status(&scope, &decision, None, now());
        assert_shown(&Key::of::<RKEBootstrap>("m"), json!({"status": status}), &message);
    }
}

#[test]
fn every_wait_of_an_infra_machine() {
    let name = || "x".to_owned();
    let waits = table! { server::Waiting:
        server::Waiting::Machine => server::Waiting::Machine, ();
        server::Waiting::Cluster { .. } => server::Waiting::Cluster { name: name() }, ();
        server::Waiting::Paused { .. } => server::Waiting::Paused { cluster: name() }, ();
        server::Waiting::Infrastructure { .. } => server::Waiting::Infrastructure { cluster: name() }, ();
        server::Waiting::BootstrapData { .. } => server::Waiting::BootstrapData { machine: name() }, ();
        server::Waiting::Namesake { .. } =>
            server::Waiting::Namesake { machine: ObjectKey::new("default", "x") }, ();
        server::Waiting::FormerJob { .. } => server::Waiting::FormerJob { job: name() }, ();
    };
    let machine = InfraMachine {
        kind: "LocalMachine".into(),
        namespace: "default".into(),
        name: "m".into(),
        ..InfraMachine::default()
    };
    let scope = MachineScope { machine, ..MachineScope::default() };
    for (waiting, ()) in waits {
        let message = waiting.to_string();
        let decision = MachineDecision { waiting: Some(waiting), ..MachineDecision::default() };
        let status = machine_status(&scope, &decision, None, now());
        assert_shown(&infra(), json!({"status": status}), &message);
    }
}

#[test]
fn every_wait_and_every_refusal_of_a_cluster() {
    let name = || "x".to_owned();
    let waits = table! { init::Waiting:
        init::Waiting::Listing { .. } => init::Waiting::Listing { kind: name() }, ();
        init::Waiting::ControlPlane { .. } => init::Waiting::ControlPlane { name: name() }, ();
        init::Waiting::PoolSize { .. } =>
            init::Waiting::PoolSize { pool: name(), wanted: 2, observed: 1 }, ();
        init::Waiting::Replacement { .. } =>
            init::Waiting::Replacement { pool: name(), machine: name() }, ();
        init::Waiting::Configuration { .. } =>
            init::Waiting::Configuration { pool: name(), machine: name() }, ();
        init::Waiting::Removal { .. } => init::Waiting::Removal { machine: name() }, ();
    };
    let shown = |outcome: Outcome, text: &str| {
        let status = cluster_status(&ClusterScope::default(), &outcome, None, None, now());
        assert_shown(&cluster(), json!({"status": status}), text);
    };
    for (waiting, ()) in waits {
        let text = waiting.to_string();
        shown(Outcome::Waiting(waiting), &text);
    }
    let refusals = table! { init::Refusal:
        init::Refusal::Imported => init::Refusal::Imported, ();
        init::Refusal::Identity(_) => init::Refusal::Identity(identity::Refusal {
            identity: identity::Identity::default(), why: identity::Why::OfAnotherCluster }), ();
        init::Refusal::Spec(_) => init::Refusal::Spec(vec!["spec.x: invalid".into(), "spec.y: invalid".into()]), ();
        init::Refusal::Rejected(_) => init::Refusal::Rejected("spec.z: Required value".into()), ();
    };
    for (refusal, ()) in refusals {
        let text = refusal.to_string();
        shown(Outcome::Refused(refusal), &text);
    }
    let blocked = table! { init::Blocked:
        init::Blocked::ManagementCluster { .. } => init::Blocked::ManagementCluster { id: name() }, ();
        init::Blocked::Namespace { .. } => init::Blocked::Namespace { id: name() }, ();
        init::Blocked::ControlPlane { .. } => init::Blocked::ControlPlane { name: name() }, ();
        init::Blocked::CapiCluster { .. } => init::Blocked::CapiCluster { name: name() }, ();
        init::Blocked::Machines(_) => init::Blocked::Machines(vec![MachineBlock {
            name: name(), internal_error: true, message: "the driver is gone".into() }]), ();
        init::Blocked::Kubeconfig => init::Blocked::Kubeconfig, ();
    };
    for (blocked, ()) in blocked {
        let text = blocked.to_string();
        let mut change = with_conditions(&[condition("Removed", UNKNOWN, "Waiting", &text)]);
        change["metadata"] = json!({"deletionTimestamp": SINCE, "finalizers": ["wrangler.cattle.io/x"]});
        assert_shown(&cluster(), change, &text);
    }
}

#[test]
fn every_wait_and_every_failure_of_a_job() {
    let spec = JobSpec { backoff_limit: Some(0), active_deadline_seconds: Some(60), ..JobSpec::default() };
    let started = |second: i64| {
        let start = jiff::Timestamp::from_second(now().as_second() - second).unwrap();
        Job {
            spec: Some(spec.clone()),
            status: Some(JobStatus { start_time: Some(Time(start)), ..JobStatus::default() }),
            ..Job::default()
        }
    };
    let decide = |job: &Job, attempts: Attempts, output: &str| match drover_jobs::decide::decide(
        job,
        attempts,
        output,
        now(),
    ) {
        Action::Finish(status) | Action::Status(status) => *status,
        other => panic!("{other:?}"),
    };
    let failed = Attempts { failed: 1, ..Attempts::default() };
    let running = Attempts { running: true, ..Attempts::default() };
    let new = Job { spec: Some(spec.clone()), ..Job::default() };
    let queued = drover_jobs::decide::queued(&new, Attempts::default(), now()).unwrap();
    let queue = queued.conditions.as_ref().unwrap()[0].message.clone().unwrap();
    let rows = [
        (JobStatus::default(), "the Job has not started"),
        (queued, queue.as_str()),
        (decide(&new, running, ""), "the Job is running"),
        (decide(&started(60), Attempts::default(), ""), "Job was active longer than specified deadline"),
        (decide(&new, failed, ""), "Job has reached the specified backoff limit"),
        (decide(&new, failed, "no such image"), "no such image"),
    ];
    for (status, message) in rows {
        let mut status = json!(status);
        // The Job of the healthy cluster is complete.
        status.as_object_mut().unwrap().entry("conditions").or_insert(json!([]));
        assert_shown(&Key::of::<Job>("j"), json!({"status": status}), message);
    }
}
