//! The files of the local driver below `<data-dir>/local`.
//!
//! ```text
//! holder.lock holder.sock holder.log network.json exe/drover
//! machines/<name>/machine.json    the record, written before anything is created; see `protocol::Record`
//! machines/<name>/console.log     output of process 1 and its boot
//! machines/<name>/cgroups         its control groups on the host, see `cgroup`
//! machines/<name>/control.sock    process 1 listens here for exec and power-off
//! machines/<name>/disk/fs         the root file system: /var /opt /root /home /srv /tmp …
//! machines/<name>/disk/upper/<d>  changes of the machine below /usr, /etc (and /bin … where they are directories)
//! machines/<name>/disk/work/<d>   used by overlayfs
//! trash/<uid>                     a machine that is being removed
//! ```

use std::{
    fs, io,
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};

use crate::error::{At, Error, Result};

#[derive(Debug, Clone)]
pub(crate) struct Layout {
    root: PathBuf,
}

impl Layout {
    pub(crate) fn new(data_dir: &Path) -> Layout {
        Layout { root: data_dir.join("local") }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.root.join("holder.lock")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.root.join("holder.sock")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.root.join("holder.log")
    }

    pub(crate) fn network(&self) -> PathBuf {
        self.root.join("network.json")
    }

    pub(crate) fn exe(&self) -> PathBuf {
        self.root.join("exe").join("drover")
    }

    pub(crate) fn probe(&self) -> PathBuf {
        self.root.join("probe")
    }

    pub(crate) fn trash(&self) -> PathBuf {
        self.root.join("trash")
    }

    pub(crate) fn machines(&self) -> PathBuf {
        self.root.join("machines")
    }

    pub(crate) fn machine(&self, name: &str) -> MachineLayout {
        MachineLayout { root: self.machines().join(name) }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct MachineLayout {
    root: PathBuf,
}

impl MachineLayout {
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn record(&self) -> PathBuf {
        self.root.join("machine.json")
    }

    pub(crate) fn console(&self) -> PathBuf {
        self.root.join("console.log")
    }

    pub(crate) fn control(&self) -> PathBuf {
        self.root.join("control.sock")
    }

    /// Control groups that were created for the machine and may still exist.
    pub(crate) fn cgroups(&self) -> PathBuf {
        self.root.join("cgroups")
    }

    pub(crate) fn disk(&self) -> PathBuf {
        self.root.join("disk")
    }

    pub(crate) fn fs(&self) -> PathBuf {
        self.disk().join("fs")
    }

    pub(crate) fn upper(&self, top: &str) -> PathBuf {
        self.disk().join("upper").join(top)
    }

    pub(crate) fn work(&self, top: &str) -> PathBuf {
        self.disk().join("work").join(top)
    }
}

/// Creates a directory, and its parents, that only the owner can access.
pub(crate) fn private_dir(path: &Path) -> Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).at("create directory", path)
}

/// Replaces a file atomically: a reader sees either the old or the new content, also after a crash.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|error| Error::Failed(error.to_string()))?;
    text.push(b'\n');
    write_atomic(path, &text)
}

pub(crate) fn write_atomic(path: &Path, content: &[u8]) -> Result<()> {
    let next = path.with_extension("next");
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&next)
        .at("write", &next)?;
    file.write_all(content).and_then(|()| file.sync_all()).at("write", &next)?;
    fs::rename(&next, path).at("replace", path)?;
    // Without this, a power failure of the host may restore the old name.
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::File::open(directory).and_then(|it| it.sync_all()).at("sync", directory)
}

/// Reads a file of [`write_json`]; `None` if it does not exist.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).at("read", path),
        Ok(text) => serde_json::from_slice(&text)
            .map(Some)
            .map_err(|error| Error::Failed(format!("{} is corrupt: {error}", path.display()))),
    }
}

/// A directory deeper than this is moved up before it is emptied. A program in a machine can nest directories deeper
/// than the longest path, and deeper than the stack allows for recursion.
const DEEPEST: usize = 8;

/// Removes a tree, including unreadable directories (the work directory of overlayfs has mode 0000).
pub(crate) fn remove_tree(path: &Path) -> Result<()> {
    let mut moved = 0;
    // Each round leaves only the directories that it moved up, whose depth is now lower.
    loop {
        let before = moved;
        empty(path, path, 0, &mut moved)?;
        if moved == before {
            return Ok(());
        }
    }
}

/// Removes the file or directory at `path`. Directories that are too deep are moved to the top of the tree instead.
fn empty(top: &Path, path: &Path, depth: usize, moved: &mut usize) -> Result<()> {
    let meta = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).at("remove", path),
        Ok(meta) => meta,
    };
    let removed = if meta.is_dir() {
        if meta.permissions().mode() & 0o700 != 0o700 {
            fs::set_permissions(path, fs::Permissions::from_mode(0o700)).at("make accessible", path)?;
        }
        if depth == DEEPEST {
            loop {
                *moved += 1;
                let up = top.join(format!(".moved-up-{moved}"));
                // A program in the machine may have used this name.
                if fs::symlink_metadata(&up).is_err() {
                    return fs::rename(path, up).at("move up", path);
                }
            }
        }
        let before = *moved;
        for entry in fs::read_dir(path).at("list", path)? {
            empty(top, &entry.at("list", path)?.path(), depth + 1, moved)?;
        }
        if path == top && *moved != before {
            return Ok(());
        }
        fs::remove_dir(path)
    } else {
        fs::remove_file(path)
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.at("remove", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remove_tree_removes_unreadable_directories_and_follows_no_link() {
        let base = tempfile::tempdir().unwrap();
        let outside = base.path().join("outside");
        fs::write(&outside, "kept").unwrap();
        let tree = base.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        std::os::unix::fs::symlink(&outside, tree.join("a/link")).unwrap();
        fs::set_permissions(tree.join("a/b"), fs::Permissions::from_mode(0o000)).unwrap();
        fs::set_permissions(tree.join("a"), fs::Permissions::from_mode(0o500)).unwrap();
        remove_tree(&tree).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists() && outside.exists());
    }

    /// Created one level at a time, as a program in a machine can do it.
    #[test]
    fn remove_tree_removes_directories_deeper_than_the_longest_path() {
        use nix::{fcntl, sys::stat};
        let base = tempfile::tempdir().unwrap();
        let tree = base.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let name = "d".repeat(200);
        let mut at = std::os::fd::OwnedFd::from(fs::File::open(&tree).unwrap());
        for _ in 0..300 {
            stat::mkdirat(&at, name.as_str(), stat::Mode::S_IRWXU).unwrap();
            let flags = fcntl::OFlag::O_DIRECTORY | fcntl::OFlag::O_RDONLY;
            at = fcntl::openat(&at, name.as_str(), flags, stat::Mode::empty()).unwrap();
        }
        fs::write(tree.join("beside"), "file").unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }
}
