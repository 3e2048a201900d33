//! The commands of `drover-agent`.

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use tracing::level_filters::LevelFilter;

use crate::{
    cluster_agent::{self, ClusterAgent},
    config::{self, Config, Connection},
    host::{Host, RealHost, is_alive},
    lock::AgentLock,
    log, platform,
    sentinel::Sentinel,
    service::{self, State, Supervisor},
    status, uninstall,
};

/// How long files may still be written after all tasks have ended.
const LAST_WORK: Duration = Duration::from_secs(10);

/// The exit code of `systemctl status` for a stopped service.
const NOT_RUNNING: u8 = 3;

/// Runs a command line without the program name.
pub fn main(args: &[String]) -> ExitCode {
    match run(args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("drover-agent: {error}");
            ExitCode::FAILURE
        }
    }
}

fn help() {
    print!(
        "\
The node agent of Drover. It applies the machine plan of this node and reports.

Usage: drover-agent COMMAND

Commands:
  sentinel                    run the agent, as the service of this machine does
  validate-config FILE        validate a configuration file
  validate-connection FILE    validate a connection file
  status                      show what the running agent is doing; exits with 3 if none is running
  uninstall                   remove the agent from this machine; Kubernetes stays
    --purge-distribution      also run the uninstaller of K3s or RKE2, if it is installed
  --version, --help

Environment:
  CATTLE_AGENT_CONFIG         configuration file (default {config})
  CATTLE_LOGLEVEL             trace, debug, info, warn or error (default info)
  CATTLE_AGENT_STRICT_VERIFY  true: trust only the CA in the connection file
  CATTLE_AGENT_ADMIN_KUBECONFIG
                              admin kubeconfig of this node's cluster, for the tunnel
                              (default /etc/rancher/k3s/k3s.yaml, then /etc/rancher/rke2/rke2.yaml)
",
        config = config::default_path()
    );
}

fn run(args: &[String]) -> Result<ExitCode, String> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["--help" | "-h" | "help"] | [] => {
            help();
            return if args.is_empty() {
                Err("missing command; see drover-agent --help".into())
            } else {
                Ok(ExitCode::SUCCESS)
            };
        }
        ["--version" | "-v" | "version"] => {
            println!("drover-agent {}", env!("CARGO_PKG_VERSION"));
            return Ok(ExitCode::SUCCESS);
        }
        [_, ref rest @ ..] if rest.iter().any(|arg| matches!(*arg, "--help" | "-h")) => {
            help();
            return Ok(ExitCode::SUCCESS);
        }
        _ => {}
    }
    let host = RealHost::new();
    if host.identity().0 != 0 {
        return Err("must be run as root (uid 0)".into());
    }
    let config_path = env::var("CATTLE_AGENT_CONFIG").ok().filter(|path| !path.is_empty());
    let config_path =
        host.absolute(Path::new(config_path.as_deref().unwrap_or_else(|| config::default_path())));
    if let ["sentinel"] = args[..] {
        return service::run(Box::new(move |supervisor| sentinel(host, &config_path, supervisor)))
            .map(|()| ExitCode::SUCCESS);
    }
    log::init(level(|| false)?, log::stdout);
    let done = match args[..] {
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
            Err(format!("{command}: missing argument FILE; see drover-agent --help"))
        }
        ["status"] => return show_status(&host, &config_path),
        ["uninstall"] => uninstall(&host, &config_path, false),
        ["uninstall", "--purge-distribution"] => uninstall(&host, &config_path, true),
        _ => Err(format!("unknown command {args:?}; see drover-agent --help")),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// The log level of the environment, or else of the configuration.
fn level(asks_for_debug: impl FnOnce() -> bool) -> Result<LevelFilter, String> {
    match env::var("CATTLE_LOGLEVEL").ok().filter(|level| !level.is_empty()) {
        Some(level) => log::parse_level(&level)
            .ok_or_else(|| format!("CATTLE_LOGLEVEL: {level:?} is not a valid log level")),
        None if asks_for_debug() => Ok(LevelFilter::DEBUG),
        None => Ok(LevelFilter::INFO),
    }
}

fn sentinel(host: RealHost, config_path: &Path, supervisor: &dyn Supervisor) -> Result<(), String> {
    log::init(level(|| Config::asks_for_debug(&host, config_path))?, supervisor.log());
    let config = Config::load(&host, config_path).map_err(|error| error.to_string())?;
    let _alone = AgentLock::take(&host, &config.var_dir()).map_err(|error| error.to_string())?;
    let reported =
        env::var("CATTLE_AGENT_STRICT_VERIFY").is_ok_and(|value| value.eq_ignore_ascii_case("true"));
    let strict = reported || config.strict;
    let runtime = runtime()?;
    let ended = runtime.block_on(async {
        let stop = supervisor.stop_requested().map_err(|error| error.to_string())?;
        tracing::info!("starting drover-agent {}", env!("CARGO_PKG_VERSION"));
        let mut sentinel = Sentinel::start(Arc::new(host.with_own_executable()), config, strict)
            .map_err(|error| error.to_string())?;
        if sentinel.config().remote_enabled && platform::CURRENT.has_control_planes() {
            let tunnel = ClusterAgent::new(
                sentinel.host(),
                sentinel.board(),
                admin_kubeconfigs(),
                sentinel.config().connection_info_file.clone(),
                strict,
            )
            .reporting_to(sentinel.cluster_ca());
            sentinel.join("tunnel", tunnel.run());
        }
        supervisor.report(State::Running);
        let stop = async {
            stop.await;
            supervisor.report(State::Stopping);
        };
        sentinel.run(stop).await;
        tracing::info!("drover-agent stopped");
        Ok(())
    });
    // On Windows, a thread may wait forever for the output of a process that an instruction left running.
    runtime.shutdown_timeout(LAST_WORK);
    ended
}

fn uninstall(host: &RealHost, config_path: &Path, purge: bool) -> Result<(), String> {
    if !platform::CURRENT.has_installer() {
        return Err(format!(
            "uninstall is not supported on this platform: stop and delete the service {}, then remove its files manually",
            platform::CURRENT.service()
        ));
    }
    let units = env::var("CATTLE_AGENT_SYSTEMD_DIR").unwrap_or_else(|_| "/etc/systemd/system".into());
    let binary = env::current_exe().ok();
    let installed = uninstall::Installed {
        config: config_path,
        units: Path::new(&units),
        // Skip it if it was built and run from elsewhere.
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
        ref failed => Err(format!("failed to remove: {}", failed.join("; "))),
    }
}

/// One thread runs everything that does not block; the threads for blocking work end as soon as they are idle.
fn runtime() -> Result<tokio::runtime::Runtime, String> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(platform::CURRENT.blocking_threads())
        .thread_keep_alive(Duration::from_secs(2))
        .build()
        .map_err(|error| format!("failed to start: {error}"))
}

fn admin_kubeconfigs() -> Vec<PathBuf> {
    match env::var_os("CATTLE_AGENT_ADMIN_KUBECONFIG").filter(|path| !path.is_empty()) {
        Some(path) => vec![path.into()],
        None => cluster_agent::ADMIN_KUBECONFIGS.iter().map(PathBuf::from).collect(),
    }
}

fn show_status(host: &RealHost, config_path: &Path) -> Result<ExitCode, String> {
    let config = Config::load(host, config_path).map_err(|error| error.to_string())?;
    let var = config.var_dir();
    let path = status::path(&var);
    let bytes = host.read(&path).map_err(|error| match status::obstacle(host, &var) {
        Some(obstacle) if var.is_dir() => {
            format!("the agent has not written its status: failed to write to {}: {obstacle}", var.display())
        }
        _ => format!("no status found: {}: {error}. The agent has not run yet", path.display()),
    })?;
    let status: status::Status =
        serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    print!("{}", status::render(&status));
    if !is_alive(status.pid) {
        println!("The agent is not running. This is its last status.");
        return Ok(ExitCode::from(NOT_RUNNING));
    }
    if let Some(obstacle) = status::obstacle(host, &var) {
        let noted = std::fs::metadata(&path).and_then(|found| found.modified()).ok();
        let noted = noted.and_then(|at| jiff::Timestamp::try_from(at).ok());
        let noted = noted.map_or_else(String::new, |at| format!(" (from {at:.0})"));
        println!(
            "This status may be outdated{noted}: the agent cannot write to {} ({obstacle}).",
            var.display()
        );
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::testing::StopAtOnce;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn the_supervisor_is_informed_of_every_state() {
        let dir = tempfile::tempdir().unwrap();
        let (config, root) = (dir.path().join("config.yaml"), dir.path().display().to_string());
        let run_agent = |text: String| {
            std::fs::write(&config, text).unwrap();
            std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o600)).unwrap();
            let config = config.clone();
            StopAtOnce::default()
                .run_agent(Box::new(move |supervisor| sentinel(RealHost::new(), &config, supervisor)))
        };
        let (ended, reported) = run_agent(format!(
            "workDirectory: {root}/work\nlocalEnabled: true\nlocalPlanDirectory: {root}/plans\n"
        ));
        ended.unwrap();
        assert_eq!(reported, ["Starting", "Running", "Stopping", "Stopped"]);
        let (ended, reported) = run_agent("localEnabled: false\n".into());
        let why = ended.unwrap_err();
        assert!(why.contains("neither localEnabled nor remoteEnabled"), "{why}");
        assert_eq!(reported, ["Starting".to_owned(), format!("Failed({why:?})")]);
    }
}
