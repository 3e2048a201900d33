//! `kubernetes-api` Check 22 of docs/checks.md: a killed process loses no acknowledged write.
//!
//! The test starts itself as a child that writes and prints every acknowledged revision, kills it, and checks that
//! everything it printed is stored. SIGKILL keeps the page cache, so this tests the order of commit and answer;
//! SQLite's `synchronous=FULL` ensures that the data is on the disk.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use drover_apiserver::object::encode;
use drover_apiserver::storage::{Change, Expect, Key, SqliteStorage, Storage, Write};
use serde_json::json;

const DIRECTORY: &str = "DROVER_CRASH_TEST_DIRECTORY";

fn key(worker: usize, n: usize) -> Key {
    Key::new("", "things", "ns", &format!("w{worker}-{n}"))
}

/// Not a test: the child of the test below.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_writes_until_it_is_killed() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let store = std::sync::Arc::new(SqliteStorage::open(Path::new(&directory)).unwrap());
    let first = store.index().revision();
    let workers = (0..16).map(|worker| {
        let store = store.clone();
        tokio::spawn(async move {
            for n in 0.. {
                let name = format!("w{worker}-{}", first as usize + n);
                let object = json!({"metadata": {"name": name, "uid": format!("{worker}-{n}")}});
                let change = Change::Put(encode(&object));
                let key = key(worker, first as usize + n);
                let version = store.write(Write { key, expect: Expect::Absent, change }).await.unwrap();
                // One write call per line, so that lines are complete.
                let line = format!("ack {} {}\n", version.revision(), version.key());
                std::io::stdout().write_all(line.as_bytes()).unwrap();
                std::io::stdout().flush().unwrap();
            }
        })
    });
    futures::future::join_all(workers).await;
}

#[test]
fn kubernetes_check_22_sigkill_loses_no_acknowledged_write() {
    let directory = tempfile::tempdir().unwrap();
    let mut last = 0;
    for round in 1..=4 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_writes_until_it_is_killed", "--nocapture"])
            .env(DIRECTORY, directory.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut acknowledged = Vec::new();
        let parse = |line: &str| {
            let mut words = line.strip_prefix("ack ")?.split(' ');
            Some((words.next()?.parse::<u64>().ok()?, Key::parse(words.next()?)?))
        };
        while acknowledged.len() < 200 * round {
            let line = lines.next().expect("the child continues").unwrap();
            acknowledged.extend(parse(&line));
        }
        child.kill().unwrap();
        acknowledged.extend(lines.map_while(Result::ok).filter_map(|line| parse(&line)));
        child.wait().unwrap();
        let store = SqliteStorage::open(directory.path()).unwrap();
        for (revision, key) in &acknowledged {
            assert!(*revision > last, "revision {revision} was used again");
            let stored = store.index().get(key).unwrap_or_else(|| panic!("{key} is lost"));
            assert_eq!(stored.revision(), *revision);
        }
        last = store.index().revision();
        assert!(acknowledged.iter().all(|(revision, _)| *revision <= last));
    }
}
