//! The quickstart of a data directory: at most one runs, and other commands can find and stop it.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use drover_server::DataDir;
use kube::Client;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cluster;
use crate::output::drover_at;
use crate::server::own_executable;

const POLL: Duration = Duration::from_millis(100);
const STOP_LIMIT: Duration = Duration::from_secs(60);

pub(super) const PID_FILE: &str = "quickstart.pid";
const BIND_FILE: &str = "quickstart.bind";
const OUT_FILE: &str = "quickstart.out";

fn pid_file(data_dir: &DataDir) -> PathBuf {
    data_dir.path().join(PID_FILE)
}

fn bind_file(data_dir: &DataDir) -> PathBuf {
    data_dir.path().join(BIND_FILE)
}

fn ready_file(data_dir: &DataDir) -> PathBuf {
    data_dir.path().join("quickstart.ready")
}

/// A lock that is held while a quickstart runs; it ends with the process.
pub(super) struct Instance {
    file: File,
    ready: PathBuf,
}

impl Instance {
    pub(super) fn claim(data_dir: &DataDir, bind: SocketAddr) -> anyhow::Result<Self> {
        let mut file = lock(data_dir)?;
        let noted = file
            .set_len(0)
            .and_then(|()| write!(file, "{}", std::process::id()))
            .and_then(|()| std::fs::write(bind_file(data_dir), bind.to_string()));
        noted.with_context(|| format!("data directory {} cannot be used", data_dir.path().display()))?;
        let ready = ready_file(data_dir);
        let _ = std::fs::remove_file(&ready);
        Ok(Self { file, ready })
    }
}

impl Drop for Instance {
    /// Clears the files, so that they do not name a process any more. The lock file itself is kept: waiting processes
    /// have it open.
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.ready);
        let _ = self.file.set_len(0);
    }
}

/// Refuses while another quickstart runs. It is checked before a background process is started: the responses of the
/// running one would be taken for those of the new one, and its output would be overwritten.
pub(super) fn refuse_running(data_dir: &DataDir) -> anyhow::Result<()> {
    lock(data_dir).map(drop)
}

/// Prevents quickstarts from starting while the directory is removed. If the disk is too full for the lock file, the
/// directory is removed nevertheless.
pub(super) fn keep_out(data_dir: &DataDir) -> anyhow::Result<Option<File>> {
    let there = File::options().create(true).append(true).open(pid_file(data_dir)).is_ok();
    there.then(|| lock(data_dir)).transpose()
}

fn lock(data_dir: &DataDir) -> anyhow::Result<File> {
    let path = pid_file(data_dir);
    let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file =
        file.with_context(|| format!("data directory {} cannot be used", data_dir.path().display()))?;
    if file.try_lock().is_err() {
        let pid = read_pid(&mut file).map(|pid| format!(" (process {pid})")).unwrap_or_default();
        bail!(
            "a quickstart{pid} is already running in data directory {}; stop it with `{}`",
            data_dir.path().display(),
            drover_at(data_dir, &["quickstart", "--stop"])
        );
    }
    Ok(file)
}

fn read_pid(file: &mut File) -> Option<i32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// The address of the last quickstart, so that the next one can use it again.
pub(super) fn last_bind(data_dir: &DataDir) -> Option<SocketAddr> {
    std::fs::read_to_string(bind_file(data_dir)).ok()?.trim().parse().ok()
}

/// Signals to the command in the foreground that the cluster is Ready and its kubeconfig is written.
pub(super) fn mark_ready(data_dir: &DataDir) -> anyhow::Result<()> {
    std::fs::write(ready_file(data_dir), "").context("failed to write to the data directory")
}

pub(super) async fn until_ready(data_dir: &DataDir) -> anyhow::Result<()> {
    while !ready_file(data_dir).exists() {
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Asks the running quickstart to stop and waits until it has stopped. `false` if none is running.
pub(super) async fn stop_running(data_dir: &DataDir) -> anyhow::Result<bool> {
    let Ok(mut file) = File::options().read(true).write(true).open(pid_file(data_dir)) else {
        return Ok(false);
    };
    if file.try_lock().is_ok() {
        return Ok(false);
    }
    let pid = read_pid(&mut file).context("the process id of the running quickstart is unknown")?;
    kill(Pid::from_raw(pid), Signal::SIGTERM)
        .with_context(|| format!("failed to send process {pid} the signal to stop"))?;
    let deadline = tokio::time::Instant::now() + STOP_LIMIT;
    // The lock is released before the process, and with it the store, ends.
    while file.try_lock().is_err() || is_running(pid) {
        if tokio::time::Instant::now() > deadline {
            bail!("process {pid} did not stop within {} s", STOP_LIMIT.as_secs());
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(true)
}

/// A zombie counts as ended.
fn is_running(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// Starts the same command without `--detach` in its own process group, so that Ctrl-C in the terminal does not reach
/// it. Its output goes to a file.
pub(super) fn spawn_background(data_dir: &DataDir) -> anyhow::Result<Child> {
    let path = data_dir.path().join(OUT_FILE);
    let log = File::create(&path).with_context(|| format!("failed to write {}", path.display()))?;
    let words = std::env::args_os().skip(1).filter(|word| word != "--detach");
    let mut command = Command::new(own_executable()?);
    command.args(words).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
    command.spawn().context("failed to start the background process")
}

/// Asks the background process to stop and waits until it has stopped.
pub(super) async fn end(child: &mut Child) -> anyhow::Result<()> {
    let pid = child.id();
    let asked = kill(Pid::from_raw(pid.try_into()?), Signal::SIGTERM);
    asked.with_context(|| format!("failed to send process {pid} the signal to stop"))?;
    let deadline = tokio::time::Instant::now() + STOP_LIMIT;
    while child.try_wait()?.is_none() {
        if tokio::time::Instant::now() > deadline {
            bail!("process {pid} did not stop within {} s", STOP_LIMIT.as_secs());
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Returns the reason when the background process ends.
pub(super) async fn ended(data_dir: &DataDir, child: &mut Child) -> anyhow::Result<String> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(exit_reason(data_dir, status));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Why the background process ended: its error, or its exit status.
fn exit_reason(data_dir: &DataDir, status: ExitStatus) -> String {
    let path = data_dir.path().join(OUT_FILE);
    let output = std::fs::read_to_string(&path).unwrap_or_default();
    match output.lines().rev().find_map(|line| line.strip_prefix("drover: ")) {
        Some(error) => error.to_owned(),
        None => format!("the background process ended with {status}; see {}", path.display()),
    }
}

/// A client of the management plane that the background process starts.
pub(super) async fn client_when_up(data_dir: &DataDir, child: &mut Child) -> anyhow::Result<Client> {
    loop {
        if let Some(status) = child.try_wait()? {
            bail!("{}", exit_reason(data_dir, status));
        }
        // The kubeconfig of an earlier run may name another port, so wait until its server answers.
        if let Ok(client) = cluster::client(&data_dir.kubeconfig()).await
            && client.apiserver_version().await.is_ok()
        {
            return Ok(client);
        }
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_second_quickstart_is_refused_while_one_runs() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path()).unwrap();
        refuse_running(&data_dir).unwrap();
        let bind = SocketAddr::from(([0, 0, 0, 0], 9443));
        let running = Instance::claim(&data_dir, bind).unwrap();
        let refused = refuse_running(&data_dir).unwrap_err().to_string();
        assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
        mark_ready(&data_dir).unwrap();
        drop(running);
        assert!(!ready_file(&data_dir).exists() && std::fs::read(pid_file(&data_dir)).unwrap().is_empty());
        refuse_running(&data_dir).unwrap();
        assert_eq!(last_bind(&data_dir), Some(bind), "the next quickstart uses the same address");
    }

    #[test]
    fn a_zombie_process_counts_as_ended() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        let deadline = std::time::Instant::now() + STOP_LIMIT;
        while is_running(pid) {
            assert!(std::time::Instant::now() < deadline);
            std::thread::sleep(POLL);
        }
        child.wait().unwrap();
        assert!(!is_running(pid) && is_running(std::process::id() as i32));
    }
}
