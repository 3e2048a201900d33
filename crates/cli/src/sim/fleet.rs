//! `drover sim fleet`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use drover_api::management::v3::Setting;
use drover_provisioning::controlplane::planner::releases::Releases;
use drover_provisioning::settings::Settings;
use drover_server::DataDir;
use drover_sim_fleet::churn::{Churn, Tally};
use drover_sim_fleet::clusters::Shape;
use drover_sim_fleet::fleet::{self, Fleet, FleetOptions};
use drover_sim_fleet::progress::Summary;
use drover_sim_fleet::settled;
use kube::Client;
use kube::api::Api;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::Serialize;
use serde_json::json;

use super::usage::Usage;
use crate::cluster::Plane;
use crate::logging;
use crate::output::{answer, print_error_line};
use crate::server::Signals;

/// Exit code of a command that was stopped by Ctrl-C, as in shells.
const INTERRUPTED: i32 = 130;
/// Interval between lines of progress.
const LINE: Duration = Duration::from_secs(1);
/// Time limit for clusters to converge after churn.
const SETTLE_LIMIT: Duration = Duration::from_secs(600);
/// Time limit for machines to stop.
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// Open files needed by a cluster with one worker, and by each further worker.
const FILES_PER_CLUSTER: u64 = 18;
const FILES_PER_WORKER: u64 = 4;

/// Fill a running management plane with simulated clusters.
///
/// The machines live in this process: the real agent on hosts in memory, the simulated K3s with its own API, real tunnels
/// and real registration. The clusters are ordinary ones of the built-in driver `sim`. When this process ends, the machines
/// are powered off; the next run powers them on again.
#[derive(Args)]
pub(crate) struct SimFleet {
    /// Total number of clusters, including existing ones.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=9999))]
    clusters: u16,
    /// Workers of each new cluster, in addition to one control plane machine.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=50))]
    workers: u8,
    /// How many clusters to create at the same time.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    in_flight: u16,
    /// Kubernetes version of new clusters [default: the oldest version of the simulated K3s].
    #[arg(long, value_name = "VERSION")]
    kubernetes_version: Option<String>,
    /// Change random clusters this many times per minute once all are Ready: upgrades, scaling, configuration, deleted
    /// machines and power cuts. At the end, wait for every cluster to converge; the exit code is 1 if one does not.
    #[arg(long, value_name = "RATE", value_parser = clap::value_parser!(u32).range(1..=60_000), conflicts_with = "delete")]
    churn: Option<u32>,
    /// Seed of the changes; the same seed gives the same sequence.
    #[arg(long, value_name = "SEED", requires = "churn")]
    seed: Option<u64>,
    /// Delete all clusters of the fleet, wait until nothing is left, and exit.
    #[arg(long, conflicts_with_all = ["clusters", "workers", "in_flight", "kubernetes_version"])]
    delete: bool,
    /// Exit after this many seconds with all clusters Ready, or of churn [default: run until Ctrl-C].
    #[arg(long = "for", value_name = "SECONDS")]
    duration: Option<u64>,
    /// Directory for the disks of the machines [default: fleet in the data directory].
    #[arg(long, value_name = "DIR")]
    fleet_dir: Option<PathBuf>,
    /// URL of the server as seen from this host [default: the address in the kubeconfig, or the setting server-url].
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Output format: text, or one JSON document per line and phase.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    plane: Plane,
}

/// `-o`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    #[default]
    Text,
    Json,
}

/// What is printed at the end of a phase.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Phase<'a> {
    phase: &'a str,
    #[serde(flatten)]
    summary: &'a Summary,
    /// Use of this process.
    fleet: Option<Usage>,
    /// Use of the server, if it runs on this host.
    server: Option<Usage>,
}

impl SimFleet {
    pub(crate) async fn run(self, verbose: u8) -> anyhow::Result<i32> {
        logging::quiet_to_stderr(verbose);
        let mut signals = Signals::catch()?;
        self.check_open_files()?;
        let client = self.plane.client().await?;
        let data_dir = DataDir::existing(&self.plane.data_dir())?;
        let server_pid = data_dir.as_ref().and_then(DataDir::server_pid);
        let meter = Meter { output: self.output, server_pid, before: server_pid.and_then(Usage::of) };
        let fleet = tokio::select! {
            fleet = self.start(&client) => fleet?,
            _ = signals.next() => return Ok(INTERRUPTED),
        };
        let Some(fleet) = fleet else {
            // Only the process that runs the machines can remove them.
            let count = fleet::delete_all(&client).await?;
            print_error_line(&format!(
                "requested the deletion of {count} clusters; the running fleet removes their machines"
            ));
            return Ok(0);
        };
        let code = self.drive(&fleet, &meter, &mut signals).await;
        if tokio::time::timeout(STOP_LIMIT, fleet.stop()).await.is_err() {
            print_error_line("some machines did not stop in time");
        }
        code
    }

    /// Runs the requested phases; the result is the exit code.
    async fn drive(&self, fleet: &Fleet, meter: &Meter, signals: &mut Signals) -> anyhow::Result<i32> {
        let shape = self.shape()?;
        let count = usize::from(self.clusters);
        let made = async {
            if self.delete {
                return fleet.delete().await;
            }
            fleet.create(&shape, count, self.in_flight.into()).await?;
            fleet
                .until(|progress| progress.clusters() >= count && progress.ready() == progress.clusters())
                .await;
            Ok(())
        };
        tokio::select! {
            made = meter.watched(fleet, made) => made?,
            _ = signals.next() => {
                print_error_line("stopped; the machines are powered off until the next run");
                return Ok(INTERRUPTED);
            }
        }
        let summary = fleet.progress().summary(fleet.elapsed());
        if self.delete {
            let seconds = fleet.elapsed().as_secs_f64();
            meter.phase("deleted", &Summary { seconds, ..summary })?;
            return Ok(0);
        }
        meter.phase("ready", &summary)?;
        let over = async {
            match self.duration {
                Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
                None => {
                    print_error_line("the fleet is running; stop it with Ctrl-C");
                    std::future::pending().await
                }
            }
        };
        let over = async {
            tokio::select! {
                () = over => {}
                _ = signals.next() => {}
            }
        };
        let Some(rate) = self.churn else {
            over.await;
            return Ok(0);
        };
        let seed = self.seed.unwrap_or_else(|| u64::from(std::process::id()));
        print_error_line(&format!("churn: {rate} changes per minute with --seed {seed}"));
        let pause = Duration::from_secs_f64(60.0 / f64::from(rate));
        let churn = Churn { seed, pause, changes: None, versions: versions(), workers: shape.workers };
        let tally = fleet.churn(&churn, over).await;
        let settled = tokio::select! {
            settled = settle(fleet) => settled?,
            _ = signals.next() => return Ok(INTERRUPTED),
        };
        meter.churned(seed, &tally, &settled)?;
        Ok(i32::from(!settled.problems.is_empty()))
    }

    /// None if another process runs the machines and only deletion was requested.
    async fn start(&self, client: &Client) -> anyhow::Result<Option<Fleet>> {
        let settings: Api<Setting> = Api::all(client.clone());
        let found = settings.get_opt("server-url").await.context("failed to read the setting server-url")?;
        let server_url = found.map(|setting| setting.spec.effective().to_owned()).unwrap_or_default();
        if server_url.is_empty() {
            bail!("the setting server-url is empty; check that `drover server` uses this API");
        }
        let server = self.reachable(&server_url).await?;
        let dir = self.fleet_dir.clone().unwrap_or_else(|| self.plane.data_dir().join("fleet"));
        let options = FleetOptions {
            dir,
            server,
            server_url,
            image_prefix: Settings::default().system_agent_installer_image,
            versions: versions(),
        };
        if self.delete && fleet::is_locked(&options.dir) {
            return Ok(None);
        }
        Ok(Some(Fleet::start(client.clone(), options).await?))
    }

    /// The URL at which this host reaches the server. The URL for machines may be the gateway of local machines,
    /// which this process cannot reach.
    async fn reachable(&self, server_url: &str) -> anyhow::Result<String> {
        let candidates = match &self.server {
            Some(url) => vec![url.clone()],
            None => vec![self.plane.server_url().await?, server_url.to_owned()],
        };
        for url in &candidates {
            if drover_sim_fleet::network::is_management_plane(url).await {
                return Ok(url.clone());
            }
        }
        bail!("no drover server answers at {}; set its address with --server URL", candidates.join(" or "))
    }

    fn shape(&self) -> anyhow::Result<Shape> {
        let releases = Releases::builtin();
        let versions = releases.versions();
        let version = match &self.kubernetes_version {
            Some(version) if versions.contains(version.as_str()) => version.clone(),
            Some(version) => {
                let known: Vec<&str> = versions.into_iter().collect();
                bail!("the simulated K3s has no version {version:?}; it has {}", known.join(", "));
            }
            None => versions.first().map(|version| (*version).to_owned()).unwrap_or_default(),
        };
        Ok(Shape { namespace: self.plane.namespace.clone(), workers: self.workers.into(), version })
    }

    fn check_open_files(&self) -> anyhow::Result<()> {
        let further = u64::from(self.workers).saturating_sub(1) * FILES_PER_WORKER;
        let needed = 256 + u64::from(self.clusters) * (FILES_PER_CLUSTER + further);
        // While the machines are busy, many probes and their connections last longer.
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        if hard < 2 * needed && setrlimit(Resource::RLIMIT_NOFILE, 2 * needed, 2 * needed).is_err() {
            tracing::debug!(hard, needed, "only root can raise the hard limit on open files");
        }
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        if !self.delete && hard < needed {
            bail!(
                "{} clusters with {} workers need about {needed} open files, and only {hard} are allowed; raise the hard limit (`ulimit -Hn`) or create fewer clusters",
                self.clusters,
                self.workers
            );
        }
        Ok(())
    }
}

fn versions() -> Vec<String> {
    Releases::builtin().versions().into_iter().map(str::to_owned).collect()
}

/// The state of the clusters after churn.
struct Settled {
    /// How long convergence took.
    seconds: f64,
    /// Clusters that did not converge, with reasons.
    problems: Vec<String>,
}

/// Waits until every cluster matches its specification, up to the limit.
async fn settle(fleet: &Fleet) -> anyhow::Result<Settled> {
    print_error_line("churn has ended; waiting for every cluster to converge");
    let begun = Instant::now();
    loop {
        let problems = settled::problems(fleet.client()).await;
        let problems = problems.map_err(|error| anyhow::anyhow!("{}", error.chain()))?;
        if problems.is_empty() || begun.elapsed() > SETTLE_LIMIT {
            return Ok(Settled { seconds: begun.elapsed().as_secs_f64(), problems });
        }
        tokio::time::sleep(LINE).await;
    }
}

/// Shows progress.
struct Meter {
    output: Output,
    server_pid: Option<u32>,
    /// The server's use when the fleet was started.
    before: Option<Usage>,
}

impl Meter {
    /// Runs the work and prints progress at intervals.
    async fn watched(
        &self,
        fleet: &Fleet,
        work: impl Future<Output = Result<(), drover_runtime::Error>>,
    ) -> anyhow::Result<()> {
        let mut lines = tokio::time::interval(LINE);
        lines.tick().await;
        tokio::pin!(work);
        let mut last = None;
        loop {
            tokio::select! {
                ended = &mut work => return ended.map_err(|error| anyhow::anyhow!("{}", error.chain())),
                _ = lines.tick() => {}
            }
            let summary = fleet.progress().summary(fleet.elapsed());
            let shown = (summary.clusters, summary.ready, summary.failed);
            if last != Some(shown) {
                print_error_line(&self.line(&summary));
                last = Some(shown);
            }
        }
    }

    fn line(&self, summary: &Summary) -> String {
        let Summary { clusters, ready, failed, seconds, rate, p50_seconds, p99_seconds } = summary;
        let mut line = format!(
            "{seconds:6.1} s  {clusters} clusters, {ready} Ready, {failed} failed  {rate:.1}/s  time to Ready p50 {p50_seconds:.1} s, p99 {p99_seconds:.1} s"
        );
        if let Some(server) = self.server() {
            line += &format!("  server: {:.1} CPU s, {:.0} MiB", server.cpu_seconds, server.rss_mebibytes);
        }
        line
    }

    fn server(&self) -> Option<Usage> {
        let now = Usage::of(self.server_pid?)?;
        Some(now.since(self.before.as_ref()))
    }

    /// Prints the result of churn.
    fn churned(&self, seed: u64, tally: &Tally, settled: &Settled) -> anyhow::Result<()> {
        let Settled { seconds, problems } = settled;
        if self.output == Output::Json {
            let document = json!({
                "phase": "churned", "seed": seed, "changes": tally, "converged": problems.is_empty(),
                "seconds": seconds, "problems": problems,
            });
            return answer(&format!("{document}\n"));
        }
        let Tally { upgrades, scalings, configurations, deleted_machines, power_cuts, refused } = tally;
        let mut text = format!(
            "churned: {upgrades} upgrades, {scalings} scalings, {configurations} configurations, {deleted_machines} deleted machines, {power_cuts} power cuts, {refused} refused\n"
        );
        if problems.is_empty() {
            text += &format!("every cluster converged {seconds:.0} s after the last change\n");
        } else {
            text += &format!("{} clusters did not converge in {seconds:.0} s:\n", problems.len());
            problems.iter().take(20).for_each(|problem| text += &format!("  {problem}\n"));
        }
        answer(&text)
    }

    /// Prints the result of a phase.
    fn phase(&self, phase: &str, summary: &Summary) -> anyhow::Result<()> {
        let line = self.line(summary);
        let fleet = Usage::of(std::process::id());
        match self.output {
            Output::Json => {
                let document = Phase { phase, summary, fleet, server: self.server() };
                answer(&(serde_json::to_string(&document)? + "\n"))
            }
            Output::Text => {
                let own = fleet.map(|own| {
                    format!("  fleet: {:.1} CPU s, {:.0} MiB", own.cpu_seconds, own.rss_mebibytes)
                });
                answer(&format!("{phase}: {}{}\n", line.trim_start(), own.unwrap_or_default()))
            }
        }
    }
}
