//! `drover quickstart`: management plane, local machines and a demo cluster, with one command.

mod delete;
mod demo;
mod instance;
mod power;
mod progress;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use drover_local_machines::Local;
use drover_provisioning::controlplane::planner::releases::Releases;
use drover_server::shell::quoted;
use drover_server::{DataDir, Manager};
use kube::Client;
use tokio::signal::unix::SignalKind;

use crate::args::{DataDirArg, bind_address, machine_count};
use crate::output::{drover_at, print_line, with_full_disk_remedy};
use crate::server::{BROKEN, Signals, check_start, own_executable, start};
use crate::{cluster, logging};
use demo::Demo;
use instance::Instance;
use power::{Power, power_off, power_off_after_start};
use progress::Progress;

const DEFAULT_BIND: &str = "127.0.0.1:8443";
/// The exit code of a command that was stopped before the cluster was Ready, as in shells.
const GIVEN_UP: i32 = 130;
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
const ANSWER_RETRY: Duration = Duration::from_millis(200);

#[derive(Args)]
pub(crate) struct Quickstart {
    #[command(flatten)]
    data_dir: DataDirArg,
    /// Address and port on which the management plane listens.
    #[arg(long, value_name = "ADDR:PORT", default_value = DEFAULT_BIND, value_parser = bind_address)]
    bind: SocketAddr,
    /// Number of machines: one runs the control plane, the others are workers [default: 3].
    #[arg(long, value_name = "N", value_parser = machine_count)]
    machines: Option<u16>,
    /// The demo cluster's Kubernetes version.
    #[arg(long, value_name = "V", help = format!("The demo cluster's Kubernetes version [default: {}]", demo::DEFAULT_VERSION))]
    kubernetes_version: Option<String>,
    /// Return when the cluster is Ready, and keep running in the background (stop it with --stop).
    #[arg(long, conflicts_with_all = ["exit_when_ready", "stop", "delete"])]
    detach: bool,
    /// Return when the cluster is Ready and stop everything.
    #[arg(long, conflicts_with_all = ["stop", "delete"])]
    exit_when_ready: bool,
    /// Stop a running quickstart: its machines are powered off, and their disks are kept.
    #[arg(long, conflicts_with = "delete")]
    stop: bool,
    /// Remove everything: machines, cluster, management plane and data directory.
    #[arg(long)]
    delete: bool,
}

impl Quickstart {
    pub(crate) async fn run(self, verbose: u8) -> anyhow::Result<i32> {
        let path = self.data_dir.path();
        if self.delete {
            return delete::delete(&path).await;
        }
        if self.stop {
            return stop(&path).await;
        }
        let known = Releases::builtin();
        if let Some(version) =
            self.kubernetes_version.as_deref().filter(|version| known.get(version).is_none())
        {
            let versions: Vec<_> = known.versions().into_iter().collect();
            bail!("--kubernetes-version {version:?} is unknown; supported versions: {}", versions.join(", "));
        }
        self.start(&path, verbose).await.map_err(|error| with_full_disk_remedy(error, &path))
    }

    async fn start(self, path: &Path, verbose: u8) -> anyhow::Result<i32> {
        let unusable = || format!("data directory {} cannot be used", path.display());
        check_start(path, self.bind).await?;
        let data_dir = DataDir::open(path).with_context(unusable)?;
        if self.detach {
            return self.detached(&data_dir).await;
        }
        logging::to_file(&data_dir.path().join("drover.log"), verbose).with_context(unusable)?;
        self.foreground(&data_dir).await
    }

    async fn foreground(self, data_dir: &DataDir) -> anyhow::Result<i32> {
        let begun = Instant::now();
        // Signals must be handled before other processes can learn this one's id.
        let mut signals = Signals::catch()?;
        let instance = Instance::claim(data_dir, self.bind)?;
        let started = tokio::select! {
            // Machines were powered off, so none reconnects by itself.
            started = start(data_dir.path(), self.bind, None, None, Duration::ZERO) => Some(started?),
            _ = signals.next() => None,
        };
        let Some(manager) = started else {
            // A killed quickstart may have left machines running, and this one needs the network for them.
            power_off_after_start(data_dir).await?;
            return Ok(0);
        };
        let Some(local) = manager.local.clone() else {
            let why = local_trouble(data_dir).await;
            manager.stop().await;
            bail!("local machines are not possible here: {why}");
        };
        let power = Power::default();
        let work = self.bring_up(&manager, local.clone(), &power, begun);
        let (outcome, signal) = tokio::select! {
            outcome = work => (outcome, None),
            signal = signals.next() => (Ok(0), Some(signal)),
            () = manager.broken() => (Err(anyhow!("{BROKEN}")), None),
        };
        print_line(stop_message(signal));
        power.end().await;
        manager.stop().await;
        let off = tokio::task::spawn_blocking(move || local.shutdown_all()).await?;
        drop(instance);
        off.context("failed to power off the machines")?;
        outcome
    }

    fn demo(&self) -> Demo {
        Demo { version: self.kubernetes_version.clone(), machines: self.machines }
    }

    /// Creates the demo cluster and keeps its machines powered on. Returns early only with --exit-when-ready.
    async fn bring_up(
        &self,
        manager: &Manager,
        local: Local,
        power: &Power,
        begun: Instant,
    ) -> anyhow::Result<i32> {
        crate::sim::write_images(&manager.data_dir, &own_executable()?)?;
        power.keep(local);
        let demo = self.demo();
        demo.report_existing(&manager.client).await?;
        demo.ensure(&manager.client).await?;
        let progress = Progress::new(manager.client.clone(), begun);
        let kubeconfig =
            progress.until_ready(kubeconfig_that_answers(&manager.client, &manager.data_dir)).await?;
        instance::mark_ready(&manager.data_dir)?;
        print_ready(&manager.data_dir, &manager.url, &kubeconfig, begun);
        if self.exit_when_ready {
            // The management plane stops now, so there is nothing to suggest.
            let again = again(&manager.data_dir);
            print_line(&format!("\nStopping everything; `{again}` starts it again with the same disks."));
            return Ok(0);
        }
        tell_next(&manager.data_dir, &kubeconfig);
        print_line(
            "\nCtrl-C powers the machines off and keeps their disks; the same command starts them again.",
        );
        std::future::pending().await
    }

    /// Shows the progress of the background process until the cluster is Ready.
    async fn follow(&self, data_dir: &DataDir, child: &mut Child, begun: Instant) -> anyhow::Result<()> {
        let client = instance::client_when_up(data_dir, child).await?;
        // The background process reports this to its log file.
        self.demo().report_existing(&client).await?;
        let progress = Progress::new(client, begun);
        tokio::select! {
            ready = progress.until_ready(instance::until_ready(data_dir)) => ready,
            failed = instance::ended(data_dir, child) => bail!("{}", failed?),
        }
    }

    /// Starts the same command in the background and follows it until the cluster is Ready.
    async fn detached(&self, data_dir: &DataDir) -> anyhow::Result<i32> {
        let begun = Instant::now();
        instance::refuse_running(data_dir)?;
        let mut signals = Signals::catch()?;
        let mut child = instance::spawn_background(data_dir)?;
        let signal = tokio::select! {
            ready = self.follow(data_dir, &mut child, begun) => ready.map(|()| None)?,
            signal = signals.next() => Some(signal),
        };
        if let Some(signal) = signal {
            // A closed terminal does not stop the background process.
            if signal != SignalKind::hangup() {
                instance::end(&mut child).await?;
                print_line(&format!("stopped; the disks are kept; start again with `{}`", again(data_dir)));
            }
            return Ok(GIVEN_UP);
        }
        let url = cluster::server_url(&data_dir.kubeconfig()).await?;
        let kubeconfig = data_dir.cluster_kubeconfig(demo::NAME);
        print_ready(data_dir, &url, &kubeconfig, begun);
        tell_next(data_dir, &kubeconfig);
        let stop = drover_at(data_dir, &["quickstart", "--stop"]);
        print_line(&format!("\nRunning in the background; stop it with `{stop}`."));
        Ok(0)
    }
}

/// The message when quickstart stops. --stop and --delete send SIGTERM, and report themselves whether the disks are
/// kept.
fn stop_message(signal: Option<SignalKind>) -> &'static str {
    if signal == Some(SignalKind::terminate()) {
        "powering off the machines"
    } else {
        "powering off the machines; their disks are kept"
    }
}

/// Writes the cluster's kubeconfig until the API answers with it through the tunnel: after a restart on another port,
/// it may name the old port for a moment. There is no time limit; the caller cancels it.
async fn kubeconfig_that_answers(client: &Client, data_dir: &DataDir) -> anyhow::Result<std::path::PathBuf> {
    let path = data_dir.cluster_kubeconfig(demo::NAME);
    loop {
        if let Some(text) = cluster::kubeconfig(client, demo::NAMESPACE, demo::NAME).await? {
            drover_server::datadir::write_private(&path, text.as_bytes())
                .context("failed to write the cluster's kubeconfig")?;
            if let Ok(client) = cluster::client(&path).await
                && let Ok(Ok(_)) = tokio::time::timeout(ANSWER_LIMIT, client.apiserver_version()).await
            {
                return Ok(path);
            }
        }
        tokio::time::sleep(ANSWER_RETRY).await;
    }
}

fn print_ready(data_dir: &DataDir, url: &str, kubeconfig: &Path, begun: Instant) {
    let seconds = begun.elapsed().as_secs_f32();
    print_line(&format!("\nCluster demo is Ready after {seconds:.1} s."));
    print_line(&format!("  management plane  {url}"));
    print_line(&format!("  its kubeconfig    {}", data_dir.kubeconfig().display()));
    print_line(&format!("  demo's kubeconfig {}", kubeconfig.display()));
}

/// Prints commands for a running cluster.
fn tell_next(data_dir: &DataDir, kubeconfig: &Path) {
    let (own, demos) = (data_dir.kubeconfig().display().to_string(), kubeconfig.display().to_string());
    print_line("\nTry next:");
    print_line(&format!("  kubectl --kubeconfig {} get nodes -o wide", quoted(&demos)));
    print_line(&format!(
        "  kubectl --kubeconfig {} -n {} get clusters.provisioning.cattle.io,machines",
        quoted(&own),
        demo::NAMESPACE
    ));
    print_line(&format!("  {}", drover_at(data_dir, &["describe", "cluster", demo::NAME])));
}

/// The command that starts this quickstart again with the same address.
fn again(data_dir: &DataDir) -> String {
    let bind = instance::last_bind(data_dir).map(|bind| bind.to_string()).filter(|bind| bind != DEFAULT_BIND);
    match bind {
        None => drover_at(data_dir, &["quickstart"]),
        Some(bind) => drover_at(data_dir, &["quickstart", "--bind", &bind]),
    }
}

async fn stop(path: &Path) -> anyhow::Result<i32> {
    let shown = path.display();
    let found = DataDir::existing(path).with_context(|| format!("data directory {shown} cannot be used"))?;
    let Some(data_dir) = found else {
        print_line(&format!("no quickstart was running: {shown} does not exist"));
        return Ok(0);
    };
    let again = again(&data_dir);
    if instance::stop_running(&data_dir).await? {
        print_line(&format!("stopped; the disks are kept; start again with `{again}`"));
    } else if power_off(&data_dir).await? {
        print_line(&format!(
            "no quickstart was running, but its machines were: they are powered off now; start again with `{again}`"
        ));
    } else {
        print_line(&format!("no quickstart was running in {shown}"));
    }
    Ok(0)
}

/// The driver's reason why local machines do not work.
async fn local_trouble(data_dir: &DataDir) -> String {
    let (dir, exe) = (data_dir.path().to_owned(), own_executable().unwrap_or_default());
    match tokio::task::spawn_blocking(move || Local::open(&dir, &exe)).await {
        Ok(Err(error)) => error.to_string(),
        _ => "the reason is in the log".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_about_disks_is_left_to_the_command_that_stops() {
        for kept in [None, Some(SignalKind::interrupt()), Some(SignalKind::hangup())] {
            assert!(stop_message(kept).ends_with("their disks are kept"), "{kept:?}");
        }
        assert_eq!(stop_message(Some(SignalKind::terminate())), "powering off the machines");
    }
}
