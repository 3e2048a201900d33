//! Changes by others while a plan runs: nothing is lost, and nothing is confused.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers outside #[test] functions

mod common;

use std::time::Duration;

use common::{
    Api, Data,
    machine::{Machine, count},
    node::{LONG, Node, plan},
    sum, until,
};
use serde_json::json;
use tokio::time::sleep;

/// A plan whose instruction starts, and ends with this code when the test requests it.
fn waiting(machine: &Machine, word: &str, code: i32) -> String {
    let dir = machine.dir.path().display();
    let script = format!(
        "echo {word} >> {dir}/begun; until test -e {dir}/go-{word}; do sleep 0.05; done; echo {word} said; exit {code}"
    );
    json!({"instructions": [{"name": "i", "command": "sh", "args": ["-c", script], "saveOutput": true}]})
        .to_string()
}

async fn begun(machine: &Machine, word: &str) {
    until(word, || machine.read("begun").is_some_and(|text| text.lines().any(|line| line == word))).await;
}

fn go(machine: &Machine, word: &str) {
    std::fs::write(machine.path(&format!("go-{word}")), "").unwrap();
}

const DIALECTS: [Option<&str>; 2] = [Some("pending"), None];

/// The first update of the results conflicts with another writer, which the watch has not reported.
fn conflict(api: &Api, mut change: impl FnMut(&mut Data) + Send + 'static) {
    api.before_next_put(move |data| {
        data.insert("other".into(), b"writer".to_vec());
        change(data);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_28_results_are_merged_with_changes_of_others_in_both_protocols() {
    for dialect in DIALECTS {
        let api = Api::new();
        let mut machine = Machine::new(&api).await;
        api.create(&[("max-failures", "1")]);
        machine.start();
        for (word, code) in [("good", 0), ("bad", 1)] {
            let about = format!("{dialect:?} {word}");
            let text = waiting(&machine, word, code);
            api.plan(&text, dialect);
            begun(&machine, word).await;
            api.change(|data| drop(data.remove("other")));
            conflict(&api, |_| {});
            go(&machine, word);
            let key = if code == 0 { "applied-checksum" } else { "failed-checksum" };
            api.until(&about, |api| api.text(key) == sum(&text)).await;
            assert_eq!(api.text("other"), "writer", "{about}");
            if code == 0 {
                assert_eq!(api.output("applied-output", "i"), "good said\n", "{about}");
                assert_eq!(api.text("success-count"), "1", "{about}");
            } else {
                assert_eq!(api.output("failed-output", "i"), "bad said\n", "{about}");
                assert!(api.output("failed-output", "drover-agent/error").contains("exit code 1"), "{about}");
                assert_eq!(api.text("failure-count"), "1", "{about}");
                assert_ne!(api.text("applied-checksum"), sum(&text), "{about}");
            }
            let state = dialect.map_or("", |_| if code == 0 { "succeeded" } else { "failed" });
            assert_eq!(api.text("plan-state"), state, "{about}");
        }
        assert_eq!(count(&machine.path("begun")), 2, "{dialect:?}: each once");
        assert!(machine.is_running(), "{dialect:?}: the original process");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_28_a_plan_that_arrives_with_the_results_of_another_is_applied_in_both_protocols() {
    for dialect in DIALECTS {
        for code in [0, 1] {
            let about = format!("{dialect:?} exit {code}");
            let api = Api::new();
            let mut machine = Machine::new(&api).await;
            let old = waiting(&machine, "old", code);
            let new = waiting(&machine, "new", 0);
            api.create(&[("max-failures", "1")]);
            api.plan(&old, dialect);
            machine.start();
            begun(&machine, "old").await;
            let next = new.clone();
            conflict(&api, move |data| {
                data.insert("plan".into(), next.clone().into_bytes());
                if let Some(state) = dialect {
                    data.insert("plan-state".into(), state.into());
                }
            });
            go(&machine, "old");
            begun(&machine, "new").await;
            assert_ne!(api.text("applied-checksum"), sum(&new), "{about}: it is not applied yet");
            assert_ne!(api.text("failed-checksum"), sum(&new), "{about}: and it has not failed");
            go(&machine, "new");
            api.until(&about, |api| api.text("applied-checksum") == sum(&new)).await;
            assert_eq!(api.output("applied-output", "i"), "new said\n", "{about}");
            assert_eq!(api.text("other"), "writer", "{about}");
            if dialect.is_some() {
                assert_eq!(
                    (api.text("plan-state"), api.text("plan-revision")),
                    ("succeeded".into(), "2".into())
                );
            }
            assert_eq!(machine.read("begun").unwrap(), "old\nnew\n", "{about}: each once");
            assert!(machine.is_running(), "{about}");
        }
    }
}

/// Deleted and recreated without the agent noticing the deletion: a different secret with the same name, even with the
/// same plan.
#[tokio::test(start_paused = true)]
async fn agent_check_30_a_secret_that_is_recreated_while_its_plan_runs_is_a_new_one() {
    for dialect in DIALECTS {
        for (same, code) in [(true, 0), (true, 1), (false, 0), (false, 1)] {
            let about = format!("{dialect:?}, same plan: {same}, exit {code}");
            let mut node = Node::new(40);
            let old = plan(&["a 100"]);
            let new = if same { old.clone() } else { plan(&["b 100"]) };
            let create = |node: &Node, text: &str| {
                let state = dialect.map(|state| ("plan-state", state));
                let entries = [("plan", text), ("max-failures", "1")].into_iter().chain(state);
                node.api().create(&entries.collect::<Vec<_>>());
            };
            node.exit("a", code);
            create(&node, &old);
            node.start();
            node.api().until(&about, |_| node.runs("a").len() == 1).await;
            sleep(Duration::from_secs(30)).await;
            create(&node, &new);
            sleep(Duration::from_secs(1)).await;
            node.exit("a", 0);
            node.api().until_within(LONG, &about, |api| api.text("applied-checksum") == sum(&new)).await;
            sleep(Duration::from_secs(600)).await;
            let name = if same { "a" } else { "b" };
            let last = node.runs(name).last().unwrap().clone();
            assert!(last.at >= Duration::from_secs(30), "{about}: run for the new secret");
            assert_eq!(node.runs(name).len(), if same { 2 } else { 1 }, "{about}");
            assert_eq!(last.attempt, "1", "{about}");
            assert!(node.api().map("applied-output").keys().eq([&format!("{name} 100")]), "{about}");
            for (key, value) in [("success-count", "1"), ("failure-count", "0"), ("failed-checksum", "")] {
                assert_eq!(node.api().text(key), value, "{about}: {key}");
            }
            if dialect.is_some() {
                assert_eq!(node.api().text("plan-revision"), "1", "{about}");
                assert_eq!(node.api().text("plan-state"), "succeeded", "{about}");
            }
            node.stop().await;
        }
    }
}

/// Its watch is closed too, so that the old token is rejected while the instruction runs.
#[tokio::test(flavor = "multi_thread")]
async fn an_instruction_survives_a_rejected_token_and_the_same_process_uses_the_new_one() {
    for dialect in DIALECTS {
        let api = Api::new();
        let mut machine = Machine::new(&api).await;
        let text = waiting(&machine, "long", 0);
        api.create(&[]);
        api.plan(&text, dialect);
        machine.start();
        begun(&machine, "long").await;
        let old = api.token();
        api.renew_token();
        api.cut();
        until("it is rejected", || machine.log().contains("401")).await;
        go(&machine, "long");
        until("it ended", || machine.log().contains(&format!("applied plan {}", sum(&text)))).await;
        assert_ne!(api.text("applied-checksum"), sum(&text), "{dialect:?}: it could not be reported");
        let renewed = machine.read("var/connection.json").unwrap().replace(&old, &api.token());
        machine.private("var/connection.json", &renewed);
        api.until("it is reported", |api| api.text("applied-checksum") == sum(&text)).await;
        assert_eq!(api.output("applied-output", "i"), "long said\n", "{dialect:?}");
        assert_eq!(count(&machine.path("begun")), 1, "{dialect:?}: once");
        assert!(machine.is_running(), "{dialect:?}: the original process");
    }
}
