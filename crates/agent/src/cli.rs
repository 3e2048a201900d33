//! The commands of `drover-agent`.

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use crate::{
    alone::Alone,
    cluster_agent::{self, ClusterAgent},
    config::{self, Config, Connection},
    host::{Host, RealHost},
    log,
    sentinel::Sentinel,
    status, uninstall,
};

const HELP: &str = "\
The node agent of Drover. It applies the machine plan of this node and reports.

Usage: drover-agent COMMAND

Commands:
  sentinel                    run the agent (this is what the systemd unit does)
  validate-config FILE        check a configuration file
  validate-connection FILE    check a connection file
  status                      tell what the running agent is doing
  uninstall                   remove the agent from this machine; Kubernetes stays
    --purge-distribution      run the uninstaller of K3s or RKE2 as well, if there is one
  --version, --help

Environment:
  CATTLE_AGENT_CONFIG         configuration file (default /etc/rancher/agent/config.yaml)
  CATTLE_LOGLEVEL             trace, debug, info, warn or error (default info)
  CATTLE_AGENT_STRICT_VERIFY  true: trust only the authority in the connection file
  CATTLE_AGENT_ADMIN_KUBECONFIG
                              admin kubeconfig of the cluster that this node serves, for the tunnel
                              (default /etc/rancher/k3s/k3s.yaml, then /etc/rancher/rke2/rke2.yaml)
";

/// Runs a command line (without the program's name).
pub fn main(args: &[String]) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("drover-agent: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<(), String> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["--help" | "-h" | "help"] | [] => {
            print!("{HELP}");
            return if args.is_empty() { Err("a command is missing".into()) } else { Ok(()) };
        }
        ["--version" | "-v" | "version"] => {
            println!("drover-agent {}", env!("CARGO_PKG_VERSION"));
            return Ok(());
        }
        [_, ref rest @ ..] if rest.iter().any(|arg| matches!(*arg, "--help" | "-h")) => {
            print!("{HELP}");
            return Ok(());
        }
        _ => {}
    }
    let host = RealHost::new();
    if host.identity().0 != 0 {
        return Err("must be run as root (uid 0)".into());
    }
    let level = env::var("CATTLE_LOGLEVEL").unwrap_or_default();
    log::init(
        log::parse_level(&level).ok_or_else(|| format!("CATTLE_LOGLEVEL: {level:?} is not a log level"))?,
    );
    let config_path = env::var("CATTLE_AGENT_CONFIG").ok().filter(|path| !path.is_empty());
    let config_path =
        host.absolute(Path::new(config_path.as_deref().unwrap_or_else(|| config::default_path())));
    match args[..] {
        ["sentinel"] => sentinel(host, &config_path),
        ["validate-config", file] => {
            Config::load(&host, Path::new(file)).map_err(|error| error.to_string())?;
            println!("{file} is a valid configuration");
            Ok(())
        }
        ["validate-connection", file] => {
            let connection = Connection::load(&host, Path::new(file)).map_err(|error| error.to_string())?;
            crate::kubeconfig::parse(&connection.kube_config).map_err(|error| error.to_string())?;
            println!("{file} is a valid connection");
            Ok(())
        }
        [command @ ("validate-config" | "validate-connection")] => {
            Err(format!("{command}: which FILE? See drover-agent --help"))
        }
        ["status"] => show_status(&host, &config_path),
        ["uninstall"] => uninstall(&host, &config_path, false),
        ["uninstall", "--purge-distribution"] => uninstall(&host, &config_path, true),
        _ => Err(format!("unknown command line {args:?}; see drover-agent --help")),
    }
}

fn sentinel(host: RealHost, config_path: &Path) -> Result<(), String> {
    let config = Config::load(&host, config_path).map_err(|error| error.to_string())?;
    let _alone = Alone::take(&host, &config.var_dir()).map_err(|error| error.to_string())?;
    let strict = env::var("CATTLE_AGENT_STRICT_VERIFY").is_ok_and(|value| value.eq_ignore_ascii_case("true"));
    runtime()?.block_on(async {
        let stop = told_to_stop().map_err(|error| error.to_string())?;
        tracing::info!("drover-agent {} starts", env!("CARGO_PKG_VERSION"));
        let mut sentinel = Sentinel::start(Arc::new(host.with_own_executable()), config, strict)
            .map_err(|error| error.to_string())?;
        if sentinel.config().remote_enabled {
            let tunnel = ClusterAgent::new(
                sentinel.host(),
                sentinel.board(),
                admin_kubeconfigs(),
                sentinel.config().connection_info_file.clone(),
                strict,
            );
            sentinel.join("tunnel", tunnel.run());
        }
        sentinel.run(stop).await;
        tracing::info!("drover-agent ends");
        Ok(())
    })
}

/// Ends when the machine's service manager, or a person, tells the agent to stop.
#[cfg(unix)]
fn told_to_stop() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Ends when the machine's service manager, or a person, tells the agent to stop.
#[cfg(windows)]
fn told_to_stop() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::windows::{ctrl_c, ctrl_shutdown};
    let (mut interrupt, mut shutdown) = (ctrl_c()?, ctrl_shutdown()?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = shutdown.recv() => {}
        }
    })
}

fn uninstall(host: &RealHost, config_path: &Path, purge: bool) -> Result<(), String> {
    let units = env::var("CATTLE_AGENT_SYSTEMD_DIR").unwrap_or_else(|_| "/etc/systemd/system".into());
    let binary = env::current_exe().ok();
    let installed = uninstall::Installed {
        config: config_path,
        units: Path::new(&units),
        // Not when it was built and run from elsewhere.
        binary: binary.as_deref().filter(|path| path.ends_with("bin/rancher-system-agent")),
    };
    uninstall::stop();
    let mut failed = Vec::new();
    if purge {
        failed = runtime()?.block_on(uninstall::purge_distribution(host));
    }
    failed.extend(uninstall::remove(host, &installed));
    match failed[..] {
        [] => Ok(()),
        ref failed => Err(format!("could not remove everything: {}", failed.join("; "))),
    }
}

/// One thread does everything but what blocks; its helpers leave as soon as they have nothing to do.
fn runtime() -> Result<tokio::runtime::Runtime, String> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .thread_keep_alive(std::time::Duration::from_secs(2))
        .build()
        .map_err(|error| format!("cannot start: {error}"))
}

fn admin_kubeconfigs() -> Vec<PathBuf> {
    match env::var_os("CATTLE_AGENT_ADMIN_KUBECONFIG").filter(|path| !path.is_empty()) {
        Some(path) => vec![path.into()],
        None => cluster_agent::ADMIN_KUBECONFIGS.iter().map(PathBuf::from).collect(),
    }
}

fn show_status(host: &RealHost, config_path: &Path) -> Result<(), String> {
    let config = Config::load(host, config_path).map_err(|error| error.to_string())?;
    let path = status::path(&config.var_dir());
    let bytes = host
        .read(&path)
        .map_err(|error| format!("the agent has not run yet: {}: {error}", path.display()))?;
    let status: status::Status =
        serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    print!("{}", status::render(&status));
    if !Path::new("/proc").join(status.pid.to_string()).exists() {
        println!("The agent is not running; this is what it said last.");
    }
    Ok(())
}
