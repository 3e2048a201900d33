//! What client, holder and init say to each other, and what the holder writes down.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use super::{cgroup::Group, error::WireError};

/// What a machine is made with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CreateOptions {
    /// Who asked for this machine (`drover.io/machine-uid`). A repeated create with the same one adopts, a create
    /// with another one is refused; an empty one adopts whatever is there.
    pub uid: String,
    /// The machine's host name; the machine's name if empty.
    pub hostname: String,
    /// A shell script that runs at the first boot, again after a failure or a crash, and never after it succeeded.
    pub install_script: String,
    /// How many processors the machine may use; all of them if 0 or more than there are.
    pub cpus: u32,
    /// A public SSH key for `/root/.ssh/authorized_keys`.
    pub authorized_key: String,
    /// Host directories or files that the machine sees read-only.
    pub mounts: Vec<ReadOnlyMount>,
    /// Lines for `/etc/hosts` beside the machine's own: name to address.
    pub hosts: BTreeMap<String, String>,
}

/// One host path that a machine sees read-only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadOnlyMount {
    /// Absolute path on the host.
    pub source: PathBuf,
    /// Absolute path in the machine.
    pub target: PathBuf,
}

/// Whether a machine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PowerState {
    /// Process 1 is alive and its boot is done.
    Running,
    /// Process 1 is being started.
    Starting,
    /// There is no process; the disk is kept.
    Stopped,
    /// Units are being stopped.
    Stopping,
}

/// How far the install script is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum InstallState {
    /// The machine was made without one.
    None,
    /// It has not finished yet.
    Pending,
    /// It ended with exit code 0 and will not run again.
    Done,
}

/// A machine as others see it. Travels between builds: a holder outlives the program that started it, so what was added
/// after the first release has a default.
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
    /// Whether it runs.
    pub state: PowerState,
    /// Somebody switched it off: it waits for a start or a create, and nobody else gives it its power back.
    #[serde(default)]
    pub switched_off: bool,
    /// Its process 1, in the host's numbering.
    pub pid: Option<i32>,
    /// How far the install script is.
    pub install: InstallState,
    /// When it was created.
    pub created: String,
    /// What process 1 said while it booted.
    pub console_log: PathBuf,
    /// Why the last start failed.
    pub error: Option<String>,
}

/// The record of a machine, written before anything is made for it.
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
    /// The intent is recorded, the disk may be half made.
    Creating,
    /// The disk is complete.
    Ready,
    /// The machine is to go; whoever reads this finishes the removal.
    Deleting,
}

/// Client to holder.
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

/// Holder to client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Reply {
    Value(serde_json::Value),
    Error(WireError),
}

/// Who holds the machines, and the network they are in.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HolderInfo {
    /// The holder's process id.
    pub pid: u32,
    /// Changes whenever the holder starts: sockets opened through an earlier one are dead.
    pub instance: String,
    /// The address on the bridge where [`super::Local::listen`] opens its sockets.
    pub gateway: Ipv4Addr,
    /// Length of the network prefix.
    pub prefix: u8,
    /// True for an ordinary user: only uid 0 exists inside the machines.
    pub only_root: bool,
}

/// Holder to init, over the socket that init inherits.
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
    /// The control group that process 1 was put into, if the host allowed one.
    pub(crate) group: Option<Group>,
}

/// Init to holder: the boot went well, or why not.
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
    /// Runs a program; the message carries stdin, stdout and stderr unless a terminal is asked for.
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
    /// Lines.
    pub rows: u16,
    /// Characters per line.
    pub cols: u16,
}

/// From init.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum InitReply {
    /// The program runs; with a terminal, the message carries the master side.
    Started,
    /// The program ended (128 + signal if it was killed).
    Exited(i32),
    /// What `systemctl` prints and returns.
    Output { stdout: String, stderr: String, code: i32 },
    /// The program could not be started.
    Failed(String),
}

/// Exit codes by which process 1 tells the holder why it ended.
pub(crate) const EXIT_POWER_OFF: i32 = 0;
pub(crate) const EXIT_REBOOT: i32 = 66;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The answers of the first release's holder, which may still run when a newer program asks it.
    #[test]
    fn a_holder_of_the_first_release_is_understood() {
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
