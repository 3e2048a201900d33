//! Decides what to do with one object, given the state of its owners. Pure.
//! Behaviour: kubernetes pkg/controller/garbagecollector/garbagecollector.go.

use super::graph::{FOREGROUND, ORPHAN};
use crate::resources::Propagation;
use crate::storage::{Meta, OwnerRef};

/// The state of one owner of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// It exists and is not being deleted.
    Solid,
    /// It does not exist, or the reference is invalid in its namespace.
    Absent,
    /// It is being deleted and waits for this object.
    Waiting,
    /// Its kind is not served, so its state is unknown.
    Unknown,
}

/// The action for a dependent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// None.
    Keep,
    /// None until the kinds of all owners are served.
    Undecided,
    /// Remove the references to these owner uids; the object still has other owners.
    Release(Vec<Box<str>>),
    /// Delete it. `unblock` first clears `blockOwnerDeletion`, because its own dependents wait for it.
    Delete { propagation: Propagation, unblock: bool },
}

/// Decides about a dependent. `owners` are the states of `meta.owner_references`; `has_dependents` and `in_circle` are
/// whether others depend on it, and whether one of those is being deleted and waits for its dependents.
pub(crate) fn dependent(meta: &Meta, owners: &[Owner], has_dependents: bool, in_circle: bool) -> Action {
    if meta.owner_references.is_empty() || meta.deletion_timestamp.is_some() {
        return Action::Keep;
    }
    if owners.contains(&Owner::Unknown) {
        return Action::Undecided;
    }
    if owners.contains(&Owner::Solid) {
        let gone: Vec<Box<str>> = meta
            .owner_references
            .iter()
            .zip(owners)
            .filter(|(_, state)| **state != Owner::Solid)
            .map(|(owner, _)| owner.uid.clone())
            .collect();
        return if gone.is_empty() { Action::Keep } else { Action::Release(gone) };
    }
    let has = |finalizer: &str| meta.finalizers.iter().any(|f| **f == *finalizer);
    if owners.contains(&Owner::Waiting) && has_dependents {
        return Action::Delete { propagation: Propagation::Foreground, unblock: in_circle };
    }
    let propagation = if has(ORPHAN) {
        Propagation::Orphan
    } else if has(FOREGROUND) {
        Propagation::Foreground
    } else {
        Propagation::Background
    };
    Action::Delete { propagation, unblock: false }
}

/// Whether this reference blocks the deletion of its owner.
pub(crate) fn blocks(owner: &OwnerRef, uid: &str) -> bool {
    *owner.uid == *uid && owner.block_owner_deletion == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn meta(owners: usize, extra: serde_json::Value) -> Meta {
        let owners: Vec<_> =
            (0..owners).map(|i| json!({"uid": i.to_string(), "name": "o", "kind": "K"})).collect();
        let mut value = json!({"uid": "me", "ownerReferences": owners});
        value.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_action_depends_on_the_owners() {
        use Owner::{Absent, Solid, Unknown, Waiting};
        let plain = meta(2, json!({}));
        let delete = |propagation, unblock| Action::Delete { propagation, unblock };
        let table = [
            ([Solid, Solid], Action::Keep),
            ([Solid, Absent], Action::Release(vec!["1".into()])),
            ([Waiting, Solid], Action::Release(vec!["0".into()])),
            ([Absent, Absent], delete(Propagation::Background, false)),
            ([Absent, Waiting], delete(Propagation::Background, false)),
            ([Absent, Unknown], Action::Undecided),
            ([Solid, Unknown], Action::Undecided),
        ];
        for (owners, want) in table {
            assert_eq!(dependent(&plain, &owners, false, false), want, "{owners:?}");
        }
        assert_eq!(
            dependent(&plain, &[Waiting, Absent], true, false),
            delete(Propagation::Foreground, false)
        );
        assert_eq!(dependent(&plain, &[Waiting, Absent], true, true), delete(Propagation::Foreground, true));
        assert_eq!(dependent(&meta(0, json!({})), &[], false, false), Action::Keep);
    }

    #[test]
    fn finalizers_of_the_dependent_choose_the_propagation_and_it_is_deleted_once() {
        let orphan = meta(1, json!({"finalizers": [ORPHAN]}));
        let action = dependent(&orphan, &[Owner::Absent], false, false);
        assert_eq!(action, Action::Delete { propagation: Propagation::Orphan, unblock: false });
        let going = meta(1, json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}));
        assert_eq!(dependent(&going, &[Owner::Absent], false, false), Action::Keep);
    }

    #[test]
    fn only_references_with_block_owner_deletion_block() {
        let owner = |block| OwnerRef { uid: "u".into(), block_owner_deletion: block, ..OwnerRef::default() };
        assert!(blocks(&owner(Some(true)), "u"));
        assert!(!blocks(&owner(Some(true)), "v"));
        assert!(!blocks(&owner(Some(false)), "u"));
        assert!(!blocks(&owner(None), "u"));
    }
}
