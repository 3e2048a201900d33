//! The layout of the data directory.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::bail;
use drover_registry::Registry;

/// The data directory of one management plane. It is private to one user.
#[derive(Clone, Debug)]
pub struct DataDir(PathBuf);

impl DataDir {
    /// Creates the directory, private to this user, if it does not exist. The path becomes absolute.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::suits(&std::path::absolute(path)?)?;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let found = path.canonicalize()?;
        Self::suits(&found)?;
        Ok(Self(found))
    }

    /// Rejects a file, and a path with a colon, which would separate entries in KUBECONFIG and in the layers of a
    /// machine's disk.
    pub fn suits(path: &Path) -> io::Result<()> {
        if path.metadata().is_ok_and(|found| !found.is_dir()) {
            return Err(no_directory());
        }
        if !path.as_os_str().as_bytes().contains(&b':') {
            return Ok(());
        }
        let why = "its path has a \":\", which separates the files in KUBECONFIG and the layers of a machine's disk; choose another with --data-dir";
        Err(io::Error::new(io::ErrorKind::InvalidInput, why))
    }

    /// The directory, if it exists. It is not created.
    pub fn existing(path: &Path) -> io::Result<Option<Self>> {
        match path.canonicalize() {
            Ok(found) if !found.is_dir() => Err(no_directory()),
            Ok(found) => Ok(Some(Self(found))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.0.join("kubeconfig.yaml")
    }

    /// The kubeconfig of a downstream cluster.
    pub fn cluster_kubeconfig(&self, name: &str) -> PathBuf {
        self.cluster_kubeconfigs().join(format!("{name}.kubeconfig"))
    }

    pub fn cluster_kubeconfigs(&self) -> PathBuf {
        self.0.join("clusters")
    }

    pub fn database(&self) -> PathBuf {
        self.0.join("db")
    }

    /// Makes the folder of the store private. A directory that existed before may be readable by others, and the
    /// store contains every Secret.
    pub fn close_database(&self) -> io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(self.database())?;
        std::fs::set_permissions(self.database(), std::fs::Permissions::from_mode(0o700))
    }

    /// Claims the directory for a server on an external API, while the file is open. A directory with a store is
    /// rejected: the store would be ignored, and its records of machines and Jobs would be wrong.
    pub fn claim_for_external(&self) -> anyhow::Result<(std::fs::File, String)> {
        if self.database().exists() {
            bail!(
                "it contains the store of an embedded API; choose another directory with --data-dir, or omit --kubeconfig"
            );
        }
        let file =
            std::fs::File::options().create(true).truncate(false).write(true).open(self.0.join("lock"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                bail!("it is in use by another server; stop it or choose another directory")
            }
            Err(std::fs::TryLockError::Error(error)) => return Err(error.into()),
        }
        let path = self.identity();
        let own = match std::fs::read_to_string(&path) {
            Ok(text) if !text.trim().is_empty() => text,
            _ => {
                let fresh = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
                write_private(&path, fresh.as_bytes())?;
                fresh
            }
        };
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Ok((file, format!("{}_{}", host.trim(), own.trim())))
    }

    /// Takes the locks of servers, so that none starts while the directory is changed. Fails while one runs.
    pub fn claim(&self) -> anyhow::Result<Vec<std::fs::File>> {
        let mut claims = vec![];
        for path in [self.database().join("lock"), self.0.join("lock")] {
            let Ok(file) = std::fs::File::options().write(true).open(path) else { continue };
            if let Err(std::fs::TryLockError::WouldBlock) = file.try_lock() {
                let pid = lock_holder(&file).map(|pid| format!(" (process {pid})")).unwrap_or_default();
                bail!("a server{pid} is running in {}; stop it first", self.0.display());
            }
            claims.push(file);
        }
        Ok(claims)
    }

    /// The process id of the server that uses the directory, if known.
    pub fn server_pid(&self) -> Option<u32> {
        [self.database().join("lock"), self.0.join("lock")].iter().find_map(|path| {
            let file = std::fs::File::open(path).ok()?;
            lock_holder(&file)
        })
    }

    /// Rejects a directory that a server on an external API has used.
    pub fn claim_for_embedded(&self) -> anyhow::Result<()> {
        if self.is_external() {
            bail!(
                "it belongs to a server with --kubeconfig; set --kubeconfig, or choose another directory with --data-dir"
            );
        }
        Ok(())
    }

    /// Whether a server on an external API has used the directory.
    pub fn is_external(&self) -> bool {
        self.identity().exists()
    }

    /// The name of a server on an external API; it stays the same after a restart.
    fn identity(&self) -> PathBuf {
        self.0.join("identity")
    }

    pub fn tls(&self) -> PathBuf {
        self.0.join("tls")
    }

    /// Locks, logs and files of Jobs.
    pub fn jobs(&self) -> PathBuf {
        self.0.join("jobs")
    }

    /// Archives of the installer images that this server provides to machines.
    pub fn images(&self) -> PathBuf {
        self.0.join("images")
    }

    /// The registry over [`DataDir::images`]. It stores uncompressed copies of compressed archives beside them, which
    /// can be removed at any time.
    pub fn registry(&self) -> Registry {
        Registry::new(self.images(), self.0.join("images-unpacked"))
    }
}

fn no_directory() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotADirectory,
        "it is a file, not a directory; choose another one with --data-dir",
    )
}

/// The process that holds the lock of a file, according to the kernel. None on file systems whose numbers differ
/// there.
fn lock_holder(file: &std::fs::File) -> Option<u32> {
    let meta = file.metadata().ok()?;
    let device = meta.dev();
    let major = ((device >> 8) & 0xfff) | ((device >> 32) & !0xfff);
    let minor = (device & 0xff) | ((device >> 12) & !0xff);
    let wanted = format!("{major:02x}:{minor:02x}:{}", meta.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| *word == wanted)?;
        words.get(at.checked_sub(1)?)?.parse().ok()
    })
}

/// Writes a file atomically, readable only by this user.
pub fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    use io::Write;
    if let Some(parent) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    let fresh = path.with_extension(format!("new-{}", std::process::id()));
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(fresh, path)
}
