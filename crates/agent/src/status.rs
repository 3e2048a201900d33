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
    /// It is to take plans from a management plane.
    pub remote: bool,
    /// Whether list and watch work.
    pub connected: bool,
    /// What is wrong if not, or what else the API server refuses.
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
    /// Why it failed last.
    pub failure: Option<String>,
    /// What is said of the plan is what an earlier agent knew, because this one has not heard of it yet.
    pub before: bool,
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
    /// Local plans by path, and how they are.
    pub local: BTreeMap<String, String>,
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

/// The file is made larger than need be, by blanks, so that it can be rewritten as it stands on a disk that is full.
const ROOM: usize = 4096;

/// Where the sentinel writes its status.
pub struct Board {
    host: Arc<dyn Host>,
    path: PathBuf,
    shown: Mutex<Shown>,
}

struct Shown {
    status: Status,
    /// It was not written yet, or the last attempt to write it failed.
    owed: bool,
}

impl Status {
    /// What stays worth knowing of an earlier agent until there is news: the plan, and how it went.
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
    /// In the agent's own directory, where an earlier agent may have left what it knew.
    pub fn new(host: Arc<dyn Host>, var: &Path) -> Self {
        let path = path(var);
        let earlier = host.read(&path).ok().and_then(|bytes| serde_json::from_slice::<Status>(&bytes).ok());
        let status = earlier.unwrap_or_default().remembered();
        Self { host, path, shown: Mutex::new(Shown { status, owed: true }) }
    }

    /// Changes the status; writes only if something is different, or was not written before.
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
            // Without room for another file, what is shown would else be old for as long as the disk is full, which is
            // when people look.
            refreshed.or_else(|error| self.host.rewrite(&self.path, &bytes).map_err(|_| error))
        });
        shown.owed = written.is_err();
        if let Err(error) = written {
            // Only a convenience: a full disk must not flood the log as well.
            tracing::debug!("cannot write {}: {error}", self.path.display());
        }
    }

    /// Whether the file does not hold what was shown last, so that showing it again is worth a try.
    pub fn is_owed(&self) -> bool {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).owed
    }
}

/// The file below the agent's directory.
pub fn path(var: &Path) -> PathBuf {
    var.join("status.json")
}

/// Why nothing can be noted in the agent's directory at the moment, so that what was noted last may be old.
pub fn obstacle(host: &dyn Host, var: &Path) -> Option<io::Error> {
    let probe = var.join("status.probe");
    let tried = host.refresh(&probe, &[b' '; ROOM], Attr { mode: 0o600, owner: None });
    let _ = host.remove_file(&probe);
    tried.err()
}

/// As lines for people.
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
        // Nobody gives it another plan.
        return out;
    }
    let none = "none".to_owned();
    if status.before {
        line("known", "from before this agent started; it has not reached its plan since");
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
        line("report", "waits to be published");
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
    async fn what_a_full_disk_refused_is_written_when_there_is_room_again() {
        let host = Arc::new(MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, NoProgram));
        let board = Board::new(host.clone(), Path::new("/v"));
        board.show(|_| {});
        host.crash_after_writes(0);
        let change = |status: &mut Status| status.plan = Some("c".into());
        board.show(change);
        assert!(board.is_owed());
        host.restart();
        board.show(change);
        assert!(!board.is_owed());
        let status: Status = serde_json::from_slice(&host.read(&path(Path::new("/v"))).unwrap()).unwrap();
        assert_eq!(status.plan.as_deref(), Some("c"));
        let writes = host.writes();
        board.show(change);
        assert_eq!(host.writes(), writes, "and then no more");
    }

    #[tokio::test]
    async fn what_an_earlier_agent_knew_is_kept_with_a_remark() {
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
        // And a file that nobody can read is no trouble.
        let attr = Attr { mode: 0o600, owner: None };
        host.replace(&path(Path::new("/v")), b"{", attr).unwrap();
        Board::new(host.clone(), Path::new("/v")).show(|_| {});
        assert_eq!(shown().plan, None);
    }

    #[test]
    fn an_agent_that_has_no_plan_says_why() {
        let mut status = Status { remote: true, ..Status::default() };
        let text = render(&status);
        assert!(text.contains("connection    none yet\n") && !text.contains("idle"), "{text}");
        status.trouble = Some("the connection file /c cannot be used: no users".into());
        let text = render(&status);
        assert!(
            text.contains("connection    none: the connection file /c cannot be used: no users\n"),
            "{text}"
        );
        assert!(
            !text.contains("local plans only") && text.contains("now           waiting for the connection\n")
        );
    }

    #[test]
    fn on_a_full_disk_the_file_is_rewritten_as_it_stands() {
        let dir = tempfile::tempdir().unwrap();
        let (file, mode) = (dir.path().join("status.json"), Attr { mode: 0o600, owner: None });
        let host: Arc<dyn Host> = Arc::new(crate::host::RealHost::new());
        let board = Board::new(host.clone(), dir.path());
        board.show(|_| {});
        assert!(obstacle(&*host, dir.path()).is_none());
        let before = std::fs::metadata(&file).unwrap().len();
        let long = Status { failure: Some("x".repeat(2000)), ..Status::default() };
        host.rewrite(&file, &serde_json::to_vec(&long).unwrap()).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().len(), before, "it takes no more room");
        let found: Status = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!(found, long);
        // What does not fit leaves the old content whole, and what does not exist is not made.
        host.rewrite(&file, &vec![b'x'; before as usize + 1]).unwrap_err();
        assert_eq!(serde_json::from_slice::<Status>(&std::fs::read(&file).unwrap()).unwrap(), long);
        host.rewrite(&dir.path().join("other"), b"").unwrap_err();
        assert_eq!(host.list(dir.path()).unwrap(), ["status.json"]);
        assert!(host.refresh(&dir.path().join("none/x"), b"", mode).is_err());
        assert!(obstacle(&*host, &dir.path().join("none")).is_some());
    }

    #[test]
    fn the_connection_is_told_as_it_is() {
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
