//! The identity of list items.

use std::cmp::Ordering;

use serde_json::Value;
use thiserror::Error;

use crate::fieldpath::PathElement;
use crate::schema::{List, ListKind, Schema};

/// Why an item of an associative list has no identity.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ItemError {
    /// A null in a keyed list.
    #[error("associative list with keys may not have a null element")]
    NullInMap,
    /// A scalar or list in a keyed list.
    #[error("associative list with keys may not have non-map elements")]
    NotAMap,
    /// None of the key fields is set or has a default.
    #[error(
        "associative list with keys has an element that omits all key fields {0:?} (and doesn't have default values for any key fields)"
    )]
    NoKey(Vec<String>),
    /// A map in a set.
    #[error("associative list without keys has an element that's a map type")]
    MapInSet,
    /// A list in a set.
    #[error("not supported: associative list with lists as elements")]
    ListInSet,
    /// A null in a set.
    #[error("associative list without keys has an element that's an explicit null")]
    NullInSet,
    /// The list is atomic; its items have no identity.
    #[error("invalid indexing of non-associative list")]
    Atomic,
}

/// The path element of `item` in a list of this type.
pub(crate) fn path_element(schema: &Schema, list: &List, item: &Value) -> Result<PathElement, ItemError> {
    match &list.kind {
        ListKind::Atomic => Err(ItemError::Atomic),
        ListKind::Set => match item {
            Value::Object(_) => Err(ItemError::MapInSet),
            Value::Array(_) => Err(ItemError::ListInSet),
            Value::Null => Err(ItemError::NullInSet),
            scalar => Ok(PathElement::value(scalar.clone())),
        },
        ListKind::Map(keys) => {
            let item = match item {
                Value::Object(item) => item,
                Value::Null => return Err(ItemError::NullInMap),
                _ => return Err(ItemError::NotAMap),
            };
            let defaults = schema.atom(list.element).map.as_ref();
            let mut fields = Vec::with_capacity(keys.len());
            for key in keys.iter() {
                let default = || defaults?.field(key)?.default.as_ref();
                if let Some(value) = item.get(&**key).or_else(default) {
                    fields.push((key.clone(), value.clone()));
                }
            }
            if fields.is_empty() && !keys.is_empty() {
                return Err(ItemError::NoKey(keys.iter().map(ToString::to_string).collect()));
            }
            Ok(PathElement::key(fields))
        }
    }
}

/// The items of a list grouped by identity, in order of identity; positions within a group ascend.
pub(crate) struct Groups {
    sorted: Vec<(PathElement, usize)>,
}

impl Groups {
    pub(crate) fn new(schema: &Schema, list: &List, items: &[Value]) -> Result<Self, (usize, ItemError)> {
        let mut sorted = Vec::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            sorted.push((path_element(schema, list, item).map_err(|error| (at, error))?, at));
        }
        Ok(Self::sorted(sorted))
    }

    /// The items that have an identity.
    pub(crate) fn of_identified(schema: &Schema, list: &List, items: &[Value]) -> Self {
        let identified = |(at, item)| path_element(schema, list, item).ok().map(|pe| (pe, at));
        Self::sorted(items.iter().enumerate().filter_map(identified).collect())
    }

    fn sorted(mut sorted: Vec<(PathElement, usize)>) -> Self {
        sorted.sort_by(|l, r| l.0.cmp(&r.0).then(l.1.cmp(&r.1)));
        Self { sorted }
    }

    /// Each identity with its occurrences.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[(PathElement, usize)]> {
        self.sorted.chunk_by(|l, r| l.0 == r.0)
    }

    /// The occurrences of one identity.
    pub(crate) fn get(&self, pe: &PathElement) -> &[(PathElement, usize)] {
        let from = self.sorted.partition_point(|(other, _)| other.cmp(pe) == Ordering::Less);
        let len = self.sorted[from..].iter().take_while(|(other, _)| other == pe).count();
        &self.sorted[from..from + len]
    }

    /// The identity at each position of the list.
    pub(crate) fn by_position(&self) -> Vec<&PathElement> {
        let mut by_position: Vec<(usize, &PathElement)> =
            self.sorted.iter().map(|(pe, at)| (*at, pe)).collect();
        by_position.sort_by_key(|(at, _)| *at);
        by_position.into_iter().map(|(_, pe)| pe).collect()
    }
}
