//! The whole life of a cluster, as a person lives it with the built binary and the real `kubectl`: points 1 to 5 of what
//! a person does and sees, as root and as an ordinary user.
//!
//! Each test is one cluster's life, told in order, because bringing a cluster up costs more than all that follows.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use common::{Answer, Identity, Person, condition, eventually, items, name, text, when};
use serde_json::{Value, json};

const FIRST: &str = "v1.34.1+k3s1";
const SECOND: &str = "v1.34.2+k3s1";
const CLUSTER: &str = "clusters.provisioning.cattle.io/demo";

#[test]
fn a_life_as_root() {
    let Some(person) = Person::new(Identity::Root) else { return };
    let stop = begins(&person);
    looks_around(&person);
    uses_the_cluster(&person);
    changes_the_version(&person);
    changes_the_config(&person);
    changes_a_pool(&person);
    scales(&person);
    replaces_a_machine(&person);
    adds_and_removes_a_pool(&person);
    brings_a_machine_of_their_own(&person);
    powers_a_machine_off_and_on(&person);
    stops_and_carries_on(&person, &stop);
    deletes_the_cluster(&person);
    begins_again_before_it_is_gone(&person);
    leaves_nothing(&person);
}

#[test]
fn a_life_as_an_ordinary_user() {
    let Some(mut person) = Person::new(Identity::User) else { return };
    // People have such directories; what is printed must survive their shell.
    person.data_dir = person.home().join("it's my data");
    let stop = begins(&person);
    looks_around(&person);
    uses_the_cluster(&person);
    changes_the_version(&person);
    changes_a_pool(&person);
    scales(&person);
    brings_a_machine_of_their_own(&person);
    stops_and_carries_on(&person, &stop);
    deletes_the_cluster(&person);
    leaves_nothing(&person);
}

/// Point 1: from nothing to Ready, in plain lines, with kubeconfigs that only their owner reads. Gives the command that is
/// said to end it.
fn begins(person: &Person) -> String {
    let said = person.quickstart(&["--detach"]).ok();
    let (manager, demo) =
        (person.data_dir.join("kubeconfig.yaml"), person.data_dir.join("clusters/demo.kubeconfig"));
    for file in [&manager, &demo] {
        let mode = std::fs::metadata(file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
        assert!(said.contains(file.to_str().unwrap()), "the end names {}:\n{said}", file.display());
    }
    assert!(!said.contains('\x1b'), "no escapes where there is no terminal:\n{said}");
    let stages: Vec<&str> = said.lines().filter(|line| line.contains("s  machine demo-")).collect();
    assert!(stages.iter().any(|line| line.contains("waiting for")), "what machines wait for:\n{said}");
    assert_eq!(said.matches("cluster demo: Ready").count(), 1, "{said}");
    for machine in machines(person).iter().map(name) {
        let last = stages.iter().rfind(|line| line.contains(&machine)).unwrap_or_else(|| panic!("{said}"));
        assert!(last.ends_with(": Running"), "the last picture shows {last:?}:\n{said}");
    }
    let next: Vec<&str> = said.lines().skip_while(|line| !line.starts_with("Try next")).skip(1).collect();
    let commands: Vec<&&str> = next.iter().filter(|line| line.starts_with("  ")).collect();
    assert_eq!(commands.len(), 3, "three commands to try next:\n{said}");
    for line in commands {
        copied(person, line.trim()).ok();
    }
    let refused = person.quickstart(&["--detach"]).refused();
    assert!(refused.contains("already runs") && refused.contains("--stop"), "{refused}");
    let refused = person.quickstart(&[]).refused();
    assert!(refused.contains("already runs") && refused.contains("--stop"), "{refused}");
    person.kubectl(&["wait", "--for=condition=Ready", CLUSTER, "--timeout=10s"]).ok();
    hint(&said, "--stop")
}

/// A command that was printed between backquotes, as a person copies it.
#[track_caller]
fn hint(said: &str, part: &str) -> String {
    let printed = said.split('`').skip(1).step_by(2).find(|command| command.contains(part));
    printed.unwrap_or_else(|| panic!("no command with {part}:\n{said}")).to_owned()
}

/// What is printed, copied into a shell.
fn copied(person: &Person, command: &str) -> Answer {
    common::run(person.command("sh").args(["-c", command]), command)
}

/// Point 2: what kubectl and drover show.
fn looks_around(person: &Person) {
    let columns = [
        ("clusters.provisioning.cattle.io", "NAME VERSION READY"),
        ("clusters.cluster.x-k8s.io", "NAME AVAILABLE PHASE"),
        ("machines", "NAME CLUSTER NODE READY PHASE"),
        ("machinedeployments", "NAME CLUSTER DESIRED READY PHASE"),
        ("rkecontrolplanes", "NAME CLUSTER INITIALIZED VERSION"),
    ];
    for (kind, wanted) in columns {
        let table = person.kubectl(&["get", kind]).ok();
        let head = table.lines().next().unwrap_or_default();
        assert!(wanted.split(' ').all(|column| head.contains(column)), "{kind}: {table}");
    }
    for (kind, events) in
        [("clusters.provisioning.cattle.io", "Ready"), ("clusters.cluster.x-k8s.io", "ControlPlane")]
    {
        let described = person.kubectl(&["describe", kind, "demo"]).ok();
        let (object, seen) = described.split_once("\nEvents:").unwrap_or_else(|| panic!("{described}"));
        assert!(object.contains("Conditions:") && object.contains("Last Transition Time"), "{described}");
        assert!(seen.contains(events), "{kind} has events:\n{described}");
    }
    let described = person.kubectl(&["describe", "machines"]).ok();
    assert!(described.contains("SuccessfulSetNodeRef"), "machines have events:\n{described}");
    person.kubectl(&["wait", "--for=condition=Ready", "machines", "--all", "--timeout=10s"]).ok();
    person
        .kubectl(&["wait", "--for=condition=Available", "machinedeployments", "--all", "--timeout=10s"])
        .ok();
    let field = "clusters.provisioning.cattle.io.spec.rkeConfig.machinePools.quantity";
    assert!(person.kubectl(&["explain", field]).ok().contains("<integer>"));
    let kinds = person.kubectl(&["api-resources", "-o", "name"]).ok();
    for kind in [
        "clusters.provisioning.cattle.io",
        "machines.cluster.x-k8s.io",
        "localmachines.rke-machine.cattle.io",
    ] {
        assert!(kinds.lines().any(|line| line == kind), "{kind}:\n{kinds}");
    }

    assert!(person.drover(&["get", "clusters"]).ok().contains("demo"));
    let kubeconfig = person.drover(&["get", "kubeconfig", "demo"]).ok();
    let path = person.write("mine.kubeconfig", &kubeconfig);
    assert_eq!(
        person.kubectl_with(Path::new(&path), &["get", "nodes", "-o", "name"]).ok().lines().count(),
        3
    );
    let tree = person.drover(&["describe", "cluster", "demo", "--show-conditions"]).ok();
    for machine in machines(person) {
        assert!(tree.contains(&name(&machine)), "{tree}");
    }
    assert!(tree.contains("RKEControlPlane demo") && tree.contains("NodeHealthy"), "{tree}");
    let listed = person.drover(&["machine", "ls", "-o", "json"]).ok();
    let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed.len(), 3, "{listed:?}");
    let refused = person.drover(&["get", "clusters", "--kubeconfig", &path]).refused();
    assert!(refused.contains(&path) && refused.contains("is no management plane"), "{refused}");
    let refused = person.drover(&["describe", "cluster", "nobody"]).refused();
    assert!(refused.contains("there is no cluster nobody"), "{refused}");
}

/// Point 3: the demo cluster through Drover.
fn uses_the_cluster(person: &Person) {
    // Roles are labels that follow a Node's first sight.
    let nodes = eventually(|| {
        let nodes = person.kubectl_demo(&["get", "nodes", "-o", "wide", "--no-headers"]).ok();
        let mut roles = nodes.lines().map(|line| line.split_whitespace().nth(2));
        if roles.any(|role| role == Some("<none>")) { Err(nodes) } else { Ok(nodes) }
    });
    let rows: Vec<Vec<&str>> = nodes.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 3, "{nodes}");
    for row in &rows {
        assert_eq!(row[1], "Ready", "{nodes}");
        let role = if row[0].contains("control-plane") { "control-plane,etcd" } else { "worker" };
        assert_eq!(row[2], role, "{nodes}");
        assert_eq!(row[4], FIRST, "{nodes}");
        assert!(row[5].starts_with("10."), "an address: {nodes}");
    }
    let taints: Vec<String> = items(&person.get_demo(&["nodes"]))
        .iter()
        .filter(|node| !node["spec"]["taints"].is_null())
        .map(name)
        .collect();
    assert!(taints.len() == 1 && taints[0].contains("control-plane"), "{taints:?}");

    let kubeconfig = person.data_dir.join("clusters/demo.kubeconfig");
    let mut command = person.command("kubectl");
    command.arg("--kubeconfig").arg(&kubeconfig);
    command.args(["get", "configmaps", "--watch-only", "--output-watch-events", "--no-headers"]);
    let mut watch = Watch(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut seen = std::io::BufReader::new(watch.0.stdout.take().unwrap()).lines();
    // The watch has no way to say that it began: what it missed is made again.
    let first = std::thread::spawn(move || (seen.next(), seen));
    let mut made = 0;
    eventually(|| {
        made += 1;
        person.kubectl_demo(&["create", "configmap", &format!("note-{made}"), "--from-literal=a=b"]).ok();
        when(first.is_finished(), "no event")
    });
    let (event, seen) = first.join().unwrap();
    let event = event.unwrap().unwrap();
    assert!(event.starts_with("ADDED") && event.contains("note-"), "{event}");
    let last = format!("note-{made}");
    person.kubectl_demo(&["delete", "configmap", &last]).ok();
    let deleted = seen.map_while(Result::ok).find(|line| line.starts_with("DELETED"));
    assert!(deleted.is_some_and(|line| line.contains(&last)));
    drop(watch);

    let mut wrong: Value = serde_json::from_str(&std::fs::read_to_string(&kubeconfig).unwrap()).unwrap();
    let token = wrong.pointer_mut("/users/0/user/token").unwrap();
    let (who, _) = token.as_str().unwrap().split_once(':').unwrap();
    *token = json!(format!("{who}:0123456789"));
    let path = person.write("wrong.kubeconfig", &wrong.to_string());
    let refused = person.kubectl_with(Path::new(&path), &["get", "nodes"]).refused();
    assert!(refused.contains("Unauthorized") || refused.contains("must be logged in"), "{refused}");
}

/// Point 4: a new version, where every machine stands, the init node first and the workers one by one.
fn changes_the_version(person: &Person) {
    let before = Identities::of(person);
    person.patch_cluster(&json!({"spec": {"rkeConfig": {"upgradeStrategy": {"workerConcurrency": "1"}}}}));
    settled(person);
    let restarts = Restarts::of(person);
    // As a person edits: with an editor on the whole object.
    let mut edit = person.command("kubectl");
    edit.env("KUBE_EDITOR", format!("sed -i s/{FIRST}/{SECOND}/"));
    edit.arg("--kubeconfig").arg(person.data_dir.join("kubeconfig.yaml"));
    common::run(edit.args(["-n", "fleet-default", "edit", CLUSTER]), "kubectl edit").ok();
    let mut order: Vec<String> = vec![];
    let mut most = 0;
    eventually(|| {
        most = most.max(workers_at_work(person).len());
        // The API of the init node is away for a moment while it is restarted.
        let answer = person.kubectl_demo(&["get", "nodes", "-o", "json"]);
        let nodes: Value = serde_json::from_str(&answer.out).map_err(|_| answer.err)?;
        let new = items(&nodes).into_iter().filter(|n| text(n, "/status/nodeInfo/kubeletVersion") == SECOND);
        let new: Vec<String> = new.map(|node| name(&node)).filter(|name| !order.contains(name)).collect();
        order.extend(new);
        when(order.len() == 3, format!("{order:?}"))
    });
    assert!(order[0].contains("control-plane"), "the init node goes first: {order:?}");
    settled(person);
    assert_eq!(Identities::of(person), before, "nothing is replaced");
    let after = Restarts::of(person);
    assert!(restarts.0.iter().all(|(name, pid)| after.0[name] != *pid), "{restarts:?} {after:?}");
    assert_eq!(most, 1, "workerConcurrency 1 has one worker at work at a time");
}

/// Workers that have a plan which they have not applied yet.
fn workers_at_work(person: &Person) -> Vec<String> {
    let secrets = items(&person.get(&["secrets", "--field-selector", "type=rke.cattle.io/machine-plan"]));
    let busy = |secret: &&Value| {
        let plan = text(secret, "/data/plan");
        name(secret).contains("worker") && !plan.is_empty() && plan != text(secret, "/data/appliedPlan")
    };
    secrets.iter().filter(busy).map(name).collect()
}

/// Point 4: a new setting reaches the file and the process of every machine, and replaces none.
fn changes_the_config(person: &Person) {
    let before = Identities::of(person);
    let restarts = Restarts::of(person);
    person.patch_cluster(
        &json!({"spec": {"rkeConfig": {"machineGlobalConfig": {"kubelet-arg": ["max-pods=42"]}}}}),
    );
    eventually(|| {
        let after = Restarts::of(person);
        when(
            restarts.0.iter().all(|(name, pid)| after.0.get(name) != Some(pid)),
            format!("{restarts:?} {after:?}"),
        )
    });
    settled(person);
    for machine in before.0.keys() {
        let config =
            person.in_machine(machine, &["cat", "/etc/rancher/k3s/config.yaml.d/50-rancher.yaml"]).ok();
        assert!(config.contains("max-pods=42"), "{machine}: {config}");
    }
    assert_eq!(Identities::of(person), before, "nothing is replaced");
}

/// Point 4: labels and taints of a pool reach its nodes, and nothing restarts.
fn changes_a_pool(person: &Person) {
    let before = Identities::of(person);
    let restarts = Restarts::of(person);
    let pool = worker_pool(person);
    let taint = json!([{"key": "only", "value": "gold", "effect": "PreferNoSchedule"}]);
    let patch = json!([
        {"op": "add", "path": format!("/spec/rkeConfig/machinePools/{pool}/labels"), "value": {"tier": "gold"}},
        {"op": "add", "path": format!("/spec/rkeConfig/machinePools/{pool}/taints"), "value": taint},
    ]);
    json_patch(person, &patch);
    let follows = |label: &str, taints: &Value| {
        let nodes = items(&person.get_demo(&["nodes"]));
        let workers: Vec<&Value> = nodes.iter().filter(|node| name(node).contains("worker")).collect();
        let ok = workers.iter().all(|node| {
            let only = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
            let only: Vec<&Value> = only.iter().filter(|taint| taint["key"] == "only").collect();
            text(node, "/metadata/labels/tier") == label && json!(only) == *taints
        });
        let others = nodes.iter().filter(|node| !name(node).contains("worker"));
        let untouched = others.into_iter().all(|node| node["metadata"]["labels"]["tier"].is_null());
        when(ok && untouched, format!("{workers:#?}"))
    };
    eventually(|| follows("gold", &taint));
    let patch = json!([
        {"op": "remove", "path": format!("/spec/rkeConfig/machinePools/{pool}/labels/tier")},
        {"op": "remove", "path": format!("/spec/rkeConfig/machinePools/{pool}/taints")},
    ]);
    json_patch(person, &patch);
    eventually(|| follows("", &json!([])));
    settled(person);
    assert_eq!(Identities::of(person), before, "nothing is replaced");
    assert_eq!(Restarts::of(person), restarts, "nothing restarts");
}

/// Point 5: 2 → 4 by `kubectl scale`, which the pool mirrors, → 1 in the pool.
fn scales(person: &Person) {
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
}

/// Point 5: a worker Machine that is deleted by hand is replaced.
fn replaces_a_machine(person: &Person) {
    let worker = machines(person).iter().map(name).find(|name| name.contains("worker")).unwrap();
    person.kubectl(&["delete", "machine", &worker, "--timeout=120s"]).ok();
    eventually(|| workers_are(person, 1));
    let others = machines(person);
    assert!(others.iter().all(|machine| name(machine) != worker), "a new one took its place");
    settled(person);
}

/// Point 5: a pool comes and goes.
fn adds_and_removes_a_pool(person: &Person) {
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
    assert_eq!(Identities::of(person), before, "the other pools are as they were");
}

/// Point 5: a bare machine joins by the registration command.
fn brings_a_machine_of_their_own(person: &Person) {
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

/// `drover machine stop|start`: quickstart gives a machine its power back by itself, so either starts it.
fn powers_a_machine_off_and_on(person: &Person) {
    let before = Identities::of(person);
    person.drover(&["machine", "stop", "mine"]).ok();
    person.drover(&["machine", "start", "mine"]).ok();
    eventually(|| {
        let state = person.drover(&["machine", "status", "mine"]);
        when(state.out.contains("Running"), state.out)
    });
    settled(person);
    assert_eq!(Identities::of(person).but_processes(), before.but_processes());
}

/// Point 1: stopping powers off and keeps the disks; the same command carries on with the same machines and nodes.
fn stops_and_carries_on(person: &Person, stop: &str) {
    let before = Identities::of(person).but_processes();
    let said = copied(person, stop).ok();
    let again = hint(&said, "quickstart");
    assert!(person.drover(&["get", "clusters"]).refused().contains("does not answer"));
    let listed = person.drover(&["machine", "ls"]).ok();
    assert!(listed.contains("Stopped") && !listed.contains("Running"), "{listed}");
    assert!(person.drover(&["quickstart", "--stop"]).ok().contains("nothing was running"));
    assert_eq!(person.processes(), Vec::<String>::new(), "neither stopping nor looking leaves a process");
    assert!(!person.data_dir.join("quickstart.ready").exists(), "nothing says that it runs");

    let said = copied(person, &format!("{again} --bind 127.0.0.1:0 --detach --machines 50")).ok();
    assert!(said.contains("--machines changes nothing"), "flags for a new cluster:\n{said}");
    eventually(|| {
        let nodes = items(&person.get_demo(&["nodes"]));
        when(
            nodes.iter().all(|node| condition(node, "Ready") == "True"),
            nodes.iter().map(name).collect::<Vec<_>>(),
        )
    });
    settled(person);
    assert_eq!(Identities::of(person).but_processes(), before, "the same machines and nodes");
}

/// Point 5: the cluster goes, with everything it caused; the bare machine, which it did not cause, stays.
fn deletes_the_cluster(person: &Person) {
    person.kubectl(&["delete", CLUSTER, "--timeout=180s"]).ok();
    let kinds = "clusters.cluster.x-k8s.io,machinedeployments,machinesets,machines,rkecontrolplanes,rkeclusters,\
                 rkebootstraps,rkebootstraptemplates,custommachines,localmachines,localmachinetemplates,localconfigs,\
                 jobs,pods,secrets,serviceaccounts,roles,rolebindings,configmaps";
    eventually(|| {
        let left = person.kubectl(&["get", &kinds.replace(' ', ""), "-o", "name"]).ok();
        let own = ["serviceaccount/default", "configmap/kube-root-ca.crt"];
        let left: Vec<&str> = left.lines().filter(|line| !own.contains(line)).collect();
        when(left.is_empty(), format!("{left:?}"))
    });
    assert_eq!(person.kubectl(&["get", "clusters.management.cattle.io", "-o", "name"]).ok(), "");
    let namespaces = person.kubectl(&["get", "namespaces", "-o", "name"]).ok();
    assert!(!namespaces.contains("c-m-"), "{namespaces}");
    let listed = person.drover(&["machine", "ls", "-q"]).ok();
    assert_eq!(listed.trim(), "mine", "machines");
    eventually(|| {
        let left = files_of_machines(&person.data_dir);
        when(left.is_empty(), left)
    });
    let kubeconfig = person.data_dir.join("clusters/demo.kubeconfig");
    eventually(|| when(!kubeconfig.exists(), "the kubeconfig stays"));
    person.drover(&["machine", "rm", "-y", "mine"]).ok();
    assert_eq!(person.drover(&["machine", "ls", "-q"]).ok(), "");
}

/// A cluster that was asked to go, and is not gone when the next quickstart comes, is made anew.
fn begins_again_before_it_is_gone(person: &Person) {
    person.drover(&["quickstart", "--stop"]).ok();
    person.quickstart(&["--detach", "--machines", "2"]).ok();
    let first = text(&person.get(&[CLUSTER]), "/metadata/uid");
    person.kubectl(&["delete", CLUSTER, "--wait=false"]).ok();
    person.drover(&["quickstart", "--stop"]).ok();
    let said = person.quickstart(&["--detach"]).ok();
    assert_ne!(text(&person.get(&[CLUSTER]), "/metadata/uid"), first, "{said}");
    assert_eq!(items(&person.get_demo(&["nodes"])).len(), 3);
}

/// Point 1: `--delete` leaves no process, mount, file or address.
fn leaves_nothing(person: &Person) {
    let bridges = addresses();
    assert!(person.drover(&["quickstart", "--delete"]).ok().contains("everything is gone"));
    assert!(!person.data_dir.exists());
    eventually(|| when(person.processes().is_empty(), person.processes()));
    assert_eq!(person.mounts(), Vec::<String>::new());
    assert!(addresses().is_subset(&bridges), "no address of this host is new");
    assert!(person.drover(&["quickstart", "--delete"]).ok().contains("nothing to delete"));
}

/// A `kubectl get --watch`, ended with the test however that ends.
struct Watch(std::process::Child);

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn addresses() -> BTreeSet<String> {
    let table = std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    table.lines().map(|line| line.trim().to_owned()).collect()
}

/// Files in the data directory that carry the name of a machine of the demo cluster.
fn files_of_machines(dir: &Path) -> Vec<String> {
    let mut found = vec![];
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let named = entry.file_name().to_string_lossy().contains("demo-");
        if named {
            found.push(entry.path().display().to_string());
        } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) && entry.file_name() != "mine" {
            found.extend(files_of_machines(&entry.path()));
        }
    }
    found
}

fn machines(person: &Person) -> Vec<Value> {
    items(&person.get(&["machines"]))
}

fn worker_pool(person: &Person) -> usize {
    let cluster = person.get(&[CLUSTER]);
    let pools = cluster["spec"]["rkeConfig"]["machinePools"].as_array().cloned().unwrap_or_default();
    pools.iter().position(|pool| pool["name"] == "worker").unwrap()
}

#[track_caller]
fn json_patch(person: &Person, patch: &Value) {
    person.kubectl(&["patch", CLUSTER, "--type", "json", "-p", &patch.to_string()]).ok();
}

/// The worker pool has so many machines, each a Ready node, each a real machine, and no more.
fn workers_are(person: &Person, count: usize) -> Result<(), String> {
    let named =
        |names: Vec<String>| names.into_iter().filter(|n| n.contains("worker")).collect::<BTreeSet<_>>();
    let wanted = named(machines(person).iter().map(name).collect());
    let nodes = items(&person.get_demo(&["nodes"]));
    let nodes = named(nodes.iter().filter(|node| condition(node, "Ready") == "True").map(name).collect());
    let real = named(person.drover(&["machine", "ls", "-q"]).ok().lines().map(str::to_owned).collect());
    let seen = format!("Machines {wanted:?}, nodes {nodes:?}, machines {real:?}");
    when(wanted.len() == count && wanted == nodes && wanted == real, seen)
}

/// Waits until the controllers have seen the last change and the cluster is Ready with it.
fn settled(person: &Person) {
    eventually(|| {
        let cluster = person.get(&[CLUSTER]);
        let seen = cluster["status"]["observedGeneration"] == cluster["metadata"]["generation"];
        let good =
            ["Ready", "Updated", "Provisioned"].iter().all(|type_| condition(&cluster, type_) == "True");
        let machines = machines(person);
        let running =
            machines.iter().all(|m| condition(m, "Ready") == "True" && condition(m, "NodeHealthy") == "True");
        when(seen && good && running, format!("{:#}", cluster["status"]))
    });
}

/// Who is who, by machine name: Machine uid, Node uid, machine-id, and process 1's begin.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identities(BTreeMap<String, [String; 4]>);

impl Identities {
    fn of(person: &Person) -> Self {
        let nodes = items(&person.get_demo(&["nodes"]));
        let of = |machine: &Value| {
            let node = text(machine, "/status/nodeRef/name");
            let uid =
                nodes.iter().find(|n| name(n) == node).map(|n| text(n, "/metadata/uid")).unwrap_or_default();
            let line = "cat /etc/machine-id; cut -d' ' -f22 /proc/1/stat";
            let inside = person.in_machine(&node, &[line]).ok();
            let (id, begun) = inside.split_once('\n').unwrap_or_default();
            (
                node,
                [
                    text(machine, "/metadata/uid"),
                    uid,
                    id.to_owned(),
                    begun.lines().last().unwrap_or_default().to_owned(),
                ],
            )
        };
        Self(machines(person).iter().map(of).collect())
    }

    /// Without the processes, which do not survive a loss of power.
    fn but_processes(&self) -> BTreeMap<String, [String; 3]> {
        let part = |[machine, node, id, _]: &[String; 4]| [machine.clone(), node.clone(), id.clone()];
        self.0.iter().map(|(name, ids)| (name.clone(), part(ids))).collect()
    }
}

/// The process id of Kubernetes, by machine name.
#[derive(Debug, PartialEq, Eq)]
struct Restarts(BTreeMap<String, String>);

impl Restarts {
    fn of(person: &Person) -> Self {
        let of = |machine: &Value| {
            let node = text(machine, "/status/nodeRef/name");
            let line = "systemctl show -p MainPID --value k3s k3s-agent";
            let pids = person.in_machine(&node, &[line]).ok();
            let pid = pids.lines().find(|pid| !pid.is_empty() && *pid != "0").unwrap_or_default();
            (node, pid.to_owned())
        };
        Self(machines(person).iter().map(of).collect())
    }
}
