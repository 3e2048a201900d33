//! `drover machine`: used by provisioning Jobs and by people who manage machines.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use drover_local_machines::LocalDriver;
use drover_machine::cli::{self, Cli, CreateArgs, Failure, Removal};
use drover_machine::driver::{Driver, PowerOp};
use drover_machine::flags::{self, Flag};
use drover_machine::store::{DiskStore, SecretClient, SecretData, SecretStore, Store};
use drover_server::DataDir;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Api, PostParams};

use crate::args::DataDirArg;
use crate::output::{Format, answer, chain, print_error_line};
use crate::server::own_executable;

const CALL_LIMIT: Duration = Duration::from_secs(30);

#[derive(Args)]
#[command(args_conflicts_with_subcommands = false)]
pub(crate) struct Machine {
    #[command(flatten)]
    data_dir: DataDirArg,
    /// Store the machine's state in this Secret instead of on disk.
    #[arg(long, env = "K8S_SECRET_NAME", hide = true, default_value = "")]
    secret_name: String,
    #[arg(long, env = "K8S_SECRET_NAMESPACE", hide = true, default_value = "")]
    secret_namespace: String,
    /// Options of drivers that are not built in.
    #[arg(long, hide = true, default_value = "")]
    driver_download_url: String,
    #[arg(long, hide = true, default_value = "")]
    driver_hash: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create a machine, or continue an interrupted creation.
    #[command(
        override_usage = "drover machine create --driver local [--<driver>-FLAG VALUE]… NAME",
        after_help = create_help()
    )]
    Create {
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            required = true,
            hide = true,
            value_name = "NAME"
        )]
        words: Vec<String>,
    },
    /// Remove a machine and all its resources.
    Rm {
        // Scripts written for rancher-machine pass this flag; no command asks for confirmation.
        #[arg(short, hide = true)]
        y: bool,
        /// Remove the machine's record even if its driver fails.
        #[arg(short, long)]
        force: bool,
        #[arg(long, hide = true)]
        update_config: bool,
        /// Name of the machine.
        name: String,
    },
    /// List machines.
    Ls {
        /// Print only names.
        #[arg(short, long, conflicts_with = "output")]
        quiet: bool,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Show the details of a machine.
    Inspect {
        /// Name of the machine.
        name: String,
        /// Output format; a table has the columns of `ls`.
        #[arg(short, long, value_enum, default_value = "json")]
        output: Format,
    },
    /// Show a machine's address.
    Ip {
        /// Name of the machine.
        name: String,
    },
    /// Show a machine's state.
    Status {
        /// Name of the machine.
        name: String,
    },
    /// Power a machine on.
    Start {
        /// Name of the machine.
        name: String,
    },
    /// Power a machine off; its disk is kept.
    Stop {
        /// Name of the machine.
        name: String,
    },
    /// Power a machine off at once, without a shutdown.
    Kill {
        /// Name of the machine.
        name: String,
    },
    /// Power a machine off and on.
    Restart {
        /// Name of the machine.
        name: String,
    },
    /// Open a shell in a machine, or run a command there.
    Ssh {
        /// Name of the machine.
        name: String,
        /// The command to run; a single argument is run by the shell.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}

impl Command {
    /// The name of an existing machine.
    fn needs(&self) -> Option<&str> {
        match self {
            Self::Inspect { name, .. }
            | Self::Ip { name }
            | Self::Status { name }
            | Self::Start { name }
            | Self::Stop { name }
            | Self::Kill { name }
            | Self::Restart { name }
            | Self::Rm { name, force: false, update_config: false, .. }
            | Self::Ssh { name, .. } => Some(name),
            Self::Create { .. } | Self::Ls { .. } | Self::Rm { .. } => None,
        }
    }
}

/// The machine store of a data directory.
const STORE: &str = "machine-store";

impl Machine {
    /// `--data-dir` may also follow `create`, whose arguments are parsed later.
    fn data_dir_path(&self) -> PathBuf {
        if let Command::Create { words } = &self.command
            && let Ok(args) = CreateArgs::parse(words)
            && !args.data_dir.is_empty()
        {
            return args.data_dir.into();
        }
        self.data_dir.path()
    }

    /// Drivers block, so they run in a thread of their own.
    pub(crate) async fn run(self) -> anyhow::Result<i32> {
        let handle = tokio::runtime::Handle::current();
        tokio::task::spawn_blocking(move || self.work(&handle)).await?
    }

    fn work(self, handle: &tokio::runtime::Handle) -> anyhow::Result<i32> {
        let dir = self.data_dir_path();
        let unusable = || format!("data directory {} cannot be used", dir.display());
        // Commands that only read, and refused creations, do not create a directory.
        let found = DataDir::existing(&dir).with_context(unusable)?;
        let holds_machines =
            |found: &DataDir| [STORE, "local"].iter().any(|part| found.path().join(part).exists());
        if !found.as_ref().is_some_and(holds_machines) {
            if let Some(name) = self.command.needs() {
                let none =
                    if found.is_some() { "there are no machines in" } else { "there is no data directory" };
                print_error_line(&format!("drover: machine {name:?} not found: {none} {}", dir.display()));
                return Ok(cli::NOT_FOUND);
            }
            if let Command::Rm { name, .. } = &self.command {
                answer(&(absent(name) + "\n"))?;
                return Ok(0);
            }
        }
        let path = match found {
            Some(found) => found.path().to_owned(),
            None => std::path::absolute(&dir).with_context(unusable)?,
        };
        if let Command::Create { .. } = &self.command {
            DataDir::suits(&path).with_context(unusable)?;
        }
        let exe = own_executable()?;
        let local = LocalDriver::new(&path, &exe);
        let store: Box<dyn Store> = if self.secret_name.is_empty() {
            Box::new(DiskStore::new(path.join(STORE)))
        } else {
            let client = handle.block_on(kube::Client::try_default()).context("KUBECONFIG cannot be used")?;
            let secrets = Secrets { client, handle: handle.clone() };
            Box::new(SecretStore::new(secrets, &self.secret_namespace, &self.secret_name))
        };
        let by_name = {
            let local = local.clone();
            move |name: &str| (name == "local").then(|| Box::new(local.clone()) as Box<dyn Driver>)
        };
        let cli = Cli {
            store: store.as_ref(),
            driver: &by_name,
            known: self.secret_name.is_empty().then_some(&local as &dyn Driver),
            env: &|name| std::env::var(name).ok(),
            sleep: &std::thread::sleep,
        };
        match verb(&cli, self.command, &path) {
            Ok(code) => Ok(code),
            Err(failure) => {
                print_error_line(&format!("drover: {failure}"));
                Ok(failure.code)
            }
        }
    }
}

/// Arguments after `create` depend on the driver, so clap does not parse them.
fn create_help() -> String {
    let own = [
        Flag::string("driver", "", "", "The driver that creates the machine: local"),
        Flag::string(
            "custom-install-script",
            "",
            "",
            "A script that the machine runs as root at its first boot",
        ),
        Flag::string("hostname-override", "", "", "The machine's host name [default: NAME]"),
    ];
    let driver = LocalDriver::new(Path::new(""), Path::new(""));
    format!("Every driver:\n{}\nDriver local:\n{}", flags::help(&own), flags::help(&driver.flags()))
}

fn verb(cli: &Cli<'_>, command: Command, data_dir: &Path) -> Result<i32, Failure> {
    let text = match command {
        Command::Create { words } => {
            let host = cli.create(&CreateArgs::parse(&words)?)?;
            format!("machine {} runs at {}\n", host.config.name, host.driver_text("IPAddress"))
        }
        Command::Rm { force, update_config, name, .. } => match cli.rm(&name, force)? {
            Removal::Removed => format!("removed machine {name}\n"),
            // A repeated Job succeeds because nothing is left to do; a person has mistyped the name.
            Removal::Absent if force || update_config => absent(&name) + "\n",
            Removal::Absent => {
                let message = format!("machine {name:?} not found; nothing was removed");
                return Err(Failure { code: cli::NOT_FOUND, message });
            }
            Removal::Forgotten(left) => {
                print_error_line(&format!("drover: {left}"));
                String::new()
            }
        },
        Command::Ls { quiet, output } => {
            let machines = cli.ls()?;
            if quiet {
                machines.iter().map(|machine| format!("{}\n", machine.name)).collect()
            } else {
                let none = || format!("no machines in {}\n", data_dir.display());
                let table = || if machines.is_empty() { none() } else { cli::table(&machines) };
                output.render(&machines, table).map_err(failed)?
            }
        }
        Command::Inspect { name, output } => inspected(cli, &name, output)?,
        Command::Ip { name } => cli.ip(&name)? + "\n",
        Command::Status { name } => format!("{}\n", cli.status(&name)?),
        Command::Start { name } => format!("{}\n", cli.power(&name, PowerOp::Start)?),
        Command::Stop { name } => format!("{}\n", cli.power(&name, PowerOp::Stop)?),
        Command::Kill { name } => format!("{}\n", cli.power(&name, PowerOp::Kill)?),
        Command::Restart { name } => format!("{}\n", cli.power(&name, PowerOp::Restart)?),
        Command::Ssh { name, command } => return cli.ssh(&name, &command),
    };
    answer(&text).map_err(failed)?;
    Ok(0)
}

/// The details of a machine; JSON is printed as it is stored.
fn inspected(cli: &Cli<'_>, name: &str, output: Format) -> Result<String, Failure> {
    let known = cli.inspect(name)?;
    match output {
        Format::Json => Ok(known + "\n"),
        Format::Yaml => {
            let known: serde_json::Value =
                serde_json::from_str(&known).map_err(|error| failed(error.into()))?;
            output.render(&known, String::new).map_err(failed)
        }
        Format::Table => {
            let machines = cli.ls()?;
            let one: Vec<_> = machines.into_iter().filter(|machine| machine.name == name).collect();
            Ok(cli::table(&one))
        }
    }
}

fn failed(error: anyhow::Error) -> Failure {
    Failure { code: 1, message: chain(&error) }
}

fn absent(name: &str) -> String {
    format!("machine {name} not found; nothing was removed")
}

/// The machine-state Secret, for blocking code.
struct Secrets {
    client: kube::Client,
    handle: tokio::runtime::Handle,
}

impl Secrets {
    fn wait<T>(&self, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, String> {
        let limited = async {
            tokio::time::timeout(CALL_LIMIT, call)
                .await
                .map_err(|_| "the API did not answer in time".to_owned())
        };
        self.handle.block_on(limited)?.map_err(|error| error.to_string())
    }
}

impl SecretClient for Secrets {
    fn get(&self, namespace: &str, name: &str) -> Result<Option<SecretData>, String> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let secret = self.wait(api.get_opt(name))?;
        Ok(secret.map(|secret| SecretData {
            resource_version: secret.resource_version().unwrap_or_default(),
            data: secret.data.into_iter().flatten().map(|(key, value)| (key, value.0)).collect(),
        }))
    }

    fn update(&self, namespace: &str, name: &str, data: &SecretData) -> Result<(), String> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let mut secret = self.wait(api.get(name))?;
        secret.metadata.resource_version = Some(data.resource_version.clone());
        secret.metadata.managed_fields = None;
        secret.data =
            Some(data.data.iter().map(|(key, value)| (key.clone(), ByteString(value.clone()))).collect());
        self.wait(api.replace(name, &PostParams::default(), &secret)).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use drover_machine::host::{Host, HostOptions};
    use serde_json::Value;

    #[test]
    fn a_machine_is_inspected_in_every_format() {
        let dir = tempfile::tempdir().unwrap();
        let store = DiskStore::new(dir.path().to_owned());
        for name in ["m", "other"] {
            store.save(&Host::new(name, "local", "", HostOptions::default())).unwrap();
        }
        let cli =
            Cli { store: &store, driver: &|_| None, known: None, env: &|_| None, sleep: &std::thread::sleep };
        let json: Value = serde_json::from_str(&inspected(&cli, "m", Format::Json).unwrap()).unwrap();
        let yaml: Value = serde_saphyr::from_str(&inspected(&cli, "m", Format::Yaml).unwrap()).unwrap();
        assert_eq!((&json, json["Name"].as_str()), (&yaml, Some("m")));
        let table = inspected(&cli, "m", Format::Table).unwrap();
        assert!(table.lines().count() == 2 && table.contains("\nm  "), "{table}");
        assert_eq!(inspected(&cli, "nosuch", Format::Yaml).unwrap_err().code, cli::NOT_FOUND);
    }
}
