//! The accepted sessions and their registrations.

use std::collections::HashMap;
use std::sync::Arc;

use drover_runtime::ObjectKey;
use drover_tunnel::server::Entry;
use drover_tunnel::{Registry, Session};
use parking_lot::Mutex;

use crate::registration::{ClusterParams, RegisteredBy};

/// One accepted session.
pub(super) struct Accepted {
    pub(super) by: RegisteredBy,
    pub(super) params: ClusterParams,
    pub(super) session: Session,
}

/// All accepted sessions, in addition to the registry that uses them. Clones share it.
#[derive(Clone)]
pub(super) struct Sessions {
    tunnels: Registry,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    next: u64,
    /// In order of acceptance, as in the registry; sessions that are not in the registry yet come last.
    by_cluster: HashMap<String, Vec<(u64, Accepted)>>,
}

/// Keeps a session in the list until it is dropped.
pub(super) struct SessionGuard {
    sessions: Sessions,
    cluster: String,
    number: u64,
    entry: Option<Entry>,
}

impl Sessions {
    pub(super) fn new(tunnels: Registry) -> Self {
        Self { tunnels, inner: Arc::default() }
    }

    /// Adds a verified session, which is used after [`SessionGuard::enter`]. A machine's session ends those of
    /// registration tokens, and none of those is added beside it.
    pub(super) fn hold(&self, cluster: &str, held: Accepted) -> Option<SessionGuard> {
        let mut inner = self.inner.lock();
        inner.next += 1;
        let number = inner.next;
        let list = inner.by_cluster.entry(cluster.to_owned()).or_default();
        let is_token = |by: &RegisteredBy| *by == RegisteredBy::Token;
        if is_token(&held.by) {
            if list.iter().any(|(_, other)| !is_token(&other.by) && !other.session.is_ended()) {
                return None;
            }
        } else {
            list.iter().filter(|(_, other)| is_token(&other.by)).for_each(|(_, other)| other.session.end());
        }
        list.push((number, held));
        Some(SessionGuard { sessions: self.clone(), cluster: cluster.to_owned(), number, entry: None })
    }

    /// The registration of the newest open session.
    pub(super) fn newest(&self, cluster: &str) -> Option<(ClusterParams, RegisteredBy)> {
        let inner = self.inner.lock();
        let alive = |(_, held): &&(u64, Accepted)| !held.session.is_ended();
        let (_, held) = inner.by_cluster.get(cluster)?.iter().rev().find(alive)?;
        Some((held.params.clone(), held.by.clone()))
    }

    /// A machine with an open session.
    pub(super) fn machine_of(&self, cluster: &str) -> Option<ObjectKey> {
        let inner = self.inner.lock();
        let mut alive = inner.by_cluster.get(cluster)?.iter().filter(|(_, held)| !held.session.is_ended());
        alive.find_map(|(_, held)| match &held.by {
            RegisteredBy::Machine(machine) => Some(machine.clone()),
            RegisteredBy::Token => None,
        })
    }

    /// Ends the sessions that are not permitted, and returns their openers.
    pub(super) fn end_unless(
        &self,
        cluster: &str,
        may_stay: impl Fn(&RegisteredBy) -> bool,
    ) -> Vec<RegisteredBy> {
        let inner = self.inner.lock();
        let list = inner.by_cluster.get(cluster).into_iter().flatten();
        let ended = list.filter(|(_, held)| !held.session.is_ended() && !may_stay(&held.by));
        ended.inspect(|(_, held)| held.session.end()).map(|(_, held)| held.by.clone()).collect()
    }
}

impl SessionGuard {
    /// Makes the session the newest one of its cluster, which requests use.
    pub(super) fn enter(&mut self) {
        let mut inner = self.sessions.inner.lock();
        let Some(list) = inner.by_cluster.get_mut(&self.cluster) else { return };
        let Some(at) = list.iter().position(|(number, _)| *number == self.number) else { return };
        let own = list.remove(at);
        // Under the lock, so that both lists have the same order.
        self.entry = Some(self.sessions.tunnels.enter(&self.cluster, own.1.session.clone()));
        list.push(own);
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        let mut inner = self.sessions.inner.lock();
        if let Some(list) = inner.by_cluster.get_mut(&self.cluster) {
            list.retain(|(number, _)| *number != self.number);
            if list.is_empty() {
                inner.by_cluster.remove(&self.cluster);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn held(by: RegisteredBy, address: &str) -> Accepted {
        let (session, _) = drover_tunnel::server::open(tokio::io::duplex(64).0).await;
        let params = ClusterParams { address: address.into(), token: "t".into(), ca_cert: "ca".into() };
        Accepted { by, params, session }
    }

    fn machine(name: &str) -> RegisteredBy {
        RegisteredBy::Machine(ObjectKey::new("default", name))
    }

    #[tokio::test]
    async fn the_registration_of_the_session_in_use_is_recorded() {
        let tunnels = Registry::default();
        let sessions = Sessions::new(tunnels.clone());
        let newest = || sessions.newest("c").map(|(params, _)| params.address);
        let mut first = sessions.hold("c", held(machine("one"), "1").await).unwrap();
        assert!(!tunnels.is_connected("c"), "before its registration is recorded");
        let mut second = sessions.hold("c", held(machine("two"), "2").await).unwrap();
        // They are recorded in another order than they were opened.
        second.enter();
        first.enter();
        assert_eq!(newest().as_deref(), Some("1"));
        assert_eq!(sessions.machine_of("c"), Some(ObjectKey::new("default", "two")));
        drop(first);
        assert_eq!(newest().as_deref(), Some("2"));
        let deleted = machine("two");
        assert_eq!(sessions.end_unless("c", |by| *by != deleted), std::slice::from_ref(&deleted));
        assert_eq!(
            (newest(), tunnels.is_connected("c")),
            (None, false),
            "it is removed before its task ends"
        );
        drop(second);
        assert!(sessions.inner.lock().by_cluster.is_empty());
    }

    #[tokio::test]
    async fn a_machine_replaces_a_registration_token_but_not_the_reverse() {
        let (sessions, by_token) = (Sessions::new(Registry::default()), RegisteredBy::Token);
        let mut token = sessions.hold("c", held(by_token.clone(), "1").await).unwrap();
        token.enter();
        assert!(sessions.hold("c", held(by_token.clone(), "2").await).is_some(), "one of several replicas");
        let mut server = sessions.hold("c", held(machine("one"), "3").await).unwrap();
        server.enter();
        assert_eq!(sessions.newest("c").map(|(_, by)| by), Some(machine("one")));
        assert!(sessions.hold("c", held(by_token.clone(), "4").await).is_none());
        assert!(sessions.hold("other", held(by_token.clone(), "4").await).is_some());
        drop((token, server));
        assert!(sessions.hold("c", held(by_token, "5").await).is_some());
    }
}
