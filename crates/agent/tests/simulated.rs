//! Complete agents on simulated machines in virtual time: minutes and hours take milliseconds.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers outside #[test] functions

mod common;

use std::{path::Path, time::Duration};

use common::{
    Api, Call, Fault,
    node::{LONG, Node, Run, plan},
    sum,
};
use drover_agent::host::{Attr, Host as _};
use serde_json::json;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn agent_check_6_checksum_mode_runs_exactly_once_more_after_each_restart() {
    let mut node = Node::new(9);
    let text = plan(&["a"]);
    node.api().create(&[("plan", &text)]);
    for runs in 1..=3 {
        node.start();
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(node.runs("a").len(), runs);
        assert_eq!(node.api().text("success-count"), runs.to_string());
        assert_eq!(node.api().text("applied-checksum"), sum(&text));
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn agent_check_10_checksum_mode_cools_down_stops_at_the_limit_and_restarts_do_not_retry() {
    let mut node = Node::new(1);
    node.exit("a", 1);
    node.api().create(&[("plan", &plan(&["a"])), ("max-failures", "2")]);
    node.start();
    node.api().until_within(LONG, "two failures", |api| api.text("failure-count") == "2").await;
    sleep(Duration::from_secs(600)).await;
    let runs = node.runs("a");
    assert_eq!(runs.len(), 2, "{runs:?}");
    assert!(runs[1].at - runs[0].at >= Duration::from_secs(30));
    assert!(runs[1].at - runs[0].at < Duration::from_secs(40));
    assert_eq!((runs[0].attempt.as_str(), runs[1].attempt.as_str()), ("1", "2"));
    node.stop().await;
    node.start();
    sleep(Duration::from_secs(600)).await;
    assert_eq!(node.runs("a").len(), 2);
    assert_eq!(node.api().text("failure-count"), "2");
    // Check 12: another plan is applied at once, and its success clears the failure.
    let passing = plan(&["b"]);
    node.api().plan(&passing, None);
    node.api().until_text("applied-checksum", &sum(&passing)).await;
    assert_eq!(
        (node.api().text("failure-count").as_str(), node.api().text("failed-checksum").as_str()),
        ("0", "")
    );
    assert_eq!(node.api().text("success-count"), "1");
    assert_eq!(node.runs("b")[0].attempt, "1");
}

#[tokio::test(start_paused = true)]
async fn agent_check_11_state_mode_retries_and_keeps_the_failure_reported() {
    let mut node = Node::new(2);
    node.exit("a", 1);
    let failing = plan(&["a"]);
    node.api().create(&[("plan", &failing), ("plan-state", "pending"), ("max-failures", "3")]);
    node.start();
    node.api().until_text("failure-count", "1").await;
    assert_eq!(node.api().text("plan-state"), "in-progress");
    node.api().until_within(LONG, "it has failed", |api| api.text("plan-state") == "failed").await;
    sleep(Duration::from_secs(300)).await;
    assert_eq!(node.runs("a").iter().map(|run| run.attempt.clone()).collect::<Vec<_>>(), ["1", "2", "3"]);
    assert_eq!(node.api().text("failed-checksum"), sum(&failing));
    assert_eq!(node.api().text("failure-count"), "3");
    assert!(node.api().output("failed-output", "a").contains("a ran"));
    assert_ne!(node.api().text("applied-checksum"), sum(&failing));
    assert_eq!(node.api().text("plan-revision"), "1");
    // The server requests the same plan again: the number increases further.
    node.exit("a", 0);
    node.api().plan(&failing, Some("pending"));
    node.api().until_text("plan-state", "succeeded").await;
    assert_eq!(node.runs("a").last().unwrap().attempt, "4");
    assert_eq!(node.api().text("plan-revision"), "2");
    assert_eq!(node.api().text("failure-count"), "0");
}

#[tokio::test(start_paused = true)]
async fn agent_check_23_24_periodic_instructions_keep_their_periods() {
    let mut node = Node::new(3);
    let text = json!({"periodicInstructions": [
        {"name": "good", "command": "x", "args": ["good"], "periodSeconds": 600},
        {"name": "bad", "command": "x", "args": ["bad"], "periodSeconds": 5},
    ]});
    node.exit("bad", 7);
    node.api().create(&[("plan", &text.to_string()), ("plan-state", "pending")]);
    node.start();
    sleep(Duration::from_secs(1500)).await;
    let gaps = |runs: Vec<Run>| -> Vec<u64> {
        runs.windows(2).map(|pair| (pair[1].at - pair[0].at).as_secs()).collect()
    };
    assert_eq!(gaps(node.runs("good")), [600, 600]);
    let bad = gaps(node.runs("bad"));
    for (gap, expected) in bad.iter().zip([30, 60, 90, 120, 150, 180, 180, 180]) {
        assert!((expected..expected + 3).contains(gap), "{bad:?}");
    }
    let outputs = node.api().map("applied-periodic-output");
    assert_eq!(outputs["bad"]["exitCode"], 7);
    assert_eq!(outputs["bad"]["failures"], node.runs("bad").len());
    assert_eq!(outputs["good"]["stdout"], "Z29vZCByYW4K");
    // A restart does not run them early; a new plan does.
    let before = node.runs("good").len();
    node.stop().await;
    node.start();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(node.runs("good").len(), before);
    let mut changed = text.clone();
    changed["error"] = "changed".into();
    node.api().plan(&changed.to_string(), Some("pending"));
    node.api().until("it ran with the new plan", |_| node.runs("good").len() == before + 1).await;
}

#[tokio::test(start_paused = true)]
async fn agent_check_25_nothing_is_written_while_nothing_changes() {
    let mut node = Node::new(4);
    let text = json!({
        "instructions": [{"name": "i", "command": "x", "args": ["i"], "saveOutput": true}],
        "probes": {"p": {"initialDelaySeconds": 1, "httpGet": {"url": "http://127.0.0.1/"}}},
    });
    for state in [Some("pending"), None] {
        node.api().create(&[("plan", &text.to_string())]);
        if let Some(state) = state {
            node.api().plan(&text.to_string(), Some(state));
        }
        node.start();
        node.api().until("healthy", |api| api.text("probe-statuses").contains("true")).await;
        let (revision, requests) = (node.api().revision(), node.api().requests().len());
        sleep(Duration::from_secs(280)).await;
        assert_eq!(node.api().revision(), revision);
        assert_eq!(node.api().requests().len(), requests, "and no request");
        // Success was never reported without the probes' statuses, because a missing key means healthy.
        let success =
            node.api().written().into_iter().find(|data| data.contains_key("last-apply-time")).unwrap();
        assert_eq!(success["probe-statuses"], br#"{"p":{}}"#);
        node.stop().await;
    }
}

/// Over a slow connection each request matters.
#[tokio::test(start_paused = true)]
async fn a_plan_from_the_watch_is_started_after_one_request() {
    let mut node = Node::new(12);
    node.api().create(&[("plan", "{}"), ("plan-state", "pending")]);
    node.start();
    node.api().until_text("plan-state", "succeeded").await;
    for (lagging, asked) in [(false, &["PUT"][..]), (true, &["PUT", "GET", "PUT"])] {
        let name = format!("lagging-{lagging}");
        let plan = json!({"instructions": [{"command": "x", "args": [name, "30"]}]}).to_string();
        let before = node.api().requests().len();
        if lagging {
            // Another writer in between, which the watch has not reported.
            node.api().before_next_put(|data| {
                data.insert("other".into(), b"writer".to_vec());
            });
        }
        node.api().plan(&plan, Some("pending"));
        node.api().until("it runs", |_| node.runs(&name).len() == 1).await;
        let requests = node.api().requests();
        let methods: Vec<&str> =
            requests[before..].iter().filter_map(|request| request.split(' ').next()).collect();
        assert_eq!(methods, asked);
        assert_eq!(node.api().text("plan-state"), "in-progress", "committed before it runs");
        node.api().until_text("plan-state", "succeeded").await;
    }
    assert_eq!(node.api().text("other"), "writer");
}

#[tokio::test(start_paused = true)]
async fn an_invalid_plan_fails_whenever_it_is_requested() {
    for (seed, most) in (210..).zip(["1", "3", "-1"]) {
        let mut node = Node::new(seed);
        node.api().create(&[("plan", "{nonsense"), ("plan-state", "pending"), ("max-failures", most)]);
        node.start();
        node.api().until_text("plan-state", "failed").await;
        assert_eq!(node.api().text("failure-count"), "1");
        assert!(node.api().output("failed-output", "drover-agent/error").contains("not valid JSON"));
        let revision = node.api().revision();
        sleep(Duration::from_secs(120)).await;
        assert_eq!(node.api().revision(), revision, "reported once");
        node.api().plan("{nonsense", Some("pending"));
        node.api().until_text("failure-count", "2").await;
        assert_eq!(node.api().text("plan-state"), "failed");
        node.api().plan(&plan(&["a"]), Some("pending"));
        node.api().until_text("plan-state", "succeeded").await;
        assert_eq!((node.api().text("failure-count").as_str(), node.runs("a").len()), ("0", 1));
        node.stop().await;
    }
}

async fn until_status(node: &Node, what: &str, wanted: &[&str]) {
    let reported = || {
        let bytes = node.host.read(Path::new("/v/status.json")).ok()?;
        Some(drover_agent::status::render(&serde_json::from_slice(&bytes).ok()?))
    };
    node.api()
        .until_within(Duration::from_secs(60), what, |_| {
            reported().is_some_and(|text| wanted.iter().all(|line| text.contains(line)))
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_status_is_updated_after_a_full_disk_and_reports_a_rejected_credential() {
    let mut node = Node::new(220);
    // Writing the status fails there.
    node.host.make_dirs(Path::new("/v/status.json"), 0o700).unwrap();
    node.api().create(&[("plan", &plan(&["a"])), ("plan-state", "pending")]);
    node.start();
    node.api().until_text("plan-state", "succeeded").await;
    sleep(Duration::from_secs(60)).await;
    node.host.remove_tree(Path::new("/v/status.json")).unwrap();
    until_status(&node, "it is reported late", &["succeeded", "\nconnection    connected to "]).await;

    // Without read access the plan starts but cannot be reported; without write access it does not start.
    for (call, now) in [(Call::Get, "now "), (Call::Put, "\nnow           waiting to start the plan")] {
        node.api().faults().fail(call, Fault::Status(401), usize::MAX);
        node.api().plan(&plan(&["b"]), Some("pending"));
        let refused = ["\nconnection    not connected to ", "401", now];
        until_status(&node, "it is rejected", &refused).await;
        node.api().faults().heal();
        node.api().until_within(LONG, "succeeded", |api| api.text("plan-state") == "succeeded").await;
        until_status(&node, "it is allowed", &["succeeded", "\nconnection    connected to "]).await;
    }
    node.api().plan("{nonsense", Some("pending"));
    until_status(&node, "it reports the failure", &["failed, revision", "is invalid"]).await;
}

#[tokio::test(start_paused = true)]
async fn the_status_of_an_agent_without_a_plan_names_what_it_waits_for() {
    let mut node = Node::new(221);
    // Never connected.
    node.api().faults().fail(Call::List, Fault::Status(403), usize::MAX);
    node.start();
    let refused =
        ["\nconnection    not connected to ", "\nnow           waiting for the connection: ", "403"];
    until_status(&node, "it was never connected", &refused).await;
    node.api().faults().heal();
    let gone = "\nnow           waiting for the plan secret, which does not exist\n";
    until_status(&node, "there is no secret yet", &["connected to ", gone]).await;
    node.api().create(&[("plan", &plan(&["a"])), ("plan-state", "pending")]);
    until_status(&node, "it is applied", &["succeeded", "\nnow           the plan is applied\n"]).await;
    node.api().delete();
    until_status(&node, "the secret was deleted", &["\nplan          none\n", gone]).await;
    node.stop().await;
    node.start();
    until_status(&node, "the secret is still deleted", &["\nconnection    connected to ", gone]).await;
}

/// Extreme values of each number in the plan and its secret: nothing panics or loops.
#[tokio::test(start_paused = true)]
async fn extreme_numbers_in_the_plan_and_its_secret_are_accepted() {
    for (seed, extreme) in (200..).zip([i64::MIN, -1, 0, i64::MAX]) {
        let mut node = Node::new(seed);
        let probe = json!({
            "initialDelaySeconds": extreme, "timeoutSeconds": extreme, "successThreshold": extreme,
            "failureThreshold": extreme, "httpGet": {"url": "http://127.0.0.1/"},
        });
        let text = json!({
            "instructions": [{"name": "a", "command": "x", "args": ["a"]}],
            "periodicInstructions": [
                {"name": "p", "command": "x", "args": ["p"], "periodSeconds": extreme},
                {"name": "bad", "command": "x", "args": ["bad"], "periodSeconds": extreme},
            ],
            "probes": {"p": probe},
        })
        .to_string();
        node.exit("a", 1);
        node.exit("bad", 1);
        let number = extreme.to_string();
        let statuses = json!({"p": {"successCount": extreme, "failureCount": extreme}}).to_string();
        let secret = [
            ("plan", text.as_str()),
            ("plan-state", "pending"),
            ("plan-revision", &number),
            ("failed-checksum", &sum(&text)),
            ("failure-count", &number),
            ("success-count", &number),
            ("probe-statuses", &statuses),
            ("probe-period-seconds", "18446744073709551615"),
        ];
        node.api().create(&secret);
        node.start();
        node.api().until("it failed", |api| !api.text("failed-output").is_empty()).await;
        assert_eq!(node.api().text("failure-count"), extreme.max(0).saturating_add(1).to_string());
        node.exit("a", 0);
        node.api().until_within(LONG, "succeeded", |api| api.text("plan-state") == "succeeded").await;
        assert_eq!(node.api().text("plan-revision"), extreme.saturating_add(1).to_string());
        let before = (node.runs("p").len(), node.runs("bad").len());
        sleep(Duration::from_secs(590)).await;
        assert_eq!(node.runs("p").len(), before.0, "{extreme}");
        assert!((3..=6).contains(&(node.runs("bad").len() - before.1)), "{extreme}");
        // Normal values have an effect at once.
        node.api().plan(&plan(&["b"]), Some("pending"));
        node.api().until_text("plan-state", "succeeded").await;
        assert!(!node.task.as_ref().unwrap().is_finished());
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn agent_check_29_five_minutes_without_the_api() {
    let mut node = Node::new(5);
    let text = json!({"probes": {"p": {"failureThreshold": 2, "httpGet": {"url": "http://127.0.0.1/"}}}})
        .to_string();
    node.api().create(&[("plan", &text), ("plan-state", "pending")]);
    node.start();
    node.api().until("healthy", |api| api.text("probe-statuses").contains("true")).await;
    node.api().set_down(true);
    *node.world.healthy.lock().unwrap() = false;
    sleep(Duration::from_secs(300)).await;
    assert!(node.api().text("probe-statuses").contains("true"));
    node.api().set_down(false);
    node.api()
        .until("the latest status", |api| api.text("probe-statuses") == r#"{"p":{"failureCount":2}}"#)
        .await;
    assert!(!node.task.as_ref().unwrap().is_finished());
}

#[tokio::test(start_paused = true)]
async fn agent_check_35_no_plan_starts_while_the_installer_runs() {
    let mut node = Node::new(6);
    node.host.make_dirs(Path::new("/v/interlock"), 0o700).unwrap();
    node.host
        .replace(Path::new("/v/interlock/restart-pending"), b"", Attr { mode: 0o600, owner: None })
        .unwrap();
    node.api().create(&[("plan", &plan(&["a"])), ("plan-state", "pending")]);
    node.start();
    sleep(Duration::from_secs(290)).await;
    assert!(node.runs("a").is_empty());
    assert_eq!(node.api().text("plan-state"), "pending");
    node.api().until("it continues", |api| api.text("plan-state") == "succeeded").await;
    assert!(node.host.stat(Path::new("/v/interlock/restart-pending")).is_err());
    assert!(node.host.stat(Path::new("/v/interlock/applyinator-active")).is_err());
}

/// The power fails after each write in turn: only the disk survives.
#[tokio::test(start_paused = true)]
async fn a_power_failure_between_any_two_writes_is_harmless() {
    let (mut repeated, mut kept) = (0, 0);
    for crash in 0.. {
        let about = format!("power for {crash} writes");
        let mut node = Node::new(100 + crash);
        let text = json!({
            "files": [{"path": "/etc/a", "content": "YQ=="}, {"path": "/etc/b", "content": "Yg=="}],
            "instructions": [{"name": "i", "command": "x", "args": ["i", "1"], "saveOutput": true}],
        })
        .to_string();
        node.api().create(&[("plan", &text), ("plan-state", "pending")]);
        node.host.crash_after_writes(crash);
        node.start();
        let reached = node.until_dark_or_quiet().await;
        node.stop().await;
        let before = node.runs("i").len();
        node.host.restart();
        let reported = node.api().text("plan-state") == "succeeded";
        let outbox = node.host.read(Path::new("/v/outbox.json")).unwrap_or_default();
        let is_kept = String::from_utf8(outbox).unwrap().contains(&sum(&text));
        node.start();
        node.api().until_within(LONG, &about, |api| api.text("plan-state") == "succeeded").await;
        sleep(Duration::from_secs(60)).await;
        for (path, content) in [("/etc/a", b"a"), ("/etc/b", b"b")] {
            assert_eq!(node.host.read(Path::new(path)).unwrap(), content, "{about}");
        }
        // Only what could not be recorded is repeated.
        let runs = node.runs("i");
        assert_eq!(runs.len(), if reported || is_kept { before } else { before + 1 }, "{about}");
        assert!(before <= 1 && runs.iter().all(|run| run.attempt == "1"), "{about}: {runs:?}");
        assert_eq!(node.api().output("applied-output", "i"), "i ran\n", "{about}");
        for (key, value) in [("plan-revision", "1"), ("success-count", "1"), ("failure-count", "0")] {
            assert_eq!(node.api().text(key), value, "{about}: {key}");
        }
        assert!(node.host.read(Path::new("/v/outbox.json")).is_err(), "{about}: everything was reported");
        repeated += usize::from(runs.len() == 2);
        kept += usize::from(is_kept && !reported);
        node.stop().await;
        if !reached {
            assert!(crash >= 8, "each write was the last one once: {crash}");
            break;
        }
    }
    assert!(repeated > 0 && kept > 0, "{repeated} repeated, {kept} known only from the outbox");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_in_every_way_only_delays_the_agent() {
    for seed in 1..=30 {
        let mut node = Node::new(seed);
        let text = json!({
            "instructions": [{"name": "i", "command": "x", "args": ["i", "3"], "saveOutput": true}],
            "probes": {"p": {"httpGet": {"url": "http://127.0.0.1/"}}},
        })
        .to_string();
        node.api().create(&[("plan", &text), ("plan-state", "pending")]);
        node.api().faults().chaos(seed);
        node.start();
        sleep(Duration::from_secs(600)).await;
        node.api().faults().heal();
        node.api().until_within(LONG, "healthy", |api| api.text("probe-statuses").contains("true")).await;
        assert_eq!(node.api().text("plan-state"), "succeeded", "seed {seed}");
        assert_eq!(node.runs("i").len(), 1, "seed {seed}: nothing runs twice");
        assert_eq!(node.api().text("plan-revision"), "1", "seed {seed}");
        assert_eq!(node.api().text("success-count"), "1", "seed {seed}");
        assert_eq!(node.api().output("applied-output", "i"), "i ran\n");
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_crashes_and_a_failing_server_only_delay_the_agent() {
    for seed in 1..=25 {
        let mut node = Node::new(seed);
        node.api().create(&[("plan", &plan(&["a 3", "b 2"])), ("plan-state", "pending")]);
        node.api().faults().chaos(seed);
        for round in 0..6 {
            node.start();
            sleep(Duration::from_millis(seed * 131 + round * 977)).await;
            node.stop().await;
        }
        node.api().faults().heal();
        node.start();
        node.api().until_within(LONG, "succeeded", |api| api.text("plan-state") == "succeeded").await;
        assert_eq!(node.api().text("plan-revision"), "1", "seed {seed}");
        let attempts: Vec<String> = node.runs("b").into_iter().map(|run| run.attempt).collect();
        assert!(
            !attempts.is_empty() && attempts.iter().all(|attempt| attempt == "1"),
            "seed {seed}: {attempts:?}"
        );
        node.stop().await;
    }
}

/// A success that is only in the outbox is reported by the next agent, whose probes have no results yet.
#[tokio::test(start_paused = true)]
async fn probes_must_succeed_again_after_a_plan_even_if_the_agent_restarts() {
    let probed = |name: &str| {
        json!({
            "instructions": [{"name": name, "command": "x", "args": [name, "5"]}],
            "probes": {"p": {"failureThreshold": 3, "httpGet": {"url": "http://127.0.0.1/"}}},
        })
        .to_string()
    };
    let mut node = Node::new(11);
    node.api().create(&[("plan", &probed("a")), ("plan-state", "pending")]);
    node.start();
    node.api().until("healthy", |api| api.text("probe-statuses").contains("true")).await;
    let text = probed("b");
    node.api().plan(&text, Some("pending"));
    node.api().until_text("plan-state", "in-progress").await;
    node.api().until("healthy again", |api| api.text("probe-statuses").contains("true")).await;
    node.api().set_down(true);
    *node.world.healthy.lock().unwrap() = false;
    let outbox = || node.host.read(Path::new("/v/outbox.json")).unwrap_or_default();
    node.api().until("it is applied", |_| String::from_utf8(outbox()).unwrap().contains("succeeded")).await;
    node.stop().await;
    node.api().set_down(false);
    assert!(node.api().text("probe-statuses").contains("true"), "as before the plan");

    node.start();
    node.api().until_text("applied-checksum", &sum(&text)).await;
    let written = node.api().written();
    let reported =
        |data: &&common::Data| data.get("applied-checksum").is_some_and(|of| *of == sum(&text).as_bytes());
    let first = written.iter().find(reported).unwrap();
    assert_eq!(first["plan-state"], b"succeeded");
    let statuses = String::from_utf8(first["probe-statuses"].clone()).unwrap();
    assert!(!statuses.contains("true"), "{statuses}");
    assert_eq!(node.runs("b").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn hundreds_of_machines_run_in_one_process_with_one_api_server() {
    let api = Api::new();
    let machine = |seed| Node::on(api.beside(&format!("machine-{seed}-plan")), seed, |host| host);
    let mut nodes: Vec<Node> = (0..300).map(machine).collect();
    for node in &mut nodes {
        node.api().create(&[("plan", &plan(&["a 5", "b 1"])), ("plan-state", "pending")]);
        node.start();
    }
    for node in &nodes {
        node.api().until_text("plan-state", "succeeded").await;
        assert_eq!((node.runs("a").len(), node.runs("b").len()), (1, 1));
    }
}
