//! What instructions print, however much and however long: the real binary against the embedded API.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers outside #[test] functions

mod common;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use common::{
    Api,
    machine::{Machine, count},
    patient,
};
use drover_agent::remote::gzip_json;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_15_while_a_line_without_end_is_printed_probes_are_asked_and_told() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let healthy = Arc::new(AtomicBool::new(true));
    let address = patient::serve(healthy.clone()).await;
    // A line of 1 MiB that does not end, and goes on until the test has seen enough.
    let script = format!(
        "cd {}; head -c 1048576 /dev/zero | tr '\\0' x; echo printed > printed
         until test -e go; do head -c 65536 /dev/zero | tr '\\0' x; sleep 0.1; done; printf end",
        machine.dir.path().display()
    );
    let plan = json!({
        "instructions": [{"name": "i", "command": "sh", "args": ["-c", script], "saveOutput": true}],
        "probes": {"p": {"failureThreshold": 1, "httpGet": {"url": format!("http://{address}/")}}},
    });
    api.create(&[
        ("plan", &plan.to_string()),
        ("plan-state", "pending"),
        ("max-failures", "1"),
        ("probe-period-seconds", "1"),
    ]);
    machine.start();
    api.until("it prints", |_| count(&machine.path("printed")) == 1).await;
    let told = |api: &Api| -> bool {
        let statuses: Value = serde_json::from_str(&api.text("probe-statuses")).unwrap_or_default();
        statuses["p"]["healthy"] == true
    };
    for expected in [true, false, true] {
        healthy.store(expected, Ordering::SeqCst);
        api.until("the probe is told", |api| told(api) == expected).await;
        assert_eq!(api.text("plan-state"), "in-progress", "while the instruction prints");
    }
    std::fs::write(machine.path("go"), "").unwrap();
    api.until_text("plan-state", "succeeded").await;
    let output = api.output("applied-output", "i");
    assert!(output.ends_with("xxxend") && output.len() < 70_000, "{}", output.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_16_what_the_api_would_refuse_is_shortened_until_it_fits() {
    const INSTRUCTIONS: usize = 30;
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let dir = machine.dir.path().display().to_string();
    let instructions: Vec<Value> = (0..INSTRUCTIONS)
        .map(|index| {
            // 5 MiB from the first, and from each of the others more than is kept; none of it can be compressed much.
            let size = if index == 0 { 5 << 20 } else { 100_000 };
            let print =
                format!("head -c {size} /dev/urandom | base64 -w0 | head -c {size} | tee {dir}/out{index}");
            json!({"name": format!("i{index}"), "command": "sh", "args": ["-c", print], "saveOutput": true})
        })
        .collect();
    let plan = json!({"instructions": instructions}).to_string();
    api.create(&[("plan", &plan), ("plan-state", "pending"), ("max-failures", "1")]);
    machine.start();
    api.until_text("plan-state", "succeeded").await;
    let printed = |index: usize| machine.read(&format!("out{index}")).unwrap();
    assert_eq!(printed(0).len(), 5 << 20);
    for index in 0..INSTRUCTIONS {
        let output = api.output("applied-output", &format!("i{index}"));
        let (first, kept) = output.split_once('\n').unwrap();
        assert!(first.starts_with('[') && first.contains("dropped"), "{first}");
        assert!(kept.len() >= 1024, "{} bytes of instruction {index} are left", kept.len());
        let kept = &kept[kept.rfind('\n').map_or(0, |at| at + 1)..];
        assert!(printed(index).ends_with(kept), "the end of instruction {index} is kept");
    }
    // The same API does refuse the last 64 KiB of each, which would be kept of any one of them alone.
    let long: BTreeMap<String, String> = (0..INSTRUCTIONS)
        .map(|index| {
            let text = printed(index);
            (format!("i{index}"), STANDARD.encode(&text[text.len() - 64 * 1024..]))
        })
        .collect();
    let refused = api
        .try_change(|data| {
            data.insert("applied-output".into(), gzip_json::encode(&long));
        })
        .unwrap_err();
    assert!(refused.contains("Too long: may not be more than 1048576 bytes"), "{refused}");
}
