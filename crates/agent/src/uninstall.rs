//! Takes the agent off a machine: unit, environment, directories, binaries. The Kubernetes distribution stays.

use std::{
    io,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    config::{self, Config},
    host::{Host, Kind},
};

/// Name of the systemd unit, as the original's.
pub const UNIT: &str = "rancher-system-agent.service";
const ENVIRONMENT: &str = "rancher-system-agent.env";
const UNINSTALLER: &str = "rancher-system-agent-uninstall.sh";

/// What the installer made, and where.
pub struct Installed<'a> {
    /// The configuration file.
    pub config: &'a Path,
    /// The folder of systemd units.
    pub units: &'a Path,
    /// The agent's own binary.
    pub binary: Option<&'a Path>,
}

/// Removes everything the installer made; returns what could not be removed.
pub fn run(host: &dyn Host, installed: &Installed<'_>) -> Vec<String> {
    let config = Config::load(host, installed.config).ok();
    for args in [&["stop", UNIT][..], &["disable", UNIT], &["reset-failed", UNIT]] {
        // A machine without systemd, or without the unit, is as good as one where it is stopped.
        let _ = Command::new("systemctl").args(args).output();
    }
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
        None if installed.config == Path::new(config::DEFAULT_PATH) => Some(config::DEFAULT_VAR_DIR.into()),
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
        assert!(!of(None, "/x/y/z/config.yaml").contains(&PathBuf::from(config::DEFAULT_VAR_DIR)));
    }
}
