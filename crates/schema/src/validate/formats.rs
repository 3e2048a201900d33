//! The values of `format` that the server checks; others are only annotations.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use base64::Engine;
use regex::Regex;

/// A checked format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Ranges of numbers
    Int32,
    /// Ranges of numbers
    Int64,
    /// RFC 3339 date and time
    DateTime,
    /// RFC 3339 full-date
    Date,
    /// Go's or Scala's notation
    Duration,
    /// base64
    Byte,
    /// absolute URI or path
    Uri,
    /// mail address
    Email,
    /// RFC 1034 host name
    Hostname,
    /// dotted quad
    Ipv4,
    /// RFC 4291
    Ipv6,
    /// address/length
    Cidr,
    /// hardware address
    Mac,
    /// any UUID
    Uuid,
    /// version 3
    Uuid3,
    /// version 4
    Uuid4,
    /// version 5
    Uuid5,
    /// 24 hexadecimal digits
    BsonObjectId,
    /// `#fff`
    HexColor,
    /// `rgb(1,2,3)`
    RgbColor,
    /// social security number
    Ssn,
    /// credit card number
    CreditCard,
    /// either ISBN
    Isbn,
    /// ten digits
    Isbn10,
    /// thirteen digits
    Isbn13,
    /// DNS label
    ShortName,
    /// DNS subdomain without a limit per label
    LongName,
}

impl Format {
    /// `None` for formats that are not checked, such as `password`. Dashes in names are ignored.
    pub fn parse(name: &str) -> Option<Format> {
        Some(match name.replace('-', "").as_str() {
            "int32" => Format::Int32,
            "int64" => Format::Int64,
            "datetime" => Format::DateTime,
            "date" => Format::Date,
            "duration" => Format::Duration,
            "byte" => Format::Byte,
            "uri" => Format::Uri,
            "email" => Format::Email,
            "hostname" => Format::Hostname,
            "ipv4" => Format::Ipv4,
            "ipv6" => Format::Ipv6,
            "cidr" => Format::Cidr,
            "mac" => Format::Mac,
            "uuid" => Format::Uuid,
            "uuid3" => Format::Uuid3,
            "uuid4" => Format::Uuid4,
            "uuid5" => Format::Uuid5,
            "bsonobjectid" => Format::BsonObjectId,
            "hexcolor" => Format::HexColor,
            "rgbcolor" => Format::RgbColor,
            "ssn" => Format::Ssn,
            "creditcard" => Format::CreditCard,
            "isbn" => Format::Isbn,
            "isbn10" => Format::Isbn10,
            "isbn13" => Format::Isbn13,
            "k8sshortname" => Format::ShortName,
            "k8slongname" => Format::LongName,
            _ => return None,
        })
    }

    /// The spelling in errors.
    pub fn name(self) -> &'static str {
        match self {
            Format::Int32 => "int32",
            Format::Int64 => "int64",
            Format::DateTime => "date-time",
            Format::Date => "date",
            Format::Duration => "duration",
            Format::Byte => "byte",
            Format::Uri => "uri",
            Format::Email => "email",
            Format::Hostname => "hostname",
            Format::Ipv4 => "ipv4",
            Format::Ipv6 => "ipv6",
            Format::Cidr => "cidr",
            Format::Mac => "mac",
            Format::Uuid => "uuid",
            Format::Uuid3 => "uuid3",
            Format::Uuid4 => "uuid4",
            Format::Uuid5 => "uuid5",
            Format::BsonObjectId => "bsonobjectid",
            Format::HexColor => "hexcolor",
            Format::RgbColor => "rgbcolor",
            Format::Ssn => "ssn",
            Format::CreditCard => "creditcard",
            Format::Isbn => "isbn",
            Format::Isbn10 => "isbn10",
            Format::Isbn13 => "isbn13",
            Format::ShortName => "k8s-short-name",
            Format::LongName => "k8s-long-name",
        }
    }

    /// Whether string `s` has this format; number formats accept all strings.
    pub fn accepts(self, s: &str) -> bool {
        match self {
            Format::Int32 | Format::Int64 => true,
            Format::DateTime => is_date_time(s),
            Format::Date => s.len() == 10 && s.parse::<jiff::civil::Date>().is_ok(),
            Format::Duration => crate::duration::parse(s).is_some(),
            Format::Byte => is_base64(s),
            Format::Uri => is_uri(s),
            Format::Email => is_email(s),
            Format::Hostname => is_hostname(s),
            Format::Ipv4 => s.parse::<Ipv4Addr>().is_ok(),
            Format::Ipv6 => s.parse::<Ipv6Addr>().is_ok(),
            Format::Cidr => is_cidr(s),
            Format::Mac => is_mac(s),
            Format::Uuid => matches(&UUID, s),
            Format::Uuid3 => matches(&UUID, s) && version(s) == Some('3'),
            Format::Uuid4 => matches(&UUID, s) && version(s) == Some('4') && variant(s),
            Format::Uuid5 => matches(&UUID, s) && version(s) == Some('5') && variant(s),
            Format::BsonObjectId => s.len() == 24 && s.bytes().all(|b| b.is_ascii_hexdigit()),
            Format::HexColor => {
                let digits = s.strip_prefix('#').unwrap_or(s);
                matches!(digits.len(), 3 | 6) && digits.bytes().all(|b| b.is_ascii_hexdigit())
            }
            Format::RgbColor => is_rgb(s),
            Format::Ssn => matches(&SSN, s),
            Format::CreditCard => is_credit_card(s),
            Format::Isbn => is_isbn10(s) || is_isbn13(s),
            Format::Isbn10 => is_isbn10(s),
            Format::Isbn13 => is_isbn13(s),
            Format::ShortName => s.len() <= 63 && is_dns_label(s),
            Format::LongName => is_dns1123_subdomain(s),
        }
    }
}

/// Labels of lower-case letters, digits and dashes, joined by dots, at most 253 characters.
pub fn is_dns1123_subdomain(s: &str) -> bool {
    s.len() <= 253 && s.split('.').all(is_dns_label)
}

fn is_dns_label(s: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = s.as_bytes();
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
}

static UUID: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$").ok()
});
static SSN: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$").ok());

fn matches(regex: &LazyLock<Option<Regex>>, s: &str) -> bool {
    regex.as_ref().is_some_and(|r| r.is_match(s))
}

fn version(s: &str) -> Option<char> {
    s.chars().filter(|c| *c != '-').nth(12)
}

fn variant(s: &str) -> bool {
    s.chars()
        .filter(|c| *c != '-')
        .nth(16)
        .is_some_and(|c| matches!(c.to_ascii_lowercase(), '8' | '9' | 'a' | 'b'))
}

fn is_date_time(s: &str) -> bool {
    s.len() >= 20
        && s.as_bytes().get(10).is_some_and(|b| matches!(b, b'T' | b't'))
        && s.parse::<jiff::Timestamp>().is_ok()
}

fn is_base64(s: &str) -> bool {
    base64::engine::general_purpose::STANDARD.decode(s).is_ok()
}

fn is_uri(s: &str) -> bool {
    let printable = !s.is_empty() && s.bytes().all(|b| b > b' ' && b != 0x7f);
    let absolute = s.split_once(':').is_some_and(|(scheme, rest)| {
        scheme.as_bytes().first().is_some_and(u8::is_ascii_alphabetic)
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
            && !rest.is_empty()
    });
    printable && (s.starts_with('/') || absolute)
}

fn is_email(s: &str) -> bool {
    let address = match (s.rfind('<'), s.strip_suffix('>')) {
        (Some(start), Some(inner)) => &inner[start + 1..],
        _ => s,
    };
    address.rsplit_once('@').is_some_and(|(local, domain)| {
        !local.is_empty()
            && !domain.is_empty()
            && !address.bytes().any(|b| b.is_ascii_whitespace() || matches!(b, b',' | b'<' | b'>'))
            && !domain.starts_with('.')
            && !domain.ends_with('.')
    })
}

fn is_hostname(s: &str) -> bool {
    let s = s.strip_suffix('.').unwrap_or(s);
    !s.is_empty()
        && s.len() <= 253
        && s.split('.').all(|label| {
            let bytes = label.as_bytes();
            (1..=63).contains(&label.len())
                && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
                && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
                && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
        })
}

fn is_cidr(s: &str) -> bool {
    let Some((address, bits)) = s.split_once('/') else { return false };
    let Ok(bits) = bits.parse::<u8>() else { return false };
    (address.parse::<Ipv4Addr>().is_ok() && bits <= 32)
        || (address.parse::<Ipv6Addr>().is_ok() && bits <= 128)
}

fn is_mac(s: &str) -> bool {
    let hex = |part: &str, length| part.len() == length && part.bytes().all(|b| b.is_ascii_hexdigit());
    let pairs = |separator| {
        let parts: Vec<_> = s.split(separator).collect();
        matches!(parts.len(), 6 | 8 | 20) && parts.iter().all(|p| hex(p, 2))
    };
    let quads: Vec<_> = s.split('.').collect();
    pairs(':') || pairs('-') || (matches!(quads.len(), 3 | 4 | 10) && quads.iter().all(|p| hex(p, 4)))
}

fn is_rgb(s: &str) -> bool {
    let Some(inner) = s.strip_prefix("rgb(").and_then(|r| r.strip_suffix(')')) else { return false };
    let parts: Vec<_> = inner.split(',').map(str::trim).collect();
    parts.len() == 3 && parts.iter().all(|p| p.parse::<u8>().is_ok())
}

fn is_credit_card(s: &str) -> bool {
    let digits: Vec<u32> = s.chars().filter_map(|c| c.to_digit(10)).collect();
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(i, d)| match (i % 2 == 1, d * 2) {
            (true, doubled) if doubled > 9 => doubled - 9,
            (true, doubled) => doubled,
            (false, _) => *d,
        })
        .sum();
    (13..=16).contains(&digits.len()) && sum.is_multiple_of(10)
}

fn isbn_digits(s: &str) -> Vec<u32> {
    s.chars()
        .filter(|c| !matches!(c, '-' | ' '))
        .map(|c| if matches!(c, 'X' | 'x') { 10 } else { c.to_digit(10).unwrap_or(99) })
        .collect()
}

fn is_isbn10(s: &str) -> bool {
    let d = isbn_digits(s);
    d.len() == 10
        && d.iter().all(|d| *d <= 10)
        && d.iter().enumerate().map(|(i, d)| (i as u32 + 1) * d).sum::<u32>().is_multiple_of(11)
}

fn is_isbn13(s: &str) -> bool {
    let d = isbn_digits(s);
    d.len() == 13
        && d.iter().all(|d| *d <= 9)
        && d.iter()
            .enumerate()
            .map(|(i, d)| if i % 2 == 0 { *d } else { d * 3 })
            .sum::<u32>()
            .is_multiple_of(10)
}

#[cfg(test)]
mod tests {
    use super::Format;

    #[test]
    fn formats_accept_and_reject() {
        let cases = [
            ("date-time", "2014-12-15T19:30:20.000Z", "2014-12-15"),
            ("date", "2006-01-02", "2006-13-02"),
            ("duration", "1h15m", "one hour"),
            ("byte", "Zm9v", "%%%"),
            ("uri", "https://a/b", "no uri"),
            ("email", "a@b.c", "a.b.c"),
            ("hostname", "a.example", "-a-"),
            ("ipv4", "10.0.0.1", "10.0.0.256"),
            ("ipv6", "fe80::1", "10.0.0.1"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
            ("mac", "00:11:22:33:44:55", "00:11"),
            ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123"),
            ("uuid4", "123e4567-e89b-42d3-a456-426614174000", "123e4567-e89b-12d3-a456-426614174000"),
            ("bsonobjectid", "507f1f77bcf86cd799439011", "507f"),
            ("hexcolor", "#FFF", "#FF"),
            ("rgbcolor", "rgb(255,255,2)", "rgb(255,256,2)"),
            ("ssn", "111-11-1111", "999-999-999"),
            ("creditcard", "4111-1111-1111-1111", "4111-1111-1111-1112"),
            ("isbn", "978-0321751041", "978-0321751042"),
            ("isbn10", "0321751043", "0321751044"),
            ("k8s-short-name", "a-b", "A"),
            ("k8s-long-name", "a.b", "a..b"),
        ];
        for (name, good, bad) in cases {
            let format = Format::parse(name).unwrap_or_else(|| panic!("{name} is a checked format"));
            assert!(format.accepts(good), "{name} accepts {good}");
            assert!(!format.accepts(bad), "{name} rejects {bad}");
        }
        assert!(Format::parse("password").is_none());
        assert!(Format::parse("my-own").is_none());
    }
}
