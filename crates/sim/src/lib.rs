//! A Kubernetes distribution that looks like K3s from outside and runs no pods.
//!
//! It is installed by the same `run.sh` contract, reads the same configuration files, checks join tokens, serves a
//! real Kubernetes API on the same port with certificates and kubeconfig at the same paths, answers the same
//! probes, applies the same manifests folder and registers Nodes. So the whole life of a cluster is played in
//! seconds, without privileges, for demos, tests and scale.
//!
//! * [`config`]: flags and files, merged as K3s merges them.
//! * [`server`]: `k3s server`: the API, the join endpoint, manifests, node health.
//! * [`kubelet`]: what both kinds of node do: register a Node and keep it alive.
//! * [`join`]: how an agent becomes a member.
//! * [`install`]: the installer image.
//!
//! It knows K3s' shape, not who installed it. Everything below a file root and an address, so that many run in one
//! process. Start reading at [`node`].

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

/// Why a simulated node cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path} cannot be read")]
    Read {
        path: std::path::PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} cannot be written")]
    Write {
        path: std::path::PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} is not valid: {why}")]
    Config { path: std::path::PathBuf, why: String },
    #[error("{0}")]
    Invalid(String),
    #[error("{address} cannot be listened on")]
    Listen {
        address: std::net::SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("the certificates cannot be made")]
    Certificates(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the API cannot be started: {0}")]
    Api(String),
    #[error("joining {server} failed: {why}")]
    Join { server: String, why: String },
    #[error("{what} failed")]
    Kube {
        what: &'static str,
        #[source]
        source: kube::Error,
    },
}

pub(crate) fn read(path: &std::path::Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}

/// Writes through a temporary file, so that a reader never sees half of it.
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
