//! One attempt: a child process with the files, environment and credentials that a pod would have.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PodSpec, Secret};
use nix::sys::signal::{Signal, killpg};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

/// Kubernetes truncates termination messages to this length.
const MESSAGE_LIMIT: usize = 4096;
/// Time between SIGTERM and SIGKILL for a child that is stopped.
const STOP_LIMIT: Duration = Duration::from_secs(10);
const LOCK_RETRY: Duration = Duration::from_millis(100);

/// Why an attempt could not be started. These are failures of the runner, not of the child.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    #[error("the Job has no container")]
    NoContainer,
    #[error("Secret {0} does not exist")]
    NoSecret(String),
    #[error("failed to write {what}")]
    Write {
        what: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to start {program}")]
    Spawn {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The result of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub exit_code: i32,
    /// The end of the child's output.
    pub message: String,
    /// Whether the runner stopped the child.
    pub stopped: bool,
}

/// The child's command line and environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
}

/// The Secrets that a pod uses for environment variables and files.
pub fn secret_names(pod: &PodSpec) -> BTreeSet<&str> {
    let sources = pod.containers.iter().flat_map(|container| container.env_from.iter().flatten());
    let of_env =
        sources.filter_map(|source| source.secret_ref.as_ref()).map(|reference| reference.name.as_str());
    let volumes = pod.volumes.iter().flatten().filter_map(|volume| volume.secret.as_ref());
    of_env.chain(volumes.filter_map(|source| source.secret_name.as_deref())).collect()
}

/// Writes the Secrets that the pod mounts below `dir`, and replaces mounted paths in arguments by paths on this host.
///
/// `dir` must be private to this attempt: it contains secrets in plain text.
pub fn prepare(
    pod: &PodSpec,
    secret: &dyn Fn(&str) -> Option<Secret>,
    dir: &Path,
) -> Result<Invocation, AttemptError> {
    let container = pod.containers.first().ok_or(AttemptError::NoContainer)?;
    let mut env = BTreeMap::new();
    for source in container.env_from.iter().flatten() {
        let Some(reference) = &source.secret_ref else { continue };
        match secret(&reference.name) {
            Some(found) => env.extend(
                found
                    .data
                    .into_iter()
                    .flatten()
                    .filter_map(|(key, value)| String::from_utf8(value.0).ok().map(|value| (key, value))),
            ),
            None if reference.optional == Some(true) => {}
            None => return Err(AttemptError::NoSecret(reference.name.clone())),
        }
    }
    for variable in container.env.iter().flatten() {
        env.insert(variable.name.clone(), variable.value.clone().unwrap_or_default());
    }

    let mut mounts = vec![];
    for mount in container.volume_mounts.iter().flatten() {
        let volume = pod.volumes.iter().flatten().find(|volume| volume.name == mount.name);
        let Some(source) = volume.and_then(|volume| volume.secret.as_ref()) else { continue };
        let name = source.secret_name.clone().unwrap_or_default();
        let Some(found) = secret(&name) else {
            if source.optional == Some(true) {
                continue;
            }
            return Err(AttemptError::NoSecret(name));
        };
        let target = dir.join(mount.mount_path.trim_start_matches('/'));
        let mode = source.default_mode.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(0o644);
        for (key, value) in found.data.into_iter().flatten() {
            match mount.sub_path.as_deref() {
                None => write_private(&target.join(&key), &value.0, mode)?,
                Some(sub_path) if sub_path == key => write_private(&target, &value.0, mode)?,
                Some(_) => {}
            }
        }
        mounts.push((mount.mount_path.clone(), target));
    }
    let args = container.args.iter().flatten().map(|arg| translate(arg, &mounts)).collect();
    Ok(Invocation { args, env })
}

fn translate(arg: &str, mounts: &[(String, PathBuf)]) -> String {
    for (inside, outside) in mounts {
        if let Some(at) = arg.find(inside.as_str()) {
            let before_is_boundary = at == 0 || arg.as_bytes()[at - 1] == b'=';
            let rest = &arg[at + inside.len()..];
            if before_is_boundary && (rest.is_empty() || rest.starts_with('/')) {
                return format!("{}{}{rest}", &arg[..at], outside.display());
            }
        }
    }
    arg.to_owned()
}

/// Writes a file that only this user can read.
pub fn write_private(path: &Path, content: &[u8], mode: u32) -> Result<(), AttemptError> {
    let failed = |source| AttemptError::Write { what: path.to_owned(), source };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).map_err(failed)?;
    file.write_all(content).map_err(failed)?;
    // Only the bits of the owner: no other user has access to this directory.
    file.set_permissions(std::fs::Permissions::from_mode(mode & 0o700)).map_err(failed)
}

/// A lock that a child inherits, so that it remains locked if the runner is killed.
pub struct InheritedLock {
    // Closing the file does not unlock it if a child has inherited it; std's lock never unlocks by itself.
    file: File,
}

impl InheritedLock {
    /// Acquires the lock. Waits while an orphaned child holds it. Returns `None` if cancelled first.
    pub async fn acquire(path: &Path, cancel: &CancellationToken) -> Result<Option<Self>, AttemptError> {
        let failed = |source| AttemptError::Write { what: path.to_owned(), source };
        loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)
                .map_err(failed)?;
            match file.try_lock() {
                // A lock on a file that has been deleted in the meantime is useless.
                Ok(()) if is_at(&file, path) => return Ok(Some(Self { file })),
                Ok(()) => continue,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            }
            tokio::select! {
                () = cancel.cancelled() => return Ok(None),
                () = tokio::time::sleep(LOCK_RETRY) => {}
            }
        }
    }

    /// Deletes the lock file of a deleted Job, unless the lock is held.
    pub fn discard(path: &Path) {
        let Ok(file) = OpenOptions::new().read(true).write(true).open(path) else { return };
        if file.try_lock().is_ok() && is_at(&file, path) {
            // If it cannot be deleted, only an empty file remains.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Passes the lock to a child as its standard input: only this child inherits it, and it reads nothing from it.
    fn into_stdin(self) -> Stdio {
        Stdio::from(self.file)
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let inode = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
    let (open, named) = (file.metadata().map(inode), std::fs::metadata(path).map(inode));
    matches!((open, named), (Ok(open), Ok(named)) if open == named)
}

/// Runs the child until it exits or `stop` is cancelled. All its output is written to `log`.
pub async fn run(
    program: &Path,
    invocation: &Invocation,
    lock: InheritedLock,
    log: &Path,
    stop: CancellationToken,
) -> Result<Outcome, AttemptError> {
    let (reader, writer) =
        io::pipe().map_err(|source| AttemptError::Write { what: log.to_owned(), source })?;
    let stderr = writer.try_clone().map_err(|source| AttemptError::Write { what: log.to_owned(), source })?;
    let mut child = Command::new(program)
        .args(&invocation.args)
        .envs(&invocation.env)
        // From here on only the child holds the lock, so that it is released when the child exits.
        .stdin(lock.into_stdin())
        .stdout(Stdio::from(writer))
        .stderr(Stdio::from(stderr))
        // A process group of its own: a signal to the runner's terminal does not end the child, and a stop ends all its
        // processes.
        .process_group(0)
        .spawn()
        .map_err(|source| AttemptError::Spawn { program: program.to_owned(), source })?;
    let group = child.id().and_then(|pid| i32::try_from(pid).ok()).map(nix::unistd::Pid::from_raw);

    let output = tokio::spawn(tail(reader, log.to_owned()));
    let mut stopped = false;
    let status = tokio::select! {
        status = child.wait() => status,
        () = stop.cancelled() => {
            stopped = true;
            end(group, &mut child).await
        }
    };
    let message =
        tokio::time::timeout(STOP_LIMIT, output).await.ok().and_then(Result::ok).unwrap_or_default();
    if let (true, Some(group)) = (stopped, group) {
        // Processes of the group that are still running, and perhaps keep the output open, had the same time to exit.
        let _ = killpg(group, Signal::SIGKILL);
    }
    let exit_code = match status {
        Ok(status) => status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
        Err(_) => 255,
    };
    Ok(Outcome { exit_code, message, stopped })
}

async fn end(
    group: Option<nix::unistd::Pid>,
    child: &mut tokio::process::Child,
) -> io::Result<std::process::ExitStatus> {
    if let Some(group) = group {
        // ESRCH only means that the group has ended already.
        let _ = killpg(group, Signal::SIGTERM);
        if let Ok(status) = tokio::time::timeout(STOP_LIMIT, child.wait()).await {
            return status;
        }
        let _ = killpg(group, Signal::SIGKILL);
    }
    child.wait().await
}

/// Copies the child's output to the log. Returns the end of it.
async fn tail(reader: io::PipeReader, log: PathBuf) -> String {
    let Ok(pipe) = tokio::net::unix::pipe::Receiver::from_owned_fd(reader.into()) else {
        return String::new();
    };
    copy_tail(pipe, File::create(log).ok()).await
}

async fn copy_tail(mut from: impl AsyncRead + Unpin, mut log: Option<File>) -> String {
    let (mut buffer, mut end) = (vec![0; 8192], Vec::new());
    loop {
        match from.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(count) => {
                if let Some(file) = &mut log
                    && file.write_all(&buffer[..count]).is_err()
                {
                    // A full disk must not stop the child.
                    log = None;
                }
                end.extend_from_slice(&buffer[..count]);
                if end.len() > 2 * MESSAGE_LIMIT {
                    end.drain(..end.len() - MESSAGE_LIMIT);
                }
            }
        }
    }
    let start = end.len().saturating_sub(MESSAGE_LIMIT);
    String::from_utf8_lossy(&end[start..]).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;
    use serde_json::json;

    fn secret(name: &str) -> Option<Secret> {
        let data: &[(&str, &str)] = match name {
            "env" => &[("TOKEN", "t")],
            "bootstrap" => &[("value", "#!/bin/sh\n")],
            _ => return None,
        };
        let data = data.iter().map(|(k, v)| ((*k).to_owned(), ByteString((*v).into()))).collect();
        Some(Secret { data: Some(data), ..Secret::default() })
    }

    fn pod() -> PodSpec {
        serde_json::from_value(json!({
            "containers": [{
                "name": "machine",
                "args": ["create", "--script=/run/secrets/machine/value", "/run/secrets/machinery", "demo"],
                "envFrom": [{"secretRef": {"name": "env"}}],
                "env": [{"name": "A", "value": "b"}],
                "volumeMounts": [{"name": "bootstrap", "mountPath": "/run/secrets/machine"}],
            }],
            "volumes": [{"name": "bootstrap", "secret": {"secretName": "bootstrap", "defaultMode": 511}}],
        }))
        .unwrap()
    }

    #[test]
    fn secrets_are_written_to_files_and_arguments_contain_their_paths() {
        let dir = tempfile::tempdir().unwrap();
        let invocation = prepare(&pod(), &secret, dir.path()).unwrap();
        let script = dir.path().join("run/secrets/machine/value");
        assert_eq!(std::fs::read_to_string(&script).unwrap(), "#!/bin/sh\n");
        assert_eq!(std::fs::metadata(&script).unwrap().permissions().mode() & 0o777, 0o700);
        let expected =
            ["create", &format!("--script={}", script.display()), "/run/secrets/machinery", "demo"];
        assert_eq!(invocation.args, expected);
        assert_eq!(invocation.env, [("A", "b"), ("TOKEN", "t")].map(|(k, v)| (k.into(), v.into())).into());
    }

    #[test]
    fn error_names_the_missing_secret() {
        let dir = tempfile::tempdir().unwrap();
        let error =
            prepare(&pod(), &|name| secret(name).filter(|_| name != "bootstrap"), dir.path()).unwrap_err();
        assert_eq!(error.to_string(), "Secret bootstrap does not exist");
    }

    async fn sh(script: &str, dir: &Path, stop: CancellationToken) -> Outcome {
        let lock = InheritedLock::acquire(&dir.join("lock"), &stop).await.unwrap().unwrap();
        let invocation = Invocation { args: vec!["-c".into(), script.into()], env: BTreeMap::new() };
        run(Path::new("/bin/sh"), &invocation, lock, &dir.join("log"), stop).await.unwrap()
    }

    #[tokio::test]
    async fn exit_code_and_end_of_output_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let outcome = sh("echo one; echo two >&2; exit 3", dir.path(), CancellationToken::new()).await;
        assert_eq!(outcome, Outcome { exit_code: 3, message: "one\ntwo".into(), stopped: false });
        assert_eq!(std::fs::read_to_string(dir.path().join("log")).unwrap(), "one\ntwo\n");
        let long = sh("yes x | head -c 100000; echo end", dir.path(), CancellationToken::new()).await;
        assert!(long.message.len() <= MESSAGE_LIMIT && long.message.ends_with("end"));
    }

    #[tokio::test]
    async fn a_stop_ends_the_whole_group() {
        let dir = tempfile::tempdir().unwrap();
        let stop = CancellationToken::new();
        let started = dir.path().join("started");
        // The grandchild ignores SIGTERM and does not hold the output: only the process group identifies it.
        let script = format!(
            "sh -c 'trap \"\" TERM; echo $$ > {0}.new; mv {0}.new {0}; exec sleep 600' >/dev/null 2>&1 & wait",
            started.display()
        );
        let (ending, path) = (stop.clone(), dir.path().to_owned());
        let attempt = tokio::spawn(async move { sh(&script, &path, ending).await });
        until(|| started.exists()).await;
        let pid: i32 = std::fs::read_to_string(&started).unwrap().trim().parse().unwrap();
        stop.cancel();
        assert!(attempt.await.unwrap().stopped);
        // A killed process disappears a little later, or is a zombie until its new parent reaps it.
        let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        until(|| state().is_empty() || state().contains(") Z ")).await;
    }

    async fn until(condition: impl Fn() -> bool) {
        tokio::time::timeout(Duration::from_secs(30), async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .expect("timed out waiting for the condition");
    }

    #[tokio::test]
    async fn a_successor_waits_until_the_orphan_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let never = CancellationToken::new();
        let lock = InheritedLock::acquire(&path, &never).await.unwrap().unwrap();
        let (gate, release) = io::pipe().unwrap();
        let mut orphan = std::process::Command::new("/bin/sh")
            .args(["-c", "cat <&1 >&2"])
            .stdin(lock.into_stdin())
            .stdout(gate)
            .spawn()
            .unwrap();
        let waiting =
            tokio::time::timeout(Duration::from_millis(300), InheritedLock::acquire(&path, &never)).await;
        assert!(waiting.is_err(), "the orphan still holds the lock");
        drop(release);
        let waiting =
            tokio::time::timeout(Duration::from_secs(20), InheritedLock::acquire(&path, &never)).await;
        assert!(waiting.unwrap().unwrap().is_some());
        orphan.wait().unwrap();
    }

    #[tokio::test]
    async fn a_lock_is_discarded_only_when_nobody_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let never = CancellationToken::new();
        let held = InheritedLock::acquire(&path, &never).await.unwrap().unwrap();
        InheritedLock::discard(&path);
        assert!(path.exists());
        drop(held);
        InheritedLock::discard(&path);
        assert!(!path.exists());
    }
}
