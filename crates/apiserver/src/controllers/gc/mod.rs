//! Garbage collection by owner references, driven by the commit log.
//!
//! `graph.rs` determines which objects a change affects, `decide.rs` the action for each, and this file reads the
//! current state and executes the action. There is no state that a restart could lose: at start, every object with
//! owners is checked once.

mod decide;
mod graph;

use super::follow::{Change, Follower, Topics};
use super::retry::Retries;
use crate::objects::{DeleteOptions, Objects, UpdateOptions, WriteContext};
use crate::resources::{Resource, Snapshot};
use crate::status::Status;
use crate::storage::{Key, OwnerRef, Version};
use decide::{Action, Owner};
use futures::StreamExt;
use graph::{FOREGROUND, Graph, ORPHAN, Work};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// How many objects are processed concurrently; the store commits them in groups.
const PARALLEL: usize = 64;

/// Runs until the task is dropped.
pub(super) async fn run(objects: Objects) {
    let mut resources = objects.resources().subscribe();
    let mut collector = Collector {
        context: WriteContext::internal("generic-garbage-collector"),
        served: Served::new(&objects.resources().snapshot()),
        graph: Graph::default(),
        undecided: BTreeSet::new(),
        objects: objects.clone(),
    };
    let mut follower = Follower::new(objects.storage().clone(), Topics::All);
    let mut retries = Retries::default();
    loop {
        let mut work: BTreeSet<Work> = BTreeSet::new();
        tokio::select! {
            changes = follower.next() => work.extend(collector.apply_changes(changes)),
            Ok(()) = resources.changed() => {
                collector.served = Served::new(&objects.resources().snapshot());
                work.append(&mut collector.undecided);
            }
            () = retries.due() => work.extend(retries.take_due()),
        }
        while !work.is_empty() {
            let batch = std::mem::take(&mut work);
            for (item, result) in collector.execute(batch).await {
                match result {
                    Ok(()) => retries.succeeded(&item),
                    Err(error) => {
                        if !error.is_conflict() {
                            tracing::warn!(?item, %error, "garbage collection failed; will retry");
                        }
                        retries.failed(item);
                    }
                }
            }
            work.extend(collector.apply_changes(follower.ready()));
        }
    }
}

struct Collector {
    objects: Objects,
    context: WriteContext,
    served: Served,
    graph: Graph,
    /// Objects with an owner whose kind is not served; checked again when the served kinds change.
    undecided: BTreeSet<Work>,
}

/// The served resources by the storage location of their objects.
struct Served {
    snapshot: Arc<Snapshot>,
    by_key: HashMap<(String, String), Arc<Resource>>,
}

impl Served {
    fn new(snapshot: &Arc<Snapshot>) -> Self {
        let by_key =
            snapshot.stored().into_iter().map(|r| ((r.storage_group().to_owned(), r.def.plural.clone()), r));
        Self { snapshot: snapshot.clone(), by_key: by_key.collect() }
    }

    fn resource(&self, key: &Key) -> Option<&Arc<Resource>> {
        self.by_key.get(&(key.group().to_owned(), key.resource().to_owned()))
    }

    fn owner_resource(&self, owner: &OwnerRef) -> Option<&Arc<Resource>> {
        let (group, version) = owner.api_version.split_once('/').unwrap_or(("", &owner.api_version));
        self.snapshot
            .kind(group, version, &owner.kind)
            .or_else(|| self.snapshot.any_version_of_kind(group, &owner.kind))
    }
}

/// A step to execute.
enum Step {
    Nothing,
    Release {
        resource: Arc<Resource>,
        version: Arc<Version>,
        uids: Vec<Box<str>>,
    },
    Delete {
        resource: Arc<Resource>,
        version: Arc<Version>,
        propagation: crate::resources::Propagation,
        unblock: bool,
    },
    Orphan {
        resource: Arc<Resource>,
        version: Arc<Version>,
        dependents: Vec<(Arc<Resource>, Key)>,
    },
    Finish {
        resource: Arc<Resource>,
        version: Arc<Version>,
    },
}

impl Collector {
    fn apply_changes(&mut self, changes: Vec<Change>) -> Vec<Work> {
        let mut work = Vec::new();
        for change in changes {
            match change {
                Change::Reset => {
                    self.graph = Graph::default();
                    self.undecided.clear();
                }
                Change::Present(version) => {
                    if self.collects(version.key()) {
                        work.extend(self.graph.put(version.key(), version.meta()));
                    }
                }
                Change::Gone(version) => {
                    self.undecided.remove(&Work::Dependent(version.key().clone()));
                    work.extend(self.graph.remove(version.key(), version.meta()));
                }
            }
        }
        work
    }

    /// Objects of a kind that is not served yet are kept in the graph, because the kind may be served later.
    fn collects(&self, key: &Key) -> bool {
        self.served.resource(key).is_none_or(|r| r.def.rules.garbage_collected)
    }

    async fn execute(&mut self, batch: BTreeSet<Work>) -> Vec<(Work, Result<(), Status>)> {
        let steps: Vec<(Work, Step)> = batch
            .into_iter()
            .map(|work| {
                let step = self.step(&work);
                (work, step)
            })
            .filter(|(_, step)| !matches!(step, Step::Nothing))
            .collect();
        let this = &*self;
        futures::stream::iter(steps)
            .map(|(work, step)| async move { (work, this.act(step).await) })
            .buffer_unordered(PARALLEL)
            .collect()
            .await
    }

    fn step(&mut self, work: &Work) -> Step {
        let (Work::Dependent(key) | Work::Owner(key)) = work;
        let Some(version) = self.objects.storage().index().get(key) else { return Step::Nothing };
        let Some(resource) = self.served.resource(key).cloned() else {
            self.undecided.insert(work.clone());
            return Step::Nothing;
        };
        match work {
            Work::Dependent(_) => self.dependent(resource, version, work),
            Work::Owner(_) => self.owner(resource, version),
        }
    }

    fn dependent(&mut self, resource: Arc<Resource>, version: Arc<Version>, work: &Work) -> Step {
        let meta = version.meta();
        let owners: Vec<Owner> =
            meta.owner_references.iter().map(|o| self.owner_state(version.key(), o)).collect();
        let in_circle = self.graph.of(&meta.uid).any(|key| {
            let found = self.objects.storage().index().get(&key);
            found.is_some_and(|v| graph::waits_for_dependents(v.meta()))
        });
        match decide::dependent(meta, &owners, self.graph.has_dependents(&meta.uid), in_circle) {
            Action::Keep => Step::Nothing,
            Action::Undecided => {
                self.undecided.insert(work.clone());
                Step::Nothing
            }
            Action::Release(uids) => Step::Release { resource, version, uids },
            Action::Delete { propagation, unblock } => {
                Step::Delete { resource, version, propagation, unblock }
            }
        }
    }

    fn owner_state(&self, dependent: &Key, owner: &OwnerRef) -> Owner {
        let Some(resource) = self.served.owner_resource(owner) else { return Owner::Unknown };
        if resource.def.namespaced && dependent.namespace().is_empty() {
            // A cluster-scoped object must not have an owner in a namespace.
            tracing::warn!(%dependent, owner = %owner.name, kind = %owner.kind, "OwnerRefInvalidNamespace");
            return Owner::Absent;
        }
        let key = resource.key(dependent.namespace(), &owner.name);
        match self.objects.storage().index().get(&key) {
            Some(found) if found.meta().uid == owner.uid => {
                let meta = found.meta();
                let foreground = meta.finalizers.iter().any(|f| **f == *FOREGROUND);
                if meta.deletion_timestamp.is_some() && foreground { Owner::Waiting } else { Owner::Solid }
            }
            _ => Owner::Absent,
        }
    }

    fn owner(&self, resource: Arc<Resource>, version: Arc<Version>) -> Step {
        let meta = version.meta();
        if !graph::waits_for_dependents(meta) {
            return Step::Nothing;
        }
        let index = self.objects.storage().index();
        let dependents: Vec<Arc<Version>> =
            self.graph.of(&meta.uid).filter_map(|key| index.get(&key)).collect();
        if meta.finalizers.iter().any(|f| **f == *ORPHAN) {
            let dependents = dependents
                .iter()
                .filter(|d| d.meta().owner_references.iter().any(|o| o.uid == meta.uid))
                .filter_map(|d| Some((self.served.resource(d.key())?.clone(), d.key().clone())))
                .collect();
            return Step::Orphan { resource, version, dependents };
        }
        let blocking =
            |d: &Arc<Version>| d.meta().owner_references.iter().any(|o| decide::blocks(o, &meta.uid));
        // An object of a kind that is not served cannot be deleted and would block its owner forever.
        if dependents.iter().any(|d| blocking(d) && self.served.resource(d.key()).is_some()) {
            return Step::Nothing;
        }
        Step::Finish { resource, version }
    }

    async fn act(&self, step: Step) -> Result<(), Status> {
        let done = match step {
            Step::Nothing => Ok(()),
            Step::Release { resource, version, uids } => self.release(&resource, version.key(), &uids).await,
            Step::Delete { resource, version, propagation, unblock } => {
                let mut revision = version.revision();
                if unblock {
                    revision = self.unblock(&resource, version.key()).await?;
                }
                let options = DeleteOptions {
                    propagation: Some(propagation),
                    uid: Some(version.meta().uid.to_string()),
                    // Its owners may have changed since the decision.
                    resource_version: Some(revision.to_string()),
                    ..DeleteOptions::default()
                };
                let key = version.key();
                self.objects
                    .delete(&self.context, &resource, key.namespace(), key.name(), &options)
                    .await
                    .map(drop)
            }
            Step::Orphan { resource, version, dependents } => {
                let uid = version.meta().uid.clone();
                let releases = dependents.into_iter().map(|(resource, key)| {
                    let uid = uid.clone();
                    async move { self.release(&resource, &key, &[uid]).await }
                });
                let results: Vec<_> =
                    futures::stream::iter(releases).buffer_unordered(PARALLEL).collect().await;
                results
                    .into_iter()
                    .find(|r| r.as_ref().is_err_and(|e| !e.is_not_found()))
                    .unwrap_or(Ok(()))?;
                self.remove_finalizer(&resource, version.key(), ORPHAN).await
            }
            Step::Finish { resource, version } => {
                self.remove_finalizer(&resource, version.key(), FOREGROUND).await
            }
        };
        match done {
            // Already deleted.
            Err(status) if status.is_not_found() => Ok(()),
            done => done,
        }
    }

    async fn release(&self, resource: &Arc<Resource>, key: &Key, uids: &[Box<str>]) -> Result<(), Status> {
        self.change_meta(resource, key, |meta| {
            if let Some(Value::Array(owners)) = meta.get_mut("ownerReferences") {
                owners.retain(|o| !uids.iter().any(|uid| o["uid"].as_str() == Some(uid)));
            }
        })
        .await
        .map(drop)
    }

    /// Unblocks the deletion of the owners; returns the new revision.
    async fn unblock(&self, resource: &Arc<Resource>, key: &Key) -> Result<u64, Status> {
        self.change_meta(resource, key, |meta| {
            for owner in meta.get_mut("ownerReferences").and_then(Value::as_array_mut).into_iter().flatten() {
                owner["blockOwnerDeletion"] = false.into();
            }
        })
        .await
    }

    async fn remove_finalizer(
        &self,
        resource: &Arc<Resource>,
        key: &Key,
        finalizer: &str,
    ) -> Result<(), Status> {
        self.change_meta(resource, key, |meta| {
            if let Some(Value::Array(list)) = meta.get_mut("finalizers") {
                list.retain(|f| f.as_str() != Some(finalizer));
            }
        })
        .await
        .map(drop)
    }

    async fn change_meta(
        &self,
        resource: &Arc<Resource>,
        key: &Key,
        change: impl Fn(&mut serde_json::Map<String, Value>) + Send + Sync,
    ) -> Result<u64, Status> {
        let options = UpdateOptions { unconditional: true, ..UpdateOptions::default() };
        let outcome = self
            .objects
            .update(&self.context, resource, key.namespace(), key.name(), options, |old| {
                let mut object = old.cloned().unwrap_or_default();
                if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                    change(meta);
                }
                Ok(object)
            })
            .await?;
        Ok(outcome.version.revision())
    }
}
