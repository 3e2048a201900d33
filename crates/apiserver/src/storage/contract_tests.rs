//! Tests of the guarantees of all stores, and of those of the durable store.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use jiff::SignedDuration;
use serde_json::json;

use super::*;
use crate::clock::SystemClock;
use crate::object::{ObjectExt, encode};

fn body(name: &str, n: u64) -> Encoded {
    encode(&json!({"apiVersion": "v1", "kind": "T", "metadata": {"name": name}, "n": n}))
}

fn key(name: &str) -> Key {
    Key::new("", "things", "ns", name)
}

fn put(name: &str, expect: Expect, n: u64) -> Write {
    Write { key: key(name), expect, change: Change::Put(body(name, n)) }
}

fn delete(name: &str, revision: u64) -> Write {
    Write { key: key(name), expect: Expect::Revision(revision), change: Change::Delete { last: None } }
}

fn things() -> Range<'static> {
    Range { group: "", resource: "things", namespace: None, start: None }
}

fn names(items: &[Arc<Version>]) -> Vec<String> {
    items.iter().map(|version| version.key().name().to_owned()).collect()
}

async fn on_all(test: impl AsyncFn(&dyn Storage)) {
    test(&MemoryStorage::new()).await;
    let dir = tempfile::tempdir().unwrap();
    test(&SqliteStorage::open(dir.path()).unwrap()).await;
    test(&journaled(&dir.path().join("journal"))).await;
}

fn journaled(path: &Path) -> MemoryStorage {
    MemoryStorage::journaled(path, Retention::default()).unwrap()
}

#[tokio::test]
async fn a_journal_restores_everything_except_a_truncated_record() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/journal");
    let store = journaled(&path);
    let first = store.write(put("a", Expect::Absent, 1)).await.unwrap();
    let kept = store.write(put("a", Expect::Revision(first.revision()), 2)).await.unwrap();
    let gone = store.write(put("b", Expect::Absent, 1)).await.unwrap();
    let last = store.write(delete("b", gone.revision())).await.unwrap();
    store.write(put("a", Expect::Revision(first.revision()), 3)).await.unwrap_err();
    let whole = std::fs::read(&path).unwrap();
    store.write(put("c", Expect::Absent, 1)).await.unwrap();
    store.close();
    assert!(matches!(store.write(put("d", Expect::Absent, 1)).await, Err(StorageError::Closed)));
    let cut = std::fs::read(&path).unwrap();
    std::fs::write(&path, &cut[..cut.len() - 2]).unwrap();

    let store = journaled(&path);
    assert_eq!(std::fs::read(&path).unwrap(), whole);
    assert_eq!(names(&store.index().list(&things()).0), ["a"]);
    let found = store.index().get(&key("a")).unwrap();
    assert_eq!(
        (found.bytes(), found.revision(), found.created()),
        (kept.bytes(), kept.revision(), first.revision())
    );
    assert_eq!(store.index().revision(), last.revision());
    let after = store.write(put("c", Expect::Absent, 1)).await.unwrap();
    assert_eq!(after.revision(), last.revision() + 1);
}

#[tokio::test]
async fn a_journal_is_rewritten_when_most_of_it_is_history() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let store = journaled(&path);
    let mut revision = store.write(put("a", Expect::Absent, 0)).await.unwrap().revision();
    for n in 0..10_000 {
        revision = store.write(put("a", Expect::Revision(revision), n)).await.unwrap().revision();
    }
    assert!(std::fs::metadata(&path).unwrap().len() < 1 << 20);
    drop(store);
    let store = journaled(&path);
    assert_eq!(store.index().get(&key("a")).unwrap().revision(), revision);
    assert_eq!(store.index().revision(), revision);
}

#[tokio::test]
async fn writes_get_increasing_revisions_and_are_visible_at_once() {
    on_all(async |store| {
        let first = store.write(put("a", Expect::Absent, 1)).await.unwrap();
        let second = store.write(put("b", Expect::Absent, 1)).await.unwrap();
        assert!(second.revision() > first.revision());
        assert_eq!(store.index().revision(), second.revision());
        assert_eq!(
            store.index().get(&key("a")).unwrap().decode().resource_version(),
            first.revision().to_string()
        );
        let third = store.write(put("a", Expect::Revision(first.revision()), 2)).await.unwrap();
        assert_eq!(third.created(), first.revision());
        let gone = store.write(delete("a", third.revision())).await.unwrap();
        assert_eq!(gone.decode().resource_version(), gone.revision().to_string());
        assert!(store.index().get(&key("a")).is_none());
    })
    .await;
}

#[tokio::test]
async fn check_11_exactly_one_of_two_writes_with_the_same_expectation_succeeds() {
    on_all(async |store| {
        let first = store.write(put("a", Expect::Absent, 0)).await.unwrap().revision();
        let races = (1..=50).map(|n| store.write(put("a", Expect::Revision(first), n)));
        let results = futures::future::join_all(races).await;
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
        let winner = results.iter().find_map(|result| result.as_ref().ok()).unwrap().revision();
        for lost in results.iter().filter_map(|result| result.as_ref().err()) {
            let StorageError::Conflict { current: Some(current) } = lost else { panic!("{lost:?}") };
            assert_eq!(current.revision(), winner);
        }
        assert!(matches!(
            store.write(put("a", Expect::Absent, 9)).await,
            Err(StorageError::Conflict { current: Some(_) })
        ));
        assert!(matches!(store.write(delete("q", 3)).await, Err(StorageError::Conflict { current: None })));
    })
    .await;
}

#[tokio::test]
async fn lists_at_older_revisions() {
    on_all(async |store| {
        let a = store.write(put("a", Expect::Absent, 1)).await.unwrap().revision();
        let b = store.write(put("b", Expect::Absent, 1)).await.unwrap().revision();
        let a2 = store.write(put("a", Expect::Revision(a), 2)).await.unwrap().revision();
        store.write(delete("b", b)).await.unwrap();
        let c = store.write(put("c", Expect::Absent, 1)).await.unwrap().revision();
        let at = |revision| store.index().page(&things(), revision, usize::MAX, true).unwrap().items;
        assert_eq!(names(&at(a)), ["a"]);
        assert_eq!(names(&at(b)), ["a", "b"]);
        assert_eq!(at(b)[0].revision(), a);
        assert_eq!(at(a2)[0].revision(), a2);
        assert_eq!(names(&at(c)), ["a", "c"]);
        assert!(store.index().get_at(&key("b"), c).unwrap().is_none());
        assert_eq!(store.index().get_at(&key("b"), a2).unwrap().unwrap().revision(), b);
        assert!(matches!(store.index().page(&things(), c + 1, 1, false), Err(StorageError::Future { .. })));
    })
    .await;
}

#[tokio::test]
async fn ranges_are_exact() {
    on_all(async |store| {
        for (resource, namespace, name) in [
            ("things", "a", "x"),
            ("things", "a-b", "x"),
            ("things", "b", "x"),
            ("things2", "a", "x"),
            ("thing", "a", "x"),
        ] {
            let key = Key::new("", resource, namespace, name);
            store
                .write(Write { key, expect: Expect::Absent, change: Change::Put(body(name, 0)) })
                .await
                .unwrap();
        }
        assert_eq!(store.index().list(&things()).0.len(), 3);
        let in_a = Range { namespace: Some("a"), ..things() };
        assert_eq!(store.index().list(&in_a).0.len(), 1);
        assert_eq!(store.index().count("", "things"), 3);
    })
    .await;
}

#[tokio::test]
async fn check_6_a_slow_follower_gets_every_event_in_order() {
    on_all(async |store| {
        let mut tail = store.index().follow("", "things", store.index().revision()).unwrap();
        let mut revision = store.write(put("a", Expect::Absent, 0)).await.unwrap().revision();
        for n in 1..2_000 {
            revision = store.write(put("a", Expect::Revision(revision), n)).await.unwrap().revision();
        }
        let mut seen = Vec::new();
        while seen.len() < 2_000 {
            let batch = store.index().read(&mut tail, 100).unwrap();
            assert!(!batch.events.is_empty());
            seen.extend(batch.events.iter().map(|event| event.version.decode()["n"].as_u64().unwrap()));
        }
        assert_eq!(seen, (0..2_000).collect::<Vec<_>>());
        assert_eq!(tail.after(), revision);
    })
    .await;
}

#[tokio::test]
async fn check_7_compacted_history_is_rejected_and_current_state_is_kept() {
    on_all(async |store| {
        let a = store.write(put("a", Expect::Absent, 1)).await.unwrap().revision();
        let a2 = store.write(put("a", Expect::Revision(a), 2)).await.unwrap().revision();
        let b = store.write(put("b", Expect::Absent, 1)).await.unwrap().revision();
        let mut old = store.index().follow("", "things", a).unwrap();
        store.compact(a2).await.unwrap();
        assert!(matches!(store.index().page(&things(), a, 9, false), Err(StorageError::Compacted { .. })));
        assert!(matches!(store.index().follow("", "things", a), Err(StorageError::Compacted { .. })));
        assert!(matches!(store.index().read(&mut old, 9), Err(StorageError::Compacted { .. })));
        assert_eq!(names(&store.index().page(&things(), a2, 9, false).unwrap().items), ["a"]);
        assert_eq!(names(&store.index().list(&things()).0), ["a", "b"]);
        let mut fresh = store.index().follow("", "things", a2).unwrap();
        assert_eq!(store.index().read(&mut fresh, 9).unwrap().events[0].revision(), b);
    })
    .await;
}

/// Thousands of node agents follow one object each: none may be woken by, or miss an event because of, another's.
#[tokio::test]
async fn a_follower_of_one_object_sees_all_its_events_and_no_others() {
    on_all(async |store| {
        let key = key("a");
        let a = store.write(put("a", Expect::Absent, 1)).await.unwrap().revision();
        let mut tail = store.index().follow_object(&key, a).unwrap();
        let mut b = store.write(put("b", Expect::Absent, 0)).await.unwrap().revision();
        for n in 1..50 {
            b = store.write(put("b", Expect::Revision(b), n)).await.unwrap().revision();
        }
        assert!(
            tokio::time::timeout(std::time::Duration::ZERO, tail.changed()).await.is_err(),
            "woken by another"
        );
        // History without it does not concern it, whether it has read on meanwhile or not.
        store.compact(b).await.unwrap();
        let batch = store.index().read(&mut tail, 9).unwrap();
        assert_eq!((batch.events.len(), batch.revision, tail.after()), (0, b, b));

        let a2 = store.write(put("a", Expect::Revision(a), 2)).await.unwrap().revision();
        tail.changed().await;
        assert_eq!(revisions(&store.index().read(&mut tail, 9).unwrap()), [a2]);
        // Another follower begins earlier than the first one, and has to find what came before.
        let mut earlier = store.index().follow_object(&key, b).unwrap();
        let a3 = store.write(put("a", Expect::Revision(a2), 3)).await.unwrap().revision();
        assert_eq!(revisions(&store.index().read(&mut earlier, 1).unwrap()), [a2]);
        assert_eq!(revisions(&store.index().read(&mut earlier, 9).unwrap()), [a3]);
        assert_eq!(revisions(&store.index().read(&mut tail, 9).unwrap()), [a3]);

        // An event that it has not read is gone.
        let a4 = store.write(put("a", Expect::Revision(a3), 4)).await.unwrap().revision();
        store.compact(a4).await.unwrap();
        assert!(matches!(store.index().read(&mut tail, 9), Err(StorageError::Compacted { .. })));
        assert!(matches!(store.index().follow_object(&key, a3), Err(StorageError::Compacted { .. })));
        drop((tail, earlier));
        let b = store.write(put("b", Expect::Revision(b), 99)).await.unwrap().revision();
        store.compact(b).await.unwrap();
        assert_eq!(store.index().followed_objects(), 0, "forgotten with its followers");
    })
    .await;
}

fn revisions(batch: &super::Batch) -> Vec<u64> {
    batch.events.iter().map(|event| event.revision()).collect()
}

#[tokio::test]
async fn history_is_bounded_by_count() {
    let retention = Retention {
        max_age: SignedDuration::from_hours(1),
        min_events: 10,
        max_events: 100,
        max_bytes: 1 << 30,
    };
    let store = MemoryStorage::with(Arc::new(SystemClock), retention);
    let mut revision = store.write(put("a", Expect::Absent, 0)).await.unwrap().revision();
    for n in 0..1_000 {
        revision = store.write(put("a", Expect::Revision(revision), n)).await.unwrap().revision();
    }
    let kept = revision - store.index().compacted();
    assert!((90..=110).contains(&kept), "{kept}");
}

/// For one object that is written repeatedly, little history is kept; for many objects, as many bytes as they have.
#[tokio::test]
async fn history_is_bounded_by_bytes_or_by_the_size_of_the_objects() {
    let retention = Retention {
        max_age: SignedDuration::from_hours(1),
        min_events: 1,
        max_events: 2_000,
        max_bytes: 10_000,
    };
    let kept_after = async |objects: u64| {
        let store = MemoryStorage::with(Arc::new(SystemClock), retention);
        for n in 1..objects {
            store.write(put(&format!("o{n}"), Expect::Absent, 0)).await.unwrap();
        }
        let mut revision = store.write(put("o0", Expect::Absent, 0)).await.unwrap().revision();
        for n in 0..2_000 {
            revision = store.write(put("o0", Expect::Revision(revision), n)).await.unwrap().revision();
        }
        revision - store.index().compacted()
    };
    let (few, many) = (kept_after(1).await, kept_after(2_000).await);
    assert!(few < 200 && many > 2 * few && many < 2_000, "{few} and {many}");
}

#[tokio::test]
async fn check_22_acknowledged_writes_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, revision, deleted);
    {
        let store = SqliteStorage::open(dir.path()).unwrap();
        let writes = (0..200).map(|n| store.write(put(&format!("x{n:03}"), Expect::Absent, n)));
        futures::future::join_all(writes).await.into_iter().for_each(|result| drop(result.unwrap()));
        let first = store.index().get(&key("x000")).unwrap().revision();
        bytes = store.write(put("x000", Expect::Revision(first), 7)).await.unwrap().bytes();
        let last = store.index().get(&key("x199")).unwrap().revision();
        deleted = store.write(delete("x199", last)).await.unwrap().revision();
        revision = store.index().revision();
        // A copy of the files as after a crash: the log is not merged.
        copy(dir.path(), &dir.path().join("crashed"));
    }
    for place in [dir.path().to_owned(), dir.path().join("crashed")] {
        let store = SqliteStorage::open(&place).unwrap();
        assert_eq!(store.index().revision(), revision);
        assert_eq!(store.index().get(&key("x000")).unwrap().bytes(), bytes);
        assert!(store.index().get(&key("x199")).is_none());
        assert_eq!(store.index().count("", "things"), 199);
        // Watches resume at their revision, without a relist.
        let mut tail = store.index().follow("", "things", deleted - 1).unwrap();
        let events = store.index().read(&mut tail, 10).unwrap().events;
        assert_eq!(events[0].kind, EventKind::Deleted);
        assert_eq!(events[0].previous.as_ref().unwrap().key().name(), "x199");
        let next = store.write(put("new", Expect::Absent, 1)).await.unwrap().revision();
        assert_eq!(next, revision + 1);
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for name in ["store.db", "store.db-wal"] {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

#[tokio::test]
async fn a_compacted_store_reopens_with_the_same_revision_and_less_history() {
    let dir = tempfile::tempdir().unwrap();
    let revision;
    {
        let store = SqliteStorage::open(dir.path()).unwrap();
        let a = store.write(put("a", Expect::Absent, 1)).await.unwrap().revision();
        let b = store.write(put("b", Expect::Absent, 1)).await.unwrap().revision();
        store.write(put("a", Expect::Revision(a), 2)).await.unwrap();
        revision = store.write(delete("b", b)).await.unwrap().revision();
        store.compact(revision).await.unwrap();
    }
    let store = SqliteStorage::open(dir.path()).unwrap();
    assert_eq!(store.index().revision(), revision);
    assert_eq!(store.index().compacted(), revision);
    assert_eq!(names(&store.index().list(&things()).0), ["a"]);
    assert_eq!(store.index().get(&key("a")).unwrap().decode()["n"], 2);
}

#[tokio::test]
async fn a_failed_commit_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let broken = Arc::new(AtomicBool::new(false));
    let flag = broken.clone();
    let options = SqliteOptions {
        commit_fault: Some(Arc::new(move || {
            if flag.load(Ordering::SeqCst) { Err("the test fails this commit".into()) } else { Ok(()) }
        })),
        ..SqliteOptions::default()
    };
    let store = SqliteStorage::open_with(dir.path(), options).unwrap();
    let a = store.write(put("a", Expect::Absent, 1)).await.unwrap().revision();
    let mut tail = store.index().follow("", "things", a).unwrap();
    broken.store(true, Ordering::SeqCst);
    let writes = [put("a", Expect::Revision(a), 2), put("b", Expect::Absent, 1), delete("a", a)];
    for result in futures::future::join_all(writes.map(|write| store.write(write))).await {
        assert!(matches!(result, Err(StorageError::Backend(_))), "{result:?}");
    }
    assert!(store.health().is_err());
    assert_eq!(store.index().revision(), a);
    assert!(store.index().read(&mut tail, 9).unwrap().events.is_empty());
    broken.store(false, Ordering::SeqCst);
    let next = store.write(put("a", Expect::Revision(a), 3)).await.unwrap();
    assert_eq!(next.revision(), a + 1);
    assert!(store.health().is_ok());
    drop(store);
    let store = SqliteStorage::open(dir.path()).unwrap();
    assert_eq!(store.index().get(&key("a")).unwrap().decode()["n"], 3);
    assert!(store.index().get(&key("b")).is_none());
}

#[tokio::test]
async fn queued_writes_form_one_batch_and_are_checked_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let commits = Arc::new(AtomicUsize::new(0));
    let (release, gate) = std::sync::mpsc::channel::<()>();
    let (count, gate) = (commits.clone(), std::sync::Mutex::new(gate));
    let options = SqliteOptions {
        commit_fault: Some(Arc::new(move || {
            // The second commit waits for the test; later writes are queued meanwhile.
            if count.fetch_add(1, Ordering::SeqCst) == 1 {
                gate.lock().unwrap().recv().unwrap();
            }
            Ok(())
        })),
        ..SqliteOptions::default()
    };
    let store = Arc::new(SqliteStorage::open_with(dir.path(), options).unwrap());
    let first = store.write(put("x", Expect::Absent, 1)).await.unwrap().revision();
    let holding = store.clone();
    let held = tokio::spawn(async move { holding.write(put("y", Expect::Absent, 1)).await });
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while commits.load(Ordering::SeqCst) < 2 {
        assert!(std::time::Instant::now() < deadline, "the second commit did not begin");
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    let (created, changed) = (first + 2, first + 3);
    let queued = [
        put("a", Expect::Absent, 1),
        put("a", Expect::Revision(created), 2),
        put("a", Expect::Revision(created), 3),
        put("a", Expect::Absent, 4),
        put("b", Expect::Absent, 1),
    ];
    // Polling each write once puts it into the queue.
    let mut queued = futures::future::join_all(queued.map(|write| store.write(write)));
    assert!(futures::poll!(&mut queued).is_pending());
    assert!(store.index().get(&key("a")).is_none(), "uncommitted writes are not visible");
    release.send(()).unwrap();
    let answers = queued.await;
    held.await.unwrap().unwrap();
    assert_eq!(commits.load(Ordering::SeqCst), 3, "one commit for all queued writes");
    let revisions: Vec<_> = answers.iter().map(|a| a.as_ref().ok().map(|v| v.revision())).collect();
    assert_eq!(revisions, [Some(created), Some(changed), None, None, Some(changed + 1)]);
    assert!(answers.iter().flat_map(|a| a.as_ref().err()).all(|e| !matches!(e, StorageError::Backend(_))));
    drop(store);
    let store = SqliteStorage::open(dir.path()).unwrap();
    assert_eq!(store.index().get(&key("a")).unwrap().decode()["n"], 2);
    assert_eq!(store.index().revision(), changed + 1);
}

#[tokio::test]
async fn a_full_disk_is_reported_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let options = SqliteOptions { max_pages: Some(64), ..SqliteOptions::default() };
    let store = SqliteStorage::open_with(dir.path(), options).unwrap();
    let big = "x".repeat(20_000);
    let mut stored = 0;
    let failure = loop {
        let name = format!("x{stored:03}");
        let encoded = encode(&json!({"metadata": {"name": name}, "data": big}));
        let write = Write { key: key(&name), expect: Expect::Absent, change: Change::Put(encoded) };
        match store.write(write).await {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 100);
    };
    assert!(matches!(failure, StorageError::Full(_)), "{failure:?}");
    drop(store);
    let store = SqliteStorage::open(dir.path()).unwrap();
    assert_eq!(store.index().count("", "things"), stored);
    store.write(put("more", Expect::Absent, 1)).await.unwrap();
}

#[tokio::test]
async fn a_directory_in_use_or_of_a_newer_release_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStorage::open(dir.path()).unwrap();
    let Err(error) = SqliteStorage::open(dir.path()) else { panic!("opened twice") };
    assert!(matches!(error, StorageError::InUse(_)), "{error}");
    assert!(error.to_string().contains("in use by another server"));
    drop(store);
    let database = rusqlite::Connection::open(dir.path().join("store.db")).unwrap();
    database.pragma_update(None, "user_version", 99).unwrap();
    drop(database);
    let Err(error) = SqliteStorage::open(dir.path()) else { panic!("opened a newer version") };
    assert!(matches!(error, StorageError::NewerSchema { found: 99, .. }), "{error}");
}

#[tokio::test]
async fn a_damaged_file_is_rejected_and_not_modified() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStorage::open(dir.path()).unwrap();
    for n in 0..50 {
        store.write(put(&format!("x{n}"), Expect::Absent, n)).await.unwrap();
    }
    // As after a crash, with a log, and as after a normal stop, without one.
    copy(dir.path(), &dir.path().join("crashed"));
    drop(store);
    let garbage = |from: usize, whole: &[u8]| [&whole[..from], &vec![0xa5; whole.len() - from]].concat();
    let foreign = {
        let path = dir.path().join("foreign.db");
        let database = rusqlite::Connection::open(&path).unwrap();
        database.execute_batch("CREATE TABLE versions (a); INSERT INTO versions VALUES (1);").unwrap();
        drop(database);
        std::fs::read(path).unwrap()
    };
    for place in [dir.path().to_owned(), dir.path().join("crashed")] {
        let (file, log) = (place.join("store.db"), place.join("store.db-wal"));
        let (whole, logged) = (std::fs::read(&file).unwrap(), std::fs::read(&log).ok());
        let mut damages = vec![
            Some(vec![]),
            Some(garbage(0, &whole)),
            Some(garbage(4096, &whole)),
            Some(whole[..50].to_vec()),
            Some(whole[..whole.len() / 2].to_vec()),
        ];
        // Without file and log, the directory is a new store; with a log, it is damaged.
        damages.push(if logged.is_some() { None } else { Some(foreign.clone()) });
        for (n, damage) in damages.iter().enumerate() {
            match damage {
                Some(bytes) => std::fs::write(&file, bytes).unwrap(),
                None => std::fs::remove_file(&file).unwrap(),
            }
            let Err(error) = SqliteStorage::open(&place) else { panic!("damage {n} was opened") };
            assert!(matches!(error, StorageError::Damaged { .. }), "damage {n}: {error}");
            assert!(error.to_string().contains(file.to_str().unwrap()), "{error}");
            assert_eq!(std::fs::read(&file).ok(), *damage, "damage {n}");
            if let Some(logged) = &logged {
                assert_eq!(
                    std::fs::read(&log).ok().as_ref(),
                    Some(logged),
                    "the log after damage {n}: {error}"
                );
            }
        }
        // Restoring the file restores the store.
        std::fs::write(&file, whole).unwrap();
        assert_eq!(SqliteStorage::open(&place).unwrap().index().count("", "things"), 50);
    }
}

/// A file is created under another name, so a file with the final name is complete.
#[tokio::test]
async fn a_store_is_created_again_after_a_crash_during_the_first_start() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["store.new", "store.new-journal"] {
        std::fs::write(dir.path().join(name), "half").unwrap();
    }
    SqliteStorage::open(dir.path()).unwrap().write(put("a", Expect::Absent, 1)).await.unwrap();
    assert_eq!(SqliteStorage::open(dir.path()).unwrap().index().count("", "things"), 1);
    assert!(!dir.path().join("store.new").exists());
}

#[tokio::test]
async fn the_write_ahead_log_stays_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStorage::open(dir.path()).unwrap();
    let big = "x".repeat(10_000);
    for round in 0..30 {
        let writes = (0..100).map(|n| {
            let name = format!("x{round}-{n}");
            let encoded = encode(&json!({"metadata": {"name": name}, "data": big}));
            store.write(Write { key: key(&name), expect: Expect::Absent, change: Change::Put(encoded) })
        });
        futures::future::join_all(writes).await.into_iter().for_each(|result| drop(result.unwrap()));
    }
    let wal = std::fs::metadata(dir.path().join("store.db-wal")).unwrap().len();
    assert!(wal < 32 << 20, "{wal}");
}
