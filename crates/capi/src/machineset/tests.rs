use std::sync::Arc;

use drover_api::capi::v1beta2::Machine;
use drover_api::conditions::types;
use drover_runtime::conditions::{get, is_true};
use serde_json::{Value, json};

use super::clone;
use super::decide::{Action, Decision, decide, to_delete};
use super::events;
use super::scope::Scope;
use super::status::status;
use crate::external::External;
use crate::fixtures::{at, cluster, condition, deployment, found, machine, merged, not_found, set};

fn member(name: &str, over: Value) -> Arc<Machine> {
    let base = json!({
        "metadata": {
            "labels": { "pool": "workers" },
            "ownerReferences": [{
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet", "name": "set", "uid": "uid-set",
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "status": { "nodeRef": { "name": name } },
    });
    Arc::new(machine(name, merged(base, over)))
}

fn scope(over: Value, machines: Vec<Arc<Machine>>) -> Scope {
    Scope {
        set: set("set", over),
        cluster: Some(cluster(json!({}))),
        machines,
        bootstrap_template: found("RKEBootstrapTemplate", json!({})),
        infra_template: found("LocalMachineTemplate", json!({})),
        ..Scope::default()
    }
}

fn run(scope: &Scope) -> Decision {
    let mut next = 0;
    decide(scope, at(100), &mut || {
        next += 1;
        format!("r{next:04}")
    })
}

fn created(decision: &Decision) -> Vec<&str> {
    decision
        .actions
        .iter()
        .filter_map(|a| if let Action::Create(name) = a { Some(name.as_str()) } else { None })
        .collect()
}

fn deleted(decision: &Decision) -> Vec<&str> {
    decision
        .actions
        .iter()
        .filter_map(|a| if let Action::Delete { name, .. } = a { Some(name.as_str()) } else { None })
        .collect()
}

#[test]
fn missing_machines_are_created_and_surplus_ones_deleted() {
    let decision = run(&scope(json!({}), vec![member("a", json!({}))]));
    assert_eq!(created(&decision), ["set-r0001", "set-r0002"]);
    let four = ["a", "b", "c", "d"].map(|name| member(name, json!({}))).to_vec();
    let decision = run(&scope(json!({}), four));
    assert_eq!(deleted(&decision), ["a"], "Random is the order of names");
}

#[test]
fn capi_check_7_clones_share_the_name_labels_and_origin() {
    let set = set("set", json!({}));
    let made = clone::machine(&set, "set-abcde", None);
    let labels = made.metadata.labels.as_ref().unwrap();
    for (key, value) in [
        ("cluster.x-k8s.io/cluster-name", "demo"),
        ("cluster.x-k8s.io/set-name", "set"),
        ("cluster.x-k8s.io/deployment-name", "md"),
        ("pool", "workers"),
    ] {
        assert_eq!(labels.get(key).map(String::as_str), Some(value), "{key}");
    }
    assert_eq!(made.spec.infrastructure_ref.kind, "LocalMachine");
    assert_eq!(made.spec.infrastructure_ref.name, "set-abcde");
    assert_eq!(made.spec.bootstrap.config_ref.as_ref().unwrap().name, "set-abcde");

    let External::Found { resource, object, .. } = found(
        "LocalMachine",
        json!({ "spec": { "template": { "spec": { "cpu": 2 }, "metadata": { "labels": { "t": "1" } } } } }),
    ) else {
        panic!()
    };
    let reference = &set.spec.template.spec.infrastructure_ref;
    let cloned = clone::clone(&set, &object, reference, &resource, "set-abcde").unwrap();
    assert_eq!(cloned.data["spec"], json!({ "cpu": 2 }));
    let owner = &cloned.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.controller), ("MachineSet", None));
    let annotations = cloned.metadata.annotations.unwrap();
    assert_eq!(annotations["cluster.x-k8s.io/cloned-from-name"], "infra-1");
    assert_eq!(
        annotations["cluster.x-k8s.io/cloned-from-groupkind"],
        "LocalMachineTemplate.rke-machine.cattle.io"
    );
    let labels = cloned.metadata.labels.unwrap();
    assert_eq!((labels["t"].as_str(), labels["cluster.x-k8s.io/set-name"].as_str()), ("1", "set"));
}

#[test]
fn a_template_without_spec_gives_an_empty_clone() {
    let External::Found { resource, object, .. } = found("RKEBootstrap", json!({})) else { panic!() };
    let set = set("set", json!({}));
    let reference = &set.spec.template.spec.infrastructure_ref;
    let cloned = clone::clone(&set, &object, reference, &resource, "x").unwrap();
    assert_eq!(cloned.data["spec"], json!({}));
}

#[test]
fn capi_check_10_labels_of_a_clone_follow_the_template_and_those_of_others_stay() {
    let External::Found { resource, object, .. } = found("LocalMachine", json!({})) else { panic!() };
    let before = set("set", json!({}));
    let reference = &before.spec.template.spec.infrastructure_ref;
    let mut live = clone::clone(&before, &object, reference, &resource, "set-a").unwrap();
    assert_eq!(clone::changes(&before, &object, reference, &live, "ours"), None);
    let labels = live.metadata.labels.as_mut().unwrap();
    labels.extend([("gone".to_owned(), "1".to_owned()), ("foreign".to_owned(), "1".to_owned())]);
    live.metadata.uid = Some("u".into());
    live.metadata.managed_fields = serde_json::from_value(json!([
        { "manager": "ours", "fieldsV1": { "f:metadata": { "f:labels": { "f:gone": {}, "f:pool": {} } } } },
        { "manager": "theirs", "fieldsV1": { "f:metadata": { "f:labels": { "f:foreign": {} } } } },
    ]))
    .unwrap();
    let labels = json!({ "labels": { "new": "1" } });
    let after = set("set", json!({ "spec": { "template": { "metadata": labels } } }));
    let patch = clone::changes(&after, &object, reference, &live, "ours").unwrap();
    assert_eq!(patch, json!({ "metadata": { "uid": "u", "labels": { "new": "1", "gone": null } } }));
}

#[test]
fn an_unchanged_set_has_nothing_to_do() {
    let mut scope = scope(json!({ "spec": { "replicas": 1 } }), vec![member("set-a", json!({}))]);
    let cluster = scope.cluster.clone().unwrap();
    for template in [&mut scope.bootstrap_template, &mut scope.infra_template] {
        let External::Found { object, .. } = template else { panic!() };
        let object = Arc::make_mut(object);
        object.metadata.owner_references = Some(vec![crate::meta::owner_reference(&*cluster, false)]);
        let label = ("cluster.x-k8s.io/cluster-name".to_owned(), "demo".to_owned());
        object.metadata.labels.get_or_insert_default().extend([label.clone()]);
        scope.set.metadata.labels.get_or_insert_default().extend([label]);
    }
    assert_eq!(run(&scope).actions, []);
    scope.outdated = ["set-a".to_owned()].into();
    assert_eq!(run(&scope).actions, [Action::Update("set-a".into())]);
    scope.infra_template = found("LocalMachineTemplate", json!({}));
    assert_eq!(run(&scope).actions, [Action::OwnTemplates, Action::Update("set-a".into())]);
}

#[test]
fn capi_check_9_an_interrupted_creation_is_completed_not_repeated() {
    let mut scope = scope(json!({ "spec": { "replicas": 2 } }), vec![member("set-a", json!({}))]);
    scope.unfinished = ["set-half".to_owned()].into();
    assert_eq!(created(&run(&scope)), ["set-half"]);
    scope.machines.push(member("set-b", json!({})));
    let decision = run(&scope);
    assert!(created(&decision).is_empty());
    assert!(decision.actions.contains(&Action::DeleteClones("set-half".into())));
}

#[test]
fn capi_check_10_changes_in_place_are_copied_and_initial_values_are_kept() {
    let live =
        member("a", json!({ "spec": { "version": "v1.33.0", "failureDomain": "z1", "providerID": "p" } }));
    let changed = set(
        "set",
        json!({ "spec": { "template": {
        "metadata": { "labels": { "new": "1" }, "annotations": { "note": "x" } },
        "spec": {
            "version": "v1.34.2+k3s1",
            "deletion": { "nodeDrainTimeoutSeconds": 7 },
            "taints": [{ "key": "k", "effect": "NoSchedule", "propagation": "Always" }],
        },
    } } }),
    );
    let desired = clone::machine(&changed, "a", Some(&live));
    assert_eq!(desired.spec.version.as_deref(), Some("v1.33.0"));
    assert_eq!(desired.spec.failure_domain.as_deref(), Some("z1"));
    assert_eq!(desired.spec.infrastructure_ref, live.spec.infrastructure_ref);
    assert_eq!(desired.spec.provider_id, None, "the Machine controller owns it");
    assert_eq!(desired.spec.deletion.unwrap().node_drain_timeout_seconds, Some(7));
    assert_eq!(desired.spec.taints[0].key, "k");
    assert_eq!(desired.metadata.labels.unwrap()["new"], "1");
    assert_eq!(desired.metadata.annotations.unwrap()["note"], "x");
}

#[test]
fn capi_check_16_marked_machines_are_deleted_first_and_machines_being_deleted_count() {
    let now = at(1_000_000);
    let aged = |name: &str, age: i64, over: Value| {
        member(
            name,
            merged(json!({ "metadata": { "creationTimestamp": at(1_000_000 - age).to_string() } }), over),
        )
    };
    let machines = vec![
        aged("old", 900_000, json!({})),
        aged("young", 10, json!({})),
        aged(
            "marked",
            5000,
            json!({ "metadata": { "annotations": { "cluster.x-k8s.io/delete-machine": "" } } }),
        ),
        aged("nodeless", 5000, json!({ "status": { "nodeRef": null } })),
    ];
    let names = |order: &str, surplus: usize| {
        let set = set("set", json!({ "spec": { "deletion": { "order": order } } }));
        to_delete(&set, &machines, surplus, now)
            .iter()
            .map(|m| m.metadata.name.clone().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(names("Random", 3), ["marked", "nodeless", "old"]);
    assert_eq!(names("Oldest", 3), ["marked", "nodeless", "old"]);
    assert_eq!(names("Newest", 4), ["marked", "nodeless", "young", "old"]);

    let mut deleting = machines.clone();
    deleting[1] = aged("young", 10, json!({ "metadata": { "deletionTimestamp": at(0).to_string() } }));
    let decision = run(&scope(json!({}), deleting));
    assert!(deleted(&decision).is_empty(), "one is already being deleted: {:?}", decision.actions);
}

#[test]
fn nothing_is_created_while_it_is_forbidden() {
    let disabled =
        json!({ "metadata": { "annotations": { "cluster.x-k8s.io/disable-machine-create": "true" } } });
    let mut missing = scope(json!({}), vec![]);
    missing.infra_template = not_found("LocalMachineTemplate");
    let mut upgrading = scope(json!({}), vec![]);
    upgrading.control_plane = found(
        "RKEControlPlane",
        json!({
            "spec": { "version": "v1.35.0" }, "status": { "version": "v1.34.0" },
        }),
    );
    for (scope, why) in [
        (scope(disabled, vec![]), "disable-machine-create"),
        (missing, "infra-1"),
        (upgrading, "ControlPlaneIsStable"),
    ] {
        let decision = run(&scope);
        assert!(created(&decision).is_empty());
        assert!(decision.blocked.as_ref().unwrap().to_string().contains(why), "{:?}", decision.blocked);
        let shown = status(&scope, &decision, None, at(1));
        assert!(get(&shown.conditions, types::SCALING_UP).unwrap().message.contains(why));
    }
}

#[test]
fn capi_check_25_a_paused_set_does_nothing() {
    let mut paused =
        scope(json!({ "metadata": { "annotations": { "cluster.x-k8s.io/paused": "false" } } }), vec![]);
    assert_eq!((run(&paused).paused, run(&paused).actions.len()), (true, 0));
    paused.set.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0)));
    assert_eq!(run(&paused).actions.len(), 0);
}

#[test]
fn a_deleted_set_deletes_its_machines_and_then_its_finalizer() {
    let deleted_at = json!({ "metadata": { "deletionTimestamp": at(0).to_string() } });
    let decision =
        run(&scope(deleted_at.clone(), vec![member("a", json!({})), member("b", deleted_at.clone())]));
    assert_eq!(deleted(&decision), ["a"]);
    assert!(!decision.actions.contains(&Action::RemoveFinalizer));
    assert_eq!(run(&scope(deleted_at, vec![])).actions, [Action::RemoveFinalizer]);
}

#[test]
fn unhealthy_machines_are_replaced_within_the_budget_newest_first() {
    let sick = |name: &str, second: i64| {
        let conditions =
            json!([condition("HealthCheckSucceeded", "False"), condition("OwnerRemediated", "False")]);
        member(
            name,
            json!({
                "metadata": { "creationTimestamp": at(second).to_string() }, "status": { "conditions": conditions },
            }),
        )
    };
    let mut scope = scope(json!({}), vec![sick("older", 1), sick("newer", 2), member("well", json!({}))]);
    scope.deployment =
        Some(Arc::new(deployment(json!({ "spec": { "remediation": { "maxInFlight": "33%" } } }))));
    assert_eq!(deleted(&run(&scope)), ["newer"]);
    scope.deployment = Some(Arc::new(deployment(json!({
        "metadata": { "annotations": { "machinedeployment.clusters.x-k8s.io/revision": "2" } },
    }))));
    assert!(deleted(&run(&scope)).is_empty(), "only the newest set replaces");
}

#[test]
fn counters_come_from_machine_conditions() {
    let conditions = |ready, available| {
        json!({ "status": { "conditions": [
        condition("Ready", ready), condition("Available", available), condition("UpToDate", "True"),
    ] } })
    };
    let machines = vec![
        member("a", conditions("True", "True")),
        member("b", conditions("True", "False")),
        member("c", conditions("False", "False")),
    ];
    let scope = scope(json!({}), machines);
    let shown = status(&scope, &run(&scope), None, at(1));
    assert_eq!(
        (shown.replicas, shown.ready_replicas, shown.available_replicas, shown.up_to_date_replicas),
        (Some(3), Some(2), Some(1), Some(3))
    );
    assert_eq!(shown.selector.as_deref(), Some("pool=workers"));
    assert!(
        !is_true(&shown.conditions, types::SCALING_UP) && !is_true(&shown.conditions, types::MACHINES_READY)
    );
    assert_eq!(shown.observed_generation, Some(1));
    let failed = status(&scope, &run(&scope), Some("boom"), at(1));
    assert_eq!(failed.observed_generation, None, "changes only after success");
}

#[test]
fn a_set_gives_events_for_created_and_deleted_machines_and_for_failures() {
    let decision = run(&scope(json!({}), vec![member("a", json!({}))]));
    let notes: Vec<_> =
        decision.actions.iter().filter_map(events::done).map(|n| (n.reason, n.message)).collect();
    let made = |name: &str| ("SuccessfulCreate", format!("Created Machine {name:?}"));
    assert_eq!(notes, [made("set-r0001"), made("set-r0002")]);
    let four = ["a", "b", "c", "d"].map(|name| member(name, json!({}))).to_vec();
    let notes: Vec<_> = run(&scope(json!({}), four)).actions.iter().filter_map(events::done).collect();
    assert_eq!(notes.len(), 1);
    assert_eq!(notes[0].reason, "SuccessfulDelete");
    assert!(notes[0].message.contains("\"a\", because the MachineSet has too many"), "{}", notes[0].message);

    // Each attempt gives the same event, whatever its name.
    let failed = |name: &str| {
        events::failed(&Action::Create(name.into()), &format!("create LocalMachine {name}: quota exceeded"))
            .unwrap()
    };
    assert_eq!(failed("set-1"), failed("set-2"));
    assert!(failed("set-1").standing && failed("set-1").type_ == "Warning");
    // The condition must have the same text as well, or each failure would cause another attempt.
    let condition = |name: &str| {
        let decision = Decision { actions: vec![Action::Create(name.into())], ..Decision::default() };
        events::alike(&decision, &format!("create LocalMachine {name}: quota exceeded"))
    };
    assert_eq!(condition("set-1"), condition("set-2"));
    let mut stuck = scope(json!({}), vec![]);
    stuck.infra_template = not_found("LocalMachineTemplate");
    let notes = events::events(&run(&stuck));
    assert!(notes[0].standing && notes[0].message.contains("LocalMachineTemplate infra-1"), "{notes:?}");
    // A complete set has no events.
    let three = ["a", "b", "c"].map(|name| member(name, json!({}))).to_vec();
    let done = run(&scope(json!({}), three));
    assert_eq!(done.actions.iter().filter_map(events::done).count() + events::events(&done).len(), 0);
}
