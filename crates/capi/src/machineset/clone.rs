//! The objects that a set creates: bootstrap config, infra machine and Machine, all with one name. Pure.

use std::collections::BTreeMap;

use drover_api::annotations::capi as annotations;
use drover_api::capi::v1beta2::{ContractVersionedObjectReference, Machine, MachineSet};
use drover_api::finalizers;
use drover_api::labels::capi as labels;
use kube::ResourceExt;
use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value, json};

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

/// The initial clone. Its labels and annotations are applied afterwards with another manager, so that later changes
/// of the set's template are copied.
pub fn clone(
    set: &MachineSet,
    template: &DynamicObject,
    resource: &ApiResource,
    name: &str,
) -> Result<DynamicObject, serde_json::Error> {
    let spec = template.data.pointer("/spec/template/spec").cloned().unwrap_or_else(|| json!({}));
    serde_json::from_value(json!({
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": name,
            "namespace": set.namespace(),
            "labels": { labels::CLUSTER_NAME: set.spec.cluster_name },
            // Owned by the set until the Machine becomes the owner, so that it is deleted with the set if there is no
            // Machine.
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
pub fn clone_metadata(
    set: &MachineSet,
    template: Option<&DynamicObject>,
    template_reference: &ContractVersionedObjectReference,
    live: &DynamicObject,
) -> Result<DynamicObject, serde_json::Error> {
    let read = |pointer: &str| -> BTreeMap<String, String> {
        let value = template.and_then(|template| template.data.pointer(pointer));
        value.and_then(|value| serde_json::from_value(value.clone()).ok()).unwrap_or_default()
    };
    let mut all_labels = read("/spec/template/metadata/labels");
    all_labels.extend(machine_labels(set));
    let mut all_annotations = read("/spec/template/metadata/annotations");
    all_annotations.extend(template_annotations(set));
    all_annotations.insert(annotations::CLONED_FROM_NAME.to_owned(), template_reference.name.clone());
    all_annotations.insert(
        annotations::CLONED_FROM_GROUP_KIND.to_owned(),
        format!("{}.{}", template_reference.kind, template_reference.api_group),
    );
    let types = live.types.clone().unwrap_or_default();
    serde_json::from_value(json!({
        "apiVersion": types.api_version,
        "kind": types.kind,
        "metadata": {
            "name": live.name_any(),
            "namespace": live.namespace(),
            "labels": all_labels,
            "annotations": all_annotations,
        },
    }))
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
