//! Conflicts between an applier and the owners of the fields it would change.

use std::collections::BTreeMap;
use std::fmt;

use super::{Entry, Operation};
use crate::fieldpath::{PathElement, Set, display_path};

/// A field that another manager owns and that the apply would change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The owner; its `fields` are empty here.
    pub owner: Entry,
    /// The field.
    pub path: Vec<PathElement>,
}

/// All conflicts of one apply, ordered by owner and path; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflicts(pub Vec<Conflict>);

impl Conflict {
    /// The display form of the field, for `details.causes[].field`.
    pub fn field(&self) -> String {
        display_path(&self.path)
    }

    /// The text for `details.causes[].message`.
    pub fn message(&self) -> String {
        format!("conflict with {}", self.owner())
    }

    fn owner(&self) -> String {
        let owner = &self.owner;
        let mut text = format!("{:?}", owner.manager);
        if !owner.subresource.is_empty() {
            text += &format!(" with subresource {:?}", owner.subresource);
        }
        if owner.operation == Operation::Update {
            text += &format!(" using {}", owner.api_version);
        }
        text
    }
}

impl Conflicts {
    pub(super) fn new(mut found: Vec<(Entry, Set)>) -> Self {
        found.sort_by_cached_key(|(owner, _)| owner.identifier());
        let mut conflicts = Vec::new();
        for (owner, fields) in found {
            fields.for_each(|path| {
                conflicts.push(Conflict { owner: owner.clone(), path: path.to_vec() });
            });
        }
        Self(conflicts)
    }

    /// The conflicting fields of all owners.
    pub fn fields(&self) -> Set {
        let mut set = Set::new();
        for conflict in &self.0 {
            set.insert(&conflict.path);
        }
        set
    }
}

/// The message of the 409 response.
impl fmt::Display for Conflicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [conflict] = self.0.as_slice() {
            return write!(f, "Apply failed with 1 conflict: {}: {}", conflict.message(), conflict.field());
        }
        let mut by_owner: BTreeMap<String, Vec<&Conflict>> = BTreeMap::new();
        for conflict in &self.0 {
            by_owner.entry(conflict.owner.identifier()).or_default().push(conflict);
        }
        write!(f, "Apply failed with {} conflicts: ", self.0.len())?;
        for (i, conflicts) in by_owner.values().enumerate() {
            let line = if i > 0 { "\n" } else { "" };
            write!(f, "{line}conflicts with {}:", conflicts[0].owner())?;
            for conflict in conflicts {
                write!(f, "\n- {}", conflict.field())?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Conflicts {}
