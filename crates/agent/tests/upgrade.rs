//! The agent upgrades itself to the one that the manager offers, without losing anything.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers outside #[test] functions

mod common;

use std::{os::unix::fs::PermissionsExt as _, path::Path, time::Duration};

use common::{
    Api, Call, Fault,
    machine::{Machine, count},
    node::{LONG, Node, plan},
    sum, until,
};
use drover_agent::{host::Host as _, status::Status};
use serde_json::json;
use tokio::time::sleep;

const AGENT: &str = "/usr/local/bin/rancher-system-agent";

fn node(seed: u64) -> Node {
    Node::with(seed, |host| host.with_executable(AGENT, b"old").unwrap())
}

fn file(node: &Node) -> Vec<u8> {
    node.host.read(Path::new(AGENT)).unwrap()
}

fn reported(node: &Node) -> String {
    let status: Status =
        serde_json::from_slice(&node.host.read(Path::new("/v/status.json")).unwrap()).unwrap();
    status.upgrade.unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_running_plan_is_finished_and_reported_before_the_upgrade() {
    for state in [Some("pending"), None] {
        let mut node = node(1);
        let text = plan(&["a 100"]);
        node.api().create(&[("plan", &text)]);
        if let Some(state) = state {
            node.api().plan(&text, Some(state));
        }
        node.start();
        node.api().until("it runs", |_| node.runs("a").len() == 1).await;
        node.api().offer(b"new");
        sleep(Duration::from_secs(60)).await;
        assert_eq!((node.host.became(), file(&node)), (0, b"old".to_vec()), "not while it runs");
        assert!(reported(&node).contains("waiting for an idle moment"), "{}", reported(&node));
        node.api().until_within(LONG, "it changed", |_| node.host.became() == 1).await;
        assert_eq!(node.api().text("applied-checksum"), sum(&text), "reported first");
        assert_eq!(file(&node), b"new");
        let stat = node.host.stat(Path::new(AGENT)).unwrap();
        assert_eq!((stat.mode, stat.uid, stat.gid), (0o755, 0, 0));
        assert_eq!(node.host.list(Path::new("/usr/local/bin")).unwrap(), ["rancher-system-agent"]);
        // The effect on the process.
        node.stop().await;
        node.start();
        let revision = node.api().revision();
        sleep(Duration::from_secs(600)).await;
        assert_eq!(node.runs("a").len(), 1, "an applied plan is not applied again, in both protocols");
        assert_eq!((node.host.became(), node.api().revision()), (1, revision));
        assert_eq!(reported(&node), "");
        // An ordinary restart works as usual.
        node.stop().await;
        node.start();
        sleep(Duration::from_secs(60)).await;
        assert_eq!(node.runs("a").len(), if state.is_some() { 1 } else { 2 });
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_already_the_offered_one_downloads_nothing() {
    let mut node = node(2);
    node.api().create(&[("plan", &plan(&["a"])), ("plan-state", "pending")]);
    node.api().offer(b"old");
    node.start();
    node.api().until_text("plan-state", "succeeded").await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(node.host.became(), 0);
    assert!(!node.api().requests().iter().any(|request| request.contains("/assets/")));
}

#[tokio::test(start_paused = true)]
async fn a_wrong_download_is_rejected_reported_and_retried_with_pauses() {
    let mut node = node(3);
    node.api().create(&[("plan", &plan(&["a"])), ("plan-state", "pending")]);
    node.api().offer(b"new");
    node.api().spoil_offer(b"evil");
    node.start();
    node.api().until_text("plan-state", "succeeded").await;
    sleep(Duration::from_secs(3600)).await;
    assert!(reported(&node).contains("does not match its checksum"), "{}", reported(&node));
    assert_eq!((node.host.became(), file(&node)), (0, b"old".to_vec()));
    assert_eq!(node.host.list(Path::new("/usr/local/bin")).unwrap(), ["rancher-system-agent"]);
    let tries = node.api().requests().iter().filter(|request| request.contains("/assets/")).count();
    assert!((4..=9).contains(&tries), "{tries} attempts in an hour");
    // Plans continue.
    node.api().plan(&plan(&["b"]), Some("pending"));
    node.api().until("the next plan", |_| node.runs("b").len() == 1).await;
    // Another offer is downloaded without the long pause.
    node.api().offer(b"better");
    node.api().until("it changed", |_| node.host.became() == 1).await;
    assert_eq!(file(&node), b"better");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_does_not_run_on_this_machine_is_never_installed() {
    let mut node = node(4);
    node.exit("--version", 126);
    node.api().create(&[("plan", &plan(&["a"])), ("plan-state", "pending")]);
    node.api().offer(b"for another machine");
    node.start();
    sleep(Duration::from_secs(100)).await;
    assert!(reported(&node).contains("does not run on this machine: exit code 126"), "{}", reported(&node));
    assert_eq!((node.host.became(), file(&node)), (0, b"old".to_vec()));
    node.exit("--version", 0);
    node.api().until_within(LONG, "it changed", |_| node.host.became() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn unpublished_results_and_installers_delay_the_upgrade() {
    let mut node = node(5);
    node.api().create(&[("plan", &plan(&["a 10"])), ("plan-state", "pending")]);
    node.start();
    node.api().until("it runs", |_| node.runs("a").len() == 1).await;
    node.api().offer(b"new");
    node.api().faults().fail(Call::Put, Fault::Status(503), usize::MAX);
    sleep(Duration::from_secs(300)).await;
    assert_eq!(node.host.became(), 0, "the report first");
    let attr = drover_agent::host::Attr { mode: 0o600, owner: None };
    node.host.replace(Path::new("/v/interlock/restart-pending"), b"", attr).unwrap();
    node.api().faults().heal();
    node.api().until_text("plan-state", "succeeded").await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(node.host.became(), 0, "the installer first");
    node.host.remove_file(Path::new("/v/interlock/restart-pending")).unwrap();
    node.api().until("it changed", |_| node.host.became() == 1).await;
    assert_eq!(node.runs("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_power_failure_between_any_two_writes_of_an_upgrade_leaves_a_working_agent() {
    let (mut old, mut new) = (0, 0);
    for crash in 0.. {
        let about = format!("power for {crash} writes");
        let mut node = node(100 + crash);
        node.api().create(&[("plan", &plan(&["a"])), ("plan-state", "pending")]);
        node.start();
        node.api().until_text("plan-state", "succeeded").await;
        assert!(!node.until_dark_or_quiet().await);
        node.host.crash_after_writes(crash);
        node.api().offer(b"new");
        let reached = node.until_dark_or_quiet().await;
        node.stop().await;
        // The machine boots with the content of its disk.
        let before = node.host.became();
        node.host.restart();
        let program = file(&node);
        assert!([&b"old"[..], b"new"].contains(&&*program), "{about}: complete, either version");
        assert_eq!(node.host.stat(Path::new(AGENT)).unwrap().mode, 0o755, "{about}: it is executable");
        node.start();
        if program == b"old" {
            old += 1;
            assert_eq!(before, 0, "{about}: the new program is on disk");
            node.api().until_within(LONG, &about, |_| node.host.became() == 1).await;
            node.stop().await;
            node.start();
        } else {
            new += 1;
        }
        sleep(Duration::from_secs(60)).await;
        assert_eq!(file(&node), b"new", "{about}");
        assert_eq!(node.host.became(), if program == b"old" { 1 } else { before }, "{about}: only once");
        assert_eq!(node.runs("a").len(), 1, "{about}");
        assert_eq!(node.host.list(Path::new("/usr/local/bin")).unwrap(), ["rancher-system-agent"], "{about}");
        assert!(node.host.read(Path::new("/v/continues")).is_err(), "{about}");
        node.stop().await;
        if !reached {
            break;
        }
    }
    assert!(old >= 4 && new >= 2, "{old} times the old one, {new} times the new one");
}

#[tokio::test(start_paused = true)]
async fn an_offer_of_the_running_agent_is_not_reported() {
    let mut node = node(8);
    node.api().create(&[("plan", &plan(&["a 100"])), ("plan-state", "pending")]);
    node.api().offer(b"old");
    node.start();
    node.api().until("it runs", |_| node.runs("a").len() == 1).await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!((node.host.became(), reported(&node)), (0, String::new()));
}

#[tokio::test(start_paused = true)]
async fn a_pinned_agent_stays() {
    let mut node = node(6);
    node.pinned = true;
    node.api().create(&[("plan", &plan(&["a"])), ("plan-state", "pending")]);
    node.api().offer(b"new");
    node.start();
    sleep(Duration::from_secs(600)).await;
    assert_eq!((node.host.became(), reported(&node)), (0, String::new()));
}

/// A copy of the agent, and another one that only has a few additional bytes at its end.
fn versions(machine: &mut Machine) -> Vec<u8> {
    let folder = machine.path("bin");
    std::fs::create_dir(&folder).unwrap();
    let binary = folder.join("rancher-system-agent");
    std::fs::copy(env!("CARGO_BIN_EXE_drover-agent"), &binary).unwrap();
    std::fs::set_permissions(&binary, std::fs::Permissions::from_mode(0o750)).unwrap();
    let mut new = std::fs::read(&binary).unwrap();
    new.extend_from_slice(b"a new version");
    machine.binary = Some(binary);
    new
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_agent_upgrades_in_the_same_process_after_the_running_plan() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let new = versions(&mut machine);
    let dir = machine.dir.path().display();
    let script = format!("echo ran >> {dir}/ran; while ! test -e {dir}/go; do sleep 0.05; done; echo done");
    let text =
        json!({"instructions": [{"name": "i", "command": "sh", "args": ["-c", script], "saveOutput": true}]})
            .to_string();
    api.create(&[("plan", &text), ("plan-state", "pending")]);
    machine.start();
    until("the instruction runs", || count(&machine.path("ran")) == 1).await;
    api.offer(&new);
    until("it received the offer", || {
        machine.read("var/status.json").is_some_and(|status| status.contains("idle moment"))
    })
    .await;
    std::fs::write(machine.path("go"), "").unwrap();
    api.until_text("plan-state", "succeeded").await;
    assert_eq!(api.output("applied-output", "i"), "done\n");
    let binary = machine.binary.clone().unwrap();
    until("it runs as the new version", || machine.log().matches("starting drover-agent").count() == 2).await;
    assert!(std::fs::read(&binary).unwrap() == new, "the file is the new one");
    let mode = std::fs::metadata(&binary).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o750, "its mode is kept");
    assert!(machine.is_running());
    let runs = std::fs::read(format!("/proc/{}/exe", machine.pid())).unwrap();
    assert!(runs == new, "the same process runs the new file");
    let arguments = std::fs::read_to_string(format!("/proc/{}/cmdline", machine.pid())).unwrap();
    assert!(arguments.ends_with("sentinel\0"), "{arguments}");

    // It continues where the old version stopped.
    let next = json!({"instructions": [{"name": "i", "command": "sh", "args": ["-c", "echo next"], "saveOutput": true}]})
        .to_string();
    api.plan(&next, Some("pending"));
    api.until("the next plan", |api| api.text("applied-checksum") == sum(&next)).await;
    assert_eq!(count(&machine.path("ran")), 1, "nothing runs twice");
    assert_eq!(api.text("plan-revision"), "2");
    assert_eq!(machine.log().matches("starting it").count(), 1);
    assert_eq!(std::fs::read_dir(machine.path("bin")).unwrap().count(), 1, "no other file is left");
    let second = machine.command(&["sentinel"]).output().unwrap();
    let reported = String::from_utf8_lossy(&second.stderr);
    assert!(
        !second.status.success() && reported.contains("sentinel.lock"),
        "the new version has the lock: {reported}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_on_a_read_only_file_system_reports_it_and_continues() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let new = versions(&mut machine);
    let folder = machine.path("bin").display().to_string();
    machine.before = Some(format!("mount --bind {folder} {folder}; mount -o remount,bind,ro {folder}"));
    if !machine.command(&["--version"]).output().is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: this host does not permit creating a mount namespace");
        return;
    }
    api.create(&[("plan", &plan(&["a"])), ("plan-state", "pending"), ("max-failures", "1")]);
    api.offer(&new);
    machine.start();
    until("it is reported", || {
        machine.log().contains("Read-only file system")
            && machine.read("var/status.json").is_some_and(|status| status.contains("Read-only file system"))
    })
    .await;
    let status = String::from_utf8(machine.command(&["status"]).output().unwrap().stdout).unwrap();
    assert!(status.contains("upgrade") && status.contains("Read-only file system"), "{status}");
    assert!(!api.requests().iter().any(|request| request.contains("/assets/")), "nothing is downloaded");
    api.plan("{}", Some("pending"));
    api.until_text("plan-state", "succeeded").await;
    assert!(machine.is_running());
}
