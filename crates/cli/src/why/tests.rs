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
use crate::family::{Family, Item, Key};

const SINCE: &str = "2026-01-01T00:00:00Z";

fn item(key: Key, mut object: Value) -> Item {
    object["metadata"]["name"] = json!(key.name);
    object["metadata"]["namespace"] = json!("default");
    Item { key, object: serde_json::from_value(object).unwrap() }
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": SINCE})
}

fn said(conditions: &[Value]) -> Value {
    json!({"status": {"conditions": conditions}})
}

fn merged(mut a: Value, b: Value) -> Value {
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

/// A cluster in which everything is as it should be: one pool, one machine.
fn healthy() -> Family {
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
    let ready = || said(&[condition("Ready", "True", "", "")]);
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
        item(Key::of::<Job>("j"), said(&[condition("Complete", "True", "", "")])),
    ];
    Family { items }
}

/// The healthy cluster with some objects changed.
fn with(changes: Vec<(Key, Value)>) -> Family {
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

fn why(family: &Family, key: &Key) -> Report {
    explain(family, family.get(key).unwrap())
}

fn path(report: &Report) -> Vec<String> {
    report.chain.iter().map(|step| format!("{} {}", step.object.kind, step.object.name)).collect()
}

fn cluster() -> Key {
    Key::of::<Cluster>("demo")
}

fn infra() -> Key {
    Key::new("rke-machine.cattle.io", "LocalMachine", "m")
}

fn waiting(type_: &str, status: &str, message: &str) -> Value {
    said(&[condition(type_, status, "Waiting", message)])
}

#[test]
fn what_is_as_it_should_be_waits_for_nothing() {
    let family = healthy();
    for item in &family.items {
        let report = explain(&family, item);
        assert!(!report.waiting && report.chain.is_empty() && report.also.is_empty(), "{report:?}");
    }
    let text = show::text(&why(&family, &cluster()), SINCE.parse().unwrap());
    assert_eq!(text, "Cluster default/demo is not waiting for anything.\n");
}

#[test]
fn a_failed_job_is_the_cause_of_everything_above_it() {
    let failed = |message: &str| said(&[condition("Ready", "False", "Error", message)]);
    let family = with(vec![
        (cluster(), waiting("Ready", "Unknown", "waiting for viable init node")),
        (Key::of::<RKEControlPlane>("demo"), waiting("Ready", "Unknown", "waiting for viable init node")),
        (
            Key::of::<Machine>("m"),
            said(&[condition("InfrastructureReady", "False", "Error", "failed creating server")]),
        ),
        (infra(), failed("failed creating server")),
        (
            Key::of::<Job>("j"),
            said(&[condition("Failed", "True", "BackoffLimitExceeded", "image x: not found\nsecond")]),
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
What to do: correct what the message says; the Job is then tried again
"
    );
    for (key, length) in
        [(Key::of::<Machine>("m"), 3), (Key::of::<MachineDeployment>("demo-w"), 3), (Key::of::<Job>("j"), 1)]
    {
        assert_eq!(why(&family, &key).chain.len(), length, "{key:?}");
    }
}

#[test]
fn a_node_explains_its_machine_once_it_exists() {
    let machine = Key::of::<Machine>("m");
    let cause = |reason: &str| {
        let conditions = [
            condition("NodeHealthy", "Unknown", reason, "the node"),
            condition("Reconciled", "Unknown", "Waiting", "the plan"),
        ];
        let report = why(&with(vec![(machine.clone(), said(&conditions))]), &machine);
        report.chain.last().unwrap().wait.clone()
    };
    let stopped = cause("NodeHealthyUnknown");
    assert_eq!(stopped.message, "the node");
    assert!(stopped.remedy.unwrap().ends_with("started with `drover machine start m`"));
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
fn every_condition_that_something_waits_by_is_explained() {
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
            let family = with(vec![((*key).clone(), said(&[condition(type_, bad, "Because", &message)]))]);
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
fn jobs_and_their_attempts_say_how_they_stand() {
    let alone = |job: Value, pods: Vec<Value>| {
        let mut family = Family { items: vec![item(Key::of::<Job>("j"), job)] };
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
    assert_eq!(reason(&alone(json!({}), vec![])), "JobNotStarted");
    assert_eq!(reason(&alone(running.clone(), vec![])), "JobRunning");
    assert_eq!(reason(&alone(running.clone(), vec![ended(0), ended(1)])), "AttemptFailed");
    assert_eq!(reason(&alone(running, vec![ended(1), json!({})])), "JobRunning", "the last attempt counts");
    let queued = said(&[condition("Queued", "True", "TooManyJobs", "")]);
    assert_eq!(reason(&alone(queued, vec![])), "TooManyJobs");
    let failed = said(&[condition(
        "Failed",
        "True",
        "DeadlineExceeded",
        "Job was active longer than specified deadline",
    )]);
    assert_eq!(reason(&alone(failed, vec![ended(1)])), "DeadlineExceeded");
    assert!(!alone(said(&[condition("Complete", "True", "CompletionsReached", "")]), vec![ended(1)]).waiting);
}

#[test]
fn a_deletion_without_a_condition_names_the_finalizers() {
    let going = json!({"metadata": {"deletionTimestamp": SINCE, "finalizers": ["a.io/x", "b.io/y"]}});
    let deleting = said(&[condition(
        "Deleting",
        "True",
        "WaitingForInfrastructureDeletion",
        "waiting for the infra machine to be deleted",
    )]);
    let family = with(vec![(infra(), going), (Key::of::<Machine>("m"), deleting)]);
    let report = why(&family, &Key::of::<Machine>("m"));
    assert_eq!(path(&report), ["Machine m", "LocalMachine m"]);
    assert_eq!(report.chain[1].wait.message, "waiting for finalizers: a.io/x, b.io/y");
}

#[test]
fn objects_that_wait_for_each_other_end_the_walk() {
    let wait =
        |kind: &str, name: &str| json!(Wait::new("W", WaitObject::new(kind, "default", name), "waiting"));
    let family = with(vec![
        (infra(), json!({"status": {"waits": [wait("Machine", "m")]}})),
        (Key::of::<Machine>("m"), said(&[condition("InfrastructureReady", "False", "NotReady", "x")])),
    ]);
    assert_eq!(path(&why(&family, &infra())), ["LocalMachine m", "Machine m"]);
}

#[test]
fn names_are_read_with_or_without_their_kind() {
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
fn a_name_that_does_not_exist_is_answered_with_near_ones() {
    let known = ["demo", "production"].map(String::from);
    let said = |name: &str, known: &[String]| missing("cluster", name, "default", known);
    assert_eq!(said("dmeo", &known), "cluster dmeo was not found in namespace default: did you mean demo?");
    assert!(said("prod", &known).ends_with("did you mean production?"));
    assert!(said("xyz", &known).ends_with("there are demo, production"));
    assert!(said("xyz", &[]).ends_with("name another with --namespace"));
}
