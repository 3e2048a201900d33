//! Roles and bindings: defaults and the immutable roleRef. An admission hook checks for escalation.

use serde_json::Value;

use super::{items, items_mut};
use crate::object::{ObjectExt, object_mut};
use crate::status::FieldError;

const GROUP: &str = "rbac.authorization.k8s.io";

pub(super) fn default_binding(binding: &mut Value) {
    if let Some(role) = binding.get_mut("roleRef").filter(|role| role.top_str("apiGroup").is_empty()) {
        object_mut(role).insert("apiGroup".into(), GROUP.into());
    }
    for subject in items_mut(binding, "subjects") {
        if matches!(subject.kind(), "User" | "Group") && subject.top_str("apiGroup").is_empty() {
            object_mut(subject).insert("apiGroup".into(), GROUP.into());
        }
    }
}

pub(super) fn validate_binding(binding: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let null = Value::Null;
    let role = binding.get("roleRef").unwrap_or(&null);
    if role.top_str("name").is_empty() {
        errors.push(FieldError::required("roleRef.name", ""));
    }
    if !matches!(role.kind(), "Role" | "ClusterRole") {
        errors.push(FieldError::not_supported("roleRef.kind", &role.kind().into(), &["Role", "ClusterRole"]));
    }
    if old.is_some_and(|old| old.get("roleRef") != binding.get("roleRef")) {
        errors.push(FieldError::invalid("roleRef", role, "cannot change roleRef"));
    }
    for (at, subject) in items(binding, "subjects").enumerate() {
        let path = format!("subjects[{at}]");
        if subject.top_str("name").is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        }
        match subject.kind() {
            "ServiceAccount" if subject.top_str("namespace").is_empty() && binding.namespace().is_empty() => {
                errors.push(FieldError::required(format!("{path}.namespace"), ""));
            }
            "ServiceAccount" | "User" | "Group" => {}
            other => errors.push(FieldError::not_supported(
                format!("{path}.kind"),
                &other.into(),
                &["ServiceAccount", "User", "Group"],
            )),
        }
    }
    errors
}

pub(super) fn validate_role(role: &Value, _old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (at, rule) in items(role, "rules").enumerate() {
        let path = format!("rules[{at}]");
        let empty = |field: &str| items(rule, field).next().is_none();
        if empty("verbs") {
            errors
                .push(FieldError::required(format!("{path}.verbs"), "verbs must contain at least one value"));
        }
        if !empty("nonResourceURLs") {
            if !role.namespace().is_empty() {
                let why = "namespaced rules cannot apply to non-resource URLs";
                errors.push(FieldError::invalid(
                    format!("{path}.nonResourceURLs"),
                    &rule["nonResourceURLs"],
                    why,
                ));
            }
            continue;
        }
        if empty("apiGroups") {
            errors.push(FieldError::required(
                format!("{path}.apiGroups"),
                "resource rules must supply at least one api group",
            ));
        }
        if empty("resources") {
            errors.push(FieldError::required(
                format!("{path}.resources"),
                "resource rules must supply at least one resource",
            ));
        }
    }
    errors
}
