//! Watches directories for changes with inotify.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::{
        fd::{AsFd as _, AsRawFd, RawFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    sys::inotify::{self, AddWatchFlags, InitFlags, WatchDescriptor},
};
use tokio::io::{Interest, unix::AsyncFd};

use crate::host::{BoxFuture, Watcher};

/// Watches below a directory that represents the machine's `/`.
pub(in crate::host) struct Inotify {
    root: PathBuf,
    queue: AsyncFd<Queue>,
    followed: BTreeMap<PathBuf, WatchDescriptor>,
}

struct Queue(inotify::Inotify);

impl AsRawFd for Queue {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Inotify {
    #[allow(unsafe_code)]
    pub(in crate::host) fn new(root: &Path) -> io::Result<Self> {
        let queue = inotify::Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        // SAFETY: the queue owns its descriptor, never hands it out, and is dropped only after the registration.
        let queue = unsafe { AsyncFd::register_with_interest(Queue(queue), Interest::READABLE) }?;
        Ok(Self { root: root.to_owned(), queue, followed: BTreeMap::new() })
    }
}

impl Watcher for Inotify {
    fn follow(&mut self, directories: &BTreeSet<PathBuf>) -> io::Result<bool> {
        let queue = &self.queue.get_ref().0;
        let flags = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        let mut now = BTreeMap::new();
        for directory in directories {
            let real = self.root.join(directory.strip_prefix("/").unwrap_or(directory));
            // A directory that is already watched keeps its number; another directory at the same path gets a new one.
            match queue.add_watch(&real, flags) {
                Ok(number) => drop(now.insert(directory.clone(), number)),
                // It was just removed, which the watch of its parent reports.
                Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let new = now.iter().any(|(path, number)| self.followed.get(path) != Some(number));
        for number in self.followed.values().filter(|number| !now.values().any(|kept| kept == *number)) {
            // Fails for a removed directory, whose watch was removed as well.
            let _ = queue.rm_watch(*number);
        }
        self.followed = now;
        Ok(new)
    }

    fn changed(&mut self) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async {
            loop {
                let mut ready = self.queue.readable().await?;
                match ready.get_inner().0.read_events() {
                    Err(Errno::EAGAIN) => ready.clear_ready(),
                    Err(error) => return Err(error.into()),
                    Ok(events) => {
                        let hidden = |name: &std::ffi::OsString| name.as_bytes().starts_with(b".");
                        let removed = AddWatchFlags::IN_IGNORED;
                        if events.iter().any(|event| {
                            !event.mask.contains(removed) && !event.name.as_ref().is_some_and(hidden)
                        }) {
                            return Ok(());
                        }
                    }
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn notified(watcher: &mut Inotify) -> bool {
        // All changes happened before, so their events are ready.
        tokio::time::timeout(Duration::from_millis(100), watcher.changed()).await.is_ok()
    }

    #[tokio::test]
    async fn only_changes_in_watched_directories_are_reported() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        std::fs::create_dir_all(path("p/sub")).unwrap();
        let mut watcher = Inotify::new(root.path()).unwrap();
        let both = BTreeSet::from([PathBuf::from("/p"), PathBuf::from("/p/sub"), PathBuf::from("/none")]);
        assert!(watcher.follow(&both).unwrap());
        assert!(!watcher.follow(&both).unwrap(), "no new directory");
        assert!(!notified(&mut watcher).await);
        std::fs::write(path("p/sub/a.plan"), "x").unwrap();
        assert!(notified(&mut watcher).await);
        while notified(&mut watcher).await {}
        std::fs::write(path("p/.a.plan.tmp"), "x").unwrap();
        assert!(!notified(&mut watcher).await, "hidden names are ignored");
        std::fs::rename(path("p/.a.plan.tmp"), path("p/b.plan")).unwrap();
        assert!(notified(&mut watcher).await);
        // A new directory with the same name is watched again.
        std::fs::remove_dir_all(path("p/sub")).unwrap();
        assert!(notified(&mut watcher).await);
        std::fs::create_dir(path("p/sub")).unwrap();
        assert!(watcher.follow(&both).unwrap());
        assert!(watcher.follow(&BTreeSet::from([PathBuf::from("/p/sub")])).is_ok());
        while notified(&mut watcher).await {}
        std::fs::remove_file(path("p/b.plan")).unwrap();
        assert!(!notified(&mut watcher).await, "it is no longer watched");
    }
}
