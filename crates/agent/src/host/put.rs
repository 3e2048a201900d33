//! Replaces a file atomically: readers, also after a crash, see the old or the new content.
//!
//! The content is written to a temporary file, which is then renamed. A process that is killed in between leaves the
//! temporary file; the next write to the path removes it. It detects files of dead processes by their locks: the kernel
//! releases a lock when its process ends.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    io::Write as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::{Attr, sys};

/// How long a scan of a directory is valid: a plan may write thousands of files into one directory.
const FRESH: Duration = Duration::from_secs(10);

const SUFFIX: &str = ".drover-tmp";
/// The length of the name in the temporary file's name, which must fit into 255 bytes.
const LONGEST: usize = 200;
/// How often creating a temporary file is retried when another writer removes it before it is locked.
const TRIES: usize = 8;

/// Temporary files of dead processes in the directory that was scanned last.
#[derive(Default)]
pub(super) struct Leftovers(Mutex<Option<Seen>>);

struct Seen {
    directory: PathBuf,
    at: Instant,
    names: Vec<OsString>,
}

/// Replaces the file; `durable` waits for the disk.
pub(super) fn put(
    leftovers: &Leftovers,
    path: &Path,
    content: &[u8],
    attr: Attr,
    durable: bool,
    random: impl Fn() -> u64,
) -> io::Result<()> {
    let parent = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let prefix = prefix(path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    leftovers.sweep(parent, &prefix);
    let (temporary, mut file) = create(parent, &prefix, random)?;
    let written = (|| {
        for chunk in content.chunks(64 * 1024) {
            file.write_all(chunk)?;
            crash_point();
        }
        if let Some((uid, gid)) = attr.owner {
            sys::own(&temporary, uid, gid, &file.metadata()?)?;
        }
        // After the owner, because chown clears bits.
        sys::set_mode(&temporary, attr.mode)?;
        crash_point();
        if durable {
            sync_file(&file, &temporary)?;
        }
        crash_point();
        match rename(&temporary, path) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                overwrite(path, content, attr)?;
                fs::remove_file(&temporary)?;
            }
            renamed => renamed?,
        }
        crash_point();
        if durable { sync_directory(parent) } else { Ok(()) }
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Overwrites a file that is a mount point, as containers do with `/etc/hosts`: it cannot be replaced. The temporary
/// file keeps the whole content until that is done.
fn overwrite(path: &Path, content: &[u8], attr: Attr) -> io::Result<()> {
    let mut file = sys::open_to_write(path)?;
    // Before the content, which may be more secret than the old one.
    if let Some((uid, gid)) = attr.owner {
        sys::own(path, uid, gid, &file.metadata()?)?;
    }
    sys::set_mode(path, attr.mode)?;
    file.write_all(content)?;
    file.set_len(content.len() as u64)?;
    sync_file(&file, path)
}

pub(super) fn sync_file(file: &fs::File, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    note("content", path);
    Ok(())
}

pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    note("name", to);
    Ok(())
}

pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    sys::sync_directory(path)?;
    note("directory", path);
    Ok(())
}

/// Creates a locked temporary file. Names are random, so files of an earlier process with the same id do not matter.
fn create(parent: &Path, prefix: &str, random: impl Fn() -> u64) -> io::Result<(PathBuf, fs::File)> {
    for _ in 0..TRIES {
        let temporary = parent.join(format!("{prefix}{:016x}{SUFFIX}", random()));
        let file = match sys::create_new(&temporary, 0o600) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            other => other?,
        };
        crash_point();
        match file.try_lock() {
            // Another process removed it before it was locked.
            Err(fs::TryLockError::WouldBlock) => continue,
            // On file systems without locks, no process removes files either.
            Err(fs::TryLockError::Error(_)) => return Ok((temporary, file)),
            Ok(()) => {}
        }
        if temporary.exists() {
            crash_point();
            return Ok((temporary, file));
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AlreadyExists,
        "failed to create a temporary file in the same directory",
    ))
}

fn prefix(name: &OsStr) -> String {
    let name = name.to_string_lossy();
    let mut end = name.len().min(LONGEST);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    format!(".{}.", &name[..end])
}

impl Leftovers {
    /// Removes temporary files of dead processes for this name, because their content can be secret. Errors are
    /// ignored.
    fn sweep(&self, parent: &Path, prefix: &str) {
        // The lock is never poisoned.
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.as_ref().is_none_or(|seen| seen.directory != parent || seen.at.elapsed() > FRESH) {
            *seen = Some(Seen { directory: parent.to_owned(), at: Instant::now(), names: temporary(parent) });
        }
        let Some(seen) = seen.as_mut() else { return };
        for name in seen.names.extract_if(.., |name| is_of(name, prefix)) {
            let path = parent.join(name);
            if fs::symlink_metadata(&path).is_ok_and(|found| found.is_file())
                && let Ok(file) = sys::open_to_write(&path)
                && file.try_lock().is_ok()
            {
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// The names of temporary files.
fn temporary(directory: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name());
    names.filter(|name| name.as_encoded_bytes().ends_with(SUFFIX.as_bytes())).collect()
}

fn is_of(name: &OsStr, prefix: &str) -> bool {
    let number = name.to_str().and_then(|name| name.strip_prefix(prefix)?.strip_suffix(SUFFIX));
    // Earlier versions used the process id and a counter.
    number.is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'))
    })
}

/// A point at which a test can kill this process.
#[cfg(not(test))]
fn crash_point() {}

/// Records for a test what is durable.
#[cfg(not(test))]
fn note(_: &'static str, _: &Path) {}

#[cfg(test)]
use tests::{crash_point, note};

#[cfg(test)]
mod tests {
    use std::{
        cell::RefCell,
        os::unix::{
            fs::{MetadataExt as _, PermissionsExt as _},
            process::ExitStatusExt as _,
        },
        process::{Command, Stdio},
        sync::atomic::{AtomicU64, Ordering},
    };

    use super::*;
    use crate::host::{Host as _, RealHost};

    const VICTIM: &str = "DROVER_TEST_PUT_VICTIM";
    const LEFT: &str = "DROVER_TEST_PUT_BLOWS_LEFT";
    static CRASH_IN: AtomicU64 = AtomicU64::new(u64::MAX);

    /// Sends SIGKILL when the counter reaches zero.
    pub(super) fn crash_point() {
        let left = CRASH_IN.load(Ordering::SeqCst);
        if left == u64::MAX {
            return;
        }
        if left == 0 {
            nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL).unwrap();
        }
        CRASH_IN.store(left - 1, Ordering::SeqCst);
    }

    thread_local! {
        static NOTES: RefCell<Vec<(&'static str, u64)>> = const { RefCell::new(Vec::new()) };
    }

    /// By inode, because the content is written under the temporary name.
    pub(super) fn note(what: &'static str, path: &Path) {
        let inode = fs::symlink_metadata(path).unwrap().ino();
        NOTES.with_borrow_mut(|notes| notes.push((what, inode)));
    }

    const PRIVATE: Attr = Attr { mode: 0o640, owner: None };

    fn new_content() -> Vec<u8> {
        b"new".repeat(50_000)
    }

    fn names(dir: &Path) -> Vec<String> {
        RealHost::at(dir).list(Path::new("/")).unwrap()
    }

    /// Not a test of its own: the process that the next test kills.
    #[test]
    fn victim() {
        let Some(dir) = std::env::var_os(VICTIM) else { return };
        CRASH_IN.store(std::env::var(LEFT).unwrap().parse().unwrap(), Ordering::SeqCst);
        RealHost::at(dir).replace(Path::new("/file"), &new_content(), PRIVATE).unwrap();
    }

    #[test]
    fn agent_check_22_a_process_killed_at_any_step_of_a_write_leaves_the_old_or_the_new() {
        let (mut old, mut new, mut leftovers) = (0, 0, 0);
        for steps in 0.. {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("file"), "old").unwrap();
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "host::put::tests::victim"])
                .env(VICTIM, dir.path())
                .env(LEFT, steps.to_string())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .status()
                .unwrap();
            let found = std::fs::read(dir.path().join("file")).unwrap();
            if status.success() {
                assert_eq!(found, new_content());
                assert_eq!(names(dir.path()), ["file"]);
                break;
            }
            assert_eq!(status.signal(), Some(9), "step {steps}: {status}");
            match found.as_slice() {
                b"old" => old += 1,
                found if found == new_content() => new += 1,
                found => panic!("step {steps}: {} bytes", found.len()),
            }
            leftovers += names(dir.path()).len() - 1;
            // The next write to the path succeeds and removes the temporary files of dead processes.
            RealHost::at(dir.path()).replace(Path::new("/file"), b"next", PRIVATE).unwrap();
            assert_eq!(std::fs::read(dir.path().join("file")).unwrap(), b"next", "step {steps}");
            assert_eq!(names(dir.path()), ["file"], "step {steps}");
        }
        assert!(old >= 6 && new >= 1 && leftovers == old, "{old} old, {new} new, {leftovers} leftovers");
    }

    /// Otherwise a power failure could leave a name without its content, or neither.
    #[test]
    fn agent_check_22_the_content_is_on_disk_before_the_name_and_the_name_before_it_returns() {
        let dir = tempfile::tempdir().unwrap();
        let host = RealHost::at(dir.path());
        let inode = |path: &Path| fs::symlink_metadata(path).unwrap().ino();
        let at_once = |write: &dyn Fn(&Path)| {
            NOTES.take();
            write(Path::new("/file"));
            let (file, parent) = (inode(&dir.path().join("file")), inode(dir.path()));
            let (noted, durable) = (NOTES.take(), [("content", file), ("name", file), ("directory", parent)]);
            (noted == durable, noted)
        };
        let (durable, noted) = at_once(&|path| host.replace(path, &new_content(), PRIVATE).unwrap());
        assert!(durable, "{noted:?}");
        let (durable, noted) = at_once(&|path| {
            let mut file = host.create(Path::new("/beside"), 0o600).unwrap();
            file.write_all(b"offered").unwrap();
            drop(file);
            host.rename(Path::new("/beside"), path).unwrap();
        });
        assert!(durable, "{noted:?}");
        // A write that does not have to be durable does not wait.
        let (_, noted) = at_once(&|path| host.refresh(path, b"shown", PRIVATE).unwrap());
        assert!(noted.iter().map(|(what, _)| *what).eq(["name"]), "{noted:?}");
    }

    #[test]
    fn temporary_files_of_this_name_are_removed_and_others_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut stay = vec![".a.b.77-0.drover-tmp", ".a..drover-tmp", ".a.77.other", ".ab.77-0.drover-tmp"];
        for name in &stay {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        for number in 0..64 {
            let name = format!(".a.{}-{number}.drover-tmp", std::process::id());
            std::fs::write(dir.path().join(name), "secret").unwrap();
        }
        std::fs::write(dir.path().join(".a.0123456789abcdef.drover-tmp"), "secret").unwrap();
        // A file that a running process is still writing.
        let held = ".a.fedcba9876543210.drover-tmp";
        let file = std::fs::File::create(dir.path().join(held)).unwrap();
        file.lock().unwrap();
        RealHost::at(dir.path()).replace(Path::new("/a"), b"new", PRIVATE).unwrap();
        stay.extend([held, "a"]);
        stay.sort_unstable();
        assert_eq!(names(dir.path()), stay);
        let mode = std::fs::metadata(dir.path().join("a")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o640);
    }

    #[test]
    fn many_writers_of_one_path_do_not_interfere_and_long_names_fit() {
        let dir = tempfile::tempdir().unwrap();
        let name = "é".repeat(127);
        std::thread::scope(|scope| {
            for letter in 0..4_u8 {
                let (dir, name) = (dir.path(), &name);
                scope.spawn(move || {
                    let host = RealHost::at(dir);
                    for _ in 0..50 {
                        host.refresh(&Path::new("/").join(name), &vec![letter; 100_000], PRIVATE).unwrap();
                    }
                });
            }
        });
        let found = std::fs::read(dir.path().join(&name)).unwrap();
        assert!(found.len() == 100_000 && found.iter().all(|byte| *byte == found[0]));
        assert_eq!(names(dir.path()), [name]);
    }
}
