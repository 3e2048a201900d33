//! Reads caches into a [`Scope`].

use std::collections::BTreeMap;
use std::sync::Arc;

use drover_api::capi::v1beta2 as capi;
use drover_api::conditions::types;
use drover_api::finalizers::cattle::RKE_CONTROL_PLANE;
use drover_api::names::safe_concat_name;
use drover_api::rke::v1::RKEControlPlane;
use drover_api::secret_types;
use drover_runtime::{Error, ObjectKey};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::ObjectMeta;

use super::machineconditions::{MachineCondition, MachineConditions, TYPES};
use super::manifest;
use super::planner::entry::{CUSTOM_MACHINE, Entry, MachineView};
use super::planner::render::selector_files::{self, FileObject, FileObjects};
use super::planner::render::{Tokens, addresses};
use super::repairs::Repairs;
use super::scope::{CapiCluster, Scope, StateSecret};
use crate::bootstrap::objects::plan_name;
use crate::conditions as generic;
use crate::context::Context;
use crate::init::twin::DEFAULT_TOKEN;
use crate::init::twin::token::secret_name;
use crate::keys::{annotations, conditions, labels};
use crate::owner::owner_name;
use crate::selectors::require_read;
use crate::store::Store;

/// Name of the secret with a cluster's join tokens.
pub fn state_secret_name(cluster: &str) -> String {
    safe_concat_name(&[cluster, "rke", "state"])
}

/// Group of infra machines that a driver makes.
pub const DRIVER_GROUP: &str = "rke-machine.cattle.io";

/// Name of the secret in which the driver saves the addresses of an infra machine.
pub fn address_secret_name(infra: &str) -> String {
    safe_concat_name(&[infra, "machine", "state"])
}

/// The scope of one pass.
pub fn scope(context: &Context, repairs: &Repairs, control_plane: &RKEControlPlane) -> Scope {
    let store = &context.store;
    let key = ObjectKey::of(control_plane);
    let cluster = owner_name(&control_plane.metadata, "cluster.x-k8s.io", "Cluster")
        .and_then(|name| store.capi_cluster(&key.namespace, name));
    let mut entries = Vec::new();
    let mut machine_addresses = BTreeMap::new();
    if let Some(cluster) = &cluster {
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        for machine in store.machines.by_label(labels::capi::CLUSTER_NAME, &key.namespace, name) {
            let Some(mut view) = machine_view(&machine) else { continue };
            let is_set =
                |notes: &BTreeMap<String, String>, key: &str| notes.get(key).is_some_and(|v| v == "true");
            let bootstrap = store.bootstraps.get(&key.sibling(&view.bootstrap_name));
            view.force_removal = is_set(machine.annotations(), annotations::capi::EXCLUDE_NODE_DRAINING)
                && bootstrap.is_none_or(|b| is_set(b.annotations(), annotations::ETCD_FORCE_REMOVE));
            let secret = store
                .secrets
                .get(&key.sibling(plan_name(&view.bootstrap_name)))
                .filter(|secret| secret.type_.as_deref() == Some(secret_types::MACHINE_PLAN));
            if view.infrastructure_group == DRIVER_GROUP {
                let state = address_secret_name(&view.infrastructure_name);
                let saved = store.secrets.get(&key.sibling(state));
                if let Some(found) = saved.and_then(|secret| addresses::from_state_secret(&secret)) {
                    machine_addresses.insert(view.infrastructure_name.clone(), found);
                }
            }
            let node = secret.as_ref().map(|secret| context.plans.of(secret));
            let repair_after = secret.as_ref().and_then(|secret| repairs.pause(secret, context.now()));
            entries.push(Entry { repair_after, ..Entry::new(view, secret, node) });
        }
        entries.sort_by(|a, b| a.name().cmp(b.name()));
    }
    let management_name = &control_plane.spec.management_cluster_name;
    let token = store
        .secrets
        .get(&ObjectKey::new(management_name, secret_name(DEFAULT_TOKEN)))
        .and_then(|secret| text(&secret, "token"));
    let twin = store.twins.get(&ObjectKey::cluster(management_name));
    let connected = twin
        .as_ref()
        .and_then(|twin| twin.status.as_ref())
        .is_some_and(|status| generic::is_true(&status.conditions, conditions::CONNECTED));
    let settings = context.settings.now();
    let note = |key: &str| control_plane.metadata.annotations.as_ref().and_then(|a| a.get(key)).cloned();
    let label = |key: &str| control_plane.metadata.labels.as_ref().and_then(|l| l.get(key)).cloned();
    Scope {
        generation: control_plane.metadata.generation.unwrap_or_default(),
        has_finalizer: control_plane.finalizers().iter().any(|name| name == RKE_CONTROL_PLANE),
        designated_init_node: label(labels::INIT_NODE_MACHINE_ID).unwrap_or_default(),
        cluster_spec_annotation: note(annotations::CLUSTER_SPEC).unwrap_or_default(),
        paused: note(annotations::capi::PAUSED).is_some(),
        spec: control_plane.spec.clone(),
        status: control_plane.status.clone().unwrap_or_default(),
        cluster: cluster.map(|cluster| CapiCluster {
            name: cluster.metadata.name.clone().unwrap_or_default(),
            deleting: cluster.metadata.deletion_timestamp.is_some(),
            paused: cluster.spec.paused.unwrap_or(false),
            infrastructure_provisioned: cluster
                .status
                .as_ref()
                .and_then(|status| status.initialization.as_ref()?.infrastructure_provisioned)
                .unwrap_or(false),
        }),
        entries,
        state_secret: state_secret(store.secrets.get(&key.sibling(state_secret_name(&key.name))).as_deref()),
        releases: context.releases.clone(),
        machine_addresses,
        file_objects: file_objects(context, &key, control_plane),
        cluster_agent_manifest: token
            .map(|token| manifest::cluster_agent(&settings, management_name, &token)),
        settings,
        connected,
        namespace: key.namespace,
        name: key.name,
    }
}

/// An error while an object that files come from has not been read: until then it is not known to be missing.
pub fn require_files(store: &Store, control_plane: &RKEControlPlane) -> Result<(), Error> {
    let key = ObjectKey::of(control_plane);
    for (kind, source) in selector_files::references(&control_plane.spec) {
        let key = [key.sibling(&source.name)];
        match kind {
            "Secret" => require_read(&store.secrets, key)?,
            _ => require_read(&store.config_maps, key)?,
        }
    }
    Ok(())
}

/// The objects that files are to come from; those that are not there are left out.
fn file_objects(context: &Context, key: &ObjectKey, control_plane: &RKEControlPlane) -> FileObjects {
    let store = &context.store;
    let references = selector_files::references(&control_plane.spec);
    let found = references.filter_map(|(kind, source)| {
        let key = key.sibling(&source.name);
        let object = if kind == "Secret" {
            let secret = store.secrets.get(&key)?;
            let data = secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone()));
            FileObject { authorized_for: authorized_for(&secret.metadata), data: data.collect() }
        } else {
            let map = store.config_maps.get(&key)?;
            let texts = map.data.iter().flatten().map(|(key, text)| (key.clone(), text.clone().into_bytes()));
            let bytes = map.binary_data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone()));
            FileObject { authorized_for: authorized_for(&map.metadata), data: texts.chain(bytes).collect() }
        };
        Some(((kind, source.name.clone()), object))
    });
    found.collect()
}

/// The clusters that may have an object's content.
pub fn authorized_for(meta: &ObjectMeta) -> Vec<String> {
    let named = meta.annotations.as_ref().and_then(|notes| notes.get(annotations::AUTHORIZED_FOR_CLUSTERS));
    let names = named.into_iter().flat_map(|names| names.split(','));
    names.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

fn state_secret(secret: Option<&Secret>) -> StateSecret {
    match secret {
        None => StateSecret::Missing,
        Some(secret) if secret.type_.as_deref() != Some(drover_api::secret_types::CLUSTER_STATE) => {
            StateSecret::Foreign(secret.type_.clone().unwrap_or_default())
        }
        Some(secret) => StateSecret::Found(Tokens {
            server: text(secret, "serverToken").unwrap_or_default(),
            agent: text(secret, "agentToken").unwrap_or_default(),
        }),
    }
}

/// A data key as text, if it says something.
pub fn text(secret: &Secret, key: &str) -> Option<String> {
    let value = secret.data.as_ref()?.get(key)?;
    String::from_utf8(value.0.clone()).ok().filter(|text| !text.is_empty())
}

/// The Machine that a plan secret is of. The secret names it in a label, which its holder may be able to change; so the
/// Machine must name the secret too.
pub fn machine_of(store: &Store, secret: &Secret) -> Option<Arc<capi::Machine>> {
    let name = secret.metadata.labels.as_ref()?.get(labels::MACHINE_NAME)?;
    let machine = store.machines.get(&ObjectKey::of(secret).sibling(name))?;
    let bootstrap = machine.spec.bootstrap.config_ref.as_ref()?;
    (Some(plan_name(&bootstrap.name)) == secret.metadata.name).then_some(machine)
}

/// The Machine as the planner sees it; none if it is not bootstrapped by us.
pub fn machine_view(machine: &capi::Machine) -> Option<MachineView> {
    let bootstrap =
        machine.spec.bootstrap.config_ref.as_ref().filter(|config| config.kind == "RKEBootstrap")?;
    let status = machine.status.clone().unwrap_or_default();
    let condition = |type_: &str| status.conditions.iter().find(|condition| condition.type_ == type_);
    let addresses = |type_: &str| -> Vec<String> {
        status.addresses.iter().filter(|a| a.type_ == type_).map(|a| a.address.clone()).collect()
    };
    let not_ready = match condition("Ready") {
        Some(ready) if ready.status != "True" => Some(one_line(&ready.message)),
        None if status.node_ref.is_none() => Some("waiting for its node".to_owned()),
        _ => None,
    };
    Some(MachineView {
        namespace: machine.metadata.namespace.clone().unwrap_or_default(),
        name: machine.metadata.name.clone().unwrap_or_default(),
        uid: machine.metadata.uid.clone().unwrap_or_default(),
        labels: machine.metadata.labels.clone().unwrap_or_default(),
        deleting: machine.metadata.deletion_timestamp.is_some(),
        phase: status.phase.clone().unwrap_or_default(),
        infrastructure_ready: condition("InfrastructureReady").is_some_and(|c| c.status == "True"),
        internal_ips: addresses("InternalIP"),
        external_ips: addresses("ExternalIP"),
        kubelet_version: status.node_info.as_ref().map(|info| info.kubelet_version.clone()),
        node_ref: status.node_ref.as_ref().map(|node| node.name.clone()),
        bootstrap_name: bootstrap.name.clone(),
        infrastructure_group: machine.spec.infrastructure_ref.api_group.clone(),
        infrastructure_kind: machine.spec.infrastructure_ref.kind.clone(),
        infrastructure_name: machine.spec.infrastructure_ref.name.clone(),
        failure: status
            .deprecated
            .as_ref()
            .and_then(|deprecated| deprecated.v1beta1.as_ref()?.failure_message.clone())
            .map(|message| one_line(&message)),
        not_ready,
        version: machine.spec.version.clone(),
        force_removal: false,
        conditions: machine_conditions(machine),
    })
}

/// The conditions that the planner sets, as they are. Whether a Machine of a pool is up to date is Cluster API's to say.
pub fn machine_conditions(machine: &capi::Machine) -> MachineConditions {
    let custom = machine.spec.infrastructure_ref.kind == CUSTOM_MACHINE;
    let all = machine.status.iter().flat_map(|status| &status.conditions);
    let own = all.filter_map(|condition| {
        let type_ = TYPES.into_iter().find(|type_| *type_ == condition.type_)?;
        let live = MachineCondition {
            status: condition.status.clone(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            since: condition.last_transition_time.0,
        };
        (custom || type_ != types::UP_TO_DATE).then_some((type_, live))
    });
    own.collect()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
