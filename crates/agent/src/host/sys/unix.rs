//! Modes, owners and processes on Unix.

#[cfg(target_os = "linux")]
mod inotify;

use std::{
    ffi::CStr,
    fs, io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
    process::ExitStatus,
};

use nix::{sys::signal, unistd::Pid};
use tokio::{
    net::unix::pipe,
    process::{Child, Command},
};

use crate::host::Watcher;

/// A watcher below `root`, if the kernel supports it.
#[cfg(target_os = "linux")]
pub(in crate::host) fn watcher(root: &Path) -> Option<Box<dyn Watcher>> {
    let watcher = inotify::Inotify::new(root);
    let watcher = watcher.map_err(|error| tracing::debug!("failed to watch files: {error}"));
    watcher.ok().map(|watcher| Box::new(watcher) as Box<dyn Watcher>)
}

/// Not supported; the agent polls.
#[cfg(not(target_os = "linux"))]
pub(in crate::host) fn watcher(_: &Path) -> Option<Box<dyn Watcher>> {
    None
}

/// The agent's uid and gid.
pub(in crate::host) fn identity() -> (u32, u32) {
    (nix::unistd::getuid().as_raw(), nix::unistd::getgid().as_raw())
}

/// Mode, uid and gid.
pub(in crate::host) fn attributes(found: &fs::Metadata) -> (u32, u32, u32) {
    (found.mode() & 0o7777, found.uid(), found.gid())
}

/// Creates a file that has this mode from the start.
pub(in crate::host) fn create_new(path: &Path, mode: u32) -> io::Result<fs::File> {
    fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
}

/// Opens an existing file to write it or to check its lock. A symlink or pipe that replaced it in the meantime is
/// neither followed nor waited for.
pub(in crate::host) fn open_to_write(path: &Path) -> io::Result<fs::File> {
    use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
    fs::OpenOptions::new().write(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path)
}

pub(in crate::host) fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().mode(mode).create(path)
}

pub(in crate::host) fn make_parents(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path)
}

pub(in crate::host) fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

pub(in crate::host) fn own(path: &Path, uid: u32, gid: u32, found: &fs::Metadata) -> io::Result<()> {
    // The kernel uses the highest number for "unchanged".
    let stays = |wanted: u32, found: u32| wanted == found || wanted == u32::MAX;
    if stays(uid, found.uid()) && stays(gid, found.gid()) {
        return Ok(());
    }
    std::os::unix::fs::lchown(path, Some(uid), Some(gid)).map_err(|error| match error.raw_os_error() {
        Some(code) if code == nix::errno::Errno::EINVAL as i32 => io::Error::new(
            error.kind(),
            format!("uid {uid} or gid {gid} does not exist in the user namespace of this host"),
        ),
        _ => error,
    })
}

pub(in crate::host) fn symlink(target: &Path, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, path)
}

pub(in crate::host) fn sync_directory(path: &Path) -> io::Result<()> {
    match fs::File::open(path)?.sync_all() {
        // Some network file systems do not support syncing directories.
        Err(error) if error.raw_os_error() == Some(nix::errno::Errno::EINVAL as i32) => Ok(()),
        other => other,
    }
}

/// Executes a program in this process; returns only on failure.
pub(in crate::host) fn become_program(path: &Path) -> io::Error {
    use std::os::unix::process::CommandExt as _;
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_else(|| path.into());
    // All files of this process are opened with close-on-exec; those that systemd passed stay open.
    std::process::Command::new(path).arg0(name).args(args).exec()
}

/// In its own process group, and with the default OOM score.
pub(in crate::host) fn prepare(command: &mut Command) {
    command.process_group(0);
    if is_spared() {
        not_spared(command);
    }
}

/// Uses one pipe for both streams, if possible. Its write end stays open as long as the command.
pub(in crate::host) fn join_streams(command: &mut Command) -> io::Result<Option<pipe::Receiver>> {
    let (reader, writer) = io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer);
    pipe::Receiver::from_owned_fd(reader.into()).map(Some)
}

/// The exit code as a shell reports it.
pub(in crate::host) fn exit_code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

const OOM_SCORE: &CStr = c"/proc/self/oom_score_adj";

/// Whether the agent's unit lowers its OOM score, so that other processes are killed first.
fn is_spared() -> bool {
    let text = OOM_SCORE.to_str().ok().and_then(|path| fs::read_to_string(path).ok());
    text.and_then(|text| text.trim().parse::<i32>().ok()).is_some_and(|score| score < 0)
}

/// Resets the OOM score of the program, because it can be the one that uses the memory.
#[allow(unsafe_code)]
fn not_spared(command: &mut Command) {
    use nix::libc;
    let reset = || {
        // SAFETY: only system calls are made between fork and exec, on a constant path and constant bytes. A process
        // may always raise its own score; if it fails, the program runs anyway.
        unsafe {
            let file = libc::open(OOM_SCORE.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if file >= 0 {
                libc::write(file, b"0".as_ptr().cast(), 1);
                libc::close(file);
            }
        }
        Ok(())
    };
    // SAFETY: as above; nothing is allocated and no lock is taken.
    unsafe {
        command.pre_exec(reset);
    }
}

/// Kills the process group when the run is aborted.
pub(in crate::host) struct Group(Option<Pid>);

impl Group {
    pub(in crate::host) fn of(child: &Child) -> Self {
        Self(child.id().map(|pid| Pid::from_raw(pid.cast_signed())))
    }

    /// Sends SIGTERM.
    pub(in crate::host) fn ask(&self) {
        self.signal(signal::Signal::SIGTERM);
    }

    /// Sends SIGKILL.
    pub(in crate::host) fn kill(&self) {
        self.signal(signal::Signal::SIGKILL);
    }

    /// Lets background processes keep running.
    pub(in crate::host) fn release(&mut self) {
        self.0 = None;
    }

    fn signal(&self, signal: signal::Signal) {
        if let Some(pid) = self.0 {
            // It is fine if it has already ended.
            let _ = signal::killpg(pid, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn instructions_do_not_inherit_the_lowered_oom_score() {
        let path = OOM_SCORE.to_str().unwrap();
        let before = fs::read_to_string(path).unwrap();
        if fs::write(path, "-7").is_err() {
            eprintln!("SKIPPED: this process is not permitted to lower its OOM score");
            return;
        }
        let mut command = Command::new("cat");
        command.arg("/proc/self/oom_score_adj");
        prepare(&mut command);
        let output = command.output().await;
        fs::write(path, before.trim()).unwrap();
        assert_eq!(output.unwrap().stdout, b"0\n");
    }
}
