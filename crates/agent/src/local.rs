//! Plans in a directory: `*.plan` files, applied in the order of their paths, with state beside them in `*.pos`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use drover_plan::{Plan, ProbeStatus};
use serde::{Deserialize, Serialize};
use tokio::time::{self, Instant};

use crate::{
    apply::{Applier, Pass, PeriodicOutputs, periodic},
    host::{Attr, Host, Kind},
    probe::Prober,
    remote::gzip_json,
    status::Board,
};

/// How often the directory is looked through: a plan takes effect within five seconds.
const SCAN: Duration = Duration::from_secs(4);
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
}

struct Known {
    prober: Prober,
    failed: Option<(String, Instant)>,
    broken: Option<String>,
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
}

impl Local {
    /// Nothing happens before [`Local::run`].
    pub fn new(host: Arc<dyn Host>, directory: &Path, applier: Arc<Applier>, board: Arc<Board>) -> Self {
        Self { host, directory: directory.to_owned(), applier, board, known: BTreeMap::new() }
    }

    /// Runs for ever.
    pub async fn run(mut self) {
        if let Err(error) = self.host.make_dirs(&self.directory, 0o700) {
            tracing::error!("cannot create {}: {error}", self.directory.display());
        }
        loop {
            let plans = self.plans();
            self.known.retain(|path, _| plans.contains(path));
            for path in plans {
                self.look(&path).await;
                self.show();
            }
            self.show();
            time::sleep(SCAN).await;
        }
    }

    fn show(&self) {
        let how = |(path, known): (&PathBuf, &Known)| (path.display().to_string(), known.how.clone());
        self.board.show(|status| status.local = self.known.iter().map(how).collect());
    }

    fn plans(&self) -> Vec<PathBuf> {
        let mut plans = Vec::new();
        self.collect(&self.directory, DEPTH, &mut plans);
        plans.sort();
        plans
    }

    fn collect(&self, directory: &Path, depth: usize, plans: &mut Vec<PathBuf>) {
        let names = match self.host.list(directory) {
            Ok(names) => names,
            Err(error) => {
                tracing::debug!("cannot list {}: {error}", directory.display());
                return;
            }
        };
        for name in names.iter().filter(|name| !name.starts_with('.')) {
            let path = directory.join(name);
            match self.host.stat(&path).map(|stat| stat.kind) {
                Ok(Kind::Directory) if depth > 0 => self.collect(&path, depth - 1, plans),
                Ok(Kind::File) if name.ends_with(".plan") && !names.contains(&format!("{name}.skip")) => {
                    plans.push(path);
                }
                _ => {}
            }
        }
    }

    async fn look(&mut self, path: &Path) {
        let Ok(bytes) = self.host.read(path) else { return };
        let checksum = drover_plan::checksum(&bytes);
        let known = self.known.entry(path.to_owned()).or_insert_with(|| Known {
            prober: Prober::new(self.host.clone()),
            failed: None,
            broken: None,
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
                return;
            }
        };
        let place = path.with_extension("pos");
        let before: Position = self
            .host
            .read(&place)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        let mut position = before.clone();
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
        if apply || due {
            // Local plans have no failure count; the original always says 0.
            let attempt = apply.then_some(0);
            let pass =
                Pass { plan: Arc::new(plan), checksum: checksum.clone(), attempt, periodic: results.clone() };
            let Ok(done) = self.applier.pass(&pass).await else { return };
            results.extend(done.periodic);
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
                    }
                    Some(error) => {
                        tracing::error!("{} failed: {error}", path.display());
                        known.how = format!("failed, is tried again after a rest: {error}");
                        known.failed = Some((checksum.clone(), Instant::now()));
                    }
                }
                known.prober.restart(false);
            }
        }
        if position.applied_checksum == checksum {
            known.how = "applied".into();
        }
        position.probe_status = known.prober.statuses();
        if position != before {
            let written = serde_json::to_vec(&position)
                .map_err(std::io::Error::other)
                .and_then(|bytes| self.host.replace(&place, &bytes, Attr { mode: 0o600, owner: None }));
            if let Err(error) = written {
                tracing::warn!("cannot write {}: {error}", place.display());
            }
        }
    }
}

fn pack<T: Serialize>(map: &BTreeMap<String, T>) -> String {
    if map.is_empty() { String::new() } else { STANDARD.encode(gzip_json::encode(map)) }
}

fn unpack<T: for<'de> Deserialize<'de>>(text: &str) -> BTreeMap<String, T> {
    gzip_json::decode(STANDARD.decode(text).ok().as_ref())
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::atomic::{AtomicI32, AtomicUsize, Ordering},
    };

    use super::*;
    use crate::{
        config::Config,
        host::{BoxFuture, Exec, Exit, MemoryHost, Program, Sink, Source},
    };

    #[derive(Clone, Default)]
    struct Script {
        exit: Arc<AtomicI32>,
        runs: Arc<AtomicUsize>,
    }

    impl Program for Script {
        fn run<'a>(
            &'a self,
            _: &'a MemoryHost,
            exec: &'a Exec,
            sink: &'a mut dyn Sink,
        ) -> BoxFuture<'a, io::Result<Exit>> {
            assert!(exec.env.contains(&("CATTLE_AGENT_ATTEMPT_NUMBER".into(), "0".into())));
            self.runs.fetch_add(1, Ordering::SeqCst);
            sink.write(Source::Stdout, b"out");
            let code = self.exit.load(Ordering::SeqCst);
            Box::pin(async move { Ok(Exit::Code(code)) })
        }
    }

    async fn until(what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while !condition() {
            assert!(Instant::now() < deadline, "{what}");
            time::sleep(Duration::from_millis(50)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn agent_check_37_skipped_plans_wait_and_failed_ones_are_retried() {
        let script = Script::default();
        let host = Arc::new(MemoryHost::new("2026-01-01T00:00:00Z".parse().unwrap(), 1, script.clone()));
        let put = |path: &str, text: &str| {
            host.replace(Path::new(path), text.as_bytes(), Attr { mode: 0o600, owner: None }).unwrap();
        };
        let config = Config { work_directory: "/w/work".into(), ..Config::default() };
        let applier = Arc::new(Applier::new(host.clone(), &config));
        let board = Arc::new(Board::new(host.clone(), Path::new("/w")));
        let task = tokio::spawn(Local::new(host.clone(), Path::new("/plans"), applier, board).run());
        until("the directory is created", || host.stat(Path::new("/plans")).is_ok()).await;
        put("/plans/a.plan.skip", "");
        put("/plans/.b.plan", r#"{"instructions":[{"command":"x"}]}"#);
        put("/plans/a.plan", r#"{"instructions":[{"name":"i","command":"x","saveOutput":true}]}"#);
        time::sleep(Duration::from_secs(20)).await;
        assert_eq!(script.runs.load(Ordering::SeqCst), 0);

        script.exit.store(1, Ordering::SeqCst);
        host.remove_file(Path::new("/plans/a.plan.skip")).unwrap();
        let removed = Instant::now();
        until("it is applied", || script.runs.load(Ordering::SeqCst) == 1).await;
        assert!(removed.elapsed() < Duration::from_secs(5));
        script.exit.store(0, Ordering::SeqCst);
        until("it is retried", || script.runs.load(Ordering::SeqCst) == 2).await;
        assert!(removed.elapsed() >= COOLDOWN);
        until("its state is kept", || {
            host.read(Path::new("/plans/a.pos"))
                .is_ok_and(|bytes| bytes.windows(15).any(|w| w == b"appliedChecksum"))
        })
        .await;
        time::sleep(Duration::from_secs(60)).await;
        assert_eq!(script.runs.load(Ordering::SeqCst), 2, "applied once");
        assert_eq!(host.stat(Path::new("/plans/a.pos")).unwrap().mode, 0o600);
        task.abort();
    }
}
