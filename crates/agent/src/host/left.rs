//! The program that a killed agent left running.
//!
//! Without a service manager nobody ends it, and the successor would run it a second time beside the first. So each
//! run has a record: a file that its agent locks, into which the new process writes who it is before it becomes the
//! program. A record that nobody locks is a dead agent's; what it names is ended if it is still the same process.

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
/// How long the dying may take. Only one that hangs in the kernel takes longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A run that is written down until it ended.
pub(super) struct Record {
    path: PathBuf,
    // Open as long as the run lasts, for its lock.
    file: fs::File,
}

impl Record {
    /// Opens the record and lets the program's process write itself down.
    pub(super) fn begin(path: &Path, command: &mut Command) -> io::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let mut open = fs::OpenOptions::new();
        let mut file = open.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        file.try_lock()?;
        file.set_len(0)?;
        file.rewind()?;
        // A process id and its time mean something until the machine starts anew.
        file.write_all(fs::read_to_string(BOOT).unwrap_or_default().trim().as_bytes())?;
        file.write_all(b"\n")?;
        write_down(command, &file);
        Ok(Self { path: path.to_owned(), file })
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // A record that stays names a process that is gone, which harms nobody; an empty one says so at once.
        let _ = self.file.set_len(0);
        let _ = fs::remove_file(&self.path);
    }
}

/// Lets the new process append its line of `/proc` to the file before it becomes the program: there is no moment at
/// which it runs and is not written down.
#[allow(unsafe_code)]
fn write_down(command: &mut Command, file: &fs::File) {
    use nix::libc;
    use std::os::fd::AsRawFd as _;
    let record = file.as_raw_fd();
    let write = move || {
        let mut buffer = [0_u8; 1024];
        // SAFETY: between fork and exec only system calls are made, on a constant path and a buffer on the stack. The
        // descriptor is the parent's, which keeps it open until `spawn` returned. If anything fails, the program runs
        // all the same.
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

/// Ends the process group that a dead agent's record names, and tells its id. Not found, already ended or another
/// living agent's: nothing.
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
            // Already gone is fine.
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

/// What tells one process from another with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    pid: i32,
    group: i32,
    started: u64,
    ended: bool,
}

impl Known {
    /// From a line of `/proc/PID/stat`.
    fn parse(stat: &str) -> Option<Self> {
        let (pid, _) = stat.split_once(' ')?;
        // The name may hold anything, but ends with the last parenthesis.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?;
        let group = fields.nth(1)?.parse().ok()?;
        let started = fields.nth(16)?.parse().ok()?;
        Some(Self { pid: pid.parse().ok()?, group, started, ended: matches!(state, "Z" | "X") })
    }

    fn of(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Whether this very process still runs.
    fn is_alive(self) -> bool {
        Self::of(self.pid).is_some_and(|now| now == Self { ended: false, ..self })
    }
}

/// Whom a record of this boot names: the leader of a group of its own.
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
    fn a_name_can_hold_anything_and_another_boot_names_nobody() {
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
    async fn only_a_dead_agents_program_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & wait"]).process_group(0);
        let record = Record::begin(&path, &mut command).unwrap();
        let mut child = command.spawn().unwrap();
        let pid = child.id().unwrap().cast_signed();
        assert_eq!(end(&path).unwrap(), None, "its agent lives");
        assert!(Known::of(pid).is_some_and(Known::is_alive));
        let text = fs::read_to_string(&path).unwrap();
        drop(record);
        assert!(!path.exists(), "a run that ended has no record");
        // As another process with this id would be.
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
