//! The agent for Windows under Wine, which is not Windows but runs the same program: docs/windows.md states what this
//! tests and what not.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers outside #[test] functions

mod common;

use std::{
    os::unix::fs::PermissionsExt as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use common::{
    Api, patient,
    wine::{PATIENCE, Wine},
};
use serde_json::{Value, json};

/// The path of the original's installer.
const CONFIG: &str = "etc/rancher/wins/config";
const SERVICE: &str = "rancher-wins";

async fn boot() -> Option<Wine> {
    Wine::boot()
        .await
        .inspect_err(|why| eprintln!("\n*** SKIPPED: no test of the agent for Windows: {why} ***\n"))
        .ok()
}

/// The service's file with the agent's section.
fn config(section: &str) -> String {
    format!(
        "\r\nagentStrictTLSMode: true\r\nsystemagent:\r\n  workDirectory: C:/var/lib/rancher/agent/work\r\n  \
         appliedPlanDirectory: C:/var/lib/rancher/agent/applied\r\n{section}"
    )
}

const LOCAL: &str = "  localEnabled: true\r\n  localPlanDirectory: C:/plans\r\n";

/// A plan with one line for the system's command processor.
fn line(line: &str) -> Value {
    json!({"instructions": [{"name": "i", "command": "cmd.exe", "args": ["/c", line], "saveOutput": true}]})
}

/// The value of a field in the output of `sc.exe`, without the number before it.
fn field(said: &str, name: &str) -> String {
    let line = said.lines().find(|line| line.trim_start().starts_with(name)).unwrap_or_default();
    line.split_whitespace().next_back().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_foreground_it_reads_its_section_applies_a_plan_and_runs_probes() {
    let Some(wine) = boot().await else { return };
    let (content, version) = wine.says(wine.agent(&["--version"])).await;
    assert!(content && version.starts_with("drover-agent "), "{version}");
    let (content, help) = wine.says(wine.agent(&["--help"])).await;
    assert!(content && help.contains("default C:/etc/rancher/wins/config"), "{help}");

    wine.put(CONFIG, "agentStrictTLSMode: true\r\n");
    let (content, said) = wine.says(wine.agent(&["sentinel"])).await;
    assert!(!content && said.contains("systemagent"), "{said}");
    wine.put("other.yaml", "localEnabled: true\nlocalPlanDirectory: C:/plans\n");
    assert!(wine.says(wine.agent(&["validate-config", "C:/other.yaml"])).await.0);

    let api = Api::new();
    let server = format!("https://{}", api.listen().await);
    let connection = "C:/var/lib/rancher/agent/rancher2_connection_info.json";
    wine.put(CONFIG, &config(&format!("  remoteEnabled: true\r\n  connectionInfoFile: {connection}\r\n")));
    wine.put(connection.strip_prefix("C:/").unwrap(), "<html>");
    let (content, said) = wine.says(wine.agent(&["validate-connection", connection])).await;
    assert!(!content && said.contains("rancher2_connection_info.json"), "{said}");
    wine.put(connection.strip_prefix("C:/").unwrap(), &api.connection(&server));
    assert!(wine.says(wine.agent(&["validate-connection", connection])).await.0);
    assert!(wine.says(wine.agent(&["validate-config", "C:/etc/rancher/wins/config"])).await.0);

    let mut plan = line(r"echo out& echo %CATTLE_AGENT_EXECUTION_PWD%& echo %PATH%& C:\bin\wait.exe C:\go");
    plan["files"] = json!([
        {"path": "C:/data/deep/a.txt", "content": STANDARD.encode("text"), "permissions": "0644"},
        {"path": "C:/data/gone.txt", "action": "delete"},
    ]);
    // A name that requires a lookup, which needs a thread; the instruction's pipes need some as well.
    let healthy = Arc::new(AtomicBool::new(false));
    let url = format!("http://LOCALHOST:{}/", patient::serve(healthy.clone()).await.port());
    plan["probes"] = json!({"p": {"httpGet": {"url": url}}});
    wine.put("data/gone.txt", "old");
    api.create(&[("plan", &plan.to_string()), ("plan-state", "pending"), ("probe-period-seconds", "1")]);
    let mut agent = wine.start();
    wine.until("its instruction runs", async || wine.count("wait.exe") == 1).await;
    healthy.store(true, Ordering::SeqCst);
    api.until("the probe is reported", |api| api.text("probe-statuses").contains(r#""healthy":true"#)).await;
    assert_eq!(api.text("plan-state"), "in-progress", "while the instruction runs");
    wine.put("go", "");
    api.until_text("plan-state", "succeeded").await;
    assert_eq!(wine.read("data/deep/a.txt"), "text");
    assert!(!wine.path("data/gone.txt").exists());
    let output = api.output("applied-output", "i");
    let lines: Vec<&str> = output.lines().map(str::trim_end).collect();
    let [out, dir, path] = lines[..] else { panic!("{output:?}") };
    assert_eq!(out, "out");
    assert!(dir.starts_with(r"C:\var\lib\rancher\agent\work\"), "{dir}");
    assert!(
        path.to_ascii_lowercase().starts_with(r"c:\windows") && path.ends_with(&format!(";{dir}")),
        "{path}"
    );

    let (content, status) = wine.says(wine.agent(&["status"])).await;
    assert!(
        content && status.contains("connected to 127.0.0.1") && !status.contains("not running"),
        "{status}"
    );
    // Wine translates the signal to Ctrl-C.
    let pid = nix::unistd::Pid::from_raw(agent.id().unwrap().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    let ended = tokio::time::timeout(PATIENCE, agent.wait()).await.expect("Ctrl-C ends it").unwrap();
    assert!(ended.success(), "{ended}");
    let (_, status) = wine.says(wine.agent(&["status"])).await;
    assert!(status.contains("is not running"), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn as_a_service_it_reports_its_state_stops_on_request_and_ends_its_programs() {
    let Some(wine) = boot().await else { return };
    wine.put(CONFIG, &config(LOCAL));
    wine.put("plans/a.plan", &line(r"echo ran>C:\ran.txt& C:\bin\wait.exe").to_string());
    let program = r"C:\bin\drover-agent.exe sentinel";
    wine.service(&["create", SERVICE, "binPath=", program]).await;
    let state = async || field(&wine.service(&["query", SERVICE]).await, "STATE");
    let started = wine.service(&["start", SERVICE]).await;
    assert!(matches!(field(&started, "STATE").as_str(), "START_PENDING" | "RUNNING"), "{started}");
    wine.until("it runs", async || state().await == "RUNNING").await;
    wine.until("its instruction runs", async || wine.count("wait.exe") == 1).await;
    assert_eq!(wine.read("ran.txt").trim_end(), "ran");
    // Wine shows the access lists of new files as modes.
    let own = std::fs::metadata(wine.path("var/lib/rancher/agent")).unwrap().permissions().mode();
    assert_eq!(own & 0o007, 0, "{own:o}");

    let stopped = wine.service(&["stop", SERVICE]).await;
    assert!(matches!(field(&stopped, "STATE").as_str(), "STOP_PENDING" | "STOPPED"), "{stopped}");
    wine.until("it has stopped", async || state().await == "STOPPED").await;
    let ended = wine.service(&["query", SERVICE]).await;
    assert_eq!(field(&ended, "WIN32_EXIT_CODE"), "(0x0)", "{ended}");
    wine.until("its instruction has ended", async || wine.count("wait.exe") == 0).await;

    wine.put(CONFIG, "systemagent: {}\r\n");
    wine.service(&["start", SERVICE]).await;
    wine.until("it has failed", async || {
        field(&wine.service(&["query", SERVICE]).await, "SERVICE_EXIT_CODE") == "(0x1)"
    })
    .await;
    assert_eq!(state().await, "STOPPED");

    // A killed agent ends nothing itself, so the system must. (Wine's service manager does not notice that it died.)
    wine.put(CONFIG, &config(LOCAL));
    wine.service(&["start", SERVICE]).await;
    wine.until("its instruction runs again", async || wine.count("wait.exe") == 1).await;
    wine.says(wine.command("taskkill.exe", &["/f", "/im", "drover-agent.exe"])).await;
    wine.until("its instruction has ended with it", async || wine.count("wait.exe") == 0).await;
}
