//! A set of paths, stored as a tree.

use std::sync::Arc;

use super::PathElement;

/// A set of paths: `members` are paths of length one, `children` hold the longer paths by their first step. Both are
/// sorted. The step of a child is not a member unless it is in `members`. Subtrees are shared between sets, so
/// operations copy only what differs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    pub(crate) members: Vec<PathElement>,
    pub(crate) children: Vec<(PathElement, Arc<Set>)>,
}

impl Set {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// A set of paths that consist of field names only, for constant tables.
    pub fn of_fields(paths: &[&[&str]]) -> Self {
        let mut set = Self::new();
        for path in paths {
            let path: Vec<_> = path.iter().map(|name| PathElement::field(name)).collect();
            set.insert(&path);
        }
        set
    }

    /// Adds a path, but not its parents. The empty path (the whole object) is ignored, because it has no owner.
    pub fn insert(&mut self, path: &[PathElement]) {
        match path {
            [] => {}
            [last] => {
                if let Err(at) = self.members.binary_search(last) {
                    self.members.insert(at, last.clone());
                }
            }
            [first, rest @ ..] => {
                let at = match self.children.binary_search_by(|(pe, _)| pe.cmp(first)) {
                    Ok(at) => at,
                    Err(at) => {
                        self.children.insert(at, (first.clone(), Arc::default()));
                        at
                    }
                };
                Arc::make_mut(&mut self.children[at].1).insert(rest);
            }
        }
    }

    /// Whether this path is a member.
    pub fn has(&self, path: &[PathElement]) -> bool {
        match path {
            [] => false,
            [last] => self.has_member(last),
            [first, rest @ ..] => self.child(first).is_some_and(|child| child.has(rest)),
        }
    }

    /// Whether the set has no member at any depth.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.children.iter().all(|(_, child)| child.is_empty())
    }

    /// The number of members at all depths.
    pub fn len(&self) -> usize {
        self.members.len() + self.children.iter().map(|(_, child)| child.len()).sum::<usize>()
    }

    /// Calls `f` for every member, parents before children.
    pub fn for_each(&self, mut f: impl FnMut(&[PathElement])) {
        self.walk(&mut Vec::new(), &mut f);
    }

    /// All members as paths.
    pub fn paths(&self) -> Vec<Vec<PathElement>> {
        let mut paths = Vec::new();
        self.for_each(|path| paths.push(path.to_vec()));
        paths
    }

    pub(crate) fn has_member(&self, pe: &PathElement) -> bool {
        self.members.binary_search(pe).is_ok()
    }

    pub(crate) fn child(&self, pe: &PathElement) -> Option<&Arc<Set>> {
        self.children.binary_search_by(|(other, _)| other.cmp(pe)).ok().map(|at| &self.children[at].1)
    }

    fn walk(&self, prefix: &mut Vec<PathElement>, f: &mut impl FnMut(&[PathElement])) {
        for member in &self.members {
            prefix.push(member.clone());
            f(prefix);
            prefix.pop();
        }
        for (pe, child) in &self.children {
            prefix.push(pe.clone());
            child.walk(prefix, f);
            prefix.pop();
        }
    }
}

/// Collects the children of a node in any order and sorts once at the end. Walkers visit maps in key order, so usually
/// the children are already sorted.
#[derive(Default)]
pub(crate) struct SetBuilder {
    set: Set,
}

impl SetBuilder {
    pub(crate) fn member(&mut self, pe: PathElement) {
        self.set.members.push(pe);
    }

    pub(crate) fn child(&mut self, pe: PathElement, child: Set) {
        if !child.is_empty() {
            self.set.children.push((pe, Arc::new(child)));
        }
    }

    pub(crate) fn finish(mut self) -> Set {
        if !self.set.members.is_sorted() {
            self.set.members.sort();
        }
        self.set.members.dedup();
        if !self.set.children.is_sorted_by(|l, r| l.0 < r.0) {
            self.set.children.sort_by(|l, r| l.0.cmp(&r.0));
            // A step can occur twice when an untyped value was walked with both of its types.
            let mut merged: Vec<(PathElement, Arc<Set>)> = Vec::with_capacity(self.set.children.len());
            for (pe, child) in self.set.children {
                match merged.last_mut() {
                    Some(last) if last.0 == pe => last.1 = Arc::new(last.1.union(&child)),
                    _ => merged.push((pe, child)),
                }
            }
            self.set.children = merged;
        }
        self.set
    }
}
