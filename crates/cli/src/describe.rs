//! `drover describe cluster`: a cluster as a tree, with what each part waits for.

use anyhow::Context;
use clap::{Args, Subcommand};
use drover_api::capi::v1beta2::{Cluster as CapiCluster, Machine, MachineDeployment};
use drover_api::labels::capi::{CLUSTER_NAME, DEPLOYMENT_NAME};
use drover_api::provisioning::v1::Cluster;
use drover_api::rke::v1::RKEControlPlane;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use serde::Serialize;

use crate::cluster::Plane;
use crate::output::{Format, age, answer, columns};

/// Conditions of which False is the good state.
const NEGATIVE: [&str; 9] = [
    "Deleting",
    "Paused",
    "Reconciling",
    "Remediating",
    "RollingOut",
    "ScalingDown",
    "ScalingUp",
    "Stalled",
    "Updating",
];

#[derive(Args)]
pub(crate) struct Describe {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Show a cluster, its control plane, pools and machines.
    Cluster {
        /// The cluster.
        name: String,
        /// Show every condition, not only those that are not as they should be.
        #[arg(long)]
        show_conditions: bool,
        /// How to print it.
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
        #[command(flatten)]
        plane: Plane,
    },
}

impl Describe {
    pub(crate) async fn run(self) -> anyhow::Result<i32> {
        let What::Cluster { name, show_conditions, output, plane } = self.what;
        let client = plane.client().await?;
        let tree = gather(&client, &plane.namespace, &name).await?;
        let now = jiff::Timestamp::now();
        answer(&output.render(&tree, || draw(&tree, show_conditions, now))?)?;
        Ok(0)
    }
}

/// One object and what is below it.
#[derive(Debug, Default, Serialize)]
struct Branch {
    kind: &'static str,
    name: String,
    /// True, False, Unknown, or empty when nothing is known.
    ready: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<jiff::Timestamp>,
    #[serde(skip_serializing_if = "String::is_empty")]
    note: String,
    conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    children: Vec<Branch>,
}

#[derive(Clone, Debug, Serialize)]
struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<jiff::Timestamp>,
}

impl Condition {
    fn is_good(&self) -> bool {
        self.status == if NEGATIVE.contains(&self.type_.as_str()) { "False" } else { "True" }
    }
}

impl Branch {
    fn new(kind: &'static str, name: String, conditions: Vec<Condition>, summary: &str) -> Self {
        let of = |type_: &str| conditions.iter().find(|c| c.type_ == type_);
        let ready = of(summary).map(|c| c.status.clone()).unwrap_or_default();
        let since = of(summary).and_then(|c| c.since);
        let note = of(summary).filter(|c| c.status != "True").map(|c| c.message.clone()).unwrap_or_default();
        Self { kind, name, ready, since, note, conditions, children: vec![] }
    }
}

fn rancher(conditions: &[drover_api::rke::v1::GenericCondition]) -> Vec<Condition> {
    let convert = |c: &drover_api::rke::v1::GenericCondition| Condition {
        type_: c.type_.clone(),
        status: c.status.clone(),
        reason: c.reason.clone(),
        message: c.message.clone(),
        since: c.last_transition_time.parse().ok(),
    };
    conditions.iter().map(convert).collect()
}

fn kubernetes(conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition]) -> Vec<Condition> {
    let convert = |c: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| Condition {
        type_: c.type_.clone(),
        status: c.status.clone(),
        reason: c.reason.clone(),
        message: c.message.clone(),
        since: Some(c.last_transition_time.0),
    };
    conditions.iter().map(convert).collect()
}

async fn gather(client: &kube::Client, namespace: &str, name: &str) -> anyhow::Result<Branch> {
    let clusters: Api<Cluster> = Api::namespaced(client.clone(), namespace);
    let cluster = clusters.get_opt(name).await?.with_context(|| {
        format!("there is no cluster {name} in namespace {namespace}; `drover get clusters -A` lists all")
    })?;
    let status = cluster.status.as_ref();
    let mut root =
        Branch::new("Cluster", cluster.name_any(), rancher(status.map_or(&[], |s| &s.conditions)), "Ready");
    let capi: Api<CapiCluster> = Api::namespaced(client.clone(), namespace);
    if let Some(capi) = capi.get_opt(name).await? {
        let conditions = kubernetes(capi.status.as_ref().map_or(&[], |s| &s.conditions));
        root.children.push(Branch::new("CAPI Cluster", capi.name_any(), conditions, "Available"));
    }
    let planes: Api<RKEControlPlane> = Api::namespaced(client.clone(), namespace);
    if let Some(plane) = planes.get_opt(name).await? {
        let conditions = rancher(plane.status.as_ref().map_or(&[], |s| &s.conditions));
        root.children.push(Branch::new("RKEControlPlane", plane.name_any(), conditions, "Ready"));
    }
    let of_cluster = ListParams::default().labels(&format!("{CLUSTER_NAME}={name}"));
    let machines: Api<Machine> = Api::namespaced(client.clone(), namespace);
    let mut machines = machines.list(&of_cluster).await?.items;
    let deployments: Api<MachineDeployment> = Api::namespaced(client.clone(), namespace);
    for deployment in deployments.list(&of_cluster).await?.items {
        let conditions = kubernetes(deployment.status.as_ref().map_or(&[], |s| &s.conditions));
        let mut pool = Branch::new("MachineDeployment", deployment.name_any(), conditions, "Available");
        let (mine, rest) = machines
            .into_iter()
            .partition(|machine| machine.labels().get(DEPLOYMENT_NAME) == Some(&deployment.name_any()));
        machines = rest;
        pool.children = Vec::from_iter(mine).iter().map(machine_branch).collect();
        root.children.push(pool);
    }
    root.children.extend(machines.iter().map(machine_branch));
    Ok(root)
}

fn machine_branch(machine: &Machine) -> Branch {
    let status = machine.status.as_ref();
    let conditions = kubernetes(status.map_or(&[], |s| &s.conditions));
    let mut branch = Branch::new("Machine", machine.name_any(), conditions, "Ready");
    let phase = status.and_then(|s| s.phase.clone()).unwrap_or_default();
    branch.note =
        [phase, branch.note].iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join(": ");
    branch
}

fn draw(root: &Branch, all: bool, now: jiff::Timestamp) -> String {
    let mut rows = Vec::new();
    push(root, "", "", all, now, &mut rows);
    columns(&["NAME", "READY", "SINCE", "MESSAGE"], &rows)
}

fn push(
    branch: &Branch,
    first: &str,
    rest: &str,
    all: bool,
    now: jiff::Timestamp,
    rows: &mut Vec<Vec<String>>,
) {
    let since = |since: Option<jiff::Timestamp>| since.map(|since| age(since, now)).unwrap_or_default();
    let ready = if branch.ready.is_empty() { "-" } else { &branch.ready };
    let name = format!("{first}{} {}", branch.kind, branch.name);
    rows.push(vec![name, ready.to_owned(), since(branch.since), branch.note.replace('\n', " ")]);
    let bar = if branch.children.is_empty() { "  " } else { "│ " };
    let shown = branch.conditions.iter().filter(|c| !c.type_.is_empty() && (all || !c.is_good()));
    for condition in shown {
        let why = [condition.reason.as_str(), condition.message.as_str()];
        let why: Vec<&str> = why.into_iter().filter(|part| !part.is_empty()).collect();
        rows.push(vec![
            format!("{rest}{bar}  • {}", condition.type_),
            condition.status.clone(),
            since(condition.since),
            why.join(": ").replace('\n', " "),
        ]);
    }
    for (index, child) in branch.children.iter().enumerate() {
        let last = index + 1 == branch.children.len();
        let (head, tail) = if last { ("└─", "  ") } else { ("├─", "│ ") };
        push(child, &format!("{rest}{head}"), &format!("{rest}{tail}"), all, now, rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_drawn_with_what_each_part_waits_for() {
        let leaf = |name: &str| Branch {
            kind: "Machine",
            name: name.into(),
            ready: "False".into(),
            note: "Pending".into(),
            ..Branch::default()
        };
        let pool = Branch {
            kind: "MachineDeployment",
            name: "p".into(),
            ready: "True".into(),
            children: vec![leaf("a"), leaf("b")],
            ..Branch::default()
        };
        let root = Branch {
            kind: "Cluster",
            name: "demo".into(),
            children: vec![pool, leaf("c")],
            ..Branch::default()
        };
        let drawn = draw(&root, false, jiff::Timestamp::UNIX_EPOCH);
        let heads: Vec<&str> = drawn.lines().map(|line| line.split("  ").next().unwrap()).collect();
        assert_eq!(
            heads,
            [
                "NAME",
                "Cluster demo",
                "├─MachineDeployment p",
                "│ ├─Machine a",
                "│ └─Machine b",
                "└─Machine c"
            ]
        );
        assert!(drawn.lines().last().unwrap().ends_with("Pending"), "{drawn}");
    }

    #[test]
    fn conditions_are_shown_when_they_are_not_as_they_should_be() {
        let condition = |type_: &str, status: &str| Condition {
            type_: type_.into(),
            status: status.into(),
            reason: "Because".into(),
            message: "of this".into(),
            since: Some(jiff::Timestamp::UNIX_EPOCH),
        };
        let conditions =
            vec![condition("Ready", "False"), condition("Paused", "False"), condition("Stalled", "True")];
        let root = Branch::new("Cluster", "demo".into(), conditions, "Ready");
        let drawn = |all| draw(&root, all, jiff::Timestamp::from_second(300).unwrap());
        assert!(drawn(false).contains("• Stalled   True    5m      Because: of this"), "{}", drawn(false));
        assert!(!drawn(false).contains("Paused") && drawn(true).contains("Paused"));
    }
}
