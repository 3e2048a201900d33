//! Tests of caches.

use std::collections::BTreeSet;

use super::caches::group_resource;
use super::follow::Watch;
use super::*;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, OwnerReference};
use kube::api::ObjectMeta;
use kube::runtime::watcher::Event;
use tokio_util::sync::CancellationToken;

fn config_map(name: &str, revision: u64, cluster: &str) -> ConfigMap {
    let labels = [("cluster".to_owned(), cluster.to_owned())].into();
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.into()),
            namespace: Some("ns".into()),
            resource_version: Some(revision.to_string()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    }
}

fn names(found: &[Arc<ConfigMap>]) -> Vec<&str> {
    found.iter().map(|o| o.metadata.name.as_deref().unwrap()).collect()
}

#[test]
fn resources_are_named_with_their_group() {
    assert_eq!(group_resource("v1/secrets"), "secrets");
    assert_eq!(group_resource("cluster.x-k8s.io/v1beta2/machines"), "machines.cluster.x-k8s.io");
}

#[test]
fn an_index_follows_the_objects() {
    let cache = Cache::fixed([config_map("a", 1, "one"), config_map("b", 2, "two")]);
    cache.index_by_label("cluster");
    assert_eq!(names(&cache.by_label("cluster", "ns", "one")), ["a"]);
    cache.upsert(config_map("a", 3, "two"), 1);
    assert_eq!(names(&cache.by_label("cluster", "ns", "two")), ["a", "b"]);
    assert!(cache.by_label("cluster", "ns", "one").is_empty());
    cache.remove(&ObjectKey::new("ns", "b"), 1);
    assert_eq!(names(&cache.by_label("cluster", "ns", "two")), ["a"]);
}

#[test]
fn subscribers_see_what_is_there_then_every_change_once() {
    let cache = Cache::fixed([config_map("a", 1, "one")]);
    let seen = Arc::new(Mutex::new(vec![]));
    let log = seen.clone();
    cache.subscribe(move |change| {
        log.lock().push((change.key.name.clone(), change.old.is_some(), change.new.is_some()));
    });
    cache.upsert(config_map("a", 1, "one"), 1);
    cache.upsert(config_map("a", 2, "one"), 1);
    cache.replace(vec![config_map("b", 5, "one")], 1, None);
    let expected = [("a", false, true), ("a", true, true), ("b", false, true), ("a", true, false)];
    assert_eq!(*seen.lock(), expected.map(|(n, o, w)| (n.to_owned(), o, w)));
}

#[tokio::test]
async fn caught_up_waits_for_the_revision() {
    let cache = Cache::fixed([config_map("a", 7, "one")]);
    assert!(cache.caught_up("7", Duration::from_millis(1)).await);
    assert!(!cache.caught_up("8", Duration::from_millis(1)).await);
    cache.on_event(Event::Apply(config_map("a", 9, "one")), &mut vec![], &ONE);
    assert!(cache.caught_up("8", Duration::from_millis(1)).await);
}

#[test]
fn a_subscriber_that_panics_misses_one_change_and_the_others_none() {
    let cache = Cache::fixed([]);
    let seen = Arc::new(Mutex::new(vec![]));
    for part in ["first", "second"] {
        let log = seen.clone();
        cache.subscribe(move |change| {
            log.lock().push((part, change.key.name.clone(), change.new.is_some()));
            assert!(part == "second" || change.key.name != "bad", "on purpose");
        });
    }
    cache.replace(vec![config_map("bad", 1, "one")], 1, None);
    cache.upsert(config_map("good", 2, "one"), 1);
    cache.remove(&ObjectKey::new("ns", "bad"), 1);
    let expected = [("bad", true), ("good", true), ("bad", false)];
    let expected =
        expected.map(|(name, there)| ["first", "second"].map(|part| (part, name.to_owned(), there)));
    assert_eq!(*seen.lock(), expected.as_flattened());
}

#[test]
fn objects_are_found_by_each_of_their_owners_while_they_have_them() {
    let owned = |name: &str, revision, owners: &[&str]| {
        let mut object = config_map(name, revision, "one");
        let owner = |uid: &&str| OwnerReference { uid: uid.to_string(), ..OwnerReference::default() };
        object.metadata.owner_references = Some(owners.iter().map(owner).collect());
        object
    };
    let cache = Cache::fixed([owned("a", 1, &["x", "y"]), owned("b", 2, &["y"])]);
    cache.index_by_owner();
    cache.upsert(owned("c", 3, &["y"]), 1);
    assert_eq!(names(&cache.by_index("owner", "x")), ["a"]);
    assert_eq!(names(&cache.by_index("owner", "y")), ["a", "b", "c"]);
    cache.upsert(owned("a", 4, &["x"]), 1);
    cache.remove(&ObjectKey::new("ns", "b"), 1);
    assert_eq!(names(&cache.by_index("owner", "x")), ["a"]);
    assert_eq!(names(&cache.by_index("owner", "y")), ["c"]);
    // A fresh list replaces what was known, in the index too.
    cache.replace(vec![owned("d", 5, &["x"])], 1, None);
    assert_eq!(names(&cache.by_index("owner", "x")), ["d"]);
    assert!(cache.by_index("owner", "y").is_empty() && cache.by_index("other", "x").is_empty());
}

#[test]
fn what_is_trimmed_is_not_kept() {
    let cache = Cache::of(Cache::<ConfigMap>::empty(1, None, |map| map.data = None));
    let mut object = config_map("a", 1, "one");
    object.data = Some([("large".to_owned(), "x".repeat(1000))].into());
    cache.upsert(object.clone(), 1);
    object.metadata.resource_version = Some("2".into());
    cache.replace(vec![object], 1, None);
    let kept = &cache.list()[0];
    assert_eq!((&kept.data, kept.metadata.resource_version.as_deref()), (&None, Some("2")));
}

#[test]
fn of_managed_fields_only_our_own_are_kept() {
    let mut object = config_map("a", 1, "one");
    let managers = [Some("drover/init/cluster"), Some("kubectl"), None, Some("drover/capi/machine")];
    let entry = |manager: Option<&str>| ManagedFieldsEntry {
        manager: manager.map(str::to_owned),
        ..ManagedFieldsEntry::default()
    };
    object.metadata.managed_fields = Some(managers.into_iter().map(entry).collect());
    let cache = Cache::fixed([object]);
    let kept = cache.list()[0].metadata.managed_fields.clone().unwrap();
    let kept: Vec<_> = kept.iter().map(|entry| entry.manager.as_deref().unwrap()).collect();
    assert_eq!(kept, ["drover/init/cluster", "drover/capi/machine"]);
}

/// Never ends a pass.
struct Stuck;

impl crate::Reconciler for Stuck {
    const NAME: &'static str = "stuck";

    async fn reconcile(&self, _: ObjectKey) -> Result<crate::Next, crate::Error> {
        std::future::pending().await
    }
}

struct Quick(Arc<Mutex<BTreeSet<String>>>);

impl crate::Reconciler for Quick {
    const NAME: &'static str = "quick";

    async fn reconcile(&self, key: ObjectKey) -> Result<crate::Next, crate::Error> {
        self.0.lock().insert(key.name);
        Ok(crate::Next::EVENT)
    }
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_is_stuck_delays_no_other() {
    let cache = Cache::fixed([config_map("m0", 1, "one")]);
    let (stop, seen) = (CancellationToken::new(), Arc::new(Mutex::new(BTreeSet::new())));
    let stuck = crate::Controller::new(Stuck).concurrency(1).reconciles(&cache);
    let stuck = tokio::spawn(stuck.run(stop.clone()));
    let quick = crate::Controller::new(Quick(seen.clone())).reconciles(&cache);
    let quick = tokio::spawn(quick.run(stop.clone()));
    for number in 1..100 {
        cache.upsert(config_map(&format!("m{number}"), 1 + number, "one"), 1);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(seen.lock().len(), 100);
    stop.cancel();
    quick.await.unwrap();
    stuck.abort();
}

const ONE: Watch = Watch { source: 1, scope: None };

/// A cache of two selectors.
fn selected() -> Cache<ConfigMap> {
    Cache::of(Cache::empty(0b11, None, |_| {}))
}

#[test]
fn an_object_is_held_until_it_has_left_every_selector() {
    let cache = selected();
    let (key, seen) = (ObjectKey::new("ns", "a"), Arc::new(Mutex::new(vec![])));
    let log = seen.clone();
    cache.subscribe(move |change| log.lock().push((change.old.is_some(), change.new.is_some())));
    cache.upsert(config_map("a", 4, "one"), 1);
    cache.upsert(config_map("a", 4, "one"), 2);
    cache.upsert(config_map("a", 6, "two"), 1);
    // The second watch is late.
    cache.upsert(config_map("a", 5, "late"), 2);
    assert_eq!(cache.get(&key).unwrap().metadata.resource_version.as_deref(), Some("6"));
    cache.remove(&key, 1);
    assert!(cache.get(&key).is_some());
    cache.replace(vec![config_map("b", 7, "two")], 2, None);
    assert_eq!(names(&cache.list()), ["b"]);
    assert_eq!(*seen.lock(), [(false, true), (true, true), (false, true), (true, false)]);
}

#[tokio::test]
async fn a_cache_of_several_selectors_is_synced_when_each_has_listed() {
    let cache = selected();
    cache.replace(vec![config_map("a", 4, "one")], 1, None);
    cache.on_event(Event::Apply(config_map("a", 9, "one")), &mut vec![], &ONE);
    assert!(!cache.is_synced());
    cache.replace(vec![], 2, None);
    assert!(cache.is_synced());
    let key = ObjectKey::new("ns", "a");
    assert!(cache.shows(&key, "9", Duration::from_millis(1)).await);
    assert!(!cache.shows(&key, "10", Duration::from_millis(1)).await);
    assert!(cache.shows(&ObjectKey::new("ns", "deleted"), "10", Duration::from_millis(1)).await);
}

#[tokio::test]
async fn objects_that_are_referred_to_are_held_as_long_as_someone_refers_to_them() {
    let pki = Arc::new(drover_apiserver::auth::pki::Pki::in_memory(jiff::Timestamp::now()).unwrap());
    let options = drover_apiserver::embedded::EmbeddedOptions::in_memory(pki);
    let server = drover_apiserver::embedded::Embedded::start(options).await.unwrap();
    let user = drover_apiserver::identity::UserInfo::system_masters("test");
    let client = crate::in_process_client(server.service(), user);
    let stop = CancellationToken::new();
    let _guard = stop.clone().drop_guard();
    let cache: Cache<ConfigMap> =
        Caches::new(client.clone(), stop).select_any(vec![Selector::fields("metadata.name=chosen")], |_| {});
    cache.synced().await;
    let api: kube::Api<ConfigMap> = kube::Api::namespaced(client, "default");
    for name in ["chosen", "a", "b"] {
        let mut map = config_map(name, 0, "one");
        map.metadata.namespace = None;
        map.metadata.resource_version = None;
        api.create(&Default::default(), &map).await.unwrap();
    }
    let key = |name: &str| ObjectKey::new("default", name);
    let until = async |what: &str, holds: &dyn Fn() -> bool| {
        let wait = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect(what);
    };
    until("the selected object is held", &|| cache.get(&key("chosen")).is_some()).await;
    assert!(matches!(cache.look_up(&key("a")), Lookup::Unknown), "not looked for");
    cache.refer("first", [key("a"), key("none")]);
    cache.refer("second", [key("a")]);
    until("the object is held", &|| matches!(cache.look_up(&key("a")), Lookup::Found(_))).await;
    until("it is known to be missing", &|| matches!(cache.look_up(&key("none")), Lookup::Missing)).await;
    let later = cache.get(&key("a")).unwrap().metadata.resource_version.clone();
    let patch = serde_json::json!({"data": {"k": "v"}});
    api.patch("a", &Default::default(), &kube::api::Patch::Merge(patch)).await.unwrap();
    until("a change is noticed", &|| {
        cache.get(&key("a")).is_some_and(|map| map.metadata.resource_version != later)
    })
    .await;
    cache.refer("first", []);
    assert!(cache.get(&key("a")).is_some(), "the second owner refers to it");
    cache.refer("second", [key("b")]);
    assert!(cache.get(&key("a")).is_none());
    until("the other is held", &|| cache.get(&key("b")).is_some()).await;
    assert_eq!(names(&cache.list()), ["b", "chosen"]);
}
