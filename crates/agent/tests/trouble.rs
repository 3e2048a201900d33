//! Losses and failures that a node can have in years of operation.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers outside #[test] functions

mod common;

use std::{os::unix::fs::PermissionsExt as _, path::Path, time::Duration};

use common::{
    Api,
    machine::{Machine, count},
    node::{LONG, Node, plan},
    sum, until,
};
use drover_agent::{
    host::Host as _,
    status::{self, Status},
};
use serde_json::{Value, json};
use tokio::time::sleep;

const HOUR: Duration = Duration::from_secs(3600);
const YEAR: i64 = 365 * 24 * 3600;

fn status(node: &Node) -> Status {
    serde_json::from_slice(&node.host.read(Path::new("/v/status.json")).unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn after_hours_without_the_api_one_report_is_sent_and_the_status_is_current() {
    let mut node = Node::new(1);
    let text = json!({
        "instructions": [{"name": "i", "command": "x", "args": ["i", "600"], "saveOutput": true}],
        "periodicInstructions": [{"name": "p", "command": "x", "args": ["p"], "periodSeconds": 1800}],
        "probes": {"h": {"failureThreshold": 1, "httpGet": {"url": "http://127.0.0.1/"}}},
    })
    .to_string();
    node.api().create(&[("plan", &text), ("plan-state", "pending")]);
    node.start();
    node.api().until("it runs", |_| node.runs("i").len() == 1).await;
    node.api().set_down(true);
    sleep(HOUR).await;
    let shown = status(&node);
    assert!(!shown.connected && shown.unpublished && shown.trouble.is_some(), "{shown:?}");
    let lines = status::render(&shown);
    for part in
        ["not connected to manager:8080: ", "waiting to be published", "h: healthy", "succeeded, revision 1"]
    {
        assert!(lines.contains(part), "{part}: {lines}");
    }
    *node.world.healthy.lock().unwrap() = false;
    sleep(6 * HOUR).await;
    assert!(node.runs("p").len() >= 13, "periodic instructions continue: {}", node.runs("p").len());
    let before = node.api().written().len();
    node.api().set_down(false);
    node.api().until("the report", |api| api.text("plan-state") == "succeeded").await;
    node.api().until("the probes", |api| api.text("probe-statuses") == r#"{"h":{"failureCount":1}}"#).await;
    assert_eq!(node.api().written().len() - before, 1, "everything in one update");
    assert_eq!(node.runs("i").len(), 1);
    sleep(Duration::from_secs(60)).await;
    let shown = status(&node);
    assert!(shown.connected && !shown.unpublished && shown.trouble.is_none(), "{shown:?}");
}

#[tokio::test(start_paused = true)]
async fn the_status_has_the_failure_of_a_plan_also_after_a_restart() {
    let mut node = Node::new(7);
    node.exit("a", 3);
    let failing = plan(&["a"]);
    node.api().create(&[("plan", &failing), ("plan-state", "pending"), ("max-failures", "1")]);
    node.start();
    node.api().until_text("plan-state", "failed").await;
    sleep(Duration::from_secs(5)).await;
    let reported = |node: &Node| {
        let shown = status(node);
        assert_eq!(shown.plan, Some(sum(&failing)), "{shown:?}");
        assert!(shown.failure.as_ref().is_some_and(|why| why.contains("exit code 3")), "{shown:?}");
        assert!(status::render(&shown).contains("exit code 3"));
        shown.before
    };
    assert!(!reported(&node));
    node.stop().await;
    node.api().set_down(true);
    node.start();
    sleep(Duration::from_secs(60)).await;
    assert!(reported(&node));
    assert!(status::render(&status(&node)).contains("from before this agent started"));
    node.api().set_down(false);
    sleep(LONG).await;
    assert!(!reported(&node));

    // An unpublished result, known only from the outbox.
    let next = plan(&["b 100"]);
    node.api().plan(&next, Some("pending"));
    node.api().until("it runs", |_| node.runs("b").len() == 1).await;
    node.api().set_down(true);
    sleep(Duration::from_secs(200)).await;
    assert_eq!(status(&node).failure, None);
    node.stop().await;
    node.host.remove_file(Path::new("/v/status.json")).unwrap();
    node.start();
    sleep(Duration::from_secs(60)).await;
    let shown = status(&node);
    assert!(shown.before && shown.unpublished && shown.last_apply_time.is_some(), "{shown:?}");
    assert_eq!((shown.plan, shown.applied_checksum), (Some(sum(&next)), Some(sum(&next))));
    assert_eq!((shown.plan_state.as_deref(), shown.failure_count), (Some("succeeded"), None));
    // Without a secret there is no plan.
    node.api().set_down(false);
    node.api().until_within(LONG, "the report", |api| api.text("plan-state") == "succeeded").await;
    node.api().delete();
    sleep(Duration::from_secs(60)).await;
    let shown = status(&node);
    assert!(!shown.before && shown.plan.is_none(), "{shown:?}");
}

#[tokio::test(start_paused = true)]
async fn clock_changes_neither_delay_nor_hasten_anything() {
    for (seed, jump) in [(1, YEAR), (2, -YEAR)] {
        let mut node = Node::new(seed);
        node.exit("a", 1);
        let text = json!({
            "instructions": [{"name": "a", "command": "x", "args": ["a"]}],
            "periodicInstructions": [{"name": "p", "command": "x", "args": ["p"], "periodSeconds": 600}],
        })
        .to_string();
        node.api().create(&[("plan", &text), ("plan-state", "pending"), ("max-failures", "-1")]);
        node.start();
        node.api().until("a failure", |api| api.text("failure-count") == "1").await;
        node.host.set_clock(jump);
        sleep(Duration::from_secs(3)).await;
        assert_eq!(node.runs("a").len(), 1, "the pause after a failure is not shortened");
        node.exit("a", 0);
        node.api().until("the second attempt", |api| api.text("plan-state") == "succeeded").await;
        let gap = node.runs("a")[1].at - node.runs("a")[0].at;
        assert!(gap >= Duration::from_secs(30) && gap < Duration::from_secs(45), "{gap:?}");
        node.host.set_clock(-jump);
        let before = node.runs("p").len();
        sleep(2 * HOUR).await;
        let runs = node.runs("p").len() - before;
        assert!((10..=14).contains(&runs), "{runs} runs in two hours");
        // A restart with a wrong clock.
        node.stop().await;
        node.host.set_clock(jump);
        node.start();
        let before = node.runs("p").len();
        sleep(HOUR).await;
        let runs = node.runs("p").len() - before;
        assert!((5..=8).contains(&runs), "{runs} runs in an hour");
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_plan_that_is_replaced_while_it_runs_is_not_confused_with_the_new_one() {
    let mut node = Node::new(3);
    node.api().create(&[("plan", &plan(&["a 100"])), ("plan-state", "pending")]);
    node.start();
    node.api().until("it runs", |_| node.runs("a").len() == 1).await;
    let next = plan(&["b 100"]);
    node.api().plan(&next, Some("pending"));
    node.api().until_within(LONG, "the next runs", |_| node.runs("b").len() == 1).await;
    assert_eq!(
        (node.api().text("plan-state").as_str(), node.api().text("plan-revision").as_str()),
        ("in-progress", "2")
    );
    assert_ne!(node.api().text("applied-checksum"), sum(&next));
    // The secret itself is recreated.
    node.api().delete();
    sleep(Duration::from_secs(10)).await;
    let last = plan(&["c"]);
    node.api().create(&[("plan", &last), ("plan-state", "pending")]);
    node.api()
        .until_within(LONG, "the last is applied", |api| api.text("applied-checksum") == sum(&last))
        .await;
    assert_eq!(node.api().text("plan-revision"), "1");
    assert!(node.api().map("applied-output").keys().eq(["c"]), "{:?}", node.api().map("applied-output"));
    assert_eq!((node.runs("a").len(), node.runs("b").len(), node.runs("c").len()), (1, 1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_9_killed_in_any_instruction_all_of_them_run_again_with_the_same_attempt() {
    for victim in 0..3 {
        let api = Api::new();
        let mut machine = Machine::new(&api).await;
        let dir = machine.dir.path().display().to_string();
        let instructions: Vec<Value> = (0..3)
            .map(|index| {
                let hang = if index == victim {
                    "test -e $D/go || { sleep 600 & echo $! > $D/child; echo $$ > $D/pid; wait; }"
                } else {
                    "true"
                };
                // The processes of the killed agent must be gone before anything runs again.
                let beside = "for P in $(cat $D/pid $D/child 2>/dev/null); do \
                              grep -v ') Z ' /proc/$P/stat 2>/dev/null >> $D/beside; done";
                let script =
                    format!("D={dir}; {beside}; echo {index} $CATTLE_AGENT_ATTEMPT_NUMBER >> $D/ran; {hang}");
                json!({"name": format!("i{index}"), "command": "sh", "args": ["-c", script]})
            })
            .collect();
        let text = json!({"instructions": instructions}).to_string();
        api.create(&[("plan", &text), ("plan-state", "pending")]);
        machine.start();
        until("it hangs", || count(&machine.path("ran")) == victim + 1 && count(&machine.path("pid")) == 1)
            .await;
        machine.kill();
        let left = ["pid", "child"].map(|name| machine.read(name).unwrap().trim().to_owned());
        assert!(left.iter().all(|pid| runs(pid)), "without systemd they survive the agent");
        std::fs::write(machine.path("go"), "").unwrap();
        machine.start();
        api.until_text("plan-state", "succeeded").await;
        let ran = machine.read("ran").unwrap();
        let lines: Vec<&str> = ran.lines().collect();
        assert_eq!(lines[victim + 1..], ["0 1", "1 1", "2 1"], "{ran}");
        assert_eq!(api.text("plan-revision"), "1");
        assert_eq!(
            machine.read("beside").unwrap_or_default(),
            "",
            "nothing ran in parallel to the second run"
        );
        assert!(!left.iter().any(|pid| runs(pid)), "{left:?}");
        until("the record is removed", || !machine.path("var/running").exists()).await;
    }
}

fn runs(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Mounts a small file system over the agent's directory; returns whether this host permits it.
fn small_disk(machine: &mut Machine, then: &str) -> bool {
    let var = machine.path("var").display().to_string();
    machine.before = Some(format!(
        "rm -rf {var}.kept; cp -a {var} {var}.kept; mount -t tmpfs -o size=256k none {var}; cp -a {var}.kept/. {var}/; {then}"
    ));
    let works = machine.command(&["--version"]).output().is_ok_and(|output| output.status.success());
    if !works {
        eprintln!("SKIPPED: this host does not permit creating a mount namespace");
    }
    works
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_reported_and_plans_continue_when_there_is_space() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let filler = machine.path("var/filler").display().to_string();
    if !small_disk(&mut machine, &format!("head -c 1000000 /dev/zero > {filler} 2>/dev/null || true")) {
        return;
    }
    let file = json!({"path": machine.path("var/file"), "content": "eHh4".repeat(20_000)});
    let first = json!({"files": [file]}).to_string();
    api.create(&[("plan", &first), ("plan-state", "pending"), ("max-failures", "1")]);
    machine.start();
    api.until_text("plan-state", "failed").await;
    let why = api.output("failed-output", "drover-agent/error");
    assert!(why.contains("var/file") && why.contains("No space left"), "{why}");
    // Neither its result nor its status could be saved, but it reports both.
    assert!(machine.log().contains("failed to save results"), "{}", machine.log());
    let second = json!({"instructions": [{"command": "rm", "args": [filler]}]}).to_string();
    api.plan(&second, Some("pending"));
    api.until("there is space", |api| api.text("applied-checksum") == sum(&second)).await;
    api.plan(&first, Some("pending"));
    api.until("the file fits", |api| api.text("applied-checksum") == sum(&first)).await;
    assert!(machine.is_running());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_is_current_on_a_full_disk() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    if !small_disk(&mut machine, "true") {
        return;
    }
    let applied = json!({"instructions": [{"command": "true"}]}).to_string();
    api.create(&[("plan", &applied), ("plan-state", "pending"), ("max-failures", "1")]);
    machine.start();
    api.until_text("plan-state", "succeeded").await;
    let filler = machine.path("var/filler").display().to_string();
    let filler = format!("/proc/{}/root{filler}", machine.pid());
    until("it is full", || std::fs::write(&filler, vec![0; 256 * 1024]).is_err()).await;
    let failing = json!({"instructions": [{"command": "false"}]}).to_string();
    api.plan(&failing, Some("pending"));
    api.until_text("plan-state", "failed").await;
    let reported = || {
        let output = std::process::Command::new("nsenter")
            .args([
                "--mount",
                "--target",
                &machine.pid().to_string(),
                env!("CARGO_BIN_EXE_drover-agent"),
                "status",
            ])
            .env("CATTLE_AGENT_CONFIG", machine.path("config.yaml"))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    // The agent may have removed one of its files after the disk was full, which frees space.
    let fill = || {
        use std::io::Write as _;
        let mut file = std::fs::OpenOptions::new().append(true).open(&filler).unwrap();
        while file.write_all(&[0; 512]).is_ok() {}
    };
    until("the status is shown with its age", || {
        fill();
        let text = reported();
        ["failed, revision", "This status may be outdated (from ", "No space left"]
            .iter()
            .all(|part| text.contains(part))
    })
    .await;
}

/// Like `/etc/hosts` in containers: the file cannot be replaced.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_a_mount_point_is_overwritten_in_place() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let dir = machine.dir.path().display().to_string();
    std::fs::write(machine.path("hosts"), "").unwrap();
    std::fs::write(machine.path("mounted"), "much longer than what comes after it\n").unwrap();
    machine.before = Some(format!("mount --bind {dir}/mounted {dir}/hosts"));
    if !machine.command(&["--version"]).output().is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: this host does not permit creating a mount namespace");
        return;
    }
    let file = json!({"path": machine.path("hosts"), "content": "bmV3Cg==", "permissions": "0640"});
    let text = json!({"files": [file]}).to_string();
    api.create(&[("plan", &text), ("plan-state", "pending"), ("max-failures", "1")]);
    machine.start();
    api.until("it ends", |api| matches!(&*api.text("plan-state"), "succeeded" | "failed")).await;
    assert_eq!(api.text("plan-state"), "succeeded", "{}", api.output("failed-output", "drover-agent/error"));
    assert_eq!(machine.read("mounted").unwrap(), "new\n");
    assert_eq!(machine.read("hosts").unwrap(), "", "the file below the mount is unchanged");
    let mode = std::fs::metadata(machine.path("mounted")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o640);
    let names = std::fs::read_dir(machine.dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!names.into_iter().any(|name| name.to_string_lossy().ends_with(".drover-tmp")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_root_is_reported_and_the_agent_continues() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let var = machine.path("var").display().to_string();
    if !small_disk(&mut machine, &format!("mount -o remount,ro {var}")) {
        return;
    }
    let text =
        json!({"instructions": [{"name": "i", "command": "echo", "args": ["hi"], "saveOutput": true}]})
            .to_string();
    api.create(&[("plan", &text), ("plan-state", "pending"), ("max-failures", "1")]);
    machine.start();
    api.until_text("plan-state", "failed").await;
    let why = api.output("failed-output", "drover-agent/error");
    assert!(why.contains("Read-only file system"), "{why}");
    assert!(machine.is_running());
    // A plan that writes nothing succeeds.
    api.plan("{}", Some("pending"));
    api.until("the empty plan", |api| api.text("applied-checksum") == sum("{}")).await;
}

/// Like `/usr` on many systems.
#[tokio::test(flavor = "multi_thread")]
async fn files_on_a_read_only_mount_are_reported_and_others_are_written() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let usr = machine.path("usr");
    std::fs::create_dir(&usr).unwrap();
    for (name, content) in [("same", "same"), ("other", "as it was")] {
        std::fs::write(usr.join(name), content).unwrap();
        std::fs::set_permissions(usr.join(name), std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let mount = usr.display();
    machine.before = Some(format!("mount --bind {mount} {mount}; mount -o remount,bind,ro {mount}"));
    if !machine.command(&["--version"]).output().is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: this host does not permit creating a mount namespace");
        return;
    }
    // A file that is already correct is not an error.
    let good = [json!({"path": usr.join("same"), "content": "c2FtZQ=="})];
    let plan = |files: &[Value]| json!({"files": files}).to_string();
    api.create(&[("plan", &plan(&good)), ("plan-state", "pending"), ("max-failures", "1")]);
    machine.start();
    api.until("it ends", |api| matches!(&*api.text("plan-state"), "succeeded" | "failed")).await;
    assert_eq!(api.text("plan-state"), "succeeded", "{}", api.output("failed-output", "drover-agent/error"));
    for (name, entry) in [
        ("other", json!({"content": "bmV3"})),
        ("new", json!({"content": "bmV3"})),
        ("deep/new", json!({"content": "bmV3"})),
        ("folder", json!({"directory": true})),
        ("same", json!({"content": "c2FtZQ==", "permissions": "0644"})),
        ("other", json!({"action": "delete"})),
    ] {
        let mut file = entry;
        file["path"] = usr.join(name).to_str().unwrap().into();
        let first = json!({"path": machine.path("first"), "content": "Zmlyc3Q="});
        let text = plan(&[first, file]);
        let _ = std::fs::remove_file(machine.path("first"));
        api.plan(&text, Some("pending"));
        api.until("it fails", |api| api.text("failed-checksum") == sum(&text)).await;
        let why = api.output("failed-output", "drover-agent/error");
        assert!(why.contains(&format!("{mount}/{name}")) && why.contains("Read-only file system"), "{why}");
        assert_eq!(machine.read("first").as_deref(), Some("first"), "earlier files are written");
    }
    let mut names: Vec<_> =
        std::fs::read_dir(&usr).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["other", "same"]);
    assert_eq!(machine.read("usr/other").as_deref(), Some("as it was"));
    assert!(machine.is_running());
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_files_are_written_and_verified() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    // Each file is synced, which is fast in memory.
    let fast =
        tempfile::tempdir_in(if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" }).unwrap();
    let files: Vec<Value> = (0..5000)
        .map(|index| json!({"path": fast.path().join(format!("{}/{index}", index % 10)), "content": "eA=="}))
        .collect();
    let text = json!({"files": files}).to_string();
    assert!(text.len() < 1_000_000, "it fits into a secret: {}", text.len());
    api.create(&[("plan", &text), ("plan-state", "pending")]);
    machine.start();
    api.until_text("plan-state", "succeeded").await;
    let verify = || {
        for index in 0..5000 {
            let path = fast.path().join(format!("{}/{index}", index % 10));
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "x", "{index}");
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o600, "{index}");
        }
        let folders = std::fs::read_dir(fast.path()).unwrap().map(|folder| folder.unwrap().path());
        let count: usize = folders.map(|folder| std::fs::read_dir(folder).unwrap().count()).sum();
        assert_eq!(count, 5000, "there are no other files");
    };
    verify();
    std::fs::set_permissions(fast.path().join("3/2003"), std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::write(fast.path().join("7/4997"), "changed by hand").unwrap();
    let again = json!({"files": files, "error": "another plan"}).to_string();
    api.plan(&again, Some("pending"));
    api.until("it is applied", |api| api.text("applied-checksum") == sum(&again)).await;
    verify();
}
