//! Plans in a directory: `*.plan` files, applied in the order of their paths, with state beside them in `*.pos`.

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

/// How often the directory is looked through where the machine tells no changes, or could not do what it should: a plan
/// takes effect within five seconds.
const SCAN: Duration = Duration::from_secs(4);
/// The same where it tells them: some file systems tell nothing.
const IDLE: Duration = Duration::from_secs(60);
/// Rest after a failure.
const COOLDOWN: Duration = Duration::from_secs(30);
const DEPTH: usize = 8;

/// Watches the directory.
pub struct Local {
    host: Arc<dyn Host>,
    directory: PathBuf,
    applier: Arc<Applier>,
    board: Arc<Board>,
    known: BTreeMap<PathBuf, Known>,
    /// What was complained about, once.
    said: BTreeSet<String>,
}

/// What lies in the directory.
#[derive(Default)]
struct Found {
    plans: Vec<PathBuf>,
    /// Some are symlinks, so that what they hold changes where nobody tells.
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
    /// How it is, for people.
    how: String,
}

/// Content of a `.pos` file, readable for the original too.
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
    /// Ours: failures of which plan, for the number of the next attempt.
    #[serde(skip_serializing_if = "String::is_empty")]
    failed_checksum: String,
    #[serde(skip_serializing_if = "is_zero")]
    failure_count: i64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
fn is_zero(count: &i64) -> bool {
    *count == 0
}

impl Local {
    /// Nothing happens before [`Local::run`].
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

    /// Runs for ever.
    pub async fn run(mut self) {
        let mut watcher = self.host.watcher();
        loop {
            let found = self.find();
            match watcher.as_mut().map(|watcher| watcher.follow(&found.directories)) {
                // Something may have come before the directory was followed.
                Some(Ok(true)) => continue,
                Some(Err(error)) => {
                    tracing::warn!(
                        "cannot wait for changes, so plans are looked for again and again: {error}"
                    );
                    watcher = None;
                }
                _ => {}
            }
            let told = watcher.is_some() && found.directories.contains(&self.directory) && !found.linked;
            let mut wake = if told { IDLE } else { SCAN };
            for complaint in found.complaints.difference(&self.said) {
                tracing::warn!("{complaint}");
            }
            self.said = found.complaints;
            self.known.retain(|path, _| found.plans.contains(path));
            for path in found.plans {
                wake = wake.min(self.look(&path).await.unwrap_or(IDLE));
                self.show();
            }
            self.show();
            if self.board.is_owed() {
                wake = wake.min(SCAN);
            }
            self.wait(&mut watcher, wake).await;
        }
    }

    /// Until a file or a probe changes, or the time is up.
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
            found.complaints.insert(format!("cannot create {}: {error}", self.directory.display()));
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
                tracing::debug!("cannot list {}: {error}", directory.display());
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
                        // Also after a complaint: it may be mended where the link leads.
                        found.linked = true;
                        match self.misled(&path) {
                            None => found.plans.push(path),
                            Some(why) => {
                                let complaint = format!(
                                    "{} is a symbolic link to {why}, so it is not applied",
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

    /// What is wrong with where a link leads: out of the agent's own directory, so perhaps to what anybody may write, and
    /// plans are run as root.
    fn misled(&self, link: &Path) -> Option<String> {
        let stat = match self.host.stat_target(link) {
            Ok(stat) if stat.kind == Kind::File => stat,
            Ok(_) => return Some("what is no file".into()),
            Err(error) => return Some(format!("nothing ({error})")),
        };
        let own = [0, self.host.identity().0];
        match stat {
            _ if !platform::CURRENT.checks_modes() => None,
            _ if !own.contains(&stat.uid) => Some(format!("a file of another user (uid {})", stat.uid)),
            _ if stat.mode & 0o022 != 0 => {
                Some(format!("a file that others may write (mode {:04o})", stat.mode))
            }
            _ => None,
        }
    }

    /// Does what is due for one plan, and tells when to look again unless something changes before.
    async fn look(&mut self, path: &Path) -> Option<Duration> {
        let Ok(bytes) = self.host.read(path) else { return Some(SCAN) };
        let checksum = drover_plan::checksum(&bytes);
        let known = self.known.entry(path.to_owned()).or_insert_with(|| Known {
            prober: Prober::new(self.host.clone()),
            failed: None,
            broken: None,
            unwritten: None,
            how: "waits for its turn".into(),
        });
        let plan: Plan = match drover_plan::from_slice(&bytes) {
            Ok(plan) => plan,
            Err(error) => {
                known.how = format!("not a valid plan: {error}");
                if known.broken.as_ref() != Some(&checksum) {
                    tracing::error!("{}: not a valid plan: {error}", path.display());
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
            // The original always says 0. After a failure the number goes on, because scripts that run once per attempt
            // would otherwise take the new attempt for one that they have done.
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
                        tracing::info!("{} is applied", path.display());
                        known.failed = None;
                        position.applied_checksum.clone_from(&checksum);
                        (position.failed_checksum, position.failure_count) = Default::default();
                    }
                    Some(error) => {
                        tracing::error!("{} failed: {error}", path.display());
                        known.how = format!("failed, is tried again after a rest: {error}");
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
                tracing::warn!("cannot write {}: {error}", place.display());
                // Kept, else the plan would be applied again and again.
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
