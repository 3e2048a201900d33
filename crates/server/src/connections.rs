//! Limits of connections to the port, from its defaults, the settings, and the host.

use drover_https::{ConnectionLimiter, Limits};
use drover_provisioning::settings::{CurrentSettings, Settings};
use jiff::SignedDuration;

/// Unauthenticated connections may use one of this many parts of the file descriptors.
const SHARE_OF_FILES: usize = 2;

/// A limiter whose limits follow the settings.
pub fn limiter(settings: &CurrentSettings) -> ConnectionLimiter {
    let (most, current) = (open_files(), settings.clone());
    let limiter = ConnectionLimiter::new(limits(&current.now(), most));
    let followed = limiter.clone();
    settings.on_change(move || followed.set_limits(limits(&current.now(), most)));
    limiter
}

fn limits(settings: &Settings, open_files: usize) -> Limits {
    let (own, set) = (Limits::default(), &settings.connections);
    let duration = |set: Option<SignedDuration>, own| set.and_then(|set| set.try_into().ok()).unwrap_or(own);
    let total = set.total.map_or(own.total, |total| total as usize).min(open_files / SHARE_OF_FILES);
    Limits {
        handshake: duration(set.handshake, own.handshake),
        headers: duration(set.headers, own.headers),
        idle: duration(set.idle, own.idle),
        per_address: set.per_address.map_or(own.per_address, |count| count as usize).min(total),
        total,
        ..own
    }
}

/// The limit of open files of this process.
fn open_files() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    soft_limit(&limits).unwrap_or(usize::MAX)
}

fn soft_limit(limits: &str) -> Option<usize> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn settings_are_limited_by_the_number_of_descriptors() {
        assert_eq!(limits(&Settings::default(), usize::MAX), Limits::default());
        let mut settings = Settings::default();
        settings.set("connections-per-address", "3000").unwrap();
        settings.set("connections-total", "5000").unwrap();
        settings.set("connection-idle-timeout", "90s").unwrap();
        let all = limits(&settings, 1 << 20);
        assert_eq!((all.per_address, all.total, all.idle), (3000, 5000, Duration::from_secs(90)));
        let few = limits(&settings, 1024);
        assert_eq!((few.per_address, few.total), (512, 512));
    }

    #[test]
    fn the_limit_of_open_files_is_read() {
        let text = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024  524288  files\n";
        assert_eq!(soft_limit(text), Some(1024));
        assert_eq!(soft_limit("Max open files            unlimited  unlimited  files\n"), None);
        assert!(open_files() > 0);
    }
}
