//! What `drover-agent status` shows: a small file that the sentinel keeps beside its other things.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};

use crate::host::{Attr, Host};

/// The sentinel's state, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Status {
    /// Version of the agent.
    pub version: String,
    /// Process id of the sentinel.
    pub pid: u32,
    /// Whether list and watch work.
    pub connected: bool,
    /// What is wrong if not.
    pub trouble: Option<String>,
    /// host:port of the management plane.
    pub server: Option<String>,
    /// Checksum of the plan.
    pub plan: Option<String>,
    /// Its state.
    pub plan_state: Option<String>,
    /// Its revision.
    pub plan_revision: Option<String>,
    /// Checksum of the plan applied last.
    pub applied_checksum: Option<String>,
    /// When.
    pub last_apply_time: Option<String>,
    /// Failures of the plan, if any.
    pub failure_count: Option<String>,
    /// Results wait to be published.
    pub unpublished: bool,
    /// Probes and whether they are healthy.
    pub probes: BTreeMap<String, bool>,
    /// What the agent is doing or waiting for.
    pub waiting_for: Option<String>,
    /// What keeps the agent from becoming the one that the manager offers.
    pub upgrade: Option<String>,
    /// The reverse tunnel.
    pub tunnel: Option<Tunnel>,
}

/// How the reverse tunnel is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Tunnel {
    /// Connected to what, or what it waits for.
    pub state: String,
    /// Since when.
    pub since: String,
}

/// Where the sentinel writes its status.
pub struct Board {
    host: Arc<dyn Host>,
    path: PathBuf,
    shown: Mutex<Status>,
}

impl Board {
    /// In the agent's own directory.
    pub fn new(host: Arc<dyn Host>, var: &Path) -> Self {
        Self { host, path: path(var), shown: Mutex::default() }
    }

    /// Changes the status; writes only if something is different.
    pub fn show(&self, change: impl FnOnce(&mut Status)) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = shown.clone();
        next.version = env!("CARGO_PKG_VERSION").into();
        next.pid = std::process::id();
        change(&mut next);
        if next == *shown {
            return;
        }
        *shown = next;
        let written = serde_json::to_vec_pretty(&*shown).map_err(io::Error::other).and_then(|bytes| {
            if let Some(parent) = self.path.parent() {
                self.host.make_dirs(parent, 0o700)?;
            }
            self.host.refresh(&self.path, &bytes, Attr { mode: 0o600, owner: None })
        });
        if let Err(error) = written {
            // Only a convenience: a full disk must not flood the log as well.
            tracing::debug!("cannot write {}: {error}", self.path.display());
        }
    }
}

/// The file below the agent's directory.
pub fn path(var: &Path) -> PathBuf {
    var.join("status.json")
}

/// As lines for people.
pub fn render(status: &Status) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: &str| out.push_str(&format!("{name:<14}{value}\n"));
    line("agent", &format!("{} (pid {})", status.version, status.pid));
    let server = status.server.as_deref().unwrap_or("(local plans only)");
    match (&status.trouble, status.connected) {
        (_, true) => line("connection", &format!("connected to {server}")),
        (Some(trouble), false) => line("connection", &format!("not connected to {server}: {trouble}")),
        (None, false) => line("connection", &format!("not connected to {server}")),
    }
    if let Some(Tunnel { state, since }) = &status.tunnel {
        line("tunnel", &format!("{state} (since {since})"));
    }
    if let Some(upgrade) = &status.upgrade {
        line("upgrade", upgrade);
    }
    let none = "none".to_owned();
    line("plan", status.plan.as_ref().unwrap_or(&none));
    if let Some(state) = &status.plan_state {
        line("state", &format!("{state}, revision {}", status.plan_revision.as_deref().unwrap_or("0")));
    }
    line("applied", status.applied_checksum.as_ref().unwrap_or(&none));
    line("last apply", status.last_apply_time.as_deref().unwrap_or("never"));
    if let Some(count) = &status.failure_count {
        line("failures", count);
    }
    if status.unpublished {
        line("report", "waits to be published");
    }
    for (name, healthy) in &status.probes {
        line("probe", &format!("{name}: {}", if *healthy { "healthy" } else { "unhealthy" }));
    }
    line("now", status.waiting_for.as_deref().unwrap_or("idle"));
    out
}
