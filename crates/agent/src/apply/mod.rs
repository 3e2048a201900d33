//! One pass over a plan: files, then one-time instructions, then all periodic instructions that are due.

pub mod files;
pub(crate) mod history;
mod instruction;
mod interlock;
mod output;
pub mod periodic;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use drover_plan::{PeriodicInstructionOutput, Plan};
use jiff::Timestamp;
use tokio::sync::{Semaphore, SemaphorePermit};

pub use output::truncate;

use crate::{
    config::Config,
    host::{Host, offload},
    image::Images,
    redact::Redactor,
    unix_date,
};
use instruction::Instruction;
use interlock::Interlock;

/// Stored next to the work directory, which each pass empties.
const RECORD: &str = "running";

/// Outputs by instruction name.
pub type Outputs = BTreeMap<String, Vec<u8>>;
/// Results of periodic instructions by name.
pub type PeriodicOutputs = BTreeMap<String, PeriodicInstructionOutput>;

/// The input of a pass.
pub struct Pass {
    /// The plan.
    pub plan: Arc<Plan>,
    /// Its checksum.
    pub checksum: String,
    /// The attempt number for files and one-time instructions; `None` runs only periodic instructions.
    pub attempt: Option<i64>,
    /// The last runs and failures of periodic instructions; their output is not used.
    pub periodic: PeriodicOutputs,
}

/// The result of a pass.
#[derive(Default)]
pub struct Done {
    /// The error of the one-time part, if it failed; the second line is the last line of the instruction's output.
    pub error: Option<String>,
    /// Saved outputs of one-time instructions, including a failed one.
    pub outputs: Outputs,
    /// Results of the periodic instructions that ran.
    pub periodic: PeriodicOutputs,
}

/// Shortens the longest outputs until their total is small enough.
pub fn share_periodic(periodic: &mut PeriodicOutputs) {
    let outputs = periodic.values_mut().flat_map(|output| [&mut output.stdout, &mut output.stderr]);
    output::share(outputs, output::KEPT_TOTAL);
}

/// An installer is running: no pass may start until then.
#[derive(Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The latest time to check again.
    pub until: Timestamp,
}

/// While this value exists, neither a pass nor an installer starts.
pub struct Hold<'a> {
    _active: Active<'a>,
    _turn: SemaphorePermit<'a>,
}

/// The marker that installers wait for. It is removed when the pass ends or is aborted.
struct Active<'a>(&'a Applier);

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.interlock.end(&*self.0.host);
    }
}

/// Runs passes, one at a time.
pub struct Applier {
    host: Arc<dyn Host>,
    work: PathBuf,
    /// Records the running instruction, so that the next process can end it.
    record: PathBuf,
    applied: PathBuf,
    images: Images,
    preserve: bool,
    timeout: Option<Duration>,
    interlock: Interlock,
    turn: Semaphore,
}

impl Applier {
    /// Also ends the instruction of an earlier process that was killed during a pass, and removes its marker.
    pub fn new(host: Arc<dyn Host>, config: &Config) -> Self {
        let record = config.var_dir().join(RECORD);
        match host.end_orphans(&record) {
            Ok(None) => {}
            Ok(Some(group)) => {
                tracing::warn!("ended process group {group}: an instruction of an agent that was killed");
            }
            Err(error) => {
                tracing::warn!("failed to check for instructions of an agent that was killed: {error}")
            }
        }
        let interlock = Interlock::new(&config.interlock_directory);
        interlock.end(&*host);
        Self {
            work: config.work_directory.clone(),
            record,
            applied: config.applied_plan_directory.clone(),
            images: Images::new(config),
            preserve: config.preserve_work_directory,
            timeout: config.instruction_timeout(),
            interlock,
            turn: Semaphore::new(1),
            host,
        }
    }

    /// Whether an installer blocks passes.
    pub fn blocked(&self) -> Option<Blocked> {
        match self.interlock.blocked_until(&*self.host) {
            Ok(until) => until.map(|until| Blocked { until }),
            Err(error) => {
                tracing::warn!("failed to read the interlock: {error}");
                None
            }
        }
    }

    /// Blocks passes and installers; `None` if one is running.
    pub fn hold(&self) -> Option<Hold<'_>> {
        let turn = self.turn.try_acquire().ok()?;
        Some(Hold { _active: self.begin().ok()?, _turn: turn })
    }

    fn begin(&self) -> Result<Active<'_>, Blocked> {
        let active = Active(self);
        self.interlock.begin(&*self.host);
        // Check after creating the marker: an installer creates its file and then checks for the marker, so at least
        // one of the two sees the other.
        match self.blocked() {
            None => Ok(active),
            Some(blocked) => Err(blocked),
        }
    }

    /// Runs a pass.
    ///
    /// Errors before the first instruction are failures of the plan. Dropping the future kills the running instruction.
    pub async fn pass(&self, pass: &Pass) -> Result<Done, Blocked> {
        // The semaphore is never closed, so this cannot fail.
        let _turn = self.turn.acquire().await;
        let _active = self.begin()?;
        // Written in parallel, because nothing depends on the copy.
        let ((), done) = tokio::join!(self.record(pass), self.run(pass));
        Ok(done)
    }

    async fn run(&self, pass: &Pass) -> Done {
        let started = self.host.now();
        let folder = self.work.join(unix_date::compact(started));
        let mut done = Done::default();
        if let Err(error) = self.prepare(pass).await {
            done.error = Some(error);
        }
        let secrets = Redactor::of_files(&pass.plan.files);
        if let (Some(attempt), None) = (pass.attempt, &done.error) {
            for (index, instruction) in pass.plan.instructions.iter().enumerate() {
                let one = Instruction::one_time(instruction, &secrets);
                let label = format!("{}_{index}", pass.checksum);
                let ran = self.instruction(&one, &label, folder.join(&label), attempt).await;
                if instruction.save_output {
                    if instruction.name.is_empty() {
                        tracing::error!("[{label}]: saveOutput requires a name; the output is not reported");
                    } else {
                        done.outputs.insert(instruction.name.clone(), ran.combined);
                        output::share(done.outputs.values_mut(), output::KEPT_TOTAL);
                    }
                }
                if let Some(error) = ran.error {
                    let (number, total) = (index + 1, pass.plan.instructions.len());
                    let said = ran.last_line.map(|line| format!("\n{line}")).unwrap_or_default();
                    done.error =
                        Some(format!("instruction {number} of {total}{}: {error}{said}", one.quoted_name()));
                    break;
                }
            }
        }
        for (index, instruction) in pass.plan.periodic_instructions.iter().enumerate() {
            if instruction.name.is_empty() {
                continue;
            }
            let last = pass.periodic.get(&instruction.name);
            let now = self.host.now();
            if pass.attempt.is_none() && periodic::next_run(instruction, last, now) > now {
                continue;
            }
            let one = Instruction::periodic(instruction, &secrets);
            let label = format!("{}_p{index}", pass.checksum);
            let attempt = last.map_or(0, |last| last.failures).saturating_add(1);
            let ran = self.instruction(&one, &label, folder.join(&label), attempt).await;
            if let Some(error) = &ran.error {
                tracing::warn!("[{label}]: periodic instruction{}: {error}", one.quoted_name());
            }
            let stderr = if instruction.save_stderr_output { ran.stderr } else { Vec::new() };
            let output =
                periodic::record(last, &instruction.name, ran.exit_code, ran.stdout, stderr, self.host.now());
            done.periodic.insert(instruction.name.clone(), output);
            share_periodic(&mut done.periodic);
        }
        done
    }

    /// Saves a copy of a plan that is about to be applied.
    async fn record(&self, pass: &Pass) {
        if pass.attempt.is_none() {
            return;
        }
        let (host, plan, checksum) = (self.host.clone(), pass.plan.clone(), pass.checksum.clone());
        let applied = self.applied.clone();
        let recorded = offload(&*self.host, move || history::record(&*host, &applied, &plan, &checksum));
        if let Some(Err(error)) = recorded.await {
            tracing::warn!("failed to save a copy of the plan in {}: {error}", self.applied.display());
        }
    }

    /// Everything before the first instruction.
    async fn prepare(&self, pass: &Pass) -> Result<(), String> {
        let (host, plan, applying) = (self.host.clone(), pass.plan.clone(), pass.attempt.is_some());
        let work = Some(self.work.clone()).filter(|_| !self.preserve);
        let prepared = offload(&*self.host, move || {
            if applying {
                files::apply(&*host, &plan.files).map_err(|error| error.to_string())?;
            }
            let Some(work) = work else { return Ok(()) };
            match host.remove_tree(&work) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(format!("failed to empty {}: {error}", work.display()))
                }
                _ => Ok(()),
            }
        });
        prepared.await.unwrap_or_else(|| Err("writing the plan's files was interrupted".into()))
    }
}

#[cfg(test)]
mod tests {
    use std::{io, path::Path};

    use super::*;
    use crate::host::{Attr, BoxFuture, Exec, Exit, MemoryHost, Program, Sink, Source};

    const ACTIVE: &str = "/i/applyinator-active";

    /// `hang` never ends; all other commands print a lot at once.
    struct Shell;

    impl Program for Shell {
        fn run<'a>(
            &'a self,
            _: &'a MemoryHost,
            exec: &'a Exec,
            sink: &'a mut dyn Sink,
        ) -> BoxFuture<'a, io::Result<Exit>> {
            let hangs = exec.program == "hang";
            for source in [Source::Stdout, Source::Stderr] {
                sink.write(source, &[b'x'; 100_000]);
            }
            Box::pin(async move {
                if hangs {
                    std::future::pending::<()>().await;
                }
                Ok(Exit::Code(0))
            })
        }
    }

    fn applier() -> (Arc<MemoryHost>, Applier) {
        let host = Arc::new(MemoryHost::new("2026-01-01T00:00:00Z".parse().unwrap(), 1, Shell));
        let config = Config {
            work_directory: "/v/work".into(),
            interlock_directory: "/i".into(),
            ..Config::default()
        };
        host.make_dirs(Path::new("/i"), 0o700).unwrap();
        let applier = Applier::new(host.clone(), &config);
        (host, applier)
    }

    fn pass(plan: &str, attempt: Option<i64>) -> Pass {
        let plan = Arc::new(drover_plan::from_slice(plan.as_bytes()).unwrap());
        Pass { plan, checksum: "c".into(), attempt, periodic: PeriodicOutputs::new() }
    }

    #[tokio::test(start_paused = true)]
    async fn an_aborted_pass_removes_its_marker() {
        let (host, applier) = applier();
        let hanging = pass(r#"{"instructions": [{"command": "hang"}]}"#, Some(1));
        let broken_off = tokio::time::timeout(Duration::from_secs(1), applier.pass(&hanging)).await;
        assert!(broken_off.is_err());
        assert!(host.stat(Path::new(ACTIVE)).is_err(), "the installer does not wait");
        let hold = applier.hold().unwrap();
        assert!(host.stat(Path::new(ACTIVE)).is_ok());
        drop(hold);
        assert!(host.stat(Path::new(ACTIVE)).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn the_marker_is_created_before_the_installers_file_is_checked() {
        let (host, applier) = applier();
        let now = unix_date::format(host.now());
        let pending = Path::new("/i/restart-pending");
        host.replace(pending, now.as_bytes(), Attr { mode: 0o600, owner: None }).unwrap();
        let blocked = || async { applier.pass(&pass("{}", Some(1))).await.is_err() };
        let before = host.writes();
        assert!(blocked().await && applier.hold().is_none());
        assert!(host.stat(Path::new(ACTIVE)).is_err(), "a blocked pass leaves no marker");
        // Fail the power when the marker would be removed: it existed while the other file was checked.
        host.crash_after_writes((host.writes() - before) / 2 - 1);
        assert!(blocked().await);
        assert!(host.stat(Path::new(ACTIVE)).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn the_total_of_periodic_outputs_is_limited() {
        let (_, applier) = applier();
        let many: Vec<_> = (0..20)
            .map(|index| serde_json::json!({"name": format!("p{index}"), "command": "x", "saveStderrOutput": true}))
            .collect();
        let plan = serde_json::json!({"periodicInstructions": many}).to_string();
        let done = applier.pass(&pass(&plan, None)).await.unwrap();
        assert_eq!(done.periodic.len(), 20);
        let kept: usize = done.periodic.values().map(|run| run.stdout.len() + run.stderr.len()).sum();
        let markers = 40 * 64;
        assert!((output::KEPT_TOTAL / 2..output::KEPT_TOTAL + markers).contains(&kept), "{kept}");
    }
}
