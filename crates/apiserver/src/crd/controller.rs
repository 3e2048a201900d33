//! Keeps the registry in line with the stored CRDs, and their status in line with the registry.
//!
//! One task does all of it, so there is one order of things: names are decided, the registry is swapped, and only then
//! is `Established` written. Whoever wrote the CRD is answered after that.

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
use super::terminating::RefuseCreates;
use super::{Converter, GROUP, PLURAL, finalize, kind, names};
use crate::clock::rfc3339_seconds;
use crate::lasting::PAUSE;
use crate::object::{ObjectExt, encode};
use crate::objects::Objects;
use crate::registry::Registry;
use crate::storage::{Change, Expect, Range, Storage, StorageError, Version, Write};

/// The running controller; dropping it stops it.
pub struct Controller {
    task: JoinHandle<()>,
}

impl Controller {
    /// Serves what is stored already, then follows every change. `objects` must be over the observed store;
    /// `converters` are keyed by the CRD's name.
    pub async fn start(
        observer: Observer,
        objects: Objects,
        converters: HashMap<String, Arc<dyn Converter>>,
    ) -> Controller {
        let Observer { storage, notify, receive, terminating } = observer;
        // The controller's own sender keeps nothing alive: it ends with its task.
        drop(notify);
        objects.add_admission(Arc::new(RefuseCreates(terminating.clone())));
        let registry = objects.registry().clone();
        let built_in = registry
            .snapshot()
            .resources()
            .filter(|r| !r.def.custom)
            .map(|r| (r.def.group.clone(), r.def.plural.clone()))
            .collect();
        let mut state = State {
            storage,
            objects,
            registry,
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
                tracing::error!("the controller of custom resources panicked; it begins anew");
                // What the pass was about was told once, so all of it is looked at.
                state.unfinished.store(true, Relaxed);
                tokio::time::sleep(PAUSE).await;
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
    registry: Arc<Registry>,
    converters: HashMap<String, Arc<dyn Converter>>,
    built_in: HashSet<(String, String)>,
    /// What of each CRD is registered, by name.
    served: HashMap<String, Served>,
    /// Whether a pass did not come to its end, as when the store refused a status: one over all CRDs is due.
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
                () = tokio::time::sleep(PAUSE), if self.unfinished.load(Relaxed) => None,
            };
            let mut waiting = Vec::new();
            // Everything that is waiting is answered by one pass.
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

    /// One pass over all CRDs; repeated when someone writes one meanwhile.
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

    /// Swaps the registry if anything about what is served changed.
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
        self.registry.change(|editor| {
            for served in &gone {
                editor.remove_all(&served.group, &served.plural);
            }
            fresh.into_iter().for_each(|resource| editor.insert(resource));
        });
        // Only now: should anything above panic, the next pass does it all again.
        self.served.retain(|name, _| names.contains(name.as_str()));
        self.served.extend(now_served);
    }

    /// Stores a CRD's new status; false if someone else wrote it meanwhile. What the store refuses is tried again later:
    /// clients wait for the status, and there may be no other write of a CRD.
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
                tracing::error!(crd = crd.name(), %error, "status of a CRD cannot be stored; it is tried again");
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

/// Changes when anything changes that the served resources are made from.
fn fingerprint(crd: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    crd["spec"].to_string().hash(&mut hasher);
    crd["status"]["acceptedNames"].to_string().hash(&mut hasher);
    crd.uid().hash(&mut hasher);
    hasher.finish()
}
