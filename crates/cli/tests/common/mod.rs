//! Shared by the black-box tests: a user with the built binary, the real `kubectl`, a home and a data directory, and
//! checks for what a quickstart leaves behind.
//!
//! Tests wait only on conditions ([`eventually`]); what they start belongs to one [`Person`], whose drop deletes it.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod processes;
pub mod server;

use std::ffi::OsStr;
use std::fmt::Debug;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Enough for operations that take seconds on an idle machine.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// Interval between checks.
const LOOK: Duration = Duration::from_millis(200);

/// The ordinary user that tests become: an unused uid without groups or capabilities.
const ORDINARY: u32 = 54321;

/// The user who runs the commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Root.
    Root,
    /// An ordinary user.
    User,
}

/// A user with a home, a data directory in it, and a readable copy of the binary.
pub struct Person {
    /// The user.
    pub identity: Identity,
    /// The data directory, which quickstart creates.
    pub data_dir: PathBuf,
    home: tempfile::TempDir,
    drover: PathBuf,
}

/// The result of a command.
pub struct Answer {
    /// Its command line, for messages.
    pub words: String,
    /// Its exit code; -1 for a signal.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Answer {
    /// Standard output of a command that must succeed.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{} failed:\n{}{}", self.words, self.out, self.err);
        self.out
    }

    /// Standard error of a command that must fail without a panic.
    #[track_caller]
    pub fn refused(self) -> String {
        assert_ne!(self.code, 0, "{} was not refused:\n{}", self.words, self.out);
        assert!(!self.err.contains("panicked"), "{}: {}", self.words, self.err);
        self.err
    }
}

impl Person {
    /// `None`, with a note on stderr, if this process cannot become that user.
    pub fn new(identity: Identity) -> Option<Self> {
        let root = nix::unistd::geteuid().is_root();
        if identity == Identity::Root && !root {
            eprintln!("\n*** SKIPPED: needs root ***\n");
            return None;
        }
        let home = tempfile::Builder::new().prefix("drover-life-").tempdir().unwrap();
        let drover = home.path().join("drover");
        let built = Path::new(env!("CARGO_BIN_EXE_drover"));
        // The build folder may not be accessible to an ordinary user.
        std::fs::hard_link(built, &drover).or_else(|_| std::fs::copy(built, &drover).map(|_| ())).unwrap();
        if identity == Identity::User && root {
            std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
            chown(home.path(), Some(ORDINARY), Some(ORDINARY)).unwrap();
        }
        let data_dir = home.path().join("data");
        Some(Self { identity, data_dir, home, drover })
    }

    /// Any program as this user: with their identity and home, and only PATH from the environment.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let switch = self.identity == Identity::User && nix::unistd::geteuid().is_root();
        let mut command = if switch {
            let mut command = Command::new("setpriv");
            let id = ORDINARY.to_string();
            command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.home.path()).env("DROVER_DATA_DIR", &self.data_dir);
        command.current_dir(self.home.path());
        command
    }

    /// The home directory.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// The binary under test.
    pub fn binary(&self) -> &Path {
        &self.drover
    }

    /// `drover …` on this person's data directory.
    pub fn drover(&self, words: &[&str]) -> Answer {
        let mut command = self.command(&self.drover);
        run(command.args(words), &format!("drover {}", words.join(" ")))
    }

    /// `drover quickstart --bind 127.0.0.1:0 …`.
    pub fn quickstart(&self, words: &[&str]) -> Answer {
        let all: Vec<&str> = ["quickstart", "--bind", "127.0.0.1:0"].iter().chain(words).copied().collect();
        self.drover(&all)
    }

    /// `kubectl …` with the management plane's kubeconfig, in the namespace of the clusters.
    pub fn kubectl(&self, words: &[&str]) -> Answer {
        let all: Vec<&str> = ["-n", "fleet-default"].iter().chain(words).copied().collect();
        self.kubectl_with(&self.data_dir.join("kubeconfig.yaml"), &all)
    }

    /// `kubectl …` with the demo cluster's kubeconfig, through the proxy.
    pub fn kubectl_demo(&self, words: &[&str]) -> Answer {
        self.kubectl_with(&self.data_dir.join("clusters/demo.kubeconfig"), words)
    }

    /// `kubectl …` with any kubeconfig.
    pub fn kubectl_with(&self, kubeconfig: &Path, words: &[&str]) -> Answer {
        let mut command = self.command("kubectl");
        command.arg("--kubeconfig").arg(kubeconfig).arg("--request-timeout=60s");
        run(command.args(words), &format!("kubectl {}", words.join(" ")))
    }

    /// A command run in a machine.
    pub fn in_machine(&self, machine: &str, words: &[&str]) -> Answer {
        let all: Vec<&str> = ["machine", "ssh", machine, "--"].iter().chain(words).copied().collect();
        self.drover(&all)
    }

    /// Writes a file in the user's home.
    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.home.path().join(name);
        std::fs::write(&path, text).unwrap();
        if self.identity == Identity::User && nix::unistd::geteuid().is_root() {
            chown(&path, Some(ORDINARY), Some(ORDINARY)).unwrap();
        }
        path.to_str().unwrap().to_owned()
    }

    /// `get … -o json` in the management plane.
    #[track_caller]
    pub fn get(&self, words: &[&str]) -> Value {
        let all: Vec<&str> = ["get", "-o", "json"].iter().chain(words).copied().collect();
        serde_json::from_str(&self.kubectl(&all).ok()).unwrap()
    }

    /// `get … -o json` in the demo cluster.
    #[track_caller]
    pub fn get_demo(&self, words: &[&str]) -> Value {
        let all: Vec<&str> = ["get", "-o", "json"].iter().chain(words).copied().collect();
        serde_json::from_str(&self.kubectl_demo(&all).ok()).unwrap()
    }

    /// A merge patch of the demo cluster's object.
    #[track_caller]
    pub fn patch_cluster(&self, patch: &Value) {
        let words = ["patch", "clusters.provisioning.cattle.io", "demo", "--type", "merge", "-p"];
        let text = patch.to_string();
        self.kubectl(&[words.as_slice(), &[text.as_str()]].concat()).ok();
    }

    /// Processes that have this home in their command line, working directory or root.
    pub fn processes(&self) -> Vec<String> {
        let home = self.home.path().as_os_str().as_bytes();
        let holds = |bytes: &[u8]| bytes.windows(home.len()).any(|window| window == home);
        let mut found = vec![];
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let path = entry.path();
            let Some(pid) = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.parse::<u32>().ok())
            else {
                continue;
            };
            let words = std::fs::read(path.join("cmdline")).unwrap_or_default();
            let links =
                ["cwd", "root", "exe"].map(|link| std::fs::read_link(path.join(link)).unwrap_or_default());
            let linked = links.iter().any(|link| holds(link.as_os_str().as_bytes()));
            if holds(&words) || linked {
                found.push(format!("{pid} {}", String::from_utf8_lossy(&words).replace('\0', " ")));
            }
        }
        found
    }

    /// Mounts in any process's mount namespace that are in this home or come from it.
    pub fn mounts(&self) -> Vec<String> {
        let home = self.home.path().to_str().unwrap();
        let mut found = std::collections::BTreeSet::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let table = std::fs::read_to_string(entry.path().join("mountinfo")).unwrap_or_default();
            found.extend(table.lines().filter(|line| line.contains(home)).map(str::to_owned));
        }
        found.into_iter().collect()
    }

    /// The end of the management plane's log, for messages.
    pub fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.data_dir.join("drover.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the management plane ---\n{}", self.log_tail());
        }
        let answer = self.drover(&["quickstart", "--delete"]);
        if answer.code != 0 && !std::thread::panicking() {
            panic!("--delete failed: {}", answer.err);
        }
    }
}

/// Runs a command to its end.
pub fn run(command: &mut Command, words: &str) -> Answer {
    let Output { status, stdout, stderr } = command.output().unwrap_or_else(|e| panic!("{words}: {e}"));
    Answer {
        words: words.to_owned(),
        code: status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&stdout).into_owned(),
        err: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

/// Tries until the result is `Ok`, for at most [`PATIENCE`]; then panics with the last `Err`.
#[track_caller]
pub fn eventually<T, E: Debug>(mut attempt: impl FnMut() -> Result<T, E>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(error) if Instant::now() > deadline => panic!("timed out after {PATIENCE:?}: {error:?}"),
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

/// `Ok` if `ok`, else `Err(seen)`; for [`eventually`].
pub fn when<S: Debug>(ok: bool, seen: S) -> Result<(), S> {
    if ok { Ok(()) } else { Err(seen) }
}

/// The items of a list.
pub fn items(list: &Value) -> Vec<Value> {
    list["items"].as_array().cloned().unwrap_or_default()
}

/// A field by JSON pointer as text, empty if absent.
pub fn text(object: &Value, pointer: &str) -> String {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// An object's name.
pub fn name(object: &Value) -> String {
    text(object, "/metadata/name")
}

/// The status of a condition, empty if absent.
pub fn condition(object: &Value, type_: &str) -> String {
    let conditions =
        object.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    conditions.iter().find(|c| c["type"] == type_).map(|c| text(c, "/status")).unwrap_or_default()
}
