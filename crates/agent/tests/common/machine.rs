//! A directory that represents a machine, and the real binary running on it.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use super::Api;

pub struct Machine {
    pub dir: tempfile::TempDir,
    pub child: Option<Child>,
    pub env: Vec<(String, String)>,
    /// A different file than the one that was built.
    pub binary: Option<PathBuf>,
    /// Shell commands that run before the agent, in its own mount namespace.
    pub before: Option<String>,
}

impl Machine {
    /// Configured for the API, but not started.
    pub async fn new(api: &Api) -> Self {
        let server = format!("https://{}", api.listen().await);
        Self::with_connection(&api.connection(&server))
    }

    pub fn with_connection(connection: &str) -> Self {
        let machine = Self {
            dir: tempfile::tempdir().unwrap(),
            child: None,
            env: Vec::new(),
            binary: None,
            before: None,
        };
        std::fs::create_dir(machine.path("var")).unwrap();
        machine.private("var/connection.json", connection);
        let dir = machine.dir.path().display();
        machine.private(
            "config.yaml",
            &format!(
                "workDirectory: {dir}/var/work\nappliedPlanDirectory: {dir}/var/applied\nremoteEnabled: true\n\
                 interlockDirectory: {dir}/var/interlock\nimagesDirectory: {dir}/var/images\n\
                 connectionInfoFile: {dir}/var/connection.json\n"
            ),
        );
        machine
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn private(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    pub fn command(&self, args: &[&str]) -> Command {
        // A different build, for example the static one, can be tested too.
        let binary = std::env::var("DROVER_AGENT_BINARY");
        let binary = binary.as_deref().unwrap_or(env!("CARGO_BIN_EXE_drover-agent"));
        let binary = self.binary.as_deref().and_then(Path::to_str).unwrap_or(binary);
        let root = nix::unistd::getuid().is_root();
        let mut command = if let Some(before) = &self.before {
            let mut command = Command::new("unshare");
            command.args(["--mount"]).args((!root).then_some("--map-root-user"));
            command.args(["--", "sh", "-ec", &format!("{before}; exec \"$@\""), "sh", binary]);
            command
        } else if root {
            Command::new(binary)
        } else {
            // The agent requires root, which it is in its own user namespace.
            let mut command = Command::new("unshare");
            command.args(["--map-root-user", "--", binary]);
            command
        };
        command
            .args(args)
            .env("CATTLE_AGENT_CONFIG", self.path("config.yaml"))
            // Not the one of the host that runs the tests.
            .env("CATTLE_AGENT_ADMIN_KUBECONFIG", self.path("admin.yaml"))
            .envs(self.env.iter().cloned());
        command
    }

    pub fn start(&mut self) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.path("log")).unwrap();
        let child = self
            .command(&["sentinel"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    pub fn read(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.path(name)).ok()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- log of the agent ---\n{}", self.log());
        }
    }
}

pub fn count(path: &Path) -> usize {
    std::fs::read_to_string(path).map_or(0, |text| text.lines().count())
}
