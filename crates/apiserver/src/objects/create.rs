//! Creates objects.

use std::sync::Arc;

use serde_json::Value;

use super::{Objects, Outcome, WriteContext, metadata, request, unstored};
use crate::admission::Operation;
use crate::clock::rfc3339_seconds;
use crate::limits::{check_shape, check_stored_bytes};
use crate::object::{ObjectExt, encode, object_mut};
use crate::patch::Manager;
use crate::resources::Resource;
use crate::status::Status;
use crate::storage::{Change, Expect, StorageError, Write};

/// Attempts to generate an unused name before the client gets a 409.
const NAME_TRIES: usize = 8;

impl Objects {
    /// Creates an object. `namespace` is empty for cluster-scoped resources.
    pub async fn create(
        &self,
        context: &WriteContext,
        resource: &Arc<Resource>,
        namespace: &str,
        object: Value,
    ) -> Result<Outcome, Status> {
        self.create_tracked(context, resource, namespace, object, true).await
    }

    /// As [`Self::create`]. If `track` is false, the caller has already recorded field ownership (apply).
    pub(super) async fn create_tracked(
        &self,
        context: &WriteContext,
        resource: &Arc<Resource>,
        namespace: &str,
        mut object: Value,
        track: bool,
    ) -> Result<Outcome, Status> {
        check_shape(&object)?;
        metadata::reconcile_identity(resource, namespace, None, &mut object)?;
        if !object.resource_version().is_empty() {
            return Err(Status::internal("resourceVersion should not be set on objects to be created"));
        }
        resource.strategy.check_types(&object).map_err(Status::bad_request)?;
        let unknown = resource.strategy.prune(&mut object);
        self.report_fields(context, &unknown)?;
        let prefix = object.meta_str("generateName").to_owned();
        let generated = object.name().is_empty() && !prefix.is_empty();
        let mut tries = 0;
        loop {
            tries += 1;
            let mut attempt = object.clone();
            if generated {
                attempt.set_meta_str("name", &metadata::generate_name(&prefix));
            }
            let name = attempt.name().to_owned();
            match self.create_once(context, resource, namespace, attempt, track).await {
                Err(status) if generated && status.is_already_exists() => {
                    if tries == NAME_TRIES {
                        return Err(Status::generate_name_conflict(resource.group_resource(), &name));
                    }
                }
                result => return result,
            }
        }
    }

    async fn create_once(
        &self,
        context: &WriteContext,
        resource: &Arc<Resource>,
        namespace: &str,
        mut object: Value,
        track: bool,
    ) -> Result<Outcome, Status> {
        self.prepare_create(resource, &mut object)?;
        metadata::deduplicate_owners(context, &mut object);
        let name = object.name().to_owned();
        let admission = request(Operation::Create, context, resource, "", namespace, &name, None);
        let before = if track { None } else { Some(object.clone()) };
        if self.mutate(&admission, &mut object).await? {
            resource.strategy.default(&mut object)?;
        }
        if let Some(fields) = self.fields() {
            let by = Manager { name: &context.field_manager, subresource: "", now: self.clock().now() };
            match &before {
                None => fields.track(resource, None, &mut object, &by)?,
                // Admission changed the applied object: record that as a plain update.
                Some(before) if *before != object => {
                    fields.track(resource, Some(before), &mut object, &by)?
                }
                Some(_) => {}
            }
        }
        metadata::drop_empty_fields(&mut object);
        let mut errors = metadata::validate(resource, &object, None);
        errors.extend(resource.strategy.validate_create(&object));
        if !errors.is_empty() {
            return Err(Status::invalid(resource.group_kind(), &name, &errors));
        }
        resource.strategy.warnings(&object, None).into_iter().for_each(|text| context.warnings.add(text));
        self.admit(&admission, Some(&object)).await?;
        let stored = self.stored_form(resource, object).await?;
        let encoded = encode(&stored);
        check_stored_bytes(encoded.json.len())?;
        let key = resource.key(namespace, &name);
        if context.dry_run {
            return match self.storage().index().get(&key) {
                Some(current) => Err(exists(resource, &name, current.meta().deletion_timestamp.is_some())),
                None => Ok(outcome(unstored(resource, &stored))),
            };
        }
        let write = Write { key, expect: Expect::Absent, change: Change::Put(encoded) };
        match self.storage().write(write).await {
            Ok(version) => Ok(outcome(version)),
            Err(StorageError::Conflict { current }) => {
                let deleting = current.is_some_and(|v| v.meta().deletion_timestamp.is_some());
                Err(exists(resource, &name, deleting))
            }
            Err(error) => Err(self.storage_failure(&error)),
        }
    }

    fn prepare_create(&self, resource: &Resource, object: &mut Value) -> Result<(), Status> {
        let now = rfc3339_seconds(self.clock().now());
        let meta = object.metadata_mut();
        for field in
            ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation", "resourceVersion"]
        {
            meta.remove(field);
        }
        meta.insert("uid".into(), uuid::Uuid::new_v4().to_string().into());
        meta.insert("creationTimestamp".into(), now.into());
        if resource.def.rules.generation {
            meta.insert("generation".into(), 1.into());
        }
        if resource.def.rules.wipe_status {
            object_mut(object).remove("status");
        }
        resource.strategy.default(object)?;
        resource.strategy.prepare_for_create(object);
        Ok(())
    }
}

fn exists(resource: &Resource, name: &str, deleting: bool) -> Status {
    if deleting {
        Status::being_deleted(resource.group_resource(), name)
    } else {
        Status::already_exists(resource.group_resource(), name)
    }
}

fn outcome(version: Arc<crate::storage::Version>) -> Outcome {
    Outcome { version, created: true, changed: true, removed: false }
}
