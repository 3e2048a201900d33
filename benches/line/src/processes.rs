//! Reads memory and CPU time of all processes of a data directory from /proc.

use std::path::Path;

use anyhow::Context;

/// Resource usage of the processes.
pub(crate) struct Usage {
    /// RSS of the management plane in MiB.
    pub(crate) server_rss: f64,
    /// RSS of the largest agent in MiB.
    pub(crate) agent_rss: f64,
    /// CPU seconds of all processes since they started.
    pub(crate) cpu_seconds: f64,
}

struct Process {
    pid: u32,
    parent: u32,
    command: String,
    rss_kib: u64,
    cpu_ticks: u64,
}

impl Usage {
    pub(crate) fn of(data_dir: &Path) -> anyhow::Result<Self> {
        let all = processes();
        let server: u32 = std::fs::read_to_string(data_dir.join("quickstart.pid"))?.trim().parse()?;
        let dir = data_dir.display().to_string();
        let is_holder = |p: &&Process| p.command.contains("machine-holder") && p.command.contains(&dir);
        let holder = all.iter().find(is_holder).context("the holder is not running")?.pid;
        // Machines are children of the holder process, and their processes are children of the machines.
        let mut ours = vec![server, holder];
        loop {
            let more: Vec<u32> = all
                .iter()
                .filter(|p| ours.contains(&p.parent) && !ours.contains(&p.pid))
                .map(|p| p.pid)
                .collect();
            if more.is_empty() {
                break;
            }
            ours.extend(more);
        }
        let ours: Vec<&Process> = all.iter().filter(|p| ours.contains(&p.pid)).collect();
        let mebibytes = |kib: u64| kib as f64 / 1024.0;
        let agents = ours.iter().filter(|p| p.command.contains("system-agent"));
        Ok(Self {
            server_rss: mebibytes(ours.iter().find(|p| p.pid == server).map_or(0, |p| p.rss_kib)),
            agent_rss: mebibytes(agents.map(|p| p.rss_kib).max().unwrap_or(0)),
            // USER_HZ is 100 on every Linux that Rust supports.
            cpu_seconds: ours.iter().map(|p| p.cpu_ticks).sum::<u64>() as f64 / 100.0,
        })
    }
}

fn processes() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| process(entry.file_name().to_str()?.parse().ok()?)).collect()
}

fn process(pid: u32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name can contain spaces and brackets; the fields after its last bracket cannot.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let rss =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    Some(Process {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        command: String::from_utf8_lossy(&command).replace('\0', " "),
        rss_kib: rss.unwrap_or(0),
        cpu_ticks: fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?,
    })
}
