//! `drover server`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use drover_local_machines::enough_open_files;
use drover_server::front::Asset;
use drover_server::manager::can_listen;
use drover_server::shell::quoted;
use drover_server::{DataDir, Manager, ManagerOptions, RETURN_LIMIT};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::{DataDirArg, bind_address};
use crate::logging;
use crate::output::{print_error_line, with_full_disk_remedy};

/// The node agent, built beside this program.
const AGENT: &[u8] = include_bytes!(env!("DROVER_AGENT_BINARY"));

/// The uninstall script, which installers of other projects download beside the agent.
const UNINSTALL_SCRIPT: &[u8] = include_bytes!(env!("DROVER_UNINSTALL_SCRIPT"));

/// The error when a part of the management plane has panicked.
pub(crate) const BROKEN: &str =
    "a part of it panicked, which is a bug in drover; the panic message is above or in the log";

#[derive(Args)]
pub(crate) struct Server {
    #[command(flatten)]
    data_dir: DataDirArg,
    /// Address and port to listen on.
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:8443", value_parser = bind_address)]
    bind: SocketAddr,
    /// URL at which machines reach this server [default: the gateway of the local machines' network].
    #[arg(long, value_name = "URL")]
    server_url: Option<String>,
    /// Use the Kubernetes API of this kubeconfig's current context (v1.32 or newer, with its
    /// kube-controller-manager) instead of the embedded one. Requests of users are forwarded to it with their own
    /// bearer tokens. If several servers use one API, only the leader is active.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

impl Server {
    pub(crate) async fn run(self, verbose: u8) -> anyhow::Result<i32> {
        logging::to_stderr(verbose);
        let external = self.kubeconfig.is_some();
        let kubeconfig = self.kubeconfig.clone();
        let dir = self.data_dir.path();
        let manager = start(&dir, self.bind, self.server_url, self.kubeconfig, RETURN_LIMIT).await;
        let manager = manager.map_err(|error| with_full_disk_remedy(error, &dir))?;
        let kubeconfig = kubeconfig.unwrap_or_else(|| manager.data_dir.kubeconfig());
        let mut signals = Signals::catch()?;
        print_error_line(&format!("drover is ready at {}", manager.url));
        let kubeconfig = quoted(&kubeconfig.display().to_string());
        print_error_line(&format!(
            "  kubectl --kubeconfig {kubeconfig} get clusters.provisioning.cattle.io -A"
        ));
        if external {
            print_error_line(&format!(
                "  the same with a bearer token at {}; client certificates are not forwarded",
                manager.url
            ));
        }
        tokio::select! {
            _ = signals.next() => {}
            () = manager.lost_leadership() => {
                // No clean stop either: the new leader may already be active.
                bail!("lost leadership: the Lease could not be renewed in time, so another server may be the leader; start this server again to make it wait");
            }
            () = manager.broken() => bail!("{BROKEN}"),
        }
        print_error_line("stopping; machines keep running");
        manager.stop().await;
        Ok(0)
    }
}

/// Starts the management plane with the files that this program contains.
pub(crate) async fn start(
    data_dir: &Path,
    bind: SocketAddr,
    server_url: Option<String>,
    kubeconfig: Option<PathBuf>,
    patience: Duration,
) -> anyhow::Result<Manager> {
    check_start(data_dir, bind).await?;
    let exe = own_executable()?;
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let names = [format!("drover-agent-{arch}"), format!("rancher-system-agent-{arch}")];
    let mut assets: BTreeMap<_, _> = names.into_iter().map(|name| (name, Asset::Embedded(AGENT))).collect();
    assets.insert("system-agent-uninstall.sh".into(), Asset::Embedded(UNINSTALL_SCRIPT));
    let options = ManagerOptions {
        data_dir: data_dir.to_owned(),
        bind,
        server_url,
        kubeconfig,
        exe,
        install_script: include_str!(env!("DROVER_INSTALL_SCRIPT")).to_owned(),
        assets,
        patience,
    };
    Manager::start(options).await
}

/// Checks that the server can start before anything is created, so that an unused directory stays empty. A directory
/// in use is reported before the port, which the server in it uses.
pub(crate) async fn check_start(data_dir: &Path, bind: SocketAddr) -> anyhow::Result<()> {
    enough_open_files()?;
    let unusable = || format!("data directory {} cannot be used", data_dir.display());
    let absolute = std::path::absolute(data_dir).with_context(unusable)?;
    DataDir::suits(&absolute).with_context(unusable)?;
    if std::fs::read_dir(data_dir).map_or(true, |mut entries| entries.next().is_none()) {
        can_listen(bind).await?;
    }
    Ok(())
}

/// The file of this program, which machines and Jobs run.
pub(crate) fn own_executable() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's own executable")
}

/// The signals that stop a long command: SIGINT, SIGTERM, and SIGHUP of a closed terminal. Once this value exists,
/// none of them ends the process by itself.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    pub(crate) fn catch() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal and returns its kind.
    pub(crate) async fn next(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.hang_up.recv() => SignalKind::hangup(),
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
        }
    }
}
