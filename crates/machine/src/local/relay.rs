//! Between the descriptors of a caller and a program in a machine: pipes.
//!
//! Through `/proc/self/fd` a program can open once more what it was given, with other rights, or change its mode. A
//! file, device, terminal or named pipe of the host is therefore never handed into a machine; only pipes without a name
//! and sockets are.

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

/// What the program reads.
pub(crate) fn input(caller: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut from = File::from(caller.try_clone_to_owned()?);
    if may_enter(caller)? {
        return Ok(from.into());
    }
    let (reader, mut writer) = io::pipe()?;
    // Not joined: it may sit in a read of a terminal, which ends with this process.
    std::thread::spawn(move || io::copy(&mut from, &mut writer));
    Ok(reader.into())
}

/// What the program writes to, and what has to be finished when it has ended.
pub(crate) fn output(caller: BorrowedFd<'_>) -> io::Result<(OwnedFd, Option<Output>)> {
    let to = File::from(caller.try_clone_to_owned()?);
    if may_enter(caller)? {
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
    /// Passes on what the program had written when it ended. What it left running may keep its end of the pipe open,
    /// and is not waited for.
    pub(crate) fn finish(self) {
        drop(self.end);
        let _ = self.thread.join();
    }
}

fn may_enter(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let kind = SFlag::from_bits_truncate(fstat(fd)?.st_mode) & SFlag::S_IFMT;
    // A named pipe is a file of the host, with an owner and a mode; one without a name is in the kernel's own file system.
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
            // Only the end of the program is left to hear of, and it has nothing more to say.
            return;
        }
        match from.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            // A caller that does not listen any more must not block the program.
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
    fn files_are_copied_and_pipes_are_passed() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"typed").unwrap();
        file.rewind().unwrap();
        let mut text = String::new();
        let given = input(file.as_fd()).unwrap();
        assert!(may_enter(given.as_fd()).unwrap());
        File::from(given).read_to_string(&mut text).unwrap();
        assert_eq!(text, "typed");

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let (given, relay) = output(fs::File::create(&path).unwrap().as_fd()).unwrap();
        assert!(may_enter(given.as_fd()).unwrap());
        let mut program = File::from(given);
        program.write_all(&[b'x'; 100_000]).unwrap();
        // Something that the program left running still has it open.
        let _left = program.try_clone().unwrap();
        relay.unwrap().finish();
        assert_eq!(fs::read(&path).unwrap().len(), 100_000);

        let (_reader, writer) = io::pipe().unwrap();
        assert!(output(writer.as_fd()).unwrap().1.is_none());

        let named = dir.path().join("named");
        nix::unistd::mkfifo(&named, nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR).unwrap();
        let named = fs::File::options().read(true).write(true).open(&named).unwrap();
        assert!(!may_enter(named.as_fd()).unwrap(), "a machine could change its mode and owner");
    }
}
