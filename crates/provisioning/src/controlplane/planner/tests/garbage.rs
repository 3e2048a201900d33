//! Every key of a plan secret with every kind of garbage: what is read, what is written, and who else notices.

use std::collections::BTreeMap;

use drover_plan::{PlanState, keys};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::super::runtime::Runtime;
use super::world::World;
use crate::controlplane::decide::End;
use crate::keys::{annotations, conditions};
use crate::plansecret::NodeState;
use crate::plansecret::garbage::{Data, UNPACKED_LIMIT, unpack};
use crate::plansecret::upkeep::{gzip, upkeep};

/// Keys whose right value Drover writes at once.
const REPAIRED: [&str; 5] =
    [keys::APPLIED_PLAN, keys::PLAN_STATE, keys::FAILURE_COUNT, keys::MAX_FAILURES, keys::FAILURE_THRESHOLD];

/// Keys that only the agent writes.
const OF_AGENT: [&str; 10] = [
    keys::PROBE_STATUSES,
    keys::APPLIED_CHECKSUM,
    keys::FAILED_CHECKSUM,
    keys::SUCCESS_COUNT,
    keys::PLAN_REVISION,
    keys::PROBE_PERIOD_SECONDS,
    keys::LAST_APPLY_TIME,
    keys::APPLIED_OUTPUT,
    keys::FAILED_OUTPUT,
    keys::APPLIED_PERIODIC_OUTPUT,
];

fn ready(machines: &[(&str, &str)]) -> World {
    let mut world = World::new(machines);
    assert_eq!(world.settle(), End::Ready, "{}", world.log.join("\n"));
    world.log.clear();
    world
}

fn put(world: &mut World, name: &str, key: &str, value: &[u8]) {
    world.edit_secret(name, |secret| {
        secret.data.get_or_insert_default().insert(key.to_owned(), ByteString(value.to_vec()));
    });
}

/// What a machine may write into a key.
fn garbage() -> Vec<(&'static str, Vec<u8>)> {
    let nested = "[".repeat(100_000);
    vec![
        ("text", b"certainly not".to_vec()),
        ("not UTF-8", vec![0xff, 0xfe, 0x00, 0x80]),
        ("a list", b"[1,2]".to_vec()),
        ("a text in JSON", br#""x""#.to_vec()),
        ("an object of another type", br#"{"instructions":"x","kubelet":[]}"#.to_vec()),
        ("deep nesting", nested.clone().into_bytes()),
        ("deep nesting in an object", format!(r#"{{"x":{nested}"#).into_bytes()),
        ("a negative number", b"-7".to_vec()),
        ("a number beyond any type", "9".repeat(400).into_bytes()),
        ("a fraction", b"1.5".to_vec()),
        ("a huge value", vec![b'x'; 900_000]),
        ("a gzip bomb", gzip(&vec![b' '; 8 << 20])),
        ("half a gzip stream", gzip(&[b'y'; 4096])[..20].to_vec()),
    ]
}

#[test]
fn whatever_is_in_a_key_of_drover_s_own_is_repaired_at_once_and_nothing_else_changes() {
    let (values, settled) = (garbage(), ready(&[("cp", "ec"), ("w1", "w"), ("w2", "w")]));
    for key in REPAIRED {
        for (what, value) in &values {
            let mut world = settled.clone();
            let before = world.entry("w1").secret.clone().unwrap();
            let (state, status) = (world.entry("w1").node.clone(), world.scope.status.clone());
            put(&mut world, "w1", key, value);
            let seen = NodeState { garbage: vec![], ..(*world.entry("w1").node).clone() };
            assert_eq!(seen, *state, "{key} with {what}: read as it will be");
            assert_eq!(world.pass(), End::Ready, "{key} with {what}");
            assert_eq!(world.scope.status, status, "{key} with {what}: the cluster does not notice");
            assert_eq!(world.log, ["  write w1: keys repaired", "Ready"], "{key} with {what}");
            let after = world.entry("w1").secret.clone().unwrap();
            let default = [keys::MAX_FAILURES, keys::FAILURE_THRESHOLD].contains(&key);
            let get = |secret: &Secret| secret.data.as_ref().unwrap().get(key).cloned();
            let wanted = if default { None } else { get(&before).or(Some(ByteString(b"0".to_vec()))) };
            assert_eq!(get(&after), wanted, "{key} with {what}");
            let readable = world.machine_condition("w1", conditions::PLAN_SECRET_READABLE).unwrap();
            assert!(readable.0 == "True" && readable.1.starts_with(&format!("repaired: key {key} ")));
            world.log.clear();
            assert_eq!(world.settle(), End::Ready);
            assert_eq!(world.log, ["Ready"], "{key} with {what}: once");
            assert!(world.written().is_empty(), "{key} with {what}: no plan is written: {:?}", world.log);
        }
    }
}

#[test]
fn whatever_is_in_a_key_of_the_agent_is_named_and_the_others_get_their_new_plans() {
    let (values, settled) = (garbage(), ready(&[("cp", "ec"), ("w1", "w"), ("w2", "w")]));
    for key in OF_AGENT {
        for (what, value) in &values {
            let mut world = settled.clone();
            put(&mut world, "w1", key, value);
            let node = &world.entry("w1").node;
            let found = node.garbage_in(key).unwrap_or_else(|| panic!("{key} with {what}"));
            let message = found.message("default/w1-machine-plan");
            assert!(message.starts_with(&format!("key {key} of Secret default/w1-machine-plan holds ")));
            assert!(message.contains("expected") && message.contains("rancher-system-agent"), "{message}");
            assert!(message.len() < 500 && message.lines().count() == 1, "{key} with {what}: {message}");
            let (secret, offer) = (world.entry("w1").secret.as_ref().unwrap(), Default::default());
            let upkeep = upkeep(secret, node, Runtime::K3s, &offer, world.now);
            assert_eq!(upkeep.edit, None, "{key} with {what}: it is not Drover's to write");

            assert_eq!(world.pass(), End::Ready, "{key} with {what}");
            let unknown = key == keys::PROBE_STATUSES;
            let told = world.message();
            assert_eq!(told.contains(&format!("unknown worker machine(s) w1: key {key}")), unknown, "{told}");
            let reconciled = world.machine_condition("w1", conditions::RECONCILED).unwrap();
            assert_eq!(reconciled.0, if unknown { "Unknown" } else { "True" }, "{reconciled:?}");

            if !unknown && *what != "text" {
                continue;
            }
            // A change reaches the others first, and then the machine itself.
            world.dead.push("w1".into());
            world.scope.spec.kubernetes_version = "v1.35.0+k3s1".into();
            world.settle();
            let plans = world.written();
            let turn = |name: &str| plans.iter().position(|line| *line == format!("{name}: plan changed"));
            assert!(turn("cp").is_some() && turn("w1").is_some(), "{key} with {what}: {plans:?}");
            if unknown {
                assert!(turn("w2") < turn("w1") && turn("w2").is_some(), "{what}: {plans:?}");
            }
            world.dead.clear();
            assert_eq!(world.settle(), End::Ready, "{key} with {what}: {}", world.message());
        }
    }
}

#[test]
fn the_state_that_is_repaired_follows_from_what_the_agent_told() {
    let plan = r#"{"instructions":[{"name":"install"}]}"#;
    let sum = drover_plan::checksum(plan.as_bytes());
    let state = |pairs: &[(&str, &str)]| {
        let data: Data = pairs
            .iter()
            .chain(&[("plan-state", "odd"), ("failure-count", "-1")])
            .map(|(k, v)| (k.to_string(), ByteString(v.as_bytes().to_vec())))
            .collect();
        let node = NodeState::from_data(&data);
        (node.state, node.failure_count, node.in_sync)
    };
    assert_eq!(state(&[]), (None, 0, false));
    assert_eq!(state(&[("plan", plan)]), (Some(PlanState::Pending), 0, false));
    let applied = [("plan", plan), ("applied-checksum", &sum)];
    assert_eq!(state(&applied), (Some(PlanState::Succeeded), 0, true));
    let failed = [("plan", plan), ("applied-checksum", &sum), ("failed-checksum", &sum)];
    assert_eq!(state(&failed), (Some(PlanState::Pending), 1, false));
    let other = [("plan", plan), ("applied-checksum", "of another plan")];
    assert_eq!(state(&other), (Some(PlanState::Pending), 0, false));
}

#[test]
fn an_init_node_with_garbage_holds_no_worker_up() {
    for key in REPAIRED.iter().chain(&OF_AGENT) {
        let mut world = ready(&[("cp", "ec"), ("w1", "w"), ("w2", "w")]);
        put(&mut world, "cp", key, b"[garbage");
        world.dead.push("cp".into());
        // A plan that is only for workers.
        world.scope.spec.config.machine_selector_config = serde_json::from_value(serde_json::json!([{
            "machineLabelSelector": {"matchLabels": {crate::keys::labels::WORKER_ROLE: "true"}},
            "config": {"kubelet-arg": ["max-pods=50"]},
        }]))
        .unwrap();
        world.settle();
        let plans = world.written();
        for name in ["w1", "w2"] {
            assert!(plans.contains(&format!("{name}: plan changed")), "{key}: {plans:?}");
        }
        assert!(world.message().starts_with("True"), "{key}: {}", world.message());
    }
}

#[test]
fn an_etcd_machine_that_cannot_be_judged_takes_a_place_and_a_worker_takes_none() {
    let config = |world: &mut World, role: &str| {
        world.scope.spec.config.machine_selector_config = serde_json::from_value(serde_json::json!([{
            "machineLabelSelector": {"matchLabels": {"pool": role}}, "config": {"kubelet-arg": ["v=2"]},
        }]))
        .unwrap();
    };
    let mark = |world: &mut World, name: &str| {
        world.entry_mut(name).machine.labels.insert("pool".into(), "x".into());
    };
    let mut workers = ready(&[("cp", "ec"), ("w1", "w"), ("w2", "w")]);
    put(&mut workers, "w1", keys::PROBE_STATUSES, b"[garbage");
    mark(&mut workers, "w2");
    config(&mut workers, "x");
    workers.settle();
    assert!(workers.written().contains(&"w2: plan changed".to_owned()), "{:?}", workers.log);

    let mut servers = ready(&[("a", "ecw"), ("b", "ecw"), ("c", "ecw")]);
    put(&mut servers, "b", keys::PROBE_STATUSES, b"[garbage");
    mark(&mut servers, "c");
    config(&mut servers, "x");
    servers.settle();
    assert!(servers.written().is_empty(), "two of three would be away: {:?}", servers.log);
    let told = servers.message();
    assert!(told.contains("unknown etcd machine(s) b: key probe-statuses"), "{told}");
}

#[test]
fn a_machine_that_never_was_healthy_and_reports_garbage_is_failing_and_later_tiers_go_on() {
    let mut world = World::new(&[("a", "ec"), ("b", "ec"), ("w", "w")]);
    for _ in 0..60 {
        world.pass();
        world.agents();
        if world.entry("b").has_plan() {
            put(&mut world, "b", keys::PLAN_STATE, b"succeeded");
            put(&mut world, "b", keys::PROBE_STATUSES, b"[garbage");
        }
    }
    assert!(world.entry("w").has_plan(), "{}", world.log.join("\n"));
    let told = world.message();
    assert!(told.starts_with("Unknown failing etcd machine(s) b: key probe-statuses of Secret"), "{told}");
}

#[test]
fn an_etcd_only_init_node_whose_report_is_garbage_is_named_with_the_key() {
    let stalled = |value: &[u8]| {
        let mut world = World::new(&[("e", "e"), ("c", "cw")]);
        for _ in 0..20 {
            world.pass();
            world.agents();
            put(&mut world, "e", keys::APPLIED_PERIODIC_OUTPUT, value);
        }
        assert!(!world.entry("c").has_plan());
        world.message()
    };
    let told = stalled(b"garbage");
    assert!(
        told.contains("join url to be available on bootstrap node: key applied-periodic-output"),
        "{told}"
    );
    let report = |url: &str| {
        use base64::prelude::{BASE64_STANDARD, Engine as _};
        let members = format!(r#"{{"members":[{{"name":"x","clientURLs":["{url}"]}}]}}"#);
        let output = serde_json::json!({
            "capture-address": {"name": "capture-address", "stdout": BASE64_STANDARD.encode(members)},
            "etcd-name": {"name": "etcd-name", "stdout": BASE64_STANDARD.encode("x")},
        });
        gzip(output.to_string().as_bytes())
    };
    for url in ["https://a b:2379", "https://-x:2379", "file:///etc", "https://"] {
        let told = stalled(&report(url));
        assert!(told.contains("key applied-periodic-output of its plan secret tells no address"), "{told}");
    }
}

#[test]
fn unpacked_outputs_are_bounded() {
    let fits = format!(r#"{{"a":"{}"}}"#, "x".repeat(UNPACKED_LIMIT as usize - 8));
    let read: BTreeMap<String, String> = unpack(&gzip(fits.as_bytes())).unwrap();
    assert_eq!(read["a"].len(), UNPACKED_LIMIT as usize - 8);
    let bomb = gzip(format!("{fits} ").as_bytes());
    assert_eq!(unpack::<String>(&bomb).unwrap_err(), "unpacked it has more than 2 MiB");
}

#[test]
fn a_time_in_the_far_future_does_not_keep_a_failed_plan_from_being_tried_again() {
    let mut world = ready(&[("cp", "ec"), ("w", "w")]);
    for time in ["Fri Dec 31 23:59:59 UTC 9999", "9999-12-31T23:59:59Z", "", "yesterday"] {
        world.set_data("w", &[("plan-state", "failed"), ("failure-count", "1"), ("last-apply-time", time)]);
        world.pass();
        assert_eq!(world.entry("w").node.state, Some(PlanState::InProgress), "{time}");
    }
}

#[test]
fn marks_of_a_drain_that_cannot_be_read_are_removed() {
    let mut world = ready(&[("cp", "ec"), ("w1", "w"), ("w2", "w")]);
    world.edit_secret("w1", |secret| {
        let notes = secret.metadata.annotations.get_or_insert_default();
        for key in [annotations::DRAIN_OPTIONS, annotations::UNCORDON, annotations::PRE_DRAIN] {
            notes.insert(key.to_owned(), "{garbage".into());
        }
        notes.insert(annotations::PLAN_REARMED.to_owned(), format!("x {}", "9".repeat(99)));
    });
    assert_eq!(world.settle(), End::Ready, "{}", world.message());
    assert!(!world.entry("w1").in_drain());
}

#[test]
fn a_machine_cannot_fill_a_message_with_names_of_probes() {
    let mut world = ready(&[("cp", "ec"), ("w", "w")]);
    let probes: BTreeMap<String, serde_json::Value> =
        (0..5000).map(|n| (format!("{n:0>100}"), serde_json::json!({"failureCount": 1}))).collect();
    world.set_data("w", &[("probe-statuses", &serde_json::json!(probes).to_string())]);
    world.pass();
    let told = world.message();
    assert!(told.len() < 800 && told.ends_with("and 4992 more"), "{told}");
}
