//! One pass over a plan: files, then one-time instructions, then whatever periodic instruction is due.

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

/// Lies beside the work directory, which each pass empties.
const RECORD: &str = "running";

/// Outputs by instruction name.
pub type Outputs = BTreeMap<String, Vec<u8>>;
/// Results of periodic instructions by name.
pub type PeriodicOutputs = BTreeMap<String, PeriodicInstructionOutput>;

/// What a pass shall do.
pub struct Pass {
    /// The plan.
    pub plan: Arc<Plan>,
    /// Its checksum.
    pub checksum: String,
    /// Write files and run one-time instructions, as this attempt; `None` runs periodic instructions only.
    pub attempt: Option<i64>,
    /// When periodic instructions ran last and how often they failed since; what they printed is not looked at.
    pub periodic: PeriodicOutputs,
}

/// What a pass did.
#[derive(Default)]
pub struct Done {
    /// Why the one-time part failed, if it did; in a second line what the instruction said last.
    pub error: Option<String>,
    /// Saved outputs of one-time instructions, also of one that failed.
    pub outputs: Outputs,
    /// Results of the periodic instructions that ran.
    pub periodic: PeriodicOutputs,
}

/// Shortens the longest outputs until all together are small.
pub fn share_periodic(periodic: &mut PeriodicOutputs) {
    let outputs = periodic.values_mut().flat_map(|output| [&mut output.stdout, &mut output.stderr]);
    output::share(outputs, output::KEPT_TOGETHER);
}

/// An installer is at work: no pass until then.
#[derive(Debug, PartialEq, Eq)]
pub struct Blocked {
    /// When to look again at the latest.
    pub until: Timestamp,
}

/// No pass starts, and no installer either, as long as this is held.
pub struct Hold<'a> {
    _active: Active<'a>,
    _turn: SemaphorePermit<'a>,
}

/// The mark that installers wait for. It goes with the pass, also with one that is broken off.
struct Active<'a>(&'a Applier);

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.interlock.end(&*self.0.host);
    }
}

/// Does passes, one at a time, whoever asks.
pub struct Applier {
    host: Arc<dyn Host>,
    work: PathBuf,
    /// Names the instruction that runs, for a successor.
    record: PathBuf,
    applied: PathBuf,
    images: Images,
    preserve: bool,
    timeout: Option<Duration>,
    interlock: Interlock,
    turn: Semaphore,
}

impl Applier {
    /// Also ends the instruction of a predecessor that was killed in a pass, and clears its mark.
    pub fn new(host: Arc<dyn Host>, config: &Config) -> Self {
        let record = config.var_dir().join(RECORD);
        match host.end_left(&record) {
            Ok(None) => {}
            Ok(Some(group)) => {
                tracing::warn!(
                    "ended an instruction that a killed agent left running (process group {group})"
                );
            }
            Err(error) => tracing::warn!("cannot look for what a killed agent left running: {error}"),
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

    /// Whether an installer asks for quiet.
    pub fn blocked(&self) -> Option<Blocked> {
        match self.interlock.blocked_until(&*self.host) {
            Ok(until) => until.map(|until| Blocked { until }),
            Err(error) => {
                tracing::warn!("cannot read the interlock: {error}");
                None
            }
        }
    }

    /// Keeps passes and installers away; `None` if one is under way.
    pub fn hold(&self) -> Option<Hold<'_>> {
        let turn = self.turn.try_acquire().ok()?;
        Some(Hold { _active: self.begin().ok()?, _turn: turn })
    }

    fn begin(&self) -> Result<Active<'_>, Blocked> {
        let active = Active(self);
        self.interlock.begin(&*self.host);
        // Looked for after the mark: an installer writes its file and then looks for the mark, so one of both sees the
        // other.
        match self.blocked() {
            None => Ok(active),
            Some(blocked) => Err(blocked),
        }
    }

    /// Does the pass.
    ///
    /// Errors before the first instruction are failures of the plan like any other. Dropping the future kills the
    /// instruction that runs.
    pub async fn pass(&self, pass: &Pass) -> Result<Done, Blocked> {
        // Never closed, so always granted.
        let _turn = self.turn.acquire().await;
        let _active = self.begin()?;
        // The copy waits for the disk, and nothing waits for the copy.
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
                        tracing::error!("[{label}]: saveOutput needs a name; its output is not reported");
                    } else {
                        done.outputs.insert(instruction.name.clone(), ran.combined);
                        output::share(done.outputs.values_mut(), output::KEPT_TOGETHER);
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

    /// Keeps a copy of a plan that is about to be applied.
    async fn record(&self, pass: &Pass) {
        if pass.attempt.is_none() {
            return;
        }
        let (host, plan, checksum) = (self.host.clone(), pass.plan.clone(), pass.checksum.clone());
        let applied = self.applied.clone();
        let recorded = offload(&*self.host, move || history::record(&*host, &applied, &plan, &checksum));
        if let Some(Err(error)) = recorded.await {
            tracing::warn!("cannot keep a copy of the plan in {}: {error}", self.applied.display());
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
                    Err(format!("cannot empty {}: {error}", work.display()))
                }
                _ => Ok(()),
            }
        });
        prepared.await.unwrap_or_else(|| Err("writing the plan's files broke off".into()))
    }
}

#[cfg(test)]
mod tests {
    use std::{io, path::Path};

    use super::*;
    use crate::host::{Attr, BoxFuture, Exec, Exit, MemoryHost, Program, Sink, Source};

    const ACTIVE: &str = "/i/applyinator-active";

    /// `hang` never ends; everything else prints much at once.
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
    async fn a_pass_that_is_broken_off_takes_its_mark_along() {
        let (host, applier) = applier();
        let hanging = pass(r#"{"instructions": [{"command": "hang"}]}"#, Some(1));
        let broken_off = tokio::time::timeout(Duration::from_secs(1), applier.pass(&hanging)).await;
        assert!(broken_off.is_err());
        assert!(host.stat(Path::new(ACTIVE)).is_err(), "no installer waits for nobody");
        let hold = applier.hold().unwrap();
        assert!(host.stat(Path::new(ACTIVE)).is_ok());
        drop(hold);
        assert!(host.stat(Path::new(ACTIVE)).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn the_mark_is_there_before_the_installers_is_looked_for() {
        let (host, applier) = applier();
        let now = unix_date::format(host.now());
        let pending = Path::new("/i/restart-pending");
        host.replace(pending, now.as_bytes(), Attr { mode: 0o600, owner: None }).unwrap();
        let blocked = || async { applier.pass(&pass("{}", Some(1))).await.is_err() };
        let before = host.writes();
        assert!(blocked().await && applier.hold().is_none());
        assert!(host.stat(Path::new(ACTIVE)).is_err(), "who is blocked blocks nobody");
        // Power fails when it would go: then it was there, while the other file was looked for.
        host.crash_after_writes((host.writes() - before) / 2 - 1);
        assert!(blocked().await);
        assert!(host.stat(Path::new(ACTIVE)).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn periodic_outputs_are_small_together() {
        let (_, applier) = applier();
        let many: Vec<_> = (0..20)
            .map(|index| serde_json::json!({"name": format!("p{index}"), "command": "x", "saveStderrOutput": true}))
            .collect();
        let plan = serde_json::json!({"periodicInstructions": many}).to_string();
        let done = applier.pass(&pass(&plan, None)).await.unwrap();
        assert_eq!(done.periodic.len(), 20);
        let kept: usize = done.periodic.values().map(|run| run.stdout.len() + run.stderr.len()).sum();
        let told = 40 * 64;
        assert!((output::KEPT_TOGETHER / 2..output::KEPT_TOGETHER + told).contains(&kept), "{kept}");
    }
}
