//! Durations as Go writes them. `kube::core::Duration` reads them too, but it panics on numbers that are too large and takes
//! exponents for units, and these texts come from people.

use jiff::SignedDuration;

/// A Go duration (`10m`, `1h30m`, `90s`) or a bare number of seconds.
pub fn parse_duration(text: &str) -> Option<SignedDuration> {
    if text == "0" {
        return Some(SignedDuration::ZERO);
    }
    let mut rest = text;
    let mut total = 0.0_f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        total += number
            * match &rest[..end] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 0.001,
                "us" | "µs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &rest[end..];
    }
    SignedDuration::try_from_secs_f64(total).ok()
}

pub(super) fn seconds(text: Option<&str>) -> Option<i32> {
    let duration = parse_duration(text.filter(|text| !text.is_empty())?)?;
    Some(i32::try_from(duration.as_secs()).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_go_writes_them() {
        assert_eq!(parse_duration("10m"), Some(SignedDuration::from_mins(10)));
        assert_eq!(parse_duration("1h30m0s"), Some(SignedDuration::from_mins(90)));
        assert_eq!(parse_duration("0"), Some(SignedDuration::ZERO));
        assert_eq!(parse_duration("1.5s"), Some(SignedDuration::from_millis(1500)));
        for bad in ["ten", "10", "5x", "m", "-5m", "99999999999999999999999h"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }
}
