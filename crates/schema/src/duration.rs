//! Durations in Go's notation, for `format: duration` and CEL's `duration` type.

/// Nanoseconds of `1h15m30.5s`; `None` if it is not a duration. Days and weeks are accepted as in `format: duration`.
pub fn parse(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: f64 = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = rest[digits..].trim_start();
        let unit_end = rest.find(|c: char| c.is_ascii_digit() || c == '.' || c == ' ').unwrap_or(rest.len());
        let scale: f64 = match &rest[..unit_end] {
            "ns" | "nano" | "nanos" | "nanosecond" | "nanoseconds" => 1.0,
            "us" | "µs" | "μs" | "micro" | "micros" | "microsecond" | "microseconds" => 1e3,
            "ms" | "milli" | "millis" | "millisecond" | "milliseconds" => 1e6,
            "s" | "sec" | "secs" | "second" | "seconds" => 1e9,
            "m" | "min" | "mins" | "minute" | "minutes" => 60e9,
            "h" | "hr" | "hour" | "hours" => 3600e9,
            "d" | "day" | "days" => 86400e9,
            "w" | "week" | "weeks" => 7.0 * 86400e9,
            _ => return None,
        };
        total += number * scale;
        rest = rest[unit_end..].trim_start();
    }
    if total > i64::MAX as f64 {
        return None;
    }
    let total = total as i64;
    Some(if negative { -total } else { total })
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn go_durations() {
        assert_eq!(parse("1h15m"), Some(4500 * 1_000_000_000));
        assert_eq!(parse("-1.5s"), Some(-1_500_000_000));
        assert_eq!(parse("22 ns"), Some(22));
        assert_eq!(parse("0"), Some(0));
        for bad in ["", "5", "h", "1x", "-"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
