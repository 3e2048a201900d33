//! What a person reads of a control plane: its events, and what its Machines show.

use drover_api::conditions::types::UP_TO_DATE;
use k8s_openapi::ByteString;

use super::world::World;
use crate::controlplane::decide::End;
use crate::keys::conditions::RECONCILED;
use crate::plansecret::upkeep::gzip;
use base64::prelude::{BASE64_STANDARD, Engine as _};

fn reasons(world: &mut World) -> Vec<String> {
    let told = std::mem::take(&mut world.told);
    let reason = |line: &String| line.split(": ").next().unwrap_or_default().to_owned();
    told.iter().map(reason).filter(|reason| reason != "Waiting").collect()
}

#[test]
fn the_way_to_ready_is_told_and_steady_state_tells_nothing() {
    let mut world = World::new(&[("cp", "ec"), ("w", "w")]);
    assert_eq!(world.settle(), End::Ready);
    let told = world.told.clone();
    let has = |line: &str| assert!(told.iter().any(|t| t == line), "{line}: {told:#?}");
    has("InitNodeElected: Machine cp starts the cluster; the others join it");
    has("PlanWritten: Wrote the plan of Machine cp for v1.34.1+k3s1: initial plan");
    has("PlanWritten: Wrote the plan of Machine w for v1.34.1+k3s1: initial plan");
    assert!(told.iter().any(|t| t.starts_with("Waiting: ")), "{told:#?}");
    let mut order = reasons(&mut world);
    order.dedup();
    assert_eq!(order, ["InitNodeElected", "PlanWritten", "Ready"]);
    for _ in 0..3 {
        world.pass();
    }
    assert_eq!(world.told, Vec::<String>::new(), "steady state");
}

#[test]
fn an_upgrade_and_a_change_have_a_beginning_and_an_end() {
    let mut world = World::new(&[("cp", "ec"), ("w", "w")]);
    assert_eq!(world.settle(), End::Ready);
    world.told.clear();
    world.scope.spec.kubernetes_version = "v1.34.2+k3s1".into();
    assert_eq!(world.settle(), End::Ready);
    assert_eq!(
        world.told[0],
        "UpgradeStarted: Upgrading from v1.34.1+k3s1 to v1.34.2+k3s1, machine by machine"
    );
    assert!(
        world.told.contains(&"UpgradeFinished: Every machine runs v1.34.2+k3s1".to_owned()),
        "{:#?}",
        world.told
    );
    assert_eq!(
        reasons(&mut world),
        ["UpgradeStarted", "PlanWritten", "PlanWritten", "UpgradeFinished", "Ready"]
    );
    let config = serde_json::json!({"kubelet-arg": ["max-pods=42"]});
    world.scope.spec.config.machine_global_config = serde_json::from_value(config).unwrap();
    assert_eq!(world.settle(), End::Ready);
    assert_eq!(
        reasons(&mut world),
        ["UpdateStarted", "PlanWritten", "PlanWritten", "UpdateFinished", "Ready"]
    );
}

#[test]
fn a_lower_version_is_no_upgrade() {
    let mut world = World::new(&[("cp", "ec"), ("w", "w")]);
    world.scope.spec.kubernetes_version = "v1.34.2+k3s1".into();
    assert_eq!(world.settle(), End::Ready);
    world.told.clear();
    world.scope.spec.kubernetes_version = "v1.34.1+k3s1".into();
    world.pass();
    let updating = world.condition("Updating");
    assert_eq!(updating, Some(("True".into(), "Downgrading from v1.34.2+k3s1 to v1.34.1+k3s1".into())));
    assert_eq!(world.settle(), End::Ready);
    assert_eq!(
        world.told[0],
        "DowngradeStarted: Downgrading from v1.34.2+k3s1 to v1.34.1+k3s1, machine by machine"
    );
    assert_eq!(
        reasons(&mut world),
        ["DowngradeStarted", "PlanWritten", "PlanWritten", "DowngradeFinished", "Ready"]
    );
    assert_eq!(world.condition("Updating"), None, "only while it is under way");
    assert!(!world.log.iter().any(|line| line.to_lowercase().contains("upgrad")), "{:#?}", world.log);
}

#[test]
fn a_change_that_is_overtaken_by_another_has_an_end_too() {
    let mut world = World::new(&[("cp", "ec"), ("w", "w")]);
    assert_eq!(world.settle(), End::Ready);
    let begin = |world: &mut World, version: &str| {
        world.told.clear();
        world.scope.spec.kubernetes_version = version.into();
        world.pass();
        let told = reasons(world);
        told.into_iter().filter(|reason| reason != "PlanWritten").collect::<Vec<_>>()
    };
    assert_eq!(begin(&mut world, "v1.34.2+k3s1"), ["UpgradeStarted"]);
    assert_eq!(begin(&mut world, "v1.34.2+k3s1"), Vec::<String>::new(), "told once");
    world.told.clear();
    world.scope.spec.kubernetes_version = "v1.35.0+k3s1".into();
    world.pass();
    assert_eq!(
        world.told[..2],
        [
            "UpgradeSuperseded: Not finished, because the specification changed again before: \
             Upgrading from v1.34.1+k3s1 to v1.34.2+k3s1",
            "UpgradeStarted: Upgrading from v1.34.1+k3s1 to v1.35.0+k3s1, machine by machine",
        ]
    );
    // Back again, before every machine has been there.
    world.told.clear();
    world.scope.spec.kubernetes_version = "v1.34.1+k3s1".into();
    assert_eq!(world.settle(), End::Ready);
    let told = reasons(&mut world);
    let told: Vec<_> = told.iter().filter(|reason| *reason != "PlanWritten").collect();
    assert_eq!(told, ["UpgradeSuperseded", "UpdateStarted", "UpdateFinished", "Ready"]);
    for _ in 0..3 {
        world.pass();
    }
    assert_eq!(world.told, Vec::<String>::new(), "steady state");
}

#[test]
fn a_label_of_a_pool_configures_no_machine() {
    let mut world = World::new(&[("cp", "ec"), ("w", "w")]);
    assert_eq!(world.settle(), End::Ready);
    (world.log, world.told) = (vec![], vec![]);
    // Servers keep a record of the whole specification; the Nodes themselves are labelled through their API.
    world.scope.cluster_spec_annotation = "c2lsdmVy".into();
    assert_eq!(world.settle(), End::Ready);
    assert_eq!(world.log, ["  write cp: minor change", "Ready", "  write cp: plan applied", "Ready"]);
    assert_eq!(world.told, ["PlanWritten: Wrote files of Machine cp that nothing is restarted for"]);
    assert_eq!(world.condition("Ready"), Some(("True".into(), String::new())));
    assert_eq!(world.machine_condition("cp", RECONCILED), Some(("True".into(), String::new())));

    // A machine that cannot write them says so, and a probe that fails is not hidden either.
    world.dead.push("cp".into());
    world.scope.cluster_spec_annotation = "Z29sZA==".into();
    assert_eq!(world.pass(), End::Ready);
    let sum = drover_plan::checksum(&world.entry("cp").node.plan_bytes);
    let failure = [("plan-state", "failed"), ("failed-checksum", &sum), ("failure-count", "1")];
    world.set_data("cp", &failure);
    let said = "configuring bootstrap node(s) cp: failure while applying plan";
    world.pass();
    assert_eq!(world.message(), format!("Unknown {said}"));
    world.edit_secret("cp", |secret| {
        let why = BASE64_STANDARD.encode("cannot write /etc/x: No space left on device");
        let output = gzip(format!(r#"{{"drover-agent/error":"{why}"}}"#).as_bytes());
        secret.data.as_mut().unwrap().insert("failed-output".into(), ByteString(output));
    });
    let told = format!("{said}: cannot write /etc/x: No space left on device");
    world.pass();
    assert_eq!(world.message(), format!("Unknown {told}"));
    let answer = r#"{"kubelet":{"healthy":false,"failureCount":5}}"#;
    world.set_data("cp", &[("probe-statuses", answer)]);
    world.pass();
    assert_eq!(world.message(), format!("Unknown {told}"), "what fails first, not what fails because of it");
    world.set_data("cp", &[("plan-state", "succeeded"), ("failure-count", "0"), ("probe-statuses", answer)]);
    let said = "configuring bootstrap node(s) cp: waiting for probes: kubelet";
    world.pass();
    assert_eq!(world.message(), format!("Unknown {said}"));
}

#[test]
fn a_machine_shows_the_version_it_was_brought_to() {
    let mut world = World::new(&[("cp", "ec"), ("w", "w")]);
    assert_eq!(world.settle(), End::Ready);
    let version = |world: &World, name: &str| world.entry(name).machine.version.clone().unwrap_or_default();
    assert_eq!((version(&world, "cp"), version(&world, "w")), ("v1.34.1+k3s1".into(), "v1.34.1+k3s1".into()));
    world.dead.push("w".into());
    world.scope.spec.kubernetes_version = "v1.34.2+k3s1".into();
    world.settle();
    assert_eq!((version(&world, "cp"), version(&world, "w")), ("v1.34.2+k3s1".into(), "v1.34.1+k3s1".into()));
}

fn up_to_date(world: &World, name: &str) -> Option<bool> {
    world.machine_condition(name, UP_TO_DATE).map(|(status, _)| status == "True")
}

#[test]
fn of_a_custom_machine_the_control_plane_says_whether_it_is_up_to_date() {
    let mut world = World::new(&[("cp", "ec"), ("mine", "w")]);
    world.entry_mut("cp").machine.infrastructure_kind = "LocalMachine".into();
    world.entry_mut("mine").machine.infrastructure_kind = "CustomMachine".into();
    assert_eq!(world.settle(), End::Ready);
    assert_eq!(up_to_date(&world, "mine"), Some(true));
    assert_eq!(up_to_date(&world, "cp"), None, "Cluster API's business");
    world.dead.push("mine".into());
    world.scope.spec.kubernetes_version = "v1.34.2+k3s1".into();
    world.settle();
    assert_eq!(up_to_date(&world, "mine"), Some(false));
}

#[test]
fn what_stops_the_control_plane_is_told_once() {
    let mut world = World::new(&[("cp", "ec"), ("w", "w")]);
    world.scope.spec.kubernetes_version = "abc".into();
    for _ in 0..3 {
        world.pass();
    }
    let told = std::mem::take(&mut world.told);
    assert!(told.len() == 1 && told[0].starts_with("Error: kubernetesVersion \"abc\""), "{told:#?}");
}
