//! OpenAPI v2 as protobuf, in the message of github.com/google/gnostic: the only form of it that kubectl reads.
//!
//! The document has no kinds. kubectl reads the schemas from v3, and this document only if a kind is missing there; an
//! empty document makes it report `no matches for kind`.

use bytes::Bytes;

/// The media types that clients accept: the form with the `@` is older, and kubectl still uses it.
pub(super) const ACCEPTED: [&str; 2] =
    ["application/com.github.proto-openapi.spec.v2@v1.0+protobuf", CONTENT_TYPE];

/// The media type of the response, in which `@` is not allowed.
pub(super) const CONTENT_TYPE: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// `Document{swagger: "2.0", info: {title, version}, paths: {}}`.
pub(super) fn document(version: &str) -> Bytes {
    let mut info = Vec::new();
    field(&mut info, 1, b"Kubernetes");
    field(&mut info, 2, version.as_bytes());
    let mut document = Vec::new();
    field(&mut document, 1, b"2.0");
    field(&mut document, 2, &info);
    field(&mut document, 8, b"");
    document.into()
}

/// A field with the wire type of length-delimited values.
fn field(out: &mut Vec<u8>, number: u8, content: &[u8]) {
    out.push((number << 3) | 2);
    let mut length = content.len();
    while length > 0x7f {
        out.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(content);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoded_message_is_correct() {
        let expected = b"\x0a\x032.0\x12\x15\x0a\x0aKubernetes\x12\x07v1.36.0\x42\x00";
        assert_eq!(document("v1.36.0"), &expected[..]);
        // A two-byte length.
        let long = document(&"v".repeat(300));
        assert_eq!(&long[..8], b"\x0a\x032.0\x12\xbb\x02");
    }
}
