//! Keeps the served resources in sync with the stored CRDs, and the status of the CRDs in sync with the served
//! resources.
//!
//! A single task does this, in a fixed order: it decides on the names, replaces the resource table, and only then
//! writes `Established`. The writer of the CRD gets its response after that.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use futures::FutureExt;
use serde_json::Value;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;

use super::observer::{Notice, Observer};
use super::terminating::RejectCreates;
use super::{Converter, GROUP, PLURAL, finalize, kind, names};
use crate::clock::rfc3339_seconds;
use crate::object::{ObjectExt, encode};
use crate::objects::Objects;
use crate::resources::ResourceTable;
use crate::restart::RESTART_DELAY;
use crate::storage::{Change, Expect, Range, Storage, StorageError, Version, Write};

/// The running controller; dropping it stops it.
pub struct Controller {
    task: JoinHandle<()>,
}

impl Controller {
    /// Serves the stored CRDs, then follows every change. `objects` must use the observed store; `converters` are keyed
    /// by the CRD's name.
    pub async fn start(
        observer: Observer,
        objects: Objects,
        converters: HashMap<String, Arc<dyn Converter>>,
    ) -> Controller {
        let Observer { storage, notify, receive, terminating } = observer;
        // The controller's own sender does not keep anything alive: it ends with its task.
        drop(notify);
        objects.add_admission(Arc::new(RejectCreates(terminating.clone())));
        let resources = objects.resources().clone();
        let built_in = resources
            .snapshot()
            .resources()
            .filter(|r| !r.def.custom)
            .map(|r| (r.def.group.clone(), r.def.plural.clone()))
            .collect();
        let mut state = State {
            storage,
            objects,
            resources,
            converters,
            built_in,
            served: HashMap::new(),
            unfinished: AtomicBool::new(false),
            terminating,
        };
        state.sync().await;
        let task = tokio::spawn(async move {
            let mut receive = receive;
            while AssertUnwindSafe(state.run(&mut receive)).catch_unwind().await.is_err() {
                tracing::error!("the controller of custom resources panicked; restarting");
                // The notice that caused the pass is lost, so all CRDs are processed again.
                state.unfinished.store(true, Relaxed);
                tokio::time::sleep(RESTART_DELAY).await;
            }
        });
        Controller { task }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(super) struct State {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) objects: Objects,
    resources: Arc<ResourceTable>,
    converters: HashMap<String, Arc<dyn Converter>>,
    built_in: HashSet<(String, String)>,
    /// The registered state of each CRD, by name.
    served: HashMap<String, Served>,
    /// Whether a pass was incomplete, for example because a status could not be stored: all CRDs must be processed
    /// again.
    unfinished: AtomicBool,
    pub(super) terminating: Arc<parking_lot::RwLock<HashSet<String>>>,
}

#[derive(Clone)]
struct Served {
    group: String,
    plural: String,
    fingerprint: u64,
}

impl State {
    async fn run(&mut self, receive: &mut UnboundedReceiver<Notice>) {
        self.finalize().await;
        loop {
            let mut notice = tokio::select! {
                first = receive.recv() => match first {
                    Some(first) => Some(first),
                    None => return,
                },
                () = tokio::time::sleep(RESTART_DELAY), if self.unfinished.load(Relaxed) => None,
            };
            let mut waiting = Vec::new();
            // All pending notices are answered by one pass.
            while let Some(next) = notice {
                if let Notice::Changed(done) = next {
                    waiting.push(done);
                }
                notice = receive.try_recv().ok();
            }
            if self.unfinished.swap(false, Relaxed) || !waiting.is_empty() {
                self.sync().await;
                for done in waiting {
                    let _ = done.send(());
                }
            }
            self.finalize().await;
        }
    }

    /// All stored CRDs.
    pub(super) fn crds(&self) -> Vec<Arc<Version>> {
        self.storage.index().list(&Range { group: GROUP, resource: PLURAL, ..Range::default() }).0
    }

    /// Processes all CRDs; repeated if one is written in the meantime.
    pub(super) async fn sync(&mut self) {
        loop {
            let stored = self.crds();
            finalize::mark(self, &stored);
            let mut crds: Vec<Value> = stored.iter().map(|v| v.decode()).collect();
            let now = rfc3339_seconds(self.objects.clock().now());
            let mut changed = HashSet::new();
            self.decide(&mut crds, &now, &mut changed, |_| false);
            self.register(&crds);
            let served: HashSet<String> = self.served.keys().cloned().collect();
            self.decide(&mut crds, &now, &mut changed, |crd| served.contains(crd.name()));
            let mut conflict = false;
            for (version, crd) in stored.iter().zip(&crds) {
                if changed.contains(crd.name()) {
                    conflict |= !self.write(version, crd).await;
                }
            }
            if !conflict {
                return;
            }
        }
    }

    fn decide(
        &self,
        crds: &mut [Value],
        now: &str,
        changed: &mut HashSet<String>,
        served: impl Fn(&Value) -> bool,
    ) {
        for next in names::decide(crds, served, now) {
            if let Some(slot) = crds.iter_mut().find(|c| c.name() == next.name()) {
                changed.insert(next.name().to_owned());
                *slot = next;
            }
        }
    }

    /// Replaces the resource table if the served resources changed.
    fn register(&mut self, crds: &[Value]) {
        let mut gone: Vec<Served> = Vec::new();
        let (mut fresh, mut now_served) = (Vec::new(), Vec::new());
        let wanted: Vec<&Value> = crds.iter().filter(|c| names::may_serve(c, &self.built_in)).collect();
        let names: HashSet<&str> = wanted.iter().map(|c| c.name()).collect();
        let removed = self.served.iter().filter(|(name, _)| !names.contains(name.as_str()));
        gone.extend(removed.map(|(_, served)| served.clone()));
        for crd in wanted {
            let fingerprint = fingerprint(crd);
            match self.served.get(crd.name()) {
                Some(served) if served.fingerprint == fingerprint => continue,
                _ => {}
            }
            let resources = kind::resources(crd, self.converters.get(crd.name()));
            let served = Served {
                group: crd["spec"].top_str("group").to_owned(),
                plural: crd["spec"]["names"].top_str("plural").to_owned(),
                fingerprint,
            };
            gone.extend(self.served.get(crd.name()).cloned());
            fresh.extend(resources);
            now_served.push((crd.name().to_owned(), served));
        }
        if gone.is_empty() && fresh.is_empty() {
            return;
        }
        self.resources.change(|editor| {
            for served in &gone {
                editor.remove_all(&served.group, &served.plural);
            }
            fresh.into_iter().for_each(|resource| editor.insert(resource));
        });
        // Only now, so that after a panic above the next pass repeats everything.
        self.served.retain(|name, _| names.contains(name.as_str()));
        self.served.extend(now_served);
    }

    /// Stores a CRD's new status; false after a concurrent write. If the store rejects it, it is retried later: clients
    /// wait for the status, and there may be no other write of a CRD.
    pub(super) async fn write(&self, version: &Version, crd: &Value) -> bool {
        let gone = crd.is_deleting() && crd.finalizers().is_empty();
        let encoded = encode(crd);
        let change = if gone { Change::Delete { last: Some(encoded) } } else { Change::Put(encoded) };
        let write =
            Write { key: version.key().clone(), expect: Expect::Revision(version.revision()), change };
        match self.storage.write(write).await {
            Ok(_) => true,
            Err(StorageError::Conflict { .. }) => false,
            Err(error) => {
                self.unfinished.store(true, Relaxed);
                tracing::error!(crd = crd.name(), %error, "failed to store the status of a CRD; will retry");
                true
            }
        }
    }

    async fn finalize(&mut self) {
        if finalize::run(self).await {
            self.sync().await;
        }
    }
}

/// Changes with everything that the served resources depend on.
fn fingerprint(crd: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    crd["spec"].to_string().hash(&mut hasher);
    crd["status"]["acceptedNames"].to_string().hash(&mut hasher);
    crd.uid().hash(&mut hasher);
    hasher.finish()
}
