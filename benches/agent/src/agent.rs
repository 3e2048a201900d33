//! Runs the measured agent in a directory that replaces the root of its machine.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::api::{Api, sum};

/// The protocol between server and agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// With `plan-state`.
    State,
    /// With checksums only, as supported by agents up to v0.14.
    Checksum,
}

pub(crate) struct Agent {
    pub(crate) api: Api,
    dialect: Dialect,
    dir: tempfile::TempDir,
    child: Child,
}

impl Agent {
    /// Starts the agent and waits until it watches its plan.
    pub(crate) async fn start(program: &Path, dialect: Dialect) -> anyhow::Result<Self> {
        let api = Api::new();
        let address = api.listen().await;
        let dir = tempfile::tempdir()?;
        let private = |name: &str, text: &str| -> anyhow::Result<()> {
            let path = dir.path().join(name);
            std::fs::write(&path, text)?;
            Ok(std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?)
        };
        // The installer of the original creates the interlock directory; the original itself does not.
        std::fs::create_dir_all(dir.path().join("var/interlock"))?;
        let at = dir.path().display();
        private("connection.json", &api.connection(&format!("https://{address}")))?;
        private(
            "config.yaml",
            &format!(
                "workDirectory: {at}/var/work\nappliedPlanDirectory: {at}/var/applied\nremoteEnabled: true\n\
                 interlockDirectory: {at}/var/interlock\nconnectionInfoFile: {at}/connection.json\n"
            ),
        )?;
        // The agent must run as root; it is root in its own user namespace.
        let mut command = if nix::unistd::getuid().is_root() {
            Command::new(program)
        } else {
            let mut command = Command::new("unshare");
            command.args(["--map-root-user", "--"]).arg(program);
            command
        };
        let log = std::fs::File::create(dir.path().join("log"))?;
        let child = command
            .arg("sentinel")
            .env("CATTLE_AGENT_CONFIG", dir.path().join("config.yaml"))
            .env("CATTLE_AGENT_ADMIN_KUBECONFIG", dir.path().join("none"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("failed to start the agent")?;
        api.create(&[]);
        Ok(Self { api, dialect, dir, child })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a plan and waits until the report is visible.
    pub(crate) async fn apply(&self, plan: &Value) -> anyhow::Result<()> {
        let text = plan.to_string();
        let sum = sum(&text);
        self.api.plan(&text, (self.dialect == Dialect::State).then_some("pending"));
        self.until("the plan is applied", |api| api.text("applied-checksum") == sum).await
    }

    pub(crate) async fn until(&self, what: &str, condition: impl Fn(&Api) -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(180);
        while !condition(&self.api) {
            if Instant::now() > deadline {
                bail!("timed out waiting until {what}; the secret is {}", self.api.describe());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// A value of `/proc/<pid>/status`, in bytes.
    pub(crate) fn memory(&self, name: &str) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let Some(line) = status.lines().find_map(|line| line.strip_prefix(name)) else {
            let log = std::fs::read_to_string(self.path("log")).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(5).collect();
            bail!("the agent has exited; its last lines in reverse order: {last:#?}");
        };
        let kibibytes: u64 = line.trim_matches(|c: char| !c.is_ascii_digit()).parse()?;
        Ok(kibibytes * 1024)
    }

    /// User and system time so far.
    pub(crate) fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields: Vec<&str> = stat.rsplit(')').next().context("no fields")?.split_whitespace().collect();
        let ticks =
            |at: usize| -> anyhow::Result<f64> { Ok(fields.get(at).context("too few fields")?.parse()?) };
        let per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?.context("no clock")?;
        Ok((ticks(11)? + ticks(12)?) / per_second as f64)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A TLS configuration for the loopback address, and the PEM of its CA.
pub(crate) fn certificate() -> anyhow::Result<(Arc<rustls::ServerConfig>, String)> {
    let key = rcgen::KeyPair::generate()?;
    let certificate = rcgen::CertificateParams::new(vec!["127.0.0.1".into()])?.self_signed(&key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            rustls::pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        )?;
    Ok((Arc::new(config), certificate.pem()))
}
