//! Defaults and validation of Cluster API objects in the embedded API. Upstream uses webhooks for them.

use drover_api::capi::v1beta2::{Machine, MachineHealthCheck};
use drover_apiserver::admission::{Admission, AdmissionRequest, Operation};
use drover_apiserver::resources::Resource;
use drover_apiserver::status::{self, GroupName, Status};
use drover_capi::admission as rules;
use futures::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

const GROUP: &str = "cluster.x-k8s.io";

/// The hook.
pub struct ClusterApi;

impl Admission for ClusterApi {
    fn name(&self) -> &str {
        "cluster-api"
    }

    fn handles(&self, operation: Operation, resource: &Resource, subresource: &str) -> bool {
        operation != Operation::Delete && subresource.is_empty() && resource.def.group == GROUP
    }

    fn mutate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        object: &'a mut Value,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let old = request.old;
            match request.resource.def.kind.as_str() {
                "MachineDeployment" => default(object, old, rules::default_machine_deployment),
                "MachineSet" => default(object, old, rules::default_machine_set),
                "Machine" => default(object, old, |new, _: Option<&Machine>| rules::default_machine(new)),
                "MachineHealthCheck" => default(object, old, |new, _: Option<&MachineHealthCheck>| {
                    rules::default_machine_health_check(new)
                }),
                _ => {}
            }
            Ok(())
        })
    }

    fn validate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        object: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let Some(object) = object else { return Ok(()) };
            let old = request.old;
            let kind = request.resource.def.kind.as_str();
            if kind == "MachineHealthCheck" {
                request.warnings.add(drover_capi::machinehealthcheck::NO_EFFECT);
            }
            rules::without_effect(kind, object).into_iter().for_each(|text| request.warnings.add(text));
            let complaints = match kind {
                "Cluster" => validate(object, old, rules::validate_cluster),
                "MachineDeployment" => validate(object, old, rules::validate_machine_deployment),
                "MachineSet" => validate(object, old, rules::validate_machine_set),
                "Machine" => validate(object, old, rules::validate_machine),
                "MachineHealthCheck" => validate(object, old, rules::validate_machine_health_check),
                _ => return Ok(()),
            };
            if complaints.is_empty() {
                return Ok(());
            }
            let errors: Vec<_> = complaints
                .iter()
                .map(|c| {
                    status::FieldError::invalid(
                        &c.path,
                        object.pointer(&pointer(&c.path)).unwrap_or(&Value::Null),
                        &c.message,
                    )
                })
                .collect();
            Err(Status::invalid(GroupName { group: GROUP, name: kind }, request.name, &errors))
        })
    }
}

fn pointer(path: &str) -> String {
    format!("/{}", path.replace(['.', '['], "/").replace(']', ""))
}

/// An object that does not parse is rejected by its schema.
fn default<K: DeserializeOwned + Serialize>(
    object: &mut Value,
    old: Option<&Value>,
    rule: impl FnOnce(&mut K, Option<&K>),
) {
    let Ok(mut new) = serde_json::from_value::<K>(object.clone()) else { return };
    let old = old.and_then(|old| serde_json::from_value(old.clone()).ok());
    rule(&mut new, old.as_ref());
    let Ok(Value::Object(filled)) = serde_json::to_value(&new) else { return };
    // Only defaults are copied: typed structs would drop unknown fields.
    let Some(object) = object.as_object_mut() else { return };
    for part in ["metadata", "spec"] {
        if let Some(filled) = filled.get(part) {
            merge(object.entry(part).or_insert(Value::Null), filled);
        }
    }
}

/// Adds missing fields and overwrites different ones, but never removes any.
fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => {
            if into != from {
                *into = from.clone();
            }
        }
    }
}

fn validate<K: DeserializeOwned>(
    object: &Value,
    old: Option<&Value>,
    rule: impl FnOnce(&K, Option<&K>) -> Vec<rules::FieldError>,
) -> Vec<rules::FieldError> {
    let Ok(new) = serde_json::from_value::<K>(object.clone()) else { return vec![] };
    let old = old.and_then(|old| serde_json::from_value(old.clone()).ok());
    rule(&new, old.as_ref())
}
