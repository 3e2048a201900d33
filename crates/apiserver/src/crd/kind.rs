//! One served version of a custom resource.

use std::sync::Arc;

use drover_schema::Schema;
use futures::future::BoxFuture;
use serde_json::Value;

use super::Converter;
use super::strategy::storage_version;
use crate::object::{ObjectExt, object_mut};
use crate::resources::{Resource, ResourceDef, Rules, ScalePaths, SelectableField, SubresourceDef};
use crate::status::{FieldError, FieldErrorKind, Status};
use crate::strategy::Strategy;
use crate::table::custom::CustomPrinter;

/// The definition of a served version; used by tables, OpenAPI and field ownership.
pub struct CustomKind {
    /// The compiled schema.
    pub schema: Schema,
    /// The schema as written, for OpenAPI; shared with its CRD.
    pub open_api: Value,
    /// Columns of `kubectl get`.
    pub printer: CustomPrinter,
    version: String,
    /// The version of stored objects
    storage: String,
    crd: String,
    status: bool,
    fresh: bool,
    conversion: Conversion,
}

enum Conversion {
    /// Only `apiVersion` changes
    None,
    InProcess(Arc<dyn Converter>),
    /// A conversion webhook, which is not supported here
    Webhook,
}

/// The resources of all served versions of `crd`, ready to be registered.
pub(super) fn resources(crd: &Value, converter: Option<&Arc<dyn Converter>>) -> Vec<Resource> {
    let spec = &crd["spec"];
    let storage = storage_version(crd).unwrap_or_default();
    let versions = spec["versions"].as_array().into_iter().flatten();
    versions
        .filter(|v| v["served"] == Value::Bool(true))
        .map(|version| {
            let name = version.top_str("name");
            let open_api = version["schema"]["openAPIV3Schema"].clone();
            let (schema, findings) = Schema::compile_stored(&open_api);
            if !findings.is_empty() {
                let crd = crd.name();
                let findings = drover_schema::aggregate(&findings);
                tracing::warn!(crd, version = name, findings, "ignored invalid parts of a stored schema");
            }
            let columns =
                version["additionalPrinterColumns"].as_array().map(Vec::as_slice).unwrap_or_default();
            let status = version["subresources"].get("status").is_some_and(|s| !s.is_null());
            let conversion = match (converter, spec["conversion"].top_str("strategy")) {
                (Some(converter), _) => Conversion::InProcess(converter.clone()),
                (None, "Webhook") => Conversion::Webhook,
                (None, _) => Conversion::None,
            };
            let kind = CustomKind {
                schema,
                open_api,
                printer: CustomPrinter::new(columns),
                version: name.to_owned(),
                storage: storage.to_owned(),
                crd: crd.name().to_owned(),
                status,
                fresh: crd["metadata"]["generation"].as_i64() == Some(1),
                conversion,
            };
            Resource::new(definition(crd, version, storage), Arc::new(kind))
        })
        .collect()
}

fn definition(crd: &Value, version: &Value, storage: &str) -> ResourceDef {
    let spec = &crd["spec"];
    // Uses the accepted names, which may differ from the requested ones after a conflicting change.
    let accepted = &crd["status"]["acceptedNames"];
    let names = if accepted.top_str("plural").is_empty() { &spec["names"] } else { accepted };
    let list = |field: &str| -> Vec<String> {
        names[field].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let kind = names.top_str("kind");
    let mut subresources = Vec::new();
    let status = version["subresources"].get("status").is_some_and(|s| !s.is_null());
    if status {
        subresources.push(SubresourceDef::status(kind));
    }
    if let Some(scale) = version["subresources"].get("scale").filter(|s| !s.is_null()) {
        subresources.push(SubresourceDef::scale(ScalePaths::parse(
            scale.top_str("specReplicasPath"),
            scale.top_str("statusReplicasPath"),
            scale.get("labelSelectorPath").and_then(Value::as_str),
        )));
    }
    let group = spec.top_str("group");
    let deprecated = version["deprecated"] == Value::Bool(true);
    ResourceDef {
        group: group.to_owned(),
        version: version.top_str("name").to_owned(),
        plural: names.top_str("plural").to_owned(),
        singular: names.top_str("singular").to_owned(),
        kind: kind.to_owned(),
        list_kind: names.top_str("listKind").to_owned(),
        short_names: list("shortNames"),
        categories: list("categories"),
        namespaced: spec.top_str("scope") == "Namespaced",
        verbs: vec!["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"],
        subresources,
        rules: Rules {
            unconditional_update: false,
            generation: true,
            wipe_status: status,
            ..Rules::default()
        },
        selectable_fields: version["selectableFields"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|f| SelectableField::path(f.top_str("jsonPath").trim_start_matches('.')))
            .collect(),
        storage_api_version: format!("{group}/{storage}"),
        deprecation_warning: deprecated.then(|| {
            match version.get("deprecationWarning").and_then(Value::as_str) {
                Some(text) => text.to_owned(),
                None => format!("{group}/{} {kind} is deprecated", version.top_str("name")),
            }
        }),
        custom: true,
        ..ResourceDef::default()
    }
}

impl CustomKind {
    fn convert(&self, mut object: Value, to: &str) -> Result<Value, Status> {
        let from = object.api_version().rsplit('/').next().unwrap_or_default().to_owned();
        if from == to {
            return Ok(object);
        }
        let group = object.api_version().split_once('/').map(|(g, _)| g.to_owned()).unwrap_or_default();
        match &self.conversion {
            Conversion::None => {}
            Conversion::InProcess(converter) => object = converter.convert(object, to)?,
            Conversion::Webhook => {
                let crd = &self.crd;
                return Err(Status::internal(format!(
                    "conversion webhook of {crd:?} is not available: cannot convert from {from} to {to}"
                )));
            }
        }
        object_mut(&mut object).insert("apiVersion".to_owned(), format!("{group}/{to}").into());
        Ok(object)
    }

    /// Completes objects of other versions and those stored before the schema got new defaults, when they are read.
    fn read(&self, object: Value) -> Result<Value, Status> {
        let mut object = self.convert(object, &self.version)?;
        self.schema.prune(&mut object);
        // New defaults that are invalid are omitted, so that the object can still be read.
        let _ = self.schema.default(&mut object);
        Ok(object)
    }
}

impl Strategy for CustomKind {
    fn prune(&self, object: &mut Value) -> Vec<String> {
        self.schema.prune(object)
    }

    fn default(&self, object: &mut Value) -> Result<(), Status> {
        self.schema.default(object).map_err(Status::too_large)
    }

    fn validate_create(&self, object: &Value) -> Vec<FieldError> {
        self.schema.validate(object, None).into_iter().map(field_error).collect()
    }

    fn validate_update(&self, object: &Value, old: &Value, subresource: &str) -> Vec<FieldError> {
        let errors = self.schema.validate(object, Some(old)).into_iter().map(field_error);
        if subresource == "status" && self.status {
            // A status write can only introduce errors in the status.
            let concerns = |e: &FieldError| e.field.starts_with("status") || e.field == "<nil>";
            return errors.filter(concerns).collect();
        }
        errors.collect()
    }

    /// Stored objects have all defaults of the schema at the time of the write. Only a CRD that was changed later may
    /// have others; then every read adds defaults.
    fn serves_stored_bytes(&self) -> bool {
        self.fresh || !self.schema.has_defaults()
    }

    fn to_storage<'a>(&'a self, object: Value) -> BoxFuture<'a, Result<Value, Status>> {
        Box::pin(async move { self.convert(object, &self.storage) })
    }

    fn from_storage<'a>(&'a self, objects: Vec<Value>) -> BoxFuture<'a, Result<Vec<Value>, Status>> {
        Box::pin(async move { objects.into_iter().map(|o| self.read(o)).collect() })
    }

    fn custom(&self) -> Option<&CustomKind> {
        Some(self)
    }
}

/// Converts an error of the schema crate to the server's type.
pub(super) fn field_error(error: drover_schema::FieldError) -> FieldError {
    use drover_schema::ErrorKind;
    let kind = match error.kind {
        ErrorKind::NotFound => FieldErrorKind::NotFound,
        ErrorKind::Required => FieldErrorKind::Required,
        ErrorKind::Duplicate => FieldErrorKind::Duplicate,
        ErrorKind::Invalid => FieldErrorKind::Invalid,
        ErrorKind::NotSupported => FieldErrorKind::NotSupported,
        ErrorKind::Forbidden => FieldErrorKind::Forbidden,
        ErrorKind::TooLong => FieldErrorKind::TooLong,
        ErrorKind::TooMany => FieldErrorKind::TooMany,
        ErrorKind::TypeInvalid => FieldErrorKind::TypeInvalid,
        ErrorKind::Internal => FieldErrorKind::Internal,
    };
    FieldError { kind, detail: error.body(), field: error.field }
}
