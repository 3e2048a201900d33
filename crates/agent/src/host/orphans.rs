//! Ends the program that a killed agent left running.
//!
//! Without a service manager nothing else ends it, and the next agent would run it a second time in parallel. So each
//! run has a record: a file that its agent locks, in which the new process writes its identity before it executes the
//! program. A record that is not locked belongs to an agent that ended; its process is killed if it is still the same
//! process.

use std::{
    fs, io,
    io::{Read as _, Seek as _, Write as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::{sys::signal, unistd::Pid};
use tokio::process::Command;

const STAT: &std::ffi::CStr = c"/proc/self/stat";
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// How long processes may take to die. Only a process that hangs in the kernel takes longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A run that is recorded until it ends.
pub(super) struct Record {
    path: PathBuf,
    // Keeps the lock during the run.
    file: fs::File,
}

impl Record {
    /// Creates the record and lets the program's process write its identity.
    pub(super) fn begin(path: &Path, command: &mut Command) -> io::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let mut open = fs::OpenOptions::new();
        let mut file = open.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        file.try_lock()?;
        file.set_len(0)?;
        file.rewind()?;
        // A process id and its start time are valid only until the next boot.
        file.write_all(fs::read_to_string(BOOT).unwrap_or_default().trim().as_bytes())?;
        file.write_all(b"\n")?;
        write_down(command, &file);
        Ok(Self { path: path.to_owned(), file })
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // A record that remains names a process that ended, which is harmless; an empty one is cheaper to check.
        let _ = self.file.set_len(0);
        let _ = fs::remove_file(&self.path);
    }
}

/// Makes the new process append its line of `/proc` to the file before it executes the program, so that it never runs
/// without a record.
#[allow(unsafe_code)]
fn write_down(command: &mut Command, file: &fs::File) {
    use nix::libc;
    use std::os::fd::AsRawFd as _;
    let record = file.as_raw_fd();
    let write = move || {
        let mut buffer = [0_u8; 1024];
        // SAFETY: only system calls are made between fork and exec, on a constant path and a buffer on the stack. The
        // descriptor is the parent's, which keeps it open until `spawn` returned. If anything fails, the program runs
        // also without a record.
        unsafe {
            let stat = libc::open(STAT.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            if stat >= 0 {
                let length = libc::read(stat, buffer.as_mut_ptr().cast(), buffer.len());
                if length > 0 {
                    libc::write(record, buffer.as_ptr().cast(), length.cast_unsigned());
                }
                libc::close(stat);
            }
        }
        Ok(())
    };
    // SAFETY: as above; nothing is allocated and no lock is taken.
    unsafe {
        command.pre_exec(write);
    }
}

/// Kills the process group in the record of an agent that ended, and returns its id. Returns `None` if there is no
/// record, the processes ended, or the record belongs to a running agent.
pub(super) fn end(path: &Path) -> io::Result<Option<i32>> {
    let mut file = match fs::OpenOptions::new().read(true).write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    match file.try_lock() {
        Err(fs::TryLockError::WouldBlock) => return Ok(None),
        other => other?,
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let ended = match named(&text, &fs::read_to_string(BOOT).unwrap_or_default()) {
        Some(known) if known.is_alive() => {
            // It is fine if it has already ended.
            let _ = signal::killpg(Pid::from_raw(known.pid), signal::Signal::SIGKILL);
            let deadline = Instant::now() + PATIENCE;
            while has_members(known.pid) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
            Some(known.pid)
        }
        _ => None,
    };
    fs::remove_file(path)?;
    Ok(ended)
}

/// Distinguishes a process from another one with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    pid: i32,
    group: i32,
    started: u64,
    ended: bool,
}

impl Known {
    /// Parses a line of `/proc/PID/stat`.
    fn parse(stat: &str) -> Option<Self> {
        let (pid, _) = stat.split_once(' ')?;
        // The name can contain anything, but ends with the last parenthesis.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?;
        let group = fields.nth(1)?.parse().ok()?;
        let started = fields.nth(16)?.parse().ok()?;
        Some(Self { pid: pid.parse().ok()?, group, started, ended: matches!(state, "Z" | "X") })
    }

    fn of(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Whether this process is still running.
    fn is_alive(self) -> bool {
        Self::of(self.pid).is_some_and(|now| now == Self { ended: false, ..self })
    }
}

/// The process in a record of this boot, if it leads its own process group.
fn named(text: &str, boot: &str) -> Option<Known> {
    let (written, stat) = text.split_once('\n')?;
    let known = Known::parse(stat)?;
    (written == boot.trim() && !written.is_empty() && known.pid > 1 && known.group == known.pid)
        .then_some(known)
}

fn has_members(group: i32) -> bool {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Known::of(entry.file_name().to_str()?.parse().ok()?))
        .any(|found| found.group == group && !found.ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_names_can_contain_anything_and_records_of_other_boots_are_ignored() {
        let stat = "77 (a ) Z (b) S 1 77 77 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 9 9\n";
        let known = Known { pid: 77, group: 77, started: 123_456, ended: false };
        assert_eq!(Known::parse(stat), Some(known));
        assert_eq!(named(&format!("boot\n{stat}"), "boot\n"), Some(known));
        assert_eq!(named(&format!("other\n{stat}"), "boot\n"), None);
        assert_eq!(named(&format!("\n{stat}"), ""), None);
        assert_eq!(named("boot\n", "boot\n"), None);
        assert_eq!(named(&format!("boot\n{}", stat.replace("S 1 77", "S 1 76")), "boot"), None);
        let own = Known::of(std::process::id().cast_signed()).unwrap();
        assert!(own.is_alive() && !Known { started: own.started + 1, ..own }.is_alive());
    }

    #[tokio::test]
    async fn only_the_program_of_an_agent_that_ended_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & wait"]).process_group(0);
        let record = Record::begin(&path, &mut command).unwrap();
        let mut child = command.spawn().unwrap();
        let pid = child.id().unwrap().cast_signed();
        assert_eq!(end(&path).unwrap(), None, "its agent is running");
        assert!(Known::of(pid).is_some_and(Known::is_alive));
        let text = fs::read_to_string(&path).unwrap();
        drop(record);
        assert!(!path.exists(), "a finished run has no record");
        // Simulate another process with the same id.
        let known = Known::of(pid).unwrap();
        let later = format!(" {} ", known.started + 1);
        fs::write(&path, text.replace(&format!(" {} ", known.started), &later)).unwrap();
        assert_eq!(end(&path).unwrap(), None);
        assert!(Known::of(pid).is_some_and(Known::is_alive));
        fs::write(&path, text).unwrap();
        assert_eq!(end(&path).unwrap(), Some(pid));
        assert!(!has_members(pid) && !path.exists());
        child.wait().await.unwrap();
        assert_eq!(end(&path).unwrap(), None);
    }
}
