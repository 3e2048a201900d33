//! The controller that finds the Nodes of Machines: provider id and addresses first, then the pool's labels
//! and taints for as long as the Node lives. Too small for rooms of its own: [`nodelookup`] and [`nodesync`] decide.

use drover_access_api::ClusterHandle;
use drover_api::capi::v1beta2 as capi;
use drover_runtime::{Error, Next, ObjectKey, Reconciler};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::nodelookup::{self, GROUPS};
use super::nodesync;
use crate::bootstrap::objects::plan_name;
use crate::context::Context;
use crate::controlplane::planner::render::config::string_list;
use crate::controlplane::planner::runtime::Runtime;
use crate::keys::{annotations, labels};
use crate::plansecret::NodeState;
use crate::store::Writer;

/// Field manager of changes to Nodes.
const NODE_MANAGER: &str = "drover-provisioning";

/// Reconciles one Machine's Node.
pub struct Nodes {
    context: Context,
    writer: Writer,
}

impl Nodes {
    pub fn new(context: &Context) -> Self {
        Self { context: context.clone(), writer: Writer::new(&context.store, "machinenodelookup", "machine") }
    }
}

impl Reconciler for Nodes {
    const NAME: &'static str = "machinenodelookup";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let store = &self.context.store;
        let Some(machine) = store.machines.get(&key) else { return Ok(Next::EVENT) };
        let group = machine.spec.infrastructure_ref.api_group.as_str();
        if machine.metadata.deletion_timestamp.is_some() || !GROUPS.contains(&group) {
            return Ok(Next::EVENT);
        }
        let Some(control_plane) = store.control_planes.get(&key.sibling(&machine.spec.cluster_name)) else {
            return Ok(Next::EVENT);
        };
        // A new connection is an event, and so is every change of a Node.
        let Ok(cluster) = self.context.downstream.cluster(&ObjectKey::of(control_plane.as_ref())) else {
            return Ok(Next::EVENT);
        };
        if let Some(node) = machine.status.as_ref().and_then(|status| status.node_ref.as_ref()) {
            let runtime = Runtime::of_version(&control_plane.spec.kubernetes_version);
            return self.sync(&machine, &cluster, &node.name, runtime).await;
        }
        self.look_up(&machine, &cluster).await
    }
}

impl Nodes {
    async fn look_up(&self, machine: &capi::Machine, cluster: &ClusterHandle) -> Result<Next, Error> {
        let key = ObjectKey::of(machine);
        let created = machine
            .status
            .as_ref()
            .and_then(|status| status.initialization.as_ref()?.bootstrap_data_secret_created)
            .unwrap_or(machine.spec.bootstrap.data_secret_name.is_some());
        let reference = &machine.spec.infrastructure_ref;
        let infra_key = key.sibling(&reference.name);
        let dynamic = &self.context.store.dynamic;
        let Some(resource) = dynamic.resource(&reference.api_group, &reference.kind) else {
            return Ok(Next::EVENT);
        };
        let Some(infra) = dynamic.get(&reference.api_group, &reference.kind, &infra_key).await? else {
            return Ok(Next::EVENT);
        };
        let ready = infra.data["status"]["conditions"]
            .as_array()
            .is_some_and(|list| list.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"));
        let provider_id = infra.data["spec"]["providerID"].as_str().unwrap_or_default();
        if !nodelookup::is_due(created, provider_id, ready) {
            return Ok(Next::EVENT);
        }
        let uid = machine.metadata.uid.as_deref().unwrap_or_default();
        // The first call defines the index.
        cluster.nodes().index_by_label(labels::MACHINE_UID);
        let nodes = cluster.nodes().by_label(labels::MACHINE_UID, "", uid);
        let Some(found) = nodelookup::find(&nodes) else { return Ok(Next::EVENT) };
        let writer = self.writer.dynamic(&resource);
        let addresses = json!({"status": {"addresses": found.addresses}});
        writer.apply_status(&writer.object(&infra_key, addresses), Some(&infra)).await?;
        let mut desired = writer.object(&infra_key, json!({"spec": {"providerID": found.provider_id}}));
        desired.metadata.uid = infra.metadata.uid.clone();
        writer.apply(&desired, Some(&infra)).await?;
        Ok(Next::EVENT)
    }

    /// Labels and taints of the pool go to a living Node through its API: nothing restarts.
    async fn sync(
        &self,
        machine: &capi::Machine,
        cluster: &ClusterHandle,
        node: &str,
        runtime: Runtime,
    ) -> Result<Next, Error> {
        let key = ObjectKey::of(machine);
        let Some(bootstrap) = &machine.spec.bootstrap.config_ref else { return Ok(Next::EVENT) };
        let Some(secret) = self.context.store.secrets.get(&key.sibling(plan_name(&bootstrap.name))) else {
            return Ok(Next::EVENT);
        };
        let note = |key: &str| {
            secret.metadata.annotations.as_ref().and_then(|a| a.get(key)).cloned().unwrap_or_default()
        };
        let wanted = nodesync::Wanted {
            labels: serde_json::from_str(&note(annotations::LABELS)).unwrap_or_default(),
            taints: serde_json::from_str(&note(annotations::TAINTS)).unwrap_or_default(),
            worker: machine.labels().get(labels::WORKER_ROLE).is_some_and(|role| role == "true"),
        };
        let Some(live) = cluster.cached_node(node) else { return Ok(Next::EVENT) };
        // Another machine may have taken the name; its Node is not ours to touch.
        let owner = live.metadata.labels.as_ref().and_then(|l| l.get(labels::MACHINE_UID));
        if owner != machine.metadata.uid.as_ref() {
            return Ok(Next::EVENT);
        }
        let delivered = delivered_labels(&self.context.plans.of(&secret), runtime);
        if let Some(patch) = nodesync::patch(&live, &wanted, &delivered) {
            let sent = cluster.patch_node(NODE_MANAGER, node, patch).await;
            sent.map_err(Error::api(format!("update Node {node}")))?;
        }
        Ok(Next::EVENT)
    }
}

/// Keys of labels that the node registered with.
fn delivered_labels(state: &NodeState, runtime: Runtime) -> Vec<String> {
    let config: Option<Value> =
        state.delivered_file(&runtime.config_file()).and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let list = config.map(|config| string_list(config.get("node-label"))).unwrap_or_default();
    list.iter()
        .filter_map(|pair| pair.split_once('=').map(|(key, _)| key.to_owned()))
        .filter(|key| key != labels::MACHINE_UID)
        .collect()
}
