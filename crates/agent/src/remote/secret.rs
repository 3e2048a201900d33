//! The plan secret from the API, with decoded data.

use std::collections::BTreeMap;

use base64::{Engine as _, display::Base64Display, engine::general_purpose::STANDARD};
use drover_plan::keys;
use serde_json::{Map, Value};

/// The decoded data of a secret.
pub type Data = BTreeMap<String, Vec<u8>>;

/// The object is not a Secret.
#[derive(Debug, thiserror::Error)]
#[error("invalid response from the API server: it is not a Secret: {0}")]
pub struct NotASecret(&'static str);

/// The plan secret. Fields that the agent does not know are kept for updates.
#[derive(Clone)]
pub struct Secret {
    rest: Map<String, Value>,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// `data`, decoded.
    pub data: Data,
}

impl Secret {
    /// Parses an object from the API.
    pub fn from_value(value: Value) -> Result<Self, NotASecret> {
        let Value::Object(mut rest) = value else { return Err(NotASecret("not an object")) };
        let metadata = |field: &str| {
            rest.get("metadata")
                .and_then(|metadata| metadata.get(field))
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        let uid = metadata("uid").unwrap_or_default();
        let resource_version = metadata("resourceVersion").ok_or(NotASecret("no resourceVersion"))?;
        let mut data = Data::new();
        match rest.remove("data") {
            None | Some(Value::Null) => {}
            Some(Value::Object(entries)) => {
                for (key, value) in entries {
                    let bytes = match value {
                        // Go writes an empty value as null.
                        Value::Null => Vec::new(),
                        Value::String(text) => {
                            STANDARD.decode(text).map_err(|_| NotASecret("data is not valid base64"))?
                        }
                        _ => return Err(NotASecret("a value in data is not a string")),
                    };
                    data.insert(key, bytes);
                }
            }
            Some(_) => return Err(NotASecret("data is not an object")),
        }
        Ok(Self { rest, uid, resource_version, data })
    }

    /// The object for an update, as JSON.
    pub fn to_json(&self) -> Vec<u8> {
        #[derive(serde::Serialize)]
        struct Body<'a> {
            #[serde(flatten)]
            rest: &'a Map<String, Value>,
            data: Encoded<'a>,
        }
        struct Encoded<'a>(&'a Data);
        impl serde::Serialize for Encoded<'_> {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map(self.0.iter().map(|(key, value)| (key, Text(value))))
            }
        }
        // Does not copy the values, which can have one megabyte.
        struct Text<'a>(&'a [u8]);
        impl serde::Serialize for Text<'_> {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(&Base64Display::new(self.0, &STANDARD))
            }
        }
        // Serializing can fail only for keys that are not strings, which do not exist here.
        serde_json::to_vec(&Body { rest: &self.rest, data: Encoded(&self.data) }).unwrap_or_default()
    }

    /// The value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.rest.get("metadata")?.get("annotations")?.get(key)?.as_str()
    }

    /// The resource version as a number, to compare versions.
    pub fn revision(&self) -> Option<u64> {
        self.resource_version.parse().ok()
    }

    /// The checksum of its plan, if there is one.
    pub fn plan_checksum(&self) -> Option<String> {
        self.data.get(keys::PLAN).filter(|plan| !plan.is_empty()).map(|plan| drover_plan::checksum(plan))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_survive_a_round_trip() {
        let object = serde_json::json!({
            "apiVersion": "v1", "kind": "Secret", "type": "rke.cattle.io/machine-plan", "immutable": false,
            "metadata": {"name": "n", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}},
            "data": {"plan": "e30=", "x": ""},
        });
        let secret = Secret::from_value(object.clone()).unwrap();
        assert_eq!((secret.uid.as_str(), secret.revision()), ("u", Some(7)));
        assert_eq!(secret.plan_checksum(), Some(drover_plan::checksum(b"{}")));
        assert_eq!(serde_json::from_slice::<Value>(&secret.to_json()).unwrap(), object);
        let of = |data| {
            Secret::from_value(serde_json::json!({"metadata": {"resourceVersion": "1"}, "data": data}))
        };
        assert!(of(serde_json::json!({"a": 1})).is_err());
        assert_eq!(of(serde_json::json!({"a": null})).unwrap().data["a"], b"");
    }
}
