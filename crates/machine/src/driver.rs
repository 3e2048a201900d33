//! What every driver can do. Calls block, are idempotent, and may be cut off anywhere and repeated: a driver records what
//! it is about to make in its state before it makes it, and adopts what it finds.
//!
//! Calls block because a driver runs in a process of its own (a provisioning Job); async code uses a blocking task.

use std::{fmt, net::IpAddr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::flags::{Flag, Values};

/// The driver's part of `config.json`: flat, with the field names of the Go drivers (`InstanceId`, `IPAddress`, …), so
/// that state written by rancher-machine can be adopted and ours can be read.
pub type DriverState = serde_json::Map<String, serde_json::Value>;

/// A kind of infrastructure.
pub trait Driver: Send + Sync {
    /// The name that flags and schemas begin with.
    fn name(&self) -> &str;

    /// Every option, from which the schema of `<Driver>Config` is made.
    fn flags(&self) -> Vec<Flag>;

    /// Looks whether the request can be met, without making anything.
    fn validate(&self, request: &MachineRequest) -> Result<(), DriverError>;

    /// Takes the next step towards a running machine. The caller saves `state` after every call, also a failed one, and
    /// calls again after `next_poll` until the machine runs.
    fn ensure(&self, request: &MachineRequest, state: &mut DriverState) -> Result<Progress, DriverError>;

    /// Looks at the machine.
    fn observe(&self, name: &str, state: &DriverState) -> Result<Progress, DriverError>;

    /// Takes the next step towards no machine at all; [`State::NotFound`] means done. No machine is success.
    fn delete(&self, name: &str, state: &mut DriverState) -> Result<Progress, DriverError>;

    /// Starts, stops, restarts or kills the machine.
    fn power(&self, name: &str, state: &DriverState, op: PowerOp) -> Result<Progress, DriverError>;

    /// Machines that the driver knows by itself, without any state of ours: those whose state is elsewhere (in a
    /// machine-state Secret) or lost. Most providers cannot tell theirs from others'.
    fn list(&self) -> Result<Vec<(String, Progress)>, DriverError> {
        Ok(Vec::new())
    }

    /// Runs a program in the machine, on this process' terminal if there is one, and returns its exit code. For
    /// drivers whose machines are reached without SSH.
    fn exec(&self, name: &str, _state: &DriverState, _argv: &[String]) -> Result<i32, DriverError> {
        Err(DriverError::Invalid(format!("driver {} offers no shell on {name}", self.name())))
    }
}

/// What somebody wants.
#[derive(Debug, Clone, Default)]
pub struct MachineRequest {
    /// The machine's name.
    pub name: String,
    /// Who wants it (`drover.io/machine-uid`); the same one adopts.
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

/// Where a machine stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The provider's id of the machine; empty while there is none.
    pub id: String,
    /// Where it can be reached.
    pub addresses: Addresses,
    /// What it does.
    pub state: State,
    /// When to look again; `None` if there is nothing to wait for.
    pub next_poll: Option<Duration>,
}

/// Where a machine can be reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses {
    /// `IPAddress`: from outside.
    pub external: Option<IpAddr>,
    /// `PrivateIPAddress`: from its neighbours.
    pub internal: Option<IpAddr>,
    /// `IPv6Address`.
    pub ipv6: Option<IpAddr>,
}

/// The states of rancher-machine, with its numbers.
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

/// What to do with a machine's power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerOp {
    /// Switches it on.
    Start,
    /// Shuts it down in order.
    Stop,
    /// Shuts it down in order and switches it on again.
    Restart,
    /// Pulls the plug.
    Kill,
}

/// Why a driver could not do it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DriverError {
    /// The request cannot be met as it is; the text names the field or the fix.
    #[error("{0}")]
    Invalid(String),
    /// There is no such machine.
    #[error("machine {0:?} not found")]
    NotFound(String),
    /// The provider failed; trying again may help.
    #[error("{message}")]
    Failed {
        /// What the provider said.
        message: String,
        /// How long the provider wants to be left alone.
        retry_after: Option<Duration>,
    },
}

impl DriverError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, DriverError::Failed { .. })
    }
}
