//! Decodes request bodies: JSON, YAML or protobuf to a value, and records duplicate fields.

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde_json::Value;

pub(crate) use crate::json::Decoded;
use crate::json::{self, DecodeError};
use crate::limits::OBJECT_BYTES;
use crate::objects::DeleteOptions;
use crate::patch::PatchType;
use crate::protobuf::{self, ProtobufError};
use crate::resources::Resource;
use crate::status::Status;

use super::query::{Query, invalid, propagation_policy};

const ACCEPTED: [&str; 3] = ["application/json", "application/yaml", protobuf::MEDIA_TYPE];

/// The maximum nesting depth of YAML, whose parser uses more stack per level than that of JSON.
const YAML_DEPTH: usize = 64;
/// How much aliases and merge keys may repeat.
const YAML_REPEATED: usize = 20_000;

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
            Err(ProtobufError::TooHeavy) => Err(crate::limits::TooHeavy.into()),
            Err(error) => Err(Status::bad_request(error.to_string())),
        },
        _ => Err(Status::unsupported_media_type(&ACCEPTED)),
    }
}

/// Decodes JSON.
pub(crate) fn json(body: &[u8]) -> Result<Decoded, Status> {
    json::decode(body).map_err(|error| refusal("the object provided is unrecognized", error))
}

/// Decodes YAML, which includes JSON.
pub(crate) fn yaml(body: &[u8]) -> Result<Decoded, Status> {
    if body.trim_ascii_start().starts_with(b"{") {
        return json(body);
    }
    let text = std::str::from_utf8(body)
        .map_err(|error| Status::bad_request(format!("error decoding YAML: {error}")))?;
    // `y`, `no` and `on` are strings, as in YAML 1.2; only true and false are booleans. The parser's budget counts what
    // aliases and merge keys repeat, so that a few lines can neither expand to gigabytes nor take seconds.
    let budget = serde_saphyr::budget! {
        max_depth: YAML_DEPTH,
        max_total_scalar_bytes: OBJECT_BYTES,
        max_recorded_anchor_events: YAML_REPEATED,
        max_recorded_anchor_bytes: OBJECT_BYTES,
    };
    let options = serde_saphyr::options! {
        strict_booleans: true,
        budget: budget,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: YAML_REPEATED },
    };
    let mut heavy = false;
    serde_saphyr::with_deserializer_from_str_with_options(text, options, |deserializer| {
        json::decode_from(deserializer, &mut heavy)
    })
    .map_err(|error| refusal("error decoding YAML", DecodeError::new(error, heavy)))
}

fn refusal(what: &str, error: DecodeError) -> Status {
    match error {
        DecodeError::Syntax(error) => Status::bad_request(format!("{what}: {error}")),
        DecodeError::Heavy(error) => error.into(),
    }
}

/// The kind of patch according to the content type, if the resource supports it.
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

/// Decodes `DeleteOptions` from the body or, without one, from the query. Also returns whether it is a dry run.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_is_rejected_without_a_panic() {
        for bad in [&b""[..], b"{", b"{}x", b"\xff"] {
            assert_eq!(json(bad).unwrap_err().code, 400);
        }
        let deep = "[".repeat(10_000);
        assert_eq!(json(deep.as_bytes()).unwrap_err().code, 400);
        assert!(yaml(b"a: 1\nb: [x]").is_ok());
        assert_eq!(yaml(b"a: [").unwrap_err().code, 400);
        let nested = |depth: usize| (0..depth).map(|n| format!("{}a:\n", " ".repeat(n))).collect::<String>();
        assert!(yaml(nested(60).as_bytes()).is_ok());
        for depth in [100, 2_000] {
            assert_eq!(yaml(nested(depth).as_bytes()).unwrap_err().code, 400);
        }
    }
}
