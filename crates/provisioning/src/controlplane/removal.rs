//! The deletion of an RKEControlPlane: its custom machines are deleted, every control plane machine is waited for, then the
//! finalizer is removed. Too small for rooms of its own: everything but the writes is pure.

use drover_api::capi::v1beta2 as capi;
use drover_api::finalizers::cattle::RKE_CONTROL_PLANE;
use drover_api::rke::v1::{RKEControlPlane, RKEControlPlaneStatus};
use drover_runtime::events::Note;
use drover_runtime::{Error, Next, ObjectKey};
use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;

use super::Planner;
use super::SAFETY;
use super::planner::entry::CUSTOM_MACHINE;
use crate::conditions as generic;
use crate::init::removal::block_of;
use crate::init::waits::{Blocked, MachineBlock};
use crate::keys::{conditions, labels};
use crate::store::status_of;

/// A control plane machine that is still there.
#[derive(Clone, Debug)]
pub struct Remaining {
    pub name: String,
    /// Only this controller deletes a machine that a person brought; those of pools are deleted with their pool.
    pub custom: bool,
    pub deleting: bool,
    pub block: MachineBlock,
}

/// What a deletion does next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Action {
    DeleteMachine(String),
    RemoveFinalizer,
}

/// Decides, from the machines that are left.
pub fn decide(remaining: &[Remaining]) -> Vec<Action> {
    if remaining.is_empty() {
        return vec![Action::RemoveFinalizer];
    }
    let own = remaining.iter().filter(|machine| machine.custom && !machine.deleting);
    own.map(|machine| Action::DeleteMachine(machine.name.clone())).collect()
}

/// The status while machines are left.
pub fn status(
    live: &RKEControlPlaneStatus,
    remaining: &[Remaining],
    error: Option<&str>,
    now: Timestamp,
) -> RKEControlPlaneStatus {
    let mut next = live.clone();
    for type_ in [conditions::WAITING, conditions::PENDING, conditions::UPDATED, conditions::PROVISIONED] {
        generic::set(&mut next.conditions, type_, generic::TRUE, "", "", now);
    }
    let (value, reason, message) = match error {
        Some(error) => (generic::FALSE, "Error", error.to_owned()),
        None => {
            let blocks = remaining.iter().map(|machine| machine.block.clone()).collect();
            (generic::UNKNOWN, "Waiting", Blocked::Machines(blocks).to_string())
        }
    };
    generic::set(&mut next.conditions, conditions::REMOVED, value, reason, &message, now);
    next
}

impl Planner {
    pub(super) async fn remove(&self, control_plane: &RKEControlPlane) -> Result<Next, Error> {
        let (key, now) = (ObjectKey::of(control_plane), self.context.now());
        let remaining = self.remaining(control_plane);
        let actions = decide(&remaining);
        let applied = self.apply_removal(control_plane, &actions).await;
        if remaining.is_empty() || applied.as_ref().is_err_and(Error::is_conflict) {
            return applied.map(|()| Next::EVENT);
        }
        let error = applied.as_ref().err().map(Error::chain);
        let live = control_plane.status.clone().unwrap_or_default();
        let next = status(&live, &remaining, error.as_deref(), now);
        let removed =
            |status: &RKEControlPlaneStatus| generic::get(&status.conditions, conditions::REMOVED).cloned();
        let message = |status| removed(status).map(|condition| condition.message).unwrap_or_default();
        if message(&live) != message(&next) {
            self.context.events.publish(control_plane, [&Note::normal("Deleting", message(&next))]);
        }
        let desired = status_of::<RKEControlPlane>(&key, next);
        self.writer.apply_status(&desired).await?;
        // Every Machine that changes is an event.
        applied.map(|()| Next::after(SAFETY))
    }

    fn remaining(&self, control_plane: &RKEControlPlane) -> Vec<Remaining> {
        let namespace = control_plane.namespace().unwrap_or_default();
        let cluster = control_plane.spec.cluster_name.as_str();
        let machines = self.context.store.machines.by_label(labels::capi::CLUSTER_NAME, &namespace, cluster);
        machines
            .iter()
            .filter(|machine| machine.labels().contains_key(labels::capi::CONTROL_PLANE))
            .map(|machine| Remaining {
                name: machine.name_any(),
                custom: machine.spec.infrastructure_ref.kind == CUSTOM_MACHINE,
                deleting: machine.metadata.deletion_timestamp.is_some(),
                block: block_of(machine),
            })
            .collect()
    }

    async fn apply_removal(&self, control_plane: &RKEControlPlane, actions: &[Action]) -> Result<(), Error> {
        let key = ObjectKey::of(control_plane);
        for action in actions {
            match action {
                Action::DeleteMachine(name) => {
                    self.writer.delete::<capi::Machine>(&key.sibling(name)).await?;
                }
                Action::RemoveFinalizer => {
                    if self.writer.remove_finalizers(control_plane, &[RKE_CONTROL_PLANE]).await? {
                        let note = Note::normal("Deleted", "No control plane machine is left");
                        self.context.events.publish(control_plane, [&note]);
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(name: &str, custom: bool, deleting: bool) -> Remaining {
        let block = MachineBlock { name: name.into(), ..MachineBlock::default() };
        Remaining { name: name.into(), custom, deleting, block }
    }

    #[test]
    fn custom_machines_are_deleted_once_and_the_finalizer_is_removed_last() {
        let all = [machine("a", true, false), machine("b", true, true), machine("c", false, false)];
        assert_eq!(decide(&all), [Action::DeleteMachine("a".into())]);
        assert_eq!(decide(&all[1..]), []);
        assert_eq!(decide(&[]), [Action::RemoveFinalizer]);
    }

    #[test]
    fn the_status_names_the_machines_or_the_error() {
        let (live, now) = (RKEControlPlaneStatus::default(), Timestamp::UNIX_EPOCH);
        let all = [machine("a", true, true)];
        let removed = |error: Option<&str>| {
            let status = status(&live, &all, error, now);
            generic::get(&status.conditions, conditions::REMOVED).cloned().unwrap()
        };
        assert_eq!(removed(None).message, "waiting for machine [a] to delete");
        assert_eq!(
            (removed(Some("lost")).status, removed(Some("lost")).message),
            ("False".into(), "lost".into())
        );
    }
}
