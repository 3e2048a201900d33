use std::io;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::ser::{Formatter, Serializer};

/// JSON as Go's `encoding/json` writes it: compact, with `<`, `>`, `&`, U+2028 and U+2029 escaped.
///
/// The checksum of a plan is taken over its bytes, and a server of the original must come to the same bytes for the
/// same plan, else taking over a cluster would re-apply every plan.
pub fn to_vec<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<Vec<u8>> {
    let mut out = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut out, GoFormatter))?;
    Ok(out)
}

/// Reads what either side wrote. Unknown fields are ignored and `null` is the zero value, as in Go.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(bytes)
}

struct GoFormatter;

impl Formatter for GoFormatter {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(['<', '>', '&', '\u{2028}', '\u{2029}']) {
            writer.write_all(&rest.as_bytes()[..at])?;
            // `find` stopped at a character, so there is one.
            let Some(found) = rest[at..].chars().next() else { break };
            write!(writer, "\\u{:04x}", found as u32)?;
            rest = &rest[at + found.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }
}
