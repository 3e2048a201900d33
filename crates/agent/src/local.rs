//! Applies plans in a directory: `*.plan` files, in the order of their paths, with their state in `*.pos` files.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future as _,
    path::{Path, PathBuf},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use drover_plan::{Plan, ProbeStatus};
use serde::{Deserialize, Serialize};
use tokio::time::{self, Instant};

use crate::{
    apply::{Applier, Pass, PeriodicOutputs, periodic, share_periodic},
    host::{Attr, Host, Kind, Watcher},
    platform,
    probe::Prober,
    remote::gzip_json,
    status::Board,
};

/// How often the directory is scanned if the platform cannot watch it, or after an error, so that a plan takes effect
/// within five seconds.
const SCAN: Duration = Duration::from_secs(4);
/// The same if the platform can watch it: some file systems report no changes.
const IDLE: Duration = Duration::from_secs(60);
/// The pause after a failure.
const COOLDOWN: Duration = Duration::from_secs(30);
const DEPTH: usize = 8;

/// Watches the directory.
pub struct Local {
    host: Arc<dyn Host>,
    directory: PathBuf,
    applier: Arc<Applier>,
    board: Arc<Board>,
    known: BTreeMap<PathBuf, Known>,
    /// Problems that were logged once.
    said: BTreeSet<String>,
}

/// The content of the directory.
#[derive(Default)]
struct Found {
    plans: Vec<PathBuf>,
    /// Some plans are symlinks, whose targets can change without an event.
    linked: bool,
    directories: BTreeSet<PathBuf>,
    complaints: BTreeSet<String>,
}

struct Known {
    prober: Prober,
    failed: Option<(String, Instant)>,
    broken: Option<String>,
    /// Its state, while it cannot be written.
    unwritten: Option<Position>,
    /// Its status, for people.
    how: String,
}

/// The content of a `.pos` file, which the original can read too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Position {
    #[serde(skip_serializing_if = "String::is_empty")]
    applied_checksum: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    output: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    probe_status: BTreeMap<String, ProbeStatus>,
    #[serde(skip_serializing_if = "String::is_empty")]
    periodic_output: String,
    /// Drover only: failures and the plan that they belong to, for the number of the next attempt.
    #[serde(skip_serializing_if = "String::is_empty")]
    failed_checksum: String,
    #[serde(skip_serializing_if = "is_zero")]
    failure_count: i64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // required by serde
fn is_zero(count: &i64) -> bool {
    *count == 0
}

impl Local {
    /// Creates it; [`Local::run`] starts it.
    pub fn new(host: Arc<dyn Host>, directory: &Path, applier: Arc<Applier>, board: Arc<Board>) -> Self {
        Self {
            host,
            directory: directory.to_owned(),
            applier,
            board,
            known: BTreeMap::new(),
            said: BTreeSet::new(),
        }
    }

    /// Runs forever.
    pub async fn run(mut self) {
        let mut watcher = self.host.watcher();
        loop {
            let found = self.find();
            match watcher.as_mut().map(|watcher| watcher.follow(&found.directories)) {
                // Files may have been created before the watch started.
                Some(Ok(true)) => continue,
                Some(Err(error)) => {
                    tracing::warn!(
                        "failed to watch the plans directory, scanning it periodically instead: {error}"
                    );
                    watcher = None;
                }
                _ => {}
            }
            let watched = watcher.is_some() && found.directories.contains(&self.directory) && !found.linked;
            let mut wake = if watched { IDLE } else { SCAN };
            for complaint in found.complaints.difference(&self.said) {
                tracing::warn!("{complaint}");
            }
            self.said = found.complaints;
            self.known.retain(|path, _| found.plans.contains(path));
            for path in found.plans {
                wake = wake.min(self.check(&path).await.unwrap_or(IDLE));
                self.show();
            }
            self.show();
            if self.board.is_unwritten() {
                wake = wake.min(SCAN);
            }
            self.wait(&mut watcher, wake).await;
        }
    }

    /// Waits for a change of a file or a probe, or until the time is up.
    async fn wait(&self, watcher: &mut Option<Box<dyn Watcher>>, wake: Duration) {
        let mut probes: Vec<_> = self.known.values().map(|known| Box::pin(known.prober.changed())).collect();
        let probed = std::future::poll_fn(|cx| {
            if probes.iter_mut().any(|probe| probe.as_mut().poll(cx).is_ready()) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        });
        let changed = async {
            match watcher {
                Some(watcher) => watcher.changed().await,
                None => std::future::pending().await,
            }
        };
        let broke = tokio::select! {
            changed = changed => changed.is_err(),
            () = probed => false,
            () = time::sleep(wake) => false,
        };
        if broke {
            *watcher = None;
        }
    }

    fn show(&self) {
        let how = |(path, known): (&PathBuf, &Known)| (path.display().to_string(), known.how.clone());
        self.board.show(|status| status.local = self.known.iter().map(how).collect());
    }

    fn find(&self) -> Found {
        let mut found = Found::default();
        if self.host.stat(&self.directory).is_err()
            && let Err(error) = self.host.make_dirs(&self.directory, 0o700)
        {
            found.complaints.insert(format!("failed to create {}: {error}", self.directory.display()));
            return found;
        }
        self.collect(&self.directory, DEPTH, &mut found);
        found.plans.sort();
        found
    }

    fn collect(&self, directory: &Path, depth: usize, found: &mut Found) {
        let names = match self.host.list(directory) {
            Ok(names) => names,
            Err(error) => {
                tracing::debug!("failed to list {}: {error}", directory.display());
                return;
            }
        };
        found.directories.insert(directory.to_owned());
        for name in names.iter().filter(|name| !name.starts_with('.')) {
            let path = directory.join(name);
            match self.host.stat(&path).map(|stat| stat.kind) {
                Ok(Kind::Directory) if depth > 0 => self.collect(&path, depth - 1, found),
                Ok(kind) if name.ends_with(".plan") && !names.contains(&format!("{name}.skip")) => match kind
                {
                    Kind::File => found.plans.push(path),
                    Kind::Symlink => {
                        // Also after a problem, because it may be fixed at the target of the link.
                        found.linked = true;
                        match self.link_problem(&path) {
                            None => found.plans.push(path),
                            Some(why) => {
                                let complaint = format!(
                                    "not applying {}: it is a symbolic link to {why}",
                                    path.display()
                                );
                                found.complaints.insert(complaint);
                            }
                        }
                    }
                    _ => {}
                },
                _ => {}
            }
        }
    }

    /// Why a symlink's target must not be applied. It is outside of the agent's directory, so others may be able to
    /// write it, and plans run as root.
    fn link_problem(&self, link: &Path) -> Option<String> {
        let stat = match self.host.stat_target(link) {
            Ok(stat) if stat.kind == Kind::File => stat,
            Ok(_) => return Some("something that is not a file".into()),
            Err(error) => return Some(format!("a missing file ({error})")),
        };
        let own = [0, self.host.identity().0];
        match stat {
            _ if !platform::CURRENT.checks_modes() => None,
            _ if !own.contains(&stat.uid) => Some(format!("a file of another user (uid {})", stat.uid)),
            _ if stat.mode & 0o022 != 0 => {
                Some(format!("a file that others can write (mode {:04o})", stat.mode))
            }
            _ => None,
        }
    }

    /// Processes one plan, and returns when to check it again unless something changes.
    async fn check(&mut self, path: &Path) -> Option<Duration> {
        let Ok(bytes) = self.host.read(path) else { return Some(SCAN) };
        let checksum = drover_plan::checksum(&bytes);
        let known = self.known.entry(path.to_owned()).or_insert_with(|| Known {
            prober: Prober::new(self.host.clone()),
            failed: None,
            broken: None,
            unwritten: None,
            how: "waiting for another plan".into(),
        });
        let plan: Plan = match drover_plan::from_slice(&bytes) {
            Ok(plan) => plan,
            Err(error) => {
                known.how = format!("invalid plan: {error}");
                if known.broken.as_ref() != Some(&checksum) {
                    tracing::error!("{}: invalid plan: {error}", path.display());
                    known.broken = Some(checksum);
                }
                return None;
            }
        };
        let place = path.with_extension("pos");
        let written =
            self.host.read(&place).ok().and_then(|bytes| serde_json::from_slice::<Position>(&bytes).ok());
        let before = written.unwrap_or_default();
        let mut position = known.unwritten.take().unwrap_or_else(|| before.clone());
        let mut results: PeriodicOutputs = unpack(&position.periodic_output);
        known.prober.follow(&plan.probes, &position.probe_status);

        let resting =
            known.failed.as_ref().is_some_and(|(failed, at)| *failed == checksum && at.elapsed() < COOLDOWN);
        let apply = position.applied_checksum != checksum && !resting;
        let now = self.host.now();
        let due = plan.periodic_instructions.iter().any(|instruction| {
            !instruction.name.is_empty()
                && periodic::next_run(instruction, results.get(&instruction.name), now) <= now
        });
        let plan = Arc::new(plan);
        if apply || due {
            // The original always uses 0. After a failure the number increases, because otherwise scripts that run once
            // per attempt number would treat the new attempt as already done.
            let failures =
                if position.failed_checksum == checksum { position.failure_count.max(0) } else { 0 };
            let attempt = apply.then_some(failures);
            let periodic = periodic::without_outputs(&results);
            let pass = Pass { plan: plan.clone(), checksum: checksum.clone(), attempt, periodic };
            let Ok(done) = self.applier.pass(&pass).await else {
                known.unwritten = Some(position).filter(|position| *position != before);
                return Some(SCAN);
            };
            results.extend(done.periodic);
            share_periodic(&mut results);
            position.periodic_output = pack(&results);
            if apply {
                let mut outputs: BTreeMap<String, String> = unpack(&position.output);
                outputs.extend(done.outputs.into_iter().map(|(name, bytes)| (name, STANDARD.encode(bytes))));
                position.output = pack(&outputs);
                match done.error {
                    None => {
                        tracing::info!("applied {}", path.display());
                        known.failed = None;
                        position.applied_checksum.clone_from(&checksum);
                        (position.failed_checksum, position.failure_count) = Default::default();
                    }
                    Some(error) => {
                        tracing::error!("failed to apply {}: {error}", path.display());
                        known.how = format!("failed, will be retried: {error}");
                        known.failed = Some((checksum.clone(), Instant::now()));
                        position.failed_checksum.clone_from(&checksum);
                        position.failure_count = failures.saturating_add(1);
                    }
                }
                known.prober.restart(false);
            }
        }
        if position.applied_checksum == checksum {
            known.how = "applied".into();
        }
        position.probe_status = known.prober.statuses();
        let mut wake = None;
        if position != before {
            let written = serde_json::to_vec(&position)
                .map_err(std::io::Error::other)
                .and_then(|bytes| self.host.replace(&place, &bytes, Attr { mode: 0o600, owner: None }));
            if let Err(error) = written {
                tracing::warn!("failed to write {}: {error}", place.display());
                // Keep it in memory; otherwise the plan would be applied again and again.
                known.unwritten = Some(position.clone());
                wake = Some(SCAN);
            }
        }
        if position.applied_checksum != checksum {
            let rest = known.failed.as_ref().map_or(SCAN, |(_, at)| COOLDOWN.saturating_sub(at.elapsed()));
            wake = Some(wake.unwrap_or(IDLE).min(rest));
        }
        let now = self.host.now();
        let periodic = plan.periodic_instructions.iter().filter(|instruction| !instruction.name.is_empty());
        let next = periodic.map(|one| periodic::next_run(one, results.get(&one.name), now)).min();
        let next = next.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
        [wake, next].into_iter().flatten().min()
    }
}

fn pack<T: Serialize>(map: &BTreeMap<String, T>) -> String {
    if map.is_empty() { String::new() } else { STANDARD.encode(gzip_json::encode(map)) }
}

fn unpack<T: for<'de> Deserialize<'de>>(text: &str) -> BTreeMap<String, T> {
    gzip_json::decode(STANDARD.decode(text).ok().as_ref())
}

#[cfg(test)]
mod tests;
