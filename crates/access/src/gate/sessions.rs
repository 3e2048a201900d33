//! The sessions that were accepted, with what each of them registered.

use std::collections::HashMap;
use std::sync::Arc;

use drover_runtime::ObjectKey;
use drover_tunnel::server::Entry;
use drover_tunnel::{Registry, Session};
use parking_lot::Mutex;

use crate::registration::{ClusterParams, RegisteredBy};

/// One accepted session.
pub(super) struct Held {
    pub(super) by: RegisteredBy,
    pub(super) params: ClusterParams,
    pub(super) session: Session,
}

/// All of them, beside the registry that dials them. Clones share it.
#[derive(Clone)]
pub(super) struct Sessions {
    tunnels: Registry,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    next: u64,
    /// In the order of their coming, as the registry has them; those that are not in the registry yet come last.
    by_cluster: HashMap<String, Vec<(u64, Held)>>,
}

/// A session's place, left when it is dropped.
pub(super) struct Holding {
    sessions: Sessions,
    cluster: String,
    number: u64,
    entry: Option<Entry>,
}

impl Sessions {
    pub(super) fn new(tunnels: Registry) -> Self {
        Self { tunnels, inner: Arc::default() }
    }

    /// Takes a session in that is proven; it is dialled from [`Holding::enter`] on. A machine's ends those of registration
    /// tokens, and none of those comes in beside a machine's.
    pub(super) fn hold(&self, cluster: &str, held: Held) -> Option<Holding> {
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
        Some(Holding { sessions: self.clone(), cluster: cluster.to_owned(), number, entry: None })
    }

    /// What the newest session that is alive registered.
    pub(super) fn newest(&self, cluster: &str) -> Option<(ClusterParams, RegisteredBy)> {
        let inner = self.inner.lock();
        let alive = |(_, held): &&(u64, Held)| !held.session.is_ended();
        let (_, held) = inner.by_cluster.get(cluster)?.iter().rev().find(alive)?;
        Some((held.params.clone(), held.by.clone()))
    }

    /// A machine that holds a session now.
    pub(super) fn machine_of(&self, cluster: &str) -> Option<ObjectKey> {
        let inner = self.inner.lock();
        let mut alive = inner.by_cluster.get(cluster)?.iter().filter(|(_, held)| !held.session.is_ended());
        alive.find_map(|(_, held)| match &held.by {
            RegisteredBy::Machine(machine) => Some(machine.clone()),
            RegisteredBy::Token => None,
        })
    }

    /// Ends the sessions of those who may not stay, and tells whose they were.
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

impl Holding {
    /// Makes the session the newest one of its cluster, which others dial.
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

impl Drop for Holding {
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

    async fn held(by: RegisteredBy, address: &str) -> Held {
        let (session, _) = drover_tunnel::server::open(tokio::io::duplex(64).0).await;
        let params = ClusterParams { address: address.into(), token: "t".into(), ca_cert: "ca".into() };
        Held { by, params, session }
    }

    fn machine(name: &str) -> RegisteredBy {
        RegisteredBy::Machine(ObjectKey::new("default", name))
    }

    #[tokio::test]
    async fn the_session_that_is_dialled_is_the_one_whose_word_counts() {
        let tunnels = Registry::default();
        let sessions = Sessions::new(tunnels.clone());
        let newest = || sessions.newest("c").map(|(params, _)| params.address);
        let mut first = sessions.hold("c", held(machine("one"), "1").await).unwrap();
        assert!(!tunnels.is_connected("c"), "not before its registration is recorded");
        let mut second = sessions.hold("c", held(machine("two"), "2").await).unwrap();
        // They are recorded in another order than they came.
        second.enter();
        first.enter();
        assert_eq!(newest().as_deref(), Some("1"));
        assert_eq!(sessions.machine_of("c"), Some(ObjectKey::new("default", "two")));
        drop(first);
        assert_eq!(newest().as_deref(), Some("2"));
        let gone = machine("two");
        assert_eq!(sessions.end_unless("c", |by| *by != gone), std::slice::from_ref(&gone));
        assert_eq!((newest(), tunnels.is_connected("c")), (None, false), "it ends before its task does");
        drop(second);
        assert!(sessions.inner.lock().by_cluster.is_empty());
    }

    #[tokio::test]
    async fn a_machine_replaces_a_registration_token_and_not_the_other_way_round() {
        let (sessions, by_token) = (Sessions::new(Registry::default()), RegisteredBy::Token);
        let mut token = sessions.hold("c", held(by_token.clone(), "1").await).unwrap();
        token.enter();
        assert!(sessions.hold("c", held(by_token.clone(), "2").await).is_some(), "of several replicas");
        let mut server = sessions.hold("c", held(machine("one"), "3").await).unwrap();
        server.enter();
        assert_eq!(sessions.newest("c").map(|(_, by)| by), Some(machine("one")));
        assert!(sessions.hold("c", held(by_token.clone(), "4").await).is_none());
        assert!(sessions.hold("other", held(by_token.clone(), "4").await).is_some());
        drop((token, server));
        assert!(sessions.hold("c", held(by_token, "5").await).is_some());
    }
}
