//! Programs started from outside, by `drover machine ssh`: with the caller's descriptors, or on a terminal of the
//! machine whose master side goes back to the caller. Process 1 is the parent, so no namespace has to be joined.

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

use super::{
    super::{
        protocol::{InitReply, TtySize},
        sys, wire,
    },
    command::PATH,
    manager::Manager,
};

/// Runs a program for a caller and tells it how the program ended. If the caller goes away, so does the program.
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
        wire::send(stream, &InitReply::Failed(format!("cannot run {program:?}: {error}")), &[])
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
    // Lets go of the caller's descriptors and of the terminal's slave.
    drop(command);
    let pid = match spawned {
        Ok(pid) => pid,
        Err(error) => return fail(&error),
    };
    let fds: Vec<_> = master.iter().map(AsFd::as_fd).collect();
    wire::send(stream, &InitReply::Started, &fds)?;
    drop(master);
    // The caller says nothing more; this returns when it hangs up or when the program has ended.
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
    let (program, args) = argv.split_first().ok_or_else(|| io::Error::other("no program was named"))?;
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
            // Or it would become the terminal of process 1, which leads a session, and the shell could not have it.
            let slave = File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open(slave)?;
            command.stdin(slave.try_clone()?).stdout(slave.try_clone()?).stderr(slave);
            Ok((command, Some(master)))
        }
        None => {
            let [stdin, stdout, stderr] = <[OwnedFd; 3]>::try_from(fds)
                .map_err(|_| io::Error::other("stdin, stdout and stderr must come with the request"))?;
            command.stdin(stdin).stdout(stdout).stderr(stderr);
            Ok((command, None))
        }
    }
}
