//! Runs programs in a machine from outside: `drover machine ssh`.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, IsTerminal, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

use crate::{
    client::Local,
    error::{Error, Result},
    protocol::{InitReply, InitRequest, TtySize},
    relay, sys, wire,
};

/// The standard streams of a program in a machine.
#[derive(Debug)]
pub enum Terminal<'a> {
    /// These three descriptors: stdin, stdout, stderr. The program gets pipes to them, unless they are pipes or
    /// sockets.
    Descriptors(BorrowedFd<'a>, BorrowedFd<'a>, BorrowedFd<'a>),
    /// A terminal of the machine, connected to stdin and stdout of this process.
    Interactive,
}

impl Local {
    /// Runs a program as root in a machine and returns its exit code (128 + signal if it was killed).
    pub fn exec(
        &self,
        name: &str,
        argv: &[String],
        env: &BTreeMap<String, String>,
        terminal: Terminal<'_>,
    ) -> Result<i32> {
        let lost = |source| Error::Connection { peer: "the machine", source };
        let stream =
            wire::connect(&self.layout().machine(name).control()).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => Error::NotFound(name.to_owned()),
                _ => Error::Invalid(format!("machine {name} is not running; start it first")),
            })?;
        let interactive = matches!(terminal, Terminal::Interactive);
        let tty = interactive.then(|| {
            let (rows, cols) = sys::terminal_size(&io::stdin()).unwrap_or((24, 80));
            TtySize { rows, cols }
        });
        let request = InitRequest::Exec { argv: argv.to_vec(), env: env.clone(), tty };
        let mut relays = Vec::new();
        match terminal {
            Terminal::Descriptors(stdin, stdout, stderr) => {
                let stdin = relay::input(stdin).map_err(lost)?;
                let (stdout, out) = relay::output(stdout).map_err(lost)?;
                let (stderr, err) = relay::output(stderr).map_err(lost)?;
                relays.extend(out.into_iter().chain(err));
                wire::send(&stream, &request, &[stdin.as_fd(), stdout.as_fd(), stderr.as_fd()])
            }
            Terminal::Interactive => wire::send(&stream, &request, &[]),
        }
        .map_err(lost)?;
        let mut raw = None;
        loop {
            match wire::recv::<InitReply>(&stream).map_err(lost)? {
                Some((InitReply::Started, fds)) => {
                    if let Some(master) = fds.into_iter().next() {
                        raw = RawMode::enter();
                        join(master).map_err(lost)?;
                    }
                }
                Some((InitReply::Exited(code), _)) => {
                    drop(raw);
                    relays.into_iter().for_each(relay::Output::finish);
                    return Ok(code);
                }
                Some((InitReply::Failed(why), _)) => return Err(Error::Failed(why)),
                Some((InitReply::Output { .. }, _)) => return Err(lost(io::ErrorKind::InvalidData.into())),
                None => return Err(Error::Failed(format!("machine {name} was powered off"))),
            }
        }
    }

    /// Runs a program. Returns its exit code, and its stdout and stderr as one string.
    pub fn output(&self, name: &str, argv: &[&str]) -> Result<(i32, String)> {
        let pipe_error = |source| Error::Connection { peer: "the machine", source };
        let (mut reader, writer) = io::pipe().map_err(pipe_error)?;
        let null = File::open("/dev/null").map_err(pipe_error)?;
        let collect = std::thread::spawn(move || {
            let mut text = Vec::new();
            reader.read_to_end(&mut text).map(|_| String::from_utf8_lossy(&text).into_owned())
        });
        let argv: Vec<String> = argv.iter().map(|&arg| arg.to_owned()).collect();
        let terminal = Terminal::Descriptors(null.as_fd(), writer.as_fd(), writer.as_fd());
        let code = self.exec(name, &argv, &BTreeMap::new(), terminal);
        drop(writer);
        let text = collect.join().map_err(|_| Error::Failed("failed to read the output".to_owned()))?;
        Ok((code?, text.map_err(pipe_error)?))
    }
}

/// Copies input to the machine's terminal and its output to stdout, until the terminal closes.
fn join(master: OwnedFd) -> io::Result<()> {
    let mut output = File::from(master);
    let mut keys = output.try_clone()?;
    // Not joined: the thread is blocked reading stdin and ends with this process.
    std::thread::spawn(move || {
        let mut buffer = [0u8; 4096];
        while let Ok(length @ 1..) = io::stdin().read(&mut buffer) {
            if keys.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
    });
    let mut buffer = [0u8; 16384];
    let mut size = sys::terminal_size(&io::stdin());
    loop {
        match output.read(&mut buffer) {
            // EIO means that no process has the terminal open any more.
            Ok(0) | Err(_) => return Ok(()),
            Ok(length) => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(&buffer[..length])?;
                stdout.flush()?;
            }
        }
        // A full-screen program redraws often, and only then does the size matter.
        let now = sys::terminal_size(&io::stdin());
        if let (true, Some((rows, cols))) = (now != size, now) {
            sys::set_terminal_size(&output, rows, cols)?;
            size = now;
        }
    }
}

/// Puts the terminal of this process into raw mode until this value is dropped.
struct RawMode(Termios);

impl RawMode {
    fn enter() -> Option<RawMode> {
        if !io::stdin().is_terminal() {
            return None;
        }
        let before = tcgetattr(io::stdin()).ok()?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(io::stdin(), SetArg::TCSANOW, &raw).ok()?;
        Some(RawMode(before))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.0);
    }
}
