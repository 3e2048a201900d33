//! Runs one instruction.

use std::path::{Path, PathBuf};

use drover_plan::{OneTimeInstruction, PeriodicInstruction};

use super::{Applier, output::Capture};
use crate::{
    host::{Attr, Exec, Exit, offload},
    platform,
    redact::Redactor,
};

/// The common part of one-time and periodic instructions.
pub(super) struct Instruction<'a> {
    name: &'a str,
    image: &'a str,
    env: &'a [String],
    args: &'a [String],
    command: &'a str,
    script: &'a str,
    /// Capture standard output and standard error separately.
    separate: bool,
    /// Secrets of the plan that must not be logged.
    secrets: &'a Redactor,
}

impl<'a> Instruction<'a> {
    pub(super) fn one_time(from: &'a OneTimeInstruction, secrets: &'a Redactor) -> Self {
        let OneTimeInstruction { name, image, env, args, command, script, save_output: _ } = from;
        Self { name, image, env, args, command, script, separate: false, secrets }
    }

    pub(super) fn periodic(from: &'a PeriodicInstruction, secrets: &'a Redactor) -> Self {
        let PeriodicInstruction { name, image, env, args, command, script, .. } = from;
        Self { name, image, env, args, command, script, separate: true, secrets }
    }

    pub(super) fn quoted_name(&self) -> String {
        if self.name.is_empty() { String::new() } else { format!(" ({})", self.name) }
    }
}

#[derive(Default)]
pub(super) struct Ran {
    pub(super) error: Option<String>,
    pub(super) exit_code: i64,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) combined: Vec<u8>,
    /// The last line of output if it failed, without secrets.
    pub(super) last_line: Option<String>,
}

impl Applier {
    pub(super) async fn instruction(
        &self,
        instruction: &Instruction<'_>,
        label: &str,
        dir: PathBuf,
        attempt: i64,
    ) -> Ran {
        match self.execute(instruction, label, dir, attempt).await {
            Ok(ran) => ran,
            // The program was not started, so the message is the only output.
            Err(error) => Ran {
                combined: format!("{error}\n").into_bytes(),
                stderr: format!("{error}\n").into_bytes(),
                error: Some(error),
                exit_code: -1,
                ..Ran::default()
            },
        }
    }

    async fn execute(
        &self,
        instruction: &Instruction<'_>,
        label: &str,
        dir: PathBuf,
        attempt: i64,
    ) -> Result<Ran, String> {
        self.stage(instruction, &dir).await?;
        let mut redactor = instruction.secrets.clone();
        redactor.env(instruction.env.iter().map(String::as_str));
        redactor.args(instruction.args.iter().map(String::as_str));
        redactor.text(instruction.script);
        let exec = self.command(instruction, &dir, attempt)?;
        tracing::info!("[{label}]: running {}{}, attempt {attempt}", exec.program, instruction.quoted_name());
        let capture = if instruction.separate { Capture::separate } else { Capture::combined };
        let mut capture = capture(label, &redactor);
        let exit = self.host.run(&exec, &mut capture).await;
        capture.finish();
        let (exit_code, error) = match exit {
            Ok(Exit::Code(0)) => (0, None),
            Ok(Exit::Code(code)) => (i64::from(code), Some(format!("exit code {code}"))),
            Ok(Exit::TimedOut) => {
                let limit = exec.timeout.unwrap_or_default().as_secs();
                (-1, Some(format!("killed after {limit} seconds, the time limit of an instruction")))
            }
            Err(error) => (-1, Some(format!("failed to start {}: {error}", exec.program))),
        };
        let last_line = error.is_some().then(|| capture.last_line()).flatten();
        Ok(Ran {
            error,
            exit_code,
            last_line,
            stdout: capture.stdout.into_bytes(),
            stderr: capture.stderr.into_bytes(),
            combined: capture.combined.into_bytes(),
        })
    }

    /// Creates the working directory of the instruction, with the content of its image and its script.
    async fn stage(&self, instruction: &Instruction<'_>, dir: &Path) -> Result<(), String> {
        let (host, target) = (self.host.clone(), dir.to_owned());
        let made = offload(&*self.host, move || {
            if host.stat(&target).is_ok() {
                // Happens only with preserveWorkDirectory, when two passes start within one second.
                host.remove_tree(&target)
                    .map_err(|error| format!("failed to empty {}: {error}", target.display()))?;
            }
            host.make_dirs(&target, 0o755)
                .map_err(|error| format!("failed to create {}: {error}", target.display()))
        });
        made.await.unwrap_or_else(|| Err("staging was interrupted".into()))?;
        if !instruction.image.is_empty() {
            let staging = self.images.stage(&self.host, instruction.image, dir);
            let staged = match self.timeout {
                None => staging.await,
                Some(limit) => tokio::time::timeout(limit, staging).await.map_err(|_| {
                    let seconds = limit.as_secs();
                    format!("image {} timed out: not staged within {seconds} seconds", instruction.image)
                })?,
            };
            staged.map_err(|error| error.to_string())?;
        }
        if instruction.script.is_empty() {
            return Ok(());
        }
        let (host, path, script) =
            (self.host.clone(), dir.join(platform::CURRENT.script_name()), instruction.script.to_owned());
        let written = offload(&*self.host, move || {
            host.replace(&path, script.as_bytes(), Attr { mode: 0o700, owner: None })
                .map_err(|error| format!("failed to write {}: {error}", path.display()))
        });
        written.await.unwrap_or_else(|| Err("staging was interrupted".into()))
    }

    fn command(&self, instruction: &Instruction<'_>, dir: &Path, attempt: i64) -> Result<Exec, String> {
        let dir_text = dir.to_str().ok_or("the path of the work directory is not valid UTF-8")?.to_owned();
        let mut env = self.host.env();
        let path = platform::CURRENT.search_path(&env, &dir_text);
        for entry in instruction.env {
            let (name, value) = entry.split_once('=').unwrap_or((entry, ""));
            if name.contains('\0') || value.contains('\0') {
                return Err("an entry of env contains a NUL byte".to_owned());
            }
            if name.is_empty() {
                // The original passes it on, but no program can read it.
                continue;
            }
            env.push((name.to_owned(), value.to_owned()));
        }
        // Added last, so that a plan cannot override these variables.
        env.push(("CATTLE_AGENT_EXECUTION_PWD".into(), dir_text.clone()));
        env.push(("CATTLE_AGENT_ATTEMPT_NUMBER".into(), attempt.to_string()));
        env.push(("PATH".into(), path));
        let mut args = instruction.args.to_vec();
        let program = if instruction.command.is_empty() {
            let (program, leading) = match instruction.script {
                "" => platform::CURRENT.entry(&dir_text),
                script => {
                    let path = format!("{dir_text}/{}", platform::CURRENT.script_name());
                    platform::CURRENT.script(path, script)
                }
            };
            args.splice(0..0, leading);
            program
        } else {
            instruction.command.to_owned()
        };
        Ok(Exec {
            program,
            args,
            env,
            dir: dir.to_owned(),
            combined: !instruction.separate,
            timeout: self.timeout,
            record: Some(self.record.clone()),
        })
    }
}
