//! The behaviour of CRD objects on writes.

use serde_json::{Value, json};

use super::conditions::{self, Condition};
use super::{FINALIZER, known_fields, validate};
use crate::object::{ObjectExt, object_mut};
use crate::status::{FieldError, Status};
use crate::strategy::Strategy;

/// Defaults, validation and deletion of CRDs.
#[derive(Debug, Clone, Copy)]
pub struct CrdStrategy;

impl Strategy for CrdStrategy {
    fn prune(&self, object: &mut Value) -> Vec<String> {
        known_fields::prune(object)
    }

    fn default(&self, object: &mut Value) -> Result<(), Status> {
        let Some(spec) = object.get_mut("spec") else { return Ok(()) };
        let spec = object_mut(spec);
        if let Some(names) = spec.get_mut("names") {
            let names = object_mut(names);
            let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
            let absent = |v: Option<&Value>| v.and_then(Value::as_str).is_none_or(str::is_empty);
            if absent(names.get("singular")) && !kind.is_empty() {
                names.insert("singular".into(), kind.to_lowercase().into());
            }
            if absent(names.get("listKind")) && !kind.is_empty() {
                names.insert("listKind".into(), format!("{kind}List").into());
            }
        }
        let conversion = spec.entry("conversion").or_insert(Value::Null);
        let conversion = object_mut(conversion);
        if conversion.get("strategy").and_then(Value::as_str).is_none_or(str::is_empty) {
            conversion.insert("strategy".into(), "None".into());
        }
        // Older clients send the field with the value false; upstream does not store it.
        if spec.get("preserveUnknownFields") == Some(&Value::Bool(false)) {
            spec.remove("preserveUnknownFields");
        }
        Ok(())
    }

    fn prepare_for_create(&self, object: &mut Value) {
        let storage = storage_version(object).unwrap_or_default().to_owned();
        let status = json!({
            "conditions": [],
            "acceptedNames": {"plural": "", "kind": ""},
            "storedVersions": [storage],
        });
        object_mut(object).insert("status".into(), status);
    }

    fn prepare_for_update(&self, object: &mut Value, _old: &Value, subresource: &str) {
        if subresource == "status" {
            return;
        }
        let Some(storage) = storage_version(object).map(str::to_owned) else { return };
        let status = object_mut(object_mut(object).entry("status").or_insert(Value::Null));
        let stored = status.entry("storedVersions").or_insert_with(|| json!([]));
        if let Value::Array(list) = stored
            && !list.iter().any(|v| v.as_str() == Some(&storage))
        {
            list.push(storage.into());
        }
    }

    fn validate_create(&self, object: &Value) -> Vec<FieldError> {
        validate::create(object)
    }

    fn validate_update(&self, object: &Value, old: &Value, subresource: &str) -> Vec<FieldError> {
        match subresource {
            "status" => validate::stored_versions(object),
            _ => validate::update(object, old),
        }
    }

    fn holds(&self, object: &Value) -> bool {
        // The first DELETE never removes a CRD: its instances must be removed first.
        !object.is_deleting()
    }

    fn prepare_for_delete(&self, object: &mut Value) {
        let finalizers = object.metadata_mut().entry("finalizers").or_insert_with(|| json!([]));
        if let Value::Array(list) = finalizers
            && !list.iter().any(|f| f.as_str() == Some(FINALIZER))
        {
            list.push(FINALIZER.into());
        }
        let at = object.meta_str("deletionTimestamp").to_owned();
        conditions::set(
            object,
            Condition {
                kind: "Terminating",
                status: "True",
                reason: "InstanceDeletionPending",
                message:
                    "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"
                        .into(),
            },
            &at,
        );
    }
}

/// The name of the version with `storage: true`.
pub(super) fn storage_version(crd: &Value) -> Option<&str> {
    let versions = crd.get("spec")?.get("versions")?.as_array()?;
    let storage = versions.iter().find(|v| v.get("storage").and_then(Value::as_bool) == Some(true))?;
    storage.get("name")?.as_str()
}
