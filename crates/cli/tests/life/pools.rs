//! Point 5: adding and removing machines.

use std::io::Write;
use std::process::Stdio;

use serde_json::json;

use crate::CLUSTER;
use crate::common::{Person, condition, eventually, items, name, text, when};
use crate::who::{Identities, json_patch, machines, settled, worker_pool, workers_are};

/// Point 5: from 2 to 4 with `kubectl scale`, which the pool follows, then to 1 in the pool.
pub(crate) fn scales(person: &Person) {
    person.kubectl(&["scale", "machinedeployment", "demo-worker", "--replicas=4"]).ok();
    let pool = worker_pool(person);
    let quantity = || {
        let cluster = person.get(&[CLUSTER]);
        cluster.pointer(&format!("/spec/rkeConfig/machinePools/{pool}/quantity")).cloned().unwrap_or_default()
    };
    eventually(|| when(quantity() == 4, quantity()));
    eventually(|| workers_are(person, 4));
    settled(person);
    json_patch(
        person,
        &json!([{"op": "replace", "path": format!("/spec/rkeConfig/machinePools/{pool}/quantity"), "value": 1}]),
    );
    eventually(|| workers_are(person, 1));
    settled(person);
    let deployment = person.get(&["machinedeployment", "demo-worker"]);
    assert_eq!(deployment["spec"]["replicas"], 1);
    keeps_its_server(person);
}

/// Changes that would add a server that cannot join, or remove one that cannot be recreated, are refused.
fn keeps_its_server(person: &Person) {
    for (replicas, why) in [("3", "one server per cluster"), ("0", "no machine with etcdRole would be left")]
    {
        let replicas = format!("--replicas={replicas}");
        let text = person.kubectl(&["scale", "machinedeployment", "demo-control-plane", &replicas]).refused();
        assert!(text.contains(why), "{text}");
    }
}

/// Point 5: a worker Machine that is deleted by hand is replaced.
pub(crate) fn replaces_a_machine(person: &Person) {
    let worker = machines(person).iter().map(name).find(|name| name.contains("worker")).unwrap();
    person.kubectl(&["delete", "machine", &worker, "--timeout=120s"]).ok();
    eventually(|| workers_are(person, 1));
    let others = machines(person);
    assert!(others.iter().all(|machine| name(machine) != worker), "a new one replaced it");
    settled(person);
}

/// Point 5: adding and removing a pool.
pub(crate) fn adds_and_removes_a_pool(person: &Person) {
    let config = json!({
        "apiVersion": "rke-machine-config.cattle.io/v1", "kind": "LocalConfig",
        "metadata": {"name": "demo-extra", "namespace": "fleet-default"},
    });
    let path = person.write("extra.json", &config.to_string());
    assert!(person.kubectl(&["apply", "-f", &path]).ok().contains("created"));
    assert!(person.kubectl(&["apply", "-f", &path]).ok().contains("unchanged"));
    let pool = json!({
        "name": "extra", "quantity": 1, "workerRole": true, "labels": {"pool": "extra"},
        "taints": [{"key": "extra", "effect": "NoExecute"}],
        "machineConfigRef": {"kind": "LocalConfig", "name": "demo-extra"},
    });
    let before = Identities::of(person);
    json_patch(person, &json!([{"op": "add", "path": "/spec/rkeConfig/machinePools/-", "value": pool}]));
    eventually(|| {
        let nodes = items(&person.get_demo(&["nodes", "-l", "pool=extra"]));
        let ready = nodes
            .iter()
            .filter(|n| condition(n, "Ready") == "True" && n["spec"]["taints"][0]["key"] == "extra");
        when(ready.count() == 1, nodes)
    });
    settled(person);
    json_patch(person, &json!([{"op": "remove", "path": "/spec/rkeConfig/machinePools/2"}]));
    eventually(|| when(machines(person).len() == before.0.len(), machines(person)));
    eventually(|| {
        let kinds =
            "machinedeployments,machinesets,rkebootstraps,localmachines,localmachinetemplates,jobs,secrets";
        let left = person.kubectl(&["get", kinds, "-o", "name"]).ok();
        let left: Vec<String> =
            left.lines().filter(|l| l.contains("demo-extra")).map(str::to_owned).collect();
        when(left.is_empty(), left)
    });
    settled(person);
    assert_eq!(Identities::of(person), before, "the other pools are unchanged");
}

/// Point 5: a machine of the user joins with the registration command.
pub(crate) fn brings_a_machine_of_their_own(person: &Person) {
    let dir = person.data_dir.to_str().unwrap();
    person.drover(&["machine", "create", "--driver", "local", "mine", "--data-dir", dir]).ok();
    let command = person.drover(&["get", "registration-command", "demo", "--worker"]).ok();
    person.in_machine("mine", &["sh", "-c", command.trim()]).ok();
    eventually(|| {
        let nodes = items(&person.get_demo(&["nodes"]));
        let joined = nodes.iter().any(|node| name(node) == "mine" && condition(node, "Ready") == "True");
        when(joined, nodes.iter().map(name).collect::<Vec<_>>())
    });
    settled(person);
    let custom = items(&person.get(&["custommachines"]));
    assert_eq!(custom.len(), 1, "it is a custom machine");
    let machine =
        machines(person).into_iter().find(|machine| text(machine, "/status/nodeRef/name") == "mine").unwrap();
    assert_eq!(text(&machine, "/spec/infrastructureRef/kind"), "CustomMachine");
}

/// `drover machine stop|start`: a machine that a user stopped stays off; one that lost power is started again.
pub(crate) fn powers_a_machine_off_and_on(person: &Person) {
    let state_is = |name: &str, wanted: &str| {
        let state = person.drover(&["machine", "status", name]);
        when(state.out.contains(wanted), state.out)
    };
    let before = Identities::of(person);
    person.drover(&["machine", "stop", "mine"]).ok();
    let (other, [.., begun]) = before.0.iter().find(|(name, _)| name.contains("worker")).unwrap();
    has_a_terminal(person, other);
    // The client may have exited before the response.
    let _ = person.in_machine(other, &["poweroff"]);
    eventually(|| {
        let now = person.in_machine(other, &["cut -d' ' -f22 /proc/1/stat"]).out;
        when(!now.trim().is_empty() && now.trim() != begun, now)
    });
    state_is("mine", "Stopped").unwrap();
    person.drover(&["machine", "start", "mine"]).ok();
    eventually(|| state_is("mine", "Running"));
    settled(person);
    assert_eq!(Identities::of(person).but_processes(), before.but_processes());
}

/// `machine ssh` gives a terminal in the machine, with job control.
fn has_a_terminal(person: &Person, machine: &str) {
    let login = format!("'{}' machine ssh {machine}", person.binary().display());
    let mut command = person.command("script");
    command.args(["-qec", &login, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    // A shell without job control has no job numbers.
    child.stdin.take().unwrap().write_all(b"set -o | grep monitor\nsleep 60 &\nkill %1\nexit 7\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(7), "{text}");
    let monitor = text.lines().find(|line| line.starts_with("monitor")).unwrap_or_default();
    assert!(monitor.contains("on") && !text.contains("job control"), "{text}");
}
