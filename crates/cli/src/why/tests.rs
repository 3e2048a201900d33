//! Tables from a snapshot of objects to the chain.

use drover_api::capi::v1beta2::{Cluster as CapiCluster, Machine, MachineDeployment, MachineSet};
use drover_api::provisioning::v1::Cluster;
use drover_api::rke::v1::RKEControlPlane;
use drover_api::wait::{Wait, WaitObject};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::walk::{Report, explain};
use super::{Kind, Target, missing, show};
use crate::family::{Family, Item, Key, Warning};

pub(super) const SINCE: &str = "2026-01-01T00:00:00Z";

pub(super) fn item(key: Key, mut object: Value) -> Item {
    object["metadata"]["name"] = json!(key.name);
    object["metadata"]["namespace"] = json!("default");
    Item { key, object: serde_json::from_value(object).unwrap() }
}

pub(super) fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": SINCE})
}

pub(super) fn with_conditions(conditions: &[Value]) -> Value {
    json!({"status": {"conditions": conditions}})
}

pub(super) fn merged(mut a: Value, b: Value) -> Value {
    json_patch_merge(&mut a, &b);
    a
}

fn json_patch_merge(a: &mut Value, b: &Value) {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            for (key, value) in b {
                json_patch_merge(a.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (a, b) => *a = b.clone(),
    }
}

/// A cluster without any wait: one pool with one machine.
pub(super) fn healthy() -> Family {
    let machine = json!({
        "metadata": {"labels": {
            "cluster.x-k8s.io/deployment-name": "demo-w", "cluster.x-k8s.io/set-name": "demo-w-1",
        }},
        "spec": {
            "clusterName": "demo",
            "infrastructureRef": {"apiGroup": "rke-machine.cattle.io", "kind": "LocalMachine", "name": "m"},
            "bootstrap": {"configRef": {"apiGroup": "rke.cattle.io", "kind": "RKEBootstrap", "name": "m"}},
        },
        "status": {"conditions": [
            condition("InfrastructureReady", "True", "Ready", ""),
            condition("BootstrapConfigReady", "True", "Ready", ""),
            condition("Reconciled", "True", "Reconciled", ""),
            condition("NodeHealthy", "True", "NodeHealthy", ""),
            condition("Deleting", "False", "NotDeleting", ""),
        ]},
    });
    let capi = json!({"spec": {
        "controlPlaneRef": {"apiGroup": "rke.cattle.io", "kind": "RKEControlPlane", "name": "demo"},
        "infrastructureRef": {"apiGroup": "rke.cattle.io", "kind": "RKECluster", "name": "demo"},
    }});
    let set = json!({"metadata": {"labels": {"cluster.x-k8s.io/deployment-name": "demo-w"}}});
    let ready = || with_conditions(&[condition("Ready", "True", "", "")]);
    let items = vec![
        item(Key::of::<Cluster>("demo"), ready()),
        item(Key::of::<CapiCluster>("demo"), capi),
        item(Key::of::<RKEControlPlane>("demo"), ready()),
        item(Key::of::<MachineDeployment>("demo-w"), json!({})),
        item(Key::of::<MachineSet>("demo-w-1"), set),
        item(Key::of::<Machine>("m"), machine),
        item(Key::new("rke.cattle.io", "RKECluster", "demo"), ready()),
        item(Key::new("rke.cattle.io", "RKEBootstrap", "m"), json!({})),
        item(
            Key::new("rke-machine.cattle.io", "LocalMachine", "m"),
            merged(ready(), json!({"status": {"jobName": "j"}})),
        ),
        item(Key::of::<Job>("j"), with_conditions(&[condition("Complete", "True", "", "")])),
    ];
    Family { items, ..Family::default() }
}

/// The healthy cluster with some objects changed.
pub(super) fn with(changes: Vec<(Key, Value)>) -> Family {
    let mut family = healthy();
    for (key, change) in changes {
        match family.items.iter_mut().find(|item| item.key == key) {
            Some(item) => {
                let old = serde_json::to_value(&item.object).unwrap();
                item.object = serde_json::from_value(merged(old, change)).unwrap();
            }
            None => family.items.push(item(key, change)),
        }
    }
    family
}

pub(super) fn why(family: &Family, key: &Key) -> Report {
    explain(family, family.get(key).unwrap())
}

pub(super) fn path(report: &Report) -> Vec<String> {
    report.chain.iter().map(|step| format!("{} {}", step.object.kind, step.object.name)).collect()
}

pub(super) fn cluster() -> Key {
    Key::of::<Cluster>("demo")
}

pub(super) fn infra() -> Key {
    Key::new("rke-machine.cattle.io", "LocalMachine", "m")
}

fn waiting(type_: &str, status: &str, message: &str) -> Value {
    with_conditions(&[condition(type_, status, "Waiting", message)])
}

#[test]
fn a_healthy_object_waits_for_nothing() {
    let family = healthy();
    for item in &family.items {
        let report = explain(&family, item);
        assert!(!report.waiting && report.chain.is_empty() && report.also.is_empty(), "{report:?}");
    }
    let text = show::text(&why(&family, &cluster()), SINCE.parse().unwrap());
    assert_eq!(text, "Cluster default/demo is not waiting for anything.\n");
}

#[test]
fn a_failed_job_is_the_cause_for_all_objects_above_it() {
    let failed = |message: &str| with_conditions(&[condition("Ready", "False", "Error", message)]);
    let family = with(vec![
        (cluster(), waiting("Ready", "Unknown", "waiting for viable init node")),
        (Key::of::<RKEControlPlane>("demo"), waiting("Ready", "Unknown", "waiting for viable init node")),
        (
            Key::of::<Machine>("m"),
            with_conditions(&[condition("InfrastructureReady", "False", "Error", "failed creating server")]),
        ),
        (infra(), failed("failed creating server")),
        (
            Key::of::<Job>("j"),
            with_conditions(&[condition(
                "Failed",
                "True",
                "BackoffLimitExceeded",
                "image x: not found\nsecond",
            )]),
        ),
    ]);
    let report = why(&family, &cluster());
    let expected = ["Cluster demo", "RKEControlPlane demo", "Machine m", "LocalMachine m", "Job j"];
    assert_eq!(path(&report), expected);
    let cause = report.chain.last().unwrap();
    assert!(cause.failed && cause.wait.remedy.is_some());
    let now = "2026-01-01T00:05:00Z".parse().unwrap();
    assert_eq!(
        show::text(&report, now),
        "\
Cluster default/demo: waiting for viable init node (5m)
└─ RKEControlPlane default/demo: waiting for viable init node (5m)
   └─ Machine default/m: failed creating server (5m)
      └─ LocalMachine default/m: failed creating server (5m)
         └─ Job default/j: image x: not found … (5m)

Cause:      Job default/j
Message:    image x: not found
            second
Expected:   the Job's program succeeds
Observed:   it failed, attempts: 0
Since:      2026-01-01T00:00:00Z (5m ago)
What to do: correct what the message describes; a new Job is created automatically
"
    );
    for (key, length) in
        [(Key::of::<Machine>("m"), 3), (Key::of::<MachineDeployment>("demo-w"), 3), (Key::of::<Job>("j"), 1)]
    {
        assert_eq!(why(&family, &key).chain.len(), length, "{key:?}");
    }
}

#[test]
fn an_existing_node_explains_its_machine() {
    let machine = Key::of::<Machine>("m");
    let cause = |reason: &str| {
        let conditions = [
            condition("NodeHealthy", "Unknown", reason, "the node"),
            condition("Reconciled", "Unknown", "Waiting", "the plan"),
        ];
        let report = why(&with(vec![(machine.clone(), with_conditions(&conditions))]), &machine);
        report.chain.last().unwrap().wait.clone()
    };
    let stopped = cause("NodeHealthyUnknown");
    assert_eq!(stopped.message, "the node");
    assert!(stopped.remedy.unwrap().ends_with("start a stopped local machine with `drover machine start m`"));
    assert_eq!(cause("NodeDoesNotExist").message, "the plan");
}

#[test]
fn typed_waits_lead_to_the_object_that_they_name() {
    let wait = |reason: &'static str, kind: &str, name: &str| {
        let wait = Wait::new(reason, WaitObject::new(kind, "default", name), format!("waiting for {name}"));
        json!(wait.expected("e").observed("o").remedy("r"))
    };
    let family = with(vec![
        (cluster(), json!({"status": {"waits": [wait("ControlPlane", "RKEControlPlane", "demo")]}})),
        (
            Key::of::<RKEControlPlane>("demo"),
            json!({"status": {"waits": [wait("Plan", "Machine", "m"), wait("Other", "Machine", "n")]}}),
        ),
        (Key::of::<Machine>("m"), waiting("Reconciled", "Unknown", "waiting for probes: kubelet")),
    ]);
    let report = why(&family, &cluster());
    assert_eq!(path(&report), ["Cluster demo", "RKEControlPlane demo", "Machine m"]);
    assert_eq!(report.chain[1].wait.remedy.as_deref(), Some("r"));
    assert_eq!(report.also.len(), 1, "{:?}", report.also);
    let text = show::text(&report, SINCE.parse().unwrap());
    assert!(text.ends_with("Also waiting:\n  RKEControlPlane default/demo: waiting for n\n"), "{text}");
    // If the object cannot be read, the chain ends with its name.
    let family = with(vec![(infra(), json!({"status": {"waits": [wait("Namesake", "Secret", "s")]}}))]);
    let text = show::text(&why(&family, &infra()), SINCE.parse().unwrap());
    assert!(text.contains("Waits for:  Secret default/s\n"), "{text}");
}

/// Every condition by which an object can wait: `why` shows its message and what would end it.
#[test]
fn every_condition_is_explained() {
    let (machine, capi) = (Key::of::<Machine>("m"), Key::of::<CapiCluster>("demo"));
    let (pool, set) = (Key::of::<MachineDeployment>("demo-w"), Key::of::<MachineSet>("demo-w-1"));
    let plane = Key::of::<RKEControlPlane>("demo");
    let table: &[(&Key, &[&str])] = &[
        (&cluster(), &["RKECluster", "Ready", "Updated"]),
        (&plane, &["Ready"]),
        (&infra(), &["Ready"]),
        (
            &capi,
            &[
                "InfrastructureReady",
                "ControlPlaneInitialized",
                "ControlPlaneAvailable",
                "RemoteConnectionProbe",
                "WorkersAvailable",
            ],
        ),
        (&pool, &["Available"]),
        (&set, &["MachinesReady"]),
        (
            &machine,
            &[
                "BootstrapConfigReady",
                "InfrastructureReady",
                "PlanSecretReadable",
                "PlanApplied",
                "Reconciled",
                "NodeHealthy",
            ],
        ),
    ];
    let negative: &[(&Key, &[&str])] = &[
        (&cluster(), &["Stalled"]),
        (&capi, &["Deleting", "Paused"]),
        (&pool, &["Deleting", "Paused", "ScalingUp", "ScalingDown", "RollingOut"]),
        (&set, &["Deleting", "Paused", "ScalingUp", "ScalingDown"]),
        (&machine, &["Deleting", "Paused"]),
    ];
    for (bad, (key, types)) in [("False", table), ("True", negative)]
        .into_iter()
        .flat_map(|(bad, table)| table.iter().map(move |row| (bad, row)))
    {
        for type_ in *types {
            let message = format!("this is why {type_}");
            let family =
                with(vec![((*key).clone(), with_conditions(&[condition(type_, bad, "Because", &message)]))]);
            let report = why(&family, key);
            let cause = report.chain.last().unwrap_or_else(|| panic!("{key:?} {type_}"));
            assert_eq!(
                (cause.wait.message.as_str(), cause.wait.reason.as_str()),
                (message.as_str(), "Because")
            );
            assert!(!cause.wait.expected.is_empty() && !cause.wait.observed.is_empty(), "{cause:?}");
            assert!(report.waiting && cause.wait.since.is_some());
            // The cluster is explained by any of its objects.
            assert!(why(&family, &cluster()).waiting, "{key:?} {type_}");
        }
    }
}

#[test]
fn the_state_of_a_job_and_its_attempts_is_explained() {
    let explained = |job: Value, pods: Vec<Value>| {
        let mut family = Family { items: vec![item(Key::of::<Job>("j"), job)], ..Family::default() };
        family.items.extend(pods.into_iter().enumerate().map(|(n, pod)| {
            let labelled = json!({"metadata": {
                "labels": {"batch.kubernetes.io/job-name": "j"},
                "creationTimestamp": format!("2026-01-01T00:00:0{n}Z"),
            }});
            item(Key::of::<Pod>(&format!("j-{n}")), merged(labelled, pod))
        }));
        why(&family, &Key::of::<Job>("j"))
    };
    let reason =
        |report: &Report| report.chain.last().map(|step| step.wait.reason.clone()).unwrap_or_default();
    let ended = |code: i64| {
        json!({"status": {"containerStatuses": [
            {"state": {"terminated": {"exitCode": code, "message": "no such image", "finishedAt": SINCE}}},
        ]}})
    };
    let running = json!({"status": {"active": 1, "startTime": SINCE}});
    assert_eq!(reason(&explained(json!({}), vec![])), "JobNotStarted");
    assert_eq!(reason(&explained(running.clone(), vec![])), "JobRunning");
    assert_eq!(reason(&explained(running.clone(), vec![ended(0), ended(1)])), "AttemptFailed");
    let repeated = explained(running.clone(), vec![ended(1), json!({})]);
    assert_eq!(
        reason(&repeated),
        "AttemptFailed",
        "the last failure is the cause while the next attempt runs"
    );
    assert_eq!(reason(&explained(running, vec![ended(1), ended(0)])), "JobRunning");
    let queued = with_conditions(&[condition("Queued", "True", "TooManyJobs", "")]);
    assert_eq!(reason(&explained(queued, vec![])), "TooManyJobs");
    let failed = with_conditions(&[condition(
        "Failed",
        "True",
        "DeadlineExceeded",
        "Job was active longer than specified deadline",
    )]);
    assert_eq!(reason(&explained(failed, vec![ended(1)])), "DeadlineExceeded");
    assert!(
        !explained(
            with_conditions(&[condition("Complete", "True", "CompletionsReached", "")]),
            vec![ended(1)]
        )
        .waiting
    );
}

#[test]
fn a_deletion_without_a_condition_names_the_finalizers() {
    let deleted = json!({"metadata": {"deletionTimestamp": SINCE, "finalizers": ["a.io/x", "b.io/y"]}});
    let deleting = with_conditions(&[condition(
        "Deleting",
        "True",
        "WaitingForInfrastructureDeletion",
        "waiting for the infra machine to be deleted",
    )]);
    let family = with(vec![(infra(), deleted), (Key::of::<Machine>("m"), deleting)]);
    let report = why(&family, &Key::of::<Machine>("m"));
    assert_eq!(path(&report), ["Machine m", "LocalMachine m"]);
    assert_eq!(report.chain[1].wait.message, "waiting for finalizers: a.io/x, b.io/y");
}

#[test]
fn a_cycle_of_waits_ends_the_walk() {
    let wait =
        |kind: &str, name: &str| json!(Wait::new("W", WaitObject::new(kind, "default", name), "waiting"));
    let family = with(vec![
        (infra(), json!({"status": {"waits": [wait("Machine", "m")]}})),
        (
            Key::of::<Machine>("m"),
            with_conditions(&[condition("InfrastructureReady", "False", "NotReady", "x")]),
        ),
    ]);
    assert_eq!(path(&why(&family, &infra())), ["LocalMachine m", "Machine m"]);
}

#[test]
fn targets_are_parsed_with_or_without_a_kind() {
    let parsed = |text: &str| Target::parse(text).map(|target| (target.kind, target.name));
    assert_eq!(parsed("demo"), Ok((Kind::Cluster, "demo".into())));
    assert_eq!(parsed("pool/demo-w"), Ok((Kind::Pool, "demo-w".into())));
    assert_eq!(parsed("MachineDeployment/x"), Ok((Kind::Pool, "x".into())));
    assert_eq!(parsed("rkecontrolplane/x"), Ok((Kind::ControlPlane, "x".into())));
    assert_eq!(parsed("job/x"), Ok((Kind::Job, "x".into())));
    assert!(parsed("secret/x").unwrap_err().contains("KIND is one of cluster"));
    assert!(parsed("machine/").is_err() && parsed("machine/a/b").is_err());
}

#[test]
fn an_unknown_name_is_answered_with_similar_names() {
    let known = ["demo", "production"].map(String::from);
    let error = |name: &str, known: &[String]| missing("cluster", name, "default", known);
    assert_eq!(error("dmeo", &known), "cluster dmeo was not found in namespace default: did you mean demo?");
    assert!(error("prod", &known).ends_with("did you mean production?"));
    assert!(error("xyz", &known).ends_with("the existing ones are demo, production"));
    assert!(error("xyz", &[]).ends_with("set another one with --namespace"));
}

/// A machine of the pool was created in place of one whose server could not be created.
fn replaced(at: &str) -> Family {
    let running = json!({"status": {"active": 1, "startTime": SINCE, "conditions": null}});
    let mut family = with(vec![
        (
            Key::of::<Machine>("m"),
            with_conditions(&[condition("InfrastructureReady", "False", "NotReady", "x")]),
        ),
        (infra(), waiting("Ready", "False", "creating server")),
        (Key::of::<Job>("j"), running),
    ]);
    let message = "failed creating server [default/demo-w-1-abcde]: no such image".to_owned();
    family.warnings.push(Warning {
        key: Key::new("rke-machine.cattle.io", "LocalMachine", "demo-w-1-abcde"),
        object: WaitObject::new("LocalMachine", "default", "demo-w-1-abcde"),
        reason: "CreateError".into(),
        message,
        at: at.parse().ok(),
    });
    family
}

#[test]
fn the_failure_of_a_replaced_machine_is_the_cause() {
    let family = replaced(SINCE);
    for key in [cluster(), Key::of::<MachineDeployment>("demo-w"), Key::of::<Machine>("m")] {
        let report = why(&family, &key);
        let cause = report.chain.last().unwrap();
        assert!(cause.failed && cause.wait.message.ends_with("no such image"), "{report:?}");
        assert_eq!(report.chain[report.chain.len() - 2].object.kind, "Job");
        assert_eq!(cause.object.name, "demo-w-1-abcde");
    }
}

#[test]
fn a_failure_is_not_the_cause_after_a_server_was_created_or_for_another_set() {
    let kind_of_cause = |family: &Family| why(family, &cluster()).chain.pop().unwrap().object.kind;
    assert_eq!(kind_of_cause(&replaced(SINCE)), "LocalMachine");
    let mut created = replaced("2025-12-31T23:00:00Z");
    let sibling = json!({
        "metadata": {"labels": {"cluster.x-k8s.io/set-name": "demo-w-1"}},
        "status": {"conditions": [condition("InfrastructureReady", "True", "Ready", "")]},
    });
    created.items.push(item(Key::of::<Machine>("n"), sibling));
    assert_eq!(kind_of_cause(&created), "Job");
    let mut other = replaced(SINCE);
    other.warnings[0].object.name = "demo-w-2-abcde".into();
    assert_eq!(kind_of_cause(&other), "Job");
    let mut existing = replaced(SINCE);
    existing.items.push(item(existing.warnings[0].key.clone(), json!({})));
    assert_eq!(kind_of_cause(&existing), "Job", "the object explains itself");
}
