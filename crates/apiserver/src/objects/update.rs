//! Updates objects: PUT, all patches, and the server's own changes, each as a closure over the stored object.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{Objects, Outcome, WriteContext, metadata, request, unstored};
use crate::admission::Operation;
use crate::limits::{check_shape, check_stored_bytes};
use crate::object::{ObjectExt, encode, object_mut};
use crate::patch::Manager;
use crate::resources::Resource;
use crate::status::{FieldError, Status};
use crate::storage::{Change, Expect, StorageError, Version, Write};

/// Options of an update.
#[derive(Clone, Copy, Debug, Default)]
pub struct UpdateOptions<'a> {
    /// Empty, `status`, `scale`, or another subresource, for admission and ownership.
    pub subresource: &'a str,
    /// Create the object if it does not exist (PUT of some kinds, apply).
    pub create: bool,
    /// Accept a missing resourceVersion even if the kind requires one (patches, internal changes).
    pub unconditional: bool,
    /// The closure has already recorded field ownership (apply).
    pub tracked: bool,
}

impl Objects {
    /// Changes an object. `change` gets the stored object (`None` if it does not exist and [`UpdateOptions::create`] is
    /// set) and returns the new one. After a concurrent write it is called again with the newer object, unless it
    /// returns a `resourceVersion` that no longer matches, which is a 409.
    pub async fn update<F>(
        &self,
        context: &WriteContext,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
        options: UpdateOptions<'_>,
        mut change: F,
    ) -> Result<Outcome, Status>
    where
        F: FnMut(Option<&Value>) -> Result<Value, Status> + Send,
    {
        let key = resource.key(namespace, name);
        loop {
            let Some(current) = self.storage().index().get(&key) else {
                if !options.create {
                    return Err(Status::not_found(resource.group_resource(), name));
                }
                let mut object = change(None)?;
                metadata::reconcile_identity(resource, namespace, Some(name), &mut object)?;
                if !object.uid().is_empty() {
                    let why = format!(
                        "Precondition failed: UID in precondition: {}, UID in object meta: ",
                        object.uid()
                    );
                    return Err(Status::conflict(resource.group_resource(), name, &why));
                }
                object.metadata_mut().remove("resourceVersion");
                match self.create_tracked(context, resource, namespace, object, !options.tracked).await {
                    // Created concurrently: now it is an update.
                    Err(status)
                        if status.is_already_exists() && self.storage().index().get(&key).is_some() =>
                    {
                        continue;
                    }
                    result => return result,
                }
            };
            let old = resource.decode(&current).await?;
            let mut object = change(Some(&old))?;
            match self.update_once(context, resource, &current, &old, &mut object, options).await? {
                Some(outcome) => return Ok(outcome),
                None => continue,
            }
        }
    }

    /// One attempt; `None` after a concurrent write.
    async fn update_once(
        &self,
        context: &WriteContext,
        resource: &Arc<Resource>,
        current: &Arc<Version>,
        old: &Value,
        object: &mut Value,
        options: UpdateOptions<'_>,
    ) -> Result<Option<Outcome>, Status> {
        let (namespace, name) = (current.key().namespace(), current.key().name());
        check_shape(object)?;
        metadata::reconcile_identity(resource, namespace, Some(name), object)?;
        check_revision(resource, object, old, options)?;
        if options.subresource.is_empty() || options.subresource == "status" {
            resource.strategy.check_types(object).map_err(Status::bad_request)?;
            let unknown = resource.strategy.prune(object);
            self.report_fields(context, &unknown)?;
        }
        metadata::keep_system_fields(resource, object, old)?;
        restrict(resource, object, old, options.subresource);
        metadata::deduplicate_owners(context, object);
        resource.strategy.default(object)?;
        resource.strategy.prepare_for_update(object, old, options.subresource);
        let admission =
            request(Operation::Update, context, resource, options.subresource, namespace, name, Some(old));
        let before = if options.tracked { Some(object.clone()) } else { None };
        if self.mutate(&admission, object).await? {
            resource.strategy.default(object)?;
        }
        bump_generation(resource, object, old);
        if let Some(fields) = self.fields() {
            let now = self.clock().now();
            let by = Manager { name: &context.field_manager, subresource: options.subresource, now };
            match before {
                None => fields.track(resource, Some(old), object, &by)?,
                // Admission changed the applied object: record that as a plain update.
                Some(mut before) => {
                    keep(&mut before, object, "generation");
                    if before != *object {
                        fields.track(resource, Some(&before), object, &by)?;
                    }
                }
            }
        }
        metadata::drop_empty_fields(object);
        let mut errors = metadata::validate(resource, object, Some(old));
        errors.extend(resource.strategy.validate_update(object, old, options.subresource));
        if !errors.is_empty() {
            return Err(Status::invalid(resource.group_kind(), name, &errors));
        }
        resource.strategy.warnings(object, Some(old)).into_iter().for_each(|text| context.warnings.add(text));
        self.admit(&admission, Some(object)).await?;
        let gone = object.is_deleting() && object.finalizers().is_empty() && !resource.strategy.holds(object);
        if !gone && same(object, old) && resource.storage_api_version() == stored_api_version(current) {
            let outcome =
                Outcome { version: current.clone(), created: false, changed: false, removed: false };
            return Ok(Some(outcome));
        }
        let stored = self.stored_form(resource, std::mem::take(object)).await?;
        self.store(context, resource, current, &stored, gone).await
    }

    async fn store(
        &self,
        context: &WriteContext,
        resource: &Resource,
        current: &Arc<Version>,
        stored: &Value,
        gone: bool,
    ) -> Result<Option<Outcome>, Status> {
        let outcome = |version| Some(Outcome { version, created: false, changed: true, removed: gone });
        let encoded = encode(stored);
        // An object above the limit can be made smaller in steps, and can always be deleted.
        if !gone && encoded.json.len() > current.len() {
            check_stored_bytes(encoded.json.len())?;
        }
        if context.dry_run {
            return Ok(outcome(unstored(resource, stored)));
        }
        let change = if gone { Change::Delete { last: Some(encoded) } } else { Change::Put(encoded) };
        let write =
            Write { key: current.key().clone(), expect: Expect::Revision(current.revision()), change };
        match self.storage().write(write).await {
            Ok(version) => Ok(outcome(version)),
            Err(StorageError::Conflict { .. }) => Ok(None),
            Err(error) => Err(self.storage_failure(&error)),
        }
    }
}

fn stored_api_version(version: &Version) -> String {
    // Stored objects start with their apiVersion, see `object::encode`.
    let bytes = version.bytes();
    let text = bytes.get(15..).unwrap_or_default();
    let end = text.iter().position(|c| *c == b'"').unwrap_or(0);
    String::from_utf8_lossy(&text[..end]).into_owned()
}

fn check_revision(
    resource: &Resource,
    object: &mut Value,
    old: &Value,
    options: UpdateOptions<'_>,
) -> Result<(), Status> {
    let name = old.name();
    match object.resource_version() {
        "" if options.unconditional || resource.def.rules.unconditional_update => {
            let revision = old.resource_version().to_owned();
            object.set_meta_str("resourceVersion", &revision);
            Ok(())
        }
        "" => {
            let error =
                FieldError::invalid("metadata.resourceVersion", &0.into(), "must be specified for an update");
            Err(Status::invalid(resource.group_kind(), name, &[error]))
        }
        given if given == old.resource_version() => Ok(()),
        given if given.parse::<u64>().is_err() => {
            let why = "must be an integer";
            let error = FieldError::invalid("metadata.resourceVersion", &given.into(), why);
            Err(Status::invalid(resource.group_kind(), name, &[error]))
        }
        _ => Err(Status::modified(resource.group_resource(), name)),
    }
}

/// Restores the parts of the object that the endpoint must not change.
fn restrict(resource: &Resource, object: &mut Value, old: &Value, subresource: &str) {
    let rules = &resource.def.rules;
    let old_fields = old.as_object();
    match subresource {
        "status" => {
            let status = object_mut(object).remove("status");
            let mut metadata = old.get("metadata").cloned().unwrap_or_default();
            let sent = object.metadata_mut();
            let fields = object_mut(&mut metadata);
            let managed = ["managedFields"].into_iter();
            let annotations = rules.status_annotations.then_some("annotations");
            let labels = rules.status_labels.then_some("labels");
            for field in managed.chain(annotations).chain(labels) {
                metadata::keep(fields, Some(sent), field);
            }
            let mut kept = old_fields.cloned().unwrap_or_default();
            kept.insert("metadata".into(), metadata);
            match status {
                Some(status) => drop(kept.insert("status".into(), status)),
                None => drop(kept.remove("status")),
            }
            *object = Value::Object(kept);
        }
        _ if rules.wipe_status => metadata::keep(object_mut(object), old_fields, "status"),
        _ => {}
    }
}

fn bump_generation(resource: &Resource, object: &mut Value, old: &Value) {
    if !resource.def.rules.generation {
        return;
    }
    let counts = |key: &str| key != "metadata" && !(key == "status" && resource.def.rules.wipe_status);
    let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
    let changed = !equal_fields(object, old, counts);
    let generation = if changed || generation == 0 { generation + 1 } else { generation };
    object.metadata_mut().insert("generation".into(), generation.into());
}

fn keep(target: &mut Value, from: &Value, field: &str) {
    metadata::keep(target.metadata_mut(), from.get("metadata").and_then(Value::as_object), field);
}

/// Equal except for the times in managedFields, which alone do not cause a write.
fn same(a: &Value, b: &Value) -> bool {
    let (meta_a, meta_b) = (&a["metadata"], &b["metadata"]);
    let entries = |meta: &Value| meta.get("managedFields").and_then(Value::as_array).map_or(0, Vec::len);
    let pairs = || {
        let list = |meta| -> Option<&Vec<Value>> { Value::as_array(Value::get(meta, "managedFields")?) };
        list(meta_a).into_iter().flatten().zip(list(meta_b).into_iter().flatten())
    };
    equal_fields(a, b, |key| key != "metadata")
        && equal_fields(meta_a, meta_b, |key| key != "managedFields")
        && entries(meta_a) == entries(meta_b)
        && pairs().all(|(a, b)| equal_fields(a, b, |key| key != "time"))
}

/// Whether two objects are equal in the fields for which `counts` is true.
fn equal_fields(a: &Value, b: &Value, counts: impl Fn(&str) -> bool) -> bool {
    let empty = Map::new();
    let (a, b) = (a.as_object().unwrap_or(&empty), b.as_object().unwrap_or(&empty));
    let within = |a: &Map<String, Value>, b: &Map<String, Value>| {
        a.iter().filter(|(key, _)| counts(key)).all(|(key, value)| b.get(key) == Some(value))
    };
    within(a, b) && b.keys().filter(|key| counts(key)).all(|key| a.contains_key(key))
}
