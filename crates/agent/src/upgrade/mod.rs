//! The agent replaces itself by the one that the manager serves.
//!
//! The manager says beside each plan which agent it has (`drover_plan::AgentOffer`). An agent that runs another fetches
//! that one from the server of its connection file, makes sure that it is what was offered and that it runs, and waits
//! for an idle moment to put it in its own place and become it: the same process, so that systemd, children and locks
//! notice nothing. Whatever fails is told and tried again after a rest; the agent goes on as it is.
//!
//! [`Upgrade`] only keeps track. Who asks it to act must know that nothing runs and nothing is unsaid.

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
pub(crate) use fetch::beside;
use fetch::{Fetched, fetch, is_running};

/// A new manager is heard by all its agents at once; they come one after the other within this.
const SPREAD: Duration = Duration::from_secs(4);
/// First and longest rest after a failure.
const FIRST_REST: Duration = Duration::from_secs(30);
const LAST_REST: Duration = Duration::from_secs(3600);
/// Holds the uid of the plan secret across the change, so that the successor does not apply anew what is applied.
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
    /// Nothing to do: nothing is offered, or this is it.
    Content,
    /// An offer that is yet to be compared with the program that runs; mostly it is the same.
    Comparing(JoinHandle<bool>),
    /// To be fetched, not before then.
    Due(Instant),
    Fetching(JoinHandle<Result<Fetched, String>>),
    /// Beside the agent's own file, verified.
    Ready(PathBuf),
    /// At the agent's own place already.
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
    /// `pinned` ignores all offers. Takes away what a predecessor that was killed had fetched.
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

    /// The plan secret of whose agent this one is the successor, once.
    pub fn continues(host: &dyn Host, var: &Path) -> Option<String> {
        let path = var.join(CONTINUES);
        let uid = String::from_utf8(host.read(&path).ok()?).ok()?;
        if let Err(error) = host.remove_file(&path) {
            tracing::warn!("cannot remove {}: {error}", path.display());
        }
        Some(uid)
    }

    /// Takes in what the plan secret says.
    pub fn hear(&mut self, annotation: Option<&str>) {
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
            // No other takes its place.
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

    /// How long until there is something to do in an idle moment; `None` if an event comes first.
    pub fn due(&self) -> Option<Duration> {
        match &self.state {
            State::Content | State::Comparing(_) | State::Fetching(_) => None,
            State::Due(at) => Some(at.saturating_duration_since(Instant::now())),
            State::Ready(_) | State::InPlace => Some(Duration::ZERO),
        }
    }

    /// Whether the next step is to become the other program.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready(_) | State::InPlace)
    }

    /// Starts to fetch what is due.
    pub fn begin(&mut self, api: Arc<Api>) {
        let (Some(executable), Some(wanted)) = (self.executable.clone(), self.wanted.clone()) else { return };
        let host = self.host.clone();
        let task = tokio::spawn(async move { fetch(&host, &api, &executable, &wanted).await });
        self.state = State::Fetching(task);
    }

    /// Ends when a comparison or a fetch ends.
    pub async fn fetched(&mut self) {
        if let State::Comparing(task) = &mut self.state {
            // What cannot be told now is told by the fetch.
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
            Ok(Ok(Fetched::Beside(path))) => self.state = State::Ready(path),
            Ok(Err(error)) => self.failed(error),
            Err(error) => self.failed(format!("the download broke off: {error}")),
        }
    }

    /// Becomes the other program. Comes back only if that fails, with the agent as it was.
    pub async fn change(&mut self, uid: Option<&str>) {
        let Some(executable) = self.executable.clone() else { return };
        if let Some(uid) = uid {
            let kept = self.host.replace(
                &self.var.join(CONTINUES),
                uid.as_bytes(),
                Attr { mode: 0o600, owner: None },
            );
            if let Err(error) = kept {
                // Without it the successor may apply once more what is applied: wait until there is room.
                return self.failed(format!("cannot write to {}: {error}", self.var.display()));
            }
        }
        let error = self.replace_and_become(&executable).await;
        let _ = self.host.remove_file(&self.var.join(CONTINUES));
        self.failed(error);
    }

    async fn replace_and_become(&mut self, executable: &Path) -> String {
        if let State::Ready(beside) = &self.state {
            let (host, from, to) = (self.host.clone(), beside.clone(), executable.to_owned());
            let renamed = offload(&*self.host, move || host.rename(&from, &to)).await;
            match renamed {
                Some(Ok(())) => {}
                Some(Err(error)) => return format!("cannot replace {}: {error}", executable.display()),
                None => return format!("replacing {} broke off", executable.display()),
            }
        }
        let sum = self.wanted.as_deref().unwrap_or_default();
        tracing::info!(
            "{} is replaced by the agent that the manager offers ({sum}); going on as it",
            executable.display()
        );
        let error = self.host.become_program(executable).await;
        format!("cannot start {}: {error}", executable.display())
    }

    fn failed(&mut self, error: String) {
        if self.trouble.as_ref() != Some(&error) {
            tracing::warn!("the agent stays as it is and tries again later: {error}");
        }
        self.trouble = Some(error);
        let half = self.rest / 2;
        let pause = half + half.mul_f64(self.host.random() as f64 / u64::MAX as f64);
        self.state = State::Due(Instant::now() + pause);
        self.rest = (self.rest * 2).min(LAST_REST);
    }

    /// For people; `None` when there is nothing to tell.
    pub fn told(&self) -> Option<String> {
        let wanted = self.wanted.as_deref()?;
        let short = wanted.get(..12).unwrap_or(wanted);
        match (&self.state, &self.trouble) {
            (State::Content | State::Comparing(_), _) => None,
            (_, Some(trouble)) => {
                Some(format!("the manager offers another agent ({short}), but {trouble}; it is tried again"))
            }
            (State::Fetching(_), None) => Some(format!("fetching another agent ({short}) from the manager")),
            (_, None) => Some(format!("the manager offers an agent ({short}); waiting for an idle moment")),
        }
    }
}

fn forget_fetched(host: &dyn Host, executable: &Path) {
    let path = beside(executable);
    if let Err(error) = host.remove_file(&path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!("cannot remove {}: {error}", path.display());
    }
}

/// This machine's architecture as Go names it.
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
    async fn what_was_fetched_by_half_does_not_stay() {
        let (agent, left) = ("/usr/bin/agent", Path::new("/usr/bin/.agent.drover-new"));
        let host = MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, NoProgram);
        let host = Arc::new(host.with_executable(agent, b"old").unwrap());
        let fetch = || host.replace(left, b"ne", Attr { mode: 0o700, owner: None }).unwrap();
        fetch();
        let mut upgrade = Upgrade::new(host.clone(), Path::new("/v"), false);
        assert!(host.stat(left).is_err(), "of a predecessor");
        let offer = AgentOffer { sha256: [(arch().unwrap().to_owned(), "0".repeat(64))].into() };
        upgrade.hear(Some(&offer.to_text()));
        fetch();
        upgrade.hear(None);
        assert!(host.stat(left).is_err(), "of an offer that was taken back");
        assert!(host.stat(Path::new(agent)).is_ok());
    }
}
