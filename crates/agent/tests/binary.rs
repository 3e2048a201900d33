//! The real binary with the embedded API over TLS. Numbers are those of the agent's Checks.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers outside #[test] functions

mod common;

use std::{os::unix::fs::PermissionsExt as _, time::Duration};

use common::{
    Api, Call, Fault,
    account::connection,
    machine::{Machine, count},
    shell, sum, until,
};
use serde_json::json;

fn failure(output: std::process::Output) -> String {
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_1_2_3_invalid_files_are_rejected_by_name() {
    let machine = Machine::with_connection("{}");
    let config = machine.path("config.yaml");
    let connection_file = machine.path("var/connection.json");
    std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = failure(machine.command(&["sentinel"]).output().unwrap());
    assert!(error.contains("config.yaml") && error.contains("0600"), "{error}");
    if nix::unistd::getuid().is_root() {
        std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::chown(&config, Some(54321), Some(0)).unwrap();
        let error = failure(machine.command(&["sentinel"]).output().unwrap());
        assert!(
            error.contains("config.yaml") && error.contains("54321:0") && error.contains("0:0"),
            "{error}"
        );
        std::os::unix::fs::chown(&config, Some(0), Some(0)).unwrap();
    }
    // The connection file contains a credential, and is checked the same way.
    machine.private("config.yaml", &machine.read("config.yaml").unwrap());
    machine.private("var/connection.json", &connection("https://127.0.0.1:1", "t", None, "plan"));
    std::fs::set_permissions(&connection_file, std::fs::Permissions::from_mode(0o640)).unwrap();
    let error = failure(machine.command(&["sentinel"]).output().unwrap());
    assert!(error.contains("connection.json has mode 0640") && error.contains("0600"), "{error}");
    machine.private("var/connection.json", "<html>log in</html>");
    let validate = ["validate-connection", connection_file.to_str().unwrap()];
    assert!(failure(machine.command(&validate).output().unwrap()).contains("connection.json"));
    for (missing, text) in [
        ("secretName", r#"{"kubeConfig":"a","namespace":"b"}"#),
        ("secretName", r#"{"kubeConfig":"a","namespace":"b","secretName":""}"#),
        ("namespace", r#"{"kubeConfig":"a","secretName":"c"}"#),
        ("kubeConfig", r#"{"namespace":"b","secretName":"c"}"#),
    ] {
        machine.private("var/connection.json", text);
        let error = failure(machine.command(&validate).output().unwrap());
        assert!(error.contains("connection.json") && error.contains(missing), "{text}: {error}");
    }
    machine.private("var/connection.json", &connection("https://x", "t", None, "plan"));
    let valid = machine.command(&validate).output().unwrap();
    let printed = String::from_utf8(valid.stdout).unwrap();
    assert!(
        valid.status.success() && printed.contains("connection.json is a valid connection\n"),
        "{printed}"
    );
    let file = config.to_str().unwrap();
    std::os::unix::fs::chown(&config, Some(nix::unistd::getuid().into()), None).unwrap();
    std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o600)).unwrap();
    let valid = machine.command(&["validate-config", file]).output().unwrap();
    assert_eq!(String::from_utf8(valid.stdout).unwrap(), format!("{file} is a valid configuration\n"));
    assert!(failure(machine.command(&["validate-config"]).output().unwrap()).contains("FILE"));
    machine.private("off.yaml", "remoteEnabled: false\n");
    let error = failure(
        machine.command(&["validate-config", machine.path("off.yaml").to_str().unwrap()]).output().unwrap(),
    );
    assert!(error.contains("neither localEnabled nor remoteEnabled"), "{error}");
    let started =
        machine.command(&["sentinel"]).env("CATTLE_AGENT_CONFIG", machine.path("off.yaml")).output();
    let error = failure(started.unwrap());
    assert!(error.contains("neither localEnabled nor remoteEnabled"), "{error}");
    let error = failure(machine.command(&["sentinel"]).env("CATTLE_LOGLEVEL", "loud").output().unwrap());
    assert!(error.contains("CATTLE_LOGLEVEL"), "{error}");
    let version = machine.command(&["--version"]).output().unwrap();
    assert!(String::from_utf8(version.stdout).unwrap().starts_with("drover-agent "));
    for args in [&["--help"][..], &["status", "--help"], &["uninstall", "--purge-distribution", "-h"]] {
        let help = machine.command(args).output().unwrap();
        assert!(help.status.success(), "{args:?}");
        assert!(String::from_utf8(help.stdout).unwrap().contains("Usage: drover-agent COMMAND"), "{args:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn relative_paths_and_links_are_resolved() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let validate = |args: &[&str]| machine.command(args).current_dir(machine.dir.path()).output().unwrap();
    let relative = "workDirectory: var/work\nremoteEnabled: true\nconnectionInfoFile: var/connection.json\n";
    machine.private("config.yaml", relative);
    std::os::unix::fs::symlink("config.yaml", machine.path("link.yaml")).unwrap();
    std::os::unix::fs::symlink(machine.path("var/connection.json"), machine.path("link.json")).unwrap();
    for args in [
        ["validate-config", "config.yaml"],
        ["validate-config", "./var/../link.yaml"],
        ["validate-connection", "var/connection.json"],
        ["validate-connection", "link.json"],
    ] {
        let output = validate(&args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    // The permissions of the target are checked, not those of the link.
    std::fs::set_permissions(machine.path("config.yaml"), std::fs::Permissions::from_mode(0o640)).unwrap();
    let error = failure(validate(&["validate-config", "link.yaml"]));
    assert!(error.contains("link.yaml has mode 0640") && error.contains("0600"), "{error}");
    std::fs::set_permissions(machine.path("config.yaml"), std::fs::Permissions::from_mode(0o600)).unwrap();
    // The same for the daemon, with a script that runs in its own directory; the plan uses Go's case-insensitive names.
    let plan = json!({"Instructions": [{"NAME": "i", "Script": "#!/bin/sh\npwd\n", "SaveOutput": true}]});
    api.create(&[("plan", &plan.to_string()), ("plan-state", "pending")]);
    let mut sentinel = machine.command(&["sentinel"]);
    let sentinel = sentinel.current_dir(machine.dir.path()).env("CATTLE_AGENT_CONFIG", "link.yaml");
    let log = std::fs::File::create(machine.path("log")).unwrap();
    machine.child = Some(sentinel.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
    api.until_text("plan-state", "succeeded").await;
    let output = api.output("applied-output", "i");
    assert!(output.starts_with(machine.path("var/work").to_str().unwrap()), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_agent_with_the_same_files_is_rejected() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let ran = machine.path("ran");
    api.create(&[("plan", &shell(&format!("echo >>{}", ran.display()))), ("plan-state", "pending")]);
    machine.start();
    api.until_text("plan-state", "succeeded").await;
    let error = failure(machine.command(&["sentinel"]).output().unwrap());
    assert!(error.contains(machine.path("var/sentinel.lock").to_str().unwrap()), "{error}");
    assert!(machine.is_running());
    assert_eq!(count(&ran), 1);
    // A killed agent leaves no lock.
    machine.kill();
    machine.start();
    api.plan(&shell(&format!("echo >>{}; echo", ran.display())), Some("pending"));
    until("the next plan", || count(&ran) == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_4_another_ca_is_accepted_only_from_the_system_and_never_when_strict() {
    let api = Api::new();
    api.create(&[("plan", "{}"), ("plan-state", "pending")]);
    let server = format!("https://{}", api.listen().await);
    let wrong = drover_testkit::tls::Authority::new("another authority").pem;

    let mut machine = Machine::with_connection(&api.connection(&server));
    machine.env.push(("CATTLE_AGENT_STRICT_VERIFY".into(), "true".into()));
    machine.start();
    api.until_text("plan-state", "succeeded").await;
    machine.kill();

    // The system trusts the right CA, the kubeconfig has a wrong one.
    api.plan("{}", Some("pending"));
    let mut machine = Machine::with_connection(&api.connection_with(&server, Some(&wrong)));
    machine.private("system-roots.pem", api.ca());
    let roots = machine.path("system-roots.pem").to_str().unwrap().to_owned();
    machine.env.push(("SSL_CERT_FILE".into(), roots));
    machine.env.push(("CATTLE_AGENT_STRICT_VERIFY".into(), "TRUE".into()));
    machine.start();
    let (knocks, requests) = (api.knocks(), api.requests().len());
    until("the agent reports the reason", || machine.log().contains("not connected")).await;
    until("it retries", || machine.log().contains("UnknownIssuer") || machine.log().contains("invalid peer"))
        .await;
    until("and again", || api.knocks() >= knocks + 3).await;
    assert!(machine.is_running(), "it keeps retrying");
    assert_eq!(api.requests().len(), requests, "no request is sent to an untrusted server");
    assert_eq!(api.text("plan-state"), "pending");
    machine.kill();

    machine.env.pop();
    machine.start();
    api.until_text("plan-state", "succeeded").await;
    assert!(machine.log().contains("by a CA that this system trusts"));
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_5_strict_verification_without_a_ca_is_rejected() {
    let machine = Machine::with_connection(&connection("https://127.0.0.1:1", "t", None, "plan"));
    let error =
        failure(machine.command(&["sentinel"]).env("CATTLE_AGENT_STRICT_VERIFY", "true").output().unwrap());
    assert!(error.contains("CATTLE_AGENT_STRICT_VERIFY"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_6_checksum_mode_runs_once_more_after_a_restart() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let plan = shell(&format!("echo ran >> {}", machine.path("ran").display()));
    api.create(&[("plan", &plan)]);
    machine.start();
    api.until_text("applied-checksum", &sum(&plan)).await;
    assert_eq!(count(&machine.path("ran")), 1);
    assert_eq!(api.text("plan-state"), "", "the server selects the protocol");
    machine.kill();
    machine.start();
    api.until_text("success-count", "2").await;
    assert_eq!(count(&machine.path("ran")), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_7_8_pending_is_committed_before_anything_runs_and_a_restart_changes_nothing() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let dir = machine.dir.path().display().to_string();
    let plan = shell(&format!("touch {dir}/ran; while ! test -e {dir}/go; do sleep 0.05; done"));
    api.create(&[("plan", &plan), ("plan-state", "pending"), ("plan-revision", "4")]);
    api.faults().fail(Call::Put, Fault::Status(500), usize::MAX);
    machine.start();
    until("it cannot commit", || machine.log().contains("not starting the plan")).await;
    assert!(!machine.path("ran").exists());
    api.faults().heal();
    until("it runs", || machine.path("ran").exists()).await;
    assert_eq!((api.text("plan-state").as_str(), api.text("plan-revision").as_str()), ("in-progress", "5"));
    let first = &api.written()[0];
    assert_eq!(first["plan-state"], b"in-progress");
    assert!(!first.contains_key("applied-checksum") && !first.contains_key("last-apply-time"));
    std::fs::write(machine.path("go"), "").unwrap();
    api.until_text("plan-state", "succeeded").await;
    let (time, revision) = (api.text("last-apply-time"), api.text("plan-revision"));
    machine.kill();
    machine.start();
    until("it is idle", || machine.log().matches("the plan is applied").count() >= 2).await;
    assert_eq!((api.text("last-apply-time"), api.text("plan-revision")), (time, revision));
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_9_killed_in_an_instruction_it_runs_the_plan_again_with_the_same_attempt() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let dir = machine.dir.path().display();
    let plan = shell(&format!(
        "echo $CATTLE_AGENT_ATTEMPT_NUMBER >> {dir}/attempts; test -e {dir}/go || exec sleep 600"
    ));
    api.create(&[("plan", &plan), ("plan-state", "pending")]);
    machine.start();
    until("the instruction runs", || count(&machine.path("attempts")) == 1).await;
    assert_eq!(api.text("plan-state"), "in-progress");
    machine.kill();
    std::fs::write(machine.path("go"), "").unwrap();
    machine.start();
    api.until_text("plan-state", "succeeded").await;
    assert_eq!(machine.read("attempts").as_deref(), Some("1\n1\n"));
    assert_eq!(api.text("plan-revision"), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unpublished_result_survives_kill_9_and_the_plan_runs_once() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let dir = machine.dir.path().display();
    let plan = shell(&format!("echo ran >> {dir}/ran; while ! test -e {dir}/go; do sleep 0.05; done"));
    api.create(&[("plan", &plan), ("plan-state", "pending")]);
    machine.start();
    until("the instruction runs", || count(&machine.path("ran")) == 1).await;
    api.set_down(true);
    std::fs::write(machine.path("go"), "").unwrap();
    until("the result is saved", || machine.path("var/outbox.json").exists()).await;
    machine.kill();
    api.set_down(false);
    machine.start();
    api.until_text("plan-state", "succeeded").await;
    assert_eq!(count(&machine.path("ran")), 1, "it was not run again");
    until("the outbox is empty", || !machine.path("var/outbox.json").exists()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_13_14_the_first_failure_stops_and_both_streams_are_saved() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let second = machine.path("second");
    let plan = json!({"instructions": [
        {"name": "one", "command": "sh", "args": ["-c", "echo out; echo err >&2; exit 1"], "saveOutput": true},
        {"name": "two", "command": "touch", "args": [second]},
    ]})
    .to_string();
    api.create(&[("plan", &plan), ("plan-state", "pending"), ("max-failures", "1")]);
    machine.start();
    api.until_text("plan-state", "failed").await;
    assert!(!second.exists());
    let output = api.output("failed-output", "one");
    assert!(output.contains("out") && output.contains("err"), "{output}");
    assert!(
        api.output("failed-output", "drover-agent/error").contains("instruction 1 of 2 (one): exit code 1")
    );
    assert_eq!(api.text("failure-count"), "1");

    // The last line is also reported for output that is not saved.
    let plan =
        json!({"instructions": [{"command": "sh", "args": ["-c", "echo tar: disk full >&2; exit 4"]}]});
    api.plan(&plan.to_string(), Some("pending"));
    let reason = "instruction 1 of 1: exit code 4\ntar: disk full";
    api.until("the reason", |api| api.output("failed-output", "drover-agent/error") == reason).await;

    let plan = shell("echo out; echo err >&2");
    api.plan(&plan, Some("pending"));
    api.until_text("plan-state", "succeeded").await;
    let output = api.output("applied-output", "i");
    assert!(output.contains("out") && output.contains("err"), "{output}");
    // Check 12: the first success clears the failure.
    assert_eq!((api.text("failure-count").as_str(), api.text("failed-checksum").as_str()), ("0", ""));
    assert_eq!((api.text("failed-output").as_str(), api.text("success-count").as_str()), ("", "1"));
    assert_eq!(api.text("applied-checksum"), sum(&plan));
    assert_eq!(api.text("probe-statuses"), "{}", "a plan without probes is healthy, which is reported");
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_17_18_31_an_image_from_a_tarball_runs_in_its_directory() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    // The registry of the image's name, which must not be contacted.
    let registry = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let image_name = format!("{}/rancher/system-agent-installer-k3s:v1-k3s1", registry.local_addr().unwrap());
    std::fs::create_dir_all(machine.path("var/images")).unwrap();
    let script = "#!/bin/sh\necho \"pwd=$(pwd) execution=$CATTLE_AGENT_EXECUTION_PWD path=$PATH stamp=$RESTART_STAMP\"\n";
    let mut layer = tar::Builder::new(Vec::new());
    append(&mut layer, "run.sh", script.as_bytes(), 0o755);
    let layer = layer.into_inner().unwrap();
    let mut image = tar::Builder::new(Vec::new());
    append(&mut image, "l/layer.tar", &layer, 0o644);
    let manifest = json!([{"Config": "x", "RepoTags": [image_name], "Layers": ["l/layer.tar"]}]);
    append(&mut image, "manifest.json", manifest.to_string().as_bytes(), 0o644);
    std::fs::write(machine.path("var/images/k3s.tar"), image.into_inner().unwrap()).unwrap();
    let plan = json!({"instructions": [{
        "name": "install", "image": image_name, "command": "sh",
        "args": ["-c", "run.sh"], "env": ["PATH=/x", "RESTART_STAMP=s"], "saveOutput": true,
    }]})
    .to_string();
    api.create(&[("plan", &plan), ("plan-state", "pending")]);
    machine.start();
    api.until_text("plan-state", "succeeded").await;
    let output = api.output("applied-output", "install");
    let field = |name: &str| output.split(name).nth(1).unwrap().split([' ', '\n']).next().unwrap().to_owned();
    assert_eq!(field("pwd="), field("execution="));
    assert!(field("execution=").ends_with(&format!("{}_0", sum(&plan))), "{output}");
    assert!(
        field("path=").ends_with(&format!(":{}", field("execution="))) && !field("path=").starts_with("/x")
    );
    assert_eq!(field("stamp="), "s");
    let asked = tokio::time::timeout(Duration::ZERO, registry.accept()).await;
    assert!(asked.is_err(), "the registry was contacted: {asked:?}");
}

fn append(archive: &mut tar::Builder<Vec<u8>>, name: &str, content: &[u8], mode: u32) {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(mode);
    archive.append_data(&mut header, name, content).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_21_files_that_cannot_be_written_fail_with_a_reason() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let path = machine.path("f");
    let plan = json!({"files": [{"path": path, "content": "AA==", "permissions": "9x"}]}).to_string();
    api.create(&[("plan", &plan)]);
    machine.start();
    api.until_text("failure-count", "1").await;
    assert!(api.output("failed-output", "drover-agent/error").contains("9x"));
    assert_eq!(api.text("failed-checksum"), sum(&plan));
    api.plan("{not json", None);
    api.until("the failure of the other", |api| api.text("failed-checksum") == sum("{not json")).await;
    assert!(api.output("failed-output", "drover-agent/error").contains("not valid JSON"));
    let broken = json!({"files": [{"path": path, "content": "%%%"}]}).to_string();
    api.plan(&broken, None);
    api.until("the failure of the third", |api| api.text("failed-checksum") == sum(&broken)).await;
    let why = api.output("failed-output", "drover-agent/error");
    assert!(why.contains("base64") && why.contains(path.to_str().unwrap()), "{why}");
    let plan = json!({"files": [{"path": path, "content": "aGk=", "permissions": "0640"}]}).to_string();
    api.plan(&plan, None);
    api.until_text("applied-checksum", &sum(&plan)).await;
    assert_eq!(machine.read("f").as_deref(), Some("hi"));
    assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o7777, 0o640);
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_28_concurrent_writes_are_merged_and_a_new_plan_wins() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let dir = machine.dir.path().display().to_string();
    let plan = shell(&format!("echo started >> {dir}/log1; while ! test -e {dir}/go; do sleep 0.05; done"));
    api.create(&[("plan", &plan)]);
    machine.start();
    until("it runs", || machine.path("log1").exists()).await;
    api.before_next_put(|data| {
        data.insert("appliedPlan".into(), b"written by the server".to_vec());
    });
    std::fs::write(machine.path("go"), "").unwrap();
    api.until_text("applied-checksum", &sum(&plan)).await;
    assert_eq!(api.text("appliedPlan"), "written by the server");

    let pid = machine.pid();
    let old = shell(&format!("rm {dir}/go; touch {dir}/old; while ! test -e {dir}/go; do sleep 0.05; done"));
    let new = shell("echo new");
    api.plan(&old, None);
    until("the old plan runs", || machine.path("old").exists()).await;
    let replacement = new.clone();
    api.before_next_put(move |data| {
        data.insert("plan".into(), replacement.as_bytes().to_vec());
    });
    std::fs::write(machine.path("go"), "").unwrap();
    api.until_text("applied-checksum", &sum(&new)).await;
    assert!(machine.is_running());
    assert_eq!(machine.pid(), pid);
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_29_the_process_survives_an_outage_of_the_api_and_reports_afterwards() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let health = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = health.local_addr().unwrap();
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = health.accept().await {
            use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
            let mut buffer = [0; 1024];
            let _ = stream.read(&mut buffer).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        }
    });
    let plan =
        json!({"probes": {"p": {"failureThreshold": 1, "httpGet": {"url": format!("http://{address}/")}}}})
            .to_string();
    api.create(&[("plan", &plan), ("plan-state", "pending"), ("probe-period-seconds", "1")]);
    machine.start();
    api.until("healthy", |api| api.text("probe-statuses") == r#"{"p":{"healthy":true,"successCount":1}}"#)
        .await;
    let pid = machine.pid();
    api.set_down(true);
    server.abort();
    until("it noticed", || machine.log().contains("not connected")).await;
    until("the probe failed meanwhile", || machine.log().contains("probe p failed")).await;
    assert_eq!(api.text("probe-statuses"), r#"{"p":{"healthy":true,"successCount":1}}"#);
    api.set_down(false);
    api.until("the latest status", |api| api.text("probe-statuses") == r#"{"p":{"failureCount":1}}"#).await;
    assert!(machine.is_running() && machine.pid() == pid);
    let status = String::from_utf8(machine.command(&["status"]).output().unwrap().stdout).unwrap();
    assert!(status.contains("p: unhealthy") && status.contains("succeeded, revision 1"), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_30_a_recreated_secret_is_applied() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let plan = shell(&format!("echo ran >> {}", machine.path("ran").display()));
    api.create(&[("plan", &plan)]);
    machine.start();
    api.until_text("applied-checksum", &sum(&plan)).await;
    api.delete();
    until("it noticed", || machine.log().contains("deleted")).await;
    api.create(&[("plan", &plan)]);
    api.until_text("applied-checksum", &sum(&plan)).await;
    assert_eq!(count(&machine.path("ran")), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_token_is_read_from_the_file_and_secrets_are_not_logged() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    machine.env.push(("CATTLE_LOGLEVEL".into(), "trace".into()));
    let plan = json!({
        "files": [{"path": machine.path("f"), "content": "Y29udGVudC1zZWNyZXQ="}],
        "instructions": [{"command": "sh", "args": ["-c", "echo my $K3S_TOKEN is here"], "env": ["K3S_TOKEN=env-secret-value"]}, {
            "command": "sh",
            "args": ["-xc", format!(
                "env; cat {}; echo 'Authorization: Bearer BearerS3cr3t' done; echo user DsPassS3cr3t
                 {{ set +x; }} 2>/dev/null; head -c 8187 /dev/zero | tr '\\0' x; echo $LONG_TOKEN", machine.path("f").display()
            )],
            "env": [
                "DBPASS=DbPassS3cr3t",
                "DATASTORE_ENDPOINT=postgres://u:DsPassS3cr3t@h/db",
                "ML_SECRET=multi-one\nmulti-two",
                "S_TOKEN=5char",
                "LONG_TOKEN=in-a-line-of-8k",
                "HARMLESS_NAME=shown as it is",
                "TOK=EnvS3cr3t",
                "CONF=agent --token FlagS3cr3t --server h",
            ],
        }],
    })
    .to_string();
    api.create(&[("plan", &plan), ("plan-state", "pending")]);
    machine.start();
    api.until_text("plan-state", "succeeded").await;
    // The watch continues; the next request is rejected.
    let old = api.token();
    api.renew_token();
    api.plan("{}", Some("pending"));
    until("it is rejected", || machine.log().contains("401")).await;
    let renewed = machine.read("var/connection.json").unwrap().replace(&old, &api.token());
    machine.private("var/connection.json", &renewed);
    api.until_text("plan-state", "succeeded").await;
    let log = machine.log();
    let printed = [
        "DbPassS3cr3t",
        "DsPassS3cr3t",
        "multi-one",
        "multi-two",
        "5char",
        "BearerS3cr3t",
        "in-a-",
        "EnvS3cr3t",
        "FlagS3cr3t",
    ];
    let known = [old.as_str(), &api.token(), "env-secret-value", "content-secret", "Y29udGVudC1zZWNyZXQ"];
    for secret in known.into_iter().chain(printed) {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
    let long = "xxx [15 more bytes in this line]";
    for shown in
        ["my [redacted] is here", "HARMLESS_NAME=shown as it is", "postgres://u:[redacted]@h/db", long]
    {
        assert!(log.contains(shown), "{shown} is not in the log");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_the_agent_ends_the_instruction_and_its_children() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let plan =
        shell(&format!("sleep 600 & echo $! > {0}/pid; echo >> {0}/pid; wait", machine.dir.path().display()));
    api.create(&[("plan", &plan), ("plan-state", "pending")]);
    machine.start();
    until("it runs", || count(&machine.path("pid")) == 2).await;
    let pid: i32 = machine.read("pid").unwrap().lines().next().unwrap().parse().unwrap();
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(machine.pid().cast_signed()),
        nix::sys::signal::Signal::SIGTERM,
    )
    .unwrap();
    until("the grandchild is gone", || {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
    })
    .await;
    assert!(machine.child.as_mut().unwrap().wait().unwrap().success());
    assert_eq!(api.text("plan-state"), "in-progress", "the next start resumes it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_background_process_does_not_block_the_plan() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let plan = shell(&format!(
        "cd {}; (until test -e reported; do sleep 0.1; done; echo later; echo; echo printed > printed; exec sleep 600) &
         echo $! > pid; echo done",
        machine.dir.path().display()
    ));
    api.create(&[("plan", &plan), ("plan-state", "pending")]);
    machine.start();
    api.until_text("plan-state", "succeeded").await;
    let pid: i32 = machine.read("pid").unwrap().trim().parse().unwrap();
    std::fs::write(machine.path("reported"), "").unwrap();
    until("it can still write", || count(&machine.path("printed")) == 1).await;
    assert!(std::path::Path::new(&format!("/proc/{pid}")).exists(), "it was not killed");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    assert_eq!(api.output("applied-output", "i"), "done\n");
}
