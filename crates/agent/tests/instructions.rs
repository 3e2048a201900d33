//! How the configuration and a plan control instructions: the real binary with the embedded API.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers outside #[test] functions

mod common;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use common::{
    Api,
    machine::{Machine, count},
    sum, until,
};
use serde_json::{Value, json};

fn shell(script: &str) -> Value {
    json!({"name": "i", "command": "sh", "args": ["-c", script], "saveOutput": true})
}

async fn configured(api: &Api, line: &str) -> Machine {
    let machine = Machine::new(api).await;
    let config = machine.read("config.yaml").unwrap();
    machine.private("config.yaml", &format!("{config}{line}\n"));
    machine
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instruction_is_killed_with_its_children_after_its_timeout_and_the_next_plan_runs() {
    let api = Api::new();
    // Enough time to start a shell on a busy machine.
    let mut machine = configured(&api, "instructionTimeoutSeconds: 3").await;
    let dir = machine.dir.path().display().to_string();
    let hangs = shell(&format!("echo begun; sleep 600 & echo $! > {dir}/pid; wait"));
    let never = shell(&format!("touch {dir}/never"));
    let plan = json!({"instructions": [hangs, never]}).to_string();
    api.create(&[("plan", &plan), ("plan-state", "pending"), ("max-failures", "1")]);
    machine.start();
    api.until_text("plan-state", "failed").await;
    let why = api.output("failed-output", "drover-agent/error");
    assert!(why.contains("instruction 1 of 2") && why.contains("killed after 3 seconds"), "{why}");
    assert_eq!(api.output("failed-output", "i"), "begun\n", "its output until then is reported");
    assert!(!machine.path("never").exists());
    let pid = machine.read("pid").unwrap();
    until("the grandchild is gone", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        stat.map_or(true, |stat| stat.contains(") Z "))
    })
    .await;
    let next = json!({"instructions": [shell("echo next")]}).to_string();
    api.plan(&next, Some("pending"));
    api.until_text("plan-state", "succeeded").await;
    assert_eq!(api.output("applied-output", "i"), "next\n");
    assert!(machine.is_running());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_of_a_periodic_instruction_is_a_failure() {
    let api = Api::new();
    let mut machine = configured(&api, "instructionTimeoutSeconds: 3").await;
    let args = ["-c", "echo begun; exec sleep 600"];
    let plan =
        json!({"periodicInstructions": [{"name": "p", "command": "sh", "args": args, "periodSeconds": 600}]})
            .to_string();
    api.create(&[("plan", &plan), ("plan-state", "pending")]);
    machine.start();
    api.until("it is reported", |api| api.map("applied-periodic-output").contains_key("p")).await;
    let reported = &api.map("applied-periodic-output")["p"];
    assert_eq!((&reported["failures"], &reported["exitCode"]), (&json!(1), &json!(-1)), "{reported}");
    assert_eq!(reported["stdout"], STANDARD.encode("begun\n"));
    assert_eq!(api.text("plan-state"), "succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn stderr_of_a_periodic_instruction_is_kept_only_on_request() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let periodic = |name: &str, save: Option<bool>, exit: u8| {
        let script = format!("echo out of {name}; echo err of {name} >&2; exit {exit}");
        let mut one = json!({"name": name, "command": "sh", "args": ["-c", script], "periodSeconds": 600});
        if let Some(save) = save {
            one["saveStderrOutput"] = save.into();
        }
        one
    };
    let all = [
        periodic("kept", Some(true), 0),
        periodic("kept-of-a-failure", Some(true), 7),
        periodic("not", Some(false), 0),
        periodic("by-default", None, 0),
    ];
    let plan = json!({"periodicInstructions": all}).to_string();
    api.create(&[("plan", &plan), ("plan-state", "pending")]);
    machine.start();
    api.until("all are reported", |api| api.map("applied-periodic-output").len() == all.len()).await;
    let reported = api.map("applied-periodic-output");
    for (name, kept) in [("kept", true), ("kept-of-a-failure", true), ("not", false), ("by-default", false)] {
        assert_eq!(reported[name]["stdout"], STANDARD.encode(format!("out of {name}\n")), "{name}");
        let stderr = if kept { STANDARD.encode(format!("err of {name}\n")) } else { String::new() };
        assert_eq!(reported[name]["stderr"], stderr, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_work_directory_is_emptied_by_the_next_pass_unless_it_is_preserved() {
    for preserve in [true, false] {
        let api = Api::new();
        let mut machine = configured(&api, &format!("preserveWorkDirectory: {preserve}")).await;
        let places = machine.path("places");
        let plan = |word: &str| {
            let script = format!("echo {word} > left; pwd >> {}", places.display());
            json!({"instructions": [shell(&script)]}).to_string()
        };
        api.create(&[]);
        machine.start();
        for (index, word) in ["one", "two"].into_iter().enumerate() {
            api.plan(&plan(word), Some("pending"));
            api.until(word, |api| api.text("applied-checksum") == sum(&plan(word))).await;
            assert_eq!(count(&places), index + 1);
        }
        let places = machine.read("places").unwrap();
        let left: Vec<Option<String>> =
            places.lines().map(|place| std::fs::read_to_string(format!("{place}/left")).ok()).collect();
        let first = preserve.then(|| "one\n".to_owned());
        assert_eq!(left, [first, Some("two\n".to_owned())], "preserve: {preserve}");
    }
}
