//! `application/vnd.kubernetes.protobuf` request bodies of built-in kinds, as JSON values.
//!
//! kubectl's `create` commands and controller-runtime send such bodies and accept JSON responses. The fields of each
//! kind come from `table.txt`; a value is equal to the JSON that the same Go client would send. The same table defines
//! the fields of JSON bodies of such kinds, see `check.rs`.

mod check;
mod message;
mod table;
mod wire;

use serde_json::Value;

pub(crate) use check::{check_types, prune};

use crate::limits::TooHeavy;
use crate::object::object_mut;
use wire::Reader;

/// Content type of such bodies.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

const MAGIC: &[u8] = b"k8s\0";

/// Why a body was rejected.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ProtobufError {
    /// The envelope's magic bytes are missing.
    #[error("the body does not start with the magic bytes of Kubernetes protobuf")]
    NoEnvelope,
    /// The message is malformed or truncated.
    #[error("malformed protobuf: {0}")]
    Malformed(&'static str),
    /// It would take too much memory.
    #[error("the decoded object would take too much memory")]
    TooHeavy,
    /// The kind is not in the table.
    #[error("protobuf is not supported for {api_version} {kind}")]
    UnknownKind {
        /// As in the envelope.
        api_version: String,
        /// As in the envelope.
        kind: String,
    },
}

impl From<TooHeavy> for ProtobufError {
    fn from(_: TooHeavy) -> Self {
        Self::TooHeavy
    }
}

/// Decodes an enveloped object.
pub fn decode(body: &[u8]) -> Result<Value, ProtobufError> {
    let mut envelope = Reader::new(body.strip_prefix(MAGIC).ok_or(ProtobufError::NoEnvelope)?);
    let (mut api_version, mut kind) = (String::new(), String::new());
    let mut raw: &[u8] = &[];
    let mut content_type = String::new();
    while let Some(field) = envelope.next()? {
        match field.number {
            1 => {
                let mut meta = Reader::new(field.bytes()?);
                while let Some(field) = meta.next()? {
                    match field.number {
                        1 => api_version = field.text()?,
                        2 => kind = field.text()?,
                        _ => {}
                    }
                }
            }
            2 => raw = field.bytes()?,
            4 => content_type = field.text()?,
            _ => {}
        }
    }
    let mut object = if content_type == "application/json" {
        message::json_value(raw, "JSON in the envelope")?
    } else {
        let of = table::kind(&api_version, &kind).ok_or_else(|| ProtobufError::UnknownKind {
            api_version: api_version.clone(),
            kind: kind.clone(),
        })?;
        message::decode(of, raw)?
    };
    let fields = object_mut(&mut object);
    fields.insert("apiVersion".into(), api_version.into());
    fields.insert("kind".into(), kind.into());
    Ok(object)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn bytes_field(number: u8, content: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2, u8::try_from(content.len()).unwrap()];
        out.extend_from_slice(content);
        out
    }

    fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let meta = [bytes_field(1, api_version.as_bytes()), bytes_field(2, kind.as_bytes())].concat();
        [MAGIC, &bytes_field(1, &meta), &bytes_field(2, raw)].concat()
    }

    #[test]
    fn kubernetes_check_2_a_secret_decodes_to_the_same_json() {
        // metadata{name: x, creationTimestamp: {}}, data{k: [1,2]}, type Opaque, immutable false
        let metadata = [bytes_field(1, b"x"), bytes_field(2, b""), bytes_field(8, b"")].concat();
        let entry = [bytes_field(1, b"k"), bytes_field(2, &[1, 2])].concat();
        let raw =
            [bytes_field(1, &metadata), bytes_field(2, &entry), bytes_field(3, b"Opaque"), vec![5 << 3, 0]]
                .concat();
        let object = decode(&envelope("v1", "Secret", &raw)).unwrap();
        let expected = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}, "data": {"k": "AQI="},
            "type": "Opaque", "immutable": false,
        });
        assert_eq!(object, expected);
    }

    #[test]
    fn inline_structs_zero_pointers_and_special_types() {
        // spec.replicas = 0 of a Deployment is a pointer and is kept; the source of a Volume is inline.
        let spec = vec![1 << 3, 0];
        let object = decode(&envelope("apps/v1", "Deployment", &bytes_field(2, &spec))).unwrap();
        assert_eq!(object["spec"]["replicas"], 0);
        let volume = [bytes_field(1, b"v"), bytes_field(2, &bytes_field(2, &[]))].concat();
        let pod = bytes_field(2, &bytes_field(1, &volume));
        let object = decode(&envelope("v1", "Pod", &pod)).unwrap();
        assert_eq!(object["spec"]["volumes"], json!([{"name": "v", "emptyDir": {}}]));
        let options = [vec![1 << 3, 0], bytes_field(4, b"Orphan")].concat();
        let object = decode(&envelope("v1", "DeleteOptions", &options)).unwrap();
        assert_eq!(
            (&object["gracePeriodSeconds"], &object["propagationPolicy"]),
            (&json!(0), &json!("Orphan"))
        );
    }

    #[test]
    fn garbage_is_an_error_without_a_panic() {
        assert_eq!(decode(b"{}"), Err(ProtobufError::NoEnvelope));
        let good = envelope("v1", "Secret", &bytes_field(1, &bytes_field(1, b"x")));
        for end in 4..good.len() {
            let _ = decode(&good[..end]);
        }
        assert!(matches!(decode(&envelope("v1", "Nope", b"")), Err(ProtobufError::UnknownKind { .. })));
        assert!(matches!(decode(&envelope("v1", "Secret", &[0xff; 12])), Err(ProtobufError::Malformed(_))));
        assert!(matches!(decode(&envelope("v1", "Secret", &[10, 200])), Err(ProtobufError::Malformed(_))));
    }
}
