//! The store that records machines: a directory, or a Kubernetes Secret behind a small trait, so that this crate needs
//! no Kubernetes client. Both use the layout of rancher-machine.

use std::{
    collections::BTreeMap,
    fs, io,
    io::Write,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use nix::fcntl::{Flock, FlockArg};

use crate::{
    archive::{self, CONTAINER_STORE},
    host::Host,
};

/// Failure of a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The name is invalid and could lead to a path outside of the store.
    #[error(
        "invalid machine name {0:?}: a name consists of letters, digits, dots and dashes, and starts with a letter or digit"
    )]
    Name(String),
    /// Another process has locked this machine.
    #[error("another process has locked machine {0:?}")]
    Busy(String),
    /// The state is corrupt.
    #[error("the state of machine {name:?} is corrupt")]
    Damaged {
        /// The machine.
        name: String,
        /// The parse error.
        #[source]
        source: serde_json::Error,
    },
    /// The archive in the Secret is corrupt.
    #[error("the archive in the machine-state secret is corrupt")]
    Archive(#[source] io::Error),
    /// A file could not be read or written.
    #[error("failed to access {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The Kubernetes API returned an error.
    #[error("{0}")]
    Secret(String),
}

/// Records machines.
pub trait Store {
    /// The path of the store that is written into the state of machines.
    fn path(&self) -> String;
    /// Returns the machine, if it exists.
    fn load(&self, name: &str) -> Result<Option<Host>, StoreError>;
    /// Creates or replaces the record of a machine.
    fn save(&self, host: &Host) -> Result<(), StoreError>;
    /// Deletes the record of a machine. Succeeds if there is none.
    fn remove(&self, name: &str) -> Result<(), StoreError>;
    /// The names of all machines, sorted.
    fn list(&self) -> Result<Vec<String>, StoreError>;
    /// Locks a machine against other processes until the result is dropped.
    fn lock(&self, name: &str) -> Result<MachineLock, StoreError>;
}

/// See [`Store::lock`].
#[derive(Debug)]
pub struct MachineLock {
    held: Option<(PathBuf, Flock<fs::File>)>,
}

impl Drop for MachineLock {
    /// Removes the file while its lock is held. A process that waits for the lock detects that the file is gone and
    /// tries again; see [`DiskStore`].
    fn drop(&mut self) {
        if let Some((path, _)) = &self.held {
            let _ = fs::remove_file(path);
        }
    }
}

/// The rule of rancher-machine: `^[a-zA-Z0-9][a-zA-Z0-9\-\.]*$`.
pub fn valid_name(name: &str) -> Result<(), StoreError> {
    let good = name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.chars().all(|each| each.is_ascii_alphanumeric() || each == '-' || each == '.');
    if good { Ok(()) } else { Err(StoreError::Name(name.to_owned())) }
}

/// `<root>/machines/<name>/{config.json,id_rsa,id_rsa.pub}`; directories have mode 0700, files 0600.
#[derive(Debug, Clone)]
pub struct DiskStore {
    root: PathBuf,
}

impl DiskStore {
    /// Opens the store at `root` (`MACHINE_STORAGE_PATH`).
    pub fn new(root: impl Into<PathBuf>) -> DiskStore {
        DiskStore { root: root.into() }
    }

    fn machines(&self) -> PathBuf {
        self.root.join("machines")
    }

    fn directory(&self, name: &str) -> Result<PathBuf, StoreError> {
        valid_name(name).map(|()| self.machines().join(name))
    }
}

impl Store for DiskStore {
    fn path(&self) -> String {
        self.root.display().to_string()
    }

    fn load(&self, name: &str) -> Result<Option<Host>, StoreError> {
        let directory = self.directory(name)?;
        let mut files = BTreeMap::new();
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(at(&directory))?,
        };
        for entry in entries {
            let path = entry.map_err(at(&directory))?.path();
            if let (true, Some(name)) = (path.is_file(), path.file_name().and_then(|name| name.to_str())) {
                files.insert(name.to_owned(), fs::read(&path).map_err(at(&path))?);
            }
        }
        Host::from_files(files).map_err(|source| StoreError::Damaged { name: name.to_owned(), source })
    }

    fn save(&self, host: &Host) -> Result<(), StoreError> {
        let directory = self.directory(&host.config.name)?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(at(&directory))?;
        let files = host
            .to_files()
            .map_err(|source| StoreError::Damaged { name: host.config.name.clone(), source })?;
        for (name, content) in files {
            let (path, next) = (directory.join(&name), directory.join(format!(".{name}.next")));
            let mut file = fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&next)
                .map_err(at(&next))?;
            file.write_all(&content).and_then(|()| file.sync_all()).map_err(at(&next))?;
            fs::rename(&next, &path).map_err(at(&path))?;
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), StoreError> {
        let directory = self.directory(name)?;
        match fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(&directory)(error)),
            _ => Ok(()),
        }
    }

    fn list(&self) -> Result<Vec<String>, StoreError> {
        let entries = match fs::read_dir(self.machines()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(at(&self.machines()))?,
        };
        let mut names: Vec<String> = entries
            .flatten()
            .filter(|entry| entry.path().join("config.json").is_file())
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        Ok(names)
    }

    fn lock(&self, name: &str) -> Result<MachineLock, StoreError> {
        valid_name(name)?;
        let directory = self.root.join("locks");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(at(&directory))?;
        let path = directory.join(name);
        loop {
            let file = fs::OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .mode(0o600)
                .open(&path)
                .map_err(at(&path))?;
            let file = Flock::lock(file, FlockArg::LockExclusiveNonblock)
                .map_err(|_| StoreError::Busy(name.to_owned()))?;
            // If the previous owner removed the file between the two calls, this is a lock on a deleted file: try
            // again.
            let number = |meta: fs::Metadata| (meta.dev(), meta.ino());
            let ours = file.metadata().map(number).map_err(at(&path))?;
            if fs::metadata(&path).is_ok_and(|there| number(there) == ours) {
                return Ok(MachineLock { held: Some((path, file)) });
            }
        }
    }
}

/// The Kubernetes API calls that a secret store needs. Calls block and must have their own timeout.
pub trait SecretClient {
    /// Returns the Secret's data and resourceVersion; `None` if the Secret does not exist.
    fn get(&self, namespace: &str, name: &str) -> Result<Option<SecretData>, String>;
    /// Replaces the Secret's data if its resourceVersion has not changed.
    fn update(&self, namespace: &str, name: &str, secret: &SecretData) -> Result<(), String>;
}

/// The part of a Secret that a store uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecretData {
    /// Detects conflicting updates.
    pub resource_version: String,
    /// Decoded values.
    pub data: BTreeMap<String, Vec<u8>>,
}

/// The key of the archive in the machine-state Secret.
pub const EXTRACTED_CONFIG: &str = "extractedConfig";

/// The machine-state Secret `<infra machine>-machine-state`.
#[derive(Debug, Clone)]
pub struct SecretStore<C> {
    client: C,
    namespace: String,
    name: String,
}

impl<C: SecretClient> SecretStore<C> {
    /// The store in one Secret. The Secret must exist before anything is saved.
    pub fn new(client: C, namespace: &str, name: &str) -> SecretStore<C> {
        SecretStore { client, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    fn read(&self) -> Result<(SecretData, archive::Files), StoreError> {
        let secret =
            self.client.get(&self.namespace, &self.name).map_err(StoreError::Secret)?.unwrap_or_default();
        let packed = secret.data.get(EXTRACTED_CONFIG).map_or(&[][..], Vec::as_slice);
        let files = archive::unpack(packed).map_err(StoreError::Archive)?;
        Ok((secret, files))
    }

    fn write(&self, mut secret: SecretData, files: &archive::Files) -> Result<(), StoreError> {
        let packed = archive::pack(CONTAINER_STORE, files).map_err(StoreError::Archive)?;
        if secret.data.get(EXTRACTED_CONFIG) == Some(&packed) {
            return Ok(());
        }
        secret.data.insert(EXTRACTED_CONFIG.to_owned(), packed);
        self.client.update(&self.namespace, &self.name, &secret).map_err(StoreError::Secret)
    }
}

impl<C: SecretClient> Store for SecretStore<C> {
    fn path(&self) -> String {
        CONTAINER_STORE.to_owned()
    }

    fn load(&self, name: &str) -> Result<Option<Host>, StoreError> {
        valid_name(name)?;
        let (_, mut machines) = self.read()?;
        Host::from_files(machines.remove(name).unwrap_or_default())
            .map_err(|source| StoreError::Damaged { name: name.to_owned(), source })
    }

    fn save(&self, host: &Host) -> Result<(), StoreError> {
        valid_name(&host.config.name)?;
        let (secret, mut machines) = self.read()?;
        let files = host
            .to_files()
            .map_err(|source| StoreError::Damaged { name: host.config.name.clone(), source })?;
        machines.insert(host.config.name.clone(), files);
        self.write(secret, &machines)
    }

    fn remove(&self, name: &str) -> Result<(), StoreError> {
        let (secret, mut machines) = self.read()?;
        if machines.remove(name).is_none() {
            return Ok(());
        }
        self.write(secret, &machines)
    }

    fn list(&self) -> Result<Vec<String>, StoreError> {
        Ok(self.read()?.1.into_keys().collect())
    }

    /// The runner of provisioning Jobs starts only one at a time; the resourceVersion detects other conflicts.
    fn lock(&self, _name: &str) -> Result<MachineLock, StoreError> {
        Ok(MachineLock { held: None })
    }
}

/// The fields of a machine-state Secret that controllers read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StateSummary {
    /// `DriverName`.
    pub driver: String,
    /// `Driver.IPAddress`.
    pub ip: String,
    /// `Driver.PrivateIPAddress`.
    pub private_ip: String,
    /// `Driver.IPv6Address`.
    pub ipv6: String,
    /// `Driver.SSHUser`.
    pub ssh_user: String,
}

/// Reads the first machine of an archive. Returns `None` if the archive is empty ("waiting for driver config to be
/// saved").
pub fn summary(extracted_config: &[u8]) -> Result<Option<StateSummary>, StoreError> {
    let machines = archive::unpack(extracted_config).map_err(StoreError::Archive)?;
    for (name, files) in machines {
        let host = Host::from_files(files).map_err(|source| StoreError::Damaged { name, source })?;
        if let Some(host) = host {
            let text = |key: &str| host.driver_text(key).to_owned();
            return Ok(Some(StateSummary {
                driver: host.config.driver_name.clone(),
                ip: text("IPAddress"),
                private_ip: text("PrivateIPAddress"),
                ipv6: text("IPv6Address"),
                ssh_user: text("SSHUser"),
            }));
        }
    }
    Ok(None)
}

fn at(path: &Path) -> impl Fn(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { path: path.clone(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostOptions;

    #[test]
    fn a_lock_excludes_other_processes() {
        let dir = tempfile::tempdir().unwrap();
        let store = DiskStore::new(dir.path());
        let held = store.lock("m").unwrap();
        assert!(matches!(store.lock("m"), Err(StoreError::Busy(_))));
        store.lock("n").unwrap();
        drop(held);
        store.lock("m").unwrap();
    }

    #[test]
    fn names_with_a_path_outside_of_the_store_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let store = DiskStore::new(dir.path());
        for name in ["../x", "", ".hidden", "a/b", "-x"] {
            assert!(matches!(store.load(name), Err(StoreError::Name(_))), "{name}");
            assert!(store.save(&Host::new(name, "local", "/s", HostOptions::default())).is_err());
            assert!(store.remove(name).is_err() && store.lock(name).is_err());
        }
    }

    #[test]
    fn corrupt_state_is_an_error_and_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let store = DiskStore::new(dir.path());
        store.save(&Host::new("m", "local", "/s", HostOptions::default())).unwrap();
        assert_eq!(store.list().unwrap(), ["m"]);
        fs::write(dir.path().join("machines/m/config.json"), "{").unwrap();
        assert!(matches!(store.load("m"), Err(StoreError::Damaged { .. })));
    }
}
