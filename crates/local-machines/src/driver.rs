//! The `local` driver: implements the trait of all drivers with [`Local`].

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal},
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use crate::{
    client::Local,
    error::Error,
    exec::Terminal,
    protocol::{CreateOptions, MachineInfo, PowerState, ReadOnlyMount},
    validate::validate,
};
use drover_machine::{
    driver::{Addresses, Driver, DriverError, DriverState, MachineRequest, PowerOp, Progress, State},
    flags::Flag,
};

const CPUS: &str = "local-cpus";

/// Creates machines on this host.
#[derive(Debug, Clone)]
pub struct LocalDriver {
    data_dir: PathBuf,
    exe: PathBuf,
    mounts: Vec<ReadOnlyMount>,
}

impl LocalDriver {
    /// A driver for the machines of one data directory; see [`Local::open`].
    pub fn new(data_dir: &Path, exe: &Path) -> LocalDriver {
        LocalDriver { data_dir: data_dir.to_owned(), exe: exe.to_owned(), mounts: Vec::new() }
    }

    /// Host paths that every new machine sees read-only, such as the folder of images. This is not a flag: a user who
    /// can create machines must not be able to read files of the host.
    pub fn with_mounts(mut self, mounts: Vec<ReadOnlyMount>) -> LocalDriver {
        self.mounts = mounts;
        self
    }

    fn options(&self, request: &MachineRequest) -> CreateOptions {
        CreateOptions {
            uid: request.uid.clone(),
            hostname: request.hostname.clone(),
            install_script: request.install_script.clone(),
            authorized_key: request.authorized_key.clone(),
            cpus: u32::try_from(request.values.int(CPUS)).unwrap_or(0),
            mounts: self.mounts.clone(),
            hosts: BTreeMap::new(),
        }
    }

    fn local(&self) -> Result<Local, DriverError> {
        Local::attach(&self.data_dir, &self.exe).map_err(failed)
    }
}

impl Driver for LocalDriver {
    fn name(&self) -> &str {
        "local"
    }

    fn flags(&self) -> Vec<Flag> {
        vec![Flag::int(CPUS, 0, "LOCAL_CPUS", "How many processors the machine may use; 0 means all")]
    }

    fn validate(&self, request: &MachineRequest) -> Result<(), DriverError> {
        let cpus = request.values.int(CPUS);
        if u32::try_from(cpus).is_err() {
            return Err(DriverError::Invalid(format!("--{CPUS}={cpus} must not be negative")));
        }
        validate(&request.name, &self.options(request)).map_err(failed)?;
        // Starting the holder checks whether this host supports local machines.
        Local::open(&self.data_dir, &self.exe).map(drop).map_err(failed)
    }

    fn ensure(&self, request: &MachineRequest, state: &mut DriverState) -> Result<Progress, DriverError> {
        let machine = self.local()?.create(&request.name, &self.options(request)).map_err(failed)?;
        state.insert("InstanceId".to_owned(), machine.machine_id.clone().into());
        Ok(progress(&machine))
    }

    fn observe(&self, name: &str, _state: &DriverState) -> Result<Progress, DriverError> {
        self.local()?.inspect(name).map(|machine| progress(&machine)).map_err(failed)
    }

    fn delete(&self, name: &str, state: &mut DriverState) -> Result<Progress, DriverError> {
        self.local()?.rm(name).map_err(failed)?;
        state.remove("InstanceId");
        Ok(Progress {
            id: String::new(),
            addresses: Addresses::default(),
            state: State::NotFound,
            next_poll: None,
        })
    }

    fn power(&self, name: &str, _state: &DriverState, op: PowerOp) -> Result<Progress, DriverError> {
        let local = self.local()?;
        match op {
            PowerOp::Start => local.start(name),
            PowerOp::Stop => local.stop(name),
            PowerOp::Kill => local.kill(name),
            PowerOp::Restart => local.stop(name).and_then(|_| local.start(name)),
        }
        .map(|machine| progress(&machine))
        .map_err(failed)
    }

    fn list(&self) -> Result<Vec<(String, Progress)>, DriverError> {
        let machines = self.local()?.list().map_err(failed)?;
        Ok(machines.iter().map(|machine| (machine.name.clone(), progress(machine))).collect())
    }

    fn exec(&self, name: &str, _state: &DriverState, argv: &[String]) -> Result<i32, DriverError> {
        let local = self.local()?;
        let mut env = BTreeMap::new();
        if let Ok(term) = std::env::var("TERM") {
            env.insert("TERM".to_owned(), term);
        }
        let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
        // Only an interactive login gets a terminal.
        let (argv, terminal) = if argv.is_empty() && stdin.is_terminal() && stdout.is_terminal() {
            let login = "if command -v bash >/dev/null; then exec bash -l; else exec sh -l; fi";
            (shell(login), Terminal::Interactive)
        } else {
            let argv = if argv.is_empty() { vec!["/bin/sh".to_owned()] } else { shell(&line(argv)) };
            (argv, Terminal::Descriptors(stdin.as_fd(), stdout.as_fd(), stderr.as_fd()))
        };
        local.exec(name, &argv, &env, terminal).map_err(failed)
    }
}

fn shell(line: &str) -> Vec<String> {
    ["/bin/sh", "-c", line].map(str::to_owned).into()
}

/// Converts the arguments to a command line for the shell. One argument is used as it is. Several are a program and its
/// arguments; unlike ssh, each is quoted, so that `sh -c "…"` works as expected.
fn line(words: &[String]) -> String {
    match words {
        [line] => line.clone(),
        words => words
            .iter()
            .map(|word| format!("'{}'", word.replace('\'', r"'\''")))
            .collect::<Vec<_>>()
            .join(" "),
    }
}

fn progress(machine: &MachineInfo) -> Progress {
    Progress {
        id: machine.machine_id.clone(),
        addresses: Addresses { external: Some(machine.ip.into()), ..Addresses::default() },
        state: match machine.state {
            PowerState::Running => State::Running,
            PowerState::Starting => State::Starting,
            PowerState::Stopped => State::Stopped,
            PowerState::Stopping => State::Stopping,
        },
        next_poll: None,
    }
}

fn failed(error: Error) -> DriverError {
    match error {
        Error::NotFound(name) => DriverError::NotFound(name),
        Error::Invalid(_) | Error::Unsupported(_) => DriverError::Invalid(error.to_string()),
        other => DriverError::Failed { message: other.chain(), retry_after: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_argument_is_a_shell_line_and_several_are_quoted() {
        let of = |words: &[&str]| line(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["ps aux | wc -l"]), "ps aux | wc -l");
        assert_eq!(of(&["sh", "-c", "echo it's; exit 3"]), r"'sh' '-c' 'echo it'\''s; exit 3'");
    }
}
