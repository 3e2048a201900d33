//! Long outputs of instructions: the real binary with the embedded API.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers outside #[test] functions

mod common;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use common::{
    Api,
    machine::{Machine, count},
    patient, shell, until,
};
use drover_agent::remote::gzip_json;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_15_probes_run_and_are_reported_during_an_endless_line() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let healthy = Arc::new(AtomicBool::new(true));
    let address = patient::serve(healthy.clone()).await;
    // A line of 1 MiB without an end, which continues until the test stops it.
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
    let reported = |api: &Api| -> bool {
        let statuses: Value = serde_json::from_str(&api.text("probe-statuses")).unwrap_or_default();
        statuses["p"]["healthy"] == true
    };
    for expected in [true, false, true] {
        healthy.store(expected, Ordering::SeqCst);
        api.until("the probe is reported", |api| reported(api) == expected).await;
        assert_eq!(api.text("plan-state"), "in-progress", "while the instruction prints");
    }
    std::fs::write(machine.path("go"), "").unwrap();
    api.until_text("plan-state", "succeeded").await;
    let output = api.output("applied-output", "i");
    assert!(output.ends_with("xxxend") && output.len() < 600_000, "{}", output.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_16_outputs_that_the_api_would_reject_are_truncated_until_they_fit() {
    const INSTRUCTIONS: usize = 30;
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let dir = machine.dir.path().display().to_string();
    let instructions: Vec<Value> = (0..INSTRUCTIONS)
        .map(|index| {
            // 5 MiB from the first, and more than the limit from each of the others; hardly compressible.
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
    // The API rejects the last 64 KiB of each, which is much less than the limit for a single output.
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

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_15_16_long_lines_and_much_output() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    let plan = shell(
        "head -c 1048576 /dev/zero | tr '\\0' x; head -c 5242880 /dev/urandom | od -An -v -tx1; echo the end",
    );
    api.create(&[("plan", &plan), ("plan-state", "pending")]);
    machine.start();
    api.until_text("plan-state", "succeeded").await;
    let output = api.output("applied-output", "i");
    assert!(output.ends_with("the end\n") && output.len() < 600_000, "{}", output.len());
    assert!(output.starts_with('[') && output.contains("bytes of earlier output dropped"));

    // The log is limited: it contains the beginning of each instruction, the size of the rest, and the end.
    let quiet = machine.log().len();
    assert!(quiet < 512 * 1024, "{quiet} bytes of log");
    let many = "bytes of output were not logged; the end:";
    for (much, missing) in [
        ("head -c 2097152 /dev/urandom", many),
        ("yes | head -c 2097152", many),
        ("head -c 2097152 /dev/zero", " [2088960 more bytes in this line]"),
    ] {
        let before = machine.log().len();
        api.plan(&shell(&format!("echo the beginning; {much}; echo; echo the end")), Some("pending"));
        until("it runs", || machine.log()[before..].contains("applied plan")).await;
        let log = machine.log().split_off(before);
        assert!(log.len() < 512 * 1024, "{much}: {} bytes of log", log.len());
        assert!(log.contains("the beginning") && log.contains(missing) && log.contains("the end"), "{much}");
    }
}

/// A field of the agent's memory in kilobytes, with the kernel's name.
fn memory(machine: &Machine, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", machine.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The value after it was stable for a second.
async fn settled(value: impl Fn() -> u64) -> u64 {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    let (mut last, mut same) = (value(), 0);
    while same < 10 {
        assert!(tokio::time::Instant::now() < deadline, "the value does not become stable: {last}");
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = value();
        (last, same) = (now, if now == last { same + 1 } else { 0 });
    }
    last
}

/// The idle agent uses 8 MiB; the worst plans may use as much again.
#[tokio::test(flavor = "multi_thread")]
async fn agent_check_16_many_large_outputs_use_little_memory_and_dropped_bytes_are_reported() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    api.create(&[("plan", &shell("true")), ("plan-state", "pending")]);
    machine.start();
    api.until_text("plan-state", "succeeded").await;
    // Memory that it frees after a plan is returned a little later.
    let idle = settled(|| memory(&machine, "VmRSS")).await;
    // Hardly compressible.
    let script = "head -c 75000 /dev/urandom | base64 -w 0 | head -c 100000";
    let instructions: Vec<serde_json::Value> = (0..40)
        .map(|index| json!({"name": format!("i{index}"), "command": "sh", "args": ["-c", script], "saveOutput": true}))
        .collect();
    api.plan(&json!({"instructions": instructions}).to_string(), Some("pending"));
    api.until("it runs", |api| api.text("plan-state") == "in-progress").await;
    api.until_text("plan-state", "succeeded").await;
    for index in 0..40 {
        let output = api.output("applied-output", &format!("i{index}"));
        let (first, rest) = output.split_once('\n').unwrap();
        assert_eq!(first, format!("[{} bytes of earlier output dropped]", 100_000 - rest.len()));
        assert!(rest.len() >= 4000, "{}", rest.len());
    }
    let peak = memory(&machine, "VmHWM");
    println!("idle {idle} kB, peak {peak} kB");
    assert!(peak - idle <= 8 * 1024, "idle {idle} kB, peak {peak} kB");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_is_reported_completely_next_to_truncated_output() {
    let api = Api::new();
    let mut machine = Machine::new(&api).await;
    api.create(&[("plan", &shell("true")), ("plan-state", "pending")]);
    machine.start();
    api.until_text("plan-state", "succeeded").await;
    let idle = memory(&machine, "VmRSS");
    let dir = machine.dir.path().display().to_string();
    let instruction = |name: &str, script: String| json!({"name": name, "command": "sh", "args": ["-c", script], "saveOutput": true});
    // Neither is compressible.
    let noise = |size: usize| format!("head -c {size} /dev/urandom | base64 -w0 | head -c {size}");
    let plan = json!({"instructions": [
        instruction("document", format!("{{ printf '{{\"a\":\"'; {}; printf '\"}}'; }} | tee {dir}/document", noise(150_000))),
        instruction("noise", noise(5 << 20)),
    ]});
    api.plan(&plan.to_string(), Some("pending"));
    api.until("it runs", |api| api.text("plan-state") == "in-progress").await;
    api.until_text("plan-state", "succeeded").await;
    let document = api.output("applied-output", "document");
    assert_eq!(document, machine.read("document").unwrap());
    let parsed: serde_json::Value = serde_json::from_str(&document).unwrap();
    assert_eq!(parsed["a"].as_str().unwrap().len(), 150_000);
    let noise = api.output("applied-output", "noise");
    assert!(noise.starts_with('[') && noise.len() >= 100_000, "{}", noise.len());
    let peak = memory(&machine, "VmHWM");
    assert!(peak - idle <= 8 * 1024, "idle {idle} kB, peak {peak} kB");
}
