//! The objects that a set creates: bootstrap config, infra machine and Machine, all with one name. Pure.

use std::collections::BTreeMap;

use drover_api::annotations::capi as annotations;
use drover_api::capi::v1beta2::{ContractVersionedObjectReference, Machine, MachineSet};
use drover_api::finalizers;
use drover_runtime::owned_fields;
use kube::ResourceExt;
use kube::api::{ApiResource, DynamicObject};
use serde_json::{Map, Value, json};

use super::decide::machine_labels;
use crate::meta;

/// The kind of the objects created from a template.
pub fn cloned_kind(template_kind: &str) -> &str {
    template_kind.strip_suffix("Template").unwrap_or(template_kind)
}

/// The reference to a clone of `template`.
pub fn cloned_reference(
    template: &ContractVersionedObjectReference,
    name: &str,
) -> ContractVersionedObjectReference {
    ContractVersionedObjectReference {
        api_group: template.api_group.clone(),
        kind: cloned_kind(&template.kind).to_owned(),
        name: name.to_owned(),
    }
}

/// The clone as it is created.
pub fn clone(
    set: &MachineSet,
    template: &DynamicObject,
    template_reference: &ContractVersionedObjectReference,
    resource: &ApiResource,
    name: &str,
) -> Result<DynamicObject, serde_json::Error> {
    let spec = template.data.pointer("/spec/template/spec").cloned().unwrap_or_else(|| json!({}));
    let metadata = Metadata::of(set, template, template_reference);
    serde_json::from_value(json!({
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": name,
            "namespace": set.namespace(),
            "labels": metadata.labels,
            "annotations": metadata.annotations,
            // Gone with the set should it never get its Machine; the Machine takes over otherwise.
            "ownerReferences": [owner(set)],
        },
        "spec": spec,
    }))
}

fn owner(set: &MachineSet) -> Value {
    let mut owner = meta::owner_reference(set, false);
    owner.controller = None;
    json!(owner)
}

/// Labels and annotations of a clone.
struct Metadata {
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

impl Metadata {
    fn of(set: &MachineSet, template: &DynamicObject, reference: &ContractVersionedObjectReference) -> Self {
        let read = |pointer: &str| -> BTreeMap<String, String> {
            let value = template.data.pointer(pointer);
            value.and_then(|value| serde_json::from_value(value.clone()).ok()).unwrap_or_default()
        };
        let mut all_labels = read("/spec/template/metadata/labels");
        all_labels.extend(machine_labels(set));
        let mut all_annotations = read("/spec/template/metadata/annotations");
        all_annotations.extend(template_annotations(set));
        all_annotations.insert(annotations::CLONED_FROM_NAME.to_owned(), reference.name.clone());
        all_annotations.insert(
            annotations::CLONED_FROM_GROUP_KIND.to_owned(),
            format!("{}.{}", reference.kind, reference.api_group),
        );
        Self { labels: all_labels, annotations: all_annotations }
    }
}

/// What a clone lacks of the labels and annotations that the set wants, and what it has of those that the set wrote before
/// as `manager` and no longer wants: a merge patch, if there is anything.
pub fn changes(
    set: &MachineSet,
    template: &DynamicObject,
    reference: &ContractVersionedObjectReference,
    live: &DynamicObject,
    manager: &str,
) -> Option<Value> {
    let wanted = Metadata::of(set, template, reference);
    let none = BTreeMap::new();
    let maps = [
        ("labels", &wanted.labels, live.metadata.labels.as_ref()),
        ("annotations", &wanted.annotations, live.metadata.annotations.as_ref()),
    ];
    let mut metadata = Map::new();
    for (field, wanted, live_map) in maps {
        let live_map = live_map.unwrap_or(&none);
        let missing = wanted.iter().filter(|(key, value)| live_map.get(*key) != Some(value));
        let mut patch: Map<String, Value> = missing.map(|(key, value)| (key.clone(), json!(value))).collect();
        let stale = written_by(live, manager, field).into_iter();
        let stale = stale.filter(|key| live_map.contains_key(key) && !wanted.contains_key(key));
        patch.extend(stale.map(|key| (key, Value::Null)));
        if !patch.is_empty() {
            metadata.insert(field.to_owned(), Value::Object(patch));
        }
    }
    if metadata.is_empty() {
        return None;
    }
    metadata.insert("uid".to_owned(), json!(live.uid()));
    Some(json!({ "metadata": metadata }))
}

/// The keys of a map in the metadata that a manager owns.
fn written_by(live: &DynamicObject, manager: &str, field: &str) -> Vec<String> {
    let path = format!("/f:metadata/f:{field}");
    let entries = live.metadata.managed_fields.iter().flatten();
    let ours = entries.filter(|entry| entry.manager.as_deref() == Some(manager)).filter_map(owned_fields);
    let mut names = vec![];
    for fields in ours {
        let owned = fields.pointer(&path).and_then(Value::as_object).into_iter().flat_map(Map::keys);
        names.extend(owned.filter_map(|key| key.strip_prefix("f:")).map(str::to_owned));
    }
    names
}

/// What still reaches a Machine that is being deleted.
pub fn leaving_part(machine: &Machine) -> Value {
    // Empty lists are refused by the schema; null removes them.
    let (gates, taints) = (&machine.spec.readiness_gates, &machine.spec.taints);
    json!({
        "deletion": machine.spec.deletion,
        "minReadySeconds": machine.spec.min_ready_seconds,
        "readinessGates": (!gates.is_empty()).then_some(gates),
        "taints": (!taints.is_empty()).then_some(taints),
    })
}

fn template_annotations(set: &MachineSet) -> BTreeMap<String, String> {
    set.spec.template.metadata.as_ref().map(|meta| meta.annotations.clone()).unwrap_or_default()
}

/// The desired Machine. Version, failure domain and references stay as they were at its creation.
pub fn machine(set: &MachineSet, name: &str, live: Option<&Machine>) -> Machine {
    let mut spec = set.spec.template.spec.clone();
    spec.cluster_name = set.spec.cluster_name.clone();
    spec.provider_id = None;
    match live {
        Some(live) => {
            // If the template has no version, components that update machines in place may set it.
            spec.version = spec.version.and(live.spec.version.clone());
            spec.failure_domain = live.spec.failure_domain.clone();
            spec.infrastructure_ref = live.spec.infrastructure_ref.clone();
            spec.bootstrap.config_ref = live.spec.bootstrap.config_ref.clone();
            if spec.bootstrap.config_ref.is_none() {
                spec.bootstrap.data_secret_name = live.spec.bootstrap.data_secret_name.clone();
            }
        }
        None => {
            spec.infrastructure_ref = cloned_reference(&spec.infrastructure_ref, name);
            spec.bootstrap.config_ref =
                spec.bootstrap.config_ref.map(|reference| cloned_reference(&reference, name));
        }
    }
    let mut machine = Machine::new(name, spec);
    machine.metadata.namespace = set.namespace();
    machine.metadata.labels = Some(machine_labels(set));
    let annotations = template_annotations(set);
    machine.metadata.annotations = (!annotations.is_empty()).then_some(annotations);
    machine.metadata.owner_references = Some(vec![meta::owner_reference(set, true)]);
    // Set at creation, so that the first pass of its controller does not have to write.
    machine.metadata.finalizers = Some(vec![finalizers::capi::MACHINE.to_owned()]);
    machine
}
