//! Defaults of volumes, storage and priority classes, network policies and autoscalers.

use serde_json::{Value, json};

use super::{child, items_mut, set_default};
use crate::status::FieldError;

pub(super) fn default_claim(claim: &mut Value) {
    set_default(child(claim, "spec"), "volumeMode", "Filesystem");
}

pub(super) fn pending(object: &mut Value) {
    child(object, "status")["phase"] = "Pending".into();
}

pub(super) fn default_volume(volume: &mut Value) {
    let spec = child(volume, "spec");
    set_default(spec, "persistentVolumeReclaimPolicy", "Retain");
    set_default(spec, "volumeMode", "Filesystem");
}

pub(super) fn default_storage_class(class: &mut Value) {
    set_default(class, "reclaimPolicy", "Delete");
    set_default(class, "volumeBindingMode", "Immediate");
}

pub(super) fn validate_storage_class(class: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if class.get("provisioner").and_then(Value::as_str).is_none_or(str::is_empty) {
        errors.push(FieldError::required("provisioner", ""));
    }
    super::immutable(class, old, &["provisioner"], &mut errors);
    errors
}

pub(super) fn default_priority_class(class: &mut Value) {
    set_default(class, "preemptionPolicy", "PreemptLowerPriority");
    set_default(class, "value", 0);
}

pub(super) fn validate_priority_class(class: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    super::immutable(class, old, &["value"], &mut errors);
    super::immutable(class, old, &["preemptionPolicy"], &mut errors);
    errors
}

pub(super) fn default_autoscaler(autoscaler: &mut Value) {
    let spec = child(autoscaler, "spec");
    set_default(spec, "minReplicas", 1);
    let metric = json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}});
    set_default(spec, "metrics", json!([metric]));
}

pub(super) fn default_network_policy(policy: &mut Value) {
    let spec = child(policy, "spec");
    let egress = spec.get("egress").is_some();
    set_default(spec, "policyTypes", if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) });
    for rule in items_mut(spec, "ingress") {
        items_mut(rule, "ports").for_each(|port| set_default(port, "protocol", "TCP"));
    }
    for rule in items_mut(spec, "egress") {
        items_mut(rule, "ports").for_each(|port| set_default(port, "protocol", "TCP"));
    }
}

pub(super) fn default_webhooks(configuration: &mut Value) {
    for webhook in items_mut(configuration, "webhooks") {
        set_default(webhook, "failurePolicy", "Fail");
        set_default(webhook, "matchPolicy", "Equivalent");
        set_default(webhook, "namespaceSelector", json!({}));
        set_default(webhook, "objectSelector", json!({}));
        set_default(webhook, "timeoutSeconds", 10);
        items_mut(webhook, "rules").for_each(|rule| set_default(rule, "scope", "*"));
        if let Some(service) = webhook.get_mut("clientConfig").and_then(|config| config.get_mut("service")) {
            set_default(service, "port", 443);
        }
    }
}

pub(super) fn default_mutating_webhooks(configuration: &mut Value) {
    default_webhooks(configuration);
    for webhook in items_mut(configuration, "webhooks") {
        set_default(webhook, "reinvocationPolicy", "Never");
    }
}
