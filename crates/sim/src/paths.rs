//! The paths of K3s below a file root.

use std::path::{Path, PathBuf};

/// The paths of one node.
#[derive(Clone, Debug)]
pub struct Paths {
    root: PathBuf,
    data: PathBuf,
}

impl Paths {
    /// `data` is the data directory in the configuration of the node (below `root`).
    pub fn new(root: &Path, data: &str) -> Self {
        Self { root: root.to_owned(), data: root.join(data.trim_start_matches('/')) }
    }

    pub fn config_dir(root: &Path) -> PathBuf {
        root.join("etc/rancher/k3s")
    }

    /// The admin's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        Self::config_dir(&self.root).join("k3s.yaml")
    }

    /// The password with which a node authenticates when it joins again.
    pub fn node_password(&self) -> PathBuf {
        self.root.join("etc/rancher/node/password")
    }

    pub fn os_release(&self) -> PathBuf {
        self.root.join("etc/os-release")
    }

    pub fn server(&self) -> PathBuf {
        self.data.join("server")
    }

    pub fn tls(&self) -> PathBuf {
        self.server().join("tls")
    }

    pub fn database(&self) -> PathBuf {
        self.server().join("db")
    }

    pub fn manifests(&self) -> PathBuf {
        self.server().join("manifests")
    }

    pub fn agent(&self) -> PathBuf {
        self.data.join("agent")
    }

    /// Converts a path in a configuration to a path on this host.
    pub fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}
