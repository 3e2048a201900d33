//! A directory that represents a machine for the install script, with a `systemctl` and a `sync` that only record their
//! calls.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// See the module.
pub struct Root {
    pub dir: tempfile::TempDir,
    pub path: String,
}

impl Root {
    /// `without` is a program that the machine does not have.
    pub fn new(without: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tools = dir.path().join("tools");
        std::fs::create_dir(&tools).unwrap();
        for folder in ["/usr/bin", "/bin", "/usr/sbin", "/sbin"] {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let name = entry.file_name();
                if name != without {
                    let _ = std::os::unix::fs::symlink(entry.path(), tools.join(name));
                }
            }
        }
        let path = tools.to_str().unwrap().to_owned();
        let root = Self { dir, path };
        // The disk of the host that runs the tests is not synced.
        for name in ["systemctl", "sync"] {
            let log = root.at(&format!("{name}.log"));
            root.program(name, &format!("echo \"$*\" >> {}", log.display()));
        }
        root
    }

    /// Adds a program of the test to those of the machine.
    pub fn program(&self, name: &str, script: &str) {
        let path = Path::new(&self.path).join(name);
        // Most of them are links to the real ones.
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn command(&self, program: &Path) -> Command {
        let mut command = if nix::unistd::getuid().is_root() {
            Command::new(program)
        } else {
            let mut command = Command::new("unshare");
            command.arg("--map-root-user").arg("--").arg(program);
            command
        };
        command
            .env_clear()
            .env("PATH", &self.path)
            .env("CATTLE_AGENT_CONFIG_DIR", self.at("etc/rancher/agent"))
            .env("CATTLE_AGENT_VAR_DIR", self.at("var/lib/rancher/agent"))
            .env("CATTLE_AGENT_BIN_PREFIX", self.at("usr/local"))
            .env("CATTLE_AGENT_SYSTEMD_DIR", self.at("etc/systemd/system"))
            .env("CATTLE_AGENT_RETRIES", "4")
            .env("CATTLE_AGENT_RETRY_PAUSE", "0");
        command
    }

    pub async fn install(&self, args: &[&str]) -> Output {
        self.install_with(&[("NO_PROXY", "127.0.0.1")], args).await
    }

    pub async fn install_with(&self, env: &[(&str, &str)], args: &[&str]) -> Output {
        let mut command = self.command(Path::new("sh"));
        command.arg(Self::script()).args(args).envs(env.iter().copied());
        self.run(command).await
    }

    pub fn script() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/system-agent-install.sh")
    }

    /// Its output can be read while it runs: [`Root::so_far`].
    pub async fn run(&self, mut command: Command) -> Output {
        let log = std::fs::File::create(self.at("said")).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let status = tokio::task::spawn_blocking(move || command.status().unwrap()).await.unwrap();
        Output { status, stdout: self.so_far().into_bytes(), stderr: Vec::new() }
    }

    pub fn so_far(&self) -> String {
        std::fs::read_to_string(self.at("said")).unwrap_or_default()
    }

    /// Whether nothing of an agent is on the machine, and no service was restarted.
    pub fn is_untouched(&self) -> bool {
        ["etc", "var", "usr", "systemctl.log"].iter().all(|name| !self.at(name).exists())
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.at(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub fn mode(&self, name: &str) -> u32 {
        std::fs::metadata(self.at(name)).unwrap().permissions().mode() & 0o7777
    }
}

pub fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

pub fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// The program that the machine lacks, so that each available client is used once.
pub fn one_client_each() -> impl Iterator<Item = &'static str> {
    if !has("wget") {
        eprintln!("SKIPPED: wget is not installed");
    }
    ["wget", "curl"].into_iter().filter(|without| *without == "wget" || has("wget"))
}
