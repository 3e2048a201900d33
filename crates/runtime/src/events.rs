//! Events (core/v1), as `kubectl describe` shows them.
//!
//! An event is a [`Note`], a value that decisions return. A [`Recorder`] writes notes in the background, so that no
//! pass waits for them. Repeated notes increase a count, and a lasting state is not recorded in every pass.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::Clock;
use crate::error::is_already_exists;

/// A lasting state is recorded again only after this time: often enough that its event does not expire.
const REPEAT: SignedDuration = SignedDuration::from_mins(10);
/// A pass that runs before its cache has caught up, or whose status is not written yet (see [`pace`](crate::pace)), records
/// the same note again.
const ECHO: SignedDuration = SignedDuration::from_secs(12);
/// Notes that wait to be written; more are dropped, because events are less important than the work that they report.
const BACKLOG: usize = 1024;
/// Remembered notes; more than in a busy minute.
const REMEMBERED: usize = 4096;
/// If the API does not respond within this time, the note is dropped and the next one is written.
const LIMIT: Duration = Duration::from_secs(10);
/// After this many different notes with one reason about one object, the others share one event, as in client-go: a
/// rollout of a hundred machines should not create a hundred events.
const SIMILAR: usize = 25;
/// The API rejects longer messages.
const LONGEST: usize = 1024;
/// A wait that ends sooner is not recorded.
pub const SETTLE: Duration = Duration::from_secs(5);

/// An event about an object.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Note {
    /// `Normal` or `Warning`.
    pub type_: &'static str,
    /// One CamelCase word.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
    /// It is a state rather than a change: it is recorded once while it lasts.
    pub standing: bool,
    /// It is recorded only if no other note about the object follows within [`SETTLE`].
    pub if_it_lasts: bool,
}

impl Note {
    /// A normal event.
    pub fn normal(reason: &'static str, message: impl Into<String>) -> Self {
        Self { type_: "Normal", reason, message: message.into(), standing: false, if_it_lasts: false }
    }

    /// An event that may need attention.
    pub fn warning(reason: &'static str, message: impl Into<String>) -> Self {
        Self { type_: "Warning", ..Self::normal(reason, message) }
    }

    /// Marks it as a lasting state.
    #[must_use]
    pub fn standing(self) -> Self {
        Self { standing: true, ..self }
    }

    /// Records it only if it lasts, for waits, most of which end within a moment.
    #[must_use]
    pub fn if_it_lasts(self) -> Self {
        Self { if_it_lasts: true, ..self }
    }
}

/// Records events of a controller.
#[derive(Clone)]
pub struct Recorder {
    clock: Arc<dyn Clock>,
    backlog: mpsc::Sender<(ObjectReference, Note, Timestamp)>,
}

impl Recorder {
    /// Must be called inside a runtime, in which a task writes the notes until the last clone is dropped.
    pub fn new(client: Client, clock: Arc<dyn Clock>, component: &'static str) -> Self {
        let (backlog, notes) = mpsc::channel(BACKLOG);
        let writer = Writer {
            client,
            component,
            recorded: BTreeMap::new(),
            similar: BTreeMap::new(),
            unsettled: VecDeque::new(),
        };
        tokio::spawn(writer.run(notes));
        Self { clock, backlog }
    }

    /// Records notes about an object, in order.
    pub fn publish<'a, K>(&self, object: &K, notes: impl IntoIterator<Item = &'a Note>)
    where
        K: Resource<DynamicType = ()>,
    {
        let reference = object.object_ref(&());
        notes.into_iter().for_each(|note| self.record(reference.clone(), note.clone()));
    }

    /// Records a note about any object. A failure to write it is logged, never returned.
    pub fn record(&self, object: ObjectReference, note: Note) {
        if let Err(error) = self.backlog.try_send((object, note, self.clock.now())) {
            tracing::debug!(%error, "event dropped");
        }
    }
}

/// Writes notes as events.
struct Writer {
    client: Client,
    component: &'static str,
    /// When each event was recorded last, by name.
    recorded: BTreeMap<String, Timestamp>,
    /// Start time and number of different notes, by object and reason.
    similar: BTreeMap<(String, &'static str), (Timestamp, usize)>,
    /// Waits that are recorded if they last, at most one per object, in the order in which they are due.
    unsettled: VecDeque<Unsettled>,
}

struct Unsettled {
    due: Instant,
    object: ObjectReference,
    note: Note,
    at: Timestamp,
}

impl Writer {
    async fn run(mut self, mut notes: mpsc::Receiver<(ObjectReference, Note, Timestamp)>) {
        loop {
            let due = self.unsettled.front().map(|wait| wait.due);
            let settled = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                note = notes.recv() => {
                    let Some((object, note, now)) = note else { return };
                    self.note(object, note, now).await;
                }
                () = settled => {
                    if let Some(wait) = self.unsettled.pop_front() {
                        self.record(wait.object, wait.note, wait.at).await;
                    }
                }
            }
        }
    }

    /// Records a note, or keeps it until it is known to last. Every note ends an earlier wait of the object.
    async fn note(&mut self, object: ObjectReference, note: Note, now: Timestamp) {
        if let Some(at) = self.unsettled.iter().position(|wait| wait.object.uid == object.uid) {
            if self.unsettled[at].note == note {
                return;
            }
            self.unsettled.remove(at);
        }
        if !note.if_it_lasts {
            return self.record(object, note, now).await;
        }
        if self.unsettled.len() < BACKLOG {
            self.unsettled.push_back(Unsettled { due: Instant::now() + SETTLE, object, note, at: now });
        }
    }

    async fn record(&mut self, object: ObjectReference, mut note: Note, now: Timestamp) {
        let name = event_name(&object, note.reason, &note.message);
        let quiet = if note.standing { REPEAT } else { ECHO };
        if self.recorded.get(&name).is_some_and(|last| now.duration_since(*last) < quiet) {
            return;
        }
        let mut event = name.clone();
        if self.is_one_of_many(&object, note.reason, now) {
            event = event_name(&object, note.reason, "");
            note.message = format!("(combined from similar events): {}", note.message);
        }
        match tokio::time::timeout(LIMIT, self.write(&event, object, &note, now)).await {
            Ok(Ok(())) => self.remember(name, now),
            Ok(Err(error)) => tracing::debug!(%error, %name, reason = note.reason, "event not recorded"),
            Err(error) => tracing::debug!(%error, %name, reason = note.reason, "event not recorded"),
        }
    }

    fn is_one_of_many(&mut self, object: &ObjectReference, reason: &'static str, now: Timestamp) -> bool {
        if self.similar.len() >= REMEMBERED {
            self.similar.retain(|_, (since, _)| now.duration_since(*since) < REPEAT);
        }
        if self.similar.len() >= REMEMBERED {
            self.similar.clear();
        }
        let key = (object.uid.clone().unwrap_or_default(), reason);
        let (since, count) = self.similar.entry(key).or_insert((now, 0));
        if now.duration_since(*since) >= REPEAT {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        *count > SIMILAR
    }

    fn remember(&mut self, name: String, now: Timestamp) {
        if self.recorded.len() >= REMEMBERED {
            self.recorded.retain(|_, last| now.duration_since(*last) < REPEAT);
        }
        if self.recorded.len() >= REMEMBERED {
            self.recorded.clear();
        }
        self.recorded.insert(name, now);
    }

    async fn write(
        &self,
        name: &str,
        object: ObjectReference,
        note: &Note,
        now: Timestamp,
    ) -> Result<(), kube::Error> {
        let namespace = object.namespace.clone().unwrap_or_else(|| "default".into());
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let time = Time(crate::conditions::whole_seconds(now));
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name.into()),
                namespace: Some(namespace),
                ..ObjectMeta::default()
            },
            involved_object: object,
            type_: Some(note.type_.into()),
            reason: Some(note.reason.into()),
            message: Some(shortened(&note.message)),
            count: Some(1),
            first_timestamp: Some(time.clone()),
            last_timestamp: Some(time.clone()),
            source: Some(EventSource { component: Some(self.component.into()), host: None }),
            reporting_component: Some(self.component.into()),
            ..Event::default()
        };
        match api.create(&PostParams::default(), &event).await {
            Err(error) if is_already_exists(&error) => {}
            created => return created.map(|_| ()),
        }
        let Some(old) = api.get_opt(name).await? else { return Ok(()) };
        let last = old.last_timestamp.map(|last| last.0);
        if note.standing && last.is_some_and(|last| now.duration_since(last) < REPEAT) {
            // Recorded before a restart.
            return Ok(());
        }
        let again = json!({
            "count": old.count.unwrap_or(1).saturating_add(1),
            "lastTimestamp": time,
            "message": shortened(&note.message),
        });
        api.patch(name, &PatchParams::default(), &Patch::Merge(again)).await.map(|_| ())
    }
}

fn shortened(message: &str) -> String {
    if message.len() <= LONGEST {
        return message.to_owned();
    }
    let mut end = LONGEST - '…'.len_utf8();
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &message[..end])
}

/// The same event of the same object has the same name, also after a restart.
fn event_name(object: &ObjectReference, reason: &str, message: &str) -> String {
    let mut hash = Sha256::new();
    for part in [object.uid.as_deref().unwrap_or_default(), reason, message] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let digest = hash.finalize();
    let suffix: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let name = object.name.as_deref().unwrap_or("object");
    format!("{}.{suffix}", &name[..name.len().min(200)])
}

#[cfg(test)]
mod tests;
