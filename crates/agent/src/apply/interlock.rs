//! Coordinates the installer and the agent with files in one directory.
//!
//! The installer creates `restart-pending` before it replaces the agent: no pass starts while the file is younger than
//! five minutes. The agent keeps `applyinator-active` during a pass: the installer waits until it is removed.

use std::{
    io,
    path::{Path, PathBuf},
};

use jiff::{SignedDuration, Timestamp};

use crate::{
    host::{Attr, Host},
    unix_date,
};

const RESTART_PENDING: &str = "restart-pending";
const ACTIVE: &str = "applyinator-active";
/// After this time the installer is considered dead.
const PATIENCE: SignedDuration = SignedDuration::from_mins(5);

/// The directory, if configured.
pub(super) struct Interlock(Option<PathBuf>);

impl Interlock {
    /// An empty path disables the interlock.
    pub(super) fn new(directory: &Path) -> Self {
        let used = crate::platform::CURRENT.has_interlock() && !directory.as_os_str().is_empty();
        Self(used.then(|| directory.to_owned()))
    }

    /// The time until which no pass may start, if there is one. The original's installer creates an empty file, so the
    /// agent writes the current time into it when it first sees it.
    pub(super) fn blocked_until(&self, host: &dyn Host) -> io::Result<Option<Timestamp>> {
        let Some(directory) = &self.0 else { return Ok(None) };
        let path = directory.join(RESTART_PENDING);
        let text = match host.read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let now = host.now();
        let since = std::str::from_utf8(&text).ok().and_then(unix_date::parse).filter(|since| *since <= now);
        let Some(since) = since else {
            host.replace(&path, unix_date::format(now).as_bytes(), Attr { mode: 0o600, owner: None })?;
            return Ok(now.checked_add(PATIENCE).ok());
        };
        match since.checked_add(PATIENCE) {
            Ok(until) if until > now => Ok(Some(until)),
            _ => host.remove_file(&path).map(|()| None),
        }
    }

    /// Marks that a pass is running. A failure is only logged.
    pub(super) fn begin(&self, host: &dyn Host) {
        let Some(directory) = &self.0 else { return };
        let marked = host.make_dirs(directory, 0o700).and_then(|()| {
            let now = unix_date::format(host.now());
            host.refresh(&directory.join(ACTIVE), now.as_bytes(), Attr { mode: 0o600, owner: None })
        });
        if let Err(error) = marked {
            tracing::warn!("failed to create the marker of the pass in {}: {error}", directory.display());
        }
    }

    /// Removes the marker. Also called at start, in case an earlier process was killed.
    pub(super) fn end(&self, host: &dyn Host) {
        let Some(directory) = &self.0 else { return };
        if let Err(error) = host.remove_file(&directory.join(ACTIVE))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("failed to remove the marker of the pass in {}: {error}", directory.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{MemoryHost, testing::NoProgram};

    #[tokio::test(start_paused = true)]
    async fn agent_check_35_a_pending_restart_holds_plans_for_five_minutes() {
        let host = MemoryHost::new("2026-01-01T00:00:00Z".parse().unwrap(), 1, NoProgram);
        let lock = Interlock::new(Path::new("/i"));
        assert_eq!(lock.blocked_until(&host).unwrap(), None);
        host.make_dirs(Path::new("/i"), 0o700).unwrap();
        host.replace(Path::new("/i/restart-pending"), b"", Attr { mode: 0o600, owner: None }).unwrap();
        assert!(lock.blocked_until(&host).unwrap().is_some());
        tokio::time::advance(std::time::Duration::from_secs(299)).await;
        assert!(lock.blocked_until(&host).unwrap().is_some());
        tokio::time::advance(std::time::Duration::from_secs(2)).await;
        assert_eq!(lock.blocked_until(&host).unwrap(), None);
        assert!(host.stat(Path::new("/i/restart-pending")).is_err(), "the file is removed");
        // The time in the file is only read: a rewritten file could survive after the installer removed it.
        let dated = unix_date::format(host.now());
        host.replace(Path::new("/i/restart-pending"), dated.as_bytes(), Attr { mode: 0o600, owner: None })
            .unwrap();
        let writes = host.writes();
        assert!(lock.blocked_until(&host).unwrap().is_some());
        assert_eq!(host.writes(), writes);
        lock.begin(&host);
        assert!(host.stat(Path::new("/i/applyinator-active")).is_ok());
        lock.end(&host);
        assert!(host.stat(Path::new("/i/applyinator-active")).is_err());
    }
}
