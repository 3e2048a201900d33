//! The messages between client, holder and init, and the records that the holder writes.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use crate::{cgroup::Group, error::WireError};

/// The options of a new machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CreateOptions {
    /// UID of the object that requests the machine (`drover.io/machine-uid`). A repeated create with the same UID
    /// adopts the machine; a create with another UID is rejected; an empty UID adopts any machine with that name.
    pub uid: String,
    /// The machine's host name; the machine's name if empty.
    pub hostname: String,
    /// A shell script that runs at the first boot. It runs again after a failure or a crash, but not after it has
    /// succeeded.
    pub install_script: String,
    /// The number of processors that the machine can use; all if 0 or more than available.
    pub cpus: u32,
    /// A public SSH key for `/root/.ssh/authorized_keys`.
    pub authorized_key: String,
    /// Host directories or files that the machine sees read-only.
    pub mounts: Vec<ReadOnlyMount>,
    /// Additional entries of `/etc/hosts`: name to address.
    pub hosts: BTreeMap<String, String>,
}

/// A host path that a machine sees read-only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadOnlyMount {
    /// Absolute path on the host.
    pub source: PathBuf,
    /// Absolute path in the machine.
    pub target: PathBuf,
}

/// Whether a machine is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PowerState {
    /// Process 1 is running and has completed the boot.
    Running,
    /// Process 1 is being started.
    Starting,
    /// There is no process. The disk is kept.
    Stopped,
    /// Units are being stopped.
    Stopping,
}

/// Progress of the install script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum InstallState {
    /// The machine has no install script.
    None,
    /// It has not succeeded yet.
    Pending,
    /// It ended with exit code 0 and will not run again.
    Done,
}

/// The state of a machine. A holder outlives the program that started it, so this is exchanged between versions: fields
/// added after the first release need a default.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineInfo {
    /// Its name, unique in the data directory.
    pub name: String,
    /// `CreateOptions::uid` of the create that made it.
    pub uid: String,
    /// Its host name.
    pub hostname: String,
    /// Its address on the bridge.
    pub ip: Ipv4Addr,
    /// `/etc/machine-id`.
    pub machine_id: String,
    /// Its power state.
    pub state: PowerState,
    /// A user switched it off: only a start or a create switches it on again.
    #[serde(default)]
    pub switched_off: bool,
    /// Its process 1, in the host's pid namespace.
    pub pid: Option<i32>,
    /// Progress of the install script.
    pub install: InstallState,
    /// When it was created.
    pub created: String,
    /// The log of process 1 during its boot.
    pub console_log: PathBuf,
    /// The error of the last failed start.
    pub error: Option<String>,
}

/// The record of a machine, written before anything is created for it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) hostname: String,
    pub(crate) machine_id: String,
    pub(crate) ip: Ipv4Addr,
    pub(crate) created: String,
    pub(crate) phase: Phase,
    #[serde(default)]
    pub(crate) switched_off: bool,
    pub(crate) options: CreateOptions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Phase {
    /// The intent is recorded; the disk may be incomplete.
    Creating,
    /// The disk is complete.
    Ready,
    /// The machine is being removed. A holder that reads this completes the removal.
    Deleting,
}

/// From client to holder.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "camelCase")]
pub(crate) enum Request {
    Hello,
    Create { name: String, options: CreateOptions },
    Remove { name: String },
    Start { name: String },
    Stop { name: String, grace_seconds: u64 },
    Kill { name: String },
    List,
    Inspect { name: String },
    Listen { port: u16 },
    Dial { address: SocketAddr, timeout_ms: u64 },
    Shutdown { grace_seconds: u64 },
    Destroy,
}

/// From holder to client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Reply {
    Value(serde_json::Value),
    Error(WireError),
}

/// The holder and its network.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HolderInfo {
    /// The holder's process id.
    pub pid: u32,
    /// Changes whenever a holder starts. Sockets of an earlier holder are closed.
    pub instance: String,
    /// The address on the bridge at which [`crate::Local::listen`] opens its sockets.
    pub gateway: Ipv4Addr,
    /// Length of the network prefix.
    pub prefix: u8,
    /// True if a non-root user started it: only uid 0 exists inside the machines.
    pub only_root: bool,
}

/// From holder to init, over the socket that init inherits.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BootConfig {
    pub(crate) name: String,
    pub(crate) hostname: String,
    pub(crate) disk: PathBuf,
    pub(crate) exe: PathBuf,
    pub(crate) ip: Ipv4Addr,
    pub(crate) prefix: u8,
    pub(crate) gateway: Ipv4Addr,
    pub(crate) only_root: bool,
    pub(crate) cpus: u32,
    pub(crate) mounts: Vec<ReadOnlyMount>,
    /// The control group of process 1, if the host allows one.
    pub(crate) group: Option<Group>,
}

/// From init to holder: whether the boot succeeded.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Booted {
    Yes,
    No(String),
}

/// To init, from outside over `control.sock` and from inside over `/run/drover/init.sock`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "camelCase")]
pub(crate) enum InitRequest {
    /// Runs a program. The message carries stdin, stdout and stderr unless a terminal is requested.
    Exec {
        argv: Vec<String>,
        env: BTreeMap<String, String>,
        tty: Option<TtySize>,
    },
    /// One call of `systemctl`.
    Systemctl {
        args: Vec<String>,
    },
    PowerOff,
    Reboot,
}

/// Rows and columns of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TtySize {
    /// Rows.
    pub rows: u16,
    /// Columns.
    pub cols: u16,
}

/// From init.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum InitReply {
    /// The program is running. With a terminal, the message carries its master side.
    Started,
    /// The program exited (128 + signal if it was killed).
    Exited(i32),
    /// The output and exit code of `systemctl`.
    Output { stdout: String, stderr: String, code: i32 },
    /// The program could not be started.
    Failed(String),
}

/// Exit codes of process 1, from which the holder knows why it exited.
pub(crate) const EXIT_POWER_OFF: i32 = 0;
pub(crate) const EXIT_REBOOT: i32 = 66;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The responses of a holder of the first release, which may still be running when a newer program connects.
    #[test]
    fn responses_of_the_first_release_are_compatible() {
        let machine: MachineInfo = serde_json::from_value(serde_json::json!({
            "name": "m", "uid": "", "hostname": "m", "ip": "10.200.0.2", "machineId": "0", "state": "Stopped",
            "pid": null, "install": "None", "created": "2026-01-01T00:00:00Z", "consoleLog": "/d/console.log",
            "error": null,
        }))
        .unwrap();
        assert!(!machine.switched_off);
        let record: Record = serde_json::from_value(serde_json::json!({
            "name": "m", "uid": "", "hostname": "m", "machineId": "0", "ip": "10.200.0.2",
            "created": "2026-01-01T00:00:00Z", "phase": "Ready", "options": {},
        }))
        .unwrap();
        assert!(!record.switched_off);
        let holder = serde_json::json!({
            "pid": 1, "instance": "i", "gateway": "10.200.0.1", "prefix": 20, "onlyRoot": false,
        });
        serde_json::from_value::<HolderInfo>(holder).unwrap();
    }
}
