//! One agent per set of files: a second one would run every plan at the same time in the same folder.
//!
//! The lock lives as long as the process. A program that the agent becomes loses it with the change, since the file is
//! closed there, and takes it again when it starts.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use crate::host::Host;

/// Name of the file in the agent's own directory.
const LOCK: &str = "sentinel.lock";

/// Another agent has the lock.
#[derive(Debug, thiserror::Error)]
#[error(
    "another agent runs with these files{}: it holds the lock on {path}",
    .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
)]
pub struct Held {
    /// The file.
    pub path: PathBuf,
    /// The agent that wrote it, where it can be read.
    pub pid: Option<u32>,
}

/// Held as long as this is.
pub struct Alone(Option<File>);

impl Alone {
    /// Takes the lock. Only another agent is a reason to refuse: where no lock can be had, for instance on a full disk,
    /// the agent goes on without.
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
                // Not where a lock keeps others from reading too.
                let _ = file.read_to_string(&mut text);
                return Err(Held { path, pid: text.trim().parse().ok() });
            }
            Err(TryLockError::Error(error)) => return Ok(Self::without(&path, &error)),
        }
        // For people alone.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self(Some(file)))
    }

    fn without(path: &Path, error: &io::Error) -> Self {
        tracing::warn!("cannot make sure that no other agent runs: {}: {error}", path.display());
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
    fn a_second_one_is_refused_while_the_first_is_there() {
        let root = tempfile::tempdir().unwrap();
        let var = root.path().join("var");
        let first = Alone::take(&RealHost::new(), &var).unwrap();
        assert!(first.is_locked());
        let told = Alone::take(&RealHost::new(), &var).err().unwrap().to_string();
        assert!(told.contains(var.join(LOCK).to_str().unwrap()), "{told}");
        assert!(told.contains(&format!("pid {}", std::process::id())), "{told}");
        drop(first);
        assert!(Alone::take(&RealHost::new(), &var).unwrap().is_locked());
    }

    #[test]
    fn where_nothing_can_be_written_the_agent_goes_on() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("file"), "").unwrap();
        assert!(!Alone::take(&RealHost::new(), &root.path().join("file")).unwrap().is_locked());
    }
}
