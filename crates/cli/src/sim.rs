//! `drover sim`: the simulated distribution. Machines run it as `k3s`.

use anyhow::bail;
use clap::{Args, Subcommand};
use drover_sim::config::Role;
use drover_sim::node::{self, NodeOptions};
use tokio_util::sync::CancellationToken;

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
}

impl Sim {
    pub(crate) async fn run(self, verbose: u8) -> anyhow::Result<i32> {
        let Command::K3s { release, words } = self.command;
        let role = match words.first().map(String::as_str) {
            Some("server") => Role::Server,
            Some("agent") => Role::Agent,
            Some("--version" | "-v") => {
                println!("k3s version {release} (simulated by drover {})", env!("CARGO_PKG_VERSION"));
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
