//! Tests of object semantics, without HTTP and without disk.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::builtin;
use crate::clock::{SystemClock, TokioClock};
use crate::resources::{Propagation, ResourceDef, Rules, SubresourceDef};
use crate::storage::{MemoryStorage, Retention};
use crate::strategy::Plain;

struct Fixture {
    objects: Objects,
    context: WriteContext,
}

impl Fixture {
    fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let storage = Arc::new(MemoryStorage::with(clock.clone(), Retention::default()));
        let resources = Arc::new(ResourceTable::new(builtin::resources().into_iter().chain([custom()])));
        let objects = Objects::new(storage, resources, clock, None, Vec::new());
        Self { objects, context: WriteContext { field_manager: "test".into(), ..WriteContext::default() } }
    }

    fn resource(&self, group: &str, plural: &str) -> Arc<Resource> {
        self.objects.resources().resource(group, "v1", plural).unwrap()
    }

    fn maps(&self) -> Arc<Resource> {
        self.resource("", "configmaps")
    }

    async fn create(&self, resource: &Arc<Resource>, object: Value) -> Value {
        self.objects.create(&self.context, resource, "a", object).await.unwrap().version.decode()
    }

    async fn put(&self, resource: &Arc<Resource>, sub: &str, object: Value) -> Result<Outcome, Status> {
        let name = object.name().to_owned();
        let options = UpdateOptions { subresource: sub, ..UpdateOptions::default() };
        self.objects.update(&self.context, resource, "a", &name, options, |_| Ok(object.clone())).await
    }

    async fn delete(&self, resource: &Arc<Resource>, name: &str, propagation: Propagation) -> Deleted {
        let options = DeleteOptions { propagation: Some(propagation), ..DeleteOptions::default() };
        self.objects.delete(&self.context, resource, "a", name, &options).await.unwrap()
    }

    async fn watch(&self, resource: &Arc<Resource>, change: impl FnOnce(&mut WatchOptions)) -> Watch {
        let mut options = WatchOptions {
            list: ListOptions::default(),
            send_initial_events: None,
            bookmarks: false,
            timeout: Duration::from_secs(600),
        };
        change(&mut options);
        self.objects.watch(resource, Some("a"), options).await.unwrap()
    }
}

/// Like a CRD with a status subresource.
fn custom() -> Resource {
    let def = ResourceDef {
        group: "x.io".into(),
        version: "v1".into(),
        plural: "foos".into(),
        singular: "foo".into(),
        kind: "Foo".into(),
        list_kind: "FooList".into(),
        namespaced: true,
        custom: true,
        subresources: vec![SubresourceDef::status("Foo")],
        rules: Rules { unconditional_update: false, generation: true, wipe_status: true, ..Rules::default() },
        ..ResourceDef::default()
    };
    Resource::new(def, Arc::new(Plain))
}

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"a": "1"}})
}

fn foo(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"x": 1}, "status": {"ready": true}})
}

fn summary(event: &WatchEvent) -> String {
    match event.version() {
        Some(version) => format!("{} {}", event.name(), version.key().name()),
        None => event.name().to_owned(),
    }
}

fn drain(watch: &mut Watch) -> Vec<String> {
    std::iter::from_fn(|| watch.next_ready()).map(|event| summary(&event)).collect()
}

#[tokio::test]
async fn create_sets_server_controlled_fields() {
    let fixture = Fixture::new();
    let sent = json!({"metadata": {
        "name": "x", "uid": "mine", "deletionTimestamp": "2020-01-01T00:00:00Z", "generation": 7,
        "selfLink": "/x", "creationTimestamp": null,
    }});
    let object = fixture.create(&fixture.maps(), sent).await;
    assert_ne!(object.uid(), "mine");
    assert_eq!(object.uid().len(), 36);
    assert!(!object.is_deleting());
    assert_eq!(object["metadata"].get("generation"), None);
    assert_eq!(object["metadata"].get("selfLink"), None);
    assert_eq!(object.namespace(), "a");
    assert_eq!(object.kind(), "ConfigMap");
    assert_eq!(object.meta_str("creationTimestamp").len(), "2026-01-01T00:00:00Z".len());
    let again = fixture.objects.create(&fixture.context, &fixture.maps(), "a", map("x")).await.unwrap_err();
    assert_eq!((again.code, &*again.message), (409, "configmaps \"x\" already exists"));
}

#[tokio::test]
async fn identity_must_match_the_url() {
    let fixture = Fixture::new();
    let maps = fixture.maps();
    for bad in [
        json!({"metadata": {"name": "x", "namespace": "b"}}),
        json!({"kind": "Secret", "metadata": {"name": "x"}}),
        json!({"apiVersion": "v2", "metadata": {"name": "x"}}),
        json!([]),
        json!({"metadata": 3}),
    ] {
        let status = fixture.objects.create(&fixture.context, &maps, "a", bad.clone()).await.unwrap_err();
        assert_eq!(status.code, 400, "{bad}");
    }
    for bad in ["A", "a_b", ""] {
        let status = fixture.objects.create(&fixture.context, &maps, "a", map(bad)).await.unwrap_err();
        assert_eq!(status.code, 422, "{bad}");
    }
}

#[tokio::test]
async fn check_12_a_put_of_the_stored_object_changes_nothing() {
    let fixture = Fixture::new();
    let foos = fixture.resource("x.io", "foos");
    let stored = fixture.create(&foos, foo("x")).await;
    let mut watch = fixture.watch(&foos, |options| options.send_initial_events = Some(false)).await;
    let outcome = fixture.put(&foos, "", stored.clone()).await.unwrap();
    assert!(!outcome.changed);
    assert_eq!(outcome.version.decode(), stored);
    assert!(drain(&mut watch).is_empty());
}

#[tokio::test]
async fn check_11_and_13_resource_versions_guard_updates() {
    let fixture = Fixture::new();
    let (foos, maps) = (fixture.resource("x.io", "foos"), fixture.maps());
    let stored = fixture.create(&foos, foo("x")).await;
    let mut changed = stored.clone();
    changed["spec"]["x"] = 2.into();
    fixture.put(&foos, "", changed.clone()).await.unwrap();
    assert_eq!(fixture.put(&foos, "", changed).await.unwrap_err().code, 409);
    let mut bare = foo("x");
    bare["spec"]["x"] = 3.into();
    let status = fixture.put(&foos, "", bare).await.unwrap_err();
    assert_eq!(status.code, 422);
    assert!(
        status
            .message
            .contains("metadata.resourceVersion: Invalid value: 0: must be specified for an update")
    );
    fixture.create(&maps, map("m")).await;
    let mut bare = map("m");
    bare["data"]["a"] = "2".into();
    assert!(fixture.put(&maps, "", bare).await.unwrap().changed);
}

#[tokio::test]
async fn check_14_status_and_spec_writes_are_separate() {
    let fixture = Fixture::new();
    let foos = fixture.resource("x.io", "foos");
    let stored = fixture.create(&foos, foo("x")).await;
    assert_eq!(stored.get("status"), None);
    assert_eq!(stored["metadata"]["generation"], 1);
    let mut all = stored.clone();
    all["status"] = json!({"ready": true});
    all["spec"]["x"] = 5.into();
    all["metadata"]["labels"] = json!({"a": "b"});
    let after = fixture.put(&foos, "status", all.clone()).await.unwrap().version.decode();
    assert_eq!(after["status"]["ready"], true);
    assert_eq!(after["spec"], stored["spec"]);
    assert_eq!(after["metadata"].get("labels"), None);
    assert_eq!(after["metadata"]["generation"], 1);
    all.set_meta_str("resourceVersion", after.resource_version());
    all["status"] = json!({"ready": false});
    let after = fixture.put(&foos, "", all).await.unwrap().version.decode();
    assert_eq!(after["status"]["ready"], true);
    assert_eq!(after["spec"]["x"], 5);
    assert_eq!(after["metadata"]["generation"], 2);
    assert_eq!(after["metadata"]["labels"]["a"], "b");
}

#[tokio::test]
async fn check_15_collisions_of_generated_names_are_retried() {
    let fixture = Fixture::new();
    let maps = fixture.maps();
    let object = json!({"metadata": {"generateName": "a-"}});
    for _ in 0..2_000 {
        let name = fixture.create(&maps, object.clone()).await.name().to_owned();
        let suffix = name.strip_prefix("a-").unwrap();
        assert!(
            suffix.len() == 5 && suffix.bytes().all(|c| b"bcdfghjklmnpqrstvwxz2456789".contains(&c)),
            "{name}"
        );
    }
    let long = json!({"metadata": {"generateName": "x".repeat(100)}});
    assert_eq!(fixture.create(&maps, long).await.name().len(), 63);
}

#[tokio::test]
async fn check_16_an_object_is_removed_with_its_last_finalizer() {
    let fixture = Fixture::new();
    let foos = fixture.resource("x.io", "foos");
    let mut object = foo("x");
    object["metadata"]["finalizers"] = json!(["a.io/x"]);
    fixture.create(&foos, object).await;
    let mut watch = fixture.watch(&foos, |options| options.send_initial_events = Some(false)).await;
    let deleted = fixture.delete(&foos, "x", Propagation::Background).await;
    assert!(!deleted.removed);
    let held = deleted.version.decode();
    assert!(held.is_deleting());
    assert_eq!(held["metadata"]["deletionGracePeriodSeconds"], 0);
    assert_eq!(held["metadata"]["generation"], 2);
    // Deleting it again has no effect.
    let again = fixture.delete(&foos, "x", Propagation::Background).await;
    assert_eq!(again.version.revision(), deleted.version.revision());
    let mut more = held.clone();
    more["metadata"]["finalizers"] = json!(["a.io/x", "a.io/y"]);
    assert_eq!(fixture.put(&foos, "", more).await.unwrap_err().code, 422);
    let create = fixture.objects.create(&fixture.context, &foos, "a", foo("x")).await.unwrap_err();
    assert!(create.message.starts_with("object is being deleted"), "{create}");
    let mut last = held;
    last["metadata"]["finalizers"] = json!([]);
    assert!(fixture.put(&foos, "", last).await.unwrap().removed);
    assert_eq!(drain(&mut watch), ["MODIFIED x", "DELETED x"]);
}

#[tokio::test]
async fn check_17_failed_preconditions_leave_the_object_unchanged() {
    let fixture = Fixture::new();
    let maps = fixture.maps();
    let stored = fixture.create(&maps, map("x")).await;
    let options = DeleteOptions { uid: Some("other".into()), ..DeleteOptions::default() };
    let status = fixture.objects.delete(&fixture.context, &maps, "a", "x", &options).await.unwrap_err();
    assert_eq!(status.code, 409);
    let options = DeleteOptions { resource_version: Some("1".into()), ..DeleteOptions::default() };
    assert_eq!(
        fixture.objects.delete(&fixture.context, &maps, "a", "x", &options).await.unwrap_err().code,
        409
    );
    assert_eq!(fixture.objects.get(&maps, "a", "x").unwrap().meta().uid.as_ref(), stored.uid());
}

#[tokio::test]
async fn propagation_becomes_a_finalizer() {
    let fixture = Fixture::new();
    let foos = fixture.resource("x.io", "foos");
    for (propagation, finalizer) in [(Propagation::Orphan, ORPHAN), (Propagation::Foreground, FOREGROUND)] {
        let name = finalizer.to_lowercase();
        fixture.create(&foos, foo(&name)).await;
        let held = fixture.delete(&foos, &name, propagation).await;
        assert_eq!(held.version.decode().finalizers(), [finalizer]);
    }
    fixture.create(&foos, foo("b")).await;
    assert!(fixture.delete(&foos, "b", Propagation::Background).await.removed);
}

#[tokio::test]
async fn check_27_a_dry_run_stores_nothing() {
    let mut fixture = Fixture::new();
    let maps = fixture.maps();
    let mut watch = fixture.watch(&maps, |_| ()).await;
    let before = fixture.objects.storage().index().revision();
    fixture.context.dry_run = true;
    let object = fixture.create(&maps, map("x")).await;
    assert!(!object.uid().is_empty());
    assert_eq!(object.resource_version(), "");
    assert!(fixture.objects.get(&maps, "a", "x").is_err());
    assert!(drain(&mut watch).is_empty());
    assert_eq!(fixture.objects.storage().index().revision(), before);
}

#[tokio::test]
async fn selectors_turn_changes_into_added_and_deleted_events() {
    let fixture = Fixture::new();
    let maps = fixture.maps();
    let mut watch = fixture
        .watch(&maps, |options| {
            options.list.labels = crate::selector::LabelSelector::parse("on=yes").unwrap()
        })
        .await;
    let mut object = map("x");
    fixture.create(&maps, object.clone()).await;
    object["metadata"]["labels"] = json!({"on": "yes"});
    fixture.put(&maps, "", object.clone()).await.unwrap();
    object["data"]["a"] = "2".into();
    fixture.put(&maps, "", object.clone()).await.unwrap();
    object["metadata"]["labels"] = json!({"on": "no"});
    object["data"]["a"] = "3".into();
    let left = fixture.put(&maps, "", object.clone()).await.unwrap().version.revision();
    object["metadata"]["labels"] = json!({"on": "yes"});
    fixture.put(&maps, "", object).await.unwrap();
    fixture.delete(&maps, "x", Propagation::Background).await;
    let events: Vec<WatchEvent> = std::iter::from_fn(|| watch.next_ready()).collect();
    let kinds: Vec<&str> = events.iter().map(WatchEvent::name).collect();
    assert_eq!(kinds, ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]);
    // It left the selection: sent with its previous content and the new revision.
    let gone = events[2].version().unwrap().decode();
    assert_eq!(gone["data"]["a"], "2");
    assert_eq!(gone.resource_version(), left.to_string());
}

#[tokio::test(start_paused = true)]
async fn initial_events_bookmarks_and_a_clean_end_in_virtual_time() {
    let clock = TokioClock::starting_at(Timestamp::from_second(1_800_000_000).unwrap());
    let fixture = Fixture::with_clock(Arc::new(clock));
    let maps = fixture.maps();
    fixture.create(&maps, map("x")).await;
    let mut watch = fixture
        .watch(&maps, |options| {
            options.send_initial_events = Some(true);
            options.bookmarks = true;
            options.timeout = Duration::from_secs(90);
        })
        .await;
    assert_eq!(summary(&watch.next().await.unwrap()), "ADDED x");
    let end = watch.next().await.unwrap();
    assert!(matches!(end, WatchEvent::Bookmark { initial_events_end: true, .. }), "{end:?}");
    // Writes of other resources advance the revision; the bookmark follows.
    fixture.create(&fixture.resource("", "secrets"), json!({"metadata": {"name": "s"}})).await;
    let started = tokio::time::Instant::now();
    let Some(WatchEvent::Bookmark { revision, .. }) = watch.next().await else { panic!("no bookmark") };
    assert_eq!(revision, fixture.objects.storage().index().revision());
    assert_eq!(started.elapsed().as_secs(), 60);
    assert_eq!(summary(&watch.next().await.unwrap()), "BOOKMARK");
    assert_eq!(started.elapsed().as_secs(), 88);
    assert!(watch.next().await.is_none());
    assert_eq!(started.elapsed().as_secs(), 90);
}

#[tokio::test]
async fn a_watch_ends_when_its_resource_is_no_longer_served() {
    let fixture = Fixture::new();
    let foos = fixture.resource("x.io", "foos");
    let mut watch = fixture.watch(&foos, |_| ()).await;
    fixture.objects.resources().change(|editor| drop(editor.remove("x.io", "v1", "foos")));
    assert!(tokio::time::timeout(Duration::from_secs(10), watch.next()).await.unwrap().is_none());
}

#[tokio::test]
async fn check_9_pages_come_from_one_snapshot() {
    let fixture = Fixture::new();
    let maps = fixture.maps();
    for n in 0..1_200 {
        fixture.create(&maps, map(&format!("m{n:04}"))).await;
    }
    let mut options = ListOptions { limit: 500, ..ListOptions::default() };
    let mut sizes = Vec::new();
    let mut names = Vec::new();
    let mut revision = None;
    loop {
        let page = fixture.objects.list(&maps, Some("a"), &options).await.unwrap();
        assert_eq!(*revision.get_or_insert(page.revision), page.revision);
        sizes.push((page.items.len(), page.remaining));
        names.extend(page.items.iter().map(|item| item.key().name().to_owned()));
        fixture.create(&maps, map(&format!("zz{}", names.len()))).await;
        fixture
            .delete(&maps, &format!("m{:04}", names.len().saturating_sub(1)), Propagation::Background)
            .await;
        fixture
            .delete(&maps, &format!("m{:04}", (names.len() + 10).min(1_100)), Propagation::Background)
            .await;
        let Some(token) = page.continue_token else { break };
        options.continue_token = Some(token);
    }
    assert_eq!(sizes, [(500, Some(700)), (500, Some(200)), (200, None)]);
    assert_eq!(names, (0..1_200).map(|n| format!("m{n:04}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn check_10_invalid_continue_tokens_are_rejected() {
    use base64::Engine;
    let fixture = Fixture::new();
    let encode = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
    for bad in [
        "%%%".to_owned(),
        encode("{}"),
        encode(r#"{"v":"meta.k8s.io/v1","rv":5,"start":"../secrets/x"}"#),
        encode(r#"{"v":"meta.k8s.io/v1","rv":5,"start":"/x"}"#),
        encode(r#"{"v":"v2","rv":5,"start":"x"}"#),
    ] {
        let options = ListOptions { limit: 1, continue_token: Some(bad.clone()), ..ListOptions::default() };
        assert_eq!(
            fixture.objects.list(&fixture.maps(), Some("a"), &options).await.unwrap_err().code,
            400,
            "{bad}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn check_8_a_revision_from_the_future_times_out() {
    let fixture = Fixture::new();
    let options = ListOptions {
        resource_version: Some(1_000),
        version_match: Some(VersionMatch::NotOlderThan),
        ..ListOptions::default()
    };
    let started = tokio::time::Instant::now();
    let status = fixture.objects.list(&fixture.maps(), Some("a"), &options).await.unwrap_err();
    assert_eq!(started.elapsed().as_secs(), 3);
    assert_eq!(status.code, 504);
    let details = status.details.unwrap();
    assert_eq!(details.causes[0].reason, "ResourceVersionTooLarge");
    assert_eq!(details.retry_after_seconds, 1);
}

#[tokio::test]
async fn events_of_both_groups_share_one_storage() {
    let fixture = Fixture::new();
    let (core, new) = (fixture.resource("", "events"), fixture.resource("events.k8s.io", "events"));
    let event = json!({"metadata": {"name": "e"}, "note": "hello", "regarding": {"kind": "Pod", "name": "p"}, "reason": "R"});
    fixture.create(&new, event).await;
    let stored = fixture.objects.get(&core, "a", "e").unwrap();
    let old = core.decode(&stored).await.unwrap();
    assert_eq!((old["message"].as_str(), old["involvedObject"]["name"].as_str()), (Some("hello"), Some("p")));
    assert_eq!(old.api_version(), "v1");
    let renamed = new.decode(&stored).await.unwrap();
    assert_eq!((renamed["note"].as_str(), renamed.api_version()), (Some("hello"), "events.k8s.io/v1"));
    for (resource, selector) in [(&core, "involvedObject.name=p"), (&new, "regarding.name=p,reason=R")] {
        let fields = crate::selector::FieldSelector::parse(selector).unwrap();
        fields.check(resource).unwrap();
        let options = ListOptions { fields, ..ListOptions::default() };
        assert_eq!(fixture.objects.list(resource, Some("a"), &options).await.unwrap().items.len(), 1);
    }
}

#[tokio::test]
async fn namespaces_have_two_kinds_of_finalizers() {
    let fixture = Fixture::new();
    let namespaces = fixture.resource("", "namespaces");
    let create =
        fixture.objects.create(&fixture.context, &namespaces, "", json!({"metadata": {"name": "n"}}));
    let object = create.await.unwrap().version.decode();
    assert_eq!(object["spec"]["finalizers"], json!(["kubernetes"]));
    assert_eq!(object["status"]["phase"], "Active");
    assert_eq!(object["metadata"]["labels"]["kubernetes.io/metadata.name"], "n");
    let options = DeleteOptions::default();
    let delete = fixture.objects.delete(&fixture.context, &namespaces, "", "n", &options);
    let deleted = delete.await.unwrap();
    assert!(!deleted.removed);
    assert_eq!(deleted.version.decode()["status"]["phase"], "Terminating");
    let options = UpdateOptions { subresource: "finalize", ..UpdateOptions::default() };
    let finalize = fixture.objects.update(&fixture.context, &namespaces, "", "n", options, |old| {
        let mut object = old.cloned().unwrap();
        object["spec"] = json!({});
        Ok(object)
    });
    assert!(finalize.await.unwrap().removed);
    assert!(fixture.objects.get(&namespaces, "", "n").is_err());
}
