//! Shared by the tests of local machines: a data directory that is cleaned up and checked for leftovers, and running
//! the same scenario as root and as a non-root user.
#![allow(unreachable_pub, dead_code, clippy::unwrap_used)]

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use drover_local_machines::{CreateOptions, Local, MachineInfo};

/// Long enough for a busy host. On an idle host, conditions are fulfilled in milliseconds.
pub const TIMEOUT: Duration = Duration::from_secs(180);
/// A non-root user of the host, for tests that run as root.
pub const USER: u32 = 54321;

/// Defines `<name>::root` and `<name>::user`.
#[macro_export]
macro_rules! as_root_and_as_user {
    ($($name:ident)*) => {$(
        mod $name {
            #[test]
            fn root() {
                $crate::support::as_root(concat!(stringify!($name), "::root"), super::$name);
            }
            #[test]
            fn user() {
                $crate::support::as_user(concat!(stringify!($name), "::user"), super::$name);
            }
        }
    )*};
}

pub fn as_root(test: &str, scenario: fn(Rig)) {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED {test}: not root");
        return;
    }
    scenario(Rig::new());
}

/// Runs the scenario as a non-root user: directly, or from root through `setpriv` in a new process.
pub fn as_user(test: &str, scenario: fn(Rig)) {
    if let Some(why) = forbidden() {
        eprintln!("SKIPPED {test}: user namespaces are not allowed on this host: {why}");
        return;
    }
    if !nix::unistd::geteuid().is_root() {
        scenario(Rig::new());
        return;
    }
    // The non-root user may not have access to the target folder.
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let scratch = dir.path().join("scratch");
    fs::create_dir(&scratch).unwrap();
    chown(&scratch, Some(USER), Some(USER)).unwrap();
    let (this, exe) = (dir.path().join("test"), dir.path().join("exe"));
    fs::copy(std::env::current_exe().unwrap(), &this).unwrap();
    fs::copy(harness(), &exe).unwrap();
    let id = USER.to_string();
    let status = Command::new("setpriv")
        .args(["--reuid", &id, "--regid", &id, "--clear-groups"])
        .arg(&this)
        .args(["--exact", test, "--nocapture"])
        .env("TMPDIR", &scratch)
        .env("HOME", &scratch)
        .env("DROVER_TEST_EXE", &exe)
        .current_dir("/")
        .status()
        .unwrap();
    assert!(status.success(), "{test} failed as a non-root user");
}

fn forbidden() -> Option<String> {
    let output =
        Command::new("unshare").args(["--user", "--map-root-user", "--mount", "true"]).output().unwrap();
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The executable with this crate's entry points.
pub fn harness() -> PathBuf {
    std::env::var_os("DROVER_TEST_EXE")
        .map_or_else(|| env!("CARGO_BIN_EXE_drover-local-machine").into(), PathBuf::from)
}

/// A temporary data directory.
pub struct Rig {
    pub local: Local,
    pub data_dir: PathBuf,
    _dir: tempfile::TempDir,
}

impl Rig {
    pub fn new() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        // A comma and a colon have a special meaning for overlayfs.
        let data_dir = dir.path().join("data, dir:1");
        let local = Local::open(&data_dir, &harness()).unwrap();
        Rig { local, data_dir, _dir: dir }
    }

    pub fn create(&self, name: &str) -> MachineInfo {
        self.local.create(name, &CreateOptions::default()).unwrap()
    }

    pub fn create_with(&self, name: &str, script: &str) -> MachineInfo {
        let options = CreateOptions { install_script: script.to_owned(), ..CreateOptions::default() };
        self.local.create(name, &options).unwrap()
    }

    /// Returns the output of a shell command in a machine, which must succeed.
    pub fn sh(&self, name: &str, script: &str) -> String {
        let (code, text) = self.local.output(name, &["/bin/sh", "-c", script]).unwrap();
        assert_eq!(code, 0, "{script}: {text}");
        text.trim().to_owned()
    }

    /// Returns the exit code of a shell command in a machine.
    pub fn code(&self, name: &str, script: &str) -> i32 {
        self.local.output(name, &["/bin/sh", "-c", script]).unwrap().0
    }

    /// Waits until a shell command in a machine succeeds.
    pub fn until(&self, name: &str, script: &str) {
        eventually(script, || {
            self.local.output(name, &["/bin/sh", "-c", script]).is_ok_and(|(code, _)| code == 0)
        });
    }

    /// Destroys everything and checks that nothing is left.
    pub fn finish(self) {
        self.local.destroy().unwrap();
        let marker = self.data_dir.display().to_string();
        eventually("no process and no mount is left", || leftovers(&marker).is_empty());
        assert!(!self.data_dir.join("local").exists());
        self.local.destroy().unwrap();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.data_dir.join("local/holder.log")).unwrap_or_default();
            eprintln!("--- holder.log\n{log}");
            for machine in self.local.list().unwrap_or_default() {
                let console = fs::read_to_string(&machine.console_log).unwrap_or_default();
                eprintln!("--- {machine:?}\n{console}");
            }
        }
        let _ = self.local.destroy();
    }
}

/// Returns processes that were started from a data directory, and mounts below it.
pub fn leftovers(marker: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let path = entry.path();
        let Some(pid) = path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok()) else {
            continue;
        };
        if pid == std::process::id() {
            continue;
        }
        let command = fs::read(path.join("cmdline")).unwrap_or_default();
        let mounts = fs::read_to_string(path.join("mountinfo")).unwrap_or_default();
        // mountinfo writes a space as \040.
        if String::from_utf8_lossy(&command).contains(marker)
            || mounts.contains(&marker.replace(' ', "\\040"))
        {
            found.push(format!("{pid} {}", String::from_utf8_lossy(&command)));
        }
    }
    found
}

/// Waits for a condition with a deadline.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out after {TIMEOUT:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process exists. A zombie counts as exited, unless other threads of it are still ending.
pub fn is_process(pid: i32) -> bool {
    let path = Path::new("/proc").join(pid.to_string());
    let threads = fs::read_dir(path.join("task")).map_or(0, Iterator::count);
    let zombie = fs::read_to_string(path.join("stat")).unwrap_or_default().contains(") Z ");
    threads > 1 || (threads == 1 && !zombie)
}
