//! Installer and agent tell each other to wait, by files in one directory.
//!
//! The installer touches `restart-pending` before it replaces the agent: no pass starts while it is younger than five
//! minutes. The agent holds `applyinator-active` during a pass: the installer waits for it to vanish.

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
/// An installer that has not finished by then never will.
const PATIENCE: SignedDuration = SignedDuration::from_mins(5);

/// The directory, if one is configured.
pub(super) struct Interlock(Option<PathBuf>);

impl Interlock {
    /// An empty path means that nobody waits for anybody.
    pub(super) fn new(directory: &Path) -> Self {
        let used = crate::platform::CURRENT.has_interlock() && !directory.as_os_str().is_empty();
        Self(used.then(|| directory.to_owned()))
    }

    /// Until when a pass must wait, if it must. The original's installer leaves the file empty, and the agent's first look
    /// gives it its time.
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

    /// Marks the pass. A failure to do so stops nothing.
    pub(super) fn begin(&self, host: &dyn Host) {
        let Some(directory) = &self.0 else { return };
        let marked = host.make_dirs(directory, 0o700).and_then(|()| {
            let now = unix_date::format(host.now());
            host.refresh(&directory.join(ACTIVE), now.as_bytes(), Attr { mode: 0o600, owner: None })
        });
        if let Err(error) = marked {
            tracing::warn!("cannot mark the pass in {}: {error}", directory.display());
        }
    }

    /// Takes the mark away; also at start, in case a predecessor was killed.
    pub(super) fn end(&self, host: &dyn Host) {
        let Some(directory) = &self.0 else { return };
        if let Err(error) = host.remove_file(&directory.join(ACTIVE))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("cannot remove the mark in {}: {error}", directory.display());
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
        // A file with its time is only read: written anew, it could outlive the installer that removes it.
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
