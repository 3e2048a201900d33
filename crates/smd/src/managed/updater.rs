//! The core: how a write changes ownership, and how an apply changes an object.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;

use super::{ApplyError, Conflicts, Entry, Managed, UpdateError, Versions};
use crate::fieldpath::Set;
use crate::schema::Type;
use crate::typed::{self, Comparison};

/// A write to an object.
pub(super) struct Updater<'a> {
    pub(super) versions: &'a dyn Versions,
    /// The version of the request and of both objects.
    pub(super) api_version: &'a str,
    /// Fields that this endpoint does not write; writes through it never own them.
    pub(super) ignored: Option<&'a Set>,
    pub(super) live: &'a Value,
}

/// The changes of an object, at one version.
struct Changes {
    /// Modified or added.
    touched: Set,
    removed: Set,
}

/// `None` for a version that is not served.
type ChangesByVersion = BTreeMap<String, Option<Changes>>;

impl From<Comparison> for Changes {
    fn from(comparison: Comparison) -> Self {
        Self { touched: comparison.modified.union(&comparison.added), removed: comparison.removed }
    }
}

impl Updater<'_> {
    /// Removes changed fields from all owners, and returns the fields that the writer owns now.
    pub(super) fn update(&self, new: &Value, managed: &mut Managed) -> Result<Set, UpdateError> {
        self.reconcile(managed);
        let mut changes = self.changes(Some(new), managed)?;
        take_changed(managed, &changes, None);
        let own = changes.remove(self.api_version).flatten();
        Ok(own.map(|own| own.touched).unwrap_or_default())
    }

    /// Applies `config` as `owner`. Returns the new object, or `None` if it is unchanged. `managed` then has the
    /// owner's new entry.
    pub(super) fn apply(
        &self,
        config: &Value,
        managed: &mut Managed,
        owner: &Entry,
        force: bool,
    ) -> Result<Option<Value>, ApplyError> {
        self.reconcile(managed);
        let ty = self.type_at(self.api_version).map_err(ApplyError::Update)?;
        let merged = typed::merge(ty, self.live, config).map_err(ApplyError::Merge)?;
        let mut fields = typed::to_field_set(ty, config);
        if let Some(ignored) = self.ignored {
            fields = fields.recursive_difference(ignored);
        }
        let last = managed.take(owner);
        let time = last.as_ref().and_then(|last| last.time);
        managed.entries.push(Entry { fields, time, ..owner.clone() });

        let base = merged.as_ref().unwrap_or(self.live);
        let pruned = match &last {
            Some(last) if !last.fields.is_empty() => self.prune(base, managed, owner, last)?,
            _ => None,
        };
        let new = pruned.or(merged).filter(|new| !crate::value::equal(self.live, new));
        let changes = self.changes(new.as_ref(), managed).map_err(ApplyError::Update)?;
        if !force && let Some(conflicts) = conflicts(managed, &changes, owner) {
            return Err(ApplyError::Conflicts(conflicts));
        }
        take_changed(managed, &changes, Some(owner));
        Ok(new)
    }

    /// Removes owners whose version is no longer served, and adapts sets to fields that became atomic.
    fn reconcile(&self, managed: &mut Managed) {
        managed.entries.retain_mut(|entry| match self.versions.type_at(&entry.api_version) {
            Some(ty) => {
                if let Some(fields) = typed::reconcile(ty, &entry.fields) {
                    entry.fields = fields;
                }
                true
            }
            None => false,
        });
    }

    /// The changes at the version of the request and at the version of every owner; none if `new` is `None`.
    fn changes(&self, new: Option<&Value>, managed: &Managed) -> Result<ChangesByVersion, UpdateError> {
        let mut changes = ChangesByVersion::new();
        let Some(new) = new else { return Ok(changes) };
        changes.insert(self.api_version.to_owned(), self.changes_at(new, self.api_version)?);
        for entry in &managed.entries {
            if !changes.contains_key(&entry.api_version) {
                changes.insert(entry.api_version.clone(), self.changes_at(new, &entry.api_version)?);
            }
        }
        Ok(changes)
    }

    /// `None` if the version is not served.
    fn changes_at(&self, new: &Value, version: &str) -> Result<Option<Changes>, UpdateError> {
        let Some(ty) = self.versions.type_at(version) else { return Ok(None) };
        let (live, new) = (self.convert(self.live, version)?, self.convert(new, version)?);
        let mut comparison = typed::compare(ty, &live, &new).map_err(UpdateError::Item)?;
        if let Some(ignored) = self.ignored {
            comparison = comparison.exclude(ignored);
        }
        Ok(Some(comparison.into()))
    }

    fn type_at(&self, version: &str) -> Result<Type<'_>, UpdateError> {
        self.versions.type_at(version).ok_or_else(|| UpdateError::NoType(version.to_owned()))
    }

    fn convert<'v>(&self, object: &'v Value, to: &str) -> Result<Cow<'v, Value>, UpdateError> {
        self.convert_between(object, self.api_version, to)
    }

    fn convert_between<'v>(
        &self,
        object: &'v Value,
        from: &str,
        to: &str,
    ) -> Result<Cow<'v, Value>, UpdateError> {
        if from == to {
            return Ok(Cow::Borrowed(object));
        }
        self.versions.convert(object, from, to).map(Cow::Owned).map_err(UpdateError::Convert)
    }

    /// Removes the fields that the owner applied before, does not apply now, and that have no other owner.
    fn prune(
        &self,
        merged: &Value,
        managed: &Managed,
        owner: &Entry,
        last: &Entry,
    ) -> Result<Option<Value>, ApplyError> {
        let Some(now) = managed.find(owner) else { return Ok(None) };
        if last.api_version == now.api_version && last.fields.is_subset_of(&now.fields) {
            return Ok(None);
        }
        let Some(ty) = self.versions.type_at(&last.api_version) else { return Ok(None) };
        let merged = self.convert(merged, &last.api_version).map_err(ApplyError::Update)?;
        let named = |ty: Type<'_>, set: &Set| set.with_named_fields(ty.schema, Some(ty.id));
        let last_fields = named(ty, &last.fields);

        let without_last =
            typed::remove(ty, &merged, &last_fields).unwrap_or_else(|| merged.clone().into_owned());
        let kept = self.add_back_owned(&merged, without_last, &last.api_version, managed)?;
        let kept_fields = named(ty, &typed::to_field_set(ty, &kept));
        let merged_fields = named(ty, &typed::to_field_set(ty, &merged));
        let doomed = merged_fields.difference(&kept_fields).intersection(&last_fields);
        let Some(pruned) = typed::remove(ty, &merged, &doomed) else { return Ok(None) };
        let pruned = self.convert_between(&pruned, &last.api_version, self.api_version);
        pruned.map(|pruned| Some(pruned.into_owned())).map_err(ApplyError::Update)
    }

    /// Restores removed fields that have an owner (the applier included), at the version of each owner. The version of
    /// the objects comes first, because conversions may need fields that only this version has.
    fn add_back_owned(
        &self,
        merged: &Value,
        pruned: Value,
        version: &str,
        managed: &Managed,
    ) -> Result<Value, ApplyError> {
        let mut owned: BTreeMap<&str, Set> = BTreeMap::new();
        for entry in &managed.entries {
            let set = owned.entry(&entry.api_version).or_default();
            *set = set.union(&entry.fields);
        }
        let own = owned.remove(version).map(|set| (version, set));
        let mut current = (version.to_owned(), merged.clone(), pruned);
        for (at, owned) in own.into_iter().chain(owned) {
            let Some(ty) = self.versions.type_at(at) else { continue };
            let convert = |object: &Value| {
                self.convert_between(object, &current.0, at).map(Cow::into_owned).map_err(ApplyError::Update)
            };
            let (merged, pruned) = (convert(&current.1)?, convert(&current.2)?);
            let set =
                |object: &Value| typed::to_field_set(ty, object).with_named_fields(ty.schema, Some(ty.id));
            let keep = set(&pruned).union(&owned.with_named_fields(ty.schema, Some(ty.id)));
            let doomed = set(&merged).difference(&keep);
            let pruned = typed::remove(ty, &merged, &doomed).unwrap_or_else(|| merged.clone());
            current = (at.to_owned(), merged, pruned);
        }
        let (at, _, pruned) = current;
        self.convert_between(&pruned, &at, version).map(Cow::into_owned).map_err(ApplyError::Update)
    }
}

/// The changes to fields of other owners.
fn conflicts(managed: &Managed, changes: &ChangesByVersion, owner: &Entry) -> Option<Conflicts> {
    let mut conflicts = Vec::new();
    for entry in managed.entries.iter().filter(|entry| !entry.is_same_owner(owner)) {
        if let Some(Some(changes)) = changes.get(&entry.api_version) {
            let fields = entry.fields.intersection(&changes.touched);
            if !fields.is_empty() {
                conflicts.push((Entry { fields: Set::new(), time: None, ..entry.clone() }, fields));
            }
        }
    }
    (!conflicts.is_empty()).then(|| Conflicts::new(conflicts))
}

/// Removes changed fields from all owners except `owner`, and drops owners without any field.
fn take_changed(managed: &mut Managed, changes: &ChangesByVersion, owner: Option<&Entry>) {
    managed.entries.retain_mut(|entry| {
        if owner.is_none_or(|owner| !entry.is_same_owner(owner))
            && let Some(Some(changes)) = changes.get(&entry.api_version)
        {
            entry.fields = entry.fields.difference(&changes.touched).difference(&changes.removed);
        }
        !entry.fields.is_empty()
    });
}
