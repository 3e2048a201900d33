//! Progress while the cluster is created: the stage of each machine, what it waits for, and for how long.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use drover_api::capi::v1beta2::Machine;
use drover_api::provisioning::v1::Cluster;
use drover_runtime::{Cache, Caches, ObjectKey};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::demo::{NAME, NAMESPACE};

/// Width and height of a terminal of unknown size.
const USUAL: (usize, usize) = (80, 24);
/// Interval between redraws, for the clocks.
const TICK: Duration = Duration::from_millis(500);
/// Most rows of one machine.
const MOST_ROWS: usize = 3;
const INDENT: &str = "    ";
const LIST_LIMIT: Duration = Duration::from_secs(10);

pub(super) struct Progress {
    client: Client,
    clusters: Cache<Cluster>,
    machines: Cache<Machine>,
    changed: Arc<Notify>,
    begun: Instant,
    terminal: bool,
    _stops: DropGuard,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    stage: String,
    waits_for: String,
}

impl Progress {
    pub(super) fn new(client: Client, begun: Instant) -> Self {
        let stop = CancellationToken::new();
        let caches = Caches::new(client.clone(), stop.clone());
        let (clusters, machines) = (caches.all::<Cluster>(), caches.all::<Machine>());
        let changed = Arc::new(Notify::new());
        let (a, b) = (changed.clone(), changed.clone());
        clusters.subscribe(move |_| a.notify_one());
        machines.subscribe(move |_| b.notify_one());
        // A dumb terminal cannot move its cursor.
        let dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
        let terminal = std::io::stdout().is_terminal() && !dumb;
        Self { client, clusters, machines, changed, begun, terminal, _stops: stop.drop_guard() }
    }

    /// Shows progress until the cluster is Ready and `proof` has completed: after a restart, the cluster keeps its
    /// old Ready condition until its machines have been checked.
    pub(super) async fn until_ready<T>(
        &self,
        proof: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        self.show(proof, &mut std::io::stdout()).await
    }

    async fn show<T>(
        &self,
        proof: impl Future<Output = anyhow::Result<T>>,
        out: &mut impl Write,
    ) -> anyhow::Result<T> {
        let mut screen = Screen::default();
        let mut proof = std::pin::pin!(proof);
        let mut proven = None;
        loop {
            let cluster = self.clusters.get(&ObjectKey::new(NAMESPACE, NAME));
            let ready = cluster.as_ref().is_some_and(|cluster| is_ready(cluster));
            let last = if ready && proven.is_some() { self.final_machines().await } else { None };
            let ended = last.is_some();
            let machines = last.unwrap_or_else(|| self.machines.list());
            let lines = lines(cluster.as_deref(), &machines, proven.is_some());
            let text = if self.terminal {
                screen.redraw(&lines, self.begun)
            } else {
                screen.print(&lines, self.begun)
            };
            // A closed terminal needs no progress.
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            if ended && let Some(proof) = proven.take() {
                return Ok(proof);
            }
            tokio::select! {
                found = &mut proof, if proven.is_none() => proven = Some(found?),
                () = self.changed.notified() => {}
                () = tokio::time::sleep(TICK), if self.terminal || proven.is_some() => {}
            }
        }
    }

    /// Lists the Machines for the last redraw. Clusters and Machines have separate watches, so the event that the
    /// cluster is Ready may arrive before those of its Machines.
    async fn final_machines(&self) -> Option<Vec<Arc<Machine>>> {
        let api: Api<Machine> = Api::namespaced(self.client.clone(), NAMESPACE);
        match tokio::time::timeout(LIST_LIMIT, api.list(&ListParams::default())).await {
            Ok(Ok(machines)) => Some(machines.items.into_iter().map(Arc::new).collect()),
            Ok(Err(error)) => {
                tracing::debug!(%error, "failed to list machines");
                None
            }
            Err(_) => None,
        }
    }
}

fn lines(cluster: Option<&Cluster>, machines: &[Arc<Machine>], proven: bool) -> BTreeMap<String, Line> {
    let mut lines = BTreeMap::new();
    for machine in machines {
        if machine.namespace().as_deref() == Some(NAMESPACE) && machine.spec.cluster_name == NAME {
            lines.insert(format!("machine {}", machine.name_any()), machine_line(machine));
        }
    }
    if let Some(cluster) = cluster {
        lines.insert(format!("cluster {NAME}"), cluster_line(cluster, proven));
    }
    lines
}

fn is_ready(cluster: &Cluster) -> bool {
    let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    let ready = conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True");
    ready && cluster.status.as_ref().is_some_and(|status| status.ready)
}

fn cluster_line(cluster: &Cluster, proven: bool) -> Line {
    let conditions: Vec<_> = cluster.status.iter().flat_map(|status| &status.conditions).collect();
    let of = |type_: &str| conditions.iter().find(|c| c.type_ == type_);
    let failed = ["Created", "RKECluster"].iter().filter_map(|type_| of(type_)).find(|c| c.status == "False");
    if let Some(failed) = failed {
        return Line { stage: "failed".into(), waits_for: failed.message.clone() };
    }
    match of("Ready") {
        Some(ready) if ready.status == "True" && !proven => {
            Line { stage: "connecting".into(), waits_for: "a response of its API through the tunnel".into() }
        }
        Some(ready) if ready.status == "True" => Line { stage: "Ready".into(), waits_for: String::new() },
        Some(ready) => Line { stage: "provisioning".into(), waits_for: ready.message.clone() },
        None => Line { stage: "pending".into(), waits_for: String::new() },
    }
}

fn machine_line(machine: &Machine) -> Line {
    let status = machine.status.as_ref();
    let stage = status.and_then(|status| status.phase.clone()).unwrap_or_else(|| "Pending".into());
    let conditions: Vec<_> = status.into_iter().flat_map(|status| &status.conditions).collect();
    let order = ["Deleting", "BootstrapConfigReady", "InfrastructureReady", "Reconciled", "NodeHealthy"];
    let waiting = order.iter().find_map(|type_| {
        let condition = conditions.iter().find(|c| c.type_ == *type_)?;
        let bad = if *type_ == "Deleting" { condition.status == "True" } else { condition.status != "True" };
        (bad && !condition.message.is_empty()).then(|| condition.message.clone())
    });
    Line { stage, waits_for: waiting.unwrap_or_default() }
}

/// The lines that were shown last.
#[derive(Default)]
struct Screen {
    shown: BTreeMap<String, Line>,
    since: BTreeMap<String, Instant>,
    height: usize,
}

impl Screen {
    fn remember(&mut self, lines: &BTreeMap<String, Line>) -> Vec<String> {
        let changed: Vec<String> = lines
            .iter()
            .filter(|(name, line)| self.shown.get(*name) != Some(line))
            .map(|(name, _)| name.clone())
            .collect();
        for name in &changed {
            self.since.insert(name.clone(), Instant::now());
        }
        self.shown = lines.clone();
        changed
    }

    /// Prints a line per change, for logs.
    fn print(&mut self, lines: &BTreeMap<String, Line>, begun: Instant) -> String {
        let line = |name: &String| {
            format!("{:>6.1}s  {name}: {}\n", begun.elapsed().as_secs_f32(), text(&lines[name]))
        };
        self.remember(lines).iter().map(line).collect()
    }

    /// Draws a few rows per machine over the previous ones.
    fn redraw(&mut self, lines: &BTreeMap<String, Line>, begun: Instant) -> String {
        self.remember(lines);
        let mut out = String::new();
        if self.height > 0 {
            out.push_str(&format!("\x1b[{}A\r", self.height));
        }
        let size = terminal_size::terminal_size();
        let size = size.map_or(USUAL, |(width, height)| (width.0.into(), height.0.into()));
        let since = |name: &str| self.since.get(name).map_or(0, |since| since.elapsed().as_secs());
        let rows = rows(lines, since, begun.elapsed().as_secs(), size);
        self.height = rows.len();
        draw(&rows, &mut out);
        out
    }
}

/// Overwrites each row, and clears only what is left below. Some terminals treat clearing from the top row as a new
/// screen and move the old one into their scrollback.
fn draw(rows: &[String], out: &mut String) {
    for row in rows {
        out.push_str(row);
        out.push_str("\x1b[K\n");
    }
    out.push_str("\x1b[J");
}

/// The rows that fit into a terminal of this width and height. Rows that wrap or scroll out of view cannot be
/// overwritten.
fn rows(
    lines: &BTreeMap<String, Line>,
    since: impl Fn(&str) -> u64,
    in_all: u64,
    (width, height): (usize, usize),
) -> Vec<String> {
    // Some terminals wrap when the last column is filled.
    let width = width.saturating_sub(1).max(1);
    // One row for the sum, one for the cursor.
    let room = height.saturating_sub(2).max(1);
    let shown = if lines.len() > room { room - 1 } else { lines.len() };
    // If not all fit, machines that wait come first.
    let mut order: Vec<_> = lines.iter().collect();
    if shown < lines.len() {
        order.sort_by_key(|(_, line)| line.waits_for.is_empty());
    }
    let labels = labels(&order.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), width / 3);
    let widest = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0);
    let wrapped = |most: usize| -> Vec<String> {
        let drawn = order[..shown].iter().zip(&labels).flat_map(|((name, line), label)| {
            let text = format!("{label:<widest$}  {:>4}s  {}", since(name), text(line));
            wrap(&text, width, most)
        });
        drawn.collect()
    };
    let mut rows = wrapped(MOST_ROWS);
    if rows.len() > if shown < lines.len() { shown } else { room } {
        rows = wrapped(1);
    }
    if shown < lines.len() {
        rows.push(clipped(&format!("… and {} more", lines.len() - shown), width));
    }
    rows.push(clipped(&format!("{in_all}s in all"), width));
    rows
}

/// Shortens names to the width of a column: without the kind, then without the name of the cluster, and then only
/// their ends, in which they differ.
fn labels(names: &[&str], width: usize) -> Vec<String> {
    fn whole(name: &str) -> &str {
        name
    }
    fn bare(name: &str) -> &str {
        name.strip_prefix("machine ").unwrap_or(name)
    }
    fn own(name: &str) -> &str {
        let bare = bare(name);
        bare.strip_prefix(NAME).and_then(|rest| rest.strip_prefix('-')).unwrap_or(bare)
    }
    let ways: [fn(&str) -> &str; 3] = [whole, bare, own];
    let fits = |way: &&fn(&str) -> &str| names.iter().all(|name| way(name).chars().count() <= width);
    let way = ways.iter().find(fits).copied().unwrap_or(own);
    names.iter().map(|name| end(way(name), width)).collect()
}

/// As many of a name's last parts as fit.
fn end(name: &str, width: usize) -> String {
    let mut rest = name;
    while rest.chars().count() > width {
        match rest.split_once('-') {
            Some((_, tail)) => rest = tail,
            None => return rest.chars().skip(rest.chars().count() - width).collect(),
        }
    }
    rest.to_owned()
}

/// Wraps a text into at most this many rows; all but the first are indented.
fn wrap(text: &str, width: usize, most: usize) -> Vec<String> {
    let mut rows = vec![];
    let mut rest = text.to_owned();
    while rest.chars().count() > width && rows.len() + 1 < most {
        let end = rest.char_indices().nth(width).map_or(rest.len(), |(at, _)| at);
        let space = if rest[end..].starts_with(' ') { Some(end) } else { rest[..end].rfind(' ') };
        // A long word is split rather than leaving a row half empty.
        let at = space.filter(|at| *at > end / 2).unwrap_or(end);
        let tail = format!("{INDENT}{}", rest[at..].trim_start());
        rest.truncate(at);
        rows.push(rest.trim_end().to_owned());
        rest = tail;
    }
    rows.push(clipped(&rest, width));
    rows
}

fn clipped(row: &str, width: usize) -> String {
    if row.chars().count() <= width {
        return row.to_owned();
    }
    row.chars().take(width - 1).chain(['…']).collect()
}

fn text(line: &Line) -> String {
    if line.waits_for.is_empty() {
        return line.stage.clone();
    }
    // Summaries are Markdown lists with a line per item; here each cluster and machine has one line.
    let reasons: Vec<&str> =
        line.waits_for.lines().map(|reason| reason.trim_start().trim_start_matches("* ")).collect();
    format!("{}: {}", line.stage, reasons.join("; ").replace(": * ", ": "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_fit_into_the_window() {
        let line = |waits_for: &str| Line { stage: "Provisioning".into(), waits_for: waits_for.into() };
        let mut lines: BTreeMap<_, _> =
            (0..50).map(|number| (format!("machine {number:02}"), line(""))).collect();
        lines.insert("machine 49".into(), line(&"waiting for something with a ü ".repeat(9)));
        for (width, height) in [(80, 24), (40, 5), (200, 100), (1, 1), (0, 0)] {
            let rows = rows(&lines, |_| 7, 9, (width, height));
            assert!(rows.iter().all(|row| row.chars().count() < width.max(2)), "{width}: {rows:?}");
            assert!(rows.len() < height.max(3), "{height}: {rows:?}");
        }
        let some = rows(&lines, |_| 7, 9, (80, 6));
        assert!(
            some[0].starts_with("machine 49") && some[3] == "… and 47 more" && some[4] == "9s in all",
            "{some:?}"
        );
        assert_eq!(rows(&lines, |_| 7, 9, (80, 60)).len(), 53);
        assert_eq!(rows(&lines, |_| 7, 9, (80, 53)).len(), 51);
    }

    #[test]
    fn the_wait_of_a_machine_is_visible_in_any_window() {
        let line = |stage: &str, waits_for: &str| Line { stage: stage.into(), waits_for: waits_for.into() };
        let waits = "waiting for LocalMachine demo-control-plane-8xk2p-q7zvw to be provisioned";
        let lines: BTreeMap<_, _> = [
            ("cluster demo".to_owned(), line("provisioning", "machine(s) of pool worker are created")),
            ("machine demo-control-plane-8xk2p-q7zvw".to_owned(), line("Provisioning", waits)),
            ("machine demo-worker-5kmm5-cr2gj".to_owned(), line("Running", "")),
        ]
        .into();
        let shown = |width| rows(&lines, |_| 12, 34, (width, 24)).join("\n");
        assert_eq!(
            shown(200),
            "\
cluster demo                              12s  provisioning: machine(s) of pool worker are created
machine demo-control-plane-8xk2p-q7zvw    12s  Provisioning: waiting for LocalMachine demo-control-plane-8xk2p-q7zvw to be provisioned
machine demo-worker-5kmm5-cr2gj           12s  Running
34s in all"
        );
        assert_eq!(
            shown(80),
            "\
cluster demo                 12s  provisioning: machine(s) of pool worker are
    created
control-plane-8xk2p-q7zvw    12s  Provisioning: waiting for LocalMachine
    demo-control-plane-8xk2p-q7zvw to be provisioned
worker-5kmm5-cr2gj           12s  Running
34s in all"
        );
        assert_eq!(
            shown(60),
            "\
cluster demo          12s  provisioning: machine(s) of pool
    worker are created
plane-8xk2p-q7zvw     12s  Provisioning: waiting for
    LocalMachine demo-control-plane-8xk2p-q7zvw to be
    provisioned
worker-5kmm5-cr2gj    12s  Running
34s in all"
        );
        assert_eq!(
            shown(40),
            "\
cluster demo    12s  provisioning:
    machine(s) of pool worker are
    created
8xk2p-q7zvw     12s  Provisioning:
    waiting for LocalMachine
    demo-control-plane-8xk2p-q7zvw to …
5kmm5-cr2gj     12s  Running
34s in all"
        );
    }

    #[test]
    fn the_screen_is_not_cleared_from_the_top_row() {
        let mut out = String::new();
        draw(&["a".into(), "b".into()], &mut out);
        assert_eq!(out, "a\x1b[K\nb\x1b[K\n\x1b[J");
    }

    /// The watch of the Machines is behind that of the Cluster, but the API is current.
    #[tokio::test]
    async fn the_last_redraw_shows_the_machines_as_they_are_in_the_api() {
        let machine = |phase: &str| {
            json!({
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
                "metadata": {"name": "demo-worker-1", "namespace": NAMESPACE},
                "spec": {
                    "clusterName": NAME, "bootstrap": {},
                    "infrastructureRef": {"apiGroup": "x", "kind": "LocalMachine", "name": "demo-worker-1"},
                },
                "status": {"phase": phase},
            })
        };
        let cluster: Cluster = serde_json::from_value(json!({
            "apiVersion": "provisioning.cattle.io/v1", "kind": "Cluster",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {},
            "status": {"ready": true, "conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap();
        let list = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineList",
            "metadata": {"resourceVersion": "9"}, "items": [machine("Running")],
        });
        let api = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            let answer = http::Response::new(kube::client::Body::from(list.to_string().into_bytes()));
            async move { Ok::<_, std::convert::Infallible>(answer) }
        });
        let progress = Progress {
            client: Client::new(api, NAMESPACE),
            clusters: Cache::fixed([cluster]),
            machines: Cache::fixed([serde_json::from_value::<Machine>(machine("Provisioning")).unwrap()]),
            changed: Arc::new(Notify::new()),
            begun: Instant::now(),
            terminal: false,
            _stops: CancellationToken::new().drop_guard(),
        };
        let mut out = Vec::new();
        progress.show(async { Ok(()) }, &mut out).await.unwrap();
        let output = String::from_utf8(out).unwrap();
        let of = |name: &str| {
            let line = output.lines().rfind(|line| line.contains(name)).unwrap();
            line.split_once(": ").unwrap().1.to_owned()
        };
        assert_eq!(
            (of("machine demo-worker-1"), of("cluster demo")),
            ("Running".into(), "Ready".into()),
            "{output}"
        );
    }

    #[test]
    fn several_reasons_become_one_line() {
        let line = |waits_for: &str| Line { stage: "Provisioning".into(), waits_for: waits_for.into() };
        assert_eq!(text(&line("")), "Provisioning");
        assert_eq!(text(&line("* NodeHealthy: a\n* Drained: b")), "Provisioning: NodeHealthy: a; Drained: b");
        assert_eq!(
            text(&line("machine(s) x: * NodeHealthy: a")),
            "Provisioning: machine(s) x: NodeHealthy: a"
        );
    }
}
