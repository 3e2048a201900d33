//! Ensures that only one agent uses a set of files. A second one would run every plan in the same directory at the same
//! time.
//!
//! The lock lasts as long as the process. When the agent becomes another program, the file is closed and the lock is
//! released; that program takes it again when it starts.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use crate::host::Host;

/// Name of the lock file in the agent's directory.
const LOCK: &str = "sentinel.lock";

/// Another agent holds the lock.
#[derive(Debug, thiserror::Error)]
#[error(
    "another agent is using these files{}: it holds the lock on {path}",
    .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
)]
pub struct Held {
    /// The lock file.
    pub path: PathBuf,
    /// The process id in the file, if it could be read.
    pub pid: Option<u32>,
}

/// Holds the lock until it is dropped.
pub struct AgentLock(Option<File>);

impl AgentLock {
    /// Takes the lock. It fails only if another agent holds the lock: if the lock file cannot be created, for example
    /// on a full disk, the agent continues without a lock.
    pub fn take(host: &dyn Host, var: &Path) -> Result<Self, Held> {
        let path = var.join(LOCK);
        let mut file = match host.make_dirs(var, 0o700).and_then(|()| open(&path)) {
            Ok(file) => file,
            Err(error) => return Ok(Self::without(&path, &error)),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                // Fails where a lock also blocks reading.
                let _ = file.read_to_string(&mut text);
                return Err(Held { path, pid: text.trim().parse().ok() });
            }
            Err(TryLockError::Error(error)) => return Ok(Self::without(&path, &error)),
        }
        // Only for information.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self(Some(file)))
    }

    fn without(path: &Path, error: &io::Error) -> Self {
        tracing::warn!("failed to lock {}, so other agents cannot be detected: {error}", path.display());
        Self(None)
    }

    /// Whether there is a lock.
    pub fn is_locked(&self) -> bool {
        self.0.is_some()
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::RealHost;

    #[test]
    fn a_second_agent_is_rejected_while_the_first_one_runs() {
        let root = tempfile::tempdir().unwrap();
        let var = root.path().join("var");
        let first = AgentLock::take(&RealHost::new(), &var).unwrap();
        assert!(first.is_locked());
        let shown = AgentLock::take(&RealHost::new(), &var).err().unwrap().to_string();
        assert!(shown.contains(var.join(LOCK).to_str().unwrap()), "{shown}");
        assert!(shown.contains(&format!("pid {}", std::process::id())), "{shown}");
        drop(first);
        assert!(AgentLock::take(&RealHost::new(), &var).unwrap().is_locked());
    }

    #[test]
    fn the_agent_continues_if_the_lock_file_cannot_be_created() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("file"), "").unwrap();
        assert!(!AgentLock::take(&RealHost::new(), &root.path().join("file")).unwrap().is_locked());
    }
}
