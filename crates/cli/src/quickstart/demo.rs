//! The demo cluster.

use std::time::Duration;

use anyhow::Context;
use drover_api::provisioning::v1::Cluster;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::output::print_line;

pub(super) const NAME: &str = "demo";
pub(super) const NAMESPACE: &str = "fleet-default";
pub(super) const DEFAULT_VERSION: &str = "v1.34.1+k3s1";
const DEFAULT_MACHINES: u16 = 3;

const POOLS: [&str; 2] = ["control-plane", "worker"];
const KIND_LIMIT: Duration = Duration::from_secs(30);
const KIND_RETRY: Duration = Duration::from_millis(100);

/// The initial properties of the demo cluster. An existing one is not changed.
pub(super) struct Demo {
    pub(super) version: Option<String>,
    pub(super) machines: Option<u16>,
}

impl Demo {
    pub(super) async fn ensure(&self, client: &Client) -> anyhow::Result<()> {
        let clusters: Api<Cluster> = Api::namespaced(client.clone(), NAMESPACE);
        // A cluster that is being deleted is created again afterwards, with its configs.
        while let Some(cluster) = clusters.get_opt(NAME).await? {
            if cluster.metadata.deletion_timestamp.is_none() {
                return Ok(());
            }
            tokio::time::sleep(KIND_RETRY).await;
        }
        for pool in POOLS {
            config(client, &format!("{NAME}-{pool}")).await?;
        }
        let pool = |name: &str, quantity: i32, roles: &[&str]| {
            let mut pool = json!({
                "name": name,
                "quantity": quantity,
                "machineConfigRef": {"kind": "LocalConfig", "name": format!("{NAME}-{name}")},
            });
            for role in roles {
                pool[*role] = json!(true);
            }
            pool
        };
        let cluster = json!({
            "apiVersion": "provisioning.cattle.io/v1", "kind": "Cluster",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {
                "kubernetesVersion": self.version.as_deref().unwrap_or(DEFAULT_VERSION),
                "rkeConfig": {"machinePools": [
                    pool(POOLS[0], 1, &["etcdRole", "controlPlaneRole"]),
                    pool(POOLS[1], i32::from(self.machines.unwrap_or(DEFAULT_MACHINES)) - 1, &["workerRole"]),
                ]},
            },
        });
        let cluster: Cluster = serde_json::from_value(cluster)?;
        match clusters.create(&PostParams::default(), &cluster).await {
            Ok(_) => Ok(()),
            Err(error) if drover_runtime::error::is_already_exists(&error) => Ok(()),
            Err(error) => Err(error).context("the demo cluster cannot be created"),
        }
    }

    /// Reports the state of an existing cluster. The flags only apply to a new one.
    pub(super) async fn report_existing(&self, client: &Client) -> anyhow::Result<()> {
        let clusters: Api<Cluster> = Api::namespaced(client.clone(), NAMESPACE);
        let Some(cluster) = clusters.get_opt(NAME).await? else { return Ok(()) };
        if cluster.metadata.deletion_timestamp.is_some() {
            print_line(&format!("cluster {NAME} is being deleted; it is created again afterwards"));
            return Ok(());
        }
        let pools = cluster.spec.rke_config.iter().flat_map(|config| &config.machine_pools);
        let machines: i32 = pools.map(|pool| pool.quantity.unwrap_or(1)).sum();
        let version = &cluster.spec.kubernetes_version;
        let ignored = |flag: &str, has: &str, field: &str| {
            print_line(&format!(
                "cluster {NAME} already exists with {has}: {flag} has no effect; edit {field} with kubectl"
            ));
        };
        if self.version.as_ref().is_some_and(|asked| asked != version) {
            ignored("--kubernetes-version", version, "spec.kubernetesVersion");
        }
        if self.machines.is_some_and(|asked| i32::from(asked) != machines) {
            ignored("--machines", &format!("{machines} machines"), "spec.rkeConfig.machinePools[].quantity");
        }
        Ok(())
    }
}

/// Creates a LocalConfig. Its kind is generated at run time from the driver's flags, so it may not be served yet.
async fn config(client: &Client, name: &str) -> anyhow::Result<()> {
    let resource = ApiResource {
        group: "rke-machine-config.cattle.io".into(),
        version: "v1".into(),
        api_version: "rke-machine-config.cattle.io/v1".into(),
        kind: "LocalConfig".into(),
        plural: "localconfigs".into(),
    };
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &resource);
    let object = json!({
        "apiVersion": resource.api_version, "kind": resource.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
    });
    let params = PatchParams::apply("drover-quickstart").force();
    let deadline = tokio::time::Instant::now() + KIND_LIMIT;
    loop {
        match api.patch(name, &params, &Patch::Apply(&object)).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 && tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(KIND_RETRY).await;
            }
            Err(error) => return Err(error).context("the local driver's kinds are not served"),
        }
    }
}
