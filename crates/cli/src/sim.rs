//! `drover sim`: the simulated distribution. Machines run it as `k3s`.

use std::path::Path;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use drover_provisioning::controlplane::planner::releases::Releases;
use drover_provisioning::settings::Settings;
use drover_server::DataDir;
use drover_sim::config::Role;
use drover_sim::node::{self, NodeOptions};
use tokio_util::sync::CancellationToken;

use crate::args::DataDirArg;
use crate::output::answer;
use crate::{logging, server};

#[derive(Args)]
pub(crate) struct Sim {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Behave as the `k3s` program of a release.
    K3s {
        /// The release, such as v1.34.1+k3s1.
        #[arg(long)]
        release: String,
        /// What stands behind `k3s`: server, agent, or --version.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Write the installer images of all simulated releases into the images folder of the data directory, from which
    /// `drover server` gives them to machines. A quickstart does this by itself.
    Images {
        #[command(flatten)]
        data_dir: DataDirArg,
    },
}

impl Sim {
    pub(crate) async fn run(self, verbose: u8) -> anyhow::Result<i32> {
        let (release, words) = match self.command {
            Command::K3s { release, words } => (release, words),
            Command::Images { data_dir } => {
                let path = data_dir.path();
                let data_dir = DataDir::open(&path)
                    .with_context(|| format!("data directory {} cannot be used", path.display()))?;
                write_images(&data_dir, &server::own_executable()?)?;
                return Ok(0);
            }
        };
        let role = match words.first().map(String::as_str) {
            Some("server") => Role::Server,
            Some("agent") => Role::Agent,
            Some("--version" | "-v") => {
                let own = env!("CARGO_PKG_VERSION");
                answer(&format!("k3s version {release} (simulated by drover {own})\n"))?;
                return Ok(0);
            }
            Some(other) => {
                bail!("the simulated k3s has no command {other:?}; it knows server, agent and --version")
            }
            None => bail!("say what to run: server, agent or --version"),
        };
        logging::to_stderr(verbose);
        let stop = CancellationToken::new();
        let options = NodeOptions {
            role,
            version: release,
            flags: words[1..].to_vec(),
            root: "/".into(),
            hostname: nix::unistd::gethostname()?.to_string_lossy().into_owned(),
            address: None,
            only_address: false,
        };
        let ending = stop.clone();
        tokio::spawn(async move {
            if server::until_told_to_stop().await.is_ok() {
                ending.cancel();
            }
        });
        node::run(options, || {}, stop).await?;
        Ok(0)
    }
}

/// Writes the installer images that machines install from, unless they are those of this very program.
pub(crate) fn write_images(data_dir: &DataDir, exe: &Path) -> anyhow::Result<()> {
    let archive = data_dir.images().join("system-agent-installer-k3s.tar");
    let stamp = data_dir.images().join("system-agent-installer-k3s.stamp");
    let meta = std::fs::metadata(exe).context("this program's own file cannot be read")?;
    let current = format!("{:?} {}", meta.modified().ok(), meta.len());
    if archive.exists() && std::fs::read_to_string(&stamp).is_ok_and(|known| known == current) {
        return Ok(());
    }
    let releases = Releases::builtin();
    let versions: Vec<&str> = releases.versions().into_iter().collect();
    let prefix = Settings::default().system_agent_installer_image;
    drover_sim::install::write_image(&archive, exe, &prefix, &versions)
        .context("the installer images cannot be written")?;
    std::fs::write(&stamp, current).context("the installer images cannot be written")
}
