//! Points 2 and 3: the output of kubectl and drover for the management plane and the cluster.

use std::io::BufRead;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::FIRST;
use crate::common::{Person, eventually, items, name, when};
use crate::who::machines;

/// Point 2: the output of kubectl and drover.
pub(crate) fn looks_around(person: &Person) {
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
    let described = person.kubectl(&["describe", "machines", "--show-events=true"]).ok();
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
    finds_existing_clusters_and_reports_missing_ones(person);
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
    let why = person.drover(&["why", "demo"]).ok();
    assert_eq!(why, "Cluster fleet-default/demo is not waiting for anything.\n");
    for object in ["controlplane/demo", "pool/worker", "pool/demo-worker"] {
        assert!(person.drover(&["why", object]).ok().contains("is not waiting"), "{object}");
    }
    let listed = person.drover(&["machine", "ls", "-o", "json"]).ok();
    let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed.len(), 3, "{listed:?}");
    let refused = person.drover(&["get", "clusters", "--kubeconfig", &path]).refused();
    assert!(refused.contains(&path) && refused.contains("is not a Drover management plane"), "{refused}");
    let refused = person.drover(&["describe", "cluster", "nobody"]).refused();
    assert!(refused.contains("cluster nobody not found"), "{refused}");
}

/// Point 3: the demo cluster through Drover.
pub(crate) fn uses_the_cluster(person: &Person) {
    // Roles are labels that are set shortly after a Node appears.
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
    // access#23: impersonation is rejected instead of being answered with the caller's own permissions.
    let refused = person.kubectl_demo(&["get", "nodes", "--as", "nobody"]).refused();
    assert!(refused.contains("is not supported for clusters"), "{refused}");
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
    // A watch cannot show that it has started, so missed changes are repeated.
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

    let mut wrong: Value = serde_saphyr::from_str(&std::fs::read_to_string(&kubeconfig).unwrap()).unwrap();
    let token = wrong.pointer_mut("/users/0/user/token").unwrap();
    let (who, _) = token.as_str().unwrap().split_once(':').unwrap();
    *token = json!(format!("{who}:0123456789"));
    let path = person.write("wrong.kubeconfig", &wrong.to_string());
    let refused = person.kubectl_with(Path::new(&path), &["get", "nodes"]).refused();
    assert!(refused.contains("Unauthorized") || refused.contains("must be logged in"), "{refused}");
}

/// A `kubectl get --watch` that ends with the test.
struct Watch(std::process::Child);

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// As kubectl: prints what was found and an error for each missing object, and the exit code reports it.
fn finds_existing_clusters_and_reports_missing_ones(person: &Person) {
    let some = person.drover(&["get", "clusters", "gone", "demo", "lost"]);
    let rows: Vec<&str> = some.out.lines().collect();
    assert!(some.code == 1 && rows.len() == 2 && rows[1].contains("demo"), "{}", some.out);
    let text: Vec<&str> = some.err.lines().collect();
    assert!(
        text.len() == 2 && text[0].contains("cluster gone") && text[1].contains("cluster lost"),
        "{text:?}"
    );
    for (names, kind) in
        [(&["demo", "gone"][..], "List"), (&["gone", "lost"], "List"), (&["demo"], "Cluster")]
    {
        let all = [&["get", "clusters", "-o", "json"], names].concat();
        let shown: serde_json::Value = serde_json::from_str(&person.drover(&all).out).unwrap();
        assert_eq!(shown["kind"], kind, "{names:?}");
    }
    let none = person.drover(&["get", "clusters", "gone", "lost"]);
    assert_eq!((none.code, none.out.as_str(), none.err.lines().count()), (1, "", 2));
}
