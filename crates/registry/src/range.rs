//! The `Range` header of HTTP, for one range of bytes.

/// The requested part of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The whole blob: no range, or one that may be ignored.
    All,
    /// From the first to the last byte, both included.
    Part(u64, u64),
    /// A range outside of the blob.
    Unsatisfiable,
}

/// Parses a header for a blob of this size. Several ranges and unsupported syntax are ignored, as HTTP allows.
pub fn parse(header: Option<&str>, size: u64) -> Wanted {
    let Some(spec) = header.and_then(|header| header.trim().strip_prefix("bytes=")) else {
        return Wanted::All;
    };
    let Some((first, last)) = spec.trim().split_once('-') else { return Wanted::All };
    let (first, last) = (first.trim(), last.trim());
    let number = |text: &str| text.parse::<u64>().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
    match (first, last) {
        ("", last) => match number(last) {
            None => Wanted::All,
            Some(0) => Wanted::Unsatisfiable,
            Some(_) if size == 0 => Wanted::Unsatisfiable,
            Some(count) => Wanted::Part(size.saturating_sub(count), size - 1),
        },
        (first, last) => {
            let Some(first) = number(first) else { return Wanted::All };
            let last = match last {
                "" => u64::MAX,
                last => match number(last) {
                    Some(last) if last >= first => last,
                    _ => return Wanted::All,
                },
            };
            if first >= size { Wanted::Unsatisfiable } else { Wanted::Part(first, last.min(size - 1)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_range_is_parsed() {
        for (header, expected) in [
            (None, Wanted::All),
            (Some("bytes=0-"), Wanted::Part(0, 9)),
            (Some("bytes=3-5"), Wanted::Part(3, 5)),
            (Some("bytes=3-500"), Wanted::Part(3, 9)),
            (Some("bytes=-4"), Wanted::Part(6, 9)),
            (Some("bytes=-400"), Wanted::Part(0, 9)),
            (Some("bytes=10-"), Wanted::Unsatisfiable),
            (Some("bytes=-0"), Wanted::Unsatisfiable),
            (Some("bytes=5-3"), Wanted::All),
            (Some("bytes=0-1,3-4"), Wanted::All),
            (Some("bytes=99999999999999999999-"), Wanted::All),
            (Some("items=0-1"), Wanted::All),
            (Some("bytes=+1-2"), Wanted::All),
        ] {
            assert_eq!(parse(header, 10), expected, "{header:?}");
        }
        assert_eq!(parse(Some("bytes=-1"), 0), Wanted::Unsatisfiable);
    }
}
