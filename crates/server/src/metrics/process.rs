//! Metrics of the process, read from `/proc`, with the names of Prometheus' own clients.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// The unit of times in `/proc` on every supported architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// `process_cpu_seconds_total`, `process_resident_memory_bytes` and others; none without `/proc`.
#[derive(Debug)]
pub(super) struct Process {
    /// Since the epoch.
    started: Option<f64>,
}

/// Values that are read at a scrape.
#[derive(Debug, Default, PartialEq)]
struct Stat {
    cpu_seconds: f64,
    /// Since boot.
    started: f64,
    virtual_bytes: f64,
    threads: f64,
}

impl Process {
    pub(super) fn of_this_process() -> Self {
        let boot = fs::read_to_string("/proc/stat").ok();
        let boot = boot.as_deref().and_then(|text| field(text, "btime ")?.parse::<f64>().ok());
        let stat = fs::read_to_string("/proc/self/stat").ok();
        let stat = stat.as_deref().and_then(Stat::parse);
        Self { started: boot.zip(stat).map(|(boot, stat)| boot + stat.started) }
    }
}

impl Stat {
    /// Parses `/proc/self/stat`. The second field is the program's name in parentheses, which may contain any
    /// character.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<f64> =
            text.rsplit_once(')')?.1.split_whitespace().map(|field| field.parse().unwrap_or(0.0)).collect();
        // `proc(5)` counts from 1, and the first field here is its third.
        let get = |number: usize| fields.get(number - 3).copied();
        Some(Self {
            cpu_seconds: (get(14)? + get(15)?) / TICKS_PER_SECOND,
            threads: get(20)?,
            started: get(22)? / TICKS_PER_SECOND,
            virtual_bytes: get(23)?,
        })
    }
}

/// The value after `key` at the start of a line, up to the next space.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().next()
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stat = fs::read_to_string("/proc/self/stat").ok();
        let Some(stat) = stat.as_deref().and_then(Stat::parse) else { return Ok(()) };
        let help = "User and system time of the process";
        let descriptor = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
        ConstCounter::new(stat.cpu_seconds).encode(descriptor)?;
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kibibytes = |key| field(&status, key).and_then(|value| value.parse::<f64>().ok());
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        // The soft limit; an unlimited one is omitted.
        let limit = field(&limits, "Max open files").and_then(|value| value.parse::<f64>().ok());
        let open = fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as f64);
        for (name, help, value) in [
            ("process_resident_memory_bytes", "Resident memory", kibibytes("VmRSS:").map(|kib| kib * 1024.0)),
            ("process_virtual_memory_bytes", "Virtual memory", Some(stat.virtual_bytes)),
            ("process_threads", "Threads", Some(stat.threads)),
            ("process_open_fds", "Open file descriptors", open),
            ("process_max_fds", "File descriptors that may be open", limit),
            ("process_start_time_seconds", "Start of the process, since the epoch", self.started),
        ] {
            if let Some(value) = value {
                let descriptor = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                ConstGauge::new(value).encode(descriptor)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_program_may_contain_any_character() {
        let text = "7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 9 0 12345 8192 3 18446744073709551615";
        let expected = Stat { cpu_seconds: 2.0, started: 123.45, virtual_bytes: 8192.0, threads: 9.0 };
        assert_eq!(Stat::parse(text), Some(expected));
        assert_eq!(Stat::parse("7 (cut"), None);
    }

    #[test]
    fn fields_are_found_at_the_start_of_a_line() {
        assert_eq!(field("x\nVmRSS:\t  12 kB\n", "VmRSS:"), Some("12"));
        assert_eq!(field("Max open files   1024   4096  files", "Max open files"), Some("1024"));
        assert_eq!(field("a VmRSS: 1", "VmRSS:"), None);
    }
}
