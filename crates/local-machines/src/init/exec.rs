//! Runs programs for callers outside of the machine (`drover machine ssh`): with the descriptors of the caller, or on a
//! terminal of the machine whose master is sent to the caller. Process 1 is the parent, so no namespace has to be
//! joined.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{fs::OpenOptionsExt, net::UnixStream},
    },
    process::Command,
    sync::mpsc::channel,
};

use nix::{
    libc,
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

use super::{command::PATH, manager::Manager};
use crate::{
    protocol::{InitReply, TtySize},
    sys, wire,
};

/// Runs a program for a caller and reports its exit code. If the caller disconnects, the program gets SIGHUP.
pub(crate) fn exec(
    manager: &Manager,
    stream: &UnixStream,
    argv: &[String],
    env: &BTreeMap<String, String>,
    tty: Option<TtySize>,
    fds: Vec<OwnedFd>,
) -> io::Result<()> {
    let fail = |error: &io::Error| {
        let program = argv.first().map_or("", String::as_str);
        wire::send(stream, &InitReply::Failed(format!("failed to run {program:?}: {error}")), &[])
    };
    let (mut command, master) = match prepare(argv, env, tty, fds) {
        Ok(made) => made,
        Err(error) => return fail(&error),
    };
    let (sender, end) = channel();
    let hangup = stream.try_clone()?;
    let spawned = manager.reaper.spawn(&mut command, move |ended| {
        let _ = sender.send(ended);
        // Wakes the thread below that waits for the caller.
        let _ = hangup.shutdown(std::net::Shutdown::Read);
    });
    // Closes the caller's descriptors and the slave of the terminal.
    drop(command);
    let pid = match spawned {
        Ok(pid) => pid,
        Err(error) => return fail(&error),
    };
    let fds: Vec<_> = master.iter().map(AsFd::as_fd).collect();
    wire::send(stream, &InitReply::Started, &fds)?;
    drop(master);
    // The caller sends nothing more. This returns when it disconnects or when the program has exited.
    let _ = wire::recv::<serde_json::Value>(stream);
    if let Ok(ended) = end.try_recv() {
        return wire::send(stream, &InitReply::Exited(ended.code()), &[]);
    }
    let _ = killpg(Pid::from_raw(pid), Signal::SIGHUP);
    Ok(())
}

fn prepare(
    argv: &[String],
    env: &BTreeMap<String, String>,
    tty: Option<TtySize>,
    fds: Vec<OwnedFd>,
) -> io::Result<(Command, Option<OwnedFd>)> {
    let (program, args) = argv.split_first().ok_or_else(|| io::Error::other("no program was specified"))?;
    let mut command = Command::new(program);
    let base = [
        ("PATH", PATH),
        ("LANG", "C.UTF-8"),
        ("HOME", "/root"),
        ("USER", "root"),
        ("LOGNAME", "root"),
        ("SHELL", "/bin/sh"),
    ];
    command.args(args).env_clear().envs(base).envs(env).current_dir("/root");
    sys::new_session(&mut command, tty.is_some());
    match tty {
        Some(size) => {
            let (master, slave) = sys::open_terminal(size.rows, size.cols)?;
            // Without O_NOCTTY it would become the controlling terminal of process 1, which is a session leader, and
            // not of the shell.
            let slave = File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open(slave)?;
            command.stdin(slave.try_clone()?).stdout(slave.try_clone()?).stderr(slave);
            Ok((command, Some(master)))
        }
        None => {
            let [stdin, stdout, stderr] = <[OwnedFd; 3]>::try_from(fds)
                .map_err(|_| io::Error::other("the request must contain stdin, stdout and stderr"))?;
            command.stdin(stdin).stdout(stdout).stderr(stderr);
            Ok((command, None))
        }
    }
}
