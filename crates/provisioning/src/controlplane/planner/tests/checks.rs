//! Numbered checks of control-plane.md.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use drover_plan::PlanState;
use serde_json::json;

use super::super::render::instructions::{DRAIN_HASH, RESTART_STAMP};
use super::super::render::selector_files::FileObject;
use super::world::World;
use crate::controlplane::decide::{Action, End};
use crate::controlplane::scope::StateSecret;
use crate::controlplane::status::is_initialized;
use crate::keys::{annotations, labels};

fn ready(machines: &[(&str, &str)]) -> World {
    let mut world = World::new(machines);
    assert_eq!(world.settle(), End::Ready, "{}", world.log.join("\n"));
    world.log.clear();
    world
}

#[test]
fn control_plane_check_1_a_bad_version_is_an_error_that_names_it() {
    let mut world = World::new(&[("cp", "ec"), ("w", "w")]);
    world.scope.spec.kubernetes_version = "abc".into();
    world.settle();
    assert!(world.message().starts_with("False kubernetesVersion \"abc\""), "{}", world.message());
    assert!(world.written().is_empty());
}

#[test]
fn an_unknown_version_is_refused_and_the_known_ones_are_named() {
    let mut world = World::new(&[("cp", "ec"), ("w", "w")]);
    world.scope.spec.kubernetes_version = "v1.99.0+k3s1".into();
    world.settle();
    let message = world.message();
    assert!(message.contains("default/demo: KDM release data is empty for v1.99.0+k3s1"), "{message}");
    assert!(message.contains("v1.34.1+k3s1"), "{message}");
}

#[test]
fn control_plane_check_33_files_that_are_not_authorized_stop_every_plan() {
    let mut world = World::new(&[("cp", "ec"), ("w", "w")]);
    let files = |hash: &str| {
        serde_json::from_value(json!([{
            "machineLabelSelector": {"matchLabels": {labels::WORKER_ROLE: "true"}},
            "fileSources": [{"secret": {"name": "keys", "defaultPermissions": "0640", "items": [
                {"key": "a", "path": "/etc/a", "hash": hash},
            ]}}],
        }]))
        .unwrap()
    };
    let object = |clusters: &[&str]| FileObject {
        authorized_for: clusters.iter().map(|name| name.to_string()).collect(),
        data: [("a".to_owned(), b"content".to_vec())].into(),
    };
    let key = ("Secret", "keys".to_owned());
    let good = "7XACtDnprIRfIjV9giusFERzD722AW0+yUMil7nsn3M=";
    world.scope.spec.config.machine_selector_files = files(good);
    let refused = |world: &mut World, wanted: &str| {
        world.settle();
        let message = world.message();
        assert!(message.contains("Secret default/keys") && message.contains(wanted), "{message}");
        assert!(world.scope.entries.iter().all(|entry| !entry.has_plan()), "a plan was written");
    };
    refused(&mut world, "does not exist");
    world.scope.file_objects.insert(key.clone(), object(&["other"]));
    refused(&mut world, "must name demo");
    world.scope.file_objects.insert(key.clone(), object(&["other", "demo"]));
    world.scope.spec.config.machine_selector_files = files("bm90IHRoaXM=");
    refused(&mut world, "instead of the expected bm90IHRoaXM=");

    world.scope.spec.config.machine_selector_files = files(good);
    assert_eq!(world.settle(), End::Ready, "{}", world.message());
    let file = |world: &World, machine: &str| {
        let plan = world.entry(machine).node.plan.clone().unwrap();
        plan.files.into_iter().find(|file| file.path == "/etc/a").map(|file| (file.content, file.permissions))
    };
    assert_eq!(file(&world, "w"), Some(("Y29udGVudA==".to_owned(), "0640".to_owned())));
    assert_eq!(file(&world, "cp"), None, "the selector is for workers");
}

#[test]
fn control_plane_check_2_no_worker() {
    let mut world = World::new(&[("cp", "ec")]);
    world.settle();
    assert_eq!(
        world.message(),
        "Unknown waiting for at least one control plane, etcd, and worker node to be registered: no machine is worker \
         yet"
    );
    assert!(world.written().is_empty());
}

#[test]
fn control_plane_check_3_others_wait_for_the_init_node() {
    let mut world = World::new(&[("a", "ecw"), ("b", "ecw"), ("c", "ecw")]);
    world.dead = vec!["a".into()];
    world.settle();
    let marked: Vec<&str> =
        world.scope.entries.iter().filter(|e| e.is_init_node()).map(|e| e.name()).collect();
    assert_eq!(marked, ["a"]);
    assert!(world.entry("a").has_plan() && !world.entry("b").has_plan() && !world.entry("c").has_plan());
}

#[test]
fn control_plane_check_3_a_healthy_init_node_without_a_tunnel_is_waited_for() {
    let mut world = World::new(&[("a", "ecw"), ("b", "ecw"), ("c", "ecw")]);
    for round in 0..20 {
        world.pass();
        world.agent("a");
        world.scope.connected = false;
        if round == 10 {
            world.entry_mut("a").machine.kubelet_version = Some("v1.34.1+k3s1".into());
        }
    }
    let a = world.entry("a");
    assert!(a.has_plan() && a.node.in_sync && a.node.healthy && !a.join_url().is_empty());
    assert!(!world.entry("b").has_plan() && !world.entry("c").has_plan());
    let wanted = "Unknown configuring bootstrap node(s) a: waiting for cluster agent to connect";
    assert_eq!(world.message(), wanted);
    assert_eq!(world.settle(), End::Ready, "{}", world.message());
}

#[test]
fn control_plane_check_3_a_healthy_init_node_without_join_url_is_waited_for() {
    let mut world = World::new(&[("a", "ecw"), ("b", "ecw"), ("c", "ecw")]);
    world.edit_secret("a", |secret| {
        let notes = secret.metadata.annotations.get_or_insert_default();
        notes.insert(annotations::JOIN_URL_AUTOSET_DISABLED.into(), "true".into());
    });
    world.settle();
    assert_eq!(world.message(), "Unknown waiting for join url to be available on bootstrap node");
    assert!(!world.entry("b").has_plan() && !world.entry("c").has_plan());
    world.edit_secret("a", |secret| {
        secret.metadata.annotations.as_mut().unwrap().remove(annotations::JOIN_URL_AUTOSET_DISABLED);
    });
    assert_eq!(world.settle(), End::Ready, "{}", world.message());
}

#[test]
fn control_plane_check_4_the_other_etcd_nodes_start_in_one_pass() {
    let mut world = World::new(&[("a", "ecw"), ("b", "ecw"), ("c", "ecw")]);
    world.dead = vec!["b".into(), "c".into()];
    world.settle();
    assert!(world.entry("b").has_plan() && world.entry("c").has_plan());
    assert_eq!(world.message(), "Unknown configuring etcd node(s) b,c");
}

#[test]
fn control_plane_check_5_initialized_before_any_worker_plan() {
    let mut world = World::new(&[("cp", "ec"), ("w", "w")]);
    for _ in 0..100 {
        world.pass();
        if world.entry("w").has_plan() {
            break;
        }
        assert!(!is_initialized(&world.scope.status) || world.entry("cp").join_url() != "");
        world.agents();
    }
    assert!(is_initialized(&world.scope.status));
    assert!(world.scope.status.ready && world.scope.status.initialized, "older clients read these");
}

#[test]
fn control_plane_check_5_an_etcd_only_init_node_reports_its_address() {
    let mut world = World::new(&[("e", "e"), ("cp", "c"), ("w", "w")]);
    world.dead = vec!["cp".into(), "w".into()];
    world.settle();
    let names: Vec<String> = world
        .entry("e")
        .node
        .plan
        .as_ref()
        .unwrap()
        .periodic_instructions
        .iter()
        .map(|instruction| instruction.name.clone())
        .collect();
    assert_eq!(names, ["capture-address", "etcd-name"]);
    world.reports_address("e", "10.9.9.9");
    world.dead.clear();
    assert_eq!(world.settle(), End::Ready, "{}", world.log.join("\n"));
    assert_eq!(world.config("cp")["server"], "https://10.9.9.9:6443");
    assert_eq!(world.config("w")["server"], world.entry("cp").join_url());
}

#[test]
fn control_plane_check_9_unknown_keys_are_left_out_and_reported() {
    let mut world = World::new(&[("cp", "ec"), ("w", "w")]);
    let config = &mut world.scope.spec.config.machine_global_config;
    config.insert("disabel".into(), json!(["x"]));
    config.insert("disable".into(), json!(["traefik"]));
    assert_eq!(world.settle(), End::Ready);
    assert_eq!(world.config("cp")["disabel"], json!(null));
    assert_eq!(world.config("cp")["disable"], json!(["traefik"]));
    let condition = world.scope.status.conditions.iter().find(|c| c.type_ == "ConfigAccepted").unwrap();
    assert!(
        condition.status == "False" && condition.message.ends_with("know them: disabel"),
        "{condition:?}"
    );
    world.scope.spec.config.machine_global_config.remove("disabel");
    world.settle();
    assert!(world.scope.status.conditions.iter().all(|c| c.type_ != "ConfigAccepted"));
}

#[test]
fn control_plane_check_11_additional_manifest_restarts_nothing() {
    let mut world = ready(&[("cp", "ec"), ("w", "w")]);
    let hashes =
        |world: &World| (install_env(world, "cp", RESTART_STAMP), install_env(world, "cp", DRAIN_HASH));
    let addons = |world: &World| {
        let files = world.entry("cp").node.plan.clone().unwrap().files;
        let file =
            files.into_iter().find(|file| file.path.ends_with("/manifests/rancher/addons.yaml")).unwrap();
        BASE64_STANDARD.decode(&file.content).unwrap()
    };
    let before = hashes(&world);
    assert_eq!(addons(&world), b"");
    world.scope.spec.config.additional_manifest = "kind: ConfigMap\n".into();
    assert_eq!(world.settle(), End::Ready);
    assert_eq!(addons(&world), b"kind: ConfigMap\n");
    assert_eq!(hashes(&world), before);
    assert_eq!(world.written(), ["cp: plan changed"]);
}

fn install_env(world: &World, name: &str, variable: &str) -> String {
    let plan = world.entry(name).node.plan.clone().unwrap();
    super::super::render::instructions::install_env(&plan, variable).unwrap().to_owned()
}

#[test]
fn control_plane_check_12_minor_files_go_out_at_once() {
    let mut world = ready(&[("a", "ecw"), ("b", "ecw"), ("c", "ecw")]);
    world.scope.cluster_agent_manifest = Some("kind: Other\n".into());
    assert_eq!(world.settle(), End::Ready);
    assert_eq!(world.written(), ["a: minor change", "b: minor change", "c: minor change"]);
    assert!(!world.log.iter().any(|line| line.starts_with("Waiting")), "nobody waits: {:#?}", world.log);
    let b = world.log.iter().position(|line| line == "  write b: minor change").unwrap();
    assert_eq!(world.log[b + 1], "  write c: minor change", "no wait between them");
}

#[test]
fn control_plane_check_15_nothing_is_written_twice() {
    let mut world = ready(&[("cp", "ec"), ("w1", "w"), ("w2", "w")]);
    let before = world.entry("w1").node.plan_bytes.clone();
    world.now += jiff::SignedDuration::from_hours(24);
    assert_eq!(world.settle(), End::Ready);
    assert!(world.written().is_empty());
    assert!(world.decision.as_ref().unwrap().actions.is_empty());
    assert_eq!(world.entry("w1").node.plan_bytes, before);
}

#[test]
fn control_plane_check_16_concurrency_of_workers() {
    for (concurrency, at_once) in [("50%", 3), ("0", 5), ("", 1), ("2", 2)] {
        let mut world =
            ready(&[("cp", "ec"), ("w1", "w"), ("w2", "w"), ("w3", "w"), ("w4", "w"), ("w5", "w")]);
        world.scope.spec.config.upgrade_strategy =
            serde_json::from_value(json!({"workerConcurrency": concurrency})).unwrap();
        world.scope.spec.config.provision_generation = 1;
        world.dead = (1..=5).map(|n| format!("w{n}")).collect();
        world.settle();
        let workers = world.written().iter().filter(|line| line.starts_with('w')).count();
        assert_eq!(workers, at_once, "{concurrency:?}: {:?}", world.log);
    }
    let mut world = ready(&[("cp", "ec"), ("w1", "w")]);
    world.scope.spec.config.upgrade_strategy =
        serde_json::from_value(json!({"workerConcurrency": "abc"})).unwrap();
    world.settle();
    assert!(world.message().starts_with("False concurrency \"abc\""), "{}", world.message());
}

#[test]
fn control_plane_check_17_a_broken_config_can_be_fixed() {
    let mut world = ready(&[("cp", "ec"), ("w1", "w"), ("w2", "w")]);
    // A change breaks w1: applied, but its probes never pass.
    world.scope.spec.config.provision_generation = 1;
    world.dead = vec!["w1".into(), "w2".into()];
    world.settle();
    let plan = String::from_utf8(world.entry("w1").node.plan_bytes.clone()).unwrap();
    let sum = drover_plan::checksum(plan.as_bytes());
    let pairs =
        [("plan-state", "succeeded"), ("applied-checksum", &sum), ("probe-statuses", r#"{"kubelet":{}}"#)];
    world.set_data("w1", &pairs);
    world.settle();
    assert_eq!(world.message(), "Unknown configuring worker node(s) w1,w2");
    world.log.clear();
    world.scope.spec.config.provision_generation = 2;
    world.settle();
    assert!(world.written().contains(&"w1: plan changed".to_owned()), "{:?}", world.log);
    assert!(!world.written().contains(&"w2: plan changed".to_owned()), "{:?}", world.log);
}

#[test]
fn control_plane_check_18_a_failed_plan_is_retried_and_recovers() {
    let mut world = World::new(&[("cp", "ec"), ("w", "w")]);
    world.dead.push("w".into());
    world.settle();
    let plan = world.entry("w").node.plan_bytes.clone();
    let sum = drover_plan::checksum(&plan);
    world.set_data("w", &[("plan-state", "failed"), ("failed-checksum", &sum), ("failure-count", "1")]);
    world.pass();
    assert_eq!(
        world.message(),
        "Unknown configuring worker node(s) w: waiting for agent to check in and apply initial plan"
    );
    assert_eq!(world.entry("w").node.state, Some(PlanState::InProgress), "armed again");
    world.dead.clear();
    assert_eq!(world.settle(), End::Ready);
}

#[test]
fn control_plane_check_20_a_corrupt_secret_concerns_its_machine_only() {
    let mut world = ready(&[("cp", "ec"), ("w1", "w"), ("w2", "w")]);
    world.set_data("w1", &[("plan", "{not json")]);
    world.pass();
    assert_eq!(world.written(), ["w1: plan repaired"], "and nothing is written to the others");
    assert!(
        world.told.iter().any(|told| told.starts_with("PlanRepaired: Wrote the plan of Machine w1 again"))
    );
    assert_eq!(world.settle(), End::Ready);

    // What a machine without its plan is given obeys the limit that holds for the others.
    world.log.clear();
    world.dead.push("w2".into());
    world.scope.spec.kubernetes_version = "v1.35.0+k3s1".into();
    world.dead.push("w1".into());
    world.settle();
    world.set_data("w1", &[("plan", "{not json")]);
    world.settle();
    let plans = |name: &str| world.written().iter().filter(|line| line.starts_with(name)).count();
    assert_eq!((plans("w1"), plans("w2")), (2, 0), "{:?}", world.log);
}

#[test]
fn control_plane_check_22_a_deleting_cluster_is_left_alone_and_unpaused() {
    let mut world = World::new(&[("cp", "ec"), ("w", "w")]);
    let cluster = world.scope.cluster.as_mut().unwrap();
    (cluster.deleting, cluster.paused) = (true, true);
    assert_eq!(world.pass(), End::Silent);
    assert_eq!(world.decision.as_ref().unwrap().actions, [Action::Unpause]);
}

#[test]
fn control_plane_check_23_a_replaced_etcd_plane_needs_a_restore() {
    let mut world = ready(&[("cp", "ec"), ("w", "w")]);
    world.scope.entries.retain(|entry| entry.name() != "cp");
    world.add("cp2", "ec", 9);
    world.settle();
    assert!(world.message().contains("Restoration from etcd snapshot is required"), "{}", world.message());
    assert!(!world.entry("cp2").is_init_node());
}

#[test]
fn control_plane_check_24_an_etcd_machine_that_never_came_up_is_replaced() {
    let mut world = World::new(&[("cp", "ec"), ("w", "w")]);
    world.dead.push("cp".into());
    world.settle();
    assert!(world.entry("cp").has_plan());
    world.scope.entries.retain(|entry| entry.name() != "cp");
    world.add("cp2", "ec", 9);
    assert_eq!(world.settle(), End::Ready, "{}", world.log.join("\n"));
}

#[test]
fn control_plane_check_25_tokens_are_not_made_twice() {
    let mut world = ready(&[("cp", "ec"), ("w", "w")]);
    world.scope.state_secret = StateSecret::Missing;
    world.pass();
    assert!(
        world.message().starts_with("False secret default/demo-rke-state is missing"),
        "{}",
        world.message()
    );
    assert!(world.decision.as_ref().unwrap().actions.is_empty());
}

#[test]
fn control_plane_check_32_a_paused_cluster_gets_no_plan() {
    let mut world = World::new(&[("cp", "ec"), ("w", "w")]);
    world.scope.paused = true;
    world.settle();
    assert_eq!(world.message(), "Unknown CAPI cluster or RKEControlPlane is paused");
    assert!(world.written().is_empty());
}

#[test]
fn control_plane_check_38_the_next_node_waits_for_the_kubelet() {
    let mut world = ready(&[("cp", "ec"), ("w1", "w"), ("w2", "w")]);
    world.scope.spec.kubernetes_version = "v1.34.2+k3s1".into();
    for _ in 0..3 {
        world.pass();
        world.agent("cp");
    }
    world.pass();
    assert_eq!(world.message(), "Unknown configuring bootstrap node(s) cp: waiting for kubelet to update");
    assert!(!world.written().iter().any(|line| line.starts_with('w')));
}

#[test]
fn a_designated_init_node_is_the_only_one_accepted() {
    let mut world = World::new(&[("a", "ecw"), ("b", "ecw")]);
    world.scope.designated_init_node = "id-b".into();
    world.settle();
    assert_eq!(world.message(), "Unknown unable to find designated init node matching machine ID id-b");
    world.edit_secret("b", |secret| {
        secret.metadata.labels.as_mut().unwrap().insert(labels::MACHINE_ID.into(), "id-b".into());
    });
    assert_eq!(world.settle(), End::Ready);
    assert!(world.entry("b").is_init_node() && !world.entry("a").is_init_node());
}

#[test]
fn pool_labels_and_taints_of_a_living_node_make_no_new_plan() {
    let mut world = ready(&[("cp", "ec"), ("w", "w")]);
    let annotate = |world: &mut World| {
        world.edit_secret("w", |secret| {
            let notes = secret.metadata.annotations.get_or_insert_default();
            notes.insert(annotations::LABELS.into(), r#"{"tier":"gold"}"#.into());
            notes.insert(
                annotations::TAINTS.into(),
                r#"[{"key":"k","value":"v","effect":"NoSchedule"}]"#.into(),
            );
        });
    };
    annotate(&mut world);
    assert_eq!(world.settle(), End::Ready);
    assert!(world.written().is_empty(), "{:?}", world.log);
    // The next plan that is made anyway carries them.
    world.scope.spec.config.provision_generation = 1;
    assert_eq!(world.settle(), End::Ready);
    assert_eq!(world.config("w")["node-label"], json!(["rke.cattle.io/machine=uid-w", "tier=gold"]));
    assert_eq!(world.config("w")["node-taint"], json!(["k=v:NoSchedule"]));
}

#[test]
fn pool_labels_and_taints_of_a_living_server_wait_for_the_next_restart() {
    let mut world = ready(&[("cp", "ec"), ("w", "w")]);
    let hashes =
        |world: &World| (install_env(world, "cp", RESTART_STAMP), install_env(world, "cp", DRAIN_HASH));
    let delivered = hashes(&world);
    let annotate = |world: &mut World, key: &str, value: &str| {
        world.edit_secret("cp", |secret| {
            secret.metadata.annotations.get_or_insert_default().insert(key.into(), value.into());
        });
    };
    // Every edit of the Cluster changes the record of its specification on servers, before or after the label.
    for (number, tier) in ["gold", "silver", "tin"].into_iter().enumerate() {
        world.scope.cluster_spec_annotation = format!("spec{number}");
        if number == 1 {
            assert_eq!(world.settle(), End::Ready);
        }
        annotate(&mut world, annotations::LABELS, &json!({ "tier": tier }).to_string());
        assert_eq!(world.settle(), End::Ready);
        assert_eq!(hashes(&world), delivered, "{tier}");
    }
    annotate(&mut world, annotations::TAINTS, r#"[{"key":"k","value":"v","effect":"NoSchedule"}]"#);
    // Nor do they come with what is not minor, but written without a restart.
    world.scope.spec.config.additional_manifest = "# more".into();
    assert_eq!(world.settle(), End::Ready);
    assert_eq!(hashes(&world), delivered);
    let label = json!("rke.cattle.io/machine=uid-cp");
    assert_eq!(world.config("cp")["node-label"], json!([label]));

    world.scope.spec.config.provision_generation = 1;
    assert_eq!(world.settle(), End::Ready);
    assert_ne!(hashes(&world).0, delivered.0);
    assert_eq!(world.config("cp")["node-label"], json!([label, "tier=tin"]));
    let taints = world.config("cp")["node-taint"].to_string();
    assert!(taints.contains("k=v:NoSchedule"), "{taints}");
}

#[test]
fn a_machine_that_calls_itself_a_server_stays_what_its_machine_says() {
    let mut world = World::new(&[("cp", "ec"), ("w", "w")]);
    assert_eq!(world.settle(), End::Ready);
    world.log.clear();
    world.edit_secret("w", |secret| {
        let marks = secret.metadata.labels.get_or_insert_default();
        for role in [labels::ETCD_ROLE, labels::CONTROL_PLANE_ROLE] {
            marks.insert(role.to_owned(), "true".to_owned());
        }
    });
    assert_eq!(world.settle(), End::Ready);
    assert_eq!(world.log, ["Ready"], "no plan for it changes");
    assert!(world.entry("w").is_only_worker());
}
