//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};

use crate::{describe, get, machine, quickstart, server, sim, why};

/// Global arguments are listed after those of the command itself.
const LAST: usize = 1000;

/// Provision K3s and RKE2 clusters on any infrastructure, and manage them in place for the rest of their lives.
#[derive(Parser)]
#[command(
    name = "drover",
    version,
    about,
    propagate_version = true,
    max_term_width = 100,
    after_help = "Begin with `drover quickstart`; `drover quickstart --delete` removes everything again."
)]
pub(crate) struct Args {
    /// Log more (-v: what the program does, -vv: everything).
    #[arg(short, long, global = true, action = clap::ArgAction::Count, display_order = LAST)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a management plane, local machines and a demo cluster on this host.
    Quickstart(quickstart::Quickstart),
    /// Run the management plane.
    Server(server::Server),
    /// List clusters, or print a kubeconfig or registration command.
    Get(get::Get),
    /// Show a cluster as a tree with its conditions.
    Describe(describe::Describe),
    /// Explain what a cluster, pool, machine, control plane or Job waits for, down to the cause.
    Why(why::Why),
    /// Create, list, control and remove machines.
    Machine(machine::Machine),
    /// Run a simulated K3s without pods, for demos, tests and load.
    Sim(sim::Sim),
}

/// `--bind`.
pub(crate) fn bind_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "expected an IP address and a port, such as 127.0.0.1:8443".to_owned())
}

/// `--machines`.
pub(crate) fn machine_count(text: &str) -> Result<u16, String> {
    let count = text.parse().ok().filter(|count| (2..=50).contains(count));
    count.ok_or_else(|| "expected a number from 2 to 50".to_owned())
}

/// The name of an object or of a namespace. It becomes part of a URL path.
pub(crate) fn path_name(text: &str) -> Result<String, String> {
    if ["", ".", ".."].contains(&text) || text.contains(['/', '%']) {
        return Err("a name cannot be empty, `.` or `..`, and cannot contain `/` or `%`".to_owned());
    }
    Ok(text.to_owned())
}

/// The data directory of the management plane.
#[derive(ClapArgs, Clone)]
pub(crate) struct DataDirArg {
    /// Data directory [default: /var/lib/drover for root, else ~/.local/share/drover].
    #[arg(long, global = true, value_name = "DIR", env = "DROVER_DATA_DIR", display_order = LAST - 1)]
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
        // An empty value counts as unset.
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
            Command::Why(command) => command.run().await,
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
    fn the_arguments_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn every_visible_argument_and_command_has_help() {
        fn look(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            assert!(command.get_about().is_some(), "{path}");
            for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
                assert!(argument.get_help().is_some(), "{path} {}", argument.get_id());
            }
            command.get_subcommands().for_each(|inner| look(inner, &path));
        }
        look(&Args::command(), "");
    }

    #[test]
    fn invalid_arguments_are_refused_with_a_clear_message() {
        let refused = |words: &[&str], part: &str| {
            let error = match Args::try_parse_from(std::iter::once(&"drover").chain(words)) {
                Ok(_) => panic!("{words:?} was accepted"),
                Err(error) => error.to_string(),
            };
            assert!(error.contains(part), "{words:?}: {error}");
        };
        for count in ["x", "1", "51", "-1", "3.5"] {
            refused(&["quickstart", &format!("--machines={count}")], "a number from 2 to 50");
        }
        for name in ["", ".", "..", "a/b", "%2e"] {
            refused(&["get", "clusters", name], "a name cannot be empty");
            refused(&["get", "clusters", "-n", name], "a name cannot be empty");
            refused(&["get", "kubeconfig", name], "a name cannot be empty");
            refused(&["get", "registration-command", name], "a name cannot be empty");
            refused(&["describe", "cluster", name], "a name cannot be empty");
            refused(&["why", &format!("machine/{name}")], "a name cannot be empty");
        }
        refused(&["machine", "ls", "-q", "-o", "json"], "cannot be used with");
        for words in [
            &["quickstart", "--machines", "50"][..],
            &["get", "clusters", "a.b", "C"],
            &["machine", "ls", "-q"],
        ] {
            assert!(Args::try_parse_from(std::iter::once(&"drover").chain(words)).is_ok(), "{words:?}");
        }
    }
}
