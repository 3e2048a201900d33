//! Copies values from the providers, and orders the deletion of a Cluster. Pure.

use drover_api::capi::v1beta2::FailureDomain;
use drover_api::conditions::reasons;
use kube::{Resource, ResourceExt};

use super::scope::{Scope, is_control_plane};
use crate::contract::ResolveError;
use crate::external::External;
use crate::meta;
use crate::waits::Hold;

/// One of the two objects of a Cluster.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Part {
    /// The infra cluster.
    Infrastructure,
    /// The control plane.
    ControlPlane,
}

/// An object of the Cluster that this controller deletes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Descendant {
    /// Its kind.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: Option<String>,
}

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Add the finalizer, before anything else.
    AddFinalizer,
    /// Set owner and label of a provider's object.
    Own(Part),
    /// Copy the endpoint of the control plane.
    Endpoint {
        /// Host.
        host: String,
        /// Port.
        port: i32,
    },
    /// Delete a descendant.
    DeleteDescendant(Descendant),
    /// Delete a provider's object.
    Delete(Part),
    /// Remove the finalizer of the Cluster.
    RemoveFinalizer,
}

/// The stage of a deletion.
#[derive(Clone, Debug, PartialEq)]
pub enum Stage {
    /// Machines and the objects that create them are being deleted.
    Workers(Vec<String>),
    /// The control plane is being deleted.
    ControlPlane,
    /// The infra cluster is being deleted.
    Infrastructure,
    /// The reference to a provider's object cannot be resolved.
    Blocked(Hold),
    /// Nothing is left.
    Done,
}

impl Stage {
    /// Reason of the `Deleting` condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Workers(_) => reasons::WAITING_FOR_WORKERS_DELETION,
            Self::ControlPlane => reasons::WAITING_FOR_CONTROL_PLANE_DELETION,
            Self::Infrastructure => reasons::WAITING_FOR_INFRASTRUCTURE_DELETION,
            Self::Blocked(_) => reasons::INTERNAL_ERROR,
            Self::Done => reasons::DELETION_COMPLETED,
        }
    }
}

/// The result of a pass, and what the status needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Writes, in order.
    pub actions: Vec<Action>,
    /// The object is paused.
    pub paused: bool,
    /// The infrastructure is provisioned.
    pub infrastructure_provisioned: bool,
    /// The control plane is initialized.
    pub control_plane_initialized: bool,
    /// Failure domains of the infrastructure.
    pub failure_domains: Vec<FailureDomain>,
    /// A failure that is not repaired automatically.
    pub failure: Option<Hold>,
    /// The stage of the deletion.
    pub stage: Option<Stage>,
}

/// Decides one pass.
pub fn decide(scope: &Scope) -> Decision {
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
    if scope.is_deleting() {
        decide_deletion(scope, &mut decision);
        return decision;
    }
    decision.actions.extend([Action::Own(Part::Infrastructure), Action::Own(Part::ControlPlane)]);
    if let Some((host, port)) = endpoint(scope, &decision) {
        decision.actions.push(Action::Endpoint { host, port });
    }
    decision
}

fn copy_from_providers(scope: &Scope) -> Decision {
    let spec = &scope.cluster.spec;
    let live = scope.cluster.status.clone().unwrap_or_default();
    let mut decision = Decision {
        infrastructure_provisioned: scope.was_provisioned(),
        control_plane_initialized: scope.was_initialized(),
        failure_domains: live.failure_domains,
        ..Decision::default()
    };
    match &scope.infra {
        External::Unset if spec.topology.is_none() && !scope.is_deleting() => {
            decision.infrastructure_provisioned = true;
        }
        External::Found { .. } => {
            if let Some(infra) = scope.infra.provided().filter(|infra| infra.provisioned()) {
                decision.infrastructure_provisioned = true;
                decision.failure_domains = infra.failure_domains();
            }
        }
        External::NotFound(_) if scope.was_provisioned() && !scope.is_deleting() => {
            decision.failure = spec.infrastructure_ref.as_ref().map(|infra| Hold::Lost(infra.into()));
        }
        _ => {}
    }
    match &scope.control_plane {
        External::Unset if spec.control_plane_ref.is_none() && spec.topology.is_none() => {
            let joined = |machine: &&std::sync::Arc<drover_api::capi::v1beta2::Machine>| {
                machine.status.as_ref().is_some_and(|status| status.node_ref.is_some())
            };
            decision.control_plane_initialized |=
                scope.control_plane_machines().any(|machine| joined(&machine));
        }
        External::Found { .. } => {
            let initialized = scope.control_plane.provided().is_some_and(|cp| cp.control_plane_initialized());
            decision.control_plane_initialized |= initialized;
        }
        _ => {}
    }
    decision
}

/// The endpoint of the control plane from a provider; copied only if no other one is set.
fn endpoint(scope: &Scope, decision: &Decision) -> Option<(String, i32)> {
    let infra = scope.infra.provided().filter(|_| decision.infrastructure_provisioned);
    let control_plane = scope.control_plane.provided().filter(|_| decision.control_plane_initialized);
    let provided = infra
        .and_then(|infra| infra.control_plane_endpoint())
        .or_else(|| control_plane.and_then(|cp| cp.control_plane_endpoint()))?;
    let present = scope.cluster.spec.control_plane_endpoint.clone().unwrap_or_default();
    let unset = present.host.is_none() && present.port.is_none();
    let same = present.host.as_deref() == Some(provided.0.as_str()) && present.port == Some(provided.1);
    (unset || same).then_some(provided)
}

fn decide_deletion(scope: &Scope, decision: &mut Decision) {
    let own = scope.cluster.uid().unwrap_or_default();
    let core_control_plane = scope.cluster.spec.control_plane_ref.is_none();
    let mut left = Vec::new();
    for deployment in &scope.deployments {
        note("MachineDeployment", &**deployment, true, decision, &mut left);
    }
    for set in &scope.sets {
        let stand_alone = set.metadata.owner_references.iter().flatten().any(|owner| owner.uid == own);
        note("MachineSet", &**set, stand_alone, decision, &mut left);
    }
    for machine in &scope.machines {
        if is_control_plane(machine) && !core_control_plane && !made_by_set(&machine.metadata) {
            // The control plane provider deletes it.
            continue;
        }
        let direct = machine.metadata.owner_references.iter().flatten().any(|owner| owner.uid == own);
        note("Machine", &**machine, direct, decision, &mut left);
    }
    let stage = if left.is_empty() { provider_stage(scope, decision) } else { Stage::Workers(left) };
    if stage == Stage::Done {
        decision.actions.push(Action::RemoveFinalizer);
    }
    decision.stage = Some(stage);
}

fn made_by_set(meta: &kube::api::ObjectMeta) -> bool {
    meta::controller_of(meta).is_some_and(|owner| meta::is_core_owner(owner, "MachineSet"))
}

fn note<K: Resource<DynamicType = ()>>(
    kind: &'static str,
    object: &K,
    own: bool,
    decision: &mut Decision,
    left: &mut Vec<String>,
) {
    left.push(format!("{kind} {}", object.name_any()));
    if own && !meta::is_deleting(object.meta()) {
        let descendant = Descendant { kind, name: object.name_any(), uid: object.uid() };
        decision.actions.push(Action::DeleteDescendant(descendant));
    }
}

/// Deletes the control plane first, then the infrastructure.
fn provider_stage(scope: &Scope, decision: &mut Decision) -> Stage {
    let parts = [
        (Part::ControlPlane, &scope.control_plane, Stage::ControlPlane),
        (Part::Infrastructure, &scope.infra, Stage::Infrastructure),
    ];
    for (part, external, stage) in parts {
        match external {
            External::Unset | External::NotFound(_) => {}
            // Without its CRD, the object does not exist either.
            External::Unresolvable(ResolveError::CrdMissing { .. }) => {}
            External::Unresolvable(error) => return Stage::Blocked(Hold::Unresolvable(error.clone())),
            External::Found { object, .. } => {
                if !meta::is_deleting(&object.metadata) {
                    decision.actions.push(Action::Delete(part));
                }
                return stage;
            }
        }
    }
    Stage::Done
}
