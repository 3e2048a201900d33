//! Uninstalls the agent: unit, environment, directories, binaries. The Kubernetes distribution stays, unless its
//! removal is requested: then the distribution's own uninstaller runs.

use std::{
    io,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    apply::history,
    config::{self, Config},
    host::{Exec, Exit, Host, Kind, Sink, Source},
    upgrade,
};

/// The name of the systemd unit, which is the original's.
pub const UNIT: &str = "rancher-system-agent.service";
const ENVIRONMENT: &str = "rancher-system-agent.env";
const UNINSTALLER: &str = "rancher-system-agent-uninstall.sh";

/// The possible directories and names of the distributions' uninstallers.
const DISTRIBUTION_FOLDERS: &[&str] = &["/usr/local/bin", "/opt/bin", "/opt/rke2/bin", "/usr/bin"];
const DISTRIBUTION_UNINSTALLERS: &[&str] =
    &["k3s-uninstall.sh", "k3s-agent-uninstall.sh", "rke2-uninstall.sh"];
/// Where plans record which of their actions have run: on a machine that starts over, all of them must run again.
const DONE_ACTIONS: &str = "/var/lib/rancher/capr";
/// The directory of the binary if `/usr/local` cannot be used.
const OWN_PREFIX: &str = "/opt/rancher-system-agent";
/// They stop every container and unmount everything, which takes time.
const PURGE_TIMEOUT: Duration = Duration::from_secs(900);

/// What the installer created, and where.
pub struct Installed<'a> {
    /// The configuration file.
    pub config: &'a Path,
    /// The directory of systemd units.
    pub units: &'a Path,
    /// The agent's own binary.
    pub binary: Option<&'a Path>,
}

/// Stops and disables the agent, so that it installs nothing again.
pub fn stop() {
    for args in [&["stop", UNIT][..], &["disable", UNIT], &["reset-failed", UNIT]] {
        // If systemd or the unit does not exist, there is nothing to stop.
        let _ = Command::new("systemctl").args(args).output();
    }
}

/// Runs the uninstallers of all installed distributions; returns the errors.
pub async fn purge_distribution(host: &dyn Host) -> Vec<String> {
    struct Show;
    impl Sink for Show {
        fn write(&mut self, _: Source, chunk: &[u8]) {
            // Errors of the output are ignored.
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
                Ok(Exit::Code(code)) => failed.push(format!("{}: exit code {code}", path.display())),
                Ok(Exit::TimedOut) => failed.push(format!(
                    "{}: killed after {} seconds",
                    path.display(),
                    PURGE_TIMEOUT.as_secs()
                )),
                Err(error) => failed.push(format!("{}: {error}", path.display())),
            }
        }
    }
    match whole(host, Path::new(DONE_ACTIONS)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            failed.push(format!("{DONE_ACTIONS}: {error}"));
        }
        _ => {}
    }
    failed
}

/// Removes everything that the installer and the agent created, after [`stop`]; returns what could not be removed.
pub fn remove(host: &dyn Host, installed: &Installed<'_>) -> Vec<String> {
    let config = Config::load(host, installed.config).ok();
    let mut failed = Vec::new();
    for target in targets(config.as_ref(), installed) {
        let (path, removed) = match &target {
            Target::Whole(path) => (path, whole(host, path)),
            Target::IfEmpty(path) => (path, if_empty(host, path)),
            Target::Copies(path) => (path, copies(host, path)),
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

fn whole(host: &dyn Host, path: &Path) -> io::Result<()> {
    match host.stat(path)?.kind {
        // No directory of an agent is as shallow as `/var`, and an empty path would be `/`.
        Kind::Directory if path.components().count() < 3 => Ok(()),
        Kind::Directory => host.remove_tree(path),
        _ => host.remove_file(path),
    }
}

fn if_empty(host: &dyn Host, path: &Path) -> io::Result<()> {
    if host.stat(path)?.kind == Kind::Directory && host.list(path)?.is_empty() {
        host.remove_tree(path)?;
    }
    Ok(())
}

/// The copies of applied plans.
fn copies(host: &dyn Host, path: &Path) -> io::Result<()> {
    for name in host.list(path)?.iter().filter(|name| name.ends_with(history::SUFFIX)) {
        host.remove_file(&path.join(name))?;
    }
    if_empty(host, path)
}

/// What to remove.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    /// A file, or a directory with its content.
    Whole(PathBuf),
    /// A directory that others may use too, if it is empty.
    IfEmpty(PathBuf),
    /// Copies of plans in a directory that others may use too.
    Copies(PathBuf),
}

/// A file that the installer writes next to the configuration.
const IDENTITY: &str = "cattle-id";
/// Files of the agent next to its work directory.
const OWN: &[&str] = &["running", "outbox.json", "status.json", "continues", "sentinel.lock", "cache/blobs"];
/// Directories that the installer creates next to it.
const MADE: &[&str] = &["applied", "plans", "interlock", "images"];

/// Directories can be anywhere: next to a distribution's, or in `/var` itself. A directory is removed completely only
/// if its name belongs to the agent.
fn targets(config: Option<&Config>, installed: &Installed<'_>) -> Vec<Target> {
    let mut targets =
        vec![Target::Whole(installed.units.join(UNIT)), Target::Whole(installed.units.join(ENVIRONMENT))];
    let is_default = installed.config == Path::new(config::default_path());
    let var = config.map(Config::var_dir).or_else(|| is_default.then(|| config::default_var_dir().into()));
    if let Some(var) = var {
        if let Some(config) = config {
            targets.push(Target::Whole(config.work_directory.clone()));
            targets.push(Target::Copies(config.applied_plan_directory.clone()));
            let named = [
                &config.applied_plan_directory,
                &config.local_plan_directory,
                &config.interlock_directory,
                &config.images_directory,
            ];
            let made = MADE.iter().map(|name| var.join(name)).filter(|path| named.contains(&path));
            targets.extend(made.map(Target::Whole));
            targets.push(Target::Whole(config.connection_info_file.clone()));
        }
        targets.extend(OWN.iter().map(|name| Target::Whole(var.join(name))));
        targets.push(Target::IfEmpty(var.join("cache")));
        let own = var == Path::new(config::default_var_dir());
        // The parent directory is shared with the distribution.
        let around = var.parent().filter(|_| own).map(Path::to_owned);
        targets.push(if own { Target::Whole(var) } else { Target::IfEmpty(var) });
        targets.extend(around.map(Target::IfEmpty));
    }
    targets.push(Target::Whole(installed.config.to_owned()));
    if let Some(directory) = installed.config.parent() {
        let directory = directory.to_owned();
        targets.push(Target::Whole(directory.join(IDENTITY)));
        let around = directory.parent().filter(|_| is_default).map(Path::to_owned);
        targets.push(if is_default { Target::Whole(directory) } else { Target::IfEmpty(directory) });
        targets.extend(around.map(Target::IfEmpty));
    }
    if let Some(binary) = installed.binary {
        targets.push(Target::Whole(binary.to_owned()));
        targets.push(Target::Whole(upgrade::download_path(binary)));
        targets.extend(binary.parent().map(|parent| Target::Whole(parent.join(UNINSTALLER))));
        let folders = binary.ancestors().skip(1).take_while(|folder| folder.starts_with(OWN_PREFIX));
        targets.extend(folders.map(|folder| Target::IfEmpty(folder.to_owned())));
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Attr, MemoryHost, testing::NoProgram};

    fn machine(config: &str, text: &str, files: &[&str]) -> MemoryHost {
        let host = MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, NoProgram);
        let put = |path: &str, text: &str| {
            host.make_dirs(Path::new(path).parent().unwrap(), 0o755).unwrap();
            let owner = Some(host.identity());
            host.replace(Path::new(path), text.as_bytes(), Attr { mode: 0o600, owner }).unwrap();
        };
        files.iter().for_each(|path| put(path, ""));
        put(config, text);
        host
    }

    fn left(host: &MemoryHost, paths: &[&str]) -> Vec<String> {
        paths.iter().filter(|path| host.stat(Path::new(path)).is_ok()).map(ToString::to_string).collect()
    }

    fn remove_from(host: &MemoryHost, config: &str) {
        let installed =
            Installed { config: Path::new(config), units: Path::new("/etc/systemd/system"), binary: None };
        assert_eq!(remove(host, &installed), Vec::<String>::new());
    }

    #[test]
    fn agent_check_40_files_next_to_the_agents_files_stay() {
        let (config, others) = ("/etc/rancher/rke2/agent.yaml", "/etc/rancher/rke2/config.yaml");
        let files = [
            others,
            "/var/lib/rancher/k3s/server/db/state.db",
            "/var/lib/rancher/cache/other",
            "/var/lib/rancher/images/other",
            "/var/lib/rancher/agent-applied/notes",
            "/var/lib/rancher/agent-work/x/y",
            "/var/lib/rancher/agent-applied/20260101-000000-applied.plan",
            "/var/lib/rancher/outbox.json",
            "/var/lib/rancher/cache/blobs/sha256/x",
            "/var/lib/rancher/c.json",
        ];
        let text = "workDirectory: /var/lib/rancher/agent-work\nappliedPlanDirectory: /var/lib/rancher/agent-applied\n\
                    remoteEnabled: true\nconnectionInfoFile: /var/lib/rancher/c.json\n";
        let host = machine(config, text, &files);
        remove_from(&host, config);
        assert_eq!(left(&host, &files), files[..5]);
        assert_eq!(left(&host, &[config, "/var/lib/rancher/agent-work"]), Vec::<String>::new());
    }

    #[test]
    fn shared_directories_are_removed_only_if_they_are_empty() {
        let text = "workDirectory: /var/lib/rancher/agent/work\nremoteEnabled: true\n\
                    connectionInfoFile: /var/lib/rancher/agent/c.json\n";
        let binary = "/opt/rancher-system-agent/bin/rancher-system-agent";
        let config = config::default_path();
        let folders = ["/etc/rancher", "/var/lib/rancher", "/opt/rancher-system-agent"];
        for (more, stays) in [(vec![], vec![]), (vec!["/etc/rancher/k3s/k3s.yaml"], vec!["/etc/rancher"])] {
            let mut files = vec![binary, "/var/lib/rancher/agent/c.json"];
            files.extend(&more);
            let host = machine(config, text, &files);
            let units = Path::new("/etc/systemd/system");
            let installed = Installed { config: Path::new(config), units, binary: Some(Path::new(binary)) };
            assert_eq!(remove(&host, &installed), Vec::<String>::new());
            assert_eq!(left(&host, &folders), stays);
            assert_eq!(left(&host, &["/opt"]), ["/opt"], "no parents");
        }
    }

    #[tokio::test]
    async fn a_purge_removes_the_records_of_actions() {
        let done = "/var/lib/rancher/capr/idempotence/x/last-attempt";
        let host = machine("/etc/x", "", &[done]);
        assert_eq!(purge_distribution(&host).await, Vec::<String>::new());
        assert_eq!(left(&host, &["/var/lib/rancher/capr"]), Vec::<String>::new());
        assert_eq!(purge_distribution(&host).await, Vec::<String>::new(), "nothing is left");
    }

    #[test]
    fn directories_of_the_installer_are_removed_wherever_they_are() {
        let names = [
            "work/x",
            "applied/1-applied.plan",
            "plans/a.plan",
            "interlock/x",
            "images/x.tar",
            "connection.json",
        ];
        let files: Vec<String> = names.iter().map(|name| format!("/srv/agent/{name}")).collect();
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let text = "workDirectory: /srv/agent/work\nappliedPlanDirectory: /srv/agent/applied\n\
                    localPlanDirectory: /srv/agent/plans\ninterlockDirectory: /srv/agent/interlock\n\
                    imagesDirectory: /srv/agent/images\nremoteEnabled: true\nconnectionInfoFile: /srv/agent/connection.json\n";
        let host = machine("/srv/etc/config.yaml", text, &files);
        remove_from(&host, "/srv/etc/config.yaml");
        assert_eq!(left(&host, &["/srv/agent", "/srv/etc"]), Vec::<String>::new());
        // A missing setting does not mean `/`, and no shallow directory is removed.
        let text = "workDirectory: /scratch\nlocalEnabled: true\nlocalPlanDirectory: /plans\n";
        let host = machine("/srv/etc/config.yaml", text, &["/scratch/x", "/plans/a.plan", "/keep"]);
        remove_from(&host, "/srv/etc/config.yaml");
        assert_eq!(
            left(&host, &["/scratch/x", "/plans/a.plan", "/keep"]),
            ["/scratch/x", "/plans/a.plan", "/keep"]
        );
        // Without a valid configuration, only default paths are removed.
        let var = format!("{}/x", config::default_var_dir());
        let host = machine(config::default_path(), "%", &[&var]);
        remove_from(&host, config::default_path());
        assert_eq!(left(&host, &[&var, config::default_path()]), Vec::<String>::new());
        let host = machine("/srv/etc/config.yaml", "%", &[&var]);
        remove_from(&host, "/srv/etc/config.yaml");
        assert_eq!(left(&host, &[&var]), [var.as_str()]);
    }

    #[test]
    fn a_downloaded_agent_that_never_ran_is_removed() {
        let files = [
            "/usr/local/bin/rancher-system-agent",
            "/usr/local/bin/.rancher-system-agent.drover-new",
            "/usr/local/bin/kubectl",
        ];
        let host = machine("/srv/etc/config.yaml", "%", &files);
        let installed = Installed {
            config: Path::new("/srv/etc/config.yaml"),
            units: Path::new("/etc/systemd/system"),
            binary: Some(Path::new(files[0])),
        };
        assert_eq!(remove(&host, &installed), Vec::<String>::new());
        assert_eq!(left(&host, &files), files[2..]);
    }
}
