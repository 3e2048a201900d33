//! managedFields and server-side apply, based on `drover_smd`.

use std::sync::{Arc, OnceLock};

use drover_smd::fieldpath::Set;
use drover_smd::managed::{self, ApplyError};
use serde_json::Value;

use super::types::Types;
use super::{FieldManager, Manager};
use crate::object::ObjectExt;
use crate::resources::{Resource, ResourceTable};
use crate::status::{Cause, Status};

/// Tracks the owners of fields.
#[derive(Clone, Default)]
pub struct Fields {
    pub(super) types: Arc<Types>,
}

impl FieldManager for Fields {
    fn attach(&self, resources: &Arc<ResourceTable>) {
        self.types.attach(resources);
    }

    fn track(
        &self,
        resource: &Resource,
        live: Option<&Value>,
        new: &mut Value,
        by: &Manager<'_>,
    ) -> Result<(), Status> {
        let versions = live.into_iter().chain([&*new]).flat_map(manager_versions);
        let versions: Vec<String> = versions.map(str::to_owned).collect();
        let versions = self.types.versions(resource, versions.iter().map(String::as_str));
        let manager = manager(resource, &versions, by);
        // As upstream: the write succeeds, even if its ownership cannot be determined.
        if let Err(error) = manager.update(live, new, by.name, by.now.as_second()) {
            tracing::warn!(
                ?resource,
                error = &error as &dyn std::error::Error,
                "failed to track field ownership"
            );
        }
        Ok(())
    }

    fn apply(
        &self,
        resource: &Resource,
        live: Option<&Value>,
        config: &Value,
        by: &Manager<'_>,
        force: bool,
    ) -> Result<Value, Status> {
        let versions = self.types.versions(resource, live.into_iter().flat_map(manager_versions));
        let manager = manager(resource, &versions, by);
        let empty = manager.empty_object();
        let live = live.unwrap_or(&empty);
        let applied = manager.apply(live, config, by.name, force, by.now.as_second());
        match applied.map_err(|error| status(config, error))? {
            Some(mut object) => {
                drop_emptied(&mut object, Some(live), Some(config));
                Ok(object)
            }
            None => Ok(live.clone()),
        }
    }
}

fn manager<'a>(
    resource: &'a Resource,
    versions: &'a dyn managed::Versions,
    by: &'a Manager<'_>,
) -> managed::FieldManager<'a> {
    managed::FieldManager {
        versions,
        api_version: resource.api_version(),
        kind: &resource.def.kind,
        subresource: by.subresource,
        reset_fields: reset_fields(resource, by.subresource),
    }
}

/// The fields that an endpoint does not write. `/status` of built-in kinds may write some metadata.
fn reset_fields(resource: &Resource, subresource: &str) -> Option<&'static Set> {
    static SETS: OnceLock<[Set; 4]> = OnceLock::new();
    let [status, all_but_status, spec_and_labels, spec] = SETS.get_or_init(|| {
        [
            Set::of_fields(&[&["status"]]),
            Set::of_fields(&[&["metadata"], &["spec"]]),
            Set::of_fields(&[&["metadata", "labels"], &["spec"]]),
            Set::of_fields(&[&["spec"]]),
        ]
    });
    let rules = &resource.def.rules;
    match subresource {
        "status" if rules.status_labels => Some(spec),
        "status" if rules.status_annotations => Some(spec_and_labels),
        "status" => Some(all_but_status),
        _ => resource.has_status().then_some(status),
    }
}

/// A container whose last field is removed by an apply becomes null. Upstream's typed decoding treats null as absent;
/// here it is removed, or replaced by the empty container of the configuration. Nulls from before the apply are kept.
fn drop_emptied(object: &mut Value, live: Option<&Value>, config: Option<&Value>) {
    match object {
        Value::Object(entries) => entries.retain(|key, value| {
            let (live, config) =
                (live.and_then(|live| live.get(key)), config.and_then(|config| config.get(key)));
            if !value.is_null() {
                drop_emptied(value, live, config);
            } else if live.is_none_or(|live| !live.is_null()) {
                *value = config.cloned().unwrap_or_default();
                return config.is_some();
            }
            true
        }),
        Value::Array(items) => {
            let has_null = |list: Option<&Value>| {
                list.and_then(Value::as_array).is_some_and(|l| l.contains(&Value::Null))
            };
            if !has_null(live) && !has_null(config) {
                items.retain(|item| !item.is_null());
            }
        }
        _ => {}
    }
}

/// The versions in the entries of an object's managers.
fn manager_versions(object: &Value) -> impl Iterator<Item = &str> {
    let entries = object.get("metadata").and_then(|metadata| metadata.get("managedFields"));
    let entries = entries.and_then(Value::as_array).into_iter().flatten();
    entries.filter_map(|entry| entry.get("apiVersion")?.as_str())
}

fn status(config: &Value, error: ApplyError) -> Status {
    match error {
        ApplyError::Conflicts(conflicts) => {
            let cause = |conflict: &managed::Conflict| Cause {
                reason: "FieldManagerConflict".into(),
                message: conflict.message(),
                field: conflict.field(),
            };
            Status::apply_conflict(conflicts.to_string(), conflicts.0.iter().map(cause).collect())
        }
        // Upstream answers 500 to a configuration that does not match the type, although the client can correct it.
        ApplyError::Config(invalid) => {
            let (group, version) = config.api_version().split_once('/').unwrap_or(("", config.api_version()));
            let (namespace, name, kind) = (config.namespace(), config.name(), config.kind());
            let object = format!("{namespace}/{name}; {group}/{version}, Kind={kind}");
            Status::bad_request(format!("failed to create typed patch object ({object}): {invalid}"))
        }
        error @ (ApplyError::WrongType(_) | ApplyError::ManagedFieldsInConfig | ApplyError::Merge(_)) => {
            Status::bad_request(error.to_string())
        }
        error => Status::internal(error),
    }
}
