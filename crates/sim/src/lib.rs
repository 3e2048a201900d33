//! A simulated Kubernetes distribution that behaves like K3s and runs no pods.
//!
//! It is installed by the same `run.sh` contract, reads the same configuration files, checks join tokens, serves a real
//! Kubernetes API on the same port, with certificates and kubeconfig at the same paths, answers the same probes,
//! applies the same manifests folder and registers Nodes. The whole life cycle of a cluster takes seconds and needs no
//! privileges, for demos, tests and load tests.
//!
//! * [`config`]: flags and files, merged as in K3s.
//! * [`server`]: `k3s server`: the API, the join endpoint, manifests, node health.
//! * [`kubelet`]: the tasks of every node: register a Node and send heartbeats.
//! * [`join`]: how an agent joins.
//! * [`install`]: the installer image.
//!
//! It depends on the interface of K3s, not on who installs it. A node uses only a file root and an address, so that
//! many nodes can run in one process. Start reading at [`node`].

pub mod component;
pub mod config;
pub mod install;
pub mod join;
pub mod kubelet;
pub mod manifests;
pub mod node;
pub mod node_health;
pub mod paths;
pub mod server;

/// Why a simulated node failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to read {path}")]
    Read {
        path: std::path::PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to write {path}")]
    Write {
        path: std::path::PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} is invalid: {why}")]
    Config { path: std::path::PathBuf, why: String },
    #[error("{0}")]
    Invalid(String),
    #[error("failed to listen on {address}")]
    Listen {
        address: std::net::SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to create certificates")]
    Certificates(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("failed to start the API: {0}")]
    Api(String),
    #[error("failed to join {server}: {why}")]
    Join { server: String, why: String },
    #[error("failed to {what}")]
    Kube {
        what: &'static str,
        #[source]
        source: kube::Error,
    },
}

pub(crate) fn read(path: &std::path::Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}

/// Writes through a temporary file, so that a reader never sees partial content.
pub(crate) fn write(path: &std::path::Path, content: &[u8], mode: u32) -> Result<(), Error> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let failed = |source| Error::Write { path: path.to_owned(), source };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    let fresh = path.with_extension(format!("new-{}", std::process::id()));
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&fresh)
        .map_err(failed)?;
    file.write_all(content).map_err(failed)?;
    std::fs::rename(&fresh, path).map_err(failed)
}
