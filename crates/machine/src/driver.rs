//! The interface of all drivers.
//!
//! Calls are idempotent and can be interrupted at any point and repeated: a driver records in its state what it is about
//! to create before it creates it, and adopts what already exists.
//!
//! Calls block because a driver runs in its own process (a provisioning Job). Async code uses a blocking task.

use std::{fmt, net::IpAddr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::flags::{Flag, Values};

/// The driver's part of `config.json`: a flat object with the field names of the Go drivers (`InstanceId`, `IPAddress`,
/// …), so that Drover can adopt state written by rancher-machine, and rancher-machine can read state written by Drover.
pub type DriverState = serde_json::Map<String, serde_json::Value>;

/// A kind of infrastructure.
pub trait Driver: Send + Sync {
    /// The prefix of flags and schemas.
    fn name(&self) -> &str;

    /// All options; the schema of `<Driver>Config` is generated from them.
    fn flags(&self) -> Vec<Flag>;

    /// Checks whether the request can be fulfilled, without creating anything.
    fn validate(&self, request: &MachineRequest) -> Result<(), DriverError>;

    /// Performs the next step of creating a machine. The caller saves `state` after every call, including failed ones,
    /// and repeats the call after `next_poll` until the machine is running.
    fn ensure(&self, request: &MachineRequest, state: &mut DriverState) -> Result<Progress, DriverError>;

    /// Returns the current state of the machine.
    fn observe(&self, name: &str, state: &DriverState) -> Result<Progress, DriverError>;

    /// Performs the next step of deleting the machine. [`State::NotFound`] means that the machine is deleted; deleting a
    /// machine that does not exist succeeds.
    fn delete(&self, name: &str, state: &mut DriverState) -> Result<Progress, DriverError>;

    /// Starts, stops, restarts or kills the machine.
    fn power(&self, name: &str, state: &DriverState, op: PowerOp) -> Result<Progress, DriverError>;

    /// Lists machines that the driver can find without saved state, including those whose state is in a machine-state
    /// Secret or lost. Most providers cannot distinguish Drover's machines from others and return none.
    fn list(&self) -> Result<Vec<(String, Progress)>, DriverError> {
        Ok(Vec::new())
    }

    /// Runs a program in the machine, on the terminal of this process if there is one, and returns its exit code. For
    /// drivers whose machines are accessed without SSH.
    fn exec(&self, name: &str, _state: &DriverState, _argv: &[String]) -> Result<i32, DriverError> {
        Err(DriverError::Invalid(format!(
            "cannot run a command on {name}: driver {} does not support it",
            self.name()
        )))
    }
}

/// The requested machine.
#[derive(Debug, Clone, Default)]
pub struct MachineRequest {
    /// The machine's name.
    pub name: String,
    /// UID of the object that requests it (`drover.io/machine-uid`). A repeated request with the same UID adopts the
    /// machine.
    pub uid: String,
    /// The host name, if it differs from the name.
    pub hostname: String,
    /// The script that bootstraps the machine at its first boot.
    pub install_script: String,
    /// The public SSH key of the machine's key pair.
    pub authorized_key: String,
    /// The driver's own options.
    pub values: Values,
}

/// The observed state of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The provider's id of the machine; empty if it has none yet.
    pub id: String,
    /// Its addresses.
    pub addresses: Addresses,
    /// Its power state.
    pub state: State,
    /// When to check again; `None` if there is nothing to wait for.
    pub next_poll: Option<Duration>,
}

/// The addresses of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses {
    /// `IPAddress`: reachable from outside.
    pub external: Option<IpAddr>,
    /// `PrivateIPAddress`: reachable from the other machines.
    pub internal: Option<IpAddr>,
    /// `IPv6Address`.
    pub ipv6: Option<IpAddr>,
}

/// The states of rancher-machine, with the same numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum State {
    None = 0,
    Running = 1,
    Paused = 2,
    Saved = 3,
    Stopped = 4,
    Stopping = 5,
    Starting = 6,
    Error = 7,
    Timeout = 8,
    NotFound = 9,
}

impl fmt::Display for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            State::None => "",
            State::Running => "Running",
            State::Paused => "Paused",
            State::Saved => "Saved",
            State::Stopped => "Stopped",
            State::Stopping => "Stopping",
            State::Starting => "Starting",
            State::Error => "Error",
            State::Timeout => "Timeout",
            State::NotFound => "Not Found",
        })
    }
}

/// A power operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerOp {
    /// Switches it on.
    Start,
    /// Shuts it down gracefully.
    Stop,
    /// Shuts it down gracefully and switches it on again.
    Restart,
    /// Switches it off immediately.
    Kill,
}

/// Failure of a driver.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DriverError {
    /// The request is invalid. The text names the field or the fix.
    #[error("{0}")]
    Invalid(String),
    /// The machine does not exist.
    #[error("machine {0:?} not found")]
    NotFound(String),
    /// The provider failed; a retry may succeed.
    #[error("{message}")]
    Failed {
        /// The provider's error message.
        message: String,
        /// The delay that the provider requests before a retry.
        retry_after: Option<Duration>,
    },
}

impl DriverError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, DriverError::Failed { .. })
    }
}
