//! Watches: a filtered view of the event log, with initial events and bookmarks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{ListOptions, Objects};
use crate::resources::Resource;
use crate::status::Status;
use crate::storage::{Event, EventKind, Range, StorageError, Tail, Version};

/// How often an idle watch gets a bookmark.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// The last bookmark is sent this long before the deadline.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
const BATCH: usize = 256;

/// What to watch.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// Selectors, and `resource_version` to start after. The other fields of a list are ignored.
    pub list: ListOptions,
    /// `sendInitialEvents`; `None` means only for an unset or zero resourceVersion.
    pub send_initial_events: Option<bool>,
    /// `allowWatchBookmarks`.
    pub bookmarks: bool,
    /// The watch ends normally after this time.
    pub timeout: Duration,
}

/// An event of a watch.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    /// The object is new for this watcher.
    Added(Arc<Version>),
    /// The object changed.
    Modified(Arc<Version>),
    /// The object was deleted, or is no longer selected.
    Deleted(Arc<Version>),
    /// All events up to `revision` were sent.
    Bookmark {
        /// The revision.
        revision: u64,
        /// Whether this bookmark ends the initial events.
        initial_events_end: bool,
    },
    /// The watch failed; no further events follow.
    Error(Status),
}

impl WatchEvent {
    /// `ADDED`, …
    pub fn name(&self) -> &'static str {
        match self {
            Self::Added(_) => "ADDED",
            Self::Modified(_) => "MODIFIED",
            Self::Deleted(_) => "DELETED",
            Self::Bookmark { .. } => "BOOKMARK",
            Self::Error(_) => "ERROR",
        }
    }

    /// The object, for events that have one.
    pub fn version(&self) -> Option<&Arc<Version>> {
        match self {
            Self::Added(version) | Self::Modified(version) | Self::Deleted(version) => Some(version),
            _ => None,
        }
    }
}

/// The object of a bookmark.
pub fn bookmark_object(resource: &Resource, revision: u64, initial_events_end: bool) -> Value {
    let mut object = json!({
        "kind": resource.def.kind, "apiVersion": resource.api_version(),
        "metadata": {"resourceVersion": revision.to_string(), "creationTimestamp": null},
    });
    if initial_events_end {
        object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    object
}

/// A running watch, until it is dropped.
pub struct Watch {
    objects: Objects,
    resource: Arc<Resource>,
    namespace: Option<String>,
    options: WatchOptions,
    tail: Option<Tail>,
    pending: VecDeque<WatchEvent>,
    resources: tokio::sync::watch::Receiver<u64>,
    next_bookmark: Instant,
    last_bookmark: Instant,
    deadline: Instant,
    ended: bool,
}

impl Objects {
    /// Watches the objects of a namespace, or of all namespaces. For a revision that is no longer in the history, the
    /// only event of the watch is the error, as clients expect.
    pub async fn watch(
        &self,
        resource: &Arc<Resource>,
        namespace: Option<&str>,
        options: WatchOptions,
    ) -> Result<Watch, Status> {
        let namespace = namespace.filter(|_| resource.def.namespaced);
        let revision = options.list.resource_version;
        let fresh = revision.unwrap_or(0) == 0;
        let initial = options.send_initial_events.unwrap_or(fresh);
        if initial {
            self.not_older_than(revision.unwrap_or(0)).await?;
        }
        let now = Instant::now();
        let deadline = now + options.timeout;
        let mut watch = Watch {
            objects: self.clone(),
            resource: resource.clone(),
            namespace: namespace.map(str::to_owned),
            tail: None,
            pending: VecDeque::new(),
            resources: self.resources().subscribe(),
            next_bookmark: now + BOOKMARK_EVERY,
            last_bookmark: deadline.checked_sub(BOOKMARK_BEFORE_END).unwrap_or(deadline),
            deadline,
            ended: false,
            options,
        };
        let index = self.storage().index();
        let single = watch.options.list.single(resource, namespace);
        let after = if initial {
            let range = Range {
                group: resource.storage_group(),
                resource: &resource.def.plural,
                namespace,
                start: None,
            };
            let (mut items, revision) = match &single {
                Some(key) => index.list_object(key),
                None => index.list(&range),
            };
            items.retain(|version| watch.options.list.matches(resource, version));
            watch.pending.extend(items.into_iter().map(WatchEvent::Added));
            if watch.options.bookmarks {
                watch.pending.push_back(WatchEvent::Bookmark { revision, initial_events_end: true });
            }
            revision
        } else {
            revision.filter(|revision| *revision > 0).unwrap_or_else(|| index.revision())
        };
        let followed = match &single {
            Some(key) => index.follow_object(key, after),
            None => index.follow(resource.storage_group(), &resource.def.plural, after),
        };
        match followed {
            Ok(tail) => watch.tail = Some(tail),
            Err(StorageError::Future { asked, current }) => {
                return Err(Status::resource_version_too_large(asked, current));
            }
            Err(error) => watch.pending.push_back(WatchEvent::Error(too_old(&error))),
        }
        Ok(watch)
    }
}

fn too_old(error: &StorageError) -> Status {
    match error {
        StorageError::Compacted { asked, oldest } => {
            Status::expired(format!("too old resource version: {asked} ({oldest})"))
        }
        other => Status::internal(other),
    }
}

impl Watch {
    /// The next event; `None` when the watch ended (deadline, or the resource is no longer served). Cancel-safe.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        loop {
            if let Some(event) = self.next_ready() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            let tail = self.tail.as_mut()?;
            let wake = self.next_bookmark.min(self.last_bookmark).min(self.deadline);
            let bookmarks = self.options.bookmarks;
            let timer = if bookmarks { wake } else { self.deadline };
            tokio::select! {
                biased;
                () = tail.changed() => {}
                changed = self.resources.changed() => {
                    if changed.is_err() || !self.still_served() {
                        self.ended = true;
                    }
                }
                () = tokio::time::sleep_until(timer) => self.tick(),
            }
        }
    }

    /// The next event, if one is available.
    pub fn next_ready(&mut self) -> Option<WatchEvent> {
        while self.pending.is_empty() && !self.ended {
            if self.fill() == 0 {
                break;
            }
        }
        let event = self.pending.pop_front()?;
        if matches!(event, WatchEvent::Error(_)) {
            self.ended = true;
            self.pending.clear();
        }
        Some(event)
    }

    /// Reads a batch from the log; returns how many events it read, including those not selected.
    fn fill(&mut self) -> usize {
        let Some(tail) = &mut self.tail else { return 0 };
        match self.objects.storage().index().read(tail, BATCH) {
            Ok(batch) => {
                let count = batch.events.len();
                for event in batch.events {
                    if let Some(event) = self.select(&event) {
                        self.pending.push_back(event);
                    }
                }
                count
            }
            Err(error) => {
                self.pending.push_back(WatchEvent::Error(too_old(&error)));
                self.tail = None;
                1
            }
        }
    }

    /// The event for this watcher, if it concerns a selected object.
    fn select(&self, event: &Event) -> Option<WatchEvent> {
        if let Some(namespace) = &self.namespace
            && event.version.key().namespace() != namespace
        {
            return None;
        }
        let matches = |version: &Version| self.options.list.matches(&self.resource, version);
        let was = event.previous.as_deref().is_some_and(matches);
        let is = event.kind != EventKind::Deleted && matches(&event.version);
        match (was, is) {
            (false, false) => None,
            (false, true) => Some(WatchEvent::Added(event.version.clone())),
            (true, true) => Some(WatchEvent::Modified(event.version.clone())),
            (true, false) if event.kind == EventKind::Deleted => {
                Some(WatchEvent::Deleted(event.version.clone()))
            }
            (true, false) => event.left().cloned().map(WatchEvent::Deleted),
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        if now >= self.deadline {
            self.ended = true;
            return;
        }
        if now >= self.last_bookmark {
            self.last_bookmark = self.deadline;
        }
        self.next_bookmark = now + BOOKMARK_EVERY;
        // Read the log first, so that the bookmark has the latest revision.
        while self.fill() > 0 {}
        let revision = self.tail.as_ref().map_or(0, Tail::after);
        self.pending.push_back(WatchEvent::Bookmark { revision, initial_events_end: false });
    }

    fn still_served(&self) -> bool {
        let def = &self.resource.def;
        let served = self.objects.resources().resource(&def.group, &def.version, &def.plural);
        served.is_some_and(|served| served.id() == self.resource.id())
    }
}
