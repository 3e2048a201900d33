//! The CustomResourceDefinitions, generated from the types.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

use crate::{capi, management, provisioning, rke};

/// All CRDs of Drover, ordered by group.
pub fn crds() -> Vec<CustomResourceDefinition> {
    let mut crds = vec![
        capi::v1beta2::Cluster::crd(),
        capi::v1beta2::Machine::crd(),
        capi::v1beta2::MachineDeployment::crd(),
        capi::v1beta2::MachineHealthCheck::crd(),
        capi::v1beta2::MachineSet::crd(),
        management::v3::Cluster::crd(),
        management::v3::ClusterRegistrationToken::crd(),
        management::v3::DynamicSchema::crd(),
        management::v3::NodeDriver::crd(),
        management::v3::Setting::crd(),
        provisioning::v1::Cluster::crd(),
        rke::v1::CustomMachine::crd(),
        rke::v1::RKEBootstrap::crd(),
        rke::v1::RKEBootstrapTemplate::crd(),
        rke::v1::RKECluster::crd(),
        rke::v1::RKEControlPlane::crd(),
    ];
    for crd in &mut crds {
        crd.spec.names.list_kind = Some(format!("{}List", crd.spec.names.kind));
        for version in &mut crd.spec.versions {
            if let Some(root) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut())
            {
                finish_root(root);
                if crd.spec.group != capi::v1beta2::GROUP {
                    default_spec(root);
                }
                finish(root);
            }
        }
    }
    crds
}

/// Adds the properties that controller-gen adds to every root.
fn finish_root(root: &mut JSONSchemaProps) {
    root.title = None;
    let properties = root.properties.get_or_insert_default();
    for name in ["apiVersion", "kind"] {
        properties
            .entry(name.to_owned())
            .or_insert_with(|| JSONSchemaProps { type_: Some("string".into()), ..Default::default() });
    }
    properties
        .entry("metadata".to_owned())
        .or_insert_with(|| JSONSchemaProps { type_: Some("object".into()), ..Default::default() });
}

/// Rancher accepts objects without a `spec`. An empty default makes them decodable as typed objects.
fn default_spec(root: &mut JSONSchemaProps) {
    if let Some(spec) = root.properties.as_mut().and_then(|properties| properties.get_mut("spec"))
        && spec.required.as_ref().is_none_or(Vec::is_empty)
    {
        spec.default = Some(JSON(serde_json::json!({})));
    }
}

/// Converts a derived schema to the form that Go's tools publish.
///
/// `Option` fields are derived as nullable. Without that mark, an API server drops a `null` as if the field
/// were unset, as all clients of these objects expect.
fn finish(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    if schema.x_kubernetes_int_or_string == Some(true) {
        schema.type_ = None;
        schema.any_of = Some(
            ["integer", "string"]
                .map(|name| JSONSchemaProps { type_: Some(name.into()), ..Default::default() })
                .to_vec(),
        );
        return;
    }
    for property in schema.properties.iter_mut().flat_map(|properties| properties.values_mut()) {
        finish(property);
    }
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => finish(items),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(finish),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        finish(values);
    }
}
