use drover_access_api::{Disconnected, Why};
use drover_api::conditions::types;
use drover_runtime::conditions::{get, is_true};
use serde_json::json;

use super::decide::{Action, Decision, Part, decide, desired_owners};
use super::deletion::Stage;
use super::events;
use super::observe::find_node;
use super::scope::{DrainView, NodeView, Scope};
use super::status::{next_available, status};
use super::{drain, node as node_sync};
use crate::contract::ResolveError;
use crate::external::External;
use crate::fixtures::{at, cluster, condition, found, machine, merged, node, not_found};
use crate::waits::Hold;

fn scope(over: serde_json::Value) -> Scope {
    Scope {
        machine: machine("m", over),
        cluster: Some(cluster(json!({}))),
        bootstrap: found("RKEBootstrap", json!({})),
        infra: found("LocalMachine", json!({})),
        control_plane_machines: 1,
        ..Scope::default()
    }
}

/// A running Machine that is being deleted.
fn being_deleted(over: serde_json::Value) -> Scope {
    let running = json!({
        "metadata": { "deletionTimestamp": at(0).to_string() },
        "spec": { "providerID": "local://node" },
        "status": {
            "nodeRef": { "name": "node" },
            "initialization": { "infrastructureProvisioned": true, "bootstrapDataSecretCreated": true },
        },
    });
    Scope {
        node: NodeView::Found(node("node", json!({}))),
        drain: Some(DrainView::default()),
        ..scope(merged(running, over))
    }
}

fn cordoned() -> NodeView {
    NodeView::Found(node("node", json!({ "spec": { "unschedulable": true } })))
}

fn stage(decision: &Decision) -> &Stage {
    decision.stage.as_ref().unwrap()
}

fn provisioned() -> External {
    found(
        "LocalMachine",
        json!({
            "spec": { "providerID": "local://node" },
            "status": {
                "initialization": { "provisioned": true },
                "addresses": [{ "type": "InternalIP", "address": "10.0.0.2" }],
            },
        }),
    )
}

#[test]
fn capi_check_5_a_provisioned_machine_waits_for_its_provider_id() {
    let mut scope = scope(json!({}));
    scope.infra = found("LocalMachine", json!({ "status": { "initialization": { "provisioned": true } } }));
    let decision = decide(&scope, at(1));
    assert!(!decision.infrastructure_provisioned);
    let shown = status(&scope, &decision, None, at(1));
    assert_eq!(shown.phase.as_deref(), Some("Pending"));
    let ready = get(&shown.conditions, types::INFRASTRUCTURE_READY).unwrap();
    assert!(ready.message.contains("spec.providerID"), "{}", ready.message);

    scope.infra = provisioned();
    let decision = decide(&scope, at(2));
    let shown = status(&scope, &decision, None, at(2));
    assert_eq!(shown.initialization.unwrap().infrastructure_provisioned, Some(true));
    assert_eq!(shown.addresses[0].address, "10.0.0.2");
    assert_eq!(shown.phase.as_deref(), Some("Provisioned"));
    let Some(Action::Apply(desired)) = decision.actions.iter().find(|a| matches!(a, Action::Apply(_))) else {
        panic!()
    };
    assert_eq!(desired["spec"]["providerID"], "local://node");
}

#[test]
fn capi_check_6_provisioned_stays_true() {
    let mut scope = scope(json!({ "status": { "initialization": { "infrastructureProvisioned": true } } }));
    scope.infra = found("LocalMachine", json!({ "status": { "initialization": { "provisioned": false } } }));
    let decision = decide(&scope, at(1));
    assert!(decision.infrastructure_provisioned);
    let shown = status(&scope, &decision, None, at(1));
    assert_eq!(shown.initialization.unwrap().infrastructure_provisioned, Some(true));
}

#[test]
fn capi_check_7_the_machine_becomes_the_only_owner_of_its_objects() {
    let mut scope = scope(json!({
        "metadata": { "ownerReferences": [{
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet", "name": "set", "uid": "s", "controller": true,
        }] },
    }));
    let owners = json!({ "metadata": { "ownerReferences": [
        { "apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "MachineSet", "name": "set", "uid": "s" },
        { "apiVersion": "v1", "kind": "ConfigMap", "name": "foreign", "uid": "f" },
    ] } });
    scope.infra = found("LocalMachine", owners);
    let decision = decide(&scope, at(1));
    assert!(decision.actions.contains(&Action::Adopt(Part::Infrastructure)));
    let owners = desired_owners(&scope, scope.infra.object().unwrap());
    let shown: Vec<_> =
        owners.iter().map(|o| (o.kind.as_str(), o.controller, o.block_owner_deletion)).collect();
    assert_eq!(shown, [("ConfigMap", None, None), ("Machine", Some(true), Some(true))]);

    scope.infra = found(
        "LocalMachine",
        json!({ "metadata": {
            "labels": { "cluster.x-k8s.io/cluster-name": "demo" },
            "ownerReferences": [{
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": "m", "uid": "uid-m",
                "controller": true, "blockOwnerDeletion": true,
            }],
        } }),
    );
    assert!(!decide(&scope, at(1)).actions.contains(&Action::Adopt(Part::Infrastructure)), "adopted once");
}

#[test]
fn capi_check_4_an_unresolvable_provider_is_named_in_a_condition() {
    let mut scope = scope(json!({}));
    scope.infra = External::Unresolvable(ResolveError::NoContract {
        crd: "localmachines.rke-machine.cattle.io".into(),
    });
    let decision = decide(&scope, at(1));
    let shown = status(&scope, &decision, None, at(1));
    let ready = get(&shown.conditions, types::INFRASTRUCTURE_READY).unwrap();
    assert!(ready.message.contains("localmachines.rke-machine.cattle.io"), "{}", ready.message);
}

#[test]
fn bootstrap_data_is_copied_once_and_gates_the_phase() {
    let mut scope = scope(json!({}));
    let ready =
        json!({ "status": { "dataSecretName": "boot", "initialization": { "dataSecretCreated": true } } });
    scope.bootstrap = found("RKEBootstrap", ready);
    let decision = decide(&scope, at(1));
    let Some(Action::Apply(desired)) = decision.actions.first() else { panic!("{:?}", decision.actions) };
    assert_eq!(desired["spec"]["bootstrap"]["dataSecretName"], "boot");
    assert_eq!(status(&scope, &decision, None, at(1)).phase.as_deref(), Some("Provisioning"));

    scope.machine.spec.bootstrap.data_secret_name = Some("first".into());
    assert_eq!(decide(&scope, at(1)).data_secret_name.as_deref(), Some("first"), "never overwritten");
}

#[test]
fn a_preset_data_secret_counts_as_provided_but_sets_no_flag() {
    let mut scope =
        scope(json!({ "spec": { "bootstrap": { "configRef": null, "dataSecretName": "mine" } } }));
    scope.bootstrap = External::Unset;
    let decision = decide(&scope, at(1));
    assert!(!decision.data_secret_created);
    let shown = status(&scope, &decision, None, at(1));
    assert_eq!(get(&shown.conditions, types::BOOTSTRAP_CONFIG_READY).unwrap().reason, "DataSecretProvided");
}

#[test]
fn a_running_machine_is_ready_then_available_after_min_ready_seconds() {
    let mut scope = scope(json!({
        "spec": {
            "providerID": "local://node", "minReadySeconds": 30, "bootstrap": { "dataSecretName": "boot" },
        },
        "status": { "initialization": { "infrastructureProvisioned": true, "bootstrapDataSecretCreated": true } },
    }));
    scope.infra = provisioned();
    scope.node = NodeView::Found(node("node", json!({})));
    let decision = decide(&scope, at(0));
    let shown = status(&scope, &decision, None, at(0));
    assert_eq!(shown.phase.as_deref(), Some("Running"));
    assert_eq!(shown.node_ref.as_ref().unwrap().name, "node");
    assert!(is_true(&shown.conditions, types::READY), "{:?}", shown.conditions);
    assert!(!is_true(&shown.conditions, types::AVAILABLE));
    assert_eq!(next_available(&scope.machine, &shown, at(10)).unwrap().as_secs(), 20);

    scope.machine.status = Some(shown);
    let later = status(&scope, &decide(&scope, at(31)), None, at(31));
    assert!(is_true(&later.conditions, types::AVAILABLE));
    let old = &later.deprecated.unwrap().v1beta1.unwrap().conditions;
    assert_eq!((old[0].type_.as_str(), old[0].status.as_str()), ("Ready", "True"));
}

#[test]
fn capi_check_33_two_nodes_with_one_provider_id_are_reported_as_an_error() {
    let twins = vec![
        node("a", json!({ "spec": { "providerID": "x" } })),
        node("b", json!({ "spec": { "providerID": "x" } })),
    ];
    let mut scope = scope(json!({ "spec": { "providerID": "x" } }));
    scope.node = find_node(twins, Some("x"), None);
    let decision = decide(&scope, at(1));
    assert_eq!(decision.node_name, None);
    let shown = status(&scope, &decision, None, at(1));
    let healthy = get(&shown.conditions, types::NODE_HEALTHY).unwrap();
    assert!(healthy.message.contains("a, b"), "{}", healthy.message);
}

#[test]
fn capi_check_25_a_paused_machine_gets_its_finalizer_and_the_condition_and_nothing_else() {
    let deleting = json!({ "metadata": { "annotations": { "cluster.x-k8s.io/paused": "false" } } });
    for mut scope in [being_deleted(deleting), being_deleted(json!({}))] {
        if scope.machine.metadata.annotations.is_none() {
            scope.cluster = Some(cluster(json!({ "spec": { "paused": true } })));
        }
        let decision = decide(&scope, at(100));
        assert_eq!((decision.paused, decision.actions.len()), (true, 0));
        let shown = status(&scope, &decision, None, at(100));
        assert!(is_true(&shown.conditions, types::PAUSED));
        assert_eq!(shown.node_ref, scope.machine.status.unwrap().node_ref);
    }
    let mut fresh = scope(json!({ "metadata": { "finalizers": null } }));
    fresh.cluster = Some(cluster(json!({ "spec": { "paused": true } })));
    assert_eq!(decide(&fresh, at(0)).actions, [Action::AddFinalizer]);
}

#[test]
fn capi_check_17_a_pre_drain_hook_holds_before_anything_is_cordoned() {
    let hook = "pre-drain.delete.hook.machine.cluster.x-k8s.io/anything";
    let held = being_deleted(json!({ "metadata": { "annotations": { hook: "x" } } }));
    let decision = decide(&held, at(1));
    assert_eq!(stage(&decision), &Stage::PreDrainHook(vec![hook.into()]));
    assert!(!decision.actions.iter().any(|a| matches!(a, Action::Cordon(_) | Action::Evict { .. })));
    assert!(decide(&being_deleted(json!({})), at(1)).actions.contains(&Action::Cordon("node".into())));
}

#[test]
fn capi_check_18_a_pre_terminate_hook_holds_even_while_the_cluster_is_deleted() {
    let hook = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/rke-bootstrap-cleanup";
    let mut held = being_deleted(json!({ "metadata": { "annotations": { hook: "x" } } }));
    held.cluster = Some(cluster(json!({ "metadata": { "deletionTimestamp": at(0).to_string() } })));
    let decision = decide(&held, at(1));
    assert_eq!(stage(&decision).reason(), "WaitingForPreTerminateHook");
    assert!(!decision.actions.contains(&Action::Delete(Part::Infrastructure)));
    held.machine.metadata.annotations = None;
    assert!(decide(&held, at(1)).actions.contains(&Action::Delete(Part::Infrastructure)));
}

fn pod(name: &str, over: serde_json::Value) -> k8s_openapi::api::core::v1::Pod {
    serde_json::from_value(merged(json!({ "metadata": { "name": name, "namespace": "ns" } }), over)).unwrap()
}

#[test]
fn capi_check_19_a_drain_waits_for_pods_by_name_and_gives_up_at_its_timeout() {
    let mut scope = being_deleted(json!({}));
    scope.node = cordoned();
    scope.drain = Some(DrainView { pods: vec![pod("web-1", json!({}))], ..DrainView::default() });
    let decision = decide(&scope, at(3600));
    let shown = status(&scope, &decision, None, at(3600));
    let deleting = get(&shown.conditions, types::DELETING).unwrap();
    assert!(deleting.message.contains("ns/web-1"), "{}", deleting.message);
    let started = shown.deletion.as_ref().unwrap().node_drain_start_time.as_ref().unwrap().0;
    assert_eq!(started, at(3600));

    scope.machine.status = Some(shown);
    scope.machine.spec.deletion = serde_json::from_value(json!({ "nodeDrainTimeoutSeconds": 60 })).unwrap();
    let waiting = decide(&scope, at(3650));
    assert!(matches!(stage(&waiting), Stage::Draining { .. }));
    assert_eq!(waiting.next.unwrap().as_secs(), 10, "repeats at the deadline");
    assert_eq!(stage(&decide(&scope, at(3660))), &Stage::Infrastructure { delete: true });
}

#[test]
fn a_drain_ignores_daemon_pods_mirror_pods_and_skipped_pods() {
    let owner = |name: &str| {
        json!({ "metadata": { "ownerReferences": [
        { "apiVersion": "apps/v1", "kind": "DaemonSet", "name": name, "uid": name, "controller": true },
    ] } })
    };
    let view = DrainView {
        pods: vec![
            pod("daemon", owner("alive")),
            pod("orphan", owner("deleted")),
            pod("mirror", json!({ "metadata": { "annotations": { "kubernetes.io/config.mirror": "x" } } })),
            pod("skip", json!({ "metadata": { "labels": { "cluster.x-k8s.io/drain": "skip" } } })),
            pod("job", json!({ "metadata": { "labels": { "cluster.x-k8s.io/drain": "wait-completed" } } })),
            pod("done", json!({ "status": { "phase": "Succeeded" } })),
            pod("leaving", json!({ "metadata": { "deletionTimestamp": at(0).to_string() } })),
        ],
        daemon_sets: ["ns/alive".to_owned()].into(),
        ..DrainView::default()
    };
    let names = |pods: &[drain::PodKey]| pods.iter().map(|pod| pod.name.clone()).collect::<Vec<_>>();
    let plan = drain::plan(&view, &node("node", json!({})), at(5));
    assert_eq!(
        (names(&plan.evict), names(&plan.leaving), names(&plan.completing)),
        (vec!["orphan".into()], vec!["leaving".into()], vec!["job".into()])
    );
    let lost =
        node("node", json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown" }] } }));
    let plan = drain::plan(&view, &lost, at(5));
    assert_eq!((plan.grace_seconds, plan.leaving.len()), (Some(1), 0));
}

#[test]
fn capi_check_20_the_order_is_server_bootstrap_node_finalizer() {
    let mut scope = being_deleted(json!({}));
    scope.node = cordoned();
    let last = |scope: &Scope| decide(scope, at(2)).actions.last().cloned().unwrap();
    assert_eq!(last(&scope), Action::Delete(Part::Infrastructure));
    scope.infra = found("LocalMachine", json!({ "metadata": { "deletionTimestamp": at(1).to_string() } }));
    assert_eq!(stage(&decide(&scope, at(2))), &Stage::Infrastructure { delete: false });
    scope.infra = not_found("LocalMachine");
    assert_eq!(last(&scope), Action::Delete(Part::Bootstrap));
    scope.bootstrap = not_found("RKEBootstrap");
    assert_eq!(last(&scope), Action::DeleteNode("node".into()));
    scope.node = NodeView::Absent;
    assert_eq!(last(&scope), Action::RemoveFinalizer);
}

#[test]
fn capi_check_21_without_node_an_unreachable_cluster_does_not_hold_the_deletion() {
    let mut scope = being_deleted(json!({ "status": { "nodeRef": null } }));
    scope.node = NodeView::Disconnected(Disconnected::now(away_because("no tunnel")));
    scope.infra = not_found("LocalMachine");
    scope.bootstrap = not_found("RKEBootstrap");
    assert_eq!(decide(&scope, at(2)).actions.last(), Some(&Action::RemoveFinalizer));
}

#[test]
fn an_unreachable_cluster_holds_a_drain_and_the_message_has_a_remedy() {
    let mut scope = being_deleted(json!({}));
    scope.node = NodeView::Disconnected(Disconnected::now(away_because("no tunnel")));
    let decision = decide(&scope, at(2));
    let Stage::DrainBlocked(why) = stage(&decision) else { panic!("{:?}", decision.stage) };
    let why = why.to_string();
    assert!(why.contains("no tunnel") && why.contains("nodeDrainTimeoutSeconds"), "{why}");
}

#[test]
fn a_node_that_is_expected_to_return_keeps_its_conditions() {
    let mut scope = scope(json!({}));
    let shown = |scope: &mut Scope| {
        let shown = status(scope, &decide(scope, at(2)), None, at(2));
        let old = shown.deprecated.clone().unwrap().v1beta1.unwrap().conditions;
        let old = old.into_iter().find(|condition| condition.type_ == "NodeHealthy").unwrap().status;
        let of = |type_: &str| get(&shown.conditions, type_).unwrap().status.clone();
        let statuses = [of(types::NODE_READY), of(types::NODE_HEALTHY), old];
        scope.machine.status = Some(shown);
        statuses
    };
    let away = || NodeView::Disconnected(Disconnected { why: away_because("no tunnel yet"), expected: true });
    scope.node = away();
    assert_eq!(shown(&mut scope), ["Unknown"; 3], "there was no condition");
    scope.node = NodeView::Found(node("node", json!({})));
    let known = shown(&mut scope);
    assert_ne!(known, ["Unknown"; 3]);
    scope.node = away();
    assert_eq!(shown(&mut scope), known);
    scope.node = NodeView::Disconnected(Disconnected::now(away_because("it did not reconnect")));
    assert_eq!(shown(&mut scope), ["Unknown"; 3]);
}

#[test]
fn capi_check_22_deletion_of_the_node_times_out() {
    let mut scope = being_deleted(
        json!({ "metadata": { "annotations": { "machine.cluster.x-k8s.io/exclude-node-draining": "" } } }),
    );
    scope.node = NodeView::Disconnected(Disconnected::now(away_because("no tunnel")));
    scope.infra = not_found("LocalMachine");
    scope.bootstrap = not_found("RKEBootstrap");
    let decision = decide(&scope, at(4));
    assert_eq!(
        (stage(&decision), decision.next.unwrap().as_secs()),
        (&Stage::NodeBlocked(Hold::Disconnected(away_because("no tunnel").to_string())), 6)
    );
    assert_eq!(decide(&scope, at(10)).actions.last(), Some(&Action::RemoveFinalizer));
    scope.machine.spec.deletion = serde_json::from_value(json!({ "nodeDeletionTimeoutSeconds": 0 })).unwrap();
    assert!(matches!(stage(&decide(&scope, at(100_000))), Stage::NodeBlocked(_)));
}

#[test]
fn capi_check_24_objects_removed_by_hand_do_not_hold_the_deletion() {
    let mut scope = being_deleted(json!({}));
    scope.node = NodeView::Absent;
    scope.infra =
        External::Unresolvable(ResolveError::CrdMissing { kind: "LocalMachine".into(), group: "g".into() });
    scope.bootstrap = not_found("RKEBootstrap");
    assert_eq!(decide(&scope, at(2)).actions.last(), Some(&Action::RemoveFinalizer));
}

#[test]
fn the_last_control_plane_machine_is_not_drained() {
    let mut scope = being_deleted(json!({}));
    scope.control_plane_machines = 0;
    assert_eq!(decide(&scope, at(1)).actions.last(), Some(&Action::Delete(Part::Infrastructure)));
}

#[test]
fn capi_check_32_labels_are_copied_to_the_node_and_foreign_ones_are_kept() {
    let labelled =
        machine("m", json!({ "metadata": { "labels": { "node-role.kubernetes.io/x": "", "other": "1" } } }));
    let live = node("node", json!({ "metadata": { "labels": { "foreign": "1" } } }));
    let patch = node_sync::patch(&labelled, &live).unwrap();
    assert_eq!(patch["metadata"]["labels"], json!({ "node-role.kubernetes.io/x": "" }));
    assert_eq!(patch["metadata"]["resourceVersion"], "7");
    let synced = node(
        "node",
        json!({ "metadata": {
        "labels": { "foreign": "1", "node-role.kubernetes.io/x": "" },
        "annotations": patch["metadata"]["annotations"],
    } }),
    );
    assert_eq!(node_sync::patch(&labelled, &synced), None, "no second patch");
    let patch = node_sync::patch(&machine("m", json!({})), &synced).unwrap();
    assert_eq!(patch["metadata"]["labels"], json!({ "node-role.kubernetes.io/x": null }));
}

#[test]
fn the_start_up_taint_is_removed_and_others_are_kept() {
    let live = node(
        "node",
        json!({ "spec": { "taints": [
        { "key": "node.cluster.x-k8s.io/uninitialized", "effect": "NoSchedule" },
        { "key": "mine", "effect": "NoSchedule" },
    ] } }),
    );
    let patch = node_sync::patch(&machine("m", json!({})), &live).unwrap();
    assert_eq!(patch["spec"]["taints"], json!([{ "key": "mine", "effect": "NoSchedule" }]));
}

#[test]
fn conditions_of_others_are_used_but_not_written() {
    let gate = "example.io/Scanned";
    let mut scope = scope(json!({
        "spec": { "providerID": "local://node", "readinessGates": [{ "conditionType": gate }] },
        "status": { "conditions": [condition(gate, "False")] },
    }));
    scope.infra = provisioned();
    scope.node = NodeView::Found(node("node", json!({})));
    let shown = status(&scope, &decide(&scope, at(1)), None, at(1));
    let ready = get(&shown.conditions, types::READY).unwrap();
    assert!(ready.message.contains(gate), "{}", ready.message);
    assert!(get(&shown.conditions, gate).is_none());
}

/// The reasons of a pass's events, and its status.
fn pass(scope: &Scope, second: i64) -> (Vec<&'static str>, drover_api::capi::v1beta2::MachineStatus) {
    let decision = decide(scope, at(second));
    let next = status(scope, &decision, None, at(second));
    let notes = events::events(scope, &decision, &next, at(second));
    (notes.iter().map(|note| note.reason).collect(), next)
}

#[test]
fn a_machine_reports_its_node_and_its_readiness_once() {
    let mut scope = scope(json!({}));
    let step = |scope: &mut Scope, wanted: &[&str]| {
        let (notes, next) = pass(scope, 1);
        assert_eq!(notes, wanted);
        scope.machine.status = Some(next);
        assert_eq!(pass(scope, 2).0, Vec::<&str>::new(), "no repetition");
    };
    step(&mut scope, &[]);
    scope.bootstrap = found(
        "RKEBootstrap",
        json!({ "status": { "initialization": { "dataSecretCreated": true }, "dataSecretName": "boot" } }),
    );
    scope.infra = provisioned();
    step(&mut scope, &[]);
    scope.node = NodeView::Found(node("node", json!({})));
    step(&mut scope, &["SuccessfulSetNodeRef"]);
    let unwell = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False", "message": "no kubelet" }] } });
    scope.node = NodeView::Found(node("node", unwell));
    step(&mut scope, &["NotReady"]);
    scope.node = NodeView::Found(node("node", json!({})));
    step(&mut scope, &["Ready"]);
}

#[test]
fn the_deletion_of_a_cluster_gives_no_warning() {
    let mut ready = scope(json!({ "spec": { "providerID": "local://node" } }));
    (ready.bootstrap, ready.infra) = (
        found(
            "RKEBootstrap",
            json!({ "status": { "initialization": { "dataSecretCreated": true }, "dataSecretName": "b" } }),
        ),
        provisioned(),
    );
    ready.node = NodeView::Found(node("node", json!({})));
    ready.machine.status = Some(pass(&ready, 1).1);
    assert!(is_true(&ready.machine.status.as_ref().unwrap().conditions, types::READY));
    // The connection is closed first, then the Cluster is deleted, then the Machines.
    ready.node = NodeView::Disconnected(Disconnected::now(away_because("no tunnel")));
    assert_eq!(pass(&ready, 2).0, ["NotReady"], "without a deletion");
    let leaving = Scope { leaving: true, ..ready.clone() };
    assert_eq!(pass(&leaving, 2).0, Vec::<&str>::new());
    let deleting = cluster(json!({ "metadata": { "deletionTimestamp": at(0).to_string() } }));
    let deleted = Scope { cluster: Some(deleting), ..ready };
    assert_eq!(pass(&deleted, 2).0, Vec::<&str>::new());
}

#[test]
fn the_deletion_of_a_machine_gives_events_for_its_drain_and_for_failures() {
    let mut scope = being_deleted(json!({ "spec": { "deletion": { "nodeDrainTimeoutSeconds": 60 } } }));
    scope.node = cordoned();
    scope.drain = Some(DrainView { pods: vec![pod("web-1", json!({}))], ..DrainView::default() });
    let (notes, next) = pass(&scope, 1);
    assert_eq!(notes, ["DrainingNode"]);
    scope.machine.status = Some(next);
    assert_eq!(pass(&scope, 2).0, Vec::<&str>::new(), "one event while waiting for pods");
    assert_eq!(pass(&scope, 90).0, ["FailedDrainNode", "WaitingForInfrastructureDeletion"]);
    scope.drain = Some(DrainView::default());
    let (notes, next) = pass(&scope, 3);
    assert_eq!(notes, ["SuccessfulDrainNode", "WaitingForInfrastructureDeletion"]);
    scope.machine.status = Some(next);
    scope.infra = not_found("LocalMachine");
    scope.bootstrap = not_found("RKEBootstrap");
    assert_eq!(pass(&scope, 4).0, Vec::<&str>::new());
    let decision = decide(&scope, at(4));
    let notes: Vec<_> = decision.actions.iter().filter_map(events::done).map(|note| note.reason).collect();
    assert_eq!(notes, ["SuccessfulDeleteNode"]);
    let failed = events::failed(&Action::DeleteNode("node".into()), "no route").unwrap();
    assert_eq!((failed.reason, failed.standing), ("FailedDeleteNode", true));
    scope.node = NodeView::Absent;
    let end = decide(&scope, at(5));
    assert!(end.actions.iter().filter_map(events::done).any(|note| note.reason == "Deleted"), "{end:?}");
}

/// An unreachable cluster with this cause.
fn away_because(cause: &str) -> Why {
    Why::Unreachable { cluster: drover_runtime::ObjectKey::new("default", "demo"), cause: cause.into() }
}

#[test]
fn a_change_of_a_node_affects_its_machine_and_a_change_of_the_connection_all() {
    use drover_access_api::ClusterChange;
    use drover_api::capi::v1beta2::Machine;
    use drover_runtime::{Cache, Change, ObjectKey};
    use k8s_openapi::api::core::v1::Node;
    use kube::ResourceExt as _;
    let machine = |name: &str, cluster: &str, id: serde_json::Value, node: &str| -> Machine {
        serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": name, "labels": {"cluster.x-k8s.io/cluster-name": cluster}},
            "spec": {
                "clusterName": cluster, "bootstrap": {}, "providerID": id,
                "infrastructureRef": {"apiGroup": "test", "kind": "Test", "name": name},
            },
            "status": {"nodeRef": {"name": node}},
        }))
        .unwrap()
    };
    let machines = Cache::fixed([
        machine("a", "demo", json!("test://1"), "n1"),
        machine("b", "demo", json!("test://2"), "n2"),
        machine("new", "demo", json!(null), ""),
        machine("other", "second", json!("test://1"), "n1"),
    ]);
    machines.index(super::NODES, super::node_values);
    machines.index_by_label("cluster.x-k8s.io/cluster-name");
    let node = |id: &str| -> std::sync::Arc<Node> {
        let node = json!({"metadata": {"name": "n1"}, "spec": {"providerID": id}});
        std::sync::Arc::new(serde_json::from_value(node).unwrap())
    };
    let (cluster, name) = (ObjectKey::new("ns", "demo"), ObjectKey::cluster("n1"));
    let woken = |change: Option<&Change<'_, Node>>| -> Vec<String> {
        let change = ClusterChange { cluster: &cluster, node: change };
        super::machines_of(&machines, &change).iter().map(|machine| machine.name_any()).collect()
    };
    let (one, two) = (node("test://1"), node("test://2"));
    assert_eq!(woken(Some(&Change { key: &name, old: None, new: Some(&one) })), ["a"]);
    assert_eq!(woken(Some(&Change { key: &name, old: Some(&one), new: None })), ["a"]);
    // Another server has this name now.
    assert_eq!(woken(Some(&Change { key: &name, old: Some(&one), new: Some(&two) })), ["a", "b"]);
    assert_eq!(woken(None), ["a", "b", "new"]);
}
