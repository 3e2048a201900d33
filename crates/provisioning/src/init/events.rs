//! Events of a provisioning Cluster. Pure. The events of upgrades come from the planner, which carries them out.

use drover_api::capi::v1beta2::MachineDeployment;
use drover_api::provisioning::v1::{Cluster, ClusterStatus, RKEMachinePool};
use drover_runtime::events::Note;
use kube::ResourceExt;

use super::decide::Action;
use super::pools::deployment_name;
use super::pools::scale::{applied_quantity, quantity_text};
use super::removal::decide::Step;
use super::scope::Scope;
use crate::conditions::{self as generic, FALSE, TRUE, UNKNOWN};
use crate::keys::conditions as types;

/// What changed between the status as it was and as it will be.
pub fn of_status(cluster: &Cluster, next: &ClusterStatus) -> Vec<Note> {
    let live = cluster.status.clone().unwrap_or_default();
    let mut notes = Vec::new();
    let changed = |type_: &str| {
        let (was, is) = (generic::get(&live.conditions, type_), generic::get(&next.conditions, type_)?);
        let same = was.is_some_and(|was| was.status == is.status && was.message == is.message);
        (!same).then(|| (was.map(|was| was.status.as_str()).unwrap_or_default(), is))
    };
    if let Some((was, made)) = changed(types::RKE_CLUSTER) {
        match made.status.as_str() {
            TRUE if was == FALSE => {
                notes.push(Note::normal("Accepted", "The specification can be worked with now"))
            }
            // The status shows it.
            TRUE => {}
            FALSE => notes.push(Note::warning("InvalidSpec", &made.message)),
            _ => notes.push(Note::normal("Waiting", &made.message).if_it_lasts()),
        }
    }
    if let Some((_, accepted)) = changed(types::CONFIG_ACCEPTED).filter(|(_, c)| c.status == FALSE) {
        notes.push(Note::warning("NotInEffect", &accepted.message));
    }
    if next.ready && !live.ready {
        notes.push(Note::normal("Connected", "The cluster answers through its tunnel"));
    }
    let refused = generic::get(&next.conditions, types::RKE_CLUSTER).is_some_and(|c| c.status == FALSE);
    match changed(types::READY) {
        Some((was, ready)) if ready.status == TRUE && was != TRUE => {
            notes.push(Note::normal("Ready", "Every machine is configured as the specification says"));
        }
        // A rejected specification is reported above.
        Some((_, ready)) if ready.status == FALSE && !refused => {
            notes.push(Note::warning("Error", &ready.message));
        }
        // The waits of the RKEControlPlane are reported in its own events and in the provisioning log.
        Some((TRUE, ready)) if ready.status == UNKNOWN => {
            notes.push(Note::normal("Reconciling", &ready.message));
        }
        _ => {}
    }
    notes
}

/// A pool that came, or whose number of machines changed.
pub fn of_pool(live: Option<&MachineDeployment>, pool: &RKEMachinePool) -> Option<Note> {
    let name = &pool.name;
    let Some(live) = live else {
        let machines = pool.quantity.unwrap_or(1);
        return Some(Note::normal("PoolAdded", format!("Pool {name} gets {machines} machine(s)")));
    };
    let applied = applied_quantity(live);
    let number = |text: &str| if text.is_empty() { "1".to_owned() } else { text.to_owned() };
    // Where nothing is noted the deployment was made just now.
    let (old, new) = (number(applied?), number(&quantity_text(pool.quantity)));
    if old == new {
        return None;
    }
    // Reported when the new quantity is recorded, which happens once, for a change of the pool and of the MachineDeployment.
    let followed = live.spec.replicas.is_some_and(|replicas| replicas.to_string() == new);
    let how = if followed { " follows its MachineDeployment, which was scaled" } else { "" };
    Some(Note::normal("PoolScaled", format!("Pool {name}{how}: {old} -> {new} machine(s)")))
}

/// A pool that is no longer there.
pub fn pool_removed(deployment: &str) -> Note {
    Note::normal(
        "PoolRemoved",
        format!("Deleted MachineDeployment {deployment}, whose pool is no longer there"),
    )
}

/// What an action did.
pub fn done(scope: &Scope, action: &Action) -> Option<Note> {
    match action {
        Action::ApplyDeployment(deployment) => {
            let name = deployment.metadata.name.as_deref();
            let is_its = |pool: &&RKEMachinePool| {
                Some(deployment_name(&scope.cluster.name_any(), &pool.name).as_str()) == name
            };
            let pool = scope.pools().iter().find(is_its)?;
            // Its first pools are in the specification of a new cluster.
            let is_added = scope.was_ready() && scope.deployment_of(pool).is_none();
            is_added.then(|| of_pool(None, pool)).flatten()
        }
        Action::Scale(pool) => of_pool(scope.deployment_of(pool).map(AsRef::as_ref), pool),
        Action::DeleteDeployment(name) => Some(pool_removed(name)),
        _ => None,
    }
}

/// A step of a removal, unless the Cluster reports it already.
pub fn of_removal(cluster: &Cluster, step: &Step, id: &str) -> Option<Note> {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let message = match step {
        Step::Done => return Some(Note::normal("Deleted", "Nothing is left of the cluster")),
        Step::Wait(blocked) => {
            let message = blocked.to_string();
            let status = cluster.status.as_ref();
            let shown = status.and_then(|status| generic::get(&status.conditions, types::REMOVED));
            if shown.is_some_and(|shown| shown.message == message) {
                return None;
            }
            message
        }
        Step::MarkNamespace => return None,
        Step::DeleteTwin => format!("deleting management cluster [{id}]"),
        Step::DeleteCapiCluster => format!("deleting cluster-api cluster [{name}] with its machines"),
        Step::DeleteGenerated => "deleting templates that are left".to_owned(),
        Step::DeleteManagementNamespace => format!("deleting namespace [{id}]"),
        Step::DeleteKubeconfig => "deleting the cluster's kubeconfig".to_owned(),
    };
    Some(Note::normal("Deleting", message))
}
