//! The interface for servers: update and apply, with everything that Kubernetes adds to structured merge.

use serde_json::{Map, Value};
use thiserror::Error;

use super::entry::{is_reset, list_of, set_list};
use super::updater::Updater;
use super::{Conflicts, DecodeError, Entry, Managed, Operation, Versions, cap, last_applied};
use crate::fieldpath::Set;
use crate::typed::{Duplicates, Invalid, ItemError, MergeError, validate};

/// How many updaters an object tracks separately.
pub const MAX_UPDATE_MANAGERS: usize = 10;
/// The owner of the fields that an object without managedFields had before its first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Tracks ownership for one endpoint: a kind at a version, optionally a subresource.
#[derive(Clone, Copy)]
pub struct FieldManager<'a> {
    /// The versions of the kind.
    pub versions: &'a dyn Versions,
    /// The version of the request.
    pub api_version: &'a str,
    /// The kind, as in the object.
    pub kind: &'a str,
    /// `status`, `scale`, …; empty for the object itself.
    pub subresource: &'a str,
    /// Fields that this endpoint does not write (the status for the object itself, everything except the status for
    /// `/status`). Writes through the endpoint never own them.
    pub reset_fields: Option<&'a Set>,
}

/// Why ownership of a write other than apply cannot be tracked. Upstream then stores the object without managedFields.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum UpdateError {
    /// The request's version is unknown.
    #[error("no corresponding type for {0}")]
    NoType(String),
    /// A conversion between versions failed.
    #[error("failed to convert object: {0}")]
    Convert(String),
    /// An item of an associative list has no valid key.
    #[error("failed to compare objects")]
    Item(#[source] ItemError),
}

/// Why an apply is rejected.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// Another manager owns fields that would change: 409.
    #[error(transparent)]
    Conflicts(Conflicts),
    /// The version or kind is not the endpoint's: 400.
    #[error("{0}")]
    WrongType(String),
    /// The configuration contains managedFields: 400.
    #[error("metadata.managedFields must be nil")]
    ManagedFieldsInConfig,
    /// The configuration does not match the type: 400.
    #[error("failed to create typed patch object: {0}")]
    Config(Invalid),
    /// The managedFields of the live object are invalid: 500.
    #[error("failed to decode managed fields")]
    Decode(#[source] DecodeError),
    /// Merging failed.
    #[error("failed to merge config: {0}")]
    Merge(MergeError),
    /// Any other error.
    #[error(transparent)]
    Update(UpdateError),
}

impl FieldManager<'_> {
    /// Prepares `new` to be stored by a create, update or patch: sets its managedFields to the state after `manager`
    /// has changed `live` (`None` on create) to `new` at `now`, in seconds since 1970.
    ///
    /// Valid managedFields in `new` are used, unless this is a subresource; `[]` and `[{}]` remove all ownership. On an
    /// error, `new` is left without managedFields, because wrong ownership is worse than none.
    pub fn update(
        &self,
        live: Option<&Value>,
        new: &mut Value,
        manager: &str,
        now: i64,
    ) -> Result<(), UpdateError> {
        let mut managed = self.decode_live_or_new(live, new);
        set_list(new, None);
        let has_uid = |live: &Value| {
            live.pointer("/metadata/uid").and_then(Value::as_str).is_some_and(|uid| !uid.is_empty())
        };
        // An object without tracked owners stays untracked until its first apply.
        if managed.entries.is_empty() && live.is_some_and(has_uid) {
            return Ok(());
        }
        let empty;
        let live = match live {
            Some(live) => live,
            None => {
                empty = self.empty_object();
                &empty
            }
        };
        self.track_update(live, new, &mut managed, manager, now)?;
        set_list(new, managed.encode());
        Ok(())
    }

    /// Returns the object to store for an apply of `config` by `manager`, before defaulting, or `None` if neither a
    /// field nor an owner changes. `live` is [`FieldManager::empty_object`] if the object does not exist yet.
    pub fn apply(
        &self,
        live: &Value,
        config: &Value,
        manager: &str,
        force: bool,
        now: i64,
    ) -> Result<Option<Value>, ApplyError> {
        self.check_config(config)?;
        let mut original = Managed::of(live).map_err(ApplyError::Decode)?;
        original.sort();
        let mut before = original.clone();
        if before.entries.is_empty() {
            let empty = self.empty_object();
            self.track_update(&empty, live, &mut before, BEFORE_FIRST_APPLY, now)
                .map_err(ApplyError::Update)?;
        }
        let (new, mut managed) = match self.track_apply(live, config, before.clone(), manager, force, now) {
            Err(ApplyError::Conflicts(conflicts)) if manager == last_applied::KUBECTL => {
                let allowed = last_applied::allowed_conflicts(self, live);
                last_applied::check(conflicts, allowed.as_ref()).map_err(ApplyError::Conflicts)?;
                self.track_apply(live, config, before, manager, true, now)?
            }
            other => other?,
        };
        managed.sort();
        let annotate = manager == last_applied::KUBECTL && last_applied::has(new.as_ref().unwrap_or(live));
        if new.is_none() && !annotate && managed == original {
            return Ok(None);
        }
        let mut object = new.unwrap_or_else(|| live.clone());
        if annotate {
            last_applied::set(&mut object, config);
        }
        set_list(&mut object, managed.encode());
        Ok(Some(object))
    }

    /// The placeholder for an object that does not exist yet.
    pub fn empty_object(&self) -> Value {
        let mut map = Map::new();
        map.insert("apiVersion".to_owned(), Value::from(self.api_version));
        map.insert("kind".to_owned(), Value::from(self.kind));
        Value::Object(map)
    }

    fn check_config(&self, config: &Value) -> Result<(), ApplyError> {
        let text = |name: &str| config.get(name).and_then(Value::as_str).unwrap_or_default();
        if text("apiVersion") != self.api_version {
            return Err(ApplyError::WrongType(format!(
                "Incorrect version specified in apply patch. Specified patch version: {}, expected: {}",
                text("apiVersion"),
                self.api_version
            )));
        }
        if text("kind") != self.kind {
            return Err(ApplyError::WrongType(format!(
                "invalid object type: {}, Kind={}",
                self.api_version,
                text("kind")
            )));
        }
        if list_of(config).is_some_and(|list| !list.is_null()) {
            return Err(ApplyError::ManagedFieldsInConfig);
        }
        let ty = self.versions.type_at(self.api_version);
        let ty = ty.ok_or_else(|| ApplyError::Update(UpdateError::NoType(self.api_version.to_owned())))?;
        validate(ty, config, Duplicates::Reject).map_err(ApplyError::Config)
    }

    fn decode_live_or_new(&self, live: Option<&Value>, new: &Value) -> Managed {
        let live = || live.map(Managed::of).and_then(Result::ok).unwrap_or_default();
        if !self.subresource.is_empty() {
            return live();
        }
        let list = list_of(new);
        if is_reset(list) {
            return Managed::default();
        }
        match Managed::decode(list) {
            Ok(managed) if !managed.entries.is_empty() => managed,
            _ => live(),
        }
    }

    fn track_update(
        &self,
        live: &Value,
        new: &Value,
        managed: &mut Managed,
        manager: &str,
        now: i64,
    ) -> Result<(), UpdateError> {
        let gained = self.updater(live).update(new, managed)?;
        let gained = gained.difference(never_owned());
        if !gained.is_empty() {
            let owner = self.owner(manager, Operation::Update);
            let fields = match managed.take(&owner) {
                Some(previous) => gained.union(&previous.fields),
                None => gained,
            };
            managed.entries.push(Entry { fields, time: Some(now), ..owner });
        }
        cap::cap(managed, MAX_UPDATE_MANAGERS);
        Ok(())
    }

    fn track_apply(
        &self,
        live: &Value,
        config: &Value,
        mut managed: Managed,
        manager: &str,
        force: bool,
        now: i64,
    ) -> Result<(Option<Value>, Managed), ApplyError> {
        let owner = self.owner(manager, Operation::Apply);
        let new = self.updater(live).apply(config, &mut managed, &owner, force)?;
        if let Some(mut entry) = managed.take(&owner) {
            entry.fields = entry.fields.difference(never_owned());
            if new.is_some() {
                entry.time = Some(now);
            }
            if !entry.fields.is_empty() {
                managed.entries.push(entry);
            }
        }
        Ok((new, managed))
    }

    fn updater<'u>(&'u self, live: &'u Value) -> Updater<'u> {
        Updater { versions: self.versions, api_version: self.api_version, ignored: self.reset_fields, live }
    }

    fn owner(&self, manager: &str, operation: Operation) -> Entry {
        Entry {
            manager: if manager.is_empty() { "unknown" } else { manager }.to_owned(),
            operation,
            api_version: self.api_version.to_owned(),
            subresource: self.subresource.to_owned(),
            time: None,
            fields: Set::new(),
        }
    }
}

/// Fields that identify an object or that only the server writes; they have no owners.
fn never_owned() -> &'static Set {
    static NEVER_OWNED: std::sync::OnceLock<Set> = std::sync::OnceLock::new();
    NEVER_OWNED.get_or_init(|| {
        Set::of_fields(&[
            &["apiVersion"],
            &["kind"],
            &["metadata"],
            &["metadata", "name"],
            &["metadata", "namespace"],
            &["metadata", "creationTimestamp"],
            &["metadata", "selfLink"],
            &["metadata", "uid"],
            &["metadata", "clusterName"],
            &["metadata", "generation"],
            &["metadata", "managedFields"],
            &["metadata", "resourceVersion"],
        ])
    })
}
