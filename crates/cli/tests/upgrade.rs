//! A new release of `drover` replaces the old one while a plan runs on a machine: each agent upgrades itself in its
//! own process, after its plan, without any command.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};

use common::{Identity, Person, condition, eventually, items, name, text, when};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const NEXT_VERSION: &str = "v1.34.2+k3s1";
const AGENT: &str = "/usr/local/bin/rancher-system-agent";
/// Text in the agent of this release, and the same in the new one.
const OLD: &[u8] = b"with the agent that the manager offers";
const NEW: &[u8] = b"with the agent that THE manager offers";
/// A `systemctl` that blocks, except for queries, until the test creates a file: the plan's instruction runs until
/// then.
const SLOW: &str = "#!/bin/sh\ntest $1 = show && exec SYSTEMCTL $*\nwhile ! test -e /go; do echo waiting > /held; sleep 0.1; done\nexec SYSTEMCTL $*\n";

#[test]
fn agents_follow_a_new_release_of_the_manager_while_a_plan_runs() {
    let Some(person) = Person::new(Identity::User) else { return };
    let mut manager = Running::start(&person);
    eventually(|| is_ready(&person, None));
    let before = machines(&person);
    let agents = on_each(&before, |machine| Agent::of(&person, machine));
    let old = agents.values().next().unwrap().file.clone();
    assert!(agents.values().all(|agent| agent.file == old && agent.runs == old), "{agents:?}");
    let revisions = on_each(&before, |machine| secret(&person, machine).revision);

    // A plan runs on a worker and does not end.
    let workers: Vec<String> = before.keys().filter(|name| name.contains("worker")).cloned().collect();
    for worker in &workers {
        let real = person.in_machine(worker, &["command -v systemctl"]).ok();
        let path = "/usr/local/sbin/systemctl";
        assert_ne!(real.trim(), path);
        let slow = SLOW.replace("SYSTEMCTL", real.trim());
        let line = format!("mkdir -p /usr/local/sbin; printf '%s' '{slow}' > {path}; chmod 755 {path}");
        person.in_machine(worker, &[&line]).ok();
    }
    person.patch_cluster(&json!({"spec": {"kubernetesVersion": NEXT_VERSION}}));
    let held = eventually(|| {
        let held = |worker: &&String| person.in_machine(worker, &["test -e /held"]).code == 0;
        workers.iter().find(held).cloned().ok_or("no worker runs a plan")
    });
    for worker in workers.iter().filter(|worker| **worker != held) {
        person.in_machine(worker, &["touch /go"]).ok();
    }

    // Replacing the program is all that a user does.
    manager.stop();
    release(&person);
    let manager = Running::start(&person);
    let new = eventually(|| {
        let answer = person.kubectl(&["get", "clusters.provisioning.cattle.io", "demo"]);
        when(answer.code == 0, answer.err)?;
        let offer = secret(&person, &held).offer;
        if offer.is_empty() || offer == old { Err(format!("offered: {offer}")) } else { Ok(offer) }
    });

    // An idle agent is upgraded at once; the other waits for its plan and reports that.
    for machine in before.keys().filter(|machine| **machine != held) {
        eventually(|| followed(&person, machine, &agents[machine], &new));
    }
    eventually(|| {
        let status = person.in_machine(&held, &["rancher-system-agent status"]).out;
        when(status.contains("idle moment"), status)
    });
    let waiting = Agent::of(&person, &held);
    assert_eq!((&waiting.file, &waiting.runs, &waiting.pid), (&old, &old, &agents[&held].pid));
    assert_eq!(secret(&person, &held).state, "in-progress");

    person.in_machine(&held, &["touch /go"]).ok();
    eventually(|| followed(&person, &held, &agents[&held], &new));
    eventually(|| is_ready(&person, Some(NEXT_VERSION)));
    // Its work is reported and was done once, and nothing was created again.
    for machine in before.keys() {
        eventually(|| followed(&person, machine, &agents[machine], &new));
        let secret = secret(&person, machine);
        assert_eq!((secret.state.as_str(), secret.failures.as_str()), ("succeeded", "0"), "{machine}");
    }
    let ran = secret(&person, &held);
    assert_eq!(ran.revision, revisions[&held] + 1, "one plan, started once");
    assert_eq!(machines(&person), before, "the same Machines and Nodes");
    drop(manager);
}

/// This program with an agent that differs in two letters.
fn release(person: &Person) {
    let mut program = fs::read(person.binary()).unwrap();
    let places: Vec<usize> =
        program.windows(OLD.len()).enumerate().filter(|(_, at)| *at == OLD).map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "the manager contains the agent");
    for at in places {
        program[at..at + NEW.len()].copy_from_slice(NEW);
    }
    let beside = person.binary().with_extension("new");
    fs::write(&beside, program).unwrap();
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(&beside, person.binary()).unwrap();
}

struct Running(Child);

impl Running {
    fn start(person: &Person) -> Self {
        let out = person.home().join("manager.out");
        let out = fs::OpenOptions::new().create(true).append(true).open(out).unwrap();
        let mut command = person.command(person.binary());
        command.args(["quickstart", "--bind", "127.0.0.1:0"]).stdin(Stdio::null());
        Self(command.stdout(out.try_clone().unwrap()).stderr(out).spawn().unwrap())
    }

    /// SIGKILL, so that it cannot stop the machines.
    fn stop(&mut self) {
        kill(Pid::from_raw(self.0.id() as i32), Signal::SIGKILL).unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The agent of a machine: its process, the program that it runs, and the installed program.
#[derive(Debug)]
struct Agent {
    pid: String,
    runs: String,
    file: String,
}

impl Agent {
    fn of(person: &Person, machine: &str) -> Self {
        let line = format!(
            "pid=$(systemctl show -p MainPID --value rancher-system-agent); echo $pid; \
             sha256sum < /proc/$pid/exe; sha256sum < {AGENT}"
        );
        let output = person.in_machine(machine, &[&line]).ok();
        let words: Vec<&str> = output.split_whitespace().filter(|word| *word != "-").collect();
        let [pid, runs, file] = words[..] else { panic!("{machine}: {output}") };
        Self { pid: pid.to_owned(), runs: runs.to_owned(), file: file.to_owned() }
    }
}

fn followed(person: &Person, machine: &str, before: &Agent, new: &str) -> Result<(), String> {
    let agent = Agent::of(person, machine);
    when(agent.runs == new && agent.file == new, format!("{machine}: {agent:?}"))?;
    assert_eq!(agent.pid, before.pid, "{machine}: the same process");
    Ok(())
}

fn on_each<T>(machines: &BTreeMap<String, [String; 2]>, of: impl Fn(&str) -> T) -> BTreeMap<String, T> {
    machines.keys().map(|machine| (machine.clone(), of(machine))).collect()
}

/// What the plan secret of a machine reports.
#[derive(Default)]
struct Plan {
    offer: String,
    state: String,
    failures: String,
    revision: u64,
}

fn secret(person: &Person, machine: &str) -> Plan {
    let secrets = items(&person.get(&["secrets"]));
    let is_plan =
        |secret: &&Value| secret["type"] == "rke.cattle.io/machine-plan" && name(secret).starts_with(machine);
    let Some(secret) = secrets.iter().find(is_plan) else { return Plan::default() };
    let data = |key: &str| {
        let value = serde_json::from_value::<k8s_openapi::ByteString>(secret["data"][key].clone());
        value.map(|bytes| String::from_utf8(bytes.0).unwrap()).unwrap_or_default()
    };
    let offer: Value =
        serde_json::from_str(&text(secret, "/metadata/annotations/drover.io~1agent")).unwrap_or_default();
    let sums = offer["sha256"].as_object().cloned().unwrap_or_default();
    Plan {
        offer: sums.values().next().and_then(Value::as_str).unwrap_or_default().to_owned(),
        state: data("plan-state"),
        failures: data("failure-count"),
        revision: data("plan-revision").parse().unwrap_or_default(),
    }
}

/// The uids of each Machine and its Node, by name.
fn machines(person: &Person) -> BTreeMap<String, [String; 2]> {
    let nodes = items(&person.get_demo(&["nodes"]));
    let uid = |machine: &Value| {
        let node = nodes.iter().find(|node| name(node) == text(machine, "/status/nodeRef/name"));
        node.map(|node| text(node, "/metadata/uid")).unwrap_or_default()
    };
    let machines = items(&person.get(&["machines"]));
    machines.iter().map(|machine| (name(machine), [text(machine, "/metadata/uid"), uid(machine)])).collect()
}

fn is_ready(person: &Person, version: Option<&str>) -> Result<(), String> {
    let answer = person.kubectl(&["get", "clusters.provisioning.cattle.io", "demo", "-o", "json"]);
    let cluster: Value = serde_json::from_str(&answer.out).unwrap_or_default();
    let seen = cluster["status"]["observedGeneration"] == cluster["metadata"]["generation"];
    let good = ["Ready", "Updated", "Provisioned"].iter().all(|type_| condition(&cluster, type_) == "True");
    when(seen && good, format!("{:#}", cluster["status"]))?;
    let answer = person.kubectl_demo(&["get", "nodes", "-o", "json"]);
    let nodes = items(&serde_json::from_str(&answer.out).unwrap_or_default());
    let fits = |node: &Value| {
        condition(node, "Ready") == "True"
            && version.is_none_or(|version| text(node, "/status/nodeInfo/kubeletVersion") == version)
    };
    when(nodes.len() == 3 && nodes.iter().all(fits), format!("nodes: {nodes:?}"))
}
