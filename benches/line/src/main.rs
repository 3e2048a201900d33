//! Measures `drover server` and `drover quickstart` with the release build, as a user runs them, and prints a table.
//!
//! ```sh
//! cargo build --release && cargo run --release -p drover-bench-line
//! ```
//!
//! The measured program is `drover` in the directory of this program, or the path in the first argument. The data
//! directory is temporary and is deleted at the end.

mod latency;
mod processes;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use processes::Usage;

const COLD_STARTS: usize = 10;
const LATENCY_SAMPLES: usize = 50;
const IDLE: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let drover = program()?;
    let mut table = Table::default();
    println!("machine: {}", machine());
    println!("program: {} ({:.1} MiB)\n", drover.display(), mebibytes(std::fs::metadata(&drover)?.len()));

    let starts = cold_starts(&drover).await?;
    table.row(
        "cold start of `drover server` to /readyz (median of 10)",
        "≤ 0.5 s",
        seconds(percentile(&starts, 50)),
    );

    let dir = tempfile::tempdir()?;
    let demo = Demo::start(&drover, dir.path())?;
    table.row("`quickstart` to Ready", "≤ 30 s", seconds(demo.took));
    let client = client(&dir.path().join("kubeconfig.yaml")).await?;

    let samples = latency::spec_change_to_plan(&client, LATENCY_SAMPLES).await?;
    table.row(
        "spec change to new plan secret (p95 of 50)",
        "≤ 200 ms",
        milliseconds(percentile(&samples, 95)),
    );
    table.row("spec change to new plan secret (median of 50)", "", milliseconds(percentile(&samples, 50)));

    latency::settled(&client).await?;
    let before = (revision(&client).await?, Usage::of(dir.path())?);
    tokio::time::sleep(IDLE).await;
    let after = (revision(&client).await?, Usage::of(dir.path())?);
    table.row("server RSS with the demo running", "≤ 100 MiB", format!("{:.1} MiB", after.1.server_rss));
    table.row("agent RSS (largest of 3)", "≤ 8 MiB", format!("{:.1} MiB", after.1.agent_rss));
    let cpu = (after.1.cpu_seconds - before.1.cpu_seconds) / IDLE.as_secs_f64() * 100.0;
    table.row("CPU of everything together, idle", "≤ 2 % of a core", format!("{cpu:.2} %"));
    table.row("writes to the store in a minute of idling", "0", (after.0 - before.0).to_string());
    demo.delete()?;
    table.print();
    Ok(())
}

fn program() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::args_os().nth(1) {
        return Ok(path.into());
    }
    let beside = std::env::current_exe()?.with_file_name("drover");
    if !beside.exists() {
        bail!("{} does not exist: run `cargo build --release` first", beside.display());
    }
    Ok(beside)
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = memory.lines().next().and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} cores, {} GiB, Linux {}", kib.unwrap_or(0) / (1 << 20), kernel.trim())
}

async fn cold_starts(drover: &Path) -> anyhow::Result<Vec<Duration>> {
    let mut took = vec![];
    for _ in 0..COLD_STARTS {
        let dir = tempfile::tempdir()?;
        let begun = Instant::now();
        let mut server = Command::new(drover)
            .args(["server", "--bind", "127.0.0.1:0", "--data-dir"])
            .arg(dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let kubeconfig = dir.path().join("kubeconfig.yaml");
        loop {
            if let Some(status) = server.try_wait()? {
                bail!("the server ended with {status}");
            }
            if kubeconfig.exists()
                && let Ok(client) = client(&kubeconfig).await
                && client.request_text(http_get("/readyz")?).await.is_ok()
            {
                took.push(begun.elapsed());
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        server.kill()?;
        server.wait()?;
        run(Command::new(drover).args(["quickstart", "--delete", "--data-dir"]).arg(dir.path()))?;
    }
    Ok(took)
}

/// A demo cluster in the background.
struct Demo {
    drover: PathBuf,
    dir: PathBuf,
    took: Duration,
}

impl Demo {
    fn start(drover: &Path, dir: &Path) -> anyhow::Result<Self> {
        let begun = Instant::now();
        run(Command::new(drover)
            .args(["quickstart", "--detach", "--bind", "127.0.0.1:0", "--data-dir"])
            .arg(dir))?;
        Ok(Self { drover: drover.to_owned(), dir: dir.to_owned(), took: begun.elapsed() })
    }

    fn delete(self) -> anyhow::Result<()> {
        run(Command::new(&self.drover).args(["quickstart", "--delete", "--data-dir"]).arg(&self.dir))
    }
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        bail!(
            "{command:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

async fn client(kubeconfig: &Path) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    Ok(Client::try_from(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)?)
}

fn http_get(path: &str) -> anyhow::Result<http::Request<Vec<u8>>> {
    Ok(http::Request::get(path).body(vec![])?)
}

/// The store's revision, which increases with every write.
async fn revision(client: &Client) -> anyhow::Result<u64> {
    let text = client.request_text(http_get("/api/v1/namespaces?limit=1")?).await?;
    let list: serde_json::Value = serde_json::from_str(&text)?;
    list["metadata"]["resourceVersion"]
        .as_str()
        .and_then(|rv| rv.parse().ok())
        .context("the list has no revision")
}

fn percentile(samples: &[Duration], percent: usize) -> Duration {
    let mut sorted = samples.to_vec();
    sorted.sort();
    sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or_default()
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

fn milliseconds(time: Duration) -> String {
    format!("{:.0} ms", time.as_secs_f64() * 1000.0)
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[derive(Default)]
struct Table(Vec<[String; 3]>);

impl Table {
    fn row(&mut self, what: &str, goal: &str, seen: String) {
        println!("{what}: {seen}");
        self.0.push([what.to_owned(), goal.to_owned(), seen]);
    }

    fn print(&self) {
        println!("\n| what | goal | measured |\n|---|---|---|");
        for [what, goal, seen] in &self.0 {
            println!("| {what} | {goal} | {seen} |");
        }
    }
}
