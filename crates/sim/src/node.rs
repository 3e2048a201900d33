//! Runs one simulated node: `k3s server` or `k3s agent`.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Error;
use crate::component;
use crate::config::{Config, Role};
use crate::join::{self, Membership};
use crate::kubelet::{self, Identity};
use crate::paths::Paths;
use crate::server::{Datastore, Server, ServerOptions};

const JOIN_RETRY: Duration = Duration::from_secs(1);

/// The options of a node.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    pub role: Role,
    /// `v1.34.1+k3s1`.
    pub version: String,
    /// The arguments after `server` or `agent`.
    pub flags: Vec<String>,
    /// The file root; `/` on a real host.
    pub root: PathBuf,
    pub hostname: String,
    /// The node's address. Detected if not set.
    pub address: Option<IpAddr>,
    /// Listen only on `address` instead of all addresses.
    pub only_address: bool,
    /// Where a server stores its cluster.
    pub datastore: Datastore,
}

/// Runs a node until `stop` is cancelled. `ready` is called once a server serves or an agent has joined. All ports are
/// closed when this returns.
pub async fn run(
    options: NodeOptions,
    ready: impl FnOnce() + Send,
    stop: CancellationToken,
) -> Result<(), Error> {
    // Everything that the node started ends with it, including when the start fails.
    let stop = stop.child_token();
    let tasks = TaskTracker::new();
    let ended = run_parts(options, Box::new(ready), tasks.clone(), stop.clone()).await;
    stop.cancel();
    // A task that panicked counts as ended.
    let _ = all_ended(tasks).await;
    ended
}

fn all_ended(tasks: TaskTracker) -> JoinHandle<()> {
    tasks.close();
    tokio::spawn(async move { tasks.wait().await })
}

async fn run_parts(
    options: NodeOptions,
    // Boxed, so that this is compiled once and not for each caller.
    ready: Box<dyn FnOnce() + Send + '_>,
    tasks: TaskTracker,
    stop: CancellationToken,
) -> Result<(), Error> {
    let config = Config::load(&options.root, &options.flags)?;
    let paths = Paths::new(&options.root, &config.data_dir());
    let configured = config.list("node-ip").first().and_then(|ip| ip.split(',').next()?.trim().parse().ok());
    let address = options.address.or(configured).or_else(own_address);
    let address =
        address.ok_or_else(|| Error::Invalid("found no address of this host; set node-ip".into()))?;
    let bind = if options.only_address { address } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
    let identity =
        Identity::new(&config, options.role, &options.version, &options.hostname, address, &paths)?;
    match options.role {
        Role::Server => {
            if let Some(url) = config.text("server") {
                // With a store of its own, this server would look like the cluster that it should join.
                return Err(Error::Invalid(format!(
                    "a server cannot join {url}: the simulated distribution supports one server per cluster"
                )));
            }
            let server = ServerOptions {
                config: config.clone(),
                version: options.version.clone(),
                hostname: options.hostname.clone(),
                address,
                bind,
                paths: paths.clone(),
                datastore: options.datastore,
            };
            let server = Server::start(server, tasks.clone(), stop.clone()).await?;
            component::serve_secure(
                "kube-controller-manager",
                10257,
                bind,
                config.clone(),
                paths.clone(),
                tasks.clone(),
                stop.clone(),
            )
            .await?;
            component::serve_secure(
                "kube-scheduler",
                10259,
                bind,
                config.clone(),
                paths.clone(),
                tasks.clone(),
                stop.clone(),
            )
            .await?;
            component::serve_kubelet(bind, tasks.clone(), stop.clone()).await?;
            tracing::info!(url = server.url, version = options.version, "serving");
            ready();
            kubelet::run(server.client.clone(), identity, stop).await;
            server.stop();
        }
        Role::Agent => {
            let url =
                config.text("server").ok_or_else(|| Error::Invalid("an agent requires --server".into()))?;
            let token =
                config.text("token").ok_or_else(|| Error::Invalid("an agent requires --token".into()))?;
            let membership = tokio::select! {
                membership = join_until_done(url.clone(), token, identity.name.clone(), paths.clone()) => membership?,
                () = stop.clone().cancelled_owned() => return Ok(()),
            };
            crate::write(&paths.agent().join("server-ca.crt"), membership.ca_pem.as_bytes(), 0o644)?;
            crate::write(
                &paths.agent().join("client-kubelet.crt"),
                membership.certificate_pem.as_bytes(),
                0o600,
            )?;
            component::serve_kubelet(bind, tasks.clone(), stop.clone()).await?;
            tracing::info!(server = url, version = options.version, "joined");
            ready();
            kubelet::run(membership.client(&url)?, identity, stop).await;
        }
    }
    Ok(())
}

/// Waits for a server that is not running yet, and fails if the token is rejected, because that is permanent.
async fn join_until_done(
    url: String,
    token: String,
    name: String,
    paths: Paths,
) -> Result<Membership, Error> {
    let password = node_password(&paths)?;
    loop {
        match join::join(url.clone(), token.clone(), name.clone(), password.clone()).await {
            Ok(membership) => return Ok(membership),
            Err(error) if error.to_string().contains("401") => return Err(error),
            Err(error) => tracing::warn!(%error, "failed to join, retrying"),
        }
        tokio::time::sleep(JOIN_RETRY).await;
    }
}

fn node_password(paths: &Paths) -> Result<String, Error> {
    let path = paths.node_password();
    if path.exists() {
        return crate::read(&path).map(|text| text.trim().to_owned());
    }
    let password: String = rand::random::<[u8; 16]>().iter().map(|byte| format!("{byte:02x}")).collect();
    crate::write(&path, password.as_bytes(), 0o600)?;
    Ok(password)
}

/// The first address of an interface that is up and not loopback.
fn own_address() -> Option<IpAddr> {
    use nix::net::if_::InterfaceFlags;
    let interfaces = nix::ifaddrs::getifaddrs().ok()?;
    interfaces
        .filter(|i| {
            i.flags.contains(InterfaceFlags::IFF_UP) && !i.flags.contains(InterfaceFlags::IFF_LOOPBACK)
        })
        .find_map(|i| Some(IpAddr::V4(i.address?.as_sockaddr_in()?.ip())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_second_server_does_not_begin_a_cluster_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        let options = NodeOptions {
            role: Role::Server,
            version: "v1.34.1+k3s1".into(),
            flags: vec!["--server=https://10.0.0.1:6443".into(), "--token=t".into()],
            root: root.path().to_owned(),
            hostname: "second".into(),
            address: Some(Ipv4Addr::LOCALHOST.into()),
            only_address: true,
            datastore: Datastore::default(),
        };
        let refused = run(options, || panic!("it serves"), CancellationToken::new()).await.unwrap_err();
        assert!(refused.to_string().contains("cannot join https://10.0.0.1:6443"), "{refused}");
        assert!(!root.path().join("etc/rancher/k3s/k3s.yaml").exists(), "no separate cluster was created");
    }
}
