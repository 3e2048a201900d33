use std::sync::Arc;

use drover_api::capi::v1beta2::MachineSet;
use drover_api::conditions::types;
use drover_runtime::conditions::is_true;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::decide::{Action, Decision, decide, newest_set};
use super::events;
use super::rollout::{Counts, plan, proportional};
use super::scope::{Scope, Strategy};
use super::status::status;
use super::template::{SetPlan, machine_set, template_differences};
use crate::fixtures::{at, cluster, deployment, found, not_found, set};

fn scope(over: Value, sets: Vec<MachineSet>) -> Scope {
    Scope {
        deployment: deployment(over),
        cluster: Some(cluster(json!({}))),
        sets: sets.into_iter().map(Arc::new).collect(),
        bootstrap_template: found("RKEBootstrapTemplate", json!({})),
        infra_template: found("LocalMachineTemplate", json!({})),
        ..Scope::default()
    }
}

fn owned(name: &str, revision: i64, counts: (i32, i32, i32), over: Value) -> MachineSet {
    let base = json!({
        "metadata": {
            "annotations": { "machinedeployment.clusters.x-k8s.io/revision": revision.to_string() },
            "labels": { "machine-template-hash": name },
            "ownerReferences": [{
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment", "name": "md", "uid": "uid-md",
                "controller": true,
            }],
        },
        "spec": { "replicas": counts.0 },
        "status": { "replicas": counts.1, "availableReplicas": counts.2, "observedGeneration": 1 },
    });
    set(name, crate::fixtures::merged(base, over))
}

fn run(scope: &Scope, second: i64) -> Decision {
    decide(scope, at(second), &mut || "abcde".to_owned())
}

fn plans(decision: &Decision) -> Vec<&SetPlan> {
    decision
        .actions
        .iter()
        .filter_map(|a| if let Action::Set(plan) = a { Some(plan) } else { None })
        .collect()
}

fn old_infra(name: &str) -> Value {
    json!({ "spec": { "template": { "spec": { "infrastructureRef": { "name": name } } } } })
}

#[test]
fn the_first_set_is_created_with_its_replicas_and_a_later_one_empty() {
    let decision = run(&scope(json!({}), vec![]), 1);
    let [made] = plans(&decision)[..] else { panic!("{decision:?}") };
    assert_eq!((made.name.as_str(), made.create, made.replicas, made.revision), ("md-abcde", true, 3, 1));
    let old = owned("md-old", 1, (3, 3, 3), old_infra("infra-0"));
    let decision = run(&scope(json!({}), vec![old]), 2);
    let made = plans(&decision).into_iter().find(|plan| plan.create).unwrap();
    assert_eq!((made.replicas, made.revision), (0, 2));
    let decision = run(&scope(json!({}), vec![owned("md-abcde", 1, (0, 0, 0), json!({}))]), 2);
    assert_eq!(plans(&decision)[0].replicas, 3);
    assert!(decision.actions.contains(&Action::Label { revision: Some(1) }));
}

#[test]
fn without_its_templates_no_set_is_created() {
    let mut scope = scope(json!({}), vec![]);
    scope.infra_template = not_found("LocalMachineTemplate");
    let decision = run(&scope, 1);
    assert!(plans(&decision).is_empty());
    assert!(decision.blocked.unwrap().to_string().contains("infra-1"));
}

#[test]
fn capi_check_10_only_four_things_replace_machines() {
    let base = deployment(json!({})).spec.template.spec;
    let changed = |over: Value| deployment(json!({ "spec": { "template": over } })).spec.template.spec;
    for over in [
        json!({ "metadata": { "labels": { "x": "y" } } }),
        json!({ "spec": { "deletion": { "nodeDrainTimeoutSeconds": 5 } } }),
        json!({ "spec": { "taints": [{ "key": "k", "effect": "NoSchedule", "propagation": "Always" }] } }),
        json!({ "spec": { "minReadySeconds": 5 } }),
        json!({ "spec": { "readinessGates": [{ "conditionType": "a" }] } }),
    ] {
        assert_eq!(template_differences(&changed(over.clone()), &base), Vec::<String>::new(), "{over}");
    }
    for over in [
        json!({ "spec": { "version": "v1.35.0+k3s1" } }),
        json!({ "spec": { "failureDomain": "z" } }),
        json!({ "spec": { "infrastructureRef": { "name": "infra-2" } } }),
        json!({ "spec": { "bootstrap": { "configRef": { "name": "boot-2" } } } }),
    ] {
        assert_eq!(template_differences(&changed(over.clone()), &base).len(), 1, "{over}");
    }
    // In place: the existing set stays the newest and its labels are updated.
    let scope = scope(
        json!({ "spec": { "template": { "metadata": { "labels": { "x": "y" } } } } }),
        vec![owned("md-1", 1, (3, 3, 3), json!({}))],
    );
    let decision = run(&scope, 1);
    let [plan] = plans(&decision)[..] else { panic!("{decision:?}") };
    assert!(!plan.create);
    let desired = machine_set(&scope.deployment, plan, Some(&scope.sets[0]), 4);
    assert_eq!(desired.spec.template.metadata.unwrap().labels["x"], "y");
    assert_eq!(desired.spec.selector.match_labels.unwrap()["machine-template-hash"], "md-1");
}

/// Simulates a rollout: in each turn the deployment plans, then every set creates or deletes Machines in an order
/// that `chance` selects, and Machines become available one by one.
fn play(
    replicas: i32,
    surge: i32,
    unavailable: i32,
    old: Vec<Counts>,
    mut chance: impl FnMut(u32) -> u32,
) -> Result<(), String> {
    let strategy = Strategy::RollingUpdate { max_surge: surge, max_unavailable: unavailable };
    let mut sets: Vec<Counts> = old;
    sets.push(Counts::default());
    let start: i32 = sets.iter().map(|set| set.available).sum();
    let floor = (replicas - unavailable).min(start);
    for _ in 0..2000 {
        let last = sets.len() - 1;
        let (new, rest) = plan(strategy, replicas, sets[last], &sets[..last]);
        sets[last].spec = new;
        for (set, spec) in sets.iter_mut().zip(rest) {
            set.spec = spec;
        }
        let at = usize::try_from(chance(u32::try_from(sets.len()).unwrap())).unwrap();
        let set = &mut sets[at];
        match chance(3) {
            0 if set.present < set.spec => set.present += 1,
            1 if set.present > set.spec => {
                set.present -= 1;
                // The worst case: an available one is deleted although there are others.
                if set.available > 0 && (chance(2) == 0 || set.available > set.present) {
                    set.available -= 1;
                }
                set.available = set.available.min(set.present);
            }
            2 if set.available < set.present.min(set.spec) && at == last => set.available += 1,
            _ => {}
        }
        let total: i32 = sets.iter().map(|set| set.present).sum();
        let available: i32 = sets.iter().map(|set| set.available).sum();
        if total > replicas + surge {
            return Err(format!("{total} Machines, at most {} allowed: {sets:?}", replicas + surge));
        }
        if available < floor {
            return Err(format!("{available} available, at least {floor} needed: {sets:?}"));
        }
        let done = Counts { spec: replicas, present: replicas, available: replicas };
        if sets[last] == done && sets[..last].iter().all(|set| set.present == 0) {
            return Ok(());
        }
    }
    Err(format!("does not end: {sets:?}"))
}

fn full(count: i32) -> Counts {
    Counts { spec: count, present: count, available: count }
}

proptest! {
    #[test]
    fn capi_check_11_a_rollout_keeps_its_limits_and_ends(
        replicas in 1..6_i32, surge in 0..3_i32, unavailable in 0..3_i32, seed in any::<u64>(),
    ) {
        prop_assume!(surge + unavailable > 0);
        let mut state = seed | 1;
        let chance = |below: u32| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            u32::try_from((state >> 33) % u64::from(below)).unwrap()
        };
        let result = play(replicas, surge, unavailable.min(replicas), vec![full(replicas)], chance);
        prop_assert!(result.is_ok(), "{result:?}");
    }
}

#[test]
fn capi_check_11_three_replicas_surge_one_goes_step_by_step() {
    let strategy = Strategy::RollingUpdate { max_surge: 1, max_unavailable: 0 };
    let none = Counts::default();
    let starting = Counts { spec: 1, present: 1, available: 0 };
    let leaving = Counts { spec: 2, present: 3, available: 3 };
    for (new, old, expected) in [
        (none, full(3), (1, 3)),
        (starting, full(3), (1, 3)),
        (full(1), full(3), (1, 2)),
        (full(1), leaving, (1, 2)),
        (full(1), full(2), (2, 2)),
        (full(3), full(1), (3, 0)),
    ] {
        let (a, b) = plan(strategy, 3, new, &[old]);
        assert_eq!((a, b[0]), expected, "new {new:?}, old {old:?}");
    }
}

#[test]
fn a_stuck_rollout_removes_one_unavailable_machine() {
    let strategy = Strategy::RollingUpdate { max_surge: 1, max_unavailable: 0 };
    let broken = Counts { spec: 3, present: 3, available: 2 };
    let (new, old) = plan(strategy, 3, full(1), &[broken]);
    assert_eq!((new, old[0]), (1, 2));
}

#[test]
fn capi_check_12_limits_that_round_to_zero_allow_one() {
    let percent = |surge: &str, unavailable: &str| {
        scope(
            json!({ "spec": { "rollout": { "strategy": { "type": "RollingUpdate", "rollingUpdate": {
                "maxSurge": surge, "maxUnavailable": unavailable,
            } } } } }),
            vec![],
        )
        .strategy()
    };
    assert_eq!(percent("0%", "10%"), Strategy::RollingUpdate { max_surge: 0, max_unavailable: 1 });
    assert_eq!(percent("10%", "34%"), Strategy::RollingUpdate { max_surge: 1, max_unavailable: 1 });
    let defaults = scope(json!({}), vec![]).strategy();
    assert_eq!(defaults, Strategy::RollingUpdate { max_surge: 1, max_unavailable: 0 });
    assert_eq!(crate::machineset::decide::scaled(&IntOrString::String("50%".into()), 3, true), 2);
}

#[test]
fn capi_check_13_rollout_after_creates_one_new_set_once() {
    let after = json!({ "spec": { "rollout": { "after": at(50).to_string() } } });
    let before = owned("md-1", 1, (3, 3, 3), json!({}));
    let early = run(&scope(after.clone(), vec![before.clone()]), 40);
    assert!(plans(&early).iter().all(|plan| !plan.create));
    assert_eq!(early.next.unwrap().as_secs(), 10, "repeats at that time");
    let due = run(&scope(after.clone(), vec![before.clone()]), 60);
    assert_eq!(plans(&due).iter().filter(|plan| plan.create).count(), 1);
    let made =
        owned("md-abcde", 2, (0, 0, 0), json!({ "metadata": { "creationTimestamp": at(60).to_string() } }));
    let again = run(&scope(after, vec![before, made]), 70);
    assert!(plans(&again).iter().all(|plan| !plan.create), "not repeated after a restart");
}

#[test]
fn capi_check_14_on_delete_replaces_machines_that_a_user_deletes() {
    let on_delete = json!({ "spec": { "rollout": { "strategy": { "type": "OnDelete" } } } });
    let old = |counts| owned("md-1", 1, counts, old_infra("infra-0"));
    let new = |counts| owned("md-2", 2, counts, json!({}));
    let numbers = |old_counts, new_counts| {
        let decision = run(&scope(on_delete.clone(), vec![old(old_counts), new(new_counts)]), 1);
        let plans = plans(&decision);
        assert!(plans[0].disable_create && !plans[1].disable_create);
        (plans[0].replicas, plans[1].replicas)
    };
    assert_eq!(numbers((3, 3, 3), (0, 0, 0)), (3, 0), "no change without a deletion");
    assert_eq!(numbers((3, 2, 2), (0, 0, 0)), (2, 0), "the old set follows");
    assert_eq!(numbers((2, 2, 2), (0, 0, 0)), (2, 1), "and the new one fills up");
    let smaller = json!({ "spec": { "replicas": 1, "rollout": { "strategy": { "type": "OnDelete" } } } });
    let decision = run(&scope(smaller, vec![old((2, 2, 2)), new((1, 1, 1))]), 1);
    assert_eq!(
        plans(&decision).iter().map(|plan| plan.replicas).collect::<Vec<_>>(),
        [0, 1],
        "old ones are deleted first"
    );
}

#[test]
fn capi_check_15_a_former_template_reuses_its_set_with_a_higher_revision() {
    let first = owned("md-1", 1, (0, 0, 0), json!({}));
    let second = owned("md-2", 2, (3, 3, 3), old_infra("infra-2"));
    let scope = scope(json!({}), vec![first, second]);
    assert_eq!(newest_set(&scope, at(1)).unwrap().name_any(), "md-1");
    let decision = run(&scope, 1);
    let plan = plans(&decision).into_iter().find(|plan| plan.name == "md-1").unwrap().clone();
    assert_eq!((plan.create, plan.revision), (false, 3));
    let desired = machine_set(&scope.deployment, &plan, Some(&scope.sets[0]), 4);
    let annotations = desired.metadata.annotations.unwrap();
    assert_eq!(annotations["machinedeployment.clusters.x-k8s.io/revision-history"], "1");
    assert_eq!(annotations["machinedeployment.clusters.x-k8s.io/revision"], "3");
}

#[test]
fn a_complete_rollout_removes_empty_sets_and_an_incomplete_one_does_not() {
    let empty = owned("md-1", 1, (0, 0, 0), old_infra("infra-0"));
    let done = run(&scope(json!({}), vec![empty.clone(), owned("md-2", 2, (3, 3, 3), json!({}))]), 1);
    assert!(done.actions.iter().any(|a| matches!(a, Action::Delete { name, .. } if name == "md-1")));
    assert_eq!(plans(&done).len(), 1, "a set that is deleted is not written");
    let busy = run(&scope(json!({}), vec![empty, owned("md-2", 2, (3, 3, 2), json!({}))]), 1);
    assert!(!busy.actions.iter().any(|a| matches!(a, Action::Delete { .. })));
}

#[test]
fn a_paused_deployment_scales_but_does_not_roll_out() {
    let held = json!({ "spec": { "paused": true, "replicas": 5 } });
    let decision = run(&scope(held, vec![owned("md-1", 1, (3, 3, 3), old_infra("infra-0"))]), 1);
    let [plan] = plans(&decision)[..] else { panic!("{decision:?}") };
    assert_eq!((plan.create, plan.replicas), (false, 5));
    assert_eq!(proportional(4, 0, &[full(2), full(0)]), [4, 0]);
    assert_eq!(proportional(5, 1, &[full(10), full(1)]).iter().sum::<i32>(), 6);
}

#[test]
fn capi_check_25_a_paused_deployment_does_nothing() {
    let mut paused = scope(json!({}), vec![]);
    paused.cluster = Some(cluster(json!({ "spec": { "paused": true } })));
    let decision = run(&paused, 1);
    assert_eq!((decision.paused, decision.actions.len()), (true, 0));
    assert!(is_true(&status(&paused, &decision, None, at(1)).conditions, types::PAUSED));
}

#[test]
fn a_deleted_deployment_deletes_its_sets_and_then_its_finalizer() {
    let deleted = json!({ "metadata": { "deletionTimestamp": at(0).to_string() } });
    let decision = run(&scope(deleted.clone(), vec![owned("md-1", 1, (3, 3, 3), json!({}))]), 1);
    assert_eq!(decision.actions, [Action::Delete { name: "md-1".into(), uid: Some("uid-md-1".into()) }]);
    assert_eq!(run(&scope(deleted, vec![]), 1).actions, [Action::RemoveFinalizer]);
}

#[test]
fn conversion_data_and_kubectl_annotations_are_not_copied_to_sets() {
    let noted = deployment(json!({ "metadata": { "annotations": {
        "cluster.x-k8s.io/conversion-data": "x", "kubectl.kubernetes.io/last-applied-configuration": "y", "mine": "z",
    } } }));
    let plan = SetPlan { name: "md-1".into(), create: true, replicas: 0, revision: 1, disable_create: false };
    let annotations = machine_set(&noted, &plan, None, 4).metadata.annotations.unwrap();
    let foreign: Vec<&String> =
        annotations.keys().filter(|key| !key.starts_with("machinedeployment.clusters")).collect();
    assert_eq!(foreign, ["mine"]);
}

#[test]
fn a_deployment_gives_events_for_new_sets_scaling_and_failures() {
    let notes = |scope: &Scope| -> Vec<String> {
        let decision = run(scope, 1);
        let done = decision.actions.iter().filter_map(|action| events::done(scope, action));
        done.chain(events::events(&decision))
            .map(|note| format!("{}: {}", note.reason, note.message))
            .collect()
    };
    assert_eq!(
        notes(&scope(json!({}), vec![])),
        ["SuccessfulCreate: Created MachineSet md-abcde as revision 1"]
    );
    let scaled = |from| notes(&scope(json!({}), vec![owned("one", 1, (from, from, from), json!({}))]));
    assert_eq!(scaled(0), ["SuccessfulScale: Scaled up MachineSet one: 0 -> 3"]);
    assert_eq!(scaled(4), ["SuccessfulScale: Scaled down MachineSet one: 4 -> 3"]);
    assert_eq!(scaled(3), Vec::<String>::new(), "no events in steady state");
    let sets = vec![owned("old", 1, (0, 0, 0), old_infra("infra-0")), owned("new", 2, (3, 3, 3), json!({}))];
    assert_eq!(notes(&scope(json!({}), sets)), ["SuccessfulDelete: Deleted MachineSet \"old\""]);
    let mut stuck = scope(json!({}), vec![]);
    stuck.infra_template = not_found("LocalMachineTemplate");
    let given = notes(&stuck);
    assert!(given[0].starts_with("FailedCreate: ") && given[0].contains("infra-1"), "{given:?}");
}

#[test]
fn capi_check_34_without_a_webhook_invalid_input_stops_the_controller_and_is_reported() {
    let bad = json!({ "spec": { "template": { "metadata": { "labels": { "pool": "others" } } } } });
    let scope = scope(bad, vec![]);
    let decision = run(&scope, 1);
    assert!(plans(&decision).is_empty(), "{:?}", decision.actions);
    assert!(
        decision
            .blocked
            .as_ref()
            .is_some_and(|why| why.to_string().contains("spec.template.metadata.labels")),
        "{:?}",
        decision.blocked
    );
}
