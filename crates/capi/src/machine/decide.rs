//! The decision about a Machine. Pure.

use drover_api::capi::v1beta2::MachineAddress;
use drover_api::labels::capi as labels;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::deletion::{self, Stage};
use super::drain::PodKey;
use super::node;
use super::scope::{NodeView, Scope};
use crate::external::External;
use crate::meta;
use crate::waits::Hold;

/// One of the two objects of a Machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Part {
    /// The bootstrap config.
    Bootstrap,
    /// The infra machine.
    Infrastructure,
}

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Add the finalizer, before anything else.
    AddFinalizer,
    /// Apply labels, owner and the fields copied from the providers (a partial Machine).
    Apply(Value),
    /// Make the Machine the controller of one of its objects, and label it.
    Adopt(Part),
    /// Copy labels, annotations and taints to the Node.
    PatchNode {
        /// The Node.
        name: String,
        /// A merge patch with a resourceVersion.
        patch: Value,
    },
    /// Cordon the Node.
    Cordon(String),
    /// Evict pods.
    Evict {
        /// The pods.
        pods: Vec<PodKey>,
        /// Grace period, if not their own.
        grace_seconds: Option<u32>,
    },
    /// Delete one of the Machine's objects.
    Delete(Part),
    /// Delete the Node.
    DeleteNode(String),
    /// Remove the finalizer of the Machine.
    RemoveFinalizer,
}

/// The result of a pass, and what the status needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Writes, in order.
    pub actions: Vec<Action>,
    /// Repeat after this time, if no event comes first.
    pub next: Option<SignedDuration>,
    /// The object is paused.
    pub paused: bool,
    /// The bootstrap data exists.
    pub data_secret_created: bool,
    /// The Secret with the bootstrap data.
    pub data_secret_name: Option<String>,
    /// The server is provisioned.
    pub infrastructure_provisioned: bool,
    /// Its provider id.
    pub provider_id: Option<String>,
    /// Its addresses.
    pub addresses: Vec<MachineAddress>,
    /// Its failure domain.
    pub failure_domain: Option<String>,
    /// Its Node.
    pub node_name: Option<String>,
    /// A failure that is not repaired automatically.
    pub failure: Option<Hold>,
    /// The stage of the deletion.
    pub stage: Option<Stage>,
}

/// Decides one pass.
pub fn decide(scope: &Scope, now: Timestamp) -> Decision {
    let mut decision = copy_from_providers(scope);
    if !scope.has_finalizer() {
        if !scope.is_deleting() {
            decision.actions.push(Action::AddFinalizer);
        }
        return decision;
    }
    if scope.is_paused() {
        decision.paused = true;
        return decision;
    }
    decision.actions.extend(desired_machine(scope, &decision).map(Action::Apply));
    for (part, external) in [(Part::Bootstrap, &scope.bootstrap), (Part::Infrastructure, &scope.infra)] {
        if external.object().is_some_and(|object| !is_adopted(scope, object)) {
            decision.actions.push(Action::Adopt(part));
        }
    }
    if scope.is_deleting() {
        decide_deletion(scope, now, &mut decision);
    } else if let NodeView::Found(node) = &scope.node
        && let Some(patch) = node::patch(&scope.machine, node)
    {
        decision.actions.push(Action::PatchNode { name: node.name_any(), patch });
    }
    decision
}

fn decide_deletion(scope: &Scope, now: Timestamp, decision: &mut Decision) {
    let (stage, next) = deletion::stage(scope, now);
    match &stage {
        Stage::Draining { node, cordon, plan } => {
            if *cordon {
                decision.actions.push(Action::Cordon(node.clone()));
            }
            if !plan.evict.is_empty() {
                decision
                    .actions
                    .push(Action::Evict { pods: plan.evict.clone(), grace_seconds: plan.grace_seconds });
            }
        }
        Stage::Infrastructure { delete: true } => decision.actions.push(Action::Delete(Part::Infrastructure)),
        Stage::Bootstrap { delete: true } => decision.actions.push(Action::Delete(Part::Bootstrap)),
        Stage::Node(name) => decision.actions.push(Action::DeleteNode(name.clone())),
        Stage::Done => decision.actions.push(Action::RemoveFinalizer),
        _ => {}
    }
    decision.next = next;
    decision.stage = Some(stage);
}

/// Reads the providers' objects. Values that were true stay true.
fn copy_from_providers(scope: &Scope) -> Decision {
    let machine = &scope.machine;
    let status = machine.status.clone().unwrap_or_default();
    let mut decision = Decision {
        data_secret_created: scope.had_data_secret(),
        data_secret_name: machine.spec.bootstrap.data_secret_name.clone(),
        infrastructure_provisioned: scope.was_provisioned(),
        provider_id: machine.spec.provider_id.clone(),
        addresses: status.addresses,
        failure_domain: status.failure_domain,
        node_name: status.node_ref.map(|node| node.name),
        ..Decision::default()
    };
    if let Some(bootstrap) = scope.bootstrap.provided()
        && bootstrap.data_secret_created()
    {
        match bootstrap.data_secret_name() {
            Some(name) => {
                decision.data_secret_name.get_or_insert(name);
                decision.data_secret_created = true;
            }
            None => {
                let config = machine.spec.bootstrap.config_ref.as_ref();
                decision.failure = config.map(|config| Hold::NoDataSecret(config.into()));
            }
        }
    }
    match &scope.infra {
        External::Found { .. } => {
            if let Some(infra) = scope.infra.provided().filter(|infra| infra.provisioned())
                && let Some(provider_id) = infra.provider_id()
            {
                decision.provider_id = Some(provider_id);
                decision.infrastructure_provisioned = true;
                decision.addresses = infra.addresses();
                decision.failure_domain = infra.failure_domain();
            }
        }
        External::NotFound(_) if scope.was_provisioned() && !scope.is_deleting() => {
            decision.failure = Some(Hold::Lost((&machine.spec.infrastructure_ref).into()));
        }
        _ => {}
    }
    if decision.node_name.is_none()
        && let NodeView::Found(node) = &scope.node
    {
        decision.node_name = Some(node.name_any());
    }
    decision
}

/// The fields of the Machine that this controller owns; `None` while that is only the label that its set has created.
fn desired_machine(scope: &Scope, decision: &Decision) -> Option<Value> {
    let machine = &scope.machine;
    let labelled =
        meta::label(&machine.metadata, labels::CLUSTER_NAME) == Some(machine.spec.cluster_name.as_str());
    let mut spec = json!({});
    if let Some(provider_id) = &decision.provider_id {
        spec["providerID"] = json!(provider_id);
    }
    if let (Some(name), Some(_)) = (&decision.data_secret_name, &machine.spec.bootstrap.config_ref) {
        spec["bootstrap"] = json!({ "dataSecretName": name });
    }
    let mut metadata = json!({
        "name": machine.name_any(),
        "namespace": machine.namespace(),
        "labels": { labels::CLUSTER_NAME: machine.spec.cluster_name },
    });
    if let Some(cluster) = &scope.cluster
        && is_stand_alone(scope)
    {
        metadata["ownerReferences"] = json!([meta::owner_reference(&**cluster, false)]);
    }
    let mut desired = json!({
        "apiVersion": drover_api::capi::v1beta2::API_VERSION,
        "kind": "Machine",
        "metadata": metadata,
    });
    if spec != json!({}) {
        desired["spec"] = spec;
    } else if labelled && !is_stand_alone(scope) {
        return None;
    }
    Some(desired)
}

/// Whether no other object manages the Machine, so that the Cluster owns it.
fn is_stand_alone(scope: &Scope) -> bool {
    let meta = &scope.machine.metadata;
    let managed = [labels::SET_NAME, labels::POOL_NAME, labels::CONTROL_PLANE_NAME];
    meta::controller_of(meta).is_none() && managed.iter().all(|key| meta::label(meta, key).is_none())
}

fn is_adopted(scope: &Scope, object: &DynamicObject) -> bool {
    let machine = &scope.machine;
    let label =
        meta::label(&object.metadata, labels::CLUSTER_NAME) == Some(machine.spec.cluster_name.as_str());
    label && object.metadata.owner_references.as_deref() == Some(&desired_owners(scope, object)[..])
}

/// The object's owners with the Machine as the only controller; a set or control plane is removed as controller.
pub fn desired_owners(
    scope: &Scope,
    object: &DynamicObject,
) -> Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference> {
    let reference = meta::owner_reference(&scope.machine, true);
    let maker = meta::controller_of(&scope.machine.metadata);
    let mut owners: Vec<_> = object.metadata.owner_references.clone().unwrap_or_default();
    let at = owners.iter().position(|owner| meta::same_owner(owner, &reference));
    match at {
        Some(at) => owners[at] = reference,
        None => owners.push(reference),
    }
    owners.retain(|owner| {
        meta::is_core_owner(owner, "Machine")
            || !(meta::is_core_owner(owner, "MachineSet")
                || maker.is_some_and(|maker| meta::same_owner(owner, maker)))
    });
    owners
}
