//! `drover sim`: the simulated distribution, which machines run as `k3s`, and fleets of simulated machines.

mod fleet;
mod usage;

use std::path::Path;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use drover_provisioning::controlplane::planner::releases::Releases;
use drover_provisioning::settings::Settings;
use drover_server::DataDir;
use drover_sim::config::Role;
use drover_sim::node::{self, NodeOptions};
use drover_sim::server::Datastore;
use tokio_util::sync::CancellationToken;

use crate::args::DataDirArg;
use crate::logging;
use crate::output::answer;
use crate::server::{Signals, own_executable};

#[derive(Args)]
pub(crate) struct Sim {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Fleet(fleet::SimFleet),
    /// Run as the `k3s` program of a release.
    K3s {
        /// The release, such as v1.34.1+k3s1.
        #[arg(long)]
        release: String,
        /// The arguments of `k3s`: server, agent, or --version.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Write the installer images of all simulated releases into the images folder of the data directory, from which
    /// `drover server` serves them to machines. `drover quickstart` does this itself.
    Images {
        #[command(flatten)]
        data_dir: DataDirArg,
    },
}

impl Sim {
    pub(crate) async fn run(self, verbose: u8) -> anyhow::Result<i32> {
        let (release, words) = match self.command {
            Command::Fleet(command) => return command.run(verbose).await,
            Command::K3s { release, words } => (release, words),
            Command::Images { data_dir } => {
                let path = data_dir.path();
                let data_dir = DataDir::open(&path)
                    .with_context(|| format!("data directory {} cannot be used", path.display()))?;
                write_images(&data_dir, &own_executable()?)?;
                return Ok(0);
            }
        };
        let role = match wanted(&words)? {
            Wanted::Run(role) => role,
            Wanted::Version => {
                let own = env!("CARGO_PKG_VERSION");
                answer(&format!("k3s version {release} (simulated by drover {own})\n"))?;
                return Ok(0);
            }
            Wanted::Help => {
                answer(HELP)?;
                return Ok(0);
            }
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
            datastore: Datastore::default(),
        };
        let (ending, mut signals) = (stop.clone(), Signals::catch()?);
        tokio::spawn(async move {
            signals.next().await;
            ending.cancel();
        });
        node::run(options, || {}, stop).await?;
        Ok(0)
    }
}

const HELP: &str = "\
The simulated k3s, as machines run it. On a host of your own it would serve a cluster there,
in /etc/rancher/k3s and /var/lib/rancher/k3s.

Usage: k3s server|agent [FLAGS OF K3S]
       k3s --version
";

enum Wanted {
    Run(Role),
    Version,
    Help,
}

/// Parses the arguments of `k3s`. With `--help` anywhere, nothing is run.
fn wanted(words: &[String]) -> anyhow::Result<Wanted> {
    if words.iter().any(|word| matches!(word.as_str(), "--help" | "-h")) {
        return Ok(Wanted::Help);
    }
    match words.first().map(String::as_str) {
        Some("server") => Ok(Wanted::Run(Role::Server)),
        Some("agent") => Ok(Wanted::Run(Role::Agent)),
        Some("--version" | "-v") => Ok(Wanted::Version),
        Some("help") => Ok(Wanted::Help),
        Some(other) => {
            bail!("the simulated k3s has no command {other:?}; use server, agent or --version")
        }
        None => bail!("no command given; use server, agent or --version"),
    }
}

/// Writes the images that machines install from, unless those of this very program exist.
pub(crate) fn write_images(data_dir: &DataDir, exe: &Path) -> anyhow::Result<()> {
    let archive = data_dir.images().join("system-agent-installer-k3s.tar");
    let stamp = data_dir.images().join("system-agent-installer-k3s.stamp");
    let meta = std::fs::metadata(exe).context("cannot read this program's own executable")?;
    let current = format!("{:?} {}", meta.modified().ok(), meta.len());
    if archive.exists() && std::fs::read_to_string(&stamp).is_ok_and(|known| known == current) {
        return Ok(());
    }
    let releases = Releases::builtin();
    let versions: Vec<&str> = releases.versions().into_iter().collect();
    let prefix = Settings::default().system_agent_installer_image;
    drover_sim::install::write_image(&archive, exe, &prefix, &versions)
        .context("failed to write the installer images")?;
    std::fs::write(&stamp, current).context("failed to write the installer images")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_starts_no_server() {
        let of = |words: &[&str]| wanted(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert!(matches!(of(&["server", "--help"]), Ok(Wanted::Help)));
        assert!(matches!(of(&["agent", "--server", "https://x", "-h"]), Ok(Wanted::Help)));
        assert!(matches!(of(&["server", "--debug"]), Ok(Wanted::Run(Role::Server))));
        assert!(of(&["check-config"]).is_err() && of(&[]).is_err());
    }
}
