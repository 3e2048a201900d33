//! Processes of this host, and the local machine in which each runs.

use std::fs;

use super::Person;

/// A process of this host.
pub struct Process {
    pub pid: i32,
    /// Its command line.
    pub words: String,
}

impl Process {
    /// The local machine in which this process runs.
    pub fn machine(&self, person: &Person) -> Option<String> {
        let table = fs::read_to_string(format!("/proc/{}/mountinfo", self.pid)).ok()?;
        let home = person.home().file_name()?.to_str()?;
        let folder = format!("/{home}/data/local/machines/");
        table.lines().find_map(|line| {
            let (_, rest) = line.split_once(&folder)?;
            rest.split_once("/disk/fs / ").map(|(machine, _)| machine.to_owned())
        })
    }
}

/// All processes.
pub fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        Some(Process { pid, words: String::from_utf8_lossy(&words).replace('\0', " ") })
    })
    .collect()
}
