//! Deletes objects and collections: finalizers, propagation, preconditions.

use std::sync::Arc;

use futures::StreamExt;
use serde_json::Value;

use super::{ListOptions, Objects, WriteContext, metadata, request, unstored};
use crate::admission::Operation;
use crate::clock::rfc3339_seconds;
use crate::object::{ObjectExt, encode};
use crate::resources::{Propagation, Resource};
use crate::status::Status;
use crate::storage::{Change, Expect, StorageError, Version, Write};

/// Finalizer that makes the garbage collector orphan dependents first.
pub const ORPHAN: &str = "orphan";
/// Finalizer that makes the garbage collector delete dependents first.
pub const FOREGROUND: &str = "foregroundDeletion";

/// How many deletions of a collection run concurrently; the store commits them in groups.
const PARALLEL: usize = 64;

/// `metav1.DeleteOptions`, without the fields in [`WriteContext`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// How to treat dependents; `None` selects the default of the kind.
    pub propagation: Option<Propagation>,
    /// Required UID.
    pub uid: Option<String>,
    /// Required resourceVersion.
    pub resource_version: Option<String>,
    /// Only recorded; there is no kubelet to wait for.
    pub grace_period_seconds: Option<i64>,
}

/// The result of a delete.
#[derive(Clone, Debug)]
pub struct Deleted {
    /// The last state, or the state that waits for finalizers.
    pub version: Arc<Version>,
    /// Whether the object is gone.
    pub removed: bool,
}

impl Objects {
    /// Deletes an object, or starts its deletion if it has finalizers.
    pub async fn delete(
        &self,
        context: &WriteContext,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, Status> {
        let key = resource.key(namespace, name);
        loop {
            let current = self.get(resource, namespace, name)?;
            check_preconditions(resource, &current, options)?;
            let old = resource.decode(&current).await?;
            let admission = request(Operation::Delete, context, resource, "", namespace, name, Some(&old));
            self.admit(&admission, None).await?;
            // Uses the stored form: only metadata changes, so no conversion is needed.
            let mut object = current.decode();
            let before = object.clone();
            set_finalizers(resource, &mut object, options.propagation);
            let gone = object.finalizers().is_empty() && !resource.strategy.holds(&object);
            if !gone && !object.is_deleting() {
                self.start_deletion(resource, &mut object);
            }
            if !gone && object == before {
                return Ok(Deleted { version: current, removed: false });
            }
            if context.dry_run {
                return Ok(Deleted { version: unstored(resource, &object), removed: gone });
            }
            let change = if gone { Change::Delete { last: None } } else { Change::Put(encode(&object)) };
            let write = Write { key: key.clone(), expect: Expect::Revision(current.revision()), change };
            match self.storage().write(write).await {
                Ok(version) => return Ok(Deleted { version, removed: gone }),
                Err(StorageError::Conflict { .. }) => continue,
                Err(error) => return Err(self.storage_failure(&error)),
            }
        }
    }

    fn start_deletion(&self, resource: &Resource, object: &mut Value) {
        let now = rfc3339_seconds(self.clock().now());
        let metadata = object.metadata_mut();
        metadata.insert("deletionTimestamp".into(), now.into());
        metadata.insert("deletionGracePeriodSeconds".into(), 0.into());
        if resource.def.rules.generation {
            let generation = metadata.get("generation").and_then(Value::as_i64).unwrap_or(0);
            metadata.insert("generation".into(), (generation + 1).into());
        }
        resource.strategy.prepare_for_delete(object);
    }

    /// Deletes all objects that the options select. Returns them and the revision of the list.
    pub async fn delete_collection(
        &self,
        context: &WriteContext,
        resource: &Arc<Resource>,
        namespace: Option<&str>,
        list: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<(Vec<Arc<Version>>, u64), Status> {
        let page = self.list(resource, namespace, list).await?;
        let work = page.items.into_iter().map(|item| async move {
            let key = item.key();
            match self.delete(context, resource, key.namespace(), key.name(), options).await {
                Ok(deleted) => Ok(Some(deleted.version)),
                // Already deleted or changed by another request.
                Err(status) if status.is_not_found() => Ok(None),
                Err(status) => Err(status),
            }
        });
        let results: Vec<_> = futures::stream::iter(work).buffered(PARALLEL).collect().await;
        let mut deleted = Vec::with_capacity(results.len());
        for result in results {
            deleted.extend(result?);
        }
        Ok((deleted, page.revision))
    }
}

fn check_preconditions(
    resource: &Resource,
    current: &Version,
    options: &DeleteOptions,
) -> Result<(), Status> {
    let fail = |what: &str, wanted: &str, found: &str| {
        let why =
            format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}");
        Err(Status::conflict(resource.group_resource(), current.key().name(), &why))
    };
    if let Some(uid) = options.uid.as_deref().filter(|uid| **uid != *current.meta().uid) {
        return fail("UID", uid, &current.meta().uid);
    }
    let revision = current.revision().to_string();
    if let Some(wanted) = options.resource_version.as_deref().filter(|wanted| **wanted != revision) {
        return fail("ResourceVersion", wanted, &revision);
    }
    Ok(())
}

/// Sets the finalizers that make the garbage collector act before the object is removed.
fn set_finalizers(resource: &Resource, object: &mut Value, propagation: Option<Propagation>) {
    if !resource.def.rules.garbage_collected {
        return;
    }
    let finalizers: Vec<String> = object.finalizers().into_iter().map(str::to_owned).collect();
    let marked = finalizers.iter().any(|f| f == ORPHAN || f == FOREGROUND);
    let wanted = match propagation {
        None if marked => return,
        None => resource.def.rules.propagation,
        Some(propagation) => propagation,
    };
    let mut list: Vec<String> = finalizers.into_iter().filter(|f| f != ORPHAN && f != FOREGROUND).collect();
    match wanted {
        Propagation::Orphan => list.push(ORPHAN.into()),
        Propagation::Foreground => list.push(FOREGROUND.into()),
        Propagation::Background => {}
    }
    let metadata = object.metadata_mut();
    metadata.insert("finalizers".into(), list.into());
    metadata::drop_empty_fields(object);
}
