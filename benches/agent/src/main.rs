//! Measures the node agent and prints a table.
//!
//! ```sh
//! RUSTFLAGS="-C target-feature=+crt-static" \
//!   cargo build --profile agent --target x86_64-unknown-linux-gnu -p drover-agent
//! cargo run --release -p drover-bench-agent
//! ```
//!
//! The measured program is that build, or the path in the first argument. It watches its plan over TLS from an API
//! server in this process. All files are in a temporary directory.
//!
//! `DROVER_BENCH_ORIGINAL=/path/to/rancher-system-agent` is a build of the original. It is measured in the same way,
//! and the table then also contains its numbers and the ratios. All its versions support the checksum protocol, in
//! which nothing is committed before a plan starts, so Drover's agent is measured with that protocol too. Build the
//! original by hand: no Go module provides it as a dependency.

mod agent;
#[path = "../../../crates/agent/tests/common/api/mod.rs"]
#[allow(dead_code, unused_imports, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]
// shared with the tests; this program uses only a part
mod api;
mod probes;
mod table;

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use agent::{Agent, Dialect};
use anyhow::{Context, bail};
use serde_json::{Value, json};
use table::{Amount, Row};

const SAMPLES: usize = 50;
const IDLE: Duration = Duration::from_secs(60);
const FILES: usize = 1000;
/// The largest plan that fits into a secret together with the agent's results.
const LARGE: usize = 1_000_000;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    if let [_, stamp, path] = &args[..]
        && stamp == "--stamp"
    {
        // Run as the instruction of the plan: records the time.
        return Ok(std::fs::write(path, now().to_string())?);
    }
    tokio::runtime::Runtime::new()?.block_on(measure(args.get(1)))
}

async fn measure(program: Option<&String>) -> anyhow::Result<()> {
    let program = program.map_or_else(default_program, |path| Ok(PathBuf::from(path)))?;
    println!("program: {}", program.display());
    let ours = rows(&program, Dialect::State).await?;
    let Some(original) = std::env::var_os("DROVER_BENCH_ORIGINAL").map(PathBuf::from) else {
        println!("\n{}", table::single(&ours));
        println!("*** WITHOUT COMPARISON: DROVER_BENCH_ORIGINAL is not set to a rancher-system-agent ***");
        return Ok(());
    };
    println!("original: {}", original.display());
    let alike = rows(&program, Dialect::Checksum).await?;
    match rows(&original, Dialect::Checksum).await {
        Ok(theirs) => println!("\n{}", table::comparison(&ours, &alike, &theirs)),
        Err(error) => {
            println!("\n{}", table::single(&ours));
            println!("*** WITHOUT COMPARISON: failed to measure the original: {error:#} ***");
        }
    }
    Ok(())
}

/// All measurements of one program.
async fn rows(program: &Path, dialect: Dialect) -> anyhow::Result<Vec<Row>> {
    let size = std::fs::metadata(program).with_context(|| program.display().to_string())?.len();
    let mut rows = vec![Row::new("program on disk", "≤ 8 MiB", Amount::Bytes(size))];
    let mut row = |what: &str, aim: &'static str, amount: Amount| rows.push(Row::new(what, aim, amount));

    let agent = Agent::start(program, dialect).await?;
    let probes = probes::serve(6).await?;
    agent.apply(&json!({"probes": probes})).await?;
    agent
        .until("the probes are healthy", |api| {
            api.text("probe-statuses").matches("\"healthy\":true").count() == 6
        })
        .await?;
    tokio::time::sleep(Duration::from_secs(15)).await;
    let before = (agent.api.written().len(), agent.cpu_seconds()?);
    tokio::time::sleep(IDLE).await;
    let (writes, cpu) = (agent.api.written().len() - before.0, agent.cpu_seconds()? - before.1);
    row("RSS, idle with 6 HTTPS probes every 5 s", "≤ 8 MiB", Amount::Bytes(agent.memory("VmRSS")?));
    let share = cpu / IDLE.as_secs_f64() * 100.0;
    row("CPU, idle with these probes for a minute", "≤ 0.1 % of a core", Amount::Percent(share));
    row("updates of the secret in that minute", "0", Amount::Count(writes));

    let content = "A".repeat(LARGE - 200);
    let large = json!({"files": [{"path": agent.path("large"), "content": content}], "probes": probes});
    agent.apply(&large).await?;
    row("peak RSS while a plan of 1 MB is applied", "≤ 16 MiB", Amount::Bytes(agent.memory("VmHWM")?));
    tokio::time::sleep(Duration::from_secs(15)).await;
    row("RSS 15 s after that", "≤ 8 MiB", Amount::Bytes(agent.memory("VmRSS")?));

    let (start, report) = latencies(&agent, &[]).await?;
    row(
        &format!("plan written to first instruction started (p95 of {SAMPLES})"),
        "≤ 50 ms",
        Amount::Nanoseconds(percentile(&start, 95)),
    );
    row(
        &format!("last instruction to report visible (p95 of {SAMPLES})"),
        "≤ 50 ms",
        Amount::Nanoseconds(percentile(&report, 95)),
    );

    let files: Vec<Value> = (0..FILES)
        .map(|index| json!({"path": agent.path(&format!("files/{index}")), "content": "eHh4".repeat(50)}))
        .collect();
    agent.apply(&json!({"files": files})).await?;
    let (with_files, _) = latencies(&agent, &files).await?;
    row(
        &format!(
            "plan of {FILES} unchanged files written to first instruction started (median of {SAMPLES})"
        ),
        "",
        Amount::Nanoseconds(percentile(&with_files, 50)),
    );
    if dialect == Dialect::State {
        row(
            &format!("{FILES} unchanged files verified (p95 of {SAMPLES}, in the bench's own build)"),
            "≤ 50 ms",
            Amount::Nanoseconds(percentile(&verify(&files)?, 95)),
        );
    }
    Ok(rows)
}

/// The time from writing the plan to its instruction, and from there to the report, in nanoseconds.
async fn latencies(agent: &Agent, files: &[Value]) -> anyhow::Result<(Vec<u128>, Vec<u128>)> {
    let (mut start, mut report) = (Vec::new(), Vec::new());
    let stamp = agent.path("stamp");
    for sample in 0..SAMPLES {
        let _ = std::fs::remove_file(&stamp);
        let this = std::env::current_exe()?;
        let instruction = json!({"name": "i", "command": this, "args": ["--stamp", stamp]});
        let plan = json!({"error": sample.to_string(), "files": files, "instructions": [instruction]});
        let written = now();
        agent.apply(&plan).await?;
        let visible = now();
        let ran: u128 = std::fs::read_to_string(&stamp)?.parse()?;
        start.push(ran.saturating_sub(written));
        report.push(visible.saturating_sub(ran));
    }
    Ok((start, report))
}

/// The time that the agent's code needs to verify that all files are unchanged.
fn verify(files: &[Value]) -> anyhow::Result<Vec<u128>> {
    let host = drover_agent::host::RealHost::new();
    let files: Vec<drover_plan::File> = serde_json::from_value(files.into())?;
    (0..SAMPLES)
        .map(|_| {
            let before = now();
            drover_agent::apply::files::apply(&host, &files)?;
            Ok(now() - before)
        })
        .collect()
}

fn default_program() -> anyhow::Result<PathBuf> {
    let this = std::env::current_exe()?;
    let target = this.parent().and_then(Path::parent).context("this program lies in no target directory")?;
    let path = target.join("x86_64-unknown-linux-gnu/agent/drover-agent");
    if !path.exists() {
        bail!("{} does not exist: build it as the head of benches/agent/src/main.rs says", path.display());
    }
    Ok(path)
}

fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos())
}

fn percentile(samples: &[u128], percent: usize) -> u128 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(at).copied().unwrap_or_default()
}
