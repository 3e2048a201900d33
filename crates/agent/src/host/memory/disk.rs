//! The disk of a simulated machine: its current state, and what would remain after a power failure.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

#[derive(Clone)]
pub(super) enum Node {
    Directory,
    // A hard link shares the content.
    File(Arc<Mutex<Vec<u8>>>),
    Symlink(PathBuf),
}

#[derive(Clone)]
pub(super) struct Entry {
    pub(super) node: Node,
    pub(super) mode: u32,
    pub(super) owner: (u32, u32),
}

/// See the module.
#[derive(Default)]
pub(super) struct Disk {
    /// The state that the machine sees.
    pub(super) seen: BTreeMap<PathBuf, Entry>,
    /// The durable state, where it differs.
    behind: BTreeMap<PathBuf, Option<Entry>>,
}

impl Disk {
    /// Records a change that is not durable.
    pub(super) fn change(&mut self, path: &Path, entry: Option<Entry>) {
        let before = match entry {
            Some(entry) => self.seen.insert(path.to_owned(), entry),
            None => self.seen.remove(path),
        };
        self.behind.entry(path.to_owned()).or_insert(before);
    }

    /// Makes the changes of a path durable.
    pub(super) fn sync(&mut self, path: &Path) {
        let seen = &self.seen;
        self.behind
            .retain(|at, _| at != path && matches!(seen.get(at), Some(Entry { node: Node::File(_), .. })));
    }

    /// Discards all changes that are not durable.
    pub(super) fn forget(&mut self) {
        for (path, entry) in std::mem::take(&mut self.behind) {
            match entry {
                Some(entry) => self.seen.insert(path, entry),
                None => self.seen.remove(&path),
            };
        }
    }
}
