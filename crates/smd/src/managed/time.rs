//! RFC 3339 times of managedFields entries, as seconds. Like upstream, reads offsets and fractions, and writes UTC
//! seconds.

/// Seconds since 1970 of an RFC 3339 time.
pub(super) fn parse(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let number = |range: std::ops::Range<usize>| -> Option<i64> {
        let digits = text.get(range)?;
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let separators = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    if bytes.len() < 20
        || separators.iter().any(|(at, byte)| bytes[*at] != *byte)
        || !matches!(bytes[10], b'T' | b't' | b' ')
    {
        return None;
    }
    let (month, day) = (number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let zone = text.get(19..)?.trim_start_matches(|c: char| c == '.' || c.is_ascii_digit());
    let offset = match zone.as_bytes() {
        [b'Z' | b'z'] => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let start = text.len() - 5;
            let seconds = number(start..start + 2)? * 3600 + number(start + 3..start + 5)? * 60;
            if *sign == b'-' { -seconds } else { seconds }
        }
        _ => return None,
    };
    Some(days_from_civil(number(0..4)?, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset)
}

/// The RFC 3339 form in UTC.
pub(super) fn format(seconds: i64) -> String {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil_from_days(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

// Years begin in March here, so that the leap day is the last day of a year.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_any_offset_and_written_in_utc() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2024-02-29T12:30:15Z", 1_709_209_815),
            ("2024-02-29T14:30:15.123+02:00", 1_709_209_815),
            ("1969-12-31T23:59:59Z", -1),
        ] {
            assert_eq!(parse(text), Some(seconds), "{text}");
        }
        assert_eq!(format(1_709_209_815), "2024-02-29T12:30:15Z");
        for seconds in (-4_000_000_000..4_000_000_000).step_by(98_765_431) {
            assert_eq!(parse(&format(seconds)), Some(seconds));
        }
        for bad in ["", "yesterday", "2024-13-01T00:00:00Z", "2024-01-01T00:00:00", "2024-01-01T00:00:00é"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
