//! Compares two values of one type.

use serde_json::Value;

use super::ItemError;
use super::items::Groups;
use crate::fieldpath::{PathElement, Set, SetBuilder};
use crate::schema::{Alternatives, List, ListKind, Lookup, Map, Schema, Shape, Type, TypeId};
use crate::value::equal;

/// The difference between two values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Fields only in the left value.
    pub removed: Set,
    /// Fields in both, with different values.
    pub modified: Set,
    /// Fields only in the right value.
    pub added: Set,
}

impl Comparison {
    /// Whether there is no difference.
    pub fn is_same(&self) -> bool {
        self.removed.is_empty() && self.modified.is_empty() && self.added.is_empty()
    }

    /// The comparison without `fields` and their descendants.
    pub fn exclude(self, fields: &Set) -> Self {
        Self {
            removed: self.removed.recursive_difference(fields),
            modified: self.modified.recursive_difference(fields),
            added: self.added.recursive_difference(fields),
        }
    }
}

/// Compares two values of the same type. Equal parts do not allocate.
pub fn compare(ty: Type<'_>, left: &Value, right: &Value) -> Result<Comparison, ItemError> {
    let diff = visit(ty.schema, ty.id, Some(left), Some(right))?;
    Ok(diff.map_or_else(Comparison::default, |diff| *diff.beneath))
}

/// The changes of a node itself and of its descendants.
struct Diff {
    itself: Option<Change>,
    beneath: Box<Comparison>,
}

#[derive(Clone, Copy)]
enum Change {
    Added,
    Modified,
    Removed,
}

/// `None` means equal.
type Visited = Result<Option<Diff>, ItemError>;

fn visit(schema: &Schema, ty: TypeId, left: Option<&Value>, right: Option<&Value>) -> Visited {
    let atom = schema.atom(ty);
    let (l, r) = (atom.alternatives(left), atom.alternatives(right));
    if right.is_none() {
        return visit_as(schema, atom.shape(l), left, right);
    }
    if left.is_none() || l == r {
        return visit_as(schema, atom.shape(r), left, right);
    }
    visit_both(schema, atom, (l, left), (r, right))
}

/// The shape of an untyped value changed: visits it with the old and the new shape.
fn visit_both(
    schema: &Schema,
    atom: &crate::schema::Atom,
    (l, left): (Alternatives, Option<&Value>),
    (r, right): (Alternatives, Option<&Value>),
) -> Visited {
    let before = visit_as(schema, atom.shape(l), left, right)?;
    let after = visit_as(schema, atom.shape(r), left, right)?;
    Ok(match (before, after) {
        (Some(before), Some(after)) => Some(Diff {
            itself: after.itself.or(before.itself),
            beneath: Box::new(Comparison {
                removed: before.beneath.removed.union(&after.beneath.removed),
                modified: before.beneath.modified.union(&after.beneath.modified),
                added: before.beneath.added.union(&after.beneath.added),
            }),
        }),
        (before, after) => after.or(before),
    })
}

fn visit_as(schema: &Schema, shape: Shape<'_>, left: Option<&Value>, right: Option<&Value>) -> Visited {
    let whole = match (left, right) {
        (None, _) => Some(Change::Added),
        (_, None) => Some(Change::Removed),
        _ => None,
    };
    let beneath = match shape {
        Shape::Map(map) => {
            let (l, r) = (left.and_then(Value::as_object), right.and_then(Value::as_object));
            if map.atomic || (l.is_none_or(|l| l.is_empty()) && r.is_none_or(|r| r.is_empty())) {
                return Ok(leaf(left, right));
            }
            visit_map(schema, map, l, r, whole)?
        }
        Shape::List(list) => {
            let (l, r) = (left.and_then(Value::as_array), right.and_then(Value::as_array));
            if list.kind == ListKind::Atomic
                || (l.is_none_or(|l| l.is_empty()) && r.is_none_or(|r| r.is_empty()))
            {
                return Ok(leaf(left, right));
            }
            visit_list(schema, list, l.map_or(&[], Vec::as_slice), r.map_or(&[], Vec::as_slice))?
        }
        Shape::Scalar(_) | Shape::Nothing => return Ok(leaf(left, right)),
    };
    Ok((whole.is_some() || !beneath.is_same()).then(|| Diff { itself: whole, beneath: Box::new(beneath) }))
}

fn leaf(left: Option<&Value>, right: Option<&Value>) -> Option<Diff> {
    let change = match (left, right) {
        (None, _) => Change::Added,
        (_, None) => Change::Removed,
        (Some(left), Some(right)) if equal(left, right) => return None,
        _ => Change::Modified,
    };
    Some(Diff { itself: Some(change), beneath: Box::default() })
}

type Entries = serde_json::Map<String, Value>;

/// `whole`: the whole map is added or removed.
fn visit_map(
    schema: &Schema,
    map: &Map,
    left: Option<&Entries>,
    right: Option<&Entries>,
    whole: Option<Change>,
) -> Result<Comparison, ItemError> {
    let mut diffs = Diffs::default();
    for (key, l) in left.into_iter().flatten() {
        let field = map.lookup(key);
        let r = right.and_then(|right| right.get(key)).or_else(|| empty(&field, whole));
        if !field.is_untracked()
            && let Some(diff) = visit(schema, field.ty, Some(l), r)?
        {
            diffs.push(field.element(key), diff);
        }
    }
    for (key, r) in right.into_iter().flatten() {
        let field = map.lookup(key);
        if !field.is_untracked()
            && !left.is_some_and(|left| left.contains_key(key))
            && let Some(diff) = visit(schema, field.ty, empty(&field, whole), Some(r))?
        {
            diffs.push(field.element(key), diff);
        }
    }
    if let (Some(change), Some(present)) = (whole, left.or(right)) {
        // Fields that are always present are added and removed with the whole map.
        for field in
            map.fields().iter().filter(|field| field.always_present && !present.contains_key(&*field.name))
        {
            let diff = Diff { itself: Some(change), beneath: Box::default() };
            diffs.push(PathElement::Field(field.name.clone()), diff);
        }
    }
    Ok(diffs.finish())
}

/// The value used for an absent field of an existing map.
fn empty<'v>(field: &Lookup<'_>, whole: Option<Change>) -> Option<&'v Value> {
    static EMPTY: Value = Value::Null;
    (whole.is_none() && field.is_always_present()).then_some(&EMPTY)
}

fn visit_list(
    schema: &Schema,
    list: &List,
    left: &[Value],
    right: &[Value],
) -> Result<Comparison, ItemError> {
    if left == right {
        return Ok(Comparison::default());
    }
    let l_groups = Groups::new(schema, list, left).map_err(|(_, error)| error)?;
    let r_groups = Groups::new(schema, list, right).map_err(|(_, error)| error)?;
    let mut diffs = Diffs::default();
    let mut visit_item = |pe: &PathElement, l: &[(PathElement, usize)], r: &[(PathElement, usize)]| {
        let diff = match (l, r) {
            ([] | [_], [] | [_]) => {
                let (l, r) = (l.first().map(|(_, at)| &left[*at]), r.first().map(|(_, at)| &right[*at]));
                visit(schema, list.element, l, r)?
            }
            ([_, _, ..], [_, _, ..]) => {
                let same = l.len() == r.len()
                    && l.iter().zip(r).all(|((_, l), (_, r))| equal(&left[*l], &right[*r]));
                (!same).then(|| Diff { itself: Some(Change::Modified), beneath: Box::default() })
            }
            // Duplicates are owned as one leaf. When they are replaced by a single item (or the reverse), that leaf is
            // removed (or added), and the item's descendants are added (or removed).
            ([_, _, ..], r) => {
                let single = r.first().map(|(_, at)| visit(schema, list.element, None, Some(&right[*at])));
                if let Some(diff) = single.transpose()?.flatten() {
                    diffs.push(pe.clone(), diff);
                }
                Some(Diff { itself: Some(Change::Removed), beneath: Box::default() })
            }
            (l, _) => {
                let single = l.first().map(|(_, at)| visit(schema, list.element, Some(&left[*at]), None));
                if let Some(diff) = single.transpose()?.flatten() {
                    diffs.push(pe.clone(), diff);
                }
                Some(Diff { itself: Some(Change::Added), beneath: Box::default() })
            }
        };
        if let Some(diff) = diff {
            diffs.push(pe.clone(), diff);
        }
        Ok(())
    };
    for l in l_groups.iter() {
        visit_item(&l[0].0, l, r_groups.get(&l[0].0))?;
    }
    for r in r_groups.iter().filter(|r| l_groups.get(&r[0].0).is_empty()) {
        visit_item(&r[0].0, &[], r)?;
    }
    Ok(diffs.finish())
}

#[derive(Default)]
struct Diffs {
    removed: SetBuilder,
    modified: SetBuilder,
    added: SetBuilder,
}

impl Diffs {
    fn push(&mut self, pe: PathElement, diff: Diff) {
        match diff.itself {
            Some(Change::Added) => self.added.member(pe.clone()),
            Some(Change::Modified) => self.modified.member(pe.clone()),
            Some(Change::Removed) => self.removed.member(pe.clone()),
            None => {}
        }
        self.removed.child(pe.clone(), diff.beneath.removed);
        self.modified.child(pe.clone(), diff.beneath.modified);
        self.added.child(pe, diff.beneath.added);
    }

    fn finish(self) -> Comparison {
        Comparison {
            removed: self.removed.finish(),
            modified: self.modified.finish(),
            added: self.added.finish(),
        }
    }
}
