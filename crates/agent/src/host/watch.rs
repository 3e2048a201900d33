//! Watching directories with the kernel's support.

use std::{collections::BTreeSet, io, path::PathBuf};

use super::BoxFuture;

/// Watches directories.
pub trait Watcher: Send + Sync {
    /// Watches exactly these directories from now on. Returns true if one of them is new: earlier changes in it are not
    /// reported.
    fn follow(&mut self, directories: &BTreeSet<PathBuf>) -> io::Result<bool>;
    /// Waits for a change in one of the directories; names that start with a dot are ignored. Cancel-safe.
    fn changed(&mut self) -> BoxFuture<'_, io::Result<()>>;
}
