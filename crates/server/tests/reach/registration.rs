//! Registration of machines with the install script, against the whole management plane.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use drover_testkit::demo;
use drover_testkit::objects::Objects;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::world::{World, text};

/// A machine on which the script installs a dummy agent.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("tools")).unwrap();
        for program in ["tools/systemctl", "agent"] {
            let path = dir.path().join(program);
            std::fs::write(&path, "#!/bin/sh\necho played\n").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { dir }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn install(&self, world: &World, args: &[&str]) -> Output {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../agent/assets/system-agent-install.sh");
        let is_root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
        let mut command = Command::new(if is_root { "env" } else { "unshare" });
        if !is_root {
            command.args(["--map-root-user", "--"]);
        }
        let sum: String = {
            use sha2::{Digest as _, Sha256};
            let digest = Sha256::digest(format!("{}\n", world.ca.trim()));
            digest.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        command
            .args(["sh", script, "--server", &world.manager.url, "--ca-checksum", &sum])
            .args(args)
            .env_clear()
            .env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.at("tools").display()))
            .env("CATTLE_AGENT_CONFIG_DIR", self.at("etc/agent"))
            .env("CATTLE_AGENT_VAR_DIR", self.at("var/agent"))
            .env("CATTLE_AGENT_BIN_PREFIX", self.at("usr"))
            .env("CATTLE_AGENT_SYSTEMD_DIR", self.at("etc/systemd"))
            .env("CATTLE_AGENT_BINARY_LOCAL", "true")
            .env("CATTLE_AGENT_BINARY_LOCAL_LOCATION", self.at("agent"))
            .env("CATTLE_AGENT_RETRIES", "60")
            .env("CATTLE_AGENT_RETRY_PAUSE", "1")
            .env("CATTLE_AGENT_REFUSALS", "3");
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }
}

fn text_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_check_39_the_install_script_run_twice_makes_one_machine() {
    let (world, machine) = (World::start().await, Machine::new());
    let (_, token) = world.make_cluster("demo").await;
    let machines = async || {
        let api = world.api("cluster.x-k8s.io/v1beta2", "Machine", "default");
        api.list(&ListParams::default()).await.unwrap().items.len()
    };
    let mut ids = vec![];
    for _ in 0..2 {
        let output = machine.install(&world, &["--token", &token, "--worker"]).await;
        assert!(output.status.success(), "{}", text_of(&output));
        ids.push(std::fs::read_to_string(machine.at("etc/agent/cattle-id")).unwrap());
        assert_eq!(machines().await, 1);
    }
    assert_eq!(ids[0], ids[1]);
    // The number makes the machines distinguishable.
    let other = Machine::new();
    let output = other.install(&world, &["--token", &token, "--worker"]).await;
    assert!(output.status.success(), "{}", text_of(&output));
    assert_eq!(machines().await, 2);
    world.stop().await;
}

/// With the script against the port: a token for workers does not give access to secrets of the control plane.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_token_with_an_etcd_role_is_rejected_without_creating_anything() {
    let (world, machine) = (World::start().await, Machine::new());
    let (id, _) = world.make_cluster("demo").await;
    let kind = ("management.cattle.io/v3", "ClusterRegistrationToken");
    let made = |name: &str, roles: &str| {
        json!({
            "apiVersion": kind.0, "kind": kind.1,
            "metadata": {"namespace": id, "name": name, "annotations": {"drover.io/registration-roles": roles}},
            "spec": {"clusterName": id},
        })
    };
    let tokens = world.api(kind.0, kind.1, &id);
    let create = async |object: Value| {
        tokens.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.map(|_| ())
    };
    let refused = create(made("wrong", "workers")).await.unwrap_err().to_string();
    assert!(refused.contains("\"workers\" is not a role"), "{refused}");
    create(made("workers", "worker")).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(world.manager.client.clone(), &id);
    let token = drover_testkit::eventually(async || {
        let secret = secrets.get_opt("crt-token-workers").await.unwrap().ok_or("no secret yet")?;
        Ok::<_, &str>(text(&secret, "token"))
    })
    .await;
    let machines = async || {
        let api = world.api("cluster.x-k8s.io/v1beta2", "Machine", "default");
        api.list(&ListParams::default()).await.unwrap().items.len()
    };
    let attack = machine.install(&world, &["--token", &token, "--worker", "--etcd"]).await;
    let sentence = text_of(&attack);
    assert!(!attack.status.success(), "{sentence}");
    for part in ["with the role worker only", "asks for etcd", "nothing was installed"] {
        assert!(sentence.contains(part), "{part}: {sentence}");
    }
    assert_eq!(machines().await, 0);
    let output = machine.install(&world, &["--token", &token, "--worker"]).await;
    assert!(output.status.success(), "{}", text_of(&output));
    assert_eq!(machines().await, 1);
    world.stop().await;
}

/// The recorded time of the token's last use is changed instead of waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_check_38_a_bootstrap_token_31_seconds_after_its_use_is_refused() {
    let (world, machine) = (World::start().await, Machine::new());
    let client = world.manager.client.clone();
    demo::make(&Objects::new(move || client.clone())).await;
    let secrets: Api<Secret> = Api::namespaced(world.manager.client.clone(), "default");
    let (name, token) = drover_testkit::eventually(async || {
        let list = secrets.list(&ListParams::default().fields("type=rke.cattle.io/bootstrap")).await.unwrap();
        let secret = list.items.into_iter().next().ok_or("no bootstrap secret yet")?;
        let script = text(&secret, "value");
        let token = script.lines().find_map(|line| line.strip_prefix("CATTLE_TOKEN=\"")?.strip_suffix('"'));
        Ok::<_, &str>((secret.metadata.name.unwrap(), token.unwrap().to_owned()))
    })
    .await;
    let is_account = |secret: &Value| {
        secret["metadata"]["annotations"]["kubernetes.io/service-account.name"] == name.as_str()
    };
    let used = async |seconds: i64| {
        let list = secrets.list(&ListParams::default()).await.unwrap().items;
        let found = list.iter().find(|secret| is_account(&json!(secret))).unwrap();
        let at = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(seconds);
        let note = json!({"rke.cattle.io/last-access-timestamp": format!("{at:.0}")});
        let patch = Patch::Merge(json!({"metadata": {"annotations": note}}));
        secrets.patch(found.metadata.name.as_ref().unwrap(), &PatchParams::default(), &patch).await.unwrap();
    };
    let args = ["--token", &token, "--no-roles"];
    let first = machine.install(&world, &args).await;
    assert!(first.status.success(), "{}", text_of(&first));
    used(10).await;
    let again = machine.install(&world, &args).await;
    assert!(again.status.success(), "{}", text_of(&again));
    // The manager sees the change a little later; a request before that creates a new token.
    drover_testkit::eventually(async || {
        used(31).await;
        let late = machine.install(&world, &args).await;
        let refused = !late.status.success() && text_of(&late).contains("rejected the token");
        if refused { Ok(()) } else { Err(text_of(&late)) }
    })
    .await;
    world.stop().await;
}
