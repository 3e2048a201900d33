//! Go's `UnixDate` format, which the plan secret uses for times: `Thu Jan  1 15:04:05 UTC 2026`.

use jiff::{Timestamp, civil::DateTime, fmt::strtime, tz::TimeZone};

/// Formats a time, always in UTC, because abbreviations of other zones cannot be parsed.
pub fn format(at: Timestamp) -> String {
    // The format string is constant and valid, so this cannot fail.
    strtime::format("%a %b %e %H:%M:%S UTC %Y", at.to_zoned(TimeZone::UTC).datetime()).unwrap_or_default()
}

/// Parses RFC 3339, or `UnixDate` of any zone (the abbreviation is ignored, as Go does for unknown zones).
pub fn parse(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    if let Ok(at) = text.parse::<Timestamp>() {
        return Some(at);
    }
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let [_, month, day, time, _, year] = fields[..] else { return None };
    let at: DateTime = strtime::parse("%b %d %H:%M:%S %Y", format!("{month} {day} {time} {year}"))
        .and_then(|parsed| parsed.to_datetime())
        .ok()?;
    at.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
}

/// `YYYYMMDD-HHMMSS`, the original's name for files and directories of one pass.
pub fn compact(at: Timestamp) -> String {
    strtime::format("%Y%m%d-%H%M%S", at.to_zoned(TimeZone::UTC).datetime()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_padded_with_a_space_and_times_round_trip() {
        let at: Timestamp = "2026-01-01T15:04:05Z".parse().unwrap();
        assert_eq!(format(at), "Thu Jan  1 15:04:05 UTC 2026");
        assert_eq!(parse("Thu Jan  1 15:04:05 UTC 2026"), Some(at));
        assert_eq!(parse("2026-01-01T15:04:05Z"), Some(at));
        assert_eq!(compact(at), "20260101-150405");
        assert_eq!(format("2026-11-15T01:02:03Z".parse().unwrap()), "Sun Nov 15 01:02:03 UTC 2026");
        assert_eq!(parse(""), None);
        assert_eq!(parse("yesterday at noon or so it was"), None);
    }
}
