//! Measures one fleet from its creation to its deletion.

use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::api;
use crate::processes::{Process, usage};

const START_LIMIT: Duration = Duration::from_secs(60);
const CREATE_LIMIT: Duration = Duration::from_secs(1800);
const RETURN_LIMIT: Duration = Duration::from_secs(300);
/// Events and probes of the last clusters may arrive later.
const SETTLE: Duration = Duration::from_secs(15);

/// The measurements for one size.
#[derive(Default)]
pub(crate) struct Numbers {
    pub(crate) size: usize,
    load: String,
    seconds: f64,
    p50: f64,
    p99: f64,
    server_cpu: f64,
    fleet_cpu: f64,
    server_rss: f64,
    fleet_rss: f64,
    writes: f64,
    reads: Option<f64>,
    bytes: f64,
    idle_cpu: f64,
    idle_writes: f64,
    ready_again: f64,
    tunnels_again: f64,
    restart_writes: f64,
    not_ready: usize,
    deletion: f64,
    rss_before: f64,
    rss_after: f64,
}

type Row = (&'static str, &'static str, fn(&Numbers) -> String);

/// The rows of the table: what, goal, value.
pub(crate) const ROWS: [Row; 20] = [
    ("load average when it began", "", |n| n.load.clone()),
    ("all clusters Ready", "≤ 120 s at 1,000", |n| format!("{:.1} s", n.seconds)),
    ("time to Ready, p50", "", |n| format!("{:.1} s", n.p50)),
    ("time to Ready, p99", "", |n| format!("{:.1} s", n.p99)),
    ("server CPU per cluster", "≤ 0.2 s", |n| format!("{:.3} s", n.server_cpu)),
    ("fleet CPU per cluster", "", |n| format!("{:.3} s", n.fleet_cpu)),
    ("server RSS", "≤ 400 MiB at 1,000", |n| format!("{:.0} MiB", n.server_rss)),
    ("fleet RSS", "", |n| format!("{:.0} MiB", n.fleet_rss)),
    ("writes per cluster", "≤ 150", |n| format!("{:.0}", n.writes)),
    ("API reads per cluster", "", |n| n.reads.map_or_else(String::new, |reads| format!("{reads:.0}"))),
    ("bytes of the store per cluster", "", |n| format!("{:.0} KiB", n.bytes / 1024.0)),
    ("idle: server CPU", "≤ 10 % of a core", |n| format!("{:.1} %", n.idle_cpu)),
    ("idle: writes per minute", "leases only", |n| format!("{:.0}", n.idle_writes)),
    ("`kill -9` to /readyz", "≤ 3 s", |n| format!("{:.2} s", n.ready_again)),
    ("`kill -9` to all tunnels", "≤ 60 s", |n| format!("{:.1} s", n.tunnels_again)),
    ("writes of the restart per cluster", "< 1", |n| format!("{:.2}", n.restart_writes)),
    ("clusters not Ready after the restart", "0", |n| n.not_ready.to_string()),
    ("deletion of all", "≤ 120 s at 1,000", |n| format!("{:.1} s", n.deletion)),
    ("server RSS before the first cluster", "", |n| format!("{:.0} MiB", n.rss_before)),
    ("server RSS after deletion", "≤ 120 % of before", |n| format!("{:.0} MiB", n.rss_after)),
];

/// A port that is free now; a restarted server needs the same one.
pub(crate) fn free_address() -> anyhow::Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

/// Measures one size.
pub(crate) async fn measure(
    drover: &Path,
    size: usize,
    workers: usize,
    idle: Duration,
) -> anyhow::Result<Numbers> {
    let mut numbers = Numbers { size, load: crate::processes::load(), ..Numbers::default() };
    let dir = tempfile::tempdir()?;
    let (dir, address) = (dir.path(), free_address()?);
    let mut server = Process::server(drover, dir, &address)?;
    let (client, _) = api::ready(&mut server, dir, START_LIMIT).await?;
    let each = size as f64;

    let before = (api::revision(&client).await?, api::reads(&client).await, api::stored(dir));
    let used = usage(server.pid())?;
    numbers.rss_before = used.1;
    let (count, of_each) = (size.to_string(), workers.to_string());
    let (mut fleet, phases) = Process::fleet(drover, dir, &["--clusters", &count, "--workers", &of_each])?;
    let ready = tokio::time::timeout(CREATE_LIMIT, phases.next()).await.context("the fleet is not Ready")?;
    // The reader is kept: a fleet without one would fail when it prints.
    let (ready, _phases) = match ready {
        Ok(ready) => ready,
        Err(error) => {
            fleet.alive()?;
            return Err(error);
        }
    };
    let number = |key: &str| ready[key].as_f64().unwrap_or(f64::NAN);
    (numbers.seconds, numbers.p50, numbers.p99) =
        (number("seconds"), number("p50Seconds"), number("p99Seconds"));
    let (cpu, rss) = usage(server.pid())?;
    (numbers.server_cpu, numbers.server_rss) = ((cpu - used.0) / each, rss);
    let (cpu, rss) = usage(fleet.pid())?;
    (numbers.fleet_cpu, numbers.fleet_rss) = (cpu / each, rss);
    tokio::time::sleep(SETTLE).await;
    numbers.writes = (api::revision(&client).await? - before.0) as f64 / each;
    numbers.reads = api::reads(&client).await.zip(before.1).map(|(now, before)| (now - before) / each);
    numbers.bytes = (api::stored(dir) as f64 - before.2 as f64) / each;
    println!("Ready after {:.1} s", numbers.seconds);

    let (begun, cpu) = (api::revision(&client).await?, usage(server.pid())?.0);
    tokio::time::sleep(idle).await;
    numbers.idle_cpu = (usage(server.pid())?.0 - cpu) / idle.as_secs_f64() * 100.0;
    numbers.idle_writes = (api::revision(&client).await? - begun) as f64 / idle.as_secs_f64() * 60.0;
    println!("idle: {:.1} % of a core, {:.0} writes per minute", numbers.idle_cpu, numbers.idle_writes);

    let begun = api::revision(&client).await?;
    drop(client);
    server.kill()?;
    let killed = Instant::now();
    let mut server = Process::server(drover, dir, &address)?;
    let (client, _) = api::ready(&mut server, dir, RETURN_LIMIT).await?;
    numbers.ready_again = killed.elapsed().as_secs_f64();
    let (_, not_ready) = api::all_answer(&client, RETURN_LIMIT).await?;
    (numbers.tunnels_again, numbers.not_ready) = (killed.elapsed().as_secs_f64(), not_ready);
    tokio::time::sleep(SETTLE).await;
    numbers.restart_writes = (api::revision(&client).await? - begun) as f64 / each;
    println!(
        "restart: /readyz after {:.2} s, tunnels after {:.1} s",
        numbers.ready_again, numbers.tunnels_again
    );

    let begun = Instant::now();
    let (_deleting, _asked) = Process::fleet(drover, dir, &["--delete"])?;
    loop {
        let left = api::clusters(&client).await?.len();
        if left == 0 {
            break;
        }
        if begun.elapsed() > CREATE_LIMIT {
            bail!("{left} clusters are left after {} s", CREATE_LIMIT.as_secs());
        }
        fleet.alive()?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    numbers.deletion = begun.elapsed().as_secs_f64();
    tokio::time::sleep(SETTLE).await;
    numbers.rss_after = usage(server.pid())?.1;
    Ok(numbers)
}
