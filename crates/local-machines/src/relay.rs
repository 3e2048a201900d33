//! Pipes between the descriptors of a caller and a program in a machine.
//!
//! Through `/proc/self/fd` a program can reopen a descriptor with other access rights, or change its mode. Files,
//! devices, terminals and named pipes of the host are therefore never passed into a machine; only anonymous pipes and
//! sockets are.

use std::{
    fs::File,
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread::JoinHandle,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        stat::{SFlag, fstat},
        statfs::{FsType, fstatfs},
    },
};

/// `PIPEFS_MAGIC` of the kernel.
const PIPE_FS: FsType = FsType(0x5049_5045);

/// Returns the descriptor from which the program reads.
pub(crate) fn input(caller: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut from = File::from(caller.try_clone_to_owned()?);
    if is_safe_to_pass(caller)? {
        return Ok(from.into());
    }
    let (reader, mut writer) = io::pipe()?;
    // Not joined: the thread may be blocked reading a terminal and ends with this process.
    std::thread::spawn(move || io::copy(&mut from, &mut writer));
    Ok(reader.into())
}

/// Returns the descriptor to which the program writes, and the copy that must be finished after the program has exited.
pub(crate) fn output(caller: BorrowedFd<'_>) -> io::Result<(OwnedFd, Option<Output>)> {
    let to = File::from(caller.try_clone_to_owned()?);
    if is_safe_to_pass(caller)? {
        return Ok((to.into(), None));
    }
    let (reader, writer) = io::pipe()?;
    let (ended, end) = io::pipe()?;
    let thread = std::thread::spawn(move || copy(reader, to, &ended));
    Ok((writer.into(), Some(Output { thread, end })))
}

/// Copies the output of a program.
pub(crate) struct Output {
    thread: JoinHandle<()>,
    end: PipeWriter,
}

impl Output {
    /// Copies everything that the program had written when it exited. Does not wait for processes that it left running,
    /// which may keep the pipe open.
    pub(crate) fn finish(self) {
        drop(self.end);
        let _ = self.thread.join();
    }
}

fn is_safe_to_pass(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let kind = SFlag::from_bits_truncate(fstat(fd)?.st_mode) & SFlag::S_IFMT;
    // A named pipe is a file of the host, with an owner and a mode. An anonymous one is in an internal file system of
    // the kernel.
    Ok(kind == SFlag::S_IFSOCK || kind == SFlag::S_IFIFO && fstatfs(fd)?.filesystem_type() == PIPE_FS)
}

fn copy(mut from: PipeReader, mut to: File, ended: &PipeReader) {
    let mut buffer = [0u8; 16384];
    loop {
        let mut waiting =
            [PollFd::new(from.as_fd(), PollFlags::POLLIN), PollFd::new(ended.as_fd(), PollFlags::POLLIN)];
        match poll(&mut waiting, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            Err(_) => return,
            Ok(_) => (),
        }
        let ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        if !ready(&waiting[0]) {
            // The program has exited and the pipe is empty.
            return;
        }
        match from.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            // A caller that does not read any more must not block the program.
            Ok(length) => drop(to.write_all(&buffer[..length])),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::{fs, io::Seek};

    #[test]
    fn files_are_copied_and_pipes_are_passed_through() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"typed").unwrap();
        file.rewind().unwrap();
        let mut text = String::new();
        let given = input(file.as_fd()).unwrap();
        assert!(is_safe_to_pass(given.as_fd()).unwrap());
        File::from(given).read_to_string(&mut text).unwrap();
        assert_eq!(text, "typed");

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let (given, relay) = output(fs::File::create(&path).unwrap().as_fd()).unwrap();
        assert!(is_safe_to_pass(given.as_fd()).unwrap());
        let mut program = File::from(given);
        program.write_all(&[b'x'; 100_000]).unwrap();
        // A process that the program left running still has it open.
        let _left = program.try_clone().unwrap();
        relay.unwrap().finish();
        assert_eq!(fs::read(&path).unwrap().len(), 100_000);

        let (_reader, writer) = io::pipe().unwrap();
        assert!(output(writer.as_fd()).unwrap().1.is_none());

        let named = dir.path().join("named");
        nix::unistd::mkfifo(&named, nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR).unwrap();
        let named = fs::File::options().read(true).write(true).open(&named).unwrap();
        assert!(!is_safe_to_pass(named.as_fd()).unwrap(), "a machine could change its mode and owner");
    }
}
