//! `drover describe cluster`: a cluster as a tree, with the waits of each part.

use std::collections::HashMap;

use anyhow::Context;
use clap::{Args, Subcommand};
use drover_api::capi::v1beta2::{Cluster as CapiCluster, Machine, MachineDeployment};
use drover_api::labels::capi::DEPLOYMENT_NAME;
use drover_api::provisioning::v1::Cluster;
use drover_api::rke::v1::RKEControlPlane;
use drover_capi::waits::is_negative;
use drover_runtime::conditions::{FALSE, TRUE};
use serde::Serialize;

use crate::args::path_name;
use crate::cluster::Plane;
use crate::family::{Condition, Family, Fetch, Item, Key};
use crate::get::no_cluster;
use crate::output::{Format, age, answer, columns};

#[derive(Args)]
pub(crate) struct Describe {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Show a cluster, its control plane, pools and machines.
    Cluster {
        /// Name of the cluster.
        #[arg(value_parser = path_name)]
        name: String,
        /// Show all conditions, not only the unhealthy ones.
        #[arg(long)]
        show_conditions: bool,
        /// Output format.
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
        let family = Fetch::new(&client, &plane.namespace).family(&name).await?;
        let tree = tree(&family, &name).with_context(|| no_cluster(&name, &plane.namespace))?;
        let now = jiff::Timestamp::now();
        answer(&output.render(&tree, || draw(&tree, show_conditions, now))?)?;
        Ok(0)
    }
}

/// One object with its children.
#[derive(Debug, Default, Serialize)]
struct Branch {
    kind: &'static str,
    name: String,
    /// True, False, Unknown, or empty if unknown.
    ready: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<jiff::Timestamp>,
    #[serde(skip_serializing_if = "String::is_empty")]
    note: String,
    /// The first part of the note, before the message.
    #[serde(skip)]
    phase: String,
    conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    children: Vec<Branch>,
}

fn is_good(condition: &Condition) -> bool {
    condition.status == if is_negative(&condition.type_) { FALSE } else { TRUE }
}

impl Branch {
    fn new(kind: &'static str, name: String, conditions: Vec<Condition>, summary: &str) -> Self {
        let of = |type_: &str| conditions.iter().find(|c| c.type_ == type_);
        let ready = of(summary).map(|c| c.status.clone()).unwrap_or_default();
        let since = of(summary).and_then(|c| c.since);
        let note = of(summary).filter(|c| c.status != "True").map(|c| c.message.clone()).unwrap_or_default();
        Self { kind, name, ready, since, note, phase: String::new(), conditions, children: vec![] }
    }
}

fn tree(family: &Family, name: &str) -> Option<Branch> {
    let branch =
        |kind, item: &Item, summary| Branch::new(kind, item.key.name.clone(), item.conditions(), summary);
    let mut root = branch("Cluster", family.get(&Key::of::<Cluster>(name))?, "Ready");
    let capi = family.get(&Key::of::<CapiCluster>(name));
    root.children.extend(capi.map(|capi| branch("CAPI Cluster", capi, "Available")));
    let plane = family.get(&Key::of::<RKEControlPlane>(name));
    root.children.extend(plane.map(|plane| branch("RKEControlPlane", plane, "Ready")));
    let mut machines: Vec<&Item> = family.all::<Machine>().collect();
    for deployment in family.all::<MachineDeployment>() {
        let mut pool = branch("MachineDeployment", deployment, "Available");
        let mine = |machine: &Item| machine.label(DEPLOYMENT_NAME) == Some(deployment.key.name.as_str());
        pool.children = machines.extract_if(.., |machine| mine(machine)).map(machine_branch).collect();
        root.children.push(pool);
    }
    root.children.extend(machines.into_iter().map(machine_branch));
    Some(root)
}

fn machine_branch(machine: &Item) -> Branch {
    let mut branch = Branch::new("Machine", machine.key.name.clone(), machine.conditions(), "Ready");
    let phase = machine.text("/status/phase").unwrap_or_default();
    branch.note =
        [phase, &branch.note].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ");
    branch.phase = phase.to_owned();
    branch
}

fn draw(root: &Branch, all: bool, now: jiff::Timestamp) -> String {
    let mut tree = Drawing { all, now, rows: vec![], shown: HashMap::new() };
    tree.push(root, "", "");
    columns(&["NAME", "READY", "SINCE", "MESSAGE"], &tree.rows)
}

/// Messages up to this length are repeated instead of referred to.
const SHORT: usize = 40;

/// The state of drawing a tree.
struct Drawing<'a> {
    all: bool,
    now: jiff::Timestamp,
    rows: Vec<Vec<String>>,
    /// The branch that shows a long message in full.
    shown: HashMap<&'a str, &'a Branch>,
}

impl<'a> Drawing<'a> {
    fn push(&mut self, branch: &'a Branch, first: &str, rest: &str) {
        let ready = if branch.ready.is_empty() { "-" } else { &branch.ready };
        let name = format!("{first}{} {}", branch.kind, branch.name);
        let bar = if branch.children.is_empty() { "  " } else { "│ " };
        let below = format!("{rest}{bar}");
        let sentence = branch.note.strip_prefix(branch.phase.as_str()).unwrap_or(&branch.note);
        let why = self.why(branch, &branch.phase, sentence.strip_prefix(": ").unwrap_or(sentence));
        self.row([name, ready.to_owned(), self.age(branch.since)], why, &below);
        for condition in &branch.conditions {
            if condition.type_.is_empty() || (!self.all && is_good(condition)) {
                continue;
            }
            let why = self.why(branch, &condition.reason, &condition.message);
            let name = format!("{below}  • {}", condition.type_);
            self.row([name, condition.status.clone(), self.age(condition.since)], why, &below);
        }
        for (index, child) in branch.children.iter().enumerate() {
            let last = index + 1 == branch.children.len();
            let (head, tail) = if last { ("└─", "  ") } else { ("├─", "│ ") };
            self.push(child, &format!("{rest}{head}"), &format!("{rest}{tail}"));
        }
    }

    fn age(&self, since: Option<jiff::Timestamp>) -> String {
        since.map(|since| age(since, self.now)).unwrap_or_default()
    }

    /// Adds the lines of a message; `below` continues the tree beside all but the first.
    fn row(&mut self, cells: [String; 3], why: Vec<String>, below: &str) {
        let mut why = why.into_iter();
        self.rows.push(cells.into_iter().chain([why.next().unwrap_or_default()]).collect());
        for line in why {
            self.rows.push(vec![below.to_owned(), String::new(), String::new(), line]);
        }
    }

    /// The lines of a message after its prefix. A long message is shown once and then referred to.
    fn why(&mut self, branch: &'a Branch, lead: &str, sentence: &'a str) -> Vec<String> {
        let sentence = sentence.trim();
        let place = match self.shown.get(sentence) {
            Some(place) if std::ptr::eq(*place, branch) => "as above".to_owned(),
            Some(place) => format!("as above, at {} {}", place.kind, place.name),
            None => String::new(),
        };
        if sentence.chars().count() > SHORT {
            self.shown.entry(sentence).or_insert(branch);
        }
        let lines: Vec<&str> = if place.is_empty() { sentence.lines().collect() } else { vec![&place] };
        match lines.as_slice() {
            [] => vec![lead.to_owned()],
            [line] if lead.is_empty() => vec![(*line).to_owned()],
            [line] => vec![format!("{lead}: {line}")],
            lines if lead.is_empty() => lines.iter().map(|line| (*line).to_owned()).collect(),
            lines => {
                let indented = lines.iter().map(|line| format!("  {line}"));
                std::iter::once(format!("{lead}:")).chain(indented).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_shows_the_wait_of_each_part() {
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
    fn unhealthy_conditions_are_shown() {
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

    #[test]
    fn a_long_message_is_shown_once_and_keeps_its_lines() {
        let long = "spec.rkeConfig.machinePools[0].name: \"A_b\" cannot be part of a name";
        let condition = |type_: &str, reason: &str, message: &str| Condition {
            type_: type_.into(),
            status: "False".into(),
            reason: reason.into(),
            message: message.into(),
            since: None,
        };
        let conditions =
            |message: &str| vec![condition("Ready", "", message), condition("Updated", "Bad", message)];
        let mut root = Branch::new("Cluster", "demo".into(), conditions(long), "Ready");
        let list = "* Machine a:\n  * NodeHealthy: waiting\n* Machine b: short";
        root.children.push(Branch::new("CAPI Cluster", "demo".into(), conditions(list), "Ready"));
        root.children.push(Branch::new("RKEControlPlane", "demo".into(), conditions(long), "Ready"));
        let mut last = Branch::new("Machine", "m".into(), vec![condition("Available", "Bad", list)], "Ready");
        last.phase = "Pending".into();
        last.note = "Pending: soon".into();
        root.children.push(last);
        let drawn = draw(&root, false, jiff::Timestamp::UNIX_EPOCH);
        let expected = format!(
            "\
NAME                     READY   SINCE   MESSAGE
Cluster demo             False           {long}
│   • Ready              False           as above
│   • Updated            False           Bad: as above
├─CAPI Cluster demo      False           * Machine a:
│                                          * NodeHealthy: waiting
│                                        * Machine b: short
│     • Ready            False           as above
│     • Updated          False           Bad: as above
├─RKEControlPlane demo   False           as above, at Cluster demo
│     • Ready            False           as above, at Cluster demo
│     • Updated          False           Bad: as above, at Cluster demo
└─Machine m              -               Pending: soon
      • Available        False           Bad: as above, at CAPI Cluster demo
"
        );
        assert_eq!(drawn, expected, "\n{drawn}");
        let single = Branch::new("Machine", "m".into(), vec![condition("Available", "Bad", list)], "Ready");
        let drawn = draw(&single, false, jiff::Timestamp::UNIX_EPOCH);
        let lines: Vec<&str> = drawn.lines().skip(2).map(|line| line.trim_end()).collect();
        assert!(lines[0].ends_with(" Bad:") && lines[1].ends_with("   * Machine a:"), "{drawn}");
    }
}
