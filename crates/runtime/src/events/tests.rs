use std::time::Duration;

use drover_apiserver::auth::pki::Pki;
use drover_apiserver::embedded::{Embedded, EmbeddedOptions};
use drover_apiserver::identity::UserInfo;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::ListParams;
use parking_lot::Mutex;

use super::*;
use crate::in_process_client;

/// Time that a test moves.
struct Watch(Mutex<Timestamp>);

impl Clock for Watch {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}

struct World {
    server: Embedded,
    clock: Arc<Watch>,
}

impl World {
    async fn start() -> Self {
        let server =
            Embedded::start(EmbeddedOptions::in_memory(Arc::new(Pki::in_memory(Timestamp::now()).unwrap())))
                .await
                .unwrap();
        Self { server, clock: Arc::new(Watch(Mutex::new(Timestamp::now()))) }
    }

    fn client(&self) -> Client {
        in_process_client(self.server.service(), UserInfo::system_masters("test"))
    }

    fn recorder(&self) -> Recorder {
        Recorder::new(self.client(), self.clock.clone(), "test")
    }

    fn later(&self, by: SignedDuration) {
        let mut now = self.clock.0.lock();
        *now += by;
    }

    /// What a recorder has written of an object, once it has written the note that ends the story.
    async fn story(&self, recorder: &Recorder, object: &ConfigMap) -> Vec<(String, i32, String)> {
        let end =
            ConfigMap { metadata: meta(&format!("end-{}", rand::random::<u64>())), ..Default::default() };
        recorder.publish(&end, &[Note::normal("End", "of story")]);
        let api: Api<Event> = Api::namespaced(self.client(), "default");
        let of = |name: String| ListParams::default().fields(&format!("involvedObject.name={name}"));
        let written = async {
            while api.list(&of(end.name_any())).await.unwrap().items.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), written).await.unwrap();
        let mut events = api.list(&of(object.name_any())).await.unwrap().items;
        events.sort_by_key(|event| event.reason.clone());
        events
            .into_iter()
            .map(|e| (e.reason.unwrap(), e.count.unwrap(), e.metadata.resource_version.unwrap_or_default()))
            .collect()
    }
}

fn meta(name: &str) -> ObjectMeta {
    ObjectMeta {
        namespace: Some("default".into()),
        name: Some(name.into()),
        uid: Some(format!("uid-{name}")),
        ..ObjectMeta::default()
    }
}

fn object() -> ConfigMap {
    ConfigMap { metadata: meta("object"), ..ConfigMap::default() }
}

fn counts(story: &[(String, i32, String)]) -> Vec<(&str, i32)> {
    story.iter().map(|(reason, count, _)| (reason.as_str(), *count)).collect()
}

fn counts_owned(story: &[(String, i32, String)]) -> Vec<(String, i32)> {
    story.iter().map(|(reason, count, _)| (reason.clone(), *count)).collect()
}

#[tokio::test]
async fn what_happens_again_raises_the_count_and_an_echo_does_not() {
    let world = World::start().await;
    let recorder = world.recorder();
    let notes = [Note::normal("Made", "one"), Note::warning("Broken", "two")];
    recorder.publish(&object(), &notes);
    recorder.publish(&object(), &notes);
    assert_eq!(counts(&world.story(&recorder, &object()).await), [("Broken", 1), ("Made", 1)]);
    world.later(ECHO);
    recorder.publish(&object(), &notes[..1]);
    assert_eq!(counts(&world.story(&recorder, &object()).await), [("Broken", 1), ("Made", 2)]);
}

#[tokio::test]
async fn a_state_that_goes_on_is_written_once_also_after_a_restart() {
    let world = World::start().await;
    let waiting = Note::normal("Waiting", "for a Node").standing();
    let recorder = world.recorder();
    recorder.publish(&object(), [&waiting]);
    let first = world.story(&recorder, &object()).await;
    for _ in 0..20 {
        world.later(SignedDuration::from_secs(15));
        recorder.publish(&object(), [&waiting]);
    }
    assert_eq!(world.story(&recorder, &object()).await, first, "nothing was written");
    drop(recorder);
    let recorder = world.recorder();
    recorder.publish(&object(), [&waiting]);
    assert_eq!(world.story(&recorder, &object()).await, first, "nothing was written after a restart");
    world.later(REPEAT);
    recorder.publish(&object(), [&waiting]);
    assert_eq!(counts(&world.story(&recorder, &object()).await), [("Waiting", 2)], "before it expires");
}

#[tokio::test(start_paused = true)]
async fn a_wait_is_recorded_only_if_it_lasts() {
    let world = World::start().await;
    let recorder = world.recorder();
    let wait = |what: &str| Note::normal("Waiting", what).if_it_lasts();
    let passes = [wait("one"), wait("two"), Note::normal("Made", "it"), wait("three"), wait("three")];
    for note in &passes {
        recorder.publish(&object(), [note]);
    }
    assert_eq!(counts(&world.story(&recorder, &object()).await), [("Made", 1)]);
    tokio::time::sleep(SETTLE).await;
    assert_eq!(counts(&world.story(&recorder, &object()).await), [("Made", 1), ("Waiting", 1)]);
    let events: Api<Event> = Api::namespaced(world.client(), "default");
    let waits = events.list(&ListParams::default().fields("reason=Waiting")).await.unwrap().items;
    assert_eq!(waits.iter().filter_map(|event| event.message.as_deref()).collect::<Vec<_>>(), ["three"]);
}

#[tokio::test]
async fn many_notes_of_one_reason_share_an_event() {
    let world = World::start().await;
    let recorder = world.recorder();
    for number in 0..100 {
        recorder.publish(&object(), [&Note::normal("SuccessfulCreate", format!("Created Machine {number}"))]);
    }
    let story = counts_owned(&world.story(&recorder, &object()).await);
    assert_eq!(story.len(), SIMILAR + 1);
    assert_eq!(story.iter().map(|(_, count)| count).sum::<i32>(), 100, "none is forgotten");
}

#[test]
fn a_long_message_keeps_its_beginning() {
    let long = "ä".repeat(LONGEST);
    let short = shortened(&long);
    assert!(short.len() <= LONGEST && short.ends_with('…') && short.starts_with("ää"));
    assert_eq!(shortened("short"), "short");
}
