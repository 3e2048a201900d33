//! Point 4: changes that are applied without replacing machines.

use serde_json::{Value, json};

use crate::common::{self, Person, eventually, items, name, text, when};
use crate::who::{Identities, Restarts, json_patch, settled, worker_pool};
use crate::{CLUSTER, FIRST, SECOND};

/// Point 4: a new version, applied in place, to the init node first and to the workers one by one.
pub(crate) fn changes_the_version(person: &Person) {
    let before = Identities::of(person);
    person.patch_cluster(&json!({"spec": {"rkeConfig": {"upgradeStrategy": {"workerConcurrency": "1"}}}}));
    settled(person);
    let restarts = Restarts::of(person);
    // As a user would, with an editor on the whole object.
    let mut edit = person.command("kubectl");
    edit.env("KUBE_EDITOR", format!("sed -i s/{FIRST}/{SECOND}/"));
    edit.arg("--kubeconfig").arg(person.data_dir.join("kubeconfig.yaml"));
    common::run(edit.args(["-n", "fleet-default", "edit", CLUSTER]), "kubectl edit").ok();
    let mut order: Vec<String> = vec![];
    let mut most = 0;
    eventually(|| {
        most = most.max(workers_at_work(person).len());
        // The API of the init node is not available while it is restarted.
        let answer = person.kubectl_demo(&["get", "nodes", "-o", "json"]);
        let nodes: Value = serde_json::from_str(&answer.out).map_err(|_| answer.err)?;
        let new = items(&nodes).into_iter().filter(|n| text(n, "/status/nodeInfo/kubeletVersion") == SECOND);
        let new: Vec<String> = new.map(|node| name(&node)).filter(|name| !order.contains(name)).collect();
        order.extend(new);
        when(order.len() == 3, format!("{order:?}"))
    });
    assert!(order[0].contains("control-plane"), "the init node is upgraded first: {order:?}");
    settled(person);
    assert_eq!(Identities::of(person), before, "nothing is replaced");
    let after = Restarts::of(person);
    assert!(restarts.0.iter().all(|(name, pid)| after.0[name] != *pid), "{restarts:?} {after:?}");
    assert_eq!(most, 1, "with workerConcurrency 1, one worker is upgraded at a time");
}

/// Workers with a plan that they have not applied yet.
fn workers_at_work(person: &Person) -> Vec<String> {
    let secrets = items(&person.get(&["secrets", "--field-selector", "type=rke.cattle.io/machine-plan"]));
    let busy = |secret: &&Value| {
        let plan = text(secret, "/data/plan");
        name(secret).contains("worker") && !plan.is_empty() && plan != text(secret, "/data/appliedPlan")
    };
    secrets.iter().filter(busy).map(name).collect()
}

/// Point 4: a new setting reaches the file and the process of every machine without replacing any.
pub(crate) fn changes_the_config(person: &Person) {
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

/// Point 4: labels and taints of a pool reach its nodes without a restart.
pub(crate) fn changes_a_pool(person: &Person) {
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
