//! Shared by several files: which machines exist, whether the cluster has settled, and identities.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::CLUSTER;
use crate::common::{Person, condition, eventually, items, name, text, when};

pub(crate) fn machines(person: &Person) -> Vec<Value> {
    items(&person.get(&["machines"]))
}

pub(crate) fn worker_pool(person: &Person) -> usize {
    let cluster = person.get(&[CLUSTER]);
    let pools = cluster["spec"]["rkeConfig"]["machinePools"].as_array().cloned().unwrap_or_default();
    pools.iter().position(|pool| pool["name"] == "worker").unwrap()
}

#[track_caller]
pub(crate) fn json_patch(person: &Person, patch: &Value) {
    person.kubectl(&["patch", CLUSTER, "--type", "json", "-p", &patch.to_string()]).ok();
}

/// The worker pool has exactly this many machines, each with a Ready node and a local machine.
pub(crate) fn workers_are(person: &Person, count: usize) -> Result<(), String> {
    let named =
        |names: Vec<String>| names.into_iter().filter(|n| n.contains("worker")).collect::<BTreeSet<_>>();
    let wanted = named(machines(person).iter().map(name).collect());
    let nodes = items(&person.get_demo(&["nodes"]));
    let nodes = named(nodes.iter().filter(|node| condition(node, "Ready") == "True").map(name).collect());
    let real = named(person.drover(&["machine", "ls", "-q"]).ok().lines().map(str::to_owned).collect());
    let seen = format!("Machines {wanted:?}, nodes {nodes:?}, machines {real:?}");
    when(wanted.len() == count && wanted == nodes && wanted == real, seen)
}

/// Waits until the controllers have processed the last change and the cluster is Ready.
pub(crate) fn settled(person: &Person) {
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

/// Identities by machine name: Machine uid, Node uid, machine-id, and start time of process 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identities(pub(crate) BTreeMap<String, [String; 4]>);

impl Identities {
    pub(crate) fn of(person: &Person) -> Self {
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

    /// Without the processes, which end with the machine's power.
    pub(crate) fn but_processes(&self) -> BTreeMap<String, [String; 3]> {
        let part = |[machine, node, id, _]: &[String; 4]| [machine.clone(), node.clone(), id.clone()];
        self.0.iter().map(|(name, ids)| (name.clone(), part(ids))).collect()
    }
}

/// Process ids of Kubernetes by machine name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Restarts(pub(crate) BTreeMap<String, String>);

impl Restarts {
    pub(crate) fn of(person: &Person) -> Self {
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
