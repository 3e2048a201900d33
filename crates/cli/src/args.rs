//! The command line.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};

use crate::{describe, get, machine, quickstart, server, sim};

/// Provision K3s and RKE2 clusters on any infrastructure, and manage them in place for the rest of their lives.
#[derive(Parser)]
#[command(name = "drover", version, about, propagate_version = true, max_term_width = 100)]
pub(crate) struct Args {
    /// Say more (-v: what the program does, -vv: everything).
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// From nothing to a Ready cluster on this machine: management plane, local machines, demo cluster.
    Quickstart(quickstart::Quickstart),
    /// Run the management plane.
    Server(server::Server),
    /// Show clusters, or get what is needed to use one.
    Get(get::Get),
    /// Show a cluster as a tree with its conditions.
    Describe(describe::Describe),
    /// Create and remove machines, look after them, and get into them.
    Machine(machine::Machine),
    /// A K3s-shaped Kubernetes without pods, for demos, tests and scale.
    Sim(sim::Sim),
}

/// Where the management plane keeps everything.
#[derive(ClapArgs, Clone)]
pub(crate) struct DataDirArg {
    /// Where everything is kept [default: /var/lib/drover for root, else ~/.local/share/drover].
    #[arg(long, global = true, value_name = "DIR", env = "DROVER_DATA_DIR")]
    data_dir: Option<PathBuf>,
}

impl DataDirArg {
    pub(crate) fn path(&self) -> PathBuf {
        if let Some(dir) = &self.data_dir {
            return dir.clone();
        }
        if nix::unistd::geteuid().is_root() {
            return "/var/lib/drover".into();
        }
        let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("."), PathBuf::from);
        // Empty means unset.
        std::env::var_os("XDG_DATA_HOME")
            .filter(|dir| !dir.is_empty())
            .map_or_else(|| home.join(".local/share"), PathBuf::from)
            .join("drover")
    }
}

impl Args {
    pub(crate) async fn run(self) -> anyhow::Result<i32> {
        let verbose = self.verbose;
        match self.command {
            Command::Quickstart(command) => command.run(verbose).await,
            Command::Server(command) => command.run(verbose).await,
            Command::Get(command) => command.run().await,
            Command::Describe(command) => command.run().await,
            Command::Machine(command) => command.run().await,
            Command::Sim(command) => command.run(verbose).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }
}
