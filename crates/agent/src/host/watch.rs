//! Waiting for changes in directories with the kernel's help.

use std::{collections::BTreeSet, io, path::PathBuf};

use super::BoxFuture;

/// Follows directories.
pub trait Watcher: Send + Sync {
    /// Follows exactly these from now on. True if one of them is new: what came into it before will not be told.
    fn follow(&mut self, directories: &BTreeSet<PathBuf>) -> io::Result<bool>;
    /// Waits for a change in one of them; names that begin with a dot do not count. Cancel-safe.
    fn changed(&mut self) -> BoxFuture<'_, io::Result<()>>;
}
