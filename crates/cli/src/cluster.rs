//! The management plane and its clusters, as commands reach them.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::args::DataDirArg;

/// Which management plane a command talks to.
#[derive(Args, Clone)]
pub(crate) struct Plane {
    #[command(flatten)]
    data_dir: DataDirArg,
    /// Kubeconfig of the management plane [default: kubeconfig.yaml in the data directory].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<std::path::PathBuf>,
    /// Namespace of the cluster.
    #[arg(short, long, default_value = "fleet-default")]
    pub(crate) namespace: String,
}

impl Plane {
    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        let default = || self.data_dir.path().join("kubeconfig.yaml");
        let path = self.kubeconfig.clone().unwrap_or_else(default);
        if !path.exists() {
            bail!(
                "there is no kubeconfig at {}; start `drover quickstart` or `drover server`, or name one with --kubeconfig or --data-dir",
                path.display()
            );
        }
        let client = client(&path).await?;
        let url = server_url(&path)?;
        match tokio::time::timeout(Duration::from_secs(10), client.apiserver_version()).await {
            Ok(Ok(_)) => Ok(client),
            Ok(Err(kube::Error::Api(status))) => {
                bail!("the management plane at {url} refuses {}: {}", path.display(), status.message)
            }
            Ok(Err(error)) => Err(error).with_context(|| silent(&url)),
            Err(_) => bail!("{}", silent(&url)),
        }
    }
}

fn silent(url: &str) -> String {
    format!("the management plane at {url} does not answer; does `drover server` or `drover quickstart` run?")
}

/// A client from a kubeconfig file.
pub(crate) async fn client(path: &Path) -> anyhow::Result<Client> {
    let kubeconfig =
        Kubeconfig::read_from(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// The server that a kubeconfig names.
pub(crate) fn server_url(path: &Path) -> anyhow::Result<String> {
    let kubeconfig = Kubeconfig::read_from(path)?;
    let cluster = kubeconfig.clusters.into_iter().find_map(|named| named.cluster?.server);
    cluster.with_context(|| format!("{} names no server", path.display()))
}

/// The kubeconfig of a downstream cluster, if it has one already.
pub(crate) async fn kubeconfig(
    client: &Client,
    namespace: &str,
    name: &str,
) -> anyhow::Result<Option<String>> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret = secrets.get_opt(&format!("{name}-kubeconfig")).await?;
    let value = secret.and_then(|secret| secret.data?.remove("value"));
    value.map(|value| String::from_utf8(value.0).context("the cluster's kubeconfig is not text")).transpose()
}
