//! Upgrades the agent to the version that the manager serves.
//!
//! The manager writes to each plan secret which agent it has (`drover_plan::AgentOffer`). An agent with a different
//! version downloads that one from the server in its connection file, verifies its checksum and that it runs, and waits
//! for an idle moment to replace its own file and execute it in the same process, so that systemd, child processes and
//! locks are not affected. Errors are reported and retried after a pause; until then the current agent keeps running.
//!
//! [`Upgrade`] only keeps the state. Its caller must ensure that nothing runs and all results are published.

mod fetch;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use drover_plan::AgentOffer;
use tokio::{task::JoinHandle, time::Instant};

use crate::{
    host::{Attr, Host, offload},
    remote::api::Api,
};
pub(crate) use fetch::download_path;
use fetch::{Fetched, fetch, is_running};

/// All agents of a new manager see the offer at once; they download within this time.
const SPREAD: Duration = Duration::from_secs(4);
/// The first and longest pause after a failure.
const FIRST_REST: Duration = Duration::from_secs(30);
const LAST_REST: Duration = Duration::from_secs(3600);
/// Contains the uid of the plan secret during the upgrade, so that the new program does not apply an applied plan
/// again.
const CONTINUES: &str = "continues";

/// See the module.
pub struct Upgrade {
    host: Arc<dyn Host>,
    var: PathBuf,
    executable: Option<PathBuf>,
    /// SHA-256 of the agent that the manager serves for this machine.
    wanted: Option<String>,
    state: State,
    rest: Duration,
    trouble: Option<String>,
}

enum State {
    /// Nothing to do: there is no offer, or this is the offered agent.
    Content,
    /// The offer must be compared with the running program; usually they are equal.
    Comparing(JoinHandle<bool>),
    /// It must be downloaded, not before this time.
    Due(Instant),
    Fetching(JoinHandle<Result<Fetched, String>>),
    /// The verified download.
    Ready(PathBuf),
    /// The agent's file is already the offered one.
    InPlace,
}

impl Drop for Upgrade {
    fn drop(&mut self) {
        self.state.abort();
    }
}

impl State {
    fn abort(&self) {
        match self {
            Self::Fetching(task) => task.abort(),
            Self::Comparing(task) => task.abort(),
            _ => {}
        }
    }
}

impl Upgrade {
    /// `pinned` ignores all offers. Removes the download of an earlier process that was killed.
    pub fn new(host: Arc<dyn Host>, var: &Path, pinned: bool) -> Self {
        if let Some(executable) = host.executable() {
            forget_fetched(&*host, &executable);
        }
        let executable = host.executable().filter(|_| !pinned);
        Self {
            host,
            var: var.to_owned(),
            executable,
            wanted: None,
            state: State::Content,
            rest: FIRST_REST,
            trouble: None,
        }
    }

    /// The plan secret of the process that became this program; returned once.
    pub fn take_predecessor(host: &dyn Host, var: &Path) -> Option<String> {
        let path = var.join(CONTINUES);
        let uid = String::from_utf8(host.read(&path).ok()?).ok()?;
        if let Err(error) = host.remove_file(&path) {
            tracing::warn!("failed to remove {}: {error}", path.display());
        }
        Some(uid)
    }

    /// Processes the offer in the plan secret.
    pub fn observe(&mut self, annotation: Option<&str>) {
        if self.executable.is_none() {
            return;
        }
        let offer = annotation.and_then(AgentOffer::from_text).unwrap_or_default();
        let wanted = arch().and_then(|arch| offer.sha256.get(arch)).cloned();
        if wanted == self.wanted {
            return;
        }
        self.state.abort();
        if let (None, Some(executable)) = (&wanted, &self.executable) {
            // No other offer replaces it.
            forget_fetched(&*self.host, executable);
        }
        self.state = match wanted.clone() {
            Some(wanted) => {
                let host = self.host.clone();
                State::Comparing(tokio::spawn(async move { is_running(&host, &wanted).await }))
            }
            None => State::Content,
        };
        (self.wanted, self.rest, self.trouble) = (wanted, FIRST_REST, None);
    }

    /// The time until there is something to do in an idle moment; `None` if an event comes first.
    pub fn due(&self) -> Option<Duration> {
        match &self.state {
            State::Content | State::Comparing(_) | State::Fetching(_) => None,
            State::Due(at) => Some(at.saturating_duration_since(Instant::now())),
            State::Ready(_) | State::InPlace => Some(Duration::ZERO),
        }
    }

    /// Whether the next step is to execute the new program.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready(_) | State::InPlace)
    }

    /// Starts the download when it is due.
    pub fn begin(&mut self, api: Arc<Api>) {
        let (Some(executable), Some(wanted)) = (self.executable.clone(), self.wanted.clone()) else { return };
        let host = self.host.clone();
        let task = tokio::spawn(async move { fetch(&host, &api, &executable, &wanted).await });
        self.state = State::Fetching(task);
    }

    /// Waits for the end of a comparison or a download.
    pub async fn fetched(&mut self) {
        if let State::Comparing(task) = &mut self.state {
            // Errors of the comparison are reported by the download.
            let is_it = task.await.unwrap_or(false);
            let spread = SPREAD.mul_f64(self.host.random() as f64 / u64::MAX as f64);
            self.state = if is_it { State::Content } else { State::Due(Instant::now() + spread) };
            return;
        }
        let State::Fetching(task) = &mut self.state else { return std::future::pending().await };
        match task.await {
            Ok(Ok(Fetched::Running)) => {
                self.state = State::Content;
                self.trouble = None;
            }
            Ok(Ok(Fetched::InPlace)) => self.state = State::InPlace,
            Ok(Ok(Fetched::Downloaded(path))) => self.state = State::Ready(path),
            Ok(Err(error)) => self.failed(error),
            Err(error) => self.failed(format!("the download was interrupted: {error}")),
        }
    }

    /// Executes the new program. Returns only on failure, and then the agent is unchanged.
    pub async fn change(&mut self, uid: Option<&str>) {
        let Some(executable) = self.executable.clone() else { return };
        if let Some(uid) = uid {
            let kept = self.host.replace(
                &self.var.join(CONTINUES),
                uid.as_bytes(),
                Attr { mode: 0o600, owner: None },
            );
            if let Err(error) = kept {
                // Without this file, the new program may apply an applied plan again: wait until there is space.
                return self.failed(format!("failed to write to {}: {error}", self.var.display()));
            }
        }
        let error = self.replace_and_become(&executable).await;
        let _ = self.host.remove_file(&self.var.join(CONTINUES));
        self.failed(error);
    }

    async fn replace_and_become(&mut self, executable: &Path) -> String {
        if let State::Ready(download) = &self.state {
            let (host, from, to) = (self.host.clone(), download.clone(), executable.to_owned());
            let renamed = offload(&*self.host, move || host.rename(&from, &to)).await;
            match renamed {
                Some(Ok(())) => {}
                Some(Err(error)) => return format!("failed to replace {}: {error}", executable.display()),
                None => return format!("replacing {} was interrupted", executable.display()),
            }
        }
        let sum = self.wanted.as_deref().unwrap_or_default();
        tracing::info!(
            "replaced {} with the agent that the manager offers ({sum}); starting it",
            executable.display()
        );
        let error = self.host.become_program(executable).await;
        format!("failed to start {}: {error}", executable.display())
    }

    fn failed(&mut self, error: String) {
        if self.trouble.as_ref() != Some(&error) {
            tracing::warn!("failed to upgrade the agent, retrying later: {error}");
        }
        self.trouble = Some(error);
        let half = self.rest / 2;
        let pause = half + half.mul_f64(self.host.random() as f64 / u64::MAX as f64);
        self.state = State::Due(Instant::now() + pause);
        self.rest = (self.rest * 2).min(LAST_REST);
    }

    /// The state for people; `None` if there is nothing to report.
    pub fn message(&self) -> Option<String> {
        let wanted = self.wanted.as_deref()?;
        let short = wanted.get(..12).unwrap_or(wanted);
        match (&self.state, &self.trouble) {
            (State::Content | State::Comparing(_), _) => None,
            (_, Some(trouble)) => Some(format!(
                "failed to upgrade to the agent that the manager offers ({short}), retrying: {trouble}"
            )),
            (State::Fetching(_), None) => {
                Some(format!("downloading another agent ({short}) from the manager"))
            }
            (_, None) => {
                Some(format!("the manager offers another agent ({short}); waiting for an idle moment"))
            }
        }
    }
}

fn forget_fetched(host: &dyn Host, executable: &Path) {
    let path = download_path(executable);
    if let Err(error) = host.remove_file(&path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!("failed to remove {}: {error}", path.display());
    }
}

/// This machine's architecture, with the name that Go uses.
fn arch() -> Option<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Some("amd64"),
        "aarch64" => Some("arm64"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{MemoryHost, testing::NoProgram};

    #[tokio::test(start_paused = true)]
    async fn incomplete_downloads_are_removed() {
        let (agent, left) = ("/usr/bin/agent", Path::new("/usr/bin/.agent.drover-new"));
        let host = MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, NoProgram);
        let host = Arc::new(host.with_executable(agent, b"old").unwrap());
        let fetch = || host.replace(left, b"ne", Attr { mode: 0o700, owner: None }).unwrap();
        fetch();
        let mut upgrade = Upgrade::new(host.clone(), Path::new("/v"), false);
        assert!(host.stat(left).is_err(), "of an earlier process");
        let offer = AgentOffer { sha256: [(arch().unwrap().to_owned(), "0".repeat(64))].into() };
        upgrade.observe(Some(&offer.to_text()));
        fetch();
        upgrade.observe(None);
        assert!(host.stat(left).is_err(), "of an offer that was withdrawn");
        assert!(host.stat(Path::new(agent)).is_ok());
    }
}
