//! Access lists and processes of Windows. Compiled, but not run by any test: see "Windows" in the crate's README.

use std::{
    fs, io,
    path::Path,
    process::{ExitStatus, Stdio},
};

use tokio::process::{Child, Command};

/// Well-known ids of the system's account and of the administrators, whatever their names are.
const SYSTEM: &str = "*S-1-5-18:F";
const ADMINISTRATORS: &str = "*S-1-5-32-544:F";

/// Nobody tells changes in directories.
pub(in crate::host) fn watcher(_: &Path) -> Option<Box<dyn crate::host::Watcher>> {
    None
}

/// There are no numbers; plans name root.
pub(in crate::host) fn identity() -> (u32, u32) {
    (0, 0)
}

/// Modes and owners are what a plan would ask for by default.
pub(in crate::host) fn attributes(found: &fs::Metadata) -> (u32, u32, u32) {
    (if found.is_dir() { 0o755 } else { 0o600 }, 0, 0)
}

pub(in crate::host) fn create_new(path: &Path, mode: u32) -> io::Result<fs::File> {
    let file = fs::OpenOptions::new().write(true).create_new(true).open(path)?;
    set_mode(path, mode)?;
    Ok(file)
}

/// An existing file, to write it or to ask whether someone holds its lock.
pub(in crate::host) fn open_to_write(path: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new().write(true).open(path)
}

pub(in crate::host) fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    fs::create_dir(path)?;
    set_mode(path, mode)
}

pub(in crate::host) fn make_parents(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)
}

/// What nobody else may read on Unix is for the system and its administrators here; the rest inherits from its folder.
pub(in crate::host) fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    if mode & 0o077 != 0 {
        return Ok(());
    }
    let set = std::process::Command::new("icacls.exe")
        .arg(path)
        .args(["/inheritance:r", "/grant:r", SYSTEM, ADMINISTRATORS])
        .stdin(Stdio::null())
        .output()?;
    if set.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&set.stderr).trim().to_owned();
    Err(io::Error::other(format!("icacls cannot protect {}: {said}", path.display())))
}

pub(in crate::host) fn own(_: &Path, _: u32, _: u32, _: &fs::Metadata) -> io::Result<()> {
    Ok(())
}

pub(in crate::host) fn symlink(target: &Path, path: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, path)
}

/// A rename is in the journal of the file system when it returns.
pub(in crate::host) fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}

/// A program that runs cannot be replaced here.
pub(in crate::host) fn become_program(_: &Path) -> io::Error {
    io::ErrorKind::Unsupported.into()
}

pub(in crate::host) fn prepare(command: &mut Command) {
    const CREATE_NEW_PROCESS_GROUP: u32 = 0x200;
    command.creation_flags(CREATE_NEW_PROCESS_GROUP);
}

pub(in crate::host) fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or(-1)
}

/// Kills the tree of processes when the run is abandoned.
pub(in crate::host) struct Group(Option<u32>);

impl Group {
    pub(in crate::host) fn of(child: &Child) -> Self {
        Self(child.id())
    }

    pub(in crate::host) fn ask(&self) {
        self.end(&[]);
    }

    pub(in crate::host) fn kill(&self) {
        self.end(&["/F"]);
    }

    pub(in crate::host) fn release(&mut self) {
        self.0 = None;
    }

    fn end(&self, how: &[&str]) {
        if let Some(pid) = self.0 {
            // Already gone is fine.
            let _ = std::process::Command::new("taskkill.exe")
                .args(["/T", "/PID", &pid.to_string()])
                .args(how)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}
