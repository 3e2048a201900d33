//! Set algebra. Results share unchanged subtrees with their inputs.

use std::cmp::Ordering;
use std::sync::Arc;

use super::{PathElement, Set};
use crate::schema::{Schema, TypeId};

type Children = Vec<(PathElement, Arc<Set>)>;

impl Set {
    /// Members of either set.
    pub fn union(&self, other: &Set) -> Set {
        if other.members.is_empty() && other.children.is_empty() {
            return self.clone();
        }
        if self.members.is_empty() && self.children.is_empty() {
            return other.clone();
        }
        let mut members = Vec::with_capacity(self.members.len().max(other.members.len()));
        zip(&self.members, &other.members, PathElement::cmp, |l, r| members.extend(l.or(r).cloned()));
        let mut children = Vec::with_capacity(self.children.len().max(other.children.len()));
        zip(&self.children, &other.children, by_step, |l, r| match (l, r) {
            (Some((pe, l)), Some((_, r))) if Arc::ptr_eq(l, r) => children.push((pe.clone(), l.clone())),
            (Some((pe, l)), Some((_, r))) => children.push((pe.clone(), Arc::new(l.union(r)))),
            (one, other) => children.extend(one.or(other).cloned()),
        });
        Set { members, children }
    }

    /// Members of both sets.
    pub fn intersection(&self, other: &Set) -> Set {
        let mut out = Set::new();
        zip(&self.members, &other.members, PathElement::cmp, |l, r| {
            if let (Some(pe), Some(_)) = (l, r) {
                out.members.push(pe.clone());
            }
        });
        zip(&self.children, &other.children, by_step, |l, r| {
            if let (Some((pe, l)), Some((_, r))) = (l, r) {
                push_unless_empty(&mut out.children, pe, l.intersection(r));
            }
        });
        out
    }

    /// Members of `self` that are not members of `other`. Children of a removed member stay.
    pub fn difference(&self, other: &Set) -> Set {
        if other.members.is_empty() && other.children.is_empty() {
            return self.clone();
        }
        let mut children = Vec::with_capacity(self.children.len());
        zip(&self.children, &other.children, by_step, |l, r| match (l, r) {
            (Some((pe, l)), Some((_, r))) => push_unless_empty(&mut children, pe, l.difference(r)),
            (l, _) => children.extend(l.cloned()),
        });
        Set { members: self.members_not_in(other), children }
    }

    /// Members of `self` that are neither members of `other` nor descendants of one.
    pub fn recursive_difference(&self, other: &Set) -> Set {
        if other.members.is_empty() && other.children.is_empty() {
            return self.clone();
        }
        let mut children = Vec::with_capacity(self.children.len());
        zip(&self.children, &other.children, by_step, |l, r| match (l, r) {
            (Some((pe, _)), _) if other.has_member(pe) => {}
            (Some((pe, l)), Some((_, r))) => push_unless_empty(&mut children, pe, l.recursive_difference(r)),
            (l, _) => children.extend(l.cloned()),
        });
        Set { members: self.members_not_in(other), children }
    }

    /// Whether every member of `self` is a member of `other`; does not allocate.
    pub fn is_subset_of(&self, other: &Set) -> bool {
        let mut subset = true;
        zip(&self.members, &other.members, PathElement::cmp, |l, r| subset &= l.is_none() || r.is_some());
        if subset {
            zip(&self.children, &other.children, by_step, |l, r| match (l, r) {
                (Some((_, l)), Some((_, r))) => {
                    subset = subset && (Arc::ptr_eq(l, r) || l.is_subset_of(r));
                }
                (Some((_, l)), None) => subset &= l.is_empty(),
                (None, _) => {}
            });
        }
        subset
    }

    /// Adds every declared struct field on the way to a member: such fields have no owner of their own, but are removed
    /// with the last value in them.
    pub(crate) fn with_named_fields(&self, schema: &Schema, ty: Option<TypeId>) -> Set {
        let map = ty.and_then(|ty| schema.atom(ty).map.as_ref());
        let mut members = self.members.clone();
        for (pe, _) in &self.children {
            if let (PathElement::Field(name), Some(map)) = (pe, map)
                && map.field(name).is_some()
                && let Err(at) = members.binary_search(pe)
            {
                members.insert(at, pe.clone());
            }
        }
        let children = self
            .children
            .iter()
            .map(|(pe, child)| {
                let ty = ty.and_then(|ty| schema.step(ty, pe));
                (pe.clone(), Arc::new(child.with_named_fields(schema, ty)))
            })
            .collect();
        Set { members, children }
    }

    fn members_not_in(&self, other: &Set) -> Vec<PathElement> {
        let mut out = Vec::with_capacity(self.members.len());
        zip(&self.members, &other.members, PathElement::cmp, |l, r| {
            if let (Some(pe), None) = (l, r) {
                out.push(pe.clone());
            }
        });
        out
    }
}

fn by_step(l: &(PathElement, Arc<Set>), r: &(PathElement, Arc<Set>)) -> Ordering {
    l.0.cmp(&r.0)
}

fn push_unless_empty(children: &mut Children, pe: &PathElement, child: Set) {
    if !child.is_empty() {
        children.push((pe.clone(), Arc::new(child)));
    }
}

/// Walks two sorted slices together; `f` is called once per distinct element, with its value on each side.
fn zip<'a, T>(
    left: &'a [T],
    right: &'a [T],
    order: impl Fn(&T, &T) -> Ordering,
    mut f: impl FnMut(Option<&'a T>, Option<&'a T>),
) {
    let (mut i, mut j) = (0, 0);
    while i < left.len() || j < right.len() {
        let side = match (left.get(i), right.get(j)) {
            (Some(l), Some(r)) => order(l, r),
            (Some(_), None) => Ordering::Less,
            _ => Ordering::Greater,
        };
        match side {
            Ordering::Less => f(left.get(i), None),
            Ordering::Equal => f(left.get(i), right.get(j)),
            Ordering::Greater => f(None, right.get(j)),
        }
        i += usize::from(side.is_le());
        j += usize::from(side.is_ge());
    }
}
