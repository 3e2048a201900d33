//! Reads values from the server.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use drover_api::provisioning::v1::Cluster;
use futures::{StreamExt, stream};
use kube::api::{Api, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::processes::Process;

pub(crate) const LABEL: &str = "drover.io/sim-fleet=true";
const LOOK: Duration = Duration::from_millis(20);
const RETRY_LIMIT: Duration = Duration::from_secs(10);

pub(crate) async fn client(dir: &Path) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::read_from(dir.join("kubeconfig.yaml"))?;
    Ok(Client::try_from(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)?)
}

pub(crate) async fn get(client: &Client, path: &str) -> anyhow::Result<String> {
    Ok(client.request_text(http::Request::get(path).body(vec![])?).await?)
}

/// Waits until the server is ready, and says how long that took.
pub(crate) async fn ready(
    server: &mut Process,
    dir: &Path,
    limit: Duration,
) -> anyhow::Result<(Client, Duration)> {
    let begun = Instant::now();
    loop {
        server.alive()?;
        if dir.join("kubeconfig.yaml").exists()
            && let Ok(client) = client(dir).await
            && get(&client, "/readyz").await.is_ok()
        {
            return Ok((client, begun.elapsed()));
        }
        if begun.elapsed() > limit {
            bail!("the server is not ready after {} s", limit.as_secs());
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The store's revision, which increases with every write.
pub(crate) async fn revision(client: &Client) -> anyhow::Result<u64> {
    let list: serde_json::Value = serde_json::from_str(&get(client, "/api/v1/namespaces?limit=1").await?)?;
    let revision = list["metadata"]["resourceVersion"].as_str().and_then(|revision| revision.parse().ok());
    revision.context("the list has no revision")
}

/// Read requests, counted by the server; none if it has no metrics.
pub(crate) async fn reads(client: &Client) -> Option<f64> {
    let text = get(client, "/metrics").await.ok()?;
    let reading = ["verb=\"GET\"", "verb=\"LIST\""];
    let lines = text.lines().filter(|line| line.starts_with("apiserver_request_total{"));
    let reads = lines.filter(|line| reading.iter().any(|verb| line.contains(verb)));
    Some(reads.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
}

/// Bytes of the store's files.
pub(crate) fn stored(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir.join("db")).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|meta| meta.len()).sum()
}

/// The clusters of the fleet. Right after a restart, thousands of agents connect at once, and a connection may be refused.
pub(crate) async fn clusters(client: &Client) -> anyhow::Result<Vec<Cluster>> {
    let all: Api<Cluster> = Api::all(client.clone());
    let params = ListParams::default().labels(LABEL);
    let begun = Instant::now();
    loop {
        match all.list(&params).await {
            Err(kube::Error::HyperError(_) | kube::Error::Service(_)) if begun.elapsed() < RETRY_LIMIT => {
                tokio::time::sleep(LOOK).await;
            }
            listed => return Ok(listed?.items),
        }
    }
}

/// Waits until every cluster is connected through its tunnel; returns how many were not Ready in the meantime.
pub(crate) async fn all_answer(client: &Client, limit: Duration) -> anyhow::Result<(Duration, usize)> {
    let begun = Instant::now();
    let mut waiting: Vec<String> = vec![];
    let mut not_ready = 0;
    for cluster in clusters(client).await? {
        let status = cluster.status.unwrap_or_default();
        let ready = status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
        not_ready += usize::from(!ready);
        waiting.push(status.cluster_name);
    }
    while !waiting.is_empty() {
        if begun.elapsed() > limit {
            bail!("{} clusters do not answer after {} s", waiting.len(), limit.as_secs());
        }
        let asked = stream::iter(waiting).map(|id| async move {
            let answered = get(client, &format!("/k8s/clusters/{id}/version")).await.is_ok();
            (!answered).then_some(id)
        });
        waiting = asked.buffer_unordered(16).filter_map(|id| async move { id }).collect().await;
        if !waiting.is_empty() {
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }
    Ok((begun.elapsed(), not_ready))
}
