//! Each request of the agent failing in each way, with the embedded API: the agent waits, and neither loses nor repeats
//! anything. In virtual time on simulated machines, where waiting costs nothing, and with the real binary over TLS.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers outside #[test] functions

mod common;

use std::{path::Path, time::Duration};

use common::{
    Api, Call, Fault,
    machine::{Machine, count},
    node::{LONG, Node},
    sum,
};
use drover_agent::host::Host as _;
use serde_json::json;
use tokio::time::sleep;

/// How long a request fails. A hanging watch is detected after ten minutes.
const TROUBLE: Duration = Duration::from_secs(120);

/// Far more requests than with pauses, far less than with a busy loop.
const MANY: usize = 1000;

/// With a plan that succeeds and one that fails, in both protocols.
async fn each_way(call: Call) {
    for dialect in [Some("pending"), None] {
        for code in [0, 1] {
            each_fault(call, dialect, code).await;
        }
    }
}

async fn each_fault(call: Call, dialect: Option<&str>, code: i32) {
    let server = Api::new();
    for (seed, fault) in Fault::of(call).into_iter().enumerate() {
        let about = format!("{call:?} {fault:?}, {dialect:?}, exit {code}");
        let mut node = Node::on(server.beside(&format!("machine-{seed}-plan")), seed as u64, |host| host);
        let text = json!({
            "instructions": [{"name": "i", "command": "x", "args": ["i", "3"], "saveOutput": true}],
            "probes": {"p": {"httpGet": {"url": "http://127.0.0.1/"}}},
        })
        .to_string();
        node.exit("i", code);
        node.api().create(&[("max-failures", "1")]);
        node.api().plan(&text, dialect);
        node.api().faults().fail(call, fault, usize::MAX);
        node.start();
        sleep(TROUBLE).await;
        assert!(node.api().faults().struck() > 0, "{about}: the request failed");
        let requests = node.api().requests();
        assert!(requests.len() < MANY, "{about}: {} requests in two minutes", requests.len());
        assert!(
            !requests.iter().any(|request| request.contains("elsewhere")),
            "{about}: no redirect is followed"
        );
        // The body of the first request is not checked by the agent.
        let harmless = (call, fault) == (Call::Version, Fault::OtherKind);
        if matches!(call, Call::Version | Call::List) && !harmless {
            assert!(node.runs("i").is_empty(), "{about}: nothing starts before the commit");
        }
        node.api().faults().heal();
        node.api().set_down(false);
        let (key, outputs) = match code {
            0 => ("applied-checksum", "applied-output"),
            _ => ("failed-checksum", "failed-output"),
        };
        let settled = |api: &Api| api.text(key) == sum(&text) && api.text("probe-statuses").contains("true");
        node.api().until_within(LONG, &about, settled).await;
        assert_eq!(node.runs("i").len(), 1, "{about}: nothing runs twice");
        assert_eq!(node.runs("i")[0].attempt, "1", "{about}");
        let counts = if code == 0 { ["1", "0"] } else { ["0", "1"] };
        assert_eq!(["success-count", "failure-count"].map(|key| node.api().text(key)), counts, "{about}");
        assert_eq!(node.api().output(outputs, "i"), "i ran\n", "{about}");
        let state = dialect.map_or("", |_| if code == 0 { "succeeded" } else { "failed" });
        assert_eq!(node.api().text("plan-state"), state, "{about}");
        assert_eq!(node.api().text("plan-revision"), dialect.map_or("", |_| "1"), "{about}");
        // The watch works again: later changes are noticed without another list.
        let next = json!({"instructions": [{"name": "n", "command": "x", "args": ["n"]}]}).to_string();
        node.api().plan(&next, dialect);
        node.api().until_within(LONG, &about, |api| api.text("applied-checksum") == sum(&next)).await;
        assert!(!node.task.as_ref().unwrap().is_finished(), "{about}: it does not exit");
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_call_fails_in_each_way() {
    each_way(Call::Version).await;
}

#[tokio::test(start_paused = true)]
async fn the_list_fails_in_each_way() {
    each_way(Call::List).await;
}

#[tokio::test(start_paused = true)]
async fn the_watch_fails_in_each_way() {
    each_way(Call::Watch).await;
}

#[tokio::test(start_paused = true)]
async fn reading_the_secret_fails_in_each_way() {
    each_way(Call::Get).await;
}

#[tokio::test(start_paused = true)]
async fn the_update_fails_in_each_way() {
    each_way(Call::Put).await;
}

/// The download of an agent fails too, and an incomplete file is never installed.
#[tokio::test(start_paused = true)]
async fn the_download_of_the_offered_agent_fails_in_each_way() {
    const AGENT: &str = "/usr/local/bin/rancher-system-agent";
    let server = Api::new();
    for (seed, fault) in Fault::of(Call::Asset).into_iter().enumerate() {
        let about = format!("{fault:?}");
        let api = server.beside(&format!("machine-{seed}-plan"));
        let mut node = Node::on(api, seed as u64, |host| host.with_executable(AGENT, b"old").unwrap());
        node.api().create(&[("plan", "{}"), ("plan-state", "pending")]);
        node.api().faults().fail(Call::Asset, fault, 2);
        node.api().offer(b"the new agent");
        node.start();
        if fault == Fault::Refused {
            node.api().until_within(LONG, &about, Api::is_down).await;
            sleep(TROUBLE).await;
            assert_eq!(node.host.became(), 0, "{about}");
            node.api().faults().heal();
            node.api().set_down(false);
        }
        node.api().until_within(LONG, &about, |_| node.host.became() == 1).await;
        assert!(node.api().faults().struck() > 0, "{about}: the request failed");
        assert_eq!(node.host.read(Path::new(AGENT)).unwrap(), b"the new agent", "{about}");
        assert_eq!(node.host.list(Path::new("/usr/local/bin")).unwrap(), ["rancher-system-agent"], "{about}");
        node.stop().await;
    }
}

fn watches(api: &Api) -> usize {
    api.requests().iter().filter(|request| request.contains("watch=true")).count()
}

/// One process survives all faults, with a new plan after each.
async fn the_real_agent(call: Call) {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let ran = machine.path("ran");
    api.create(&[("plan", "{}"), ("plan-state", "pending")]);
    machine.start();
    api.until_text("plan-state", "succeeded").await;
    let pid = machine.pid();
    let faults: Vec<Fault> = Fault::of(call).into_iter().filter(|fault| !fault.hangs()).collect();
    for (index, fault) in faults.iter().enumerate() {
        let about = format!("{call:?} {fault:?}");
        let watches = watches(&api);
        api.faults().fail(call, *fault, 1);
        let starts_over = matches!(call, Call::Version | Call::List | Call::Watch);
        if starts_over {
            api.cut();
        }
        if call == Call::Watch && *fault != Fault::Refused {
            // The plan must arrive through the next watch; a list would have it earlier.
            api.until(&about, |api| crate::watches(api) >= watches + 2).await;
        }
        let script = format!("echo {index} >> {}", ran.display());
        let plan = json!({"instructions": [{"command": "sh", "args": ["-c", script]}]}).to_string();
        api.plan(&plan, Some("pending"));
        if *fault == Fault::Refused {
            api.until(&about, Api::is_down).await;
            api.set_down(false);
        }
        api.until(&about, |api| api.faults().struck() == 1 && api.text("applied-checksum") == sum(&plan))
            .await;
        assert_eq!(api.text("plan-state"), "succeeded", "{about}");
        assert_eq!(api.text("plan-revision"), (index + 2).to_string(), "{about}");
        assert_eq!(count(&ran), index + 1, "{about}: once");
        if starts_over {
            // There must be a watch to break.
            api.until(&about, |api| crate::watches(api) > watches).await;
        }
    }
    assert!(machine.is_running() && machine.pid() == pid, "it does not exit");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_agent_and_the_first_call() {
    the_real_agent(Call::Version).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_agent_and_the_list() {
    the_real_agent(Call::List).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_agent_and_the_watch() {
    the_real_agent(Call::Watch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_agent_and_reading_the_secret() {
    the_real_agent(Call::Get).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_agent_and_the_update() {
    the_real_agent(Call::Put).await;
}

/// A request without a response times out after half a minute, an incomplete response after a minute; all in parallel.
/// A hanging watch takes ten minutes, which is tested in virtual time.
#[tokio::test(flavor = "multi_thread")]
async fn the_real_agent_times_out_hanging_requests() {
    let mut all = tokio::task::JoinSet::new();
    for call in [Call::Version, Call::List, Call::Get, Call::Put] {
        for fault in [Fault::Hang, Fault::HangAfter, Fault::HangInside] {
            all.spawn(hanging(call, fault));
        }
    }
    while let Some(ended) = all.join_next().await {
        ended.unwrap();
    }
}

async fn hanging(call: Call, fault: Fault) {
    let about = format!("{call:?} {fault:?}");
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let ran = machine.path("ran");
    let starts_over = matches!(call, Call::Version | Call::List);
    if starts_over {
        api.faults().fail(call, fault, 1);
    }
    api.create(&[("plan", "{}"), ("plan-state", "pending")]);
    machine.start();
    let long = Duration::from_secs(240);
    api.until_within(long, &about, |api| api.text("applied-checksum") == sum("{}")).await;
    if !starts_over {
        api.faults().fail(call, fault, 1);
    }
    let script = format!("echo ran >> {}", ran.display());
    let plan = json!({"instructions": [{"command": "sh", "args": ["-c", script]}]}).to_string();
    if call == Call::Get {
        // It is read again only after another writer.
        api.before_next_put(|data| {
            data.insert("other".into(), b"writer".to_vec());
        });
    }
    api.plan(&plan, Some("pending"));
    api.until_within(long, &about, |api| api.text("applied-checksum") == sum(&plan)).await;
    assert_eq!(api.faults().struck(), 1, "{about}");
    assert_eq!((api.text("plan-state").as_str(), api.text("plan-revision").as_str()), ("succeeded", "2"));
    assert_eq!(count(&ran), 1, "{about}: once");
    assert!(machine.is_running(), "{about}: the original process");
}

/// The account can do what the agent does, and nothing else: what the agent must not need.
#[tokio::test(flavor = "multi_thread")]
async fn the_agents_account_reads_and_updates_one_secret() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    api.create(&[("plan", "{}"), ("plan-state", "pending")]);
    machine.start();
    api.until_text("plan-state", "succeeded").await;
    for request in api.requests() {
        let (method, path) = request.split_once(' ').unwrap();
        let secrets = "/api/v1/namespaces/fleet-default/secrets";
        let one = path == format!("{secrets}/the-machine-plan");
        let all = path.starts_with(&format!("{secrets}?fieldSelector=metadata.name%3Dthe-machine-plan"));
        let good = match method {
            "GET" => path == "/version" || one || all,
            "PUT" => one,
            _ => false,
        };
        assert!(good, "{request}");
    }
    // It has no access to the secret of another machine.
    let other = api.beside("another-machine-plan");
    other.create(&[("plan", "{}"), ("plan-state", "pending")]);
    let address = api.listen().await;
    let foreign = api
        .connection(&format!("https://{address}"))
        .replace(r#""secretName":"the-machine-plan""#, r#""secretName":"another-machine-plan""#);
    let mut thief = Machine::with_connection(&foreign);
    thief.start();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while !thief.log().contains("403") {
        assert!(
            tokio::time::Instant::now() < deadline,
            "timed out waiting for the rejection: {}",
            thief.log()
        );
        sleep(Duration::from_millis(10)).await;
    }
    assert!(thief.is_running());
    assert_eq!(other.text("plan-state"), "pending");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reason_why_a_plan_does_not_start_is_logged_once() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    api.create(&[("plan", "{}"), ("plan-state", "pending")]);
    api.faults().fail(Call::Put, Fault::Status(500), 4);
    machine.start();
    api.until_text("plan-state", "succeeded").await;
    assert_eq!(api.faults().struck(), 4);
    let log = machine.log();
    assert_eq!(log.matches("failed to mark it as in progress").count(), 1, "{log}");
}
