//! Results that were not published yet, on disk: a plan that was applied is never applied again because the agent was
//! killed before it could say so.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::report::Report;
use crate::host::{Attr, Host};

/// The file.
pub(super) struct Outbox {
    host: Arc<dyn Host>,
    path: PathBuf,
    filled: bool,
}

impl Outbox {
    /// In the agent's own directory.
    pub(super) fn new(host: Arc<dyn Host>, var: &Path) -> Self {
        Self { host, path: var.join("outbox.json"), filled: true }
    }

    /// What a predecessor left. A file that cannot be read is put aside.
    pub(super) fn load(&self) -> Report {
        let bytes = match self.host.read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!("cannot read {}: {error}", self.path.display());
                }
                return Report::default();
            }
        };
        serde_json::from_slice(&bytes).unwrap_or_else(|error| {
            tracing::warn!("{} is broken and is ignored: {error}", self.path.display());
            Report::default()
        })
    }

    /// Keeps the report. On a full disk the agent goes on with what it has in memory.
    pub(super) fn save(&mut self, report: &Report) {
        if report.is_empty() {
            if self.filled {
                match self.host.remove_file(&self.path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        tracing::warn!("cannot remove {}: {error}", self.path.display());
                    }
                    _ => self.filled = false,
                }
            }
            return;
        }
        self.filled = true;
        let written = serde_json::to_vec(report).map_err(io::Error::other).and_then(|bytes| {
            if let Some(parent) = self.path.parent() {
                self.host.make_dirs(parent, 0o700)?;
            }
            self.host.replace(&self.path, &bytes, Attr { mode: 0o600, owner: None })
        });
        if let Err(error) = written {
            tracing::warn!("cannot keep results in {}: {error}", self.path.display());
        }
    }
}
