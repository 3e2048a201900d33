//! The state of machines on disk: the records that the holder writes, for itself and for clients while no holder is
//! running. Without a holder no machine is running, so the records are complete.

use std::{fs, io};

use crate::{
    error::{At, Error, Result},
    holder::disk::INSTALL_DONE,
    layout::{Layout, read_json},
    protocol::{InstallState, MachineInfo, PowerState, Record},
};

/// All machines, sorted by name, as powered off.
pub(crate) fn machines(layout: &Layout) -> Result<Vec<MachineInfo>> {
    let entries = match fs::read_dir(layout.machines()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.at("list", layout.machines())?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.at("list", layout.machines())?.file_name().to_string_lossy().into_owned();
        // A directory without a record is left from an interrupted create and is not a machine.
        found.extend(read_json::<Record>(&layout.machine(&name).record())?);
    }
    found.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(found.iter().map(|record| powered_off(layout, record)).collect())
}

/// One machine, as powered off.
pub(crate) fn machine(layout: &Layout, name: &str) -> Result<MachineInfo> {
    let missing = || Error::NotFound(name.to_owned());
    // Reject names that lead to another directory.
    if name.is_empty() || name.starts_with('.') || name.contains('/') {
        return Err(missing());
    }
    let record = read_json::<Record>(&layout.machine(name).record())?.ok_or_else(missing)?;
    Ok(powered_off(layout, &record))
}

/// Converts a record to the state of a machine that is powered off. The holder adds the state of the process.
pub(crate) fn powered_off(layout: &Layout, record: &Record) -> MachineInfo {
    let machine = layout.machine(&record.name);
    let there = |path: &str| machine.fs().join(path).symlink_metadata().is_ok();
    let install = if there(INSTALL_DONE) {
        InstallState::Done
    } else if !record.options.install_script.is_empty() || there("var/lib/drover/install.sh") {
        InstallState::Pending
    } else {
        InstallState::None
    };
    MachineInfo {
        name: record.name.clone(),
        uid: record.uid.clone(),
        hostname: record.hostname.clone(),
        ip: record.ip,
        machine_id: record.machine_id.clone(),
        state: PowerState::Stopped,
        switched_off: record.switched_off,
        pid: None,
        install,
        created: record.created.clone(),
        console_log: machine.console(),
        error: None,
    }
}
