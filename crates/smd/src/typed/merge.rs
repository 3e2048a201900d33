//! Merges a partial value into a complete one.

use serde_json::Value;
use thiserror::Error;

use super::ItemError;
use super::items::Groups;
use crate::fieldpath::PathElement;
use crate::schema::{List, ListKind, Map, Schema, Shape, Type, TypeId};

/// Why two values cannot be merged.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum MergeError {
    /// An item of an associative list has no identity.
    #[error("element {0}: {1}")]
    Item(usize, ItemError),
    /// The configuration contains an item twice.
    #[error("duplicate entries for key {0}")]
    Duplicate(String),
}

/// Merges `config` over `live`; nothing is removed. `None` means that `live` is unchanged, to the byte. Lists keep the
/// order of `live`, unless `config` has a different order of the same items. Untracked fields are dropped from a
/// changed result.
pub fn merge(ty: Type<'_>, live: &Value, config: &Value) -> Result<Option<Value>, MergeError> {
    visit(ty.schema, ty.id, live, config)
}

fn visit(schema: &Schema, ty: TypeId, left: &Value, right: &Value) -> Result<Option<Value>, MergeError> {
    let leaf = || Ok((left != right).then(|| right.clone()));
    match schema.atom(ty).shape_of(Some(right)) {
        Shape::Map(map) => match (left.as_object(), right.as_object()) {
            _ if map.atomic => leaf(),
            (l, r) if l.is_none_or(|l| l.is_empty()) && r.is_none_or(|r| r.is_empty()) => leaf(),
            (Some(l), Some(r)) => visit_map(schema, map, l, r),
            // Null does not change a granular map or list, whose items may have other owners.
            (Some(_), None) => Ok(None),
            (None, _) => Ok(Some(right.clone())),
        },
        Shape::List(list) => match (left.as_array(), right.as_array()) {
            _ if list.kind == ListKind::Atomic => leaf(),
            (l, r) if l.is_none_or(|l| l.is_empty()) && r.is_none_or(|r| r.is_empty()) => leaf(),
            (Some(l), Some(r)) => visit_list(schema, list, l, r),
            (Some(_), None) => Ok(None),
            (None, _) => Ok(Some(right.clone())),
        },
        Shape::Scalar(_) | Shape::Nothing => leaf(),
    }
}

type Entries = serde_json::Map<String, Value>;

fn visit_map(
    schema: &Schema,
    map: &Map,
    left: &Entries,
    right: &Entries,
) -> Result<Option<Value>, MergeError> {
    let mut changes: Vec<(&String, Value)> = Vec::new();
    for (key, r) in right {
        let field = map.lookup(key);
        if field.is_untracked() {
            continue;
        }
        let change = match left.get(key) {
            Some(l) => visit(schema, field.ty, l, r)?,
            None => Some(r.clone()),
        };
        changes.extend(change.map(|change| (key, change)));
    }
    if changes.is_empty() {
        return Ok(None);
    }
    let mut out = Entries::new();
    for (key, l) in left {
        // The changes are in map order, that is by key.
        let changed = changes.binary_search_by(|(changed, _)| changed.as_str().cmp(key)).is_ok();
        if !changed && !map.lookup(key).is_untracked() {
            out.insert(key.clone(), l.clone());
        }
    }
    out.extend(changes.into_iter().map(|(key, change)| (key.clone(), change)));
    Ok(Some(Value::Object(out)))
}

/// An item of the merged list: an unchanged item of the left list, or a new value.
enum Item {
    Left(usize),
    New(Value),
}

/// Walks both lists together. Items only in the left list keep their position relative to the preceding shared items;
/// shared items are in the order of the right list.
fn visit_list(
    schema: &Schema,
    list: &List,
    left: &[Value],
    right: &[Value],
) -> Result<Option<Value>, MergeError> {
    let by_item = |(at, error)| MergeError::Item(at, error);
    let l_groups = Groups::new(schema, list, left).map_err(by_item)?;
    let r_groups = Groups::new(schema, list, right).map_err(by_item)?;
    if let Some(group) = r_groups.iter().find(|group| group.len() > 1) {
        return Err(MergeError::Duplicate(group[0].0.to_string()));
    }
    let (l_elements, r_elements) = (l_groups.by_position(), r_groups.by_position());
    let in_right = |pe: &PathElement| r_groups.get(pe).first().map(|(_, at)| *at);
    // For each right item, the left item to merge with. Duplicates on the left are not merged.
    let merge_item = |at: usize| match l_groups.get(r_elements[at]) {
        [(_, l)] => Ok(match visit(schema, list.element, &left[*l], &right[at])? {
            None => Item::Left(*l),
            Some(value) => Item::New(value),
        }),
        _ => Ok(Item::New(right[at].clone())),
    };

    let mut shared = (0..right.len()).filter(|at| !l_groups.get(r_elements[*at]).is_empty());
    let mut next_shared = shared.next();
    let mut merged = vec![false; right.len()];
    let mut out = Vec::with_capacity(left.len().max(right.len()));
    let (mut l, mut r) = (0, 0);
    while l < left.len() || r < right.len() {
        if l < left.len() && r < right.len() {
            let at = in_right(l_elements[l]);
            if at == Some(r) {
                merged[r] = true;
                out.push(merge_item(r)?);
                (l, r, next_shared) = (l + 1, r + 1, shared.next());
                continue;
            }
            if at.is_some() && next_shared.is_some() && at != next_shared {
                // Shared, but another shared item precedes it.
                l += 1;
                continue;
            }
        }
        if l < left.len() {
            match in_right(l_elements[l]) {
                None => {
                    out.push(Item::Left(l));
                    l += 1;
                    continue;
                }
                Some(at) if merged[at] => l += 1,
                Some(_) => {}
            }
        }
        if r < right.len() {
            merged[r] = true;
            out.push(merge_item(r)?);
            if next_shared == Some(r) {
                next_shared = shared.next();
            }
            r += 1;
        }
    }
    let unchanged = out.len() == left.len()
        && out.iter().enumerate().all(|(at, item)| matches!(item, Item::Left(l) if *l == at));
    let value = |item| match item {
        Item::Left(at) => left[at].clone(),
        Item::New(value) => value,
    };
    Ok((!unchanged).then(|| Value::Array(out.into_iter().map(value).collect())))
}
