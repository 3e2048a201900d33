//! Merges and orders lists.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde_json::Value;

use super::directives::{DIRECTIVE, SET_ORDER, clean, unknown};
use super::{Entries, Merged, StrategicError, merge_maps};
use crate::schema::{PatchStrategy, Schema, TypeId};
use crate::value::{compare, equal};

/// Merges a patch list into a list, or replaces the list, according to its strategy.
pub(super) fn merge(
    schema: &Schema,
    ty: TypeId,
    strategy: &PatchStrategy,
    current: Vec<Value>,
    patch: Vec<Value>,
) -> Merged<Vec<Value>> {
    match strategy {
        PatchStrategy::MergeSet => {
            check_scalars(&current)?;
            check_scalars(&patch)?;
            let mut merged = current.clone();
            let mut seen = Index::new(&current, None);
            for item in &patch {
                if seen.insert(item, merged.len()) {
                    merged.push(item.clone());
                }
            }
            Ok(arrange(merged, &patch, &current, None))
        }
        PatchStrategy::MergeBy(key) => {
            let element = schema.atom(ty).list.as_ref().map_or(TypeId::DEDUCED, |list| list.element);
            check_keys(&current, key)?;
            check_keys(&patch, key)?;
            let (current, patch) = apply_directives(current, patch, key)?;
            let order = current.clone();
            let mut merged = current;
            let mut places = Index::new(&merged, Some(key));
            for item in &patch {
                merge_item(schema, element, &mut merged, &mut places, item, key)?;
            }
            Ok(arrange(merged, &patch, &order, Some(key)))
        }
        PatchStrategy::Default | PatchStrategy::Replace => Ok(patch),
    }
}

/// `$deleteFromPrimitiveList/<field>`.
pub(super) fn delete_from(current: &mut Entries, field: &str, doomed: Value) -> Merged<()> {
    let Value::Array(doomed) = doomed else {
        return Err(StrategicError::format("invalid patch format of primitive list"));
    };
    if let Some(Value::Array(items)) = current.get_mut(field) {
        check_scalars(items)?;
        let doomed = Index::new(&doomed, None);
        items.retain(|item| doomed.get(item).is_none());
    }
    Ok(())
}

/// `$setElementOrder/<field>`: merges the list of the field, if it is in the patch, and sorts the items into that
/// order; items that are not in it keep their position relative to their neighbours.
pub(super) fn set_orders(
    schema: &Schema,
    ty: TypeId,
    current: &mut Entries,
    patch: &mut Entries,
) -> Merged<()> {
    let directives: Vec<String> = patch.keys().filter(|key| key.starts_with(SET_ORDER)).cloned().collect();
    for directive in directives {
        let order = patch.remove(&directive).unwrap_or_default();
        let bad = || StrategicError::format("invalid patch format of setElementOrder list");
        let field =
            directive.strip_prefix(SET_ORDER).and_then(|rest| rest.strip_prefix('/')).ok_or_else(bad)?;
        let Value::Array(order) = order else { return Err(bad()) };
        let as_list = |value: Option<Value>| match value {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(_) => Err(bad().beneath(field)),
        };
        let before = as_list(current.get(field).cloned())?;
        let change = as_list(patch.remove(field))?;
        let lookup = schema.atom(ty).map.as_ref().map(|map| map.lookup(field));
        let (strategy, field_ty) = lookup
            .map_or((PatchStrategy::Default, TypeId::DEDUCED), |lookup| (lookup.patch().clone(), lookup.ty));
        let key = match &strategy {
            PatchStrategy::MergeBy(key) => Some(&**key),
            _ => None,
        };
        let at = |error: StrategicError| error.beneath(field);
        check_order(change.as_deref().unwrap_or_default(), &order, key).map_err(at)?;
        let merged = match (before.clone(), change) {
            (None, None) => continue,
            (Some(before), None) => before,
            (None, Some(change)) => change.into_iter().filter_map(clean).collect(),
            (Some(before), Some(change)) => merge(schema, field_ty, &strategy, before, change).map_err(at)?,
        };
        if let Some(key) = key {
            check_keys(&merged, key).map_err(at)?;
        }
        let merged = arrange(merged, &order, &before.unwrap_or_default(), key);
        current.insert(field.to_owned(), Value::Array(merged));
    }
    Ok(())
}

/// Executes `$patch` in list items: deletes the item or replaces the list.
fn apply_directives(
    mut current: Vec<Value>,
    patch: Vec<Value>,
    key: &str,
) -> Merged<(Vec<Value>, Vec<Value>)> {
    let mut plain = Vec::with_capacity(patch.len());
    let mut deleted = Vec::new();
    let mut replace = false;
    for item in patch {
        match item.get(DIRECTIVE) {
            None => plain.push(item),
            Some(directive) => match directive.as_str() {
                Some("delete") => deleted.push(item),
                Some("replace") => replace = true,
                Some("merge") => {
                    return Err(StrategicError::format("merging lists cannot yet be specified in the patch"));
                }
                _ => return Err(unknown(directive)),
            },
        }
    }
    if !deleted.is_empty() {
        let deleted = Index::new(&deleted, Some(key));
        current.retain(|item| deleted.get(item).is_none());
    }
    if replace {
        Ok((plain.into_iter().filter_map(clean).collect(), Vec::new()))
    } else {
        Ok((current, plain))
    }
}

fn merge_item(
    schema: &Schema,
    element: TypeId,
    merged: &mut Vec<Value>,
    places: &mut Index<'_>,
    item: &Value,
    key: &str,
) -> Merged<()> {
    let Value::Object(patch) = item else { return Ok(()) };
    match places.get(item).and_then(|at| merged.get_mut(at)) {
        Some(slot) => {
            if let Value::Object(current) = slot.take() {
                let name = |error: StrategicError| error.beneath(&item[key].to_string());
                *slot = Value::Object(merge_maps(schema, element, current, patch.clone()).map_err(name)?);
            }
        }
        None => {
            if let Some(item) = clean(item.clone()) {
                places.insert(&item, merged.len());
                merged.push(item);
            }
        }
    }
    Ok(())
}

/// Sorts the items named in `order` into that order; each other item keeps its order in `before` and comes before the
/// first ordered item that followed it there.
fn arrange(merged: Vec<Value>, order: &[Value], before: &[Value], key: Option<&str>) -> Vec<Value> {
    let (order, before) = (Index::new(order, key), Index::new(before, key));
    let (mut ordered, mut others): (Vec<_>, Vec<_>) =
        merged.into_iter().partition(|item| order.get(item).is_some());
    ordered.sort_by_cached_key(|item| order.get(item));
    others.sort_by_cached_key(|item| before.get(item).unwrap_or(usize::MAX));
    let mut out = Vec::with_capacity(ordered.len() + others.len());
    let (mut ordered, mut others) = (ordered.into_iter().peekable(), others.into_iter().peekable());
    while let (Some(other), Some(next)) = (others.peek(), ordered.peek()) {
        let stood_before = matches!(
            (before.get(other), before.get(next)),
            (Some(other), Some(next)) if other < next
        );
        out.extend(if stood_before { others.next() } else { ordered.next() });
    }
    out.extend(ordered);
    out.extend(others);
    out
}

/// The items of the patch list must have the same order as in the order list, which must include all of them except
/// deletions.
fn check_order(patch: &[Value], order: &[Value], key: Option<&str>) -> Merged<()> {
    if order.is_empty() || patch.is_empty() {
        return Ok(());
    }
    if let Some(key) = key {
        check_keys(order, key)?;
    }
    let mut rest = order.iter();
    for item in patch.iter().filter(|item| item.get(DIRECTIVE).is_none()) {
        if !rest.any(|other| same(other, item, key)) {
            return Err(StrategicError::unprocessable(
                "the order in the patch list doesn't match $setElementOrder",
            ));
        }
    }
    Ok(())
}

fn check_keys(items: &[Value], key: &str) -> Merged<()> {
    for (at, item) in items.iter().enumerate() {
        let problem = match item {
            Value::Object(entries) if entries.contains_key(key) => continue,
            // `$patch: replace` needs no key: it replaces the whole list.
            Value::Object(entries)
                if entries.get(DIRECTIVE).is_some_and(|d| d.as_str() == Some("replace")) =>
            {
                continue;
            }
            Value::Object(_) => format!("does not contain the merge key {key:?}"),
            Value::Array(_) => "lists of lists are not supported".to_owned(),
            _ => "must be an object".to_owned(),
        };
        return Err(StrategicError::unprocessable(problem).beneath(&format!("[{at}]")));
    }
    Ok(())
}

fn check_scalars(items: &[Value]) -> Merged<()> {
    match items.iter().find(|item| item.is_array() || item.is_object()) {
        Some(Value::Array(_)) => Err(StrategicError::unprocessable("lists of lists are not supported")),
        Some(_) => Err(StrategicError::unprocessable("cannot merge lists without merge key")),
        None => Ok(()),
    }
}

/// The positions of list items, by merge key or by value. A linear search per item would be quadratic, and take minutes
/// for the longest list that fits in a request.
struct Index<'k> {
    key: Option<&'k str>,
    places: BTreeMap<Ordered, usize>,
}

impl<'k> Index<'k> {
    fn new(items: &[Value], key: Option<&'k str>) -> Self {
        let mut index = Self { key, places: BTreeMap::new() };
        for (at, item) in items.iter().enumerate() {
            index.insert(item, at);
        }
        index
    }

    /// The first position of an item.
    fn get(&self, item: &Value) -> Option<usize> {
        self.places.get(&self.identity(item)?).copied()
    }

    /// Records the position of an item that has none yet, and returns whether it had none.
    fn insert(&mut self, item: &Value, at: usize) -> bool {
        let Some(identity) = self.identity(item) else { return true };
        match self.places.entry(identity) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(at);
                true
            }
        }
    }

    /// The identity of the item; `None` without the merge key.
    fn identity(&self, item: &Value) -> Option<Ordered> {
        match self.key {
            None => Some(Ordered(item.clone())),
            Some(key) => item.get(key).cloned().map(Ordered),
        }
    }
}

/// A value that can be a map key.
struct Ordered(Value);

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(&self.0, &other.0)
    }
}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ordered {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ordered {}

/// Whether both are the same item, by merge key or by value.
fn same(left: &Value, right: &Value, key: Option<&str>) -> bool {
    match key {
        None => equal(left, right),
        Some(key) => matches!((left.get(key), right.get(key)), (Some(l), Some(r)) if equal(l, r)),
    }
}
