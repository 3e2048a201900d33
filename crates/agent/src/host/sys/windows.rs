//! Access lists and processes on Windows. docs/windows.md states which parts are tested, and where.

mod acl;
mod job;

use std::{fs, io, path::Path, process::ExitStatus};

use tokio::process::Command;

pub(in crate::host) use job::Group;

/// Watching directories is not supported; the agent polls.
pub(in crate::host) fn watcher(_: &Path) -> Option<Box<dyn crate::host::Watcher>> {
    None
}

/// Windows has no numeric ids; plans use root.
pub(in crate::host) fn identity() -> (u32, u32) {
    (0, 0)
}

/// Windows has no modes. Zero differs from every mode in a plan, so access lists are always set.
pub(in crate::host) fn attributes(_: &fs::Metadata) -> (u32, u32, u32) {
    (0, 0, 0)
}

/// Creates a file that has the mode's access list from the start.
pub(in crate::host) fn create_new(path: &Path, mode: u32) -> io::Result<fs::File> {
    acl::create_file(path, mode)
}

/// Opens an existing file to write it or to check its lock.
pub(in crate::host) fn open_to_write(path: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new().write(true).open(path)
}

pub(in crate::host) fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    acl::create_directory(path, mode)
}

pub(in crate::host) fn make_parents(path: &Path) -> io::Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        make_parents(parent)?;
    }
    match make_dir(path, 0o755) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made,
    }
}

pub(in crate::host) fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    acl::set(path, mode)
}

/// Set together with the mode: the owner is always the administrators.
pub(in crate::host) fn own(_: &Path, _: u32, _: u32, _: &fs::Metadata) -> io::Result<()> {
    Ok(())
}

pub(in crate::host) fn symlink(target: &Path, path: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, path)
}

/// A rename is in the file system's journal when it returns.
pub(in crate::host) fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}

/// A running program cannot be replaced on Windows.
pub(in crate::host) fn become_program(_: &Path) -> io::Error {
    io::ErrorKind::Unsupported.into()
}

pub(in crate::host) fn prepare(command: &mut Command) {
    const CREATE_NEW_PROCESS_GROUP: u32 = 0x200;
    command.creation_flags(CREATE_NEW_PROCESS_GROUP).kill_on_drop(true);
}

/// Windows has no such pipes that can be read without a thread of their own.
pub(in crate::host) fn join_streams(_: &mut Command) -> io::Result<Option<tokio::io::Empty>> {
    Ok(None)
}

pub(in crate::host) fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or(-1)
}
