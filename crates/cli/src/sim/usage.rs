//! The resource use of a process on this host.

use serde::Serialize;

/// CPU time and resident memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Usage {
    pub(crate) cpu_seconds: f64,
    pub(crate) rss_mebibytes: f64,
}

impl Usage {
    /// Use of a process; none if it does not exist.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok()??;
        Some(Self { cpu_seconds: ticks_of(&stat)? as f64 / ticks as f64, rss_mebibytes: rss_of(&status)? })
    }

    /// CPU time since `before`, and the current memory.
    pub(crate) fn since(mut self, before: Option<&Self>) -> Self {
        self.cpu_seconds -= before.map_or(0.0, |before| before.cpu_seconds);
        self
    }
}

/// User and system time from `/proc/PID/stat`. The name of the program may contain any character, so fields are
/// counted after it.
fn ticks_of(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

fn rss_of(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_and_memory_are_read_for_any_program_name() {
        let stat = "17 (a) b) S 1 17 17 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 1 0 5 1 1";
        assert_eq!(ticks_of(stat), Some(300));
        assert_eq!(rss_of("Name:\ta\nVmRSS:\t  2048 kB\n"), Some(2.0));
        let own = Usage::of(std::process::id()).unwrap();
        assert!(own.rss_mebibytes > 0.1, "{own:?}");
        assert_eq!(Usage::of(u32::MAX), None);
    }
}
