//! `<X>MachineTemplate` of a pool, and the hash in its name.
//!
//! The hash is taken over the driver's fields only. Labels, taints and credential are left out, so that
//! changing them never replaces a machine; a driver field gives a template of another name, and Cluster API
//! rolls the pool over to it.

use std::collections::BTreeMap;

use drover_api::names::safe_concat_name;
use drover_api::provisioning::v1::RKEMachinePool;
use kube::api::{DynamicObject, ObjectMeta, TypeMeta};
use serde_json::{Map, Value, json};

use crate::digest::{go_json, sha256_hex};
use crate::keys::{annotations, labels};

/// Group and version of the Config kinds.
pub const CONFIG_API_VERSION: &str = "rke-machine-config.cattle.io/v1";
/// Group and version of the machine and template kinds.
pub const MACHINE_API_VERSION: &str = "rke-machine.cattle.io/v1";

/// What a template is made of.
pub struct Input<'a> {
    pub namespace: &'a str,
    pub cluster: &'a str,
    pub deployment: &'a str,
    pub pool: &'a RKEMachinePool,
    /// The Config's fields, those of the driver at the top level.
    pub config: &'a Value,
    /// Field names of the driver's schema.
    pub fields: &'a [String],
    pub credential: &'a str,
}

/// The kind of the templates of a kind of Configs.
pub fn template_kind(config_kind: &str) -> String {
    format!("{}MachineTemplate", config_kind.strip_suffix("Config").unwrap_or(config_kind))
}

/// The template object.
pub fn machine_template(input: &Input<'_>) -> DynamicObject {
    let fields = driver_fields(input.config, input.fields);
    let hash = hash8(input.deployment, &fields);
    let reference = &input.pool.machine_config_ref;
    let kind = reference.kind.as_deref().unwrap_or_default();
    let mut spec = fields;
    let mut common = Map::new();
    if !input.pool.labels.is_empty() {
        common.insert("labels".into(), json!(input.pool.labels));
    }
    if !input.pool.taints.is_empty() {
        common.insert("taints".into(), json!(input.pool.taints));
    }
    if !input.credential.is_empty() {
        common.insert("cloudCredentialSecretName".into(), json!(input.credential));
    }
    spec.insert("common".into(), Value::Object(common));
    let texts = |pairs: &[(&str, &str)]| {
        Some(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    };
    DynamicObject {
        types: Some(TypeMeta { api_version: MACHINE_API_VERSION.to_owned(), kind: template_kind(kind) }),
        metadata: ObjectMeta {
            namespace: Some(input.namespace.to_owned()),
            name: Some(safe_concat_name(&[input.deployment, &hash])),
            labels: texts(&[(labels::MACHINE_TEMPLATE_HASH, &hash), (labels::OBJECTSET_PRUNE, "false")]),
            annotations: texts(&[
                (annotations::CLONED_FROM_GROUP_VERSION, CONFIG_API_VERSION),
                (annotations::CLONED_FROM_KIND, kind),
                (annotations::CLONED_FROM_NAME, reference.name.as_deref().unwrap_or_default()),
            ]),
            ..ObjectMeta::default()
        },
        data: json!({"spec": {"clusterName": input.cluster, "template": {"spec": spec}}}),
    }
}

/// The Config's fields that the driver's schema knows. This also drops metadata and kind.
fn driver_fields(config: &Value, known: &[String]) -> Map<String, Value> {
    let fields = config.as_object().cloned().unwrap_or_default();
    fields.into_iter().filter(|(key, _)| known.contains(key)).collect()
}

/// First eight hex digits over the deployment's name and the fields, empty ones left out at the top level.
/// `false` and `0` stay.
pub fn hash8(deployment: &str, fields: &Map<String, Value>) -> String {
    let kept: BTreeMap<&String, &Value> =
        fields.iter().filter(|(key, value)| *key != "common" && !is_empty(value)).collect();
    let json = go_json(&json!(kept));
    sha256_hex([deployment.as_bytes(), &json])[..8].to_owned()
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    fn fields(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn provisioning_check_5_hash_over_go_bytes() {
        let map =
            fields(json!({"b": "<&>", "a": "", "c": [], "d": null, "e": false, "f": 0, "common": {"x": 1}}));
        let expected = hex::encode(Sha256::digest(br#"demo-w{"b":"\u003c\u0026\u003e","e":false,"f":0}"#));
        assert_eq!(hash8("demo-w", &map), expected[..8]);
    }

    #[test]
    fn provisioning_check_3_and_4_only_driver_fields_change_the_name() {
        let known = ["cpus".to_owned(), "memory".to_owned()];
        let make = |labels: Value, config: Value| {
            let pool: RKEMachinePool = serde_json::from_value(json!({
                "name": "w", "labels": labels, "machineConfigRef": {"kind": "LocalConfig", "name": "nc-w"},
            }))
            .unwrap();
            let input = Input {
                namespace: "default",
                cluster: "demo",
                deployment: "demo-w",
                pool: &pool,
                config: &config,
                fields: &known,
                credential: "",
            };
            json!(machine_template(&input))
        };
        let config = json!({"kind": "LocalConfig", "metadata": {"name": "nc-w"}, "cpus": "2", "unknown": 1});
        let first = make(json!({}), config.clone());
        let relabelled = make(json!({"tier": "gold"}), config);
        let changed = make(json!({}), json!({"cpus": "4"}));
        assert_eq!(first["metadata"]["name"], relabelled["metadata"]["name"]);
        assert_ne!(first["metadata"]["name"], changed["metadata"]["name"]);
        assert_eq!(first["kind"], "LocalMachineTemplate");
        assert_eq!(first["spec"]["template"]["spec"], json!({"cpus": "2", "common": {}}));
        assert_eq!(relabelled["spec"]["template"]["spec"]["common"], json!({"labels": {"tier": "gold"}}));
    }
}
