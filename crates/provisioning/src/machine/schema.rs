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
    let id = "The infrastructure's name of the server, equal to the Node's spec.providerID.";
    machine_fields.insert("providerID".into(), text(id));
    let required: Vec<&String> =
        schema.resource_fields.iter().filter(|(_, field)| field.required).map(|(name, _)| name).collect();

    let mut config_root = with_defaults;
    for (key, shape) in [("apiVersion", "string"), ("kind", "string"), ("metadata", "object")] {
        config_root.insert(key.into(), json!({"type": shape}));
    }
    let mut config_schema = json!({
        "type": "object",
        "description": format!(
            "What the machine driver {driver} is told when it makes the machines of a pool; a pool refers to it by \
             machineConfigRef. Its fields are the driver's flags."
        ),
        "properties": config_root,
    });
    if !required.is_empty() {
        config_schema["required"] = json!(required);
    }
    let machine_schema = json!({
        "type": "object",
        "description": format!("A server that the machine driver {driver} makes, by a Job, for one Machine."),
        "properties": {
            "spec": {
                "type": "object",
                "description": format!("What the server is made with: the flags of {driver}, and what all drivers share."),
                "properties": machine_fields,
            },
            "status": machine_status(),
        },
    });
    let template_schema = json!({
        "type": "object",
        "description": format!("What each {prefix}Machine of a pool is made from."),
        "properties": {"spec": {"type": "object", "description": "What is asked for.", "properties": {
            "clusterName": text("Name of the Cluster."),
            "template": {
                "type": "object",
                "description": format!("The {prefix}Machine to be."),
                "properties": {
                    "metadata": {
                        "type": "object", "description": "Labels and annotations.",
                        "x-kubernetes-preserve-unknown-fields": true,
                    },
                    "spec": {
                        "type": "object", "description": "What each server is made with.",
                        "properties": machine_fields,
                    },
                },
            },
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

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn common() -> Value {
    json!({"type": "object", "description": "What all drivers share.", "properties": {
        "cloudCredentialSecretName": text("Secret with the credential for the infrastructure."),
        "labels": {
            "type": "object", "description": "Labels of the Node.", "additionalProperties": {"type": "string"},
        },
        "taints": {
            "type": "array", "description": "Taints of the Node.",
            "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        },
    }})
}

fn machine_status() -> Value {
    json!({"type": "object", "description": "What has been observed.", "properties": {
        "addresses": {"type": "array", "description": "Addresses of the server.", "items": {
            "type": "object",
            "properties": {
                "type": text("InternalIP, ExternalIP or Hostname."), "address": text("The address."),
            },
        }},
        "conditions": {
            "type": "array", "description": "Conditions, one per type.",
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
            "items": {"type": "object", "required": ["type", "status"], "properties": {
                "type": text("CreateJob, DeleteJob or Ready."), "status": text("True, False or Unknown."),
                "reason": text("One word for programs."), "message": text("A sentence for people."),
                "lastTransitionTime": text("When the status changed last."),
                "lastUpdateTime": text("When anything of it changed last."),
            }},
        },
        "initialization": {
            "type": "object", "description": "Steps that happen once; each stays true.",
            "properties": {"provisioned": {"type": "boolean", "description": "True once the server exists."}},
        },
        "cloudCredentialSecretName": text("Secret with the credential that was used."),
        "driverHash": text("Checksum of the driver that made the server."),
        "driverUrl": text("Where that driver came from."),
        "jobName": text("Name of the Job that makes or removes the server."),
        "attempt": {"type": "integer", "description": "Number of the last attempt; 0 before the first."},
        "failureMessage": text("Why the last Job failed."),
        "failureReason": text("CreateError or DeleteError."),
        "failedAt": text("When the last Job failed."),
        "ready": {"type": "boolean", "description": "True once the server exists."},
        "waits": waits(),
    }})
}

/// The schema of `drover_api::wait::Wait`.
fn waits() -> Value {
    json!({
        "type": "array", "description": "What is waited for now.", "x-kubernetes-list-type": "atomic",
        "items": {"type": "object", "required": ["reason", "object", "message"], "properties": {
            "reason": text("One CamelCase word for programs; it never changes."),
            "object": {
                "type": "object", "description": "The object that is waited for.", "required": ["kind", "name"],
                "properties": {
                    "kind": text("Its kind."), "name": text("Its name."),
                    "namespace": text("Its namespace; empty for objects of the whole cluster."),
                },
            },
            "message": text("The text of the condition and of the event."),
            "expected": text("What would end the wait."),
            "observed": text("What is seen instead."),
            "since": {"type": "string", "format": "date-time", "description": "When the wait began."},
            "remedy": text("What a person can do."),
        }},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags() -> Vec<Flag> {
        let flag = |name: &str, kind, default: &str| Flag {
            name: name.into(),
            kind,
            default: default.into(),
            usage: format!("Usage of {name}"),
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
            let labels = &crd["metadata"]["labels"];
            assert_eq!(labels["cluster.x-k8s.io/v1beta1"], "v1");
            assert_eq!(labels["cluster.x-k8s.io/v1beta2"], "v1");
        }
        let root =
            |crd: &Value| crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].clone();
        assert_eq!(root(&crds[0])["cpuCount"]["default"], "2");
        let machine = &root(&crds[1])["spec"]["properties"];
        assert!(machine["cpuCount"].get("default").is_none() && machine["common"].is_object());
        let template = &root(&crds[2])["spec"]["properties"]["template"]["properties"]["spec"]["properties"];
        assert!(template["mount"].is_object() && template["cpuCount"].is_object());
        for kind in &crds[1..] {
            assert!(!kind.to_string().contains("\"default\""), "{kind:#}");
        }
    }

    #[test]
    fn every_field_of_the_kinds_has_a_word_for_explain() {
        fn check(path: &str, schema: &Value, missing: &mut Vec<String>) {
            if schema["description"].as_str().is_none_or(str::is_empty) {
                missing.push(path.to_owned());
            }
            for (name, field) in schema["properties"].as_object().into_iter().flatten() {
                // Those of every object are described by the API server.
                if path.contains('.') || !["apiVersion", "kind", "metadata"].contains(&name.as_str()) {
                    check(&format!("{path}.{name}"), field, missing);
                }
            }
            for (name, field) in schema["items"]["properties"].as_object().into_iter().flatten() {
                check(&format!("{path}[].{name}"), field, missing);
            }
        }
        let mut missing = Vec::new();
        for crd in crds("local", &schema("local", &flags(), &[])) {
            let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            check(crd["spec"]["names"]["kind"].as_str().unwrap(), schema, &mut missing);
        }
        assert_eq!(missing, Vec::<String>::new());
        let config = &crds("local", &schema("local", &flags(), &[]))[0]["spec"]["versions"][0]["schema"];
        let field = &config["openAPIV3Schema"]["properties"]["cpuCount"];
        assert_eq!(field["description"], "Usage of local-cpu-count");
    }
}
