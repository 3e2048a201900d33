//! Access lists and processes of Windows. What of it runs in a test, and where, is in docs/windows.md.

mod acl;
mod job;

use std::{fs, io, path::Path, process::ExitStatus};

use tokio::process::Command;

pub(in crate::host) use job::Group;

/// Nobody tells changes in directories.
pub(in crate::host) fn watcher(_: &Path) -> Option<Box<dyn crate::host::Watcher>> {
    None
}

/// There are no numbers; plans name root.
pub(in crate::host) fn identity() -> (u32, u32) {
    (0, 0)
}

/// There are no modes either; none is what a plan asks for, so that access lists are always put right.
pub(in crate::host) fn attributes(_: &fs::Metadata) -> (u32, u32, u32) {
    (0, 0, 0)
}

/// A new file that has the mode's access list from its first byte on.
pub(in crate::host) fn create_new(path: &Path, mode: u32) -> io::Result<fs::File> {
    acl::create_file(path, mode)
}

/// An existing file, to write it or to ask whether someone holds its lock.
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

/// Comes with the mode: it is the administrators' whatever a plan says.
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
    command.creation_flags(CREATE_NEW_PROCESS_GROUP).kill_on_drop(true);
}

/// There are no pipes of this kind that can be read without a thread of their own.
pub(in crate::host) fn join_streams(_: &mut Command) -> io::Result<Option<tokio::io::Empty>> {
    Ok(None)
}

pub(in crate::host) fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or(-1)
}
