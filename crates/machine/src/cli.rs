//! The commands of `drover machine`: those of rancher-machine, with its exit codes. 1 means failed, 3 that the check
//! before creation failed and nothing was created, 4 not found. The `cli` crate only passes the arguments.

use std::{path::Path, time::Duration};

use serde::Serialize;

use crate::{
    driver::{Driver, DriverError, MachineRequest, PowerOp, Progress, State},
    flags,
    host::{Host, HostOptions},
    sshkey::SshKey,
    store::{MachineLock, Store, StoreError, valid_name},
};

/// Total time limit for a machine to be running.
const TIMEOUT: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_secs(3);
const LOCK_POLL: Duration = Duration::from_millis(100);

/// The exit code for a machine that does not exist.
pub const NOT_FOUND: i32 = 4;

/// The dependencies of the commands.
pub struct Cli<'a> {
    /// Where machines are recorded.
    pub store: &'a dyn Store,
    /// Returns the driver with a name.
    pub driver: &'a dyn Fn(&str) -> Option<Box<dyn Driver>>,
    /// A driver that can list its machines. Its machines that are not in the store are listed and managed too.
    pub known: Option<&'a dyn Driver>,
    /// Reads an environment variable.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// Sleeps.
    pub sleep: &'a dyn Fn(Duration),
}

/// Failure of a command: one sentence and the exit code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The exit code of the process.
    pub code: i32,
    /// One sentence, including the causes.
    pub message: String,
}

impl Failure {
    fn new(code: i32, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        let mut message = error.to_string();
        if let Some(cause) = std::error::Error::source(&error) {
            message = format!("{message}: {cause}");
        }
        Failure::new(1, message)
    }
}

impl From<DriverError> for Failure {
    fn from(error: DriverError) -> Failure {
        let code = if matches!(error, DriverError::NotFound(_)) { NOT_FOUND } else { 1 };
        Failure::new(code, error.to_string())
    }
}

/// The arguments of `create`, without the driver's own flags.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CreateArgs {
    /// `--driver`.
    pub driver: String,
    /// The machine's name.
    pub name: String,
    /// `--custom-install-script`: a file.
    pub custom_install_script: String,
    /// `--hostname-override`.
    pub hostname_override: String,
    /// `--machine-uid`: the UID of the object that requests the machine. A repeated create with the same UID adopts it.
    pub machine_uid: String,
    /// `--data-dir`, which can also follow the command.
    pub data_dir: String,
    /// All other arguments.
    pub driver_args: Vec<String>,
}

impl CreateArgs {
    /// Parses the arguments of `create`. Unknown flags are passed to the driver.
    pub fn parse(args: &[String]) -> Result<CreateArgs, Failure> {
        let own = ["driver", "custom-install-script", "hostname-override", "machine-uid", "data-dir"]
            .map(|name| flags::Flag::string(name, "", "", ""));
        let args: Vec<String> =
            args.iter().map(|arg| if arg == "-d" { "--driver".to_owned() } else { arg.clone() }).collect();
        let usage = |text: &str| Failure::new(1, text);
        let (values, mut rest) = flags::parse(&own, &args, |_| None).map_err(|text| usage(&text))?;
        let name = rest.pop().filter(|name| !name.starts_with('-'));
        let name = name.ok_or_else(|| usage("create requires the machine's name as its last argument"))?;
        Ok(CreateArgs {
            driver: values.string("driver").to_owned(),
            name,
            custom_install_script: values.string("custom-install-script").to_owned(),
            hostname_override: values.string("hostname-override").to_owned(),
            machine_uid: values.string("machine-uid").to_owned(),
            data_dir: values.string("data-dir").to_owned(),
            driver_args: rest,
        })
    }
}

/// The result of removing a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removal {
    /// The machine was deleted.
    Removed,
    /// There was no such machine.
    Absent,
    /// Only the record was deleted. The text names what may still exist.
    Forgotten(String),
}

/// A line of `ls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Its driver.
    pub driver: String,
    /// Its power state, or `Error`.
    pub state: String,
    /// Its address.
    pub address: String,
    /// Why its state is unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
}

impl Cli<'_> {
    /// Creates a machine and waits until it is running. Continues with a machine that is already in the store.
    pub fn create(&self, args: &CreateArgs) -> Result<Host, Failure> {
        valid_name(&args.name)?;
        let driver = self.find(&args.driver)?;
        let (values, unknown) = flags::parse(&driver.flags(), &args.driver_args, self.env)
            .map_err(|text| Failure::new(3, text))?;
        if let Some(word) = unknown.first() {
            return Err(Failure::new(3, format!("driver {} has no option {word}", args.driver)));
        }
        let mut request = MachineRequest {
            name: args.name.clone(),
            uid: args.machine_uid.clone(),
            hostname: args.hostname_override.clone(),
            install_script: read_script(&args.custom_install_script)?,
            authorized_key: String::new(),
            values,
        };
        // A rejected request leaves nothing behind, not even a lock file.
        driver.validate(&request).map_err(|error| Failure::new(3, error.to_string()))?;
        let _lock = self.lock(&args.name)?;
        let mut host = match self.store.load(&args.name)? {
            Some(host) if host.config.driver_name != args.driver => {
                let other = &host.config.driver_name;
                return Err(Failure::new(
                    1,
                    format!("machine {} already exists, created by driver {other}", args.name),
                ));
            }
            Some(host) => host,
            None => self.intent(args)?,
        };
        request.authorized_key = host
            .files
            .get("id_rsa.pub")
            .map(|key| String::from_utf8_lossy(key).trim().to_owned())
            .unwrap_or_default();
        let mut waited = Duration::ZERO;
        loop {
            let step = driver.ensure(&request, &mut host.config.driver);
            if let Ok(progress) = &step {
                host.set_addresses(&progress.addresses);
            }
            // Also after a failure: the driver may have recorded an id that must not be lost.
            self.store.save(&host)?;
            let progress = step?;
            if progress.state == State::Running {
                return Ok(host);
            }
            if waited >= TIMEOUT {
                return Err(Failure::new(
                    1,
                    format!("machine {} is still {} after 180 s", args.name, progress.state),
                ));
            }
            let pause = progress.next_poll.unwrap_or(POLL);
            (self.sleep)(pause);
            waited += pause;
        }
    }

    /// Records what is about to be created.
    fn intent(&self, args: &CreateArgs) -> Result<Host, Failure> {
        let options = HostOptions {
            custom_install_script: args.custom_install_script.clone(),
            hostname_override: args.hostname_override.clone(),
            machine_os: "linux".to_owned(),
            ..HostOptions::default()
        };
        let mut host = Host::new(&args.name, &args.driver, &self.store.path(), options);
        let key = SshKey::generate(&args.name).map_err(|error| Failure::new(1, error.to_string()))?;
        host.files.insert("id_rsa".to_owned(), key.private.into_bytes());
        host.files.insert("id_rsa.pub".to_owned(), format!("{}\n", key.public).into_bytes());
        self.store.save(&host)?;
        Ok(host)
    }

    /// Removes a machine. Succeeds if it is not in the store. With `force`, its record is deleted even if the driver
    /// fails.
    pub fn rm(&self, name: &str, force: bool) -> Result<Removal, Failure> {
        let _lock = self.lock(name)?;
        let Some(mut host) = self.store.load(name)? else { return self.rm_unsaved(name) };
        let outcome = self.find(&host.config.driver_name).and_then(|driver| self.delete(&*driver, &mut host));
        match outcome {
            Ok(()) => self.store.remove(name).map(|()| Removal::Removed).map_err(Failure::from),
            Err(failure) if force => {
                self.store.remove(name)?;
                let id = host.driver_text("InstanceId");
                Ok(Removal::Forgotten(format!("machine {name} {id} may still exist: {}", failure.message)))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Deletes a machine that is not in this store, if the driver can find it.
    fn rm_unsaved(&self, name: &str) -> Result<Removal, Failure> {
        let (Some(driver), Some(mut host)) = (self.known, self.unsaved(name)?) else {
            return Ok(Removal::Absent);
        };
        driver.delete(name, &mut host.config.driver)?;
        Ok(Removal::Removed)
    }

    fn unsaved_machines(&self) -> Result<Vec<(String, Progress)>, Failure> {
        self.known.map_or_else(|| Ok(Vec::new()), |driver| driver.list().map_err(Failure::from))
    }

    fn known_name(&self) -> &str {
        self.known.map_or("", |driver| driver.name())
    }

    /// A machine that is not in the store, in the form in which the store would have it.
    fn unsaved(&self, name: &str) -> Result<Option<Host>, Failure> {
        let found = self.unsaved_machines()?.into_iter().find(|(known, _)| known == name);
        Ok(found.map(|(name, progress)| {
            let mut host = Host::new(&name, self.known_name(), &self.store.path(), HostOptions::default());
            host.set_addresses(&progress.addresses);
            host.config.driver.insert("InstanceId".to_owned(), progress.id.into());
            host
        }))
    }

    fn delete(&self, driver: &dyn Driver, host: &mut Host) -> Result<(), Failure> {
        let name = host.config.name.clone();
        let mut waited = Duration::ZERO;
        loop {
            let step = driver.delete(&name, &mut host.config.driver);
            self.store.save(host)?;
            let progress = match step {
                // External drivers report this only as text.
                Err(error) if error.to_string().to_lowercase().contains("not found") => return Ok(()),
                other => other?,
            };
            if progress.state == State::NotFound {
                return Ok(());
            }
            if waited >= TIMEOUT {
                return Err(Failure::new(
                    1,
                    format!("machine {name} is still {} after 180 s", progress.state),
                ));
            }
            let pause = progress.next_poll.unwrap_or(POLL);
            (self.sleep)(pause);
            waited += pause;
        }
    }

    /// Lists every machine with its state. If a driver fails, only the rows of its machines show an error.
    pub fn ls(&self) -> Result<Vec<Listed>, Failure> {
        let mut lines = Vec::new();
        for name in self.store.list()? {
            let Some(host) = self.store.load(&name)? else { continue };
            let seen = self
                .find(&host.config.driver_name)
                .and_then(|driver| driver.observe(&name, &host.config.driver).map_err(Failure::from));
            let (state, error) = match seen {
                Ok(progress) => (progress.state.to_string(), String::new()),
                Err(failure) if failure.code == NOT_FOUND => (State::NotFound.to_string(), failure.message),
                Err(failure) => (State::Error.to_string(), failure.message),
            };
            let driver = host.config.driver_name.clone();
            lines.push(Listed {
                address: host.driver_text("IPAddress").to_owned(),
                name,
                driver,
                state,
                error,
            });
        }
        for (name, progress) in self.unsaved_machines()? {
            if lines.iter().all(|line| line.name != name) {
                lines.push(Listed {
                    name,
                    driver: self.known_name().to_owned(),
                    state: progress.state.to_string(),
                    address: progress.addresses.external.map(|ip| ip.to_string()).unwrap_or_default(),
                    error: String::new(),
                });
            }
        }
        lines.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(lines)
    }

    /// `config.json` of a machine.
    pub fn inspect(&self, name: &str) -> Result<String, Failure> {
        let mut files = self.load(name)?.to_files().map_err(|error| Failure::new(1, error.to_string()))?;
        Ok(String::from_utf8_lossy(&files.remove("config.json").unwrap_or_default()).into_owned())
    }

    /// The address of a machine.
    pub fn ip(&self, name: &str) -> Result<String, Failure> {
        let host = self.load(name)?;
        match host.driver_text("IPAddress") {
            "" => Err(Failure::new(1, format!("machine {name} has no address yet"))),
            address => Ok(address.to_owned()),
        }
    }

    /// The state of a machine.
    pub fn status(&self, name: &str) -> Result<State, Failure> {
        let host = self.load(name)?;
        Ok(self.find(&host.config.driver_name)?.observe(name, &host.config.driver)?.state)
    }

    /// Starts, stops, restarts or kills a machine.
    pub fn power(&self, name: &str, op: PowerOp) -> Result<State, Failure> {
        let _lock = self.lock(name)?;
        let mut host = self.load(name)?;
        let progress = self.find(&host.config.driver_name)?.power(name, &host.config.driver, op)?;
        let saved = self.store.load(name)?;
        host.set_addresses(&progress.addresses);
        if saved.is_some_and(|saved| saved != host) {
            self.store.save(&host)?;
        }
        Ok(progress.state)
    }

    /// Runs a command, or a shell, in a machine and returns its exit code.
    pub fn ssh(&self, name: &str, command: &[String]) -> Result<i32, Failure> {
        let host = self.load(name)?;
        let driver = self.find(&host.config.driver_name)?;
        let state = driver.observe(name, &host.config.driver)?.state;
        if state != State::Running {
            return Err(Failure::new(1, format!("machine {name} is {state}; start it first")));
        }
        Ok(driver.exec(name, &host.config.driver, command)?)
    }

    /// Waits until no other process has locked the machine, such as a creating process whose parent died. A create then
    /// adopts what that process created, and a removal deletes it.
    fn lock(&self, name: &str) -> Result<MachineLock, Failure> {
        let mut waited = Duration::ZERO;
        loop {
            match self.store.lock(name) {
                Err(StoreError::Busy(_)) if waited < TIMEOUT => {
                    (self.sleep)(LOCK_POLL);
                    waited += LOCK_POLL;
                }
                other => return Ok(other?),
            }
        }
    }

    fn load(&self, name: &str) -> Result<Host, Failure> {
        match self.store.load(name)? {
            Some(host) => Ok(host),
            None => self
                .unsaved(name)?
                .ok_or_else(|| Failure::new(NOT_FOUND, format!("machine {name:?} not found"))),
        }
    }

    fn find(&self, name: &str) -> Result<Box<dyn Driver>, Failure> {
        let unknown = || match name {
            "" => "no driver is specified; add for example --driver local".to_owned(),
            name => format!("unknown driver {name:?}; `drover machine create --help` lists the drivers"),
        };
        (self.driver)(name).ok_or_else(|| Failure::new(1, unknown()))
    }
}

/// Formats the output of `ls`.
pub fn table(lines: &[Listed]) -> String {
    let mut out = format!("{:<32} {:<12} {:<10} ADDRESS\n", "NAME", "DRIVER", "STATE");
    for line in lines {
        out.push_str(&format!("{:<32} {:<12} {:<10} {}\n", line.name, line.driver, line.state, line.address));
    }
    out
}

fn read_script(path: &str) -> Result<String, Failure> {
    if path.is_empty() {
        return Ok(String::new());
    }
    std::fs::read_to_string(Path::new(path))
        .map_err(|error| Failure::new(3, format!("failed to read the install script {path}: {error}")))
}
