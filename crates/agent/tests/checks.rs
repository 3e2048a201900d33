//! The Checks about files, probes, periodic and local plans: the real binary with the embedded API.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers outside #[test] functions

mod common;

use std::{
    collections::BTreeMap,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use common::{
    Api,
    machine::{Machine, count},
    sum, until,
};
use drover_agent::{remote::gzip_json, unix_date};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::sleep,
};

/// The times in seconds at which a script ran, as it recorded them.
fn times(machine: &Machine, name: &str) -> Vec<u64> {
    machine.read(name).unwrap_or_default().lines().map(|line| line.parse().unwrap()).collect()
}

fn note(machine: &Machine, name: &str) -> String {
    format!("date +%s >> {}", machine.path(name).display())
}

fn shell(script: &str) -> Value {
    json!({"name": "i", "command": "sh", "args": ["-c", script], "saveOutput": true})
}

/// Half a minute of cooldown, with everything that can be observed meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn agent_check_10_the_real_agent_cools_down_and_stops_at_the_limit_also_after_a_restart() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let script = format!("{}; exit 1", note(&machine, "tries"));
    let plan = json!({"instructions": [shell(&script)]}).to_string();
    api.create(&[("plan", &plan), ("max-failures", "2")]);
    machine.start();
    let long = Duration::from_secs(120);
    api.until_within(long, "two failures", |api| api.text("failure-count") == "2").await;
    let tries = times(&machine, "tries");
    // Both times are rounded to seconds.
    assert!(tries.len() == 2 && tries[1] - tries[0] >= 29, "{tries:?}");
    machine.kill();
    machine.start();
    until("it has decided", || {
        machine.log().matches("the plan failed the maximum number of times").count() == 2
    })
    .await;
    assert_eq!((count(&machine.path("tries")), api.text("failure-count").as_str()), (2, "2"));
    assert_eq!(api.text("failed-checksum"), sum(&plan));
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_11_25_a_failure_stays_reported_and_nothing_is_written_without_a_change() {
    let failing = Api::new();
    let mut first = Machine::new(&failing).await;
    let plan = json!({"instructions": [shell("echo why; exit 1")]}).to_string();
    failing.create(&[("plan", &plan), ("plan-state", "pending"), ("max-failures", "1")]);
    first.start();
    let healthy = Api::new();
    let mut second = Machine::new(&healthy).await;
    let address = answer("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    // A long timeout, because a late response on a busy machine would be a change.
    let probes = json!({"p": {"timeoutSeconds": 30, "httpGet": {"url": format!("http://{address}/")}}});
    let good = json!({"instructions": [shell("echo hi")], "probes": probes,
        "periodicInstructions": [{"name": "n", "command": "true", "periodSeconds": 600}]})
    .to_string();
    healthy.create(&[("plan", &good), ("plan-state", "pending"), ("probe-period-seconds", "1")]);
    second.start();
    failing.until_text("plan-state", "failed").await;
    // In this order, because a successful plan resets the probes.
    healthy.until_text("plan-state", "succeeded").await;
    healthy.until("healthy", |api| api.text("probe-statuses").contains("true")).await;
    let (failed, quiet) = (failing.revision(), healthy.revision());
    sleep(Duration::from_secs(60)).await;
    assert_eq!((failing.revision(), healthy.revision()), (failed, quiet));
    assert_eq!(failing.text("failed-checksum"), sum(&plan));
    assert!(failing.output("failed-output", "i").contains("why"));
    assert_eq!(
        (failing.text("failure-count").as_str(), failing.text("plan-state").as_str()),
        ("1", "failed")
    );
    assert_ne!(failing.text("applied-checksum"), sum(&plan));
    assert!(first.is_running() && second.is_running());
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_19_20_files_are_repaired_without_rewriting_and_deleted_whatever_their_type() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let (file, full, missing) = (machine.path("file"), machine.path("full"), machine.path("missing"));
    std::fs::write(&file, "same").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::create_dir_all(full.join("deep/er")).unwrap();
    std::fs::write(full.join("deep/er/x"), "x").unwrap();
    // Only root can change the owner.
    let owner = if nix::unistd::getuid().is_root() { 1000 } else { 0 };
    let before = std::fs::metadata(&file).unwrap();
    let plan = json!({"files": [
        {"path": file, "content": "c2FtZQ==", "permissions": "0640", "uid": owner, "gid": owner},
        {"path": missing, "action": "delete"},
        {"path": full, "directory": true, "action": "delete"},
    ]})
    .to_string();
    api.create(&[("plan", &plan), ("plan-state", "pending"), ("max-failures", "1")]);
    machine.start();
    api.until_text("plan-state", "succeeded").await;
    let after = std::fs::metadata(&file).unwrap();
    assert_eq!(after.permissions().mode() & 0o7777, 0o640);
    if owner != 0 {
        assert_eq!((after.uid(), after.gid()), (owner, owner));
    }
    assert_eq!((after.ino(), after.mtime_nsec()), (before.ino(), before.mtime_nsec()), "not rewritten");
    assert!(!missing.exists() && !full.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_22_a_file_is_old_or_new_after_a_kill_during_its_write() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let path = machine.path("file");
    let content = |letter: &str| letter.repeat(600_000);
    std::fs::write(&path, content("A")).unwrap();
    let (mut kinds, mut inside) = (BTreeMap::new(), 0);
    api.create(&[]);
    // At least this many rounds, and more until enough kills happened during a write.
    for round in 0_u32.. {
        if round >= 16 && inside >= 8 {
            break;
        }
        assert!(round < 200, "only {inside} of {round} kills happened during a write");
        let (old, new) = if round % 2 == 0 { ("A", "B") } else { ("B", "A") };
        std::fs::write(&path, content(old)).unwrap();
        let base64 = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, content(new));
        let files = json!([{"path": path, "content": base64}]);
        api.plan(&json!({"error": round.to_string(), "files": files}).to_string(), Some("pending"));
        machine.start();
        api.until("it has started", |api| api.text("plan-state") != "pending").await;
        // Polled without a pause, because the temporary file exists only for milliseconds.
        let (seen, aim) = (path.clone(), content(new));
        let struck = tokio::task::spawn_blocking(move || {
            let deadline = std::time::Instant::now() + Duration::from_secs(30);
            while unfinished(&seen) == 0 && std::fs::read_to_string(&seen).unwrap() != aim {
                assert!(std::time::Instant::now() < deadline, "timed out waiting for the write");
            }
        });
        struck.await.unwrap();
        // A little later in each round, so that the kill happens at different steps.
        sleep(Duration::from_micros(u64::from(round % 8) * 400)).await;
        machine.kill();
        inside += unfinished(&path);
        let found = std::fs::read_to_string(&path).unwrap();
        assert!(found == content(old) || found == content(new), "round {round}: {} bytes", found.len());
        *kinds.entry(found == content(new)).or_insert(0) += 1;
    }
    println!("old and new after the kill: {kinds:?}, {inside} during a write");
    machine.start();
    api.until_text("plan-state", "succeeded").await;
    assert_eq!(unfinished(&path), 0, "no temporary file is left");
}

/// The number of temporary files next to it.
fn unfinished(path: &std::path::Path) -> usize {
    let names = std::fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().is_some_and(|name| name.starts_with(".file."))).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_23_24_periods_and_pauses_survive_restarts_of_the_real_agent() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let periodic = |name: &str, script: &str, period: u32| json!({"name": name, "command": "sh", "args": ["-c", script], "periodSeconds": period});
    let bad = format!("{}; exit 7", note(&machine, "bad"));
    let all = json!([periodic("good", &note(&machine, "good"), 600), periodic("bad", &bad, 5)]);
    let plan = json!({"periodicInstructions": all}).to_string();
    // Before this process started, one instruction succeeded, and one failed nine times, the last time 172 s ago.
    let now = Timestamp::now();
    let ago = |seconds| unix_date::format(now - SignedDuration::from_secs(seconds));
    let known: BTreeMap<&str, Value> = [
        ("good", json!({"name": "good", "stdout": "", "exitCode": 0, "lastSuccessfulRunTime": ago(100)})),
        (
            "bad",
            json!({"name": "bad", "stdout": "", "exitCode": 7, "failures": 9, "lastFailedRunTime": ago(172)}),
        ),
    ]
    .into();
    api.create(&[("plan", &plan), ("plan-state", "succeeded"), ("applied-checksum", &sum(&plan))]);
    let packed = gzip_json::encode(&known);
    api.change(|data| {
        data.insert("applied-periodic-output".into(), packed.clone());
    });
    machine.start();
    api.until("the tenth failure", |api| api.map("applied-periodic-output")["bad"]["failures"] == 10).await;
    let ran = times(&machine, "bad");
    let last = u64::try_from(now.as_second()).unwrap() - 172;
    assert!(ran.len() == 1 && ran[0] >= last + 180, "180 s after {last}: {ran:?}");
    assert_eq!(count(&machine.path("good")), 0, "its period is not over");
    machine.kill();
    machine.start();
    until("it is idle again", || machine.log().matches("the plan is applied").count() == 2).await;
    // A pass with a new plan runs all of them, even if they are not due.
    let next = json!({"periodicInstructions": all, "error": "another"}).to_string();
    api.plan(&next, Some("pending"));
    api.until("the new plan", |api| api.text("applied-checksum") == sum(&next)).await;
    assert_eq!((count(&machine.path("good")), count(&machine.path("bad"))), (1, 2));
}

/// A server with a constant response.
async fn answer(text: impl Into<String>) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, text) = (listener.local_addr().unwrap(), text.into());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let text = text.clone();
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 2048]).await;
                if text.is_empty() {
                    std::future::pending::<()>().await;
                }
                let _ = stream.write_all(text.as_bytes()).await;
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_26_27_only_a_2xx_of_the_same_host_is_healthy_and_a_hanging_probe_delays_no_other() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let good = answer("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    let missing = answer("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await;
    let away = format!(
        "HTTP/1.1 302 Found\r\nLocation: http://localhost:{}/\r\nContent-Length: 0\r\n\r\n",
        good.port()
    );
    let (away, hanging) = (answer(away).await, answer("").await);
    let probe = |address: std::net::SocketAddr| {
        json!({"successThreshold": 2, "failureThreshold": 2, "timeoutSeconds": 0,
               "httpGet": {"url": format!("http://{address}/")}})
    };
    let plan = json!({"probes": {
        "good": probe(good), "missing": probe(missing), "away": probe(away), "hanging": probe(hanging),
    }})
    .to_string();
    api.create(&[("plan", &plan), ("plan-state", "pending"), ("probe-period-seconds", "1")]);
    machine.start();
    let probes =
        |api: &Api| -> Value { serde_json::from_str(&api.text("probe-statuses")).unwrap_or_default() };
    let settled = |api: &Api| {
        let seen = probes(api);
        seen["good"] == json!({"healthy": true, "successCount": 2})
            && seen["missing"] == json!({"failureCount": 2})
            && seen["away"] == json!({"failureCount": 2})
    };
    api.until("three of them are known", settled).await;
    assert_ne!(probes(&api)["hanging"]["healthy"], true);
    api.until("the hanging probe times out", |api| probes(api)["hanging"]["failureCount"] == 2).await;
    assert!(settled(&api));
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_35_the_real_agent_waits_for_its_installer_but_not_forever() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    std::fs::create_dir_all(machine.path("var/interlock")).unwrap();
    // Four and a half minutes ago: thirty seconds remain.
    let since = unix_date::format(Timestamp::now() - SignedDuration::from_secs(270));
    machine.private("var/interlock/restart-pending", &since);
    let plan = json!({"instructions": [shell(&note(&machine, "ran"))]}).to_string();
    api.create(&[("plan", &plan), ("plan-state", "pending")]);
    let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    machine.start();
    until("it is logged", || machine.log().contains("waiting for the installer to restart the agent")).await;
    assert_eq!(api.text("plan-state"), "pending");
    api.until_text("plan-state", "succeeded").await;
    let ran = times(&machine, "ran");
    // Both times are rounded to seconds.
    assert!(ran.len() == 1 && ran[0] >= begun + 28, "too early: {ran:?}, begun at {begun}");
    assert!(!machine.path("var/interlock/restart-pending").exists());
    assert!(!machine.path("var/interlock/applyinator-active").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_36_of_100_plans_64_private_copies_remain() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    api.create(&[]);
    machine.start();
    for number in 0..100 {
        let plan = json!({"error": number.to_string()}).to_string();
        api.plan(&plan, Some("pending"));
        api.until("it is applied", |api| api.text("applied-checksum") == sum(&plan)).await;
    }
    let copies: Vec<_> = std::fs::read_dir(machine.path("var/applied")).unwrap().flatten().collect();
    assert_eq!(copies.len(), 64);
    for copy in &copies {
        let name = copy.file_name().into_string().unwrap();
        assert!(name.ends_with("-applied.plan"), "{name}");
        assert_eq!(copy.metadata().unwrap().permissions().mode() & 0o7777, 0o600, "{name}");
    }
}

/// Half a minute of cooling down, for local plans.
#[tokio::test(flavor = "multi_thread")]
async fn agent_check_37_local_plans_of_the_real_agent_are_skipped_applied_and_retried() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    api.create(&[]);
    let plans = machine.path("var/plans");
    let config = machine.read("config.yaml").unwrap();
    let local = format!("{config}localEnabled: true\nlocalPlanDirectory: {}\n", plans.display());
    machine.private("config.yaml", &local);
    machine.start();
    until("the directory exists", || plans.exists()).await;
    machine.private("var/plans/a.plan.skip", "");
    let script = format!("{}; test $(wc -l < {}) = 2", note(&machine, "ran"), machine.path("ran").display());
    machine.private("var/plans/a.plan", &json!({"instructions": [shell(&script)]}).to_string());
    // Another plan is found in a later scan, so the skipped one was scanned too.
    machine
        .private("var/plans/b.plan", &json!({"instructions": [shell(&note(&machine, "other"))]}).to_string());
    until("the other runs", || count(&machine.path("other")) == 1).await;
    assert_eq!(count(&machine.path("ran")), 0);
    std::fs::remove_file(machine.path("var/plans/a.plan.skip")).unwrap();
    until("it runs and fails", || count(&machine.path("ran")) == 1).await;
    until("it is retried", || count(&machine.path("ran")) == 2).await;
    let kept = || machine.read("var/plans/a.pos").is_some_and(|text| text.contains("appliedChecksum"));
    until("its state is written", kept).await;
    assert_eq!(count(&machine.path("other")), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_connection_file_is_reported_in_the_status() {
    let connection = json!({"kubeConfig": "{nonsense", "namespace": "n", "secretName": "s"}).to_string();
    let machine = Machine::with_connection(&connection);
    let ended = machine.command(&["sentinel"]).output().unwrap();
    assert!(!ended.status.success());
    let output = machine.command(&["status"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("none: invalid connection file ") && text.contains("var/connection.json"),
        "{text}"
    );
    assert!(!text.contains("local plans only") && !text.contains("idle"), "{text}");
    assert_eq!(output.status.code(), Some(3), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_of_local_plans_is_reported() {
    let mut machine = Machine::with_connection("");
    let dir = machine.dir.path().display().to_string();
    let config =
        format!("workDirectory: {dir}/var/work\nlocalEnabled: true\nlocalPlanDirectory: {dir}/plans\n");
    machine.private("config.yaml", &config);
    std::fs::create_dir(machine.path("plans")).unwrap();
    machine.private("plans/a.plan", &json!({"instructions": [shell("true")]}).to_string());
    machine.private("plans/b.plan", &json!({"instructions": [shell("exit 7")]}).to_string());
    machine.private("plans/c.plan", "{nonsense");
    machine.start();
    let reported = || {
        let output = machine.command(&["status"]).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let wanted = ["local plans only", "a.plan: applied", "b.plan: failed", "exit code 7", "c.plan: invalid"];
    until("all are reported", || wanted.iter().all(|word| reported().1.contains(word))).await;
    assert!(reported().0);
    machine.kill();
    let output = machine.command(&["status"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.code() == Some(3) && text.contains("is not running"), "{text}");
}
