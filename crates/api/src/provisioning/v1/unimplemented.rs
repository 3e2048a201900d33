//! Fields of a Cluster that are not implemented yet.
//!
//! They are accepted and stored. Admission and the controller report them, so that users do not wait for an
//! effect. A field is removed from the list, and the note from its description, in the commit that implements
//! it.

use serde_json::Value;

use super::ClusterSpec;

/// Paths below `spec`; `[]` represents every item of a list, `{}` every value of a map.
const UNIMPLEMENTED: &[&str] = &[
    "clusterAPIConfig",
    "clusterAgentDeploymentCustomization",
    "defaultClusterRoleForProjectMembers",
    "defaultPodSecurityAdmissionConfigurationTemplateName",
    "enableNetworkPolicy",
    "fleetAgentDeploymentCustomization",
    "localClusterAuthEndpoint",
    "redeploySystemAgentGeneration",
    "rkeConfig.chartValues",
    "rkeConfig.etcd",
    "rkeConfig.etcdSnapshotCreate",
    "rkeConfig.etcdSnapshotRestore",
    "rkeConfig.infrastructureRef",
    "rkeConfig.machinePools[].autoscalingMaxSize",
    "rkeConfig.machinePools[].autoscalingMinSize",
    "rkeConfig.machinePools[].displayName",
    "rkeConfig.machinePools[].maxUnhealthy",
    "rkeConfig.machinePools[].nodeStartupTimeout",
    "rkeConfig.machinePools[].unhealthyNodeTimeout",
    "rkeConfig.machinePools[].unhealthyRange",
    "rkeConfig.machinePools[].userdata",
    "rkeConfig.networking",
    "rkeConfig.registries.configs{}.authConfigSecretName",
    "rkeConfig.registries.configs{}.caBundle",
    "rkeConfig.registries.configs{}.tlsSecretName",
    "rkeConfig.rotateCertificates",
    "rkeConfig.rotateEncryptionKeys",
    "rkeConfig.upgradeStrategy.controlPlaneDrainOptions.ignoreErrors",
    "rkeConfig.upgradeStrategy.workerDrainOptions.ignoreErrors",
    "webhookDeploymentCustomization",
];

/// The only supported operating system of machines.
const LINUX: &str = "linux";

/// The paths, with indexes, of fields that are set but not implemented.
pub fn unimplemented_fields(spec: &ClusterSpec) -> Vec<String> {
    let mut found = unimplemented_paths(spec);
    // Only one value of this field is implemented.
    let pools = spec.rke_config.iter().flat_map(|config| config.machine_pools.iter().enumerate());
    let other = pools.filter(|(_, pool)| !["", LINUX].contains(&pool.machine_os.as_str()));
    found.extend(other.map(|(index, pool)| {
        let os = &pool.machine_os;
        format!("spec.rkeConfig.machinePools[{index}].machineOS ({os:?}: machines get {LINUX})")
    }));
    found
}

fn unimplemented_paths(spec: &ClusterSpec) -> Vec<String> {
    let Ok(spec) = serde_json::to_value(spec) else { return Vec::new() };
    let mut found = Vec::new();
    for path in UNIMPLEMENTED {
        let segments: Vec<&str> = path.split('.').collect();
        collect(&spec, &segments, "spec".to_owned(), &mut found);
    }
    found
}

fn collect(value: &Value, segments: &[&str], path: String, found: &mut Vec<String>) {
    let Some((first, rest)) = segments.split_first() else {
        if is_set(value) && !(path.ends_with("Timeout") && is_zero(value)) {
            found.push(path);
        }
        return;
    };
    let name = first.trim_end_matches(['[', ']', '{', '}']);
    let path = format!("{path}.{name}");
    match value.get(name) {
        Some(Value::Object(items)) if first.ends_with("{}") => {
            for (key, item) in items {
                collect(item, rest, format!("{path}[{key}]"), found);
            }
        }
        Some(Value::Array(items)) if first.ends_with("[]") => {
            for (index, item) in items.iter().enumerate() {
                collect(item, rest, format!("{path}[{index}]"), found);
            }
        }
        Some(value) => collect(value, rest, path, found),
        None => {}
    }
}

/// False for empty objects and disabled options, which forms fill in.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Bool(true) => true,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => fields.values().any(is_set),
    }
}

/// Whether a timeout is zero (`0s` and the like), which disables it.
fn is_zero(value: &Value) -> bool {
    let text = value.as_str().unwrap_or_default();
    text.starts_with('0') && text.bytes().filter(u8::is_ascii_digit).all(|digit| digit == b'0')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(value: Value) -> ClusterSpec {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn set_fields_are_reported_with_their_index() {
        let spec = spec(json!({
            "kubernetesVersion": "v1.34.1+k3s1",
            "localClusterAuthEndpoint": { "enabled": true },
            "rkeConfig": {
                "machineGlobalConfig": { "cni": "none" },
                "registries": { "configs": { "r.example.com": { "authConfigSecretName": "s" } } },
                "machinePools": [
                    { "name": "a", "workerRole": true, "machineConfigRef": { "kind": "LocalConfig", "name": "a" } },
                    {
                        "name": "b", "workerRole": true, "unhealthyNodeTimeout": "5m",
                        "machineConfigRef": { "kind": "LocalConfig", "name": "b" },
                    },
                ],
            },
        }));
        assert_eq!(
            unimplemented_fields(&spec),
            [
                "spec.localClusterAuthEndpoint",
                "spec.rkeConfig.machinePools[1].unhealthyNodeTimeout",
                "spec.rkeConfig.registries.configs[r.example.com].authConfigSecretName",
            ]
        );
    }

    #[test]
    fn a_pool_of_windows_machines_is_reported() {
        let pool = |os: &str| {
            json!({
                "name": os, "workerRole": true, "machineOS": os,
                "machineConfigRef": { "kind": "LocalConfig", "name": "a" },
            })
        };
        let spec =
            spec(json!({ "rkeConfig": { "machinePools": [pool("linux"), pool(""), pool("windows")] } }));
        assert_eq!(
            unimplemented_fields(&spec),
            ["spec.rkeConfig.machinePools[2].machineOS (\"windows\": machines get linux)"]
        );
    }

    #[test]
    fn empty_and_disabled_fields_are_not_reported() {
        let spec = spec(json!({
            "enableNetworkPolicy": false,
            "localClusterAuthEndpoint": { "enabled": false, "fqdn": "" },
            "rkeConfig": {
                "chartValues": {},
                "upgradeStrategy": { "workerDrainOptions": { "enabled": false, "gracePeriod": 0 } },
            },
        }));
        assert_eq!(unimplemented_fields(&spec), Vec::<String>::new());
    }

    #[test]
    fn a_zero_timeout_is_not_reported() {
        let reported = |timeout: &str| {
            let pool = json!({
                "name": "a", "workerRole": true, "unhealthyNodeTimeout": timeout,
                "machineConfigRef": { "kind": "LocalConfig", "name": "a" },
            });
            unimplemented_fields(&spec(json!({ "rkeConfig": { "machinePools": [pool] } }))).len()
        };
        for (timeout, count) in [("0s", 0), ("0", 0), ("0m0s", 0), ("", 0), ("10s", 1), ("0.5s", 1)] {
            assert_eq!(reported(timeout), count, "{timeout:?}");
        }
    }

    #[test]
    fn every_listed_path_is_a_field() {
        let crd = crate::crds().into_iter().find(|crd| crd.spec.group == "provisioning.cattle.io").unwrap();
        let schema = serde_json::to_value(&crd.spec.versions[0].schema).unwrap();
        for path in UNIMPLEMENTED {
            let mut at = &schema["openAPIV3Schema"]["properties"]["spec"];
            for segment in path.split('.') {
                at = &at["properties"][segment.trim_end_matches(['[', ']', '{', '}'])];
                at = match segment {
                    list if list.ends_with("[]") => &at["items"],
                    map if map.ends_with("{}") => &at["additionalProperties"],
                    _ => at,
                };
            }
            assert!(!at.is_null(), "{path} is not in the schema");
        }
    }

    /// Every path in a schema that ends in a value.
    fn leaves(schema: &Value, path: &str, found: &mut Vec<String>) {
        if let Some(fields) = schema["properties"].as_object() {
            for (name, field) in fields {
                leaves(field, &format!("{path}.{name}"), found);
            }
        } else if schema["items"].is_object() {
            leaves(&schema["items"], &format!("{path}[]"), found);
        } else if schema["additionalProperties"].is_object() {
            leaves(&schema["additionalProperties"], &format!("{path}{{}}"), found);
        } else {
            found.push(path.trim_start_matches('.').to_owned());
        }
    }

    #[test]
    fn every_field_is_implemented_or_listed() {
        let crd = crate::crds().into_iter().find(|crd| crd.spec.group == "provisioning.cattle.io").unwrap();
        let schema = serde_json::to_value(&crd.spec.versions[0].schema).unwrap();
        let mut found = vec![];
        leaves(&schema["openAPIV3Schema"]["properties"]["spec"], "", &mut found);
        let mut known: Vec<String> = IMPLEMENTED.split_whitespace().map(str::to_owned).collect();
        for pools in ["controlPlane", "worker"] {
            let of = |option: &str| format!("rkeConfig.upgradeStrategy.{pools}DrainOptions.{option}");
            known.extend(DRAIN.split_whitespace().map(of));
        }
        known.sort();
        found.sort();
        found.retain(|path| {
            let is_below = |rest: &str| rest.is_empty() || rest.starts_with(['.', '[', '{']);
            !UNIMPLEMENTED.iter().any(|listed| path.strip_prefix(listed).is_some_and(is_below))
        });
        assert_eq!(found, known);
    }

    /// The fields that a controller reads. A new field of the schema must be added here or to the list above.
    const IMPLEMENTED: &str = "
        agentEnvVars[].name
        agentEnvVars[].value
        cloudCredentialSecretName
        kubernetesVersion
        rkeConfig.additionalManifest
        rkeConfig.dataDirectories.k8sDistro
        rkeConfig.dataDirectories.provisioning
        rkeConfig.dataDirectories.systemAgent
        rkeConfig.machineGlobalConfig
        rkeConfig.machinePoolDefaults.hostnameLengthLimit
        rkeConfig.machinePools[].cloudCredentialSecretName
        rkeConfig.machinePools[].controlPlaneRole
        rkeConfig.machinePools[].drainBeforeDelete
        rkeConfig.machinePools[].drainBeforeDeleteTimeout
        rkeConfig.machinePools[].dynamicSchemaSpec
        rkeConfig.machinePools[].etcdRole
        rkeConfig.machinePools[].hostnameLengthLimit
        rkeConfig.machinePools[].labels{}
        rkeConfig.machinePools[].machineConfigRef.apiVersion
        rkeConfig.machinePools[].machineConfigRef.fieldPath
        rkeConfig.machinePools[].machineConfigRef.kind
        rkeConfig.machinePools[].machineConfigRef.name
        rkeConfig.machinePools[].machineConfigRef.namespace
        rkeConfig.machinePools[].machineConfigRef.resourceVersion
        rkeConfig.machinePools[].machineConfigRef.uid
        rkeConfig.machinePools[].machineDeploymentAnnotations{}
        rkeConfig.machinePools[].machineDeploymentLabels{}
        rkeConfig.machinePools[].machineOS
        rkeConfig.machinePools[].name
        rkeConfig.machinePools[].paused
        rkeConfig.machinePools[].quantity
        rkeConfig.machinePools[].rollingUpdate.maxSurge
        rkeConfig.machinePools[].rollingUpdate.maxUnavailable
        rkeConfig.machinePools[].taints[].effect
        rkeConfig.machinePools[].taints[].key
        rkeConfig.machinePools[].taints[].timeAdded
        rkeConfig.machinePools[].taints[].value
        rkeConfig.machinePools[].workerRole
        rkeConfig.machineSelectorConfig[].config
        rkeConfig.machineSelectorConfig[].machineLabelSelector.matchExpressions[].key
        rkeConfig.machineSelectorConfig[].machineLabelSelector.matchExpressions[].operator
        rkeConfig.machineSelectorConfig[].machineLabelSelector.matchExpressions[].values[]
        rkeConfig.machineSelectorConfig[].machineLabelSelector.matchLabels{}
        rkeConfig.machineSelectorFiles[].fileSources[].configMap.defaultPermissions
        rkeConfig.machineSelectorFiles[].fileSources[].configMap.items[].dynamic
        rkeConfig.machineSelectorFiles[].fileSources[].configMap.items[].hash
        rkeConfig.machineSelectorFiles[].fileSources[].configMap.items[].key
        rkeConfig.machineSelectorFiles[].fileSources[].configMap.items[].path
        rkeConfig.machineSelectorFiles[].fileSources[].configMap.items[].permissions
        rkeConfig.machineSelectorFiles[].fileSources[].configMap.name
        rkeConfig.machineSelectorFiles[].fileSources[].secret.defaultPermissions
        rkeConfig.machineSelectorFiles[].fileSources[].secret.items[].dynamic
        rkeConfig.machineSelectorFiles[].fileSources[].secret.items[].hash
        rkeConfig.machineSelectorFiles[].fileSources[].secret.items[].key
        rkeConfig.machineSelectorFiles[].fileSources[].secret.items[].path
        rkeConfig.machineSelectorFiles[].fileSources[].secret.items[].permissions
        rkeConfig.machineSelectorFiles[].fileSources[].secret.name
        rkeConfig.machineSelectorFiles[].machineLabelSelector.matchExpressions[].key
        rkeConfig.machineSelectorFiles[].machineLabelSelector.matchExpressions[].operator
        rkeConfig.machineSelectorFiles[].machineLabelSelector.matchExpressions[].values[]
        rkeConfig.machineSelectorFiles[].machineLabelSelector.matchLabels{}
        rkeConfig.provisionGeneration
        rkeConfig.registries.configs{}.insecureSkipVerify
        rkeConfig.registries.mirrors{}.endpoint[]
        rkeConfig.registries.mirrors{}.rewrite{}
        rkeConfig.upgradeStrategy.controlPlaneConcurrency
        rkeConfig.upgradeStrategy.workerConcurrency
    ";

    /// Fields below each of the two `drainOptions`.
    const DRAIN: &str = "
        deleteEmptyDirData
        disableEviction
        enabled
        force
        gracePeriod
        ignoreDaemonSets
        postDrainHooks[].annotation
        preDrainHooks[].annotation
        skipWaitForDeleteTimeoutSeconds
        timeout
    ";
}
