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
use crate::output::Format;

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
        /// Show every condition, not only the telling ones.
        #[arg(long)]
        show_conditions: bool,
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
        print!("{}", output.render(&tree, || draw(&tree, show_conditions))?);
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
}

impl Branch {
    fn new(kind: &'static str, name: String, conditions: Vec<Condition>, summary: &str) -> Self {
        let of = |type_: &str| conditions.iter().find(|c| c.type_ == type_);
        let ready = of(summary).map(|c| c.status.clone()).unwrap_or_default();
        let note = of(summary).filter(|c| c.status != "True").map(|c| c.message.clone()).unwrap_or_default();
        Self { kind, name, ready, note, conditions, children: vec![] }
    }
}

fn rancher(conditions: &[drover_api::rke::v1::GenericCondition]) -> Vec<Condition> {
    let convert = |c: &drover_api::rke::v1::GenericCondition| Condition {
        type_: c.type_.clone(),
        status: c.status.clone(),
        reason: c.reason.clone(),
        message: c.message.clone(),
    };
    conditions.iter().map(convert).collect()
}

fn kubernetes(conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition]) -> Vec<Condition> {
    let convert = |c: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| Condition {
        type_: c.type_.clone(),
        status: c.status.clone(),
        reason: c.reason.clone(),
        message: c.message.clone(),
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

fn draw(root: &Branch, all: bool) -> String {
    let mut out = String::new();
    line(root, "", "", all, &mut out);
    out
}

fn line(branch: &Branch, first: &str, rest: &str, all: bool, out: &mut String) {
    let ready = if branch.ready.is_empty() { "-" } else { &branch.ready };
    let text = format!("{first}{} {}", branch.kind, branch.name);
    let note = branch.note.replace('\n', " ");
    out.push_str(format!("{text:<60} {ready:<8} {note}").trim_end());
    out.push('\n');
    let shown: Vec<&Condition> = branch.conditions.iter().filter(|c| all && !c.type_.is_empty()).collect();
    let bar = if branch.children.is_empty() { "  " } else { "│ " };
    for condition in shown {
        let text = format!("{rest}{bar}    {}", condition.type_);
        let why = [condition.reason.as_str(), condition.message.as_str()];
        let why = why
            .iter()
            .filter(|part| !part.is_empty())
            .copied()
            .collect::<Vec<_>>()
            .join(": ")
            .replace('\n', " ");
        out.push_str(format!("{text:<60} {:<8} {why}", condition.status).trim_end());
        out.push('\n');
    }
    for (index, child) in branch.children.iter().enumerate() {
        let last = index + 1 == branch.children.len();
        let (head, tail) = if last { ("└─", "  ") } else { ("├─", "│ ") };
        line(child, &format!("{rest}{head}"), &format!("{rest}{tail}"), all, out);
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
        let drawn = draw(&root, false);
        let heads: Vec<&str> = drawn.lines().map(|line| line.split("  ").next().unwrap()).collect();
        assert_eq!(
            heads,
            ["Cluster demo", "├─MachineDeployment p", "│ ├─Machine a", "│ └─Machine b", "└─Machine c"]
        );
        assert!(drawn.contains("False    Pending"));
    }
}
