//! Ages in kubectl's format.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

/// `5s`, `3m20s`, `2d4h`, `1y10d`: at most two units, the second only if it is significant.
pub fn human_duration(duration: SignedDuration) -> String {
    let seconds = duration.as_secs();
    if seconds < -1 {
        return "<invalid>".to_owned();
    }
    if seconds < 0 {
        return "0s".to_owned();
    }
    if seconds < 2 * 60 {
        return format!("{seconds}s");
    }
    let two = |a: i64, unit: &str, b: i64, small: &str| match b {
        0 => format!("{a}{unit}"),
        b => format!("{a}{unit}{b}{small}"),
    };
    let minutes = seconds / 60;
    if minutes < 10 {
        return two(minutes, "m", seconds % 60, "s");
    }
    if minutes < 3 * 60 {
        return format!("{minutes}m");
    }
    let hours = minutes / 60;
    if hours < 8 {
        return two(hours, "h", minutes % 60, "m");
    }
    if hours < 48 {
        return format!("{hours}h");
    }
    let days = hours / 24;
    if hours < 24 * 8 {
        return two(days, "d", hours % 24, "h");
    }
    if days < 365 * 2 {
        return format!("{days}d");
    }
    if days < 365 * 8 {
        return two(days / 365, "y", days % 365, "d");
    }
    format!("{}y", days / 365)
}

/// The age of a timestamp field: `<unknown>` if absent, `<invalid>` if it is not a time.
pub(super) fn since(field: Option<&Value>, now: Timestamp) -> String {
    match field {
        None | Some(Value::Null) => "<unknown>".to_owned(),
        Some(value) => match value.as_str().and_then(|s| s.parse::<Timestamp>().ok()) {
            Some(at) => human_duration(now.duration_since(at)),
            None => "<invalid>".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_match_kubectl() {
        for (seconds, text) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (3 * 3600 - 1, "179m"),
            (3 * 3600, "3h"),
            (3 * 3600 + 300, "3h5m"),
            (8 * 3600, "8h"),
            (47 * 3600, "47h"),
            (48 * 3600, "2d"),
            (49 * 3600, "2d1h"),
            (8 * 86400, "8d"),
            (729 * 86400, "729d"),
            (730 * 86400, "2y"),
            (740 * 86400, "2y10d"),
            (8 * 365 * 86400, "8y"),
        ] {
            assert_eq!(human_duration(SignedDuration::from_secs(seconds)), text, "{seconds}");
        }
    }

    #[test]
    fn missing_and_invalid_times_are_reported() {
        assert_eq!(since(None, Timestamp::UNIX_EPOCH), "<unknown>");
        assert_eq!(since(Some(&Value::from("x")), Timestamp::UNIX_EPOCH), "<invalid>");
    }
}
