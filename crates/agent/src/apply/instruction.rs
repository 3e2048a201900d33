//! Running one instruction.

use std::path::{Path, PathBuf};

use drover_plan::{OneTimeInstruction, PeriodicInstruction};

use super::{Applier, output::Capture};
use crate::{
    host::{Attr, Exec, Exit, offload},
    platform,
    redact::Redactor,
};

/// What one-time and periodic instructions have in common.
pub(super) struct Instruction<'a> {
    name: &'a str,
    image: &'a str,
    env: &'a [String],
    args: &'a [String],
    command: &'a str,
    script: &'a str,
    /// Standard output and error are wanted each for itself.
    apart: bool,
    /// What the plan around it must not show.
    secrets: &'a Redactor,
}

impl<'a> Instruction<'a> {
    pub(super) fn one_time(from: &'a OneTimeInstruction, secrets: &'a Redactor) -> Self {
        let OneTimeInstruction { name, image, env, args, command, script, save_output: _ } = from;
        Self { name, image, env, args, command, script, apart: false, secrets }
    }

    pub(super) fn periodic(from: &'a PeriodicInstruction, secrets: &'a Redactor) -> Self {
        let PeriodicInstruction { name, image, env, args, command, script, .. } = from;
        Self { name, image, env, args, command, script, apart: true, secrets }
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
    /// What one that failed said last, without secrets.
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
            // Not even started: the message is all the output there is.
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
        let capture = if instruction.apart { Capture::apart } else { Capture::together };
        let mut capture = capture(label, &redactor);
        let exit = self.host.run(&exec, &mut capture).await;
        capture.finish();
        let (exit_code, error) = match exit {
            Ok(Exit::Code(0)) => (0, None),
            Ok(Exit::Code(code)) => (i64::from(code), Some(format!("exited with {code}"))),
            Ok(Exit::TimedOut) => {
                let limit = exec.timeout.unwrap_or_default().as_secs();
                (-1, Some(format!("was killed after {limit} seconds, the time limit of an instruction")))
            }
            Err(error) => (-1, Some(format!("cannot start {}: {error}", exec.program))),
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

    /// The folder in which the instruction runs: empty, or the image's content; plus its script.
    async fn stage(&self, instruction: &Instruction<'_>, dir: &Path) -> Result<(), String> {
        let (host, target) = (self.host.clone(), dir.to_owned());
        let made = offload(&*self.host, move || {
            if host.stat(&target).is_ok() {
                // Only with preserveWorkDirectory, when two passes share a second.
                host.remove_tree(&target)
                    .map_err(|error| format!("cannot empty {}: {error}", target.display()))?;
            }
            host.make_dirs(&target, 0o755)
                .map_err(|error| format!("cannot create {}: {error}", target.display()))
        });
        made.await.unwrap_or_else(|| Err("staging broke off".into()))?;
        if !instruction.image.is_empty() {
            let staging = self.images.stage(&self.host, instruction.image, dir);
            let staged = match self.timeout {
                None => staging.await,
                Some(limit) => tokio::time::timeout(limit, staging).await.map_err(|_| {
                    let seconds = limit.as_secs();
                    format!("image {} was not staged within {seconds} seconds", instruction.image)
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
                .map_err(|error| format!("cannot write {}: {error}", path.display()))
        });
        written.await.unwrap_or_else(|| Err("staging broke off".into()))
    }

    fn command(&self, instruction: &Instruction<'_>, dir: &Path, attempt: i64) -> Result<Exec, String> {
        let dir_text = dir.to_str().ok_or("the work directory's path is not UTF-8")?.to_owned();
        let mut env = self.host.env();
        let path = platform::CURRENT.search_path(&env, &dir_text);
        for entry in instruction.env {
            let (name, value) = entry.split_once('=').unwrap_or((entry, ""));
            if name.contains('\0') || value.contains('\0') {
                return Err("an entry of env contains a zero byte".to_owned());
            }
            if name.is_empty() {
                // The original hands it on, and no program can read it.
                continue;
            }
            env.push((name.to_owned(), value.to_owned()));
        }
        // Last, so that no plan can take them away from the instruction.
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
            together: !instruction.apart,
            timeout: self.timeout,
            record: Some(self.record.clone()),
        })
    }
}
