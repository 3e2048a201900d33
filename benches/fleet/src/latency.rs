//! The time from a change of one cluster's spec to its new plan while many other clusters are created.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use drover_api::labels::rke::{CLUSTER_NAME, INIT_NODE};
use drover_api::provisioning::v1::Cluster;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;

use crate::api;
use crate::measure::free_address;
use crate::processes::Process;

const NAMESPACE: &str = "fleet-default";
const NAME: &str = "sim-0001";
const LIMIT: Duration = Duration::from_secs(60);

/// Samples.
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn p95(&self) -> Option<Duration> {
        let mut sorted = self.0.clone();
        sorted.sort();
        sorted.get((sorted.len() * 95).div_ceil(100).checked_sub(1)?).copied()
    }
}

/// Creates one cluster, then `others`, and changes the first one as long as those are created.
pub(crate) async fn while_others_are_created(
    drover: &Path,
    others: usize,
    workers: usize,
) -> anyhow::Result<Samples> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    let mut server = Process::server(drover, dir, &free_address()?)?;
    let (client, _) = api::ready(&mut server, dir, LIMIT).await?;
    let workers = workers.to_string();
    let (one, phases) = Process::fleet(drover, dir, &["--clusters", "1", "--workers", &workers])?;
    phases.next().await?;
    drop(one);
    let all = (others + 1).to_string();
    let (_fleet, phases) = Process::fleet(drover, dir, &["--clusters", &all, "--workers", &workers])?;
    let mut samples = vec![];
    let created = phases.next();
    tokio::pin!(created);
    loop {
        tokio::select! {
            ready = &mut created => {
                ready?;
                return Ok(Samples(samples));
            }
            took = change(&client, samples.len()) => samples.push(took?),
        }
    }
}

/// Changes the additional manifest of the cluster and waits for the new plan of its init node.
async fn change(client: &Client, number: usize) -> anyhow::Result<Duration> {
    let clusters: Api<Cluster> = Api::namespaced(client.clone(), NAMESPACE);
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let init = ListParams::default().labels(&format!("{INIT_NODE}=true,{CLUSTER_NAME}={NAME}"));
    let (name, old, version) = settled(&secrets, &init).await?;
    let watch = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut events = secrets.watch(&watch, &version).await?.boxed();
    let manifest = format!("# change {number}\n");
    let patch = json!({"spec": {"rkeConfig": {"additionalManifest": manifest}}});
    let begun = Instant::now();
    clusters.patch(NAME, &PatchParams::default(), &Patch::Merge(patch)).await?;
    let follow = async {
        while let Some(event) = events.next().await {
            if let WatchEvent::Modified(secret) = event?
                && value(&secret, "plan") != old
            {
                return Ok(());
            }
        }
        bail!("the watch ended")
    };
    tokio::time::timeout(LIMIT, follow).await.context("timed out waiting for a new plan")??;
    Ok(begun.elapsed())
}

/// Waits until the plan of the init node is applied, so that the next change is not held back by the last one.
async fn settled(secrets: &Api<Secret>, init: &ListParams) -> anyhow::Result<(String, Vec<u8>, String)> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let list = secrets.list(init).await?;
        let version = list.metadata.resource_version.clone().unwrap_or_default();
        if let Some(secret) = list.items.first()
            && !value(secret, "plan").is_empty()
            && value(secret, "plan") == value(secret, "appliedPlan")
        {
            return Ok((secret.name_any(), value(secret, "plan"), version));
        }
        if Instant::now() > deadline {
            bail!("timed out waiting for {NAME} to apply its plan");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn value(secret: &Secret, key: &str) -> Vec<u8> {
    secret.data.as_ref().and_then(|data| data.get(key)).map(|value| value.0.clone()).unwrap_or_default()
}
