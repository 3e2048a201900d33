//! Validates CRDs, with upstream's paths and texts.

use drover_schema::{FieldError as SchemaError, Path, Schema};
use serde_json::Value;

use super::conditions::is_true;
use super::kind::field_error;
use crate::object::ObjectExt;
use crate::status::FieldError;
use crate::table::jsonpath::JsonPath;
use crate::validation::{dns1035_label, dns1123_subdomain};

/// The errors of a new CRD.
pub(super) fn create(crd: &Value) -> Vec<FieldError> {
    let mut errors = name(crd);
    errors.extend(spec(crd, None));
    errors.extend(stored_versions(crd));
    errors
}

/// The errors of a changed CRD; unchanged schemas are not validated again.
pub(super) fn update(crd: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = spec(crd, Some(old));
    let (new_spec, old_spec) = (&crd["spec"], &old["spec"]);
    let mut immutable = |path: &str, new: &Value, before: &Value| {
        if new != before {
            errors.push(FieldError::invalid(path, new, "field is immutable"));
        }
    };
    immutable("spec.group", &new_spec["group"], &old_spec["group"]);
    immutable("spec.names.plural", &new_spec["names"]["plural"], &old_spec["names"]["plural"]);
    if is_true(old, "Established") {
        immutable("spec.scope", &new_spec["scope"], &old_spec["scope"]);
        immutable("spec.names.kind", &new_spec["names"]["kind"], &old_spec["names"]["kind"]);
    }
    errors.extend(stored_versions(crd));
    errors
}

/// `status.storedVersions` must only contain existing versions, including the storage version.
pub(super) fn stored_versions(crd: &Value) -> Vec<FieldError> {
    let path = "status.storedVersions";
    let stored = &crd["status"]["storedVersions"];
    let list: Vec<&str> = stored.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if list.is_empty() {
        return vec![FieldError::invalid(path, stored, "must have at least one stored version")];
    }
    let mut errors = Vec::new();
    let versions = versions(crd);
    for version in versions {
        let name = version.top_str("name");
        if version["storage"] == Value::Bool(true) && !list.contains(&name) {
            errors.push(FieldError::invalid(path, stored, format!("must have the storage version {name}")));
        }
    }
    for (i, name) in list.iter().enumerate() {
        if !versions.iter().any(|v| v.top_str("name") == *name) {
            let text = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions \
                 until a storage migration ensures no data remains persisted in {name} and removes {name} from \
                 status.storedVersions"
            );
            errors.push(FieldError::invalid(format!("{path}[{i}]"), &Value::from(*name), text));
        }
    }
    errors
}

fn versions(crd: &Value) -> &[Value] {
    crd["spec"]["versions"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn name(crd: &Value) -> Vec<FieldError> {
    let required = format!("{}.{}", crd["spec"]["names"].top_str("plural"), crd["spec"].top_str("group"));
    if crd.name() == required {
        return Vec::new();
    }
    let text = "must be spec.names.plural+\".\"+spec.group";
    vec![FieldError::invalid("metadata.name", &Value::from(crd.name()), text)]
}

fn spec(crd: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &crd["spec"];
    match spec.top_str("group") {
        "" => errors.push(FieldError::required("spec.group", "")),
        group => {
            if let Err(text) = dns1123_subdomain(group) {
                errors.push(FieldError::invalid("spec.group", &group.into(), text));
            } else if !group.contains('.') {
                let text = "should be a domain with at least one dot";
                errors.push(FieldError::invalid("spec.group", &group.into(), text));
            }
        }
    }
    match spec.top_str("scope") {
        "Cluster" | "Namespaced" => {}
        "" => errors.push(FieldError::required("spec.scope", "")),
        _ => errors.push(FieldError::not_supported("spec.scope", &spec["scope"], &["Cluster", "Namespaced"])),
    }
    if spec["preserveUnknownFields"] == Value::Bool(true) {
        let text = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(FieldError::invalid("spec.preserveUnknownFields", &true.into(), text));
    }
    names(&spec["names"], &mut errors);
    conversion(&spec["conversion"], &mut errors);
    let versions = versions(crd);
    let storage = versions.iter().filter(|v| v["storage"] == Value::Bool(true)).count();
    if storage != 1 {
        let text = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid("spec.versions", &spec["versions"], text));
    }
    let mut seen = Vec::new();
    for (i, version) in versions.iter().enumerate() {
        let name = version.top_str("name");
        if seen.contains(&name) {
            let text = "must contain unique version names";
            errors.push(FieldError::invalid("spec.versions", &spec["versions"], text));
        }
        seen.push(name);
        let before = old.and_then(|o| self::versions(o).iter().find(|v| v.top_str("name") == name));
        errors.extend(self::version(version, before, &format!("spec.versions[{i}]")));
    }
    errors
}

fn names(names: &Value, errors: &mut Vec<FieldError>) {
    for field in ["plural", "singular", "kind", "listKind"] {
        let path = format!("spec.names.{field}");
        match names.top_str(field) {
            "" => errors.push(FieldError::required(path, "")),
            name => {
                let lower = if field.ends_with("ind") { name.to_lowercase() } else { name.to_owned() };
                if let Err(text) = dns1035_label(&lower) {
                    let text = match lower == name {
                        true => text.to_owned(),
                        false => format!("may have mixed case, but should otherwise match: {text}"),
                    };
                    errors.push(FieldError::invalid(path, &name.into(), text));
                }
            }
        }
    }
    if !names.top_str("kind").is_empty() && names.top_str("kind") == names.top_str("listKind") {
        let text = "kind and listKind may not be the same";
        errors.push(FieldError::invalid("spec.names.listKind", &names["listKind"], text));
    }
    for field in ["shortNames", "categories"] {
        for (i, name) in names[field].as_array().into_iter().flatten().enumerate() {
            if let Err(text) = dns1035_label(name.as_str().unwrap_or_default()) {
                errors.push(FieldError::invalid(format!("spec.names.{field}[{i}]"), name, text));
            }
        }
    }
}

fn conversion(conversion: &Value, errors: &mut Vec<FieldError>) {
    let path = "spec.conversion";
    match conversion.top_str("strategy") {
        "None" => {
            if !conversion["webhook"].is_null() {
                let text = "should not be set when strategy is not set to Webhook";
                errors.push(FieldError::forbidden(format!("{path}.webhook"), text));
            }
        }
        "Webhook" => {
            let config = &conversion["webhook"]["clientConfig"];
            if config.is_null() {
                let text = "required when strategy is set to Webhook";
                errors.push(FieldError::required(format!("{path}.webhook.clientConfig"), text));
            } else if config["url"].is_null() == config["service"].is_null() {
                let text = "exactly one of url or service is required";
                errors.push(FieldError::required(format!("{path}.webhook.clientConfig"), text));
            }
            let reviews = conversion["webhook"]["conversionReviewVersions"].as_array();
            if reviews.is_none_or(Vec::is_empty) {
                errors.push(FieldError::required(format!("{path}.webhook.conversionReviewVersions"), ""));
            }
        }
        _ => errors.push(FieldError::not_supported(
            format!("{path}.strategy"),
            &conversion["strategy"],
            &["None", "Webhook"],
        )),
    }
}

fn version(version: &Value, before: Option<&Value>, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Err(text) = dns1035_label(version.top_str("name")) {
        errors.push(FieldError::invalid(format!("{path}.name"), &version["name"], text));
    }
    let schema = &version["schema"]["openAPIV3Schema"];
    let schema_path = format!("{path}.schema.openAPIV3Schema");
    if schema.is_null() {
        errors.push(FieldError::required(schema_path.as_str(), "schemas are required"));
    } else if before.is_none_or(|b| b["schema"]["openAPIV3Schema"] != *schema)
        && let Err(found) = Schema::compile(schema, &Path::at(&schema_path))
    {
        errors.extend(found.into_iter().map(|e: SchemaError| field_error(e)));
    }
    if version["deprecated"] != Value::Bool(true) && !version["deprecationWarning"].is_null() {
        let text = "can only be set for deprecated versions";
        errors.push(FieldError::invalid(
            format!("{path}.deprecationWarning"),
            &version["deprecationWarning"],
            text,
        ));
    }
    columns(version, path, &mut errors);
    scale(&version["subresources"]["scale"], &format!("{path}.subresources.scale"), &mut errors);
    selectable(version, path, &mut errors);
    errors
}

fn columns(version: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (i, column) in version["additionalPrinterColumns"].as_array().into_iter().flatten().enumerate() {
        let path = format!("{path}.additionalPrinterColumns[{i}]");
        if column.top_str("name").is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        }
        let kinds = ["boolean", "date", "integer", "number", "string"];
        match column.top_str("type") {
            "" => errors.push(FieldError::required(format!("{path}.type"), "")),
            kind if kinds.contains(&kind) => {}
            _ => errors.push(FieldError::not_supported(format!("{path}.type"), &column["type"], &kinds)),
        }
        let json_path = column.top_str("jsonPath");
        if json_path.is_empty() {
            errors.push(FieldError::required(format!("{path}.jsonPath"), ""));
        } else if !json_path.starts_with('.') {
            let text = "must be a simple json path starting with .";
            errors.push(FieldError::invalid(format!("{path}.jsonPath"), &column["jsonPath"], text));
        } else if let Err(text) = JsonPath::parse(json_path) {
            errors.push(FieldError::invalid(format!("{path}.jsonPath"), &column["jsonPath"], text));
        }
    }
}

fn scale(scale: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if scale.is_null() {
        return;
    }
    for (field, roots) in [
        ("specReplicasPath", &[".spec."][..]),
        ("statusReplicasPath", &[".status."][..]),
        ("labelSelectorPath", &[".status.", ".spec."][..]),
    ] {
        let text = scale.top_str(field);
        if text.is_empty() {
            if field != "labelSelectorPath" {
                errors.push(FieldError::required(format!("{path}.{field}"), ""));
            }
        } else if !roots.iter().any(|root| text.starts_with(root)) || text.contains('[') {
            let wanted = format!("should be a json path under {}", roots[0].trim_end_matches('.'));
            errors.push(FieldError::invalid(format!("{path}.{field}"), &scale[field], wanted));
        }
    }
}

fn selectable(version: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let fields = version["selectableFields"].as_array().map(Vec::as_slice).unwrap_or_default();
    if fields.len() > 8 {
        errors.push(FieldError {
            kind: crate::status::FieldErrorKind::TooMany,
            field: format!("{path}.selectableFields"),
            detail: format!("Too many: {}: must have at most 8 items", fields.len()),
        });
    }
    let mut seen: Vec<&str> = Vec::new();
    for (i, field) in fields.iter().enumerate() {
        let at = format!("{path}.selectableFields[{i}].jsonPath");
        let text = field.top_str("jsonPath");
        if text.is_empty() {
            errors.push(FieldError::required(at, ""));
            continue;
        }
        if seen.contains(&text) {
            errors.push(FieldError::duplicate(at.as_str(), &field["jsonPath"]));
        }
        seen.push(text);
        let mut node = &version["schema"]["openAPIV3Schema"];
        for part in text.trim_start_matches('.').split('.') {
            node = &node["properties"][part];
        }
        let metadata = text.starts_with(".metadata.");
        match node.top_str("type") {
            "string" | "integer" | "boolean" if !metadata => {}
            _ => {
                let why = "must point to a field of type string, boolean or integer. Enum string fields and strings with \
                           formats are allowed.";
                errors.push(FieldError::invalid(at, &field["jsonPath"], why));
            }
        }
    }
}
