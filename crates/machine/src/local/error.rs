//! What can go wrong with local machines, in sentences that say what to do.

use std::{io, path::PathBuf};

use serde::{Deserialize, Serialize};

/// The sentence shown whenever something inside a machine needs another user than root and there is none.
pub const ONLY_ROOT: &str = "this local machine was made by an ordinary user, so only uid 0 and gid 0 exist inside it; \
                             run Drover as root if a machine needs other users";

/// Failure of an operation on local machines.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No machine of that name.
    #[error("machine {0:?} not found")]
    NotFound(String),
    /// The request itself cannot be met: a bad name, an unknown mount source, a machine in the wrong state.
    #[error("{0}")]
    Invalid(String),
    /// The host or the data directory cannot carry local machines. The text says what to change.
    #[error("{0}")]
    Unsupported(String),
    /// The holder tried and failed.
    #[error("{0}")]
    Failed(String),
    /// A file or directory under the data directory could not be used.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The holder process could not be started.
    #[error("cannot start the process that holds the local machines: {0}")]
    Holder(String),
    /// The conversation with the holder or with a machine broke off.
    #[error("lost the connection to {peer}")]
    Connection {
        /// The other side.
        peer: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

/// Result of an operation on local machines.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Connection { .. } | Error::Failed(_))
    }

    /// The sentence with all its causes, for one line on stderr.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(inner) = cause {
            text.push_str(": ");
            text.push_str(&inner.to_string());
            cause = inner.source();
        }
        text
    }
}

/// Attaches the path and the verb to an I/O error.
pub(crate) trait At<T> {
    fn at(self, action: &'static str, path: impl Into<PathBuf>) -> Result<T>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, action: &'static str, path: impl Into<PathBuf>) -> Result<T> {
        self.map_err(|source| Error::Io { action, path: path.into(), source })
    }
}

impl<T> At<T> for nix::Result<T> {
    fn at(self, action: &'static str, path: impl Into<PathBuf>) -> Result<T> {
        self.map_err(|errno| Error::Io { action, path: path.into(), source: errno.into() })
    }
}

/// An [`Error`] as it travels from the holder to its client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", content = "message", rename_all = "camelCase")]
pub(crate) enum WireError {
    NotFound(String),
    Invalid(String),
    Unsupported(String),
    Failed(String),
}

impl From<Error> for WireError {
    fn from(error: Error) -> Self {
        match error {
            Error::NotFound(name) => WireError::NotFound(name),
            Error::Invalid(text) => WireError::Invalid(text),
            Error::Unsupported(text) => WireError::Unsupported(text),
            other => WireError::Failed(other.chain()),
        }
    }
}

impl From<WireError> for Error {
    fn from(error: WireError) -> Self {
        match error {
            WireError::NotFound(name) => Error::NotFound(name),
            WireError::Invalid(text) => Error::Invalid(text),
            WireError::Unsupported(text) => Error::Unsupported(text),
            WireError::Failed(text) => Error::Failed(text),
        }
    }
}
