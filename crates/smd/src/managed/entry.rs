//! Entries of managedFields and their JSON form.

use std::cmp::Ordering;

use serde_json::{Map, Value};
use thiserror::Error;

use super::time;
use crate::fieldpath::{FieldsError, Set};

/// How a manager writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// By server-side apply.
    Apply,
    /// By any other write.
    Update,
}

impl Operation {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// A manager and the fields that it owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name of the manager.
    pub manager: String,
    /// The operation; part of the identity.
    pub operation: Operation,
    /// The API version of `fields`; part of the identity of updaters.
    pub api_version: String,
    /// The subresource that it writes through, or empty; part of the identity.
    pub subresource: String,
    /// The time of its last change, in seconds since 1970.
    pub time: Option<i64>,
    /// The fields that it owns.
    pub fields: Set,
}

/// All managers of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Managed {
    /// The entries; no two have the same identity.
    pub entries: Vec<Entry>,
}

/// Why a managedFields list is invalid.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum DecodeError {
    /// It is not a list of objects.
    #[error("managedFields must be a list of objects")]
    NotAList,
    /// Unknown operation.
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    /// An entry without apiVersion.
    #[error("apiVersion must not be empty")]
    ApiVersion,
    /// An entry with an unsupported or no fieldsType.
    #[error("invalid fieldsType {0:?} in managed fields entry {1}")]
    FieldsType(String, usize),
    /// A time that is not in RFC 3339.
    #[error("invalid time {0:?} in managed fields entry {1}")]
    Time(String, usize),
    /// Malformed fieldsV1.
    #[error("invalid fieldsV1 in managed fields entry {0}")]
    Fields(usize, #[source] FieldsError),
}

impl Entry {
    /// Whether both have the same identity.
    pub fn is_same_owner(&self, other: &Entry) -> bool {
        self.manager == other.manager
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    /// Upstream's identifier of a manager, by which it sorts managers.
    pub(super) fn identifier(&self) -> String {
        let version = if self.operation == Operation::Apply { "" } else { &self.api_version };
        let mut text = String::from("{");
        for (name, value) in [
            ("manager", &*self.manager),
            ("operation", self.operation.as_str()),
            ("apiVersion", version),
            ("subresource", &self.subresource),
        ] {
            if !value.is_empty() {
                let comma = if text.len() > 1 { "," } else { "" };
                text.push_str(&format!("{comma}\"{name}\":{}", Value::from(value)));
            }
        }
        text + "}"
    }

    fn decode(at: usize, value: &Value) -> Result<Self, DecodeError> {
        let Value::Object(map) = value else { return Err(DecodeError::NotAList) };
        let text = |name: &str| map.get(name).and_then(Value::as_str).unwrap_or_default();
        let operation = match text("operation") {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return Err(DecodeError::Operation),
        };
        if text("apiVersion").is_empty() {
            return Err(DecodeError::ApiVersion);
        }
        if text("fieldsType") != "FieldsV1" {
            return Err(DecodeError::FieldsType(text("fieldsType").to_owned(), at));
        }
        let time = match text("time") {
            "" => None,
            time => Some(time::parse(time).ok_or_else(|| DecodeError::Time(time.to_owned(), at))?),
        };
        let fields = match map.get("fieldsV1") {
            None | Some(Value::Null) => Set::new(),
            Some(fields) => Set::from_value(fields).map_err(|error| DecodeError::Fields(at, error))?,
        };
        Ok(Self {
            manager: text("manager").to_owned(),
            operation,
            api_version: text("apiVersion").to_owned(),
            subresource: text("subresource").to_owned(),
            time,
            fields,
        })
    }

    fn encode(&self) -> Value {
        let mut map = Map::new();
        let mut put = |name: &str, text: &str| {
            if !text.is_empty() {
                map.insert(name.to_owned(), Value::from(text));
            }
        };
        put("apiVersion", &self.api_version);
        put("fieldsType", "FieldsV1");
        put("manager", &self.manager);
        put("operation", self.operation.as_str());
        put("subresource", &self.subresource);
        if let Some(time) = self.time {
            put("time", &time::format(time));
        }
        map.insert("fieldsV1".to_owned(), self.fields.to_value());
        Value::Object(map)
    }

    fn order(&self, other: &Entry) -> Ordering {
        (self.operation.cmp(&other.operation))
            .then_with(|| self.time.unwrap_or(0).cmp(&other.time.unwrap_or(0)))
            .then_with(|| self.manager.cmp(&other.manager))
            .then_with(|| self.api_version.cmp(&other.api_version))
            .then_with(|| self.subresource.cmp(&other.subresource))
    }
}

impl Managed {
    /// Parses a managedFields list; absent and null count as empty. If an identity occurs more than once, the last
    /// entry is used.
    pub fn decode(list: Option<&Value>) -> Result<Self, DecodeError> {
        let items = match list {
            None | Some(Value::Null) => return Ok(Self::default()),
            Some(Value::Array(items)) => items,
            Some(_) => return Err(DecodeError::NotAList),
        };
        let mut managed = Self { entries: Vec::with_capacity(items.len()) };
        for (at, item) in items.iter().enumerate() {
            let entry = Entry::decode(at, item)?;
            match managed.entries.iter_mut().find(|other| other.is_same_owner(&entry)) {
                Some(other) => *other = entry,
                None => managed.entries.push(entry),
            }
        }
        Ok(managed)
    }

    /// The managedFields of an object.
    pub fn of(object: &Value) -> Result<Self, DecodeError> {
        Self::decode(list_of(object))
    }

    /// The list in its canonical order: appliers, then updaters, each by time; `None` when empty.
    pub fn encode(&mut self) -> Option<Value> {
        self.sort();
        (!self.entries.is_empty()).then(|| self.entries.iter().map(Entry::encode).collect())
    }

    /// Puts the entries in canonical order.
    pub fn sort(&mut self) {
        self.entries.sort_by(Entry::order);
    }

    /// The entry with the identity of `owner`.
    pub fn find(&self, owner: &Entry) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.is_same_owner(owner))
    }

    pub(super) fn take(&mut self, owner: &Entry) -> Option<Entry> {
        let at = self.entries.iter().position(|entry| entry.is_same_owner(owner))?;
        Some(self.entries.swap_remove(at))
    }
}

/// Whether a managedFields list removes all ownership: `[]` or `[{}]`.
pub fn is_reset(list: Option<&Value>) -> bool {
    let blank = |value: &Value| value.is_null() || value.as_str() == Some("");
    match list {
        Some(Value::Array(items)) => match items.as_slice() {
            [] => true,
            [Value::Object(entry)] => entry.values().all(blank),
            _ => false,
        },
        _ => false,
    }
}

pub(super) fn list_of(object: &Value) -> Option<&Value> {
    object.get("metadata")?.get("managedFields")
}

/// Sets managedFields of the object to `list`, or removes it.
pub(super) fn set_list(object: &mut Value, list: Option<Value>) {
    let Value::Object(map) = object else { return };
    match list {
        None => {
            if let Some(Value::Object(metadata)) = map.get_mut("metadata") {
                metadata.remove("managedFields");
            }
        }
        Some(list) => {
            let metadata = map.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
            if metadata.is_null() {
                *metadata = Value::Object(Map::new());
            }
            if let Value::Object(metadata) = metadata {
                metadata.insert("managedFields".to_owned(), list);
            }
        }
    }
}
