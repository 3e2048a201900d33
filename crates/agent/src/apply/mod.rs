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
    /// Earlier results of periodic instructions.
    pub periodic: PeriodicOutputs,
}

/// What a pass did.
#[derive(Default)]
pub struct Done {
    /// Why the one-time part failed, if it did.
    pub error: Option<String>,
    /// Saved outputs of one-time instructions, also of one that failed.
    pub outputs: Outputs,
    /// Results of the periodic instructions that ran.
    pub periodic: PeriodicOutputs,
}

/// An installer is at work: no pass until then.
#[derive(Debug, PartialEq, Eq)]
pub struct Blocked {
    /// When to look again at the latest.
    pub until: Timestamp,
}

/// No pass starts, and no installer either, as long as this is held.
pub struct Hold<'a> {
    applier: &'a Applier,
    _turn: SemaphorePermit<'a>,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.applier.interlock.end(&*self.applier.host);
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
        if self.blocked().is_some() {
            return None;
        }
        self.interlock.begin(&*self.host);
        Some(Hold { applier: self, _turn: turn })
    }

    /// Does the pass.
    ///
    /// Errors before the first instruction are failures of the plan like any other. Dropping the future kills the
    /// instruction that runs.
    pub async fn pass(&self, pass: &Pass) -> Result<Done, Blocked> {
        // Never closed, so always granted.
        let _turn = self.turn.acquire().await;
        if let Some(blocked) = self.blocked() {
            return Err(blocked);
        }
        self.interlock.begin(&*self.host);
        // The copy waits for the disk, and nothing waits for the copy.
        let ((), done) = tokio::join!(self.record(pass), self.run(pass));
        self.interlock.end(&*self.host);
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
                        output::share(&mut done.outputs, output::KEPT_TOGETHER);
                    }
                }
                if let Some(error) = ran.error {
                    let total = pass.plan.instructions.len();
                    done.error =
                        Some(format!("instruction {} of {total}{}: {error}", index + 1, one.quoted_name()));
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
