//! The RBAC authorizer: an in-memory policy that is updated to the store's revision before each decision.
//!
//! Each request reads the new events of the log. So a role applies to the next request after its write, there is no
//! work without requests, and no request lists objects.

use super::policy::{Caller, GROUP, Kind, Policy, Verdict};
use super::rule::{Ask, Rule};
use crate::identity::{Attributes, Authorizer, Decision, UserInfo};
use crate::status::Status;
use crate::storage::{EventKind, Range, Storage, StorageError, Tail};
use futures::future::BoxFuture;
use parking_lot::{RwLock, RwLockReadGuard};
use std::sync::Arc;

/// Events read from the log at once.
const BATCH: usize = 1_000;

/// Decides according to the roles and bindings in the store.
pub struct Rbac {
    storage: Arc<dyn Storage>,
    state: RwLock<State>,
}

struct State {
    /// The store's revision at the last update of the policy.
    seen: u64,
    tails: Vec<(Kind, Tail)>,
    policy: Policy,
}

impl Rbac {
    /// Follows the roles and bindings of a store.
    pub fn new(storage: Arc<dyn Storage>) -> Self {
        Self { storage, state: RwLock::new(State { seen: 0, tails: Vec::new(), policy: Policy::default() }) }
    }

    /// The rules of a user in a namespace (empty: cluster-wide), and bindings to missing roles.
    pub fn rules_for(&self, user: &UserInfo, namespace: &str) -> (Vec<Rule>, Vec<String>) {
        let caller = caller(user);
        if caller.is_master() {
            return (Rule::full_authority(), Vec::new());
        }
        self.current().policy.rules_for(caller, namespace)
    }

    /// The decision, without waiting.
    pub fn decide(&self, attributes: &Attributes) -> Verdict {
        let a = attributes;
        if !a.resource_request {
            let ask = Ask::Path { verb: &a.verb, path: &a.path };
            return self.current().policy.decide(caller(&a.user), "", ask);
        }
        let ask = Ask::Resource {
            verb: &a.verb,
            group: &a.group,
            resource: &a.resource,
            subresource: &a.subresource,
            name: &a.name,
        };
        self.current().policy.decide(caller(&a.user), &a.namespace, ask)
    }

    /// The rules of a role.
    pub fn role(&self, role: &super::policy::RoleRef, namespace: &str) -> Option<Arc<[Rule]>> {
        self.current().policy.role(role, namespace)
    }

    fn current(&self) -> RwLockReadGuard<'_, State> {
        let head = self.storage.index().revision();
        {
            let state = self.state.read();
            if state.seen >= head {
                return state;
            }
        }
        let mut state = self.state.write();
        if state.seen < head {
            // All events up to `head` are already in the log, so this read includes them.
            if state.tails.is_empty() || state.catch_up(self.storage.as_ref()).is_err() {
                state.reload(self.storage.as_ref());
            }
            state.seen = if state.tails.is_empty() { 0 } else { head };
        }
        parking_lot::RwLockWriteGuard::downgrade(state)
    }
}

impl State {
    fn catch_up(&mut self, storage: &dyn Storage) -> Result<(), StorageError> {
        for (kind, tail) in &mut self.tails {
            loop {
                let batch = storage.index().read(tail, BATCH)?;
                for event in &batch.events {
                    let object = (event.kind != EventKind::Deleted).then(|| event.version.bytes());
                    let key = event.version.key();
                    self.policy.apply(*kind, key.namespace(), key.name(), object.as_deref());
                }
                if batch.events.len() < BATCH {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Reads everything again: for the first request, or when the log no longer has the next event.
    fn reload(&mut self, storage: &dyn Storage) {
        self.policy = Policy::default();
        self.tails.clear();
        for kind in Kind::ALL {
            let range = Range { group: GROUP, resource: kind.resource(), ..Range::default() };
            let (items, revision) = storage.index().list(&range);
            for item in items {
                self.policy.apply(kind, item.key().namespace(), item.key().name(), Some(&item.bytes()));
            }
            match storage.index().follow(GROUP, kind.resource(), revision) {
                Ok(tail) => self.tails.push((kind, tail)),
                // The log advanced in the meantime; the next request tries again.
                Err(_) => return self.tails.clear(),
            }
        }
    }
}

fn caller(user: &UserInfo) -> Caller<'_> {
    Caller { name: &user.name, groups: &user.groups }
}

impl Authorizer for Rbac {
    fn authorize<'a>(&'a self, attributes: &'a Attributes) -> BoxFuture<'a, Result<Decision, Status>> {
        let verdict = self.decide(attributes);
        let decision = Decision { allowed: verdict.allowed, reason: verdict.reason };
        Box::pin(std::future::ready(Ok(decision)))
    }
}
