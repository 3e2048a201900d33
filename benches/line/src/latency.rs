//! Measures the time from a change of a cluster's spec to the new plan.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use drover_api::labels::rke::INIT_NODE;
use drover_api::provisioning::v1::Cluster;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;

const NAMESPACE: &str = "fleet-default";
const NAME: &str = "demo";
const LIMIT: Duration = Duration::from_secs(60);

/// Repeatedly changes the demo cluster's additional manifest and waits for the new plan of the init node.
pub(crate) async fn spec_change_to_plan(client: &Client, samples: usize) -> anyhow::Result<Vec<Duration>> {
    let clusters: Api<Cluster> = Api::namespaced(client.clone(), NAMESPACE);
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let init = ListParams::default().labels(&format!("{INIT_NODE}=true"));
    let mut took = vec![];
    for number in 0..samples {
        settled(client).await?;
        let list = secrets.list(&init).await?;
        let secret = list.items.first().context("there is no init node")?;
        let (name, old) = (secret.name_any(), plan(secret).to_owned());
        let watch = WatchParams::default().fields(&format!("metadata.name={name}"));
        let version = list.metadata.resource_version.clone().unwrap_or_default();
        let mut events = secrets.watch(&watch, &version).await?.boxed();
        let manifest = format!("# change {number}\n");
        let patch = json!({"spec": {"rkeConfig": {"additionalManifest": manifest}}});
        let begun = Instant::now();
        clusters.patch(NAME, &PatchParams::default(), &Patch::Merge(patch)).await?;
        let follow = async {
            while let Some(event) = events.next().await {
                if let WatchEvent::Modified(secret) = event?
                    && plan(&secret) != old
                {
                    return Ok(());
                }
            }
            bail!("the watch ended")
        };
        tokio::time::timeout(LIMIT, follow).await.context("no new plan")??;
        took.push(begun.elapsed());
    }
    Ok(took)
}

fn plan(secret: &Secret) -> &[u8] {
    secret.data.as_ref().and_then(|data| data.get("plan")).map_or(&[], |plan| &plan.0)
}

/// Waits until the cluster is Ready and its newest spec was observed.
pub(crate) async fn settled(client: &Client) -> anyhow::Result<()> {
    let clusters: Api<Cluster> = Api::namespaced(client.clone(), NAMESPACE);
    let deadline = Instant::now() + LIMIT;
    loop {
        let cluster = clusters.get(NAME).await?;
        let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
        if conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
            && plans_applied(client).await?
        {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("the cluster did not settle");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn plans_applied(client: &Client) -> anyhow::Result<bool> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let plans = ListParams::default().fields("type=rke.cattle.io/machine-plan");
    let list = secrets.list(&plans).await?;
    Ok(list.items.iter().all(|secret| {
        let data = secret.data.as_ref();
        let of = |key: &str| data.and_then(|data| data.get(key)).map(|value| value.0.as_slice());
        of("plan") == of("appliedPlan")
    }))
}
