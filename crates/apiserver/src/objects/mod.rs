//! Reads and writes objects. HTTP handlers, garbage collection, namespace deletion and all other parts of the server
//! use [`Objects`], so that the rules for metadata, admission and ownership apply to all of them.

mod create;
mod delete;
mod list;
mod metadata;
mod update;
mod watch;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use parking_lot::RwLock;
use serde_json::Value;

pub use delete::{DeleteOptions, Deleted, FOREGROUND, ORPHAN};
pub use list::{ListOptions, ListPage, VersionMatch};
pub use update::UpdateOptions;
pub use watch::{Watch, WatchEvent, WatchOptions, bookmark_object};

use crate::admission::{Admission, AdmissionRequest, Operation, Warnings};
use crate::clock::Clock;
use crate::identity::UserInfo;
use crate::limits::STRICT_ERRORS;
use crate::object::ObjectExt;
use crate::patch::FieldManager;
use crate::resources::{Resource, ResourceTable};
use crate::status::Status;
use crate::storage::{Storage, StorageError, Version};

/// How a request treats fields that are not in the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FieldValidation {
    /// 400.
    Strict,
    /// A warning.
    #[default]
    Warn,
    /// Nothing.
    Ignore,
}

/// The writer and the options of a write.
#[derive(Clone, Debug, Default)]
pub struct WriteContext {
    /// The caller.
    pub user: UserInfo,
    /// Manager for `metadata.managedFields`.
    pub field_manager: String,
    /// Do everything except storing the result.
    pub dry_run: bool,
    /// See [`FieldValidation`].
    pub field_validation: FieldValidation,
    /// Paths of duplicate fields in the body, treated according to [`FieldValidation`].
    pub duplicate_fields: Vec<String>,
    /// Collects warnings for the client.
    pub warnings: Warnings,
}

impl WriteContext {
    /// For the server's own controllers.
    pub fn internal(manager: &str) -> Self {
        Self {
            user: UserInfo::system_masters(&format!("system:{manager}")),
            field_manager: manager.into(),
            field_validation: FieldValidation::Ignore,
            ..Self::default()
        }
    }
}

/// The result of a write.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The object in its stored form.
    pub version: Arc<Version>,
    /// Whether the object was created.
    pub created: bool,
    /// Whether something was stored (false for a write without changes).
    pub changed: bool,
    /// Whether the write removed the last finalizer of an object under deletion, which is gone now.
    pub removed: bool,
}

/// Access to objects of all resources. Cheap to clone.
#[derive(Clone)]
pub struct Objects {
    inner: Arc<Inner>,
}

struct Inner {
    storage: Arc<dyn Storage>,
    resources: Arc<ResourceTable>,
    clock: Arc<dyn Clock>,
    fields: Option<Arc<dyn FieldManager>>,
    admission: RwLock<Arc<[Arc<dyn Admission>]>>,
}

impl Objects {
    /// Creates the access to a store and a resource table.
    pub fn new(
        storage: Arc<dyn Storage>,
        resources: Arc<ResourceTable>,
        clock: Arc<dyn Clock>,
        fields: Option<Arc<dyn FieldManager>>,
        admission: Vec<Arc<dyn Admission>>,
    ) -> Self {
        let admission = RwLock::new(admission.into());
        Self { inner: Arc::new(Inner { storage, resources, clock, fields, admission }) }
    }

    /// The store.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.inner.storage
    }

    /// The served resources.
    pub fn resources(&self) -> &Arc<ResourceTable> {
        &self.inner.resources
    }

    /// The clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    /// Field ownership, if enabled.
    pub fn fields(&self) -> Option<&Arc<dyn FieldManager>> {
        self.inner.fields.as_ref()
    }

    /// Appends an admission hook (for example one that needs `Objects` itself).
    pub fn add_admission(&self, hook: Arc<dyn Admission>) {
        let mut hooks = self.inner.admission.write();
        *hooks = hooks.iter().cloned().chain([hook]).collect();
    }

    fn admission(&self) -> Arc<[Arc<dyn Admission>]> {
        self.inner.admission.read().clone()
    }

    /// The stored version of an object.
    pub fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Result<Arc<Version>, Status> {
        let found = self.inner.storage.index().get(&resource.key(namespace, name));
        found.ok_or_else(|| Status::not_found(resource.group_resource(), name))
    }

    /// The stored object, decoded and converted to the resource's version.
    pub async fn get_value(&self, resource: &Resource, namespace: &str, name: &str) -> Result<Value, Status> {
        resource.decode(&*self.get(resource, namespace, name)?).await
    }

    /// Waits until the store has reached a revision, for at most three seconds (then 504).
    pub async fn not_older_than(&self, revision: u64) -> Result<(), Status> {
        let index = self.inner.storage.index();
        if index.revision() >= revision {
            return Ok(());
        }
        let wait = tokio::time::timeout(std::time::Duration::from_secs(3), index.reached(revision));
        wait.await.map_err(|_| Status::resource_version_too_large(revision, index.revision()))
    }

    async fn mutate(&self, request: &AdmissionRequest<'_>, object: &mut Value) -> Result<bool, Status> {
        let mut called = false;
        for hook in self.admission().iter() {
            if hook.handles(request.operation, request.resource, request.subresource) {
                hook.mutate(request, object).await?;
                called = true;
            }
        }
        Ok(called)
    }

    async fn admit(&self, request: &AdmissionRequest<'_>, object: Option<&Value>) -> Result<(), Status> {
        for hook in self.admission().iter() {
            if hook.handles(request.operation, request.resource, request.subresource) {
                hook.validate(request, object).await?;
            }
        }
        Ok(())
    }

    /// Reports unknown and duplicate fields.
    fn report_fields(&self, context: &WriteContext, unknown: &[String]) -> Result<(), Status> {
        if context.field_validation == FieldValidation::Ignore {
            return Ok(());
        }
        let unknown = unknown.iter().map(|path| format!("unknown field {path:?}"));
        let duplicate = context.duplicate_fields.iter().map(|path| format!("duplicate field {path:?}"));
        let problems: Vec<String> = unknown.chain(duplicate).take(STRICT_ERRORS).collect();
        if problems.is_empty() {
            return Ok(());
        }
        if context.field_validation == FieldValidation::Strict {
            return Err(Status::bad_request(format!("strict decoding error: {}", problems.join(", "))));
        }
        problems.into_iter().for_each(|problem| context.warnings.add(problem));
        Ok(())
    }

    async fn stored_form(&self, resource: &Resource, object: Value) -> Result<Value, Status> {
        let mut stored = resource.strategy.to_storage(object).await?;
        let version = resource.storage_api_version().into();
        crate::object::object_mut(&mut stored).insert("apiVersion".into(), version);
        Ok(stored)
    }

    /// Converts an error of the store to a Status; the caller handles conflicts.
    fn storage_failure(&self, error: &StorageError) -> Status {
        match error {
            StorageError::Full(why) => Status::insufficient_storage(why),
            other => Status::internal(other),
        }
    }
}

/// A version that is not stored: the result of a dry run.
fn unstored(resource: &Resource, object: &Value) -> Arc<Version> {
    let revision = object.resource_version().parse().unwrap_or(0);
    let key = resource.key(object.namespace(), object.name());
    if revision > 0 {
        return Arc::new(Version::splice(key, revision, revision, &crate::object::encode(object)));
    }
    // Not stored: it has no resourceVersion, but the type still comes first.
    let mut object = object.clone();
    let fields = crate::object::object_mut(&mut object);
    let api_version = fields.remove("apiVersion").unwrap_or_default();
    let rest = object.to_string();
    let rest = rest.strip_prefix('{').unwrap_or(&rest);
    let bytes = format!("{{\"apiVersion\":{api_version},{rest}");
    Arc::new(Version::stored(key, 0, 0, bytes.into(), 0))
}

fn request<'a>(
    operation: Operation,
    context: &'a WriteContext,
    resource: &'a Arc<Resource>,
    subresource: &'a str,
    namespace: &'a str,
    name: &'a str,
    old: Option<&'a Value>,
) -> AdmissionRequest<'a> {
    AdmissionRequest {
        operation,
        resource,
        subresource,
        namespace,
        name,
        user: &context.user,
        dry_run: context.dry_run,
        old,
        warnings: &context.warnings,
    }
}
