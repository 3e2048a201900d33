//! Errors of local machines. Their messages say what to do.

use std::{io, path::PathBuf};

use serde::{Deserialize, Serialize};

/// The message for anything inside a machine that needs another user than root if only root exists there.
pub const ONLY_ROOT: &str = "this local machine was created by a non-root user, so only uid 0 and gid 0 exist inside it; \
                             run Drover as root if a machine needs other users";

/// Failure of an operation on local machines.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine does not exist.
    #[error("machine {0:?} not found")]
    NotFound(String),
    /// The request is invalid: an invalid name, an unknown mount source, or a machine in the wrong state.
    #[error("{0}")]
    Invalid(String),
    /// The host or the data directory does not support local machines. The text says what to change.
    #[error("{0}")]
    Unsupported(String),
    /// The holder failed to execute the request.
    #[error("{0}")]
    Failed(String),
    /// Failed to access a file or directory below the data directory.
    #[error("failed to {action} {}", path.display())]
    Io {
        /// The action, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The holder process could not be started.
    #[error("failed to start the holder process of the local machines: {0}")]
    Holder(String),
    /// The connection to the holder or to a machine was lost.
    #[error("lost the connection to {peer}")]
    Connection {
        /// The peer.
        peer: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Result of an operation on local machines.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether a retry of the same call may succeed.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Connection { .. } | Error::Failed(_))
    }

    /// The message with all its causes, as one line.
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

/// Adds the action and the path to an I/O error.
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

/// An [`Error`] on the wire from the holder to its client.
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
