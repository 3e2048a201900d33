use std::sync::Arc;

use drover_access_api::{Disconnected, Why};
use drover_api::capi::v1beta2::Cluster;
use drover_api::conditions::types;
use drover_runtime::conditions::{get, is_true};
use serde_json::{Value, json};

use super::decide::{Action, Part, Stage, decide};
use super::events;
use super::scope::Scope;
use super::status::status;
use crate::contract::ResolveError;
use crate::external::External;
use crate::fixtures::{at, cluster, deployment, found, machine, not_found, set};

fn scope(over: Value) -> Scope {
    let cluster: Arc<Cluster> = cluster(over);
    Scope {
        cluster: (*cluster).clone(),
        infra: found("RKECluster", json!({})),
        control_plane: found("RKEControlPlane", json!({})),
        ..Scope::default()
    }
}

fn deleting() -> Scope {
    scope(json!({ "metadata": { "deletionTimestamp": at(0).to_string() } }))
}

#[test]
fn values_of_providers_are_copied_and_kept() {
    let mut scope = scope(json!({}));
    assert_eq!(status(&scope, &decide(&scope), None, at(1)).phase.as_deref(), Some("Provisioning"));
    scope.infra = found(
        "RKECluster",
        json!({
            "spec": { "controlPlaneEndpoint": { "host": "localhost", "port": 6443 } },
            "status": { "initialization": { "provisioned": true } },
        }),
    );
    scope.control_plane = found(
        "RKEControlPlane",
        json!({
            "status": { "initialization": { "controlPlaneInitialized": true } },
        }),
    );
    let decision = decide(&scope);
    assert!(decision.actions.contains(&Action::Endpoint { host: "localhost".into(), port: 6443 }));
    let shown = status(&scope, &decision, None, at(1));
    let initialization = shown.initialization.clone().unwrap();
    assert_eq!(
        (initialization.infrastructure_provisioned, initialization.control_plane_initialized),
        (Some(true), Some(true))
    );
    for type_ in [
        types::INFRASTRUCTURE_READY,
        types::CONTROL_PLANE_INITIALIZED,
        types::CONTROL_PLANE_AVAILABLE,
        types::AVAILABLE,
    ] {
        assert!(is_true(&shown.conditions, type_), "{type_}: {:?}", get(&shown.conditions, type_));
    }

    // capi#6: the flags stay when the providers remove them.
    scope.cluster.status = Some(shown);
    scope.infra = found("RKECluster", json!({}));
    scope.control_plane = found("RKEControlPlane", json!({}));
    let decision = decide(&scope);
    assert!(decision.infrastructure_provisioned && decision.control_plane_initialized);
}

#[test]
fn an_endpoint_that_a_user_set_is_kept() {
    let mut scope = scope(json!({ "spec": { "controlPlaneEndpoint": { "host": "mine", "port": 1 } } }));
    scope.infra = found(
        "RKECluster",
        json!({
            "spec": { "controlPlaneEndpoint": { "host": "localhost", "port": 6443 } },
            "status": { "initialization": { "provisioned": true } },
        }),
    );
    assert!(!decide(&scope).actions.iter().any(|action| matches!(action, Action::Endpoint { .. })));
}

#[test]
fn without_a_control_plane_object_the_first_node_initializes_the_cluster() {
    let mut scope = scope(json!({ "spec": { "controlPlaneRef": null } }));
    scope.control_plane = External::Unset;
    let machine = |node: Value| {
        Arc::new(machine(
            "cp",
            json!({
                "metadata": { "labels": { "cluster.x-k8s.io/control-plane": "" } }, "status": { "nodeRef": node },
            }),
        ))
    };
    scope.machines = vec![machine(Value::Null)];
    assert!(!decide(&scope).control_plane_initialized);
    scope.machines = vec![machine(json!({ "name": "n" }))];
    assert!(decide(&scope).control_plane_initialized);
}

#[test]
fn capi_check_23_the_control_plane_waits_for_workers_and_the_infrastructure_for_it() {
    let mut scope = deleting();
    scope.deployments = vec![Arc::new(deployment(json!({})))];
    scope.sets = vec![Arc::new(set("md-1", json!({})))];
    scope.machines = vec![Arc::new(machine("w", json!({})))];
    let decision = decide(&scope);
    assert_eq!(decision.actions.len(), 1, "only the deployment is deleted directly: {:?}", decision.actions);
    assert!(matches!(&decision.actions[0], Action::DeleteDescendant(d) if d.kind == "MachineDeployment"));
    let shown = status(&scope, &decision, None, at(1));
    assert_eq!(get(&shown.conditions, types::DELETING).unwrap().reason, "WaitingForWorkersDeletion");

    (scope.deployments, scope.sets) = (vec![], vec![]);
    assert!(decide(&scope).actions.is_empty(), "a Machine still exists");
    scope.machines = vec![];
    let decision = decide(&scope);
    assert_eq!(
        (decision.actions, decision.stage),
        (vec![Action::Delete(Part::ControlPlane)], Some(Stage::ControlPlane))
    );
    scope.control_plane =
        found("RKEControlPlane", json!({ "metadata": { "deletionTimestamp": at(1).to_string() } }));
    assert!(decide(&scope).actions.is_empty());
    scope.control_plane = not_found("RKEControlPlane");
    assert_eq!(decide(&scope).actions, [Action::Delete(Part::Infrastructure)]);
    scope.infra = not_found("RKECluster");
    assert_eq!(decide(&scope).actions, [Action::RemoveFinalizer]);
}

#[test]
fn control_plane_machines_of_a_provider_are_left_to_it() {
    let mut scope = deleting();
    scope.machines = vec![Arc::new(machine(
        "cp",
        json!({ "metadata": { "labels": { "cluster.x-k8s.io/control-plane": "" } } }),
    ))];
    assert_eq!(decide(&scope).actions, [Action::Delete(Part::ControlPlane)]);
}

#[test]
fn capi_check_24_objects_removed_by_hand_do_not_hold_the_deletion() {
    let mut scope = deleting();
    scope.control_plane =
        External::Unresolvable(ResolveError::CrdMissing { kind: "K".into(), group: "g".into() });
    scope.infra = not_found("RKECluster");
    assert_eq!(decide(&scope).actions, [Action::RemoveFinalizer]);
    scope.infra =
        External::Unresolvable(ResolveError::NoContract { crd: "rkeclusters.rke.cattle.io".into() });
    let decision = decide(&scope);
    let shown = status(&scope, &decision, None, at(1));
    let deleting = get(&shown.conditions, types::DELETING).unwrap();
    assert!(
        deleting.message.contains("rkeclusters.rke.cattle.io"),
        "the cause is reported: {}",
        deleting.message
    );
}

#[test]
fn capi_check_25_a_paused_cluster_does_nothing_even_when_deleted() {
    let mut paused = deleting();
    paused.cluster.spec.paused = Some(true);
    let decision = decide(&paused);
    assert_eq!((decision.paused, decision.actions.len()), (true, 0));
    assert!(is_true(&status(&paused, &decision, None, at(1)).conditions, types::PAUSED));
    let fresh = scope(json!({ "metadata": { "finalizers": null }, "spec": { "paused": true } }));
    assert_eq!(decide(&fresh).actions, [Action::AddFinalizer]);
}

#[test]
fn an_unreachable_cluster_is_reported() {
    let mut scope = scope(json!({}));
    let why = away_because("the tunnel is not open");
    scope.disconnected = Some(Disconnected::now(why.clone()));
    let shown = status(&scope, &decide(&scope), None, at(1));
    let available = get(&shown.conditions, types::AVAILABLE).unwrap();
    assert!(available.message.contains(&format!("RemoteConnectionProbe: {why}")), "{}", available.message);
}

#[test]
fn a_cluster_that_is_expected_to_reconnect_keeps_its_conditions() {
    let mut scope = scope(json!({}));
    let probe = |scope: &mut Scope| {
        let shown = status(scope, &decide(scope), None, at(1));
        let probe = get(&shown.conditions, types::REMOTE_CONNECTION_PROBE).unwrap().clone();
        scope.cluster.status = Some(shown);
        probe
    };
    let away = Disconnected { why: away_because("no tunnel yet"), expected: true };
    scope.disconnected = Some(away.clone());
    assert_eq!(probe(&mut scope).status, "False", "there was no condition");
    scope.disconnected = None;
    let known = probe(&mut scope);
    assert_eq!(known.status, "True");
    scope.disconnected = Some(away);
    assert_eq!(probe(&mut scope), known);
    scope.disconnected = Some(Disconnected::now(away_because("it did not reconnect")));
    assert_eq!(probe(&mut scope).message, away_because("it did not reconnect").to_string());
}

#[test]
fn a_cluster_reports_its_initialization_and_each_step_of_its_deletion_once() {
    let reasons = |scope: &Scope| {
        let decision = decide(scope);
        let next = status(scope, &decision, None, at(1));
        let notes = events::events(scope, &decision, &next);
        (notes.iter().map(|note| note.reason).collect::<Vec<_>>(), next)
    };
    let mut scope = scope(json!({}));
    let step = |scope: &mut Scope, wanted: &[&str]| {
        let (given, next) = reasons(scope);
        assert_eq!(given, wanted);
        scope.cluster.status = Some(next);
        assert_eq!(reasons(scope).0, Vec::<&str>::new(), "no repetition");
    };
    step(&mut scope, &[]);
    scope.infra = found("RKECluster", json!({ "status": { "initialization": { "provisioned": true } } }));
    step(&mut scope, &[]);
    scope.control_plane = found(
        "RKEControlPlane",
        json!({ "status": { "initialization": { "controlPlaneInitialized": true } } }),
    );
    let (given, next) = reasons(&scope);
    assert_eq!(given[0], "ControlPlaneInitialized");
    scope.cluster.status = Some(next);
    scope.cluster.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(2)));
    scope.machines = vec![Arc::new(machine("m", json!({})))];
    step(&mut scope, &["Deleting", "WaitingForWorkersDeletion"]);
    scope.machines.clear();
    step(&mut scope, &["WaitingForControlPlaneDeletion"]);
    scope.control_plane = not_found("RKEControlPlane");
    step(&mut scope, &["WaitingForInfrastructureDeletion"]);
    scope.infra = not_found("RKECluster");
    let last = decide(&scope);
    let notes: Vec<_> = last.actions.iter().filter_map(|action| events::done(&scope, action)).collect();
    assert_eq!(notes[0].reason, "Deleted");
}

/// An unreachable cluster with this cause.
fn away_because(cause: &str) -> Why {
    Why::Unreachable { cluster: drover_runtime::ObjectKey::new("default", "demo"), cause: cause.into() }
}
