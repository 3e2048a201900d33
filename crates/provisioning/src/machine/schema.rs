//! Machine drivers as API kinds: a driver's flags become a DynamicSchema, the schema becomes three CRDs.

use std::collections::BTreeMap;

use drover_api::management::v3::{DynamicSchemaSpec, Field, Values};
use serde_json::{Map, Value, json};

use crate::keys::labels;

/// A flag of a driver, named `<driver>-<flag>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    pub name: String,
    pub kind: FlagKind,
    /// Text of the default; empty for none.
    pub default: String,
    pub usage: String,
}

/// Kinds of flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagKind {
    Text,
    Integer,
    Boolean,
    List,
}

/// Where the flags of drivers come from.
pub trait Drivers: Send + Sync + 'static {
    /// The flags of a built-in driver; none if there is no such driver.
    fn flags(&self, driver: &str) -> Option<Vec<Flag>>;
}

/// Fields that hold keys whatever the driver says.
const PRIVATE_FIELDS: [&str; 3] = ["sshKeyContents", "sshKey", "privateKeyFile"];

/// `<driver>-some-flag` → `someFlag`.
pub fn field_name(driver: &str, flag: &str) -> String {
    let name = flag.strip_prefix(driver).and_then(|rest| rest.strip_prefix('-')).unwrap_or(flag);
    let mut out = String::new();
    for (index, word) in name.split('-').enumerate() {
        let mut letters = word.chars();
        match letters.next() {
            Some(first) if index > 0 => {
                out.extend(first.to_uppercase());
                out.push_str(letters.as_str());
            }
            Some(first) => {
                out.push(first);
                out.push_str(letters.as_str());
            }
            None => {}
        }
    }
    out
}

/// `Local`, for `local`.
pub fn kind_prefix(driver: &str) -> String {
    let mut letters = driver.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().collect::<String>() + letters.as_str())
        .unwrap_or_default()
}

/// Name of the driver's DynamicSchema.
pub fn schema_name(driver: &str) -> String {
    format!("{driver}config")
}

/// The schema of a driver's Config.
pub fn schema(driver: &str, flags: &[Flag], password_fields: &[String]) -> DynamicSchemaSpec {
    let fields = flags.iter().map(|flag| {
        let name = field_name(driver, &flag.name);
        let private = password_fields.contains(&name) || PRIVATE_FIELDS.contains(&name.as_str());
        let type_ = match flag.kind {
            FlagKind::Boolean => "boolean",
            FlagKind::List => "array[string]",
            _ if private => "password",
            // Numbers are texts in Rancher's schemas, so that a Config may hold either.
            FlagKind::Text | FlagKind::Integer => "string",
        };
        let default = (!flag.default.is_empty() && matches!(flag.kind, FlagKind::Text | FlagKind::Integer))
            .then(|| Values { string_value: flag.default.clone(), ..Default::default() });
        let field = Field {
            create: true,
            update: true,
            nullable: flag.kind == FlagKind::List,
            type_: type_.to_owned(),
            description: flag.usage.clone(),
            default_: default,
            ..Default::default()
        };
        (name, field)
    });
    DynamicSchemaSpec {
        resource_fields: fields.collect(),
        schema_name: schema_name(driver),
        ..Default::default()
    }
}

/// The three CRDs of a driver: Config, Machine, MachineTemplate.
pub fn crds(driver: &str, schema: &DynamicSchemaSpec) -> Vec<Value> {
    let prefix = kind_prefix(driver);
    let with_defaults = properties(&schema.resource_fields, true);
    let without = properties(&schema.resource_fields, false);
    let mut machine_fields = without.clone();
    machine_fields.insert("common".into(), common());
    machine_fields.insert("providerID".into(), json!({"type": "string"}));
    let required: Vec<&String> =
        schema.resource_fields.iter().filter(|(_, field)| field.required).map(|(name, _)| name).collect();

    let mut config_root = with_defaults;
    for (key, shape) in [("apiVersion", "string"), ("kind", "string"), ("metadata", "object")] {
        config_root.insert(key.into(), json!({"type": shape}));
    }
    let mut config_schema = json!({"type": "object", "properties": config_root});
    if !required.is_empty() {
        config_schema["required"] = json!(required);
    }
    let machine_schema = json!({
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": machine_fields},
            "status": machine_status(),
        },
    });
    let template_schema = json!({
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": {
            "clusterName": {"type": "string"},
            "template": {"type": "object", "properties": {
                "metadata": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "spec": {"type": "object", "properties": machine_fields},
            }},
        }}},
    });
    let columns = json!([
        {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"},
        {"name": "Provider ID", "type": "string", "jsonPath": ".spec.providerID"},
        {"name": "Failure", "type": "string", "jsonPath": ".status.failureReason", "priority": 10},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]);
    vec![
        crd("rke-machine-config.cattle.io", &format!("{prefix}Config"), config_schema, false, json!([])),
        crd("rke-machine.cattle.io", &format!("{prefix}Machine"), machine_schema, true, columns),
        crd("rke-machine.cattle.io", &format!("{prefix}MachineTemplate"), template_schema, false, json!([])),
    ]
}

fn crd(group: &str, kind: &str, schema: Value, status: bool, columns: Value) -> Value {
    let lower = kind.to_lowercase();
    let plural = format!("{lower}s");
    let mut version = json!({
        "name": "v1",
        "served": true,
        "storage": true,
        "schema": {"openAPIV3Schema": schema},
    });
    if status {
        version["subresources"] = json!({"status": {}});
    }
    if columns.as_array().is_some_and(|columns| !columns.is_empty()) {
        version["additionalPrinterColumns"] = columns;
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.{group}"),
            "labels": {
                "cluster.x-k8s.io/v1beta1": "v1",
                "cluster.x-k8s.io/v1beta2": "v1",
                labels::CLUSTER_INDEXED: "true",
            },
        },
        "spec": {
            "group": group,
            "names": {"kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": lower},
            "scope": "Namespaced",
            "versions": [version],
        },
    })
}

/// Defaults only on Configs: on templates a new default of a driver would change existing pools.
fn properties(fields: &BTreeMap<String, Field>, defaults: bool) -> Map<String, Value> {
    fields
        .iter()
        .map(|(name, field)| {
            let mut shape = match field.type_.as_str() {
                "boolean" => json!({"type": "boolean"}),
                "int" => json!({"type": "integer"}),
                "array[string]" => json!({"type": "array", "items": {"type": "string"}, "nullable": true}),
                _ => json!({"type": "string", "nullable": true}),
            };
            if !field.description.is_empty() {
                shape["description"] = json!(field.description);
            }
            if !field.options.is_empty() {
                let mut options = field.options.clone();
                options.push(String::new());
                shape["enum"] = json!(options);
            }
            let default = field.default_.as_ref().map(|default| default.string_value.as_str());
            if let Some(text) = default.filter(|text| defaults && !text.is_empty()) {
                shape["default"] = json!(text);
            }
            (name.clone(), shape)
        })
        .collect()
}

fn common() -> Value {
    json!({"type": "object", "properties": {
        "cloudCredentialSecretName": {"type": "string"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "taints": {"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
    }})
}

fn machine_status() -> Value {
    let text = json!({"type": "string"});
    json!({"type": "object", "properties": {
        "addresses": {"type": "array", "items": {
            "type": "object", "properties": {"type": text, "address": text},
        }},
        "conditions": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
            "items": {"type": "object", "required": ["type", "status"], "properties": {
                "type": text, "status": text, "reason": text, "message": text,
                "lastTransitionTime": text, "lastUpdateTime": text,
            }},
        },
        "initialization": {"type": "object", "properties": {"provisioned": {"type": "boolean"}}},
        "cloudCredentialSecretName": text, "driverHash": text, "driverUrl": text, "jobName": text,
        "attempt": {"type": "integer"}, "failureMessage": text, "failureReason": text, "failedAt": text,
        "ready": {"type": "boolean"},
    }})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags() -> Vec<Flag> {
        let flag = |name: &str, kind, default: &str| Flag {
            name: name.into(),
            kind,
            default: default.into(),
            usage: String::new(),
        };
        vec![
            flag("local-cpu-count", FlagKind::Integer, "2"),
            flag("local-verbose", FlagKind::Boolean, ""),
            flag("local-mount", FlagKind::List, ""),
            flag("local-secret-word", FlagKind::Text, ""),
        ]
    }

    #[test]
    fn provisioning_check_22_three_crds_with_contract_labels() {
        let schema = schema("local", &flags(), &["secretWord".to_owned()]);
        assert_eq!(schema.resource_fields["cpuCount"].type_, "string", "numbers are texts");
        assert_eq!(schema.resource_fields["secretWord"].type_, "password");
        let crds = crds("local", &schema);
        let names: Vec<&str> = crds.iter().map(|crd| crd["metadata"]["name"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            [
                "localconfigs.rke-machine-config.cattle.io",
                "localmachines.rke-machine.cattle.io",
                "localmachinetemplates.rke-machine.cattle.io",
            ]
        );
        for crd in &crds {
            assert_eq!(crd["metadata"]["labels"]["cluster.x-k8s.io/v1beta2"], "v1");
        }
        let root =
            |crd: &Value| crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].clone();
        assert_eq!(root(&crds[0])["cpuCount"]["default"], "2");
        let machine = &root(&crds[1])["spec"]["properties"];
        assert!(machine["cpuCount"].get("default").is_none() && machine["common"].is_object());
        assert!(
            root(&crds[2])["spec"]["properties"]["template"]["properties"]["spec"]["properties"]["mount"]
                .is_object()
        );
    }
}
