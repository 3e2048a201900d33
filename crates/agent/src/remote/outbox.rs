//! Unpublished results on disk, so that an applied plan is not applied again because the agent was killed before it
//! could report it.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::report::Report;
use crate::host::{Attr, Host};

/// The file with unpublished results.
pub(super) struct Outbox {
    host: Arc<dyn Host>,
    path: PathBuf,
    filled: bool,
}

impl Outbox {
    /// In the agent's directory.
    pub(super) fn new(host: Arc<dyn Host>, var: &Path) -> Self {
        Self { host, path: var.join("outbox.json"), filled: true }
    }

    /// The results of an earlier process. An unreadable file is ignored.
    pub(super) fn load(&self) -> Report {
        let bytes = match self.host.read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!("failed to read {}: {error}", self.path.display());
                }
                return Report::default();
            }
        };
        serde_json::from_slice(&bytes).unwrap_or_else(|error| {
            tracing::warn!("ignoring {}, which is invalid: {error}", self.path.display());
            Report::default()
        })
    }

    /// Saves the report. On a full disk the agent continues with its state in memory.
    pub(super) fn save(&mut self, report: &Report) {
        if report.is_empty() {
            if self.filled {
                match self.host.remove_file(&self.path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        tracing::warn!("failed to remove {}: {error}", self.path.display());
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
            tracing::warn!("failed to save results to {}: {error}", self.path.display());
        }
    }
}
