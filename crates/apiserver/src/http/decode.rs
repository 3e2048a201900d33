//! Request bodies: JSON, YAML or protobuf into a value, with duplicate fields noted.

use std::fmt;

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::objects::DeleteOptions;
use crate::patch::PatchType;
use crate::protobuf::{self, ProtobufError};
use crate::registry::Resource;
use crate::status::Status;

use super::query::{Query, invalid, propagation_policy};

const ACCEPTED: [&str; 3] = ["application/json", "application/yaml", protobuf::MEDIA_TYPE];

/// A decoded body.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    pub(crate) value: Value,
    /// Paths that occurred twice.
    pub(crate) duplicates: Vec<String>,
}

/// The media type of the body, without parameters.
pub(crate) fn media_type(headers: &HeaderMap) -> &str {
    let header = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    header.split(';').next().unwrap_or_default().trim()
}

/// Decodes an object.
pub(crate) fn object(headers: &HeaderMap, body: &[u8]) -> Result<Decoded, Status> {
    match media_type(headers) {
        "" | "application/json" => json(body),
        "application/yaml" => yaml(body),
        protobuf::MEDIA_TYPE => match protobuf::decode(body) {
            Ok(value) => Ok(Decoded { value, duplicates: Vec::new() }),
            Err(ProtobufError::UnknownKind { .. }) => Err(Status::unsupported_media_type(&ACCEPTED[..2])),
            Err(error) => Err(Status::bad_request(error.to_string())),
        },
        _ => Err(Status::unsupported_media_type(&ACCEPTED)),
    }
}

/// Decodes JSON.
pub(crate) fn json(body: &[u8]) -> Result<Decoded, Status> {
    let mut state = State::default();
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let value = Node(&mut state)
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value))
        .map_err(|error| Status::bad_request(format!("the object provided is unrecognized: {error}")))?;
    Ok(Decoded { value, duplicates: state.duplicates })
}

/// Decodes YAML, of which JSON is a part.
pub(crate) fn yaml(body: &[u8]) -> Result<Decoded, Status> {
    if body.trim_ascii_start().starts_with(b"{") {
        return json(body);
    }
    let text = std::str::from_utf8(body)
        .map_err(|error| Status::bad_request(format!("error decoding YAML: {error}")))?;
    // `y`, `no` and `on` are text, as in YAML 1.2; only true and false are booleans.
    let options = serde_saphyr::options! { strict_booleans: true };
    let value = serde_saphyr::from_str_with_options::<Value>(text, options)
        .map_err(|error| Status::bad_request(format!("error decoding YAML: {error}")))?;
    Ok(Decoded { value, duplicates: Vec::new() })
}

/// The kind of patch that the content type names, if the resource takes it.
pub(crate) fn patch_type(
    headers: &HeaderMap,
    resource: &Resource,
    strategic: bool,
    apply: bool,
) -> Result<PatchType, Status> {
    let strategic = strategic && !resource.def.custom;
    let found = match media_type(headers) {
        "application/json-patch+json" => Some(PatchType::Json),
        "application/merge-patch+json" => Some(PatchType::Merge),
        "application/strategic-merge-patch+json" if strategic => Some(PatchType::Strategic),
        "application/apply-patch+yaml" if apply => Some(PatchType::Apply),
        _ => None,
    };
    found.ok_or_else(|| {
        let mut accepted = vec!["application/json-patch+json", "application/merge-patch+json"];
        if strategic {
            accepted.push("application/strategic-merge-patch+json");
        }
        if apply {
            accepted.push("application/apply-patch+yaml");
        }
        Status::unsupported_media_type(&accepted)
    })
}

/// `DeleteOptions` from the body or, without one, from the query. Also says whether it is a dry run.
pub(crate) fn delete_options(
    headers: &HeaderMap,
    body: &[u8],
    query: &Query,
) -> Result<(DeleteOptions, bool), Status> {
    if body.is_empty() {
        return Ok((query.delete()?, query.dry_run()?));
    }
    let value = object(headers, body)?.value;
    if !matches!(value.get("kind").and_then(Value::as_str), None | Some("" | "DeleteOptions")) {
        return Err(Status::bad_request("the body of a delete request must be DeleteOptions"));
    }
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let policy = text(value.get("propagationPolicy")).filter(|policy| !policy.is_empty());
    let orphan = value.get("orphanDependents").and_then(Value::as_bool);
    let preconditions = value.get("preconditions");
    let mut dry_run = query.dry_run()?;
    for entry in value.get("dryRun").and_then(Value::as_array).into_iter().flatten() {
        if entry != "All" {
            let error = crate::status::FieldError::not_supported("dryRun", entry, &["All"]);
            return Err(invalid("DeleteOptions", &[error]));
        }
        dry_run = true;
    }
    let options = DeleteOptions {
        propagation: propagation_policy(policy.as_deref(), orphan)?,
        uid: text(preconditions.and_then(|p| p.get("uid"))),
        resource_version: text(preconditions.and_then(|p| p.get("resourceVersion"))),
        grace_period_seconds: value.get("gracePeriodSeconds").and_then(Value::as_i64),
    };
    Ok((options, dry_run))
}

/// Where the decoder is, to name duplicates.
#[derive(Default)]
struct State {
    path: Vec<Segment>,
    duplicates: Vec<String>,
}

enum Segment {
    Key(String),
    Index(usize),
}

impl State {
    fn path(&self) -> String {
        let mut out = String::new();
        for segment in &self.path {
            match segment {
                Segment::Key(key) if out.is_empty() => out.push_str(key),
                Segment::Key(key) => {
                    out.push('.');
                    out.push_str(key);
                }
                Segment::Index(at) => out.push_str(&format!("[{at}]")),
            }
        }
        out
    }
}

struct Node<'a>(&'a mut State);

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        loop {
            self.0.path.push(Segment::Index(items.len()));
            let next = access.next_element_seed(Node(self.0))?;
            self.0.path.pop();
            match next {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            self.0.path.push(Segment::Key(key.clone()));
            let value = access.next_value_seed(Node(self.0))?;
            if fields.insert(key, value).is_some() {
                let path = self.0.path();
                self.0.duplicates.push(path);
            }
            self.0.path.pop();
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_named_and_the_last_one_wins() {
        let decoded = json(br#"{"spec":{"a":1,"a":2,"l":[{"x":1},{"y":1,"y":2}]}}"#).unwrap();
        assert_eq!(decoded.value["spec"]["a"], 2);
        assert_eq!(decoded.duplicates, ["spec.a", "spec.l[1].y"]);
    }

    #[test]
    fn garbage_is_refused_without_a_panic() {
        for bad in [&b""[..], b"{", b"{}x", b"\xff"] {
            assert_eq!(json(bad).unwrap_err().code, 400);
        }
        let deep = "[".repeat(10_000);
        assert_eq!(json(deep.as_bytes()).unwrap_err().code, 400);
        assert!(yaml(b"a: 1\nb: [x]").is_ok());
        assert_eq!(yaml(b"a: [").unwrap_err().code, 400);
    }
}
