//! How commands reach the management plane and its clusters.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use drover_api::provisioning::v1::API_VERSION;
use drover_server::external::read_kubeconfig;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::{Client, Config};

use crate::args::{DataDirArg, path_name};

const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Which management plane a command talks to.
#[derive(Args, Clone)]
pub(crate) struct Plane {
    #[command(flatten)]
    data_dir: DataDirArg,
    /// Kubeconfig of the management plane [default: kubeconfig.yaml in the data directory].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<std::path::PathBuf>,
    /// Namespace of the cluster.
    #[arg(short, long, default_value = "fleet-default", value_parser = path_name)]
    pub(crate) namespace: String,
}

impl Plane {
    pub(crate) fn data_dir(&self) -> std::path::PathBuf {
        self.data_dir.path()
    }

    fn kubeconfig(&self) -> std::path::PathBuf {
        self.kubeconfig.clone().unwrap_or_else(|| self.data_dir.path().join("kubeconfig.yaml"))
    }

    /// The server that the kubeconfig names.
    pub(crate) async fn server_url(&self) -> anyhow::Result<String> {
        server_url(&self.kubeconfig()).await
    }

    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        let path = self.kubeconfig();
        if !path.exists() {
            bail!(
                "there is no kubeconfig at {}; start `drover quickstart` or `drover server`, or set --kubeconfig or --data-dir",
                path.display()
            );
        }
        let config = read_kubeconfig(&path).await?;
        let url = shown(&config);
        let client = Client::try_from(config).with_context(|| unusable(&path))?;
        let asked = client.list_api_group_resources(API_VERSION);
        match tokio::time::timeout(ANSWER_LIMIT, asked).await {
            Ok(Ok(_)) => Ok(client),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => bail!(
                "{url} in {} is not a Drover management plane: it does not serve {API_VERSION}; set --kubeconfig or --data-dir to another one",
                path.display()
            ),
            Ok(Err(kube::Error::Api(status))) => {
                bail!("the management plane at {url} rejected {}: {}", path.display(), status.message)
            }
            Ok(Err(error)) => bail!("{}", silent(&url, &root_cause(&error))),
            Err(_) => {
                bail!("{}", silent(&url, &format!("no response within {} s", ANSWER_LIMIT.as_secs())))
            }
        }
    }
}

fn silent(url: &str, why: &str) -> String {
    format!(
        "the management plane at {url} does not answer ({why}); check that `drover server` or `drover quickstart` is running"
    )
}

fn unusable(path: &Path) -> String {
    format!("the kubeconfig {} cannot be used", path.display())
}

/// The innermost error. The layers above it only repeat that a request failed.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// A client from a kubeconfig file.
pub(crate) async fn client(path: &Path) -> anyhow::Result<Client> {
    Client::try_from(read_kubeconfig(path).await?).with_context(|| unusable(path))
}

/// The server that a kubeconfig names.
pub(crate) async fn server_url(path: &Path) -> anyhow::Result<String> {
    Ok(shown(&read_kubeconfig(path).await?))
}

fn shown(config: &Config) -> String {
    config.cluster_url.to_string().trim_end_matches('/').to_owned()
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
