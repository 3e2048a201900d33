//! The log of each unit: a file in `/var/log/units` with lines `<time> <name>[<pid>]: <text>`, which `journalctl`
//! reads.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
};

/// The directory of the logs in a machine.
pub(crate) const LOGS: &str = "/var/log/units";
/// A longer log is renamed to `<unit>.log.1`.
const MAX_BYTES: u64 = 16 << 20;
/// A longer line is split, so that a program that never writes a line break does not use up memory.
const MAX_LINE: u64 = 48 << 10;

/// The log file of a unit.
pub(crate) fn path(unit: &str) -> PathBuf {
    Path::new(LOGS).join(format!("{unit}.log"))
}

/// Writes a line about a unit.
pub(crate) fn note(unit: &str, text: &str) {
    write(unit, "systemd", 1, text);
}

/// Copies the output of a program to its unit's log until all writers have closed the pipe.
pub(crate) fn copy(unit: &str, ident: &str, pid: i32, from: impl Read) {
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => write(unit, ident, pid, String::from_utf8_lossy(&line).trim_end()),
        }
    }
}

fn write(unit: &str, ident: &str, pid: i32, text: &str) {
    // A full disk must not stop the unit. Its output is lost.
    let _ = append(&path(unit), &format!("{} {ident}[{pid}]: {text}\n", jiff::Timestamp::now()));
}

fn append(path: &Path, line: &str) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|meta| meta.len() > MAX_BYTES) {
        fs::rename(path, path.with_extension("log.1"))?;
    }
    File::options().create(true).append(true).open(path)?.write_all(line.as_bytes())
}

/// A parsed line of a log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) time: jiff::Timestamp,
    pub(crate) source: &'a str,
    pub(crate) text: &'a str,
}

/// Parses a line of a log. Returns `None` if it is malformed.
pub(crate) fn entry(line: &str) -> Option<Entry<'_>> {
    let (time, rest) = line.split_once(' ')?;
    let (source, text) = rest.split_once(": ").or_else(|| Some((rest.strip_suffix(':')?, "")))?;
    Some(Entry { time: time.parse().ok()?, source, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_parsed() {
        let line = "2026-11-15T20:30:01.5Z k3s[12]: level=info msg=\"a: b\"";
        let entry = entry(line).unwrap();
        assert_eq!((entry.source, entry.text), ("k3s[12]", "level=info msg=\"a: b\""));
        assert_eq!(super::entry("2026-11-15T20:30:01Z k3s[12]: ").unwrap().text, "");
        assert_eq!(super::entry("torn"), None);
    }
}
