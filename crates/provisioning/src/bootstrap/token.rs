//! How long a bootstrap token is good for.

use jiff::Timestamp;

use crate::settings::Settings;

/// What is known of a token.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// When the server could first use it: its infrastructure was created, else the token was made.
    pub start: Timestamp,
    pub last_access: Option<Timestamp>,
    /// The machine has reported through its plan at least once.
    pub connected: bool,
}

/// When the token stops working.
pub fn expires(times: Times, settings: &Settings) -> Timestamp {
    let long = times.start.checked_add(settings.bootstrap_token_long_ttl).unwrap_or(Timestamp::MAX);
    let short = times
        .last_access
        .and_then(|access| access.checked_add(settings.bootstrap_token_short_ttl).ok())
        .unwrap_or(Timestamp::MAX);
    long.min(short)
}

/// Whether it still works.
pub fn is_valid(times: Times, settings: &Settings, now: Timestamp) -> bool {
    now < expires(times, settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provisioning_check_18_thirty_seconds_after_use_thirty_minutes_unused() {
        let at = |text: &str| -> Timestamp { text.parse().unwrap() };
        let settings = Settings::default();
        let unused = Times { start: at("2026-01-01T00:00:00Z"), last_access: None, connected: false };
        assert!(is_valid(unused, &settings, at("2026-01-01T00:29:59Z")));
        assert!(!is_valid(unused, &settings, at("2026-01-01T00:30:00Z")));
        let used = Times { last_access: Some(at("2026-01-01T00:05:00Z")), ..unused };
        assert!(is_valid(used, &settings, at("2026-01-01T00:05:29Z")));
        assert!(!is_valid(used, &settings, at("2026-01-01T00:05:31Z")));
    }
}
