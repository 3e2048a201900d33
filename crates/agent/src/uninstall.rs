//! Takes the agent off a machine: unit, environment, directories, binaries. The Kubernetes distribution stays.

use std::{
    io,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    config::{Config, DEFAULT_VAR_DIR},
    host::Host,
};

/// Name of the systemd unit, as the original's.
pub const UNIT: &str = "rancher-system-agent.service";
const PREFIXES: &[&str] = &["/usr/local", "/opt/rancher-system-agent", "/usr"];
const BINARIES: &[&str] = &["rancher-system-agent", "drover-agent", "rancher-system-agent-uninstall.sh"];

/// Removes everything the installer made; returns what could not be removed.
pub fn run(host: &dyn Host, config_path: &Path) -> Vec<String> {
    let config = Config::load(host, config_path).ok();
    for args in [&["stop", UNIT][..], &["disable", UNIT], &["reset-failed", UNIT]] {
        // A machine without systemd, or without the unit, is as good as one where it is stopped.
        let _ = Command::new("systemctl").args(args).output();
    }
    let mut failed = Vec::new();
    for path in targets(config.as_ref(), config_path) {
        let removed = match host.stat(&path).map(|stat| stat.kind) {
            Ok(crate::host::Kind::Directory) => host.remove_tree(&path),
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

fn targets(config: Option<&Config>, config_path: &Path) -> Vec<PathBuf> {
    let units = Path::new("/etc/systemd/system");
    let mut targets = vec![units.join(UNIT), units.join("rancher-system-agent.env")];
    // The directories may have been moved by variables of the installer; never take `/` or `/var` for one of them.
    let deep = |path: &Path| path.components().count() > 3;
    targets.extend(config.map(Config::var_dir).filter(|path| deep(path)));
    targets.push(DEFAULT_VAR_DIR.into());
    targets.extend(config_path.parent().map(Path::to_owned).filter(|path| deep(path)));
    for prefix in PREFIXES {
        targets.extend(BINARIES.iter().map(|name| Path::new(prefix).join("bin").join(name)));
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shallow_directories_are_never_removed() {
        let config = Config { work_directory: "/work".into(), ..Config::default() };
        let targets = targets(Some(&config), Path::new("/etc/config.yaml"));
        assert!(!targets.contains(&PathBuf::from("/")) && !targets.contains(&PathBuf::from("/etc")));
        let config = Config { work_directory: "/srv/rancher/agent/work".into(), ..Config::default() };
        let targets = super::targets(Some(&config), Path::new("/etc/rancher/agent/config.yaml"));
        assert!(targets.contains(&PathBuf::from("/srv/rancher/agent")));
        assert!(targets.contains(&PathBuf::from("/etc/rancher/agent")));
    }
}
