//! The two programs, and their resource use.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, bail};
use serde_json::Value;

/// A child that is killed when it is dropped.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// `drover server`, which listens on `address`.
    pub(crate) fn server(drover: &Path, dir: &Path, address: &str) -> anyhow::Result<Self> {
        let mut command = Command::new(drover);
        command.args(["server", "--bind", address, "--data-dir"]).arg(dir);
        Ok(Self::start(command, &dir.join("server.log"), Stdio::null())?.0)
    }

    /// `drover sim fleet` with arguments, and what it prints.
    pub(crate) fn fleet(drover: &Path, dir: &Path, args: &[&str]) -> anyhow::Result<(Self, Phases)> {
        let mut command = Command::new(drover);
        command.args(["sim", "fleet", "-o", "json", "--data-dir"]).arg(dir).args(args);
        let (process, stdout) = Self::start(command, &dir.join("fleet.log"), Stdio::piped())?;
        let stdout = stdout.context("the fleet has no stdout")?;
        Ok((process, Phases(BufReader::new(stdout))))
    }

    fn start(mut command: Command, log: &Path, stdout: Stdio) -> anyhow::Result<(Self, Option<ChildStdout>)> {
        let file = std::fs::File::options().create(true).append(true).open(log)?;
        let started = command.stdin(Stdio::null()).stdout(stdout).stderr(file).spawn();
        let mut child = started.with_context(|| format!("failed to start {command:?}"))?;
        let stdout = child.stdout.take();
        Ok((Self { child, log: log.to_owned() }, stdout))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fails with the end of the log if the process has ended.
    pub(crate) fn alive(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended with {status}: {}", self.log.display(), tail(&self.log));
        }
        Ok(())
    }

    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

fn tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

/// The documents that a fleet prints, one per phase.
pub(crate) struct Phases(BufReader<ChildStdout>);

impl Phases {
    /// Waits for the next one.
    pub(crate) async fn next(mut self) -> anyhow::Result<(Value, Self)> {
        let (line, rest) = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            self.0.read_line(&mut line).map(|_| (line, self))
        })
        .await??;
        if line.is_empty() {
            bail!("the fleet ended before its phase did");
        }
        Ok((serde_json::from_str(&line)?, rest))
    }
}

/// CPU seconds and MiB of a process.
pub(crate) fn usage(pid: u32) -> anyhow::Result<(f64, f64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name can contain spaces and brackets; the fields after its last bracket cannot.
    let fields: Vec<&str> = stat.rsplit_once(") ").context("/proc/PID/stat")?.1.split(' ').collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let rss = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<f64>().ok());
    // USER_HZ is 100 on every Linux that Rust supports.
    Ok(((ticks(11) + ticks(12)) as f64 / 100.0, rss.unwrap_or(0.0) / 1024.0))
}

pub(crate) fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = memory.lines().next().and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} cores, {} GiB, Linux {}", kib.unwrap_or(0) / (1 << 20), kernel.trim())
}

pub(crate) fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}
