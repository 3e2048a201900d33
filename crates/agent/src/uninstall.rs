//! Takes the agent off a machine: unit, environment, directories, binaries. The Kubernetes distribution stays, unless it
//! is asked to leave too: then its own uninstaller does that, which knows best.

use std::{
    io,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    config::{self, Config},
    host::{Exec, Exit, Host, Kind, Sink, Source},
};

/// Name of the systemd unit, as the original's.
pub const UNIT: &str = "rancher-system-agent.service";
const ENVIRONMENT: &str = "rancher-system-agent.env";
const UNINSTALLER: &str = "rancher-system-agent-uninstall.sh";

/// Where distributions put their uninstallers, and what they call them.
const DISTRIBUTION_FOLDERS: &[&str] = &["/usr/local/bin", "/opt/bin", "/opt/rke2/bin", "/usr/bin"];
const DISTRIBUTION_UNINSTALLERS: &[&str] =
    &["k3s-uninstall.sh", "k3s-agent-uninstall.sh", "rke2-uninstall.sh"];
/// They stop every container and unmount everything, which takes its time.
const PURGE_TIMEOUT: Duration = Duration::from_secs(900);

/// What the installer made, and where.
pub struct Installed<'a> {
    /// The configuration file.
    pub config: &'a Path,
    /// The folder of systemd units.
    pub units: &'a Path,
    /// The agent's own binary.
    pub binary: Option<&'a Path>,
}

/// Ends the agent for good, so that it installs nothing again.
pub fn stop() {
    for args in [&["stop", UNIT][..], &["disable", UNIT], &["reset-failed", UNIT]] {
        // A machine without systemd, or without the unit, is as good as one where it is stopped.
        let _ = Command::new("systemctl").args(args).output();
    }
}

/// Runs the uninstallers of the distributions that are installed; returns what went wrong.
pub async fn purge_distribution(host: &dyn Host) -> Vec<String> {
    struct Show;
    impl Sink for Show {
        fn write(&mut self, _: Source, chunk: &[u8]) {
            // Nobody to tell is no reason to stop.
            let _ = io::Write::write_all(&mut io::stdout(), chunk);
        }
    }
    let mut failed = Vec::new();
    for folder in DISTRIBUTION_FOLDERS {
        for name in DISTRIBUTION_UNINSTALLERS {
            let path = Path::new(folder).join(name);
            if host.stat(&path).is_err() {
                continue;
            }
            println!("Running {}", path.display());
            let exec = Exec {
                program: path.display().to_string(),
                env: host.env(),
                dir: "/".into(),
                timeout: Some(PURGE_TIMEOUT),
                ..Exec::default()
            };
            match host.run(&exec, &mut Show).await {
                Ok(Exit::Code(0)) => {}
                Ok(Exit::Code(code)) => failed.push(format!("{}: exited with {code}", path.display())),
                Ok(Exit::TimedOut) => failed.push(format!(
                    "{}: was killed after {} seconds",
                    path.display(),
                    PURGE_TIMEOUT.as_secs()
                )),
                Err(error) => failed.push(format!("{}: {error}", path.display())),
            }
        }
    }
    failed
}

/// Removes everything the installer made, after [`stop`]; returns what could not be removed.
pub fn remove(host: &dyn Host, installed: &Installed<'_>) -> Vec<String> {
    let config = Config::load(host, installed.config).ok();
    let mut failed = Vec::new();
    for path in targets(config.as_ref(), installed) {
        let removed = match host.stat(&path).map(|stat| stat.kind) {
            Ok(Kind::Directory) => host.remove_tree(&path),
            Ok(_) => host.remove_file(&path),
            Err(error) => Err(error),
        };
        if let Err(error) = removed
            && !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        {
            failed.push(format!("{}: {error}", path.display()));
        }
    }
    let _ = Command::new("systemctl").arg("daemon-reload").output();
    failed
}

fn targets(config: Option<&Config>, installed: &Installed<'_>) -> Vec<PathBuf> {
    let mut targets = vec![installed.units.join(UNIT), installed.units.join(ENVIRONMENT)];
    // The directories may have been moved by variables of the installer; never take `/` or `/var` for one of them.
    let deep = |path: &PathBuf| path.components().count() > 3;
    let var = match config {
        Some(config) => Some(config.var_dir()),
        None if installed.config == Path::new(config::default_path()) => {
            Some(config::default_var_dir().into())
        }
        None => None,
    };
    targets.extend(var.filter(deep));
    targets.extend(installed.config.parent().map(Path::to_owned).filter(deep));
    if let Some(binary) = installed.binary {
        targets.push(binary.to_owned());
        targets.extend(binary.parent().map(|parent| parent.join(UNINSTALLER)));
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(config: Option<&Config>, path: &str) -> Vec<PathBuf> {
        let binary = Path::new("/opt/x/bin/rancher-system-agent");
        let units = Path::new("/etc/systemd/system");
        targets(config, &Installed { config: Path::new(path), units, binary: Some(binary) })
    }

    #[test]
    fn shallow_directories_are_never_removed() {
        let config = Config { work_directory: "/work".into(), ..Config::default() };
        let targets = of(Some(&config), "/etc/config.yaml");
        assert!(!targets.contains(&PathBuf::from("/")) && !targets.contains(&PathBuf::from("/etc")));
        let config = Config { work_directory: "/srv/rancher/agent/work".into(), ..Config::default() };
        let targets = of(Some(&config), "/etc/rancher/agent/config.yaml");
        for path in
            ["/srv/rancher/agent", "/etc/rancher/agent", "/opt/x/bin/rancher-system-agent-uninstall.sh"]
        {
            assert!(targets.contains(&PathBuf::from(path)), "{path}");
        }
        assert!(!of(None, "/x/y/z/config.yaml").contains(&PathBuf::from(config::default_var_dir())));
    }
}
