//! custom_machine

use super::cluster::RKEClusterInitializationStatus;
use super::common::{GenericCondition, MachineAddress};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "rke.cattle.io",
    version = "v1",
    kind = "CustomMachine",
    plural = "custommachines",
    namespaced,
    doc = "CustomMachine",
    status = "CustomMachineStatus",
    derive = "PartialEq",
    derive = "Default",
    label("auth.cattle.io/cluster-indexed", "true"),
    label("cluster.x-k8s.io/v1beta1", "v1"),
    label("cluster.x-k8s.io/v1beta2", "v1")
)]
#[serde(rename_all = "camelCase")]
pub struct CustomMachineSpec {
    #[serde(
        rename = "providerID",
        default,
        skip_serializing_if = "String::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub provider_id: String,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CustomMachineStatus {
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub addresses: Vec<MachineAddress>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["type"])))]
    pub conditions: Vec<GenericCondition>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<RKEClusterInitializationStatus>,
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub ready: bool,
}
