//! The status file that `drover-agent status` shows. The sentinel writes it to its directory.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};

use crate::host::{Attr, Host};

/// The state of the sentinel, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Status {
    /// Version of the agent.
    pub version: String,
    /// The process id of the sentinel.
    pub pid: u32,
    /// Whether it gets plans from a management plane.
    pub remote: bool,
    /// Whether list and watch work.
    pub connected: bool,
    /// The current problem: why they do not work, or what else the API server rejects.
    pub trouble: Option<String>,
    /// The management plane as host:port.
    pub server: Option<String>,
    /// The checksum of the plan.
    pub plan: Option<String>,
    /// The state of the plan.
    pub plan_state: Option<String>,
    /// The revision of the plan.
    pub plan_revision: Option<String>,
    /// The checksum of the last applied plan.
    pub applied_checksum: Option<String>,
    /// When it was applied.
    pub last_apply_time: Option<String>,
    /// The number of failures of the plan, if there are any.
    pub failure_count: Option<String>,
    /// The reason of the last failure.
    pub failure: Option<String>,
    /// The fields about the plan are from an earlier process, because this one has not received the plan yet.
    pub before: bool,
    /// There are unpublished results.
    pub unpublished: bool,
    /// The probes and whether they are healthy.
    pub probes: BTreeMap<String, bool>,
    /// What the agent is doing or waiting for.
    pub waiting_for: Option<String>,
    /// Why the agent cannot upgrade to the version that the manager offers.
    pub upgrade: Option<String>,
    /// The reverse tunnel.
    pub tunnel: Option<Tunnel>,
    /// The status of local plans, by path.
    pub local: BTreeMap<String, String>,
}

/// The state of the reverse tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Tunnel {
    /// Its server, or what it is waiting for.
    pub state: String,
    /// Since when.
    pub since: String,
}

/// The file is padded with spaces to this size, so that it can be overwritten in place on a full disk.
const ROOM: usize = 4096;

/// Writes the status file.
pub struct Board {
    host: Arc<dyn Host>,
    path: PathBuf,
    shown: Mutex<Shown>,
}

struct Shown {
    status: Status,
    /// It was not written yet, or the last attempt failed.
    owed: bool,
}

impl Status {
    /// The part of an earlier process's status that stays useful until there is news: the plan and its result.
    fn remembered(self) -> Self {
        Self {
            before: self.plan.is_some() || self.applied_checksum.is_some(),
            version: String::new(),
            pid: 0,
            remote: false,
            connected: false,
            trouble: None,
            server: None,
            unpublished: false,
            waiting_for: None,
            upgrade: None,
            tunnel: None,
            local: BTreeMap::new(),
            ..self
        }
    }
}

impl Board {
    /// In the agent's directory, which can contain the status of an earlier process.
    pub fn new(host: Arc<dyn Host>, var: &Path) -> Self {
        let path = path(var);
        let earlier = host.read(&path).ok().and_then(|bytes| serde_json::from_slice::<Status>(&bytes).ok());
        let status = earlier.unwrap_or_default().remembered();
        Self { host, path, shown: Mutex::new(Shown { status, owed: true }) }
    }

    /// Changes the status; writes it only if it changed, or the last write failed.
    pub fn show(&self, change: impl FnOnce(&mut Status)) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = shown.status.clone();
        next.version = env!("CARGO_PKG_VERSION").into();
        next.pid = std::process::id();
        change(&mut next);
        if next == shown.status && !shown.owed {
            return;
        }
        shown.status = next;
        let written = serde_json::to_vec_pretty(&shown.status).map_err(io::Error::other).and_then(|bytes| {
            if let Some(parent) = self.path.parent() {
                self.host.make_dirs(parent, 0o700)?;
            }
            let mut padded = bytes.clone();
            padded.resize((bytes.len() / ROOM + 2) * ROOM, b' ');
            let refreshed = self.host.refresh(&self.path, &padded, Attr { mode: 0o600, owner: None });
            // If the disk is too full for another file, the status would otherwise be outdated as long as the disk is
            // full, which is when people need it.
            refreshed.or_else(|error| self.host.rewrite(&self.path, &bytes).map_err(|_| error))
        });
        shown.owed = written.is_err();
        if let Err(error) = written {
            // Debug, so that a full disk does not also fill the log.
            tracing::debug!("failed to write {}: {error}", self.path.display());
        }
    }

    /// Whether the last status was not written, so that writing it again is useful.
    pub fn is_unwritten(&self) -> bool {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).owed
    }
}

/// The path below the agent's directory.
pub fn path(var: &Path) -> PathBuf {
    var.join("status.json")
}

/// Why the agent's directory cannot be written at the moment, so that the status may be outdated.
pub fn obstacle(host: &dyn Host, var: &Path) -> Option<io::Error> {
    let probe = var.join("status.probe");
    let tried = host.refresh(&probe, &[b' '; ROOM], Attr { mode: 0o600, owner: None });
    let _ = host.remove_file(&probe);
    tried.err()
}

/// Formats the status as lines for people.
pub fn render(status: &Status) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: &str| out.push_str(&format!("{name:<14}{value}\n"));
    line("agent", &format!("{} (pid {})", status.version, status.pid));
    match (&status.server, &status.trouble, status.connected) {
        (None, ..) if !status.remote => line("connection", "none (local plans only)"),
        (None, Some(trouble), _) => line("connection", &format!("none: {trouble}")),
        (None, None, _) => line("connection", "none yet"),
        (Some(server), None, true) => line("connection", &format!("connected to {server}")),
        (Some(server), Some(trouble), true) => {
            line("connection", &format!("connected to {server}, but {trouble}"));
        }
        (Some(server), Some(trouble), false) => {
            line("connection", &format!("not connected to {server}: {trouble}"));
        }
        (Some(server), None, false) => line("connection", &format!("not connected to {server}")),
    }
    for (path, how) in &status.local {
        line("local plan", &format!("{path}: {how}"));
    }
    if let Some(Tunnel { state, since }) = &status.tunnel {
        line("tunnel", &format!("{state} (since {since})"));
    }
    if let Some(upgrade) = &status.upgrade {
        line("upgrade", upgrade);
    }
    if status.server.is_none() && !status.remote {
        // It gets no other plan.
        return out;
    }
    let none = "none".to_owned();
    if status.before {
        line("known", "from before this agent started; it has not received its plan yet");
    }
    line("plan", status.plan.as_ref().unwrap_or(&none));
    if let Some(state) = &status.plan_state {
        line("state", &format!("{state}, revision {}", status.plan_revision.as_deref().unwrap_or("0")));
    }
    line("applied", status.applied_checksum.as_ref().unwrap_or(&none));
    line("last apply", status.last_apply_time.as_deref().unwrap_or("never"));
    if let Some(count) = &status.failure_count {
        line("failures", count);
    }
    if let Some(why) = &status.failure {
        line("failure", why);
    }
    if status.unpublished {
        line("report", "waiting to be published");
    }
    for (name, healthy) in &status.probes {
        line("probe", &format!("{name}: {}", if *healthy { "healthy" } else { "unhealthy" }));
    }
    let connecting = if status.connected { "idle" } else { "waiting for the connection" };
    line("now", status.waiting_for.as_deref().unwrap_or(connecting));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{MemoryHost, testing::NoProgram};

    #[tokio::test]
    async fn a_failed_write_is_retried_when_there_is_space_again() {
        let host = Arc::new(MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, NoProgram));
        let board = Board::new(host.clone(), Path::new("/v"));
        board.show(|_| {});
        host.crash_after_writes(0);
        let change = |status: &mut Status| status.plan = Some("c".into());
        board.show(change);
        assert!(board.is_unwritten());
        host.restart();
        board.show(change);
        assert!(!board.is_unwritten());
        let status: Status = serde_json::from_slice(&host.read(&path(Path::new("/v"))).unwrap()).unwrap();
        assert_eq!(status.plan.as_deref(), Some("c"));
        let writes = host.writes();
        board.show(change);
        assert_eq!(host.writes(), writes, "and only once");
    }

    #[tokio::test]
    async fn the_status_of_an_earlier_process_is_kept_and_marked() {
        let host = Arc::new(MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, NoProgram));
        let shown =
            || -> Status { serde_json::from_slice(&host.read(&path(Path::new("/v"))).unwrap()).unwrap() };
        Board::new(host.clone(), Path::new("/v")).show(|_| {});
        assert!(!shown().before, "there was none");
        Board::new(host.clone(), Path::new("/v")).show(|status| {
            status.plan = Some("c".into());
            status.failure = Some("it broke".into());
            (status.connected, status.server) = (true, Some("m:443".into()));
            status.tunnel = Some(Tunnel::default());
        });
        let text = render(&shown());
        assert!(text.contains("failure       it broke\n") && !text.contains("known"), "{text}");
        Board::new(host.clone(), Path::new("/v")).show(|status| status.server = Some("m:443".into()));
        let status = shown();
        assert!(status.before && !status.connected && status.tunnel.is_none());
        let text = render(&status);
        assert!(text.contains("it broke") && text.contains("known         from before"), "{text}");
        // An invalid file is ignored.
        let attr = Attr { mode: 0o600, owner: None };
        host.replace(&path(Path::new("/v")), b"{", attr).unwrap();
        Board::new(host.clone(), Path::new("/v")).show(|_| {});
        assert_eq!(shown().plan, None);
    }

    #[test]
    fn an_agent_without_a_plan_reports_the_reason() {
        let mut status = Status { remote: true, ..Status::default() };
        let text = render(&status);
        assert!(text.contains("connection    none yet\n") && !text.contains("idle"), "{text}");
        status.trouble = Some("invalid connection file /c: no users".into());
        let text = render(&status);
        assert!(text.contains("connection    none: invalid connection file /c: no users\n"), "{text}");
        assert!(
            !text.contains("local plans only") && text.contains("now           waiting for the connection\n")
        );
    }

    #[test]
    fn on_a_full_disk_the_file_is_overwritten_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let (file, mode) = (dir.path().join("status.json"), Attr { mode: 0o600, owner: None });
        let host: Arc<dyn Host> = Arc::new(crate::host::RealHost::new());
        let board = Board::new(host.clone(), dir.path());
        board.show(|_| {});
        assert!(obstacle(&*host, dir.path()).is_none());
        let before = std::fs::metadata(&file).unwrap().len();
        let long = Status { failure: Some("x".repeat(2000)), ..Status::default() };
        host.rewrite(&file, &serde_json::to_vec(&long).unwrap()).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().len(), before, "it needs no more space");
        let found: Status = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!(found, long);
        // Content that does not fit keeps the old content, and missing files are not created.
        host.rewrite(&file, &vec![b'x'; before as usize + 1]).unwrap_err();
        assert_eq!(serde_json::from_slice::<Status>(&std::fs::read(&file).unwrap()).unwrap(), long);
        host.rewrite(&dir.path().join("other"), b"").unwrap_err();
        assert_eq!(host.list(dir.path()).unwrap(), ["status.json"]);
        assert!(host.refresh(&dir.path().join("none/x"), b"", mode).is_err());
        assert!(obstacle(&*host, &dir.path().join("none")).is_some());
    }

    #[test]
    fn the_connection_is_described_correctly() {
        let mut status = Status { server: Some("m:443".into()), connected: true, ..Status::default() };
        assert!(render(&status).contains("connected to m:443\n"));
        status.trouble = Some("reports are refused: 403".into());
        assert!(render(&status).contains("connected to m:443, but reports are refused: 403\n"));
        status.connected = false;
        assert!(render(&status).contains("not connected to m:443: reports"));
        let local = BTreeMap::from([("/p/a.plan".to_owned(), "applied".to_owned())]);
        let text = render(&Status { local, ..Status::default() });
        assert!(text.contains("none (local plans only)") && text.contains("/p/a.plan: applied"), "{text}");
        assert!(!text.contains("never"), "{text}");
    }
}
