//! What stands in a plan.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::json;

use super::world::World;
use crate::settings::Settings;

fn settled(machines: &[(&str, &str)], edit: impl FnOnce(&mut World)) -> World {
    let mut world = World::new(machines);
    edit(&mut world);
    world.settle();
    world
}

#[test]
fn control_plane_check_6_init_starts_and_the_others_join() {
    let world = settled(&[("a", "ecw"), ("b", "ecw"), ("w", "w")], |_| {});
    assert_eq!(world.config("a")["cluster-init"], true);
    assert_eq!(world.config("a")["server"], json!(null));
    assert_eq!(world.config("b")["server"], "https://10.0.0.11:6443");
    assert_eq!(world.config("b")["cluster-init"], json!(null));
}

#[test]
fn control_plane_check_8_tokens_and_disable_flags_follow_the_roles() {
    let world = settled(&[("e", "ec"), ("w", "w")], |_| {});
    let (server, worker) = (world.config("e"), world.config("w"));
    assert_eq!((&server["token"], &server["agent-token"]), (&json!("server-token"), &json!("agent-token")));
    assert_eq!((&worker["token"], &worker["agent-token"]), (&json!("agent-token"), &json!(null)));
    assert_eq!(server["disable-etcd"], json!(null));
    assert_eq!(server["node-taint"], json!(["node-role.kubernetes.io/control-plane:NoSchedule"]));

    let mut split = settled(&[("e", "e"), ("cp", "c"), ("w", "w")], |_| {});
    split.reports_address("e", "10.9.9.9");
    split.settle();
    let etcd = split.config("e");
    for key in ["disable-apiserver", "disable-controller-manager", "disable-scheduler"] {
        assert_eq!(etcd[key], true, "{key}");
        assert_eq!(split.config("cp")[key], json!(null), "{key}");
    }
    assert_eq!((&split.config("cp")["disable-etcd"], &etcd["disable-etcd"]), (&json!(true), &json!(null)));
    assert_eq!(etcd["node-taint"], json!(["node-role.kubernetes.io/etcd:NoExecute"]));
}

#[test]
fn control_plane_check_10_numbers_are_rendered() {
    let world = settled(&[("cp", "ec"), ("w", "w")], |world| {
        let config = &mut world.scope.spec.config.machine_global_config;
        config.insert("https-listen-port".into(), json!(6443));
        config.insert("kubelet-arg".into(), json!(["max-pods=50"]));
        config.insert("secrets-encryption".into(), json!("true"));
    });
    assert_eq!(world.config("cp")["https-listen-port"], "6443");
    assert_eq!(world.config("cp")["secrets-encryption"], true);
    assert_eq!(world.config("w")["https-listen-port"], json!(null), "workers do not know it");
    assert_eq!(world.config("w")["kubelet-arg"], json!(["max-pods=50"]));
}

#[test]
fn selector_config_reaches_only_the_selected_machines() {
    let world = settled(&[("cp", "ec"), ("w1", "w"), ("w2", "w")], |world| {
        world.entry_mut("w2").machine.labels.insert("pool".into(), "big".into());
        world.scope.spec.config.machine_selector_config = serde_json::from_value(json!([
            {"machineLabelSelector": {"matchLabels": {"pool": "big"}}, "config": {"kubelet-arg": ["max-pods=9"]}},
        ]))
        .unwrap();
    });
    assert_eq!(world.config("w1")["kubelet-arg"], json!(null));
    assert_eq!(world.config("w2")["kubelet-arg"], json!(["max-pods=9"]));
}

#[test]
fn the_plan_of_a_server_to_the_byte() {
    let world = settled(&[("cp", "ec"), ("w", "w")], |world| {
        world.scope.settings = Settings::default();
        world.scope.spec.agent_env_vars =
            serde_json::from_value(json!([{"name": "A", "value": "1"}, {"name": "B", "value": ""}])).unwrap();
    });
    let mut text = String::new();
    for name in ["cp", "w"] {
        let plan = world.entry(name).node.plan.clone().unwrap();
        text.push_str(&format!("== {name}\n"));
        for file in &plan.files {
            let flags = [(file.dynamic, "dynamic"), (file.minor, "minor")]
                .iter()
                .filter(|(on, _)| *on)
                .map(|(_, flag)| format!(" {flag}"))
                .collect::<String>();
            text.push_str(&format!("-- {}{flags}\n", file.path));
            if !file.path.ends_with("idempotent.sh") {
                let content = BASE64_STANDARD.decode(&file.content).unwrap();
                text.push_str(String::from_utf8(content).unwrap().trim_end());
                text.push('\n');
            }
        }
        for instruction in &plan.instructions {
            text.push_str(&format!("-- {} {}\n", instruction.name, instruction.image));
            text.push_str(&format!(
                "{} {:?} {:#?}\n",
                instruction.command, instruction.args, instruction.env
            ));
        }
        for (probe, ask) in &plan.probes {
            text.push_str(&format!("-- probe {probe}: {} ca={}\n", ask.http_get.url, ask.http_get.ca_cert));
        }
    }
    let path = format!("{}/tests/golden/plan.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap_or_default());
}

#[test]
fn a_machine_of_a_driver_waits_for_its_addresses() {
    let mut world = World::new(&[("cp", "ec"), ("w", "w")]);
    world.entry_mut("cp").machine.infrastructure_group = "rke-machine.cattle.io".into();
    world.settle();
    assert_eq!(
        world.message(),
        "Unknown non-ready bootstrap machine(s) cp: waiting for machine default/cp driver config to be saved and \
         join url to be available on bootstrap node"
    );
    let saved = super::super::render::addresses::Addresses {
        external: vec!["1.2.3.4".into()],
        internal: vec!["10.0.0.11".into()],
        ..Default::default()
    };
    world.scope.machine_addresses.insert("cp".into(), saved);
    world.settle();
    let config = world.config("cp");
    assert_eq!(
        (&config["node-ip"], &config["node-external-ip"]),
        (&json!(["10.0.0.11"]), &json!(["1.2.3.4"]))
    );
    assert_eq!(
        (&config["advertise-address"], &config["tls-san"]),
        (&json!("10.0.0.11"), &json!(["1.2.3.4"]))
    );
}
