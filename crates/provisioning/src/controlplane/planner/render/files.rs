//! The files of a plan. Their order matters: the restart stamp is taken over it.

use drover_plan::File;
use serde_json::{Value, json};

use super::super::entry::Entry;
use super::super::runtime::Runtime;
use super::config::{Config, to_bytes};
use super::{ClusterInput, RenderError, selector_files};
use base64::prelude::{BASE64_STANDARD, Engine as _};

/// Options whose value may be the content of a file.
const FILE_PARAMS: [&str; 3] = ["audit-policy-file", "cloud-provider-config", "flannel-conf"];

/// All files of one machine. Replaces inline file contents in `config` by the paths they are written to.
pub fn files(input: &ClusterInput, entry: &Entry, config: &mut Config) -> Result<Vec<File>, RenderError> {
    let mut files = registries(input, config);
    files.extend(file_params(input, config));
    let selected = selector_files::files(&input.spec, &input.file_objects, entry);
    files.extend(selected.map_err(RenderError::Machine)?);
    files.push(File {
        content: BASE64_STANDARD.encode(to_bytes(config, &[])),
        path: input.runtime.config_file(),
        ..File::default()
    });
    files.extend(manifests(input, entry));
    files.push(File {
        content: BASE64_STANDARD.encode(super::instructions::IDEMPOTENT_SCRIPT),
        path: format!("{}/idempotence/idempotent.sh", provisioning_dir(input)),
        dynamic: true,
        minor: true,
        ..File::default()
    });
    Ok(files)
}

/// Where one-shot actions remember that they ran.
pub fn provisioning_dir(input: &ClusterInput) -> String {
    match &input.spec.config.data_directories {
        Some(directories) if !directories.provisioning.is_empty() => directories.provisioning.clone(),
        _ => "/var/lib/rancher/capr".to_owned(),
    }
}

/// Mirrors and their certificates' verification; private credentials come with registry support.
fn registries(input: &ClusterInput, config: &mut Config) -> Vec<File> {
    let path = format!("/etc/rancher/{}/registries.yaml", input.runtime.name());
    let spec = input.spec.config.registries.as_ref();
    let content = match spec {
        None => json!({}),
        Some(registries) => {
            let configs: serde_json::Map<String, Value> = registries
                .configs
                .iter()
                .map(|(host, config)| {
                    let tls = json!({"insecure_skip_verify": config.insecure_skip_verify});
                    (host.clone(), json!({ "tls": tls }))
                })
                .collect();
            json!({"mirrors": registries.mirrors, "configs": configs})
        }
    };
    let bytes = serde_json::to_vec_pretty(&crate::digest::sorted(&content)).unwrap_or_default();
    config.insert("private-registry".to_owned(), json!(path));
    let mut files = Vec::new();
    if spec.is_some() {
        files.push(File {
            content: BASE64_STANDARD.encode(&bytes),
            path: "/etc/rancher/agent/registries.yaml".to_owned(),
            dynamic: true,
            ..File::default()
        });
    }
    files.push(File { content: BASE64_STANDARD.encode(&bytes), path, ..File::default() });
    files
}

fn file_params(input: &ClusterInput, config: &mut Config) -> Vec<File> {
    let mut files = Vec::new();
    for key in FILE_PARAMS {
        let Some(Value::String(content)) = config.get(key) else { continue };
        if content.is_empty() {
            continue;
        }
        let path = format!("{}/etc/config-files/{key}", input.data_dir);
        files.push(File { content: BASE64_STANDARD.encode(content), path: path.clone(), ..File::default() });
        config.insert(key.to_owned(), json!(path));
    }
    files
}

fn manifests(input: &ClusterInput, entry: &Entry) -> Vec<File> {
    let directory = format!("{}/server/manifests/rancher", input.data_dir);
    let mut files = Vec::new();
    if entry.is_control_plane() {
        files.push(File {
            content: BASE64_STANDARD.encode(&input.cluster_agent_manifest),
            path: format!("{directory}/cluster-agent.yaml"),
            dynamic: true,
            minor: true,
            ..File::default()
        });
        files.push(File {
            content: BASE64_STANDARD.encode(snapshot_metadata(input)),
            path: format!("{directory}/{}-etcd-snapshot-extra-metadata.yaml", input.runtime.name()),
            dynamic: true,
            minor: true,
            ..File::default()
        });
        files.push(File {
            content: BASE64_STANDARD.encode(&input.spec.config.additional_manifest),
            path: format!("{directory}/addons.yaml"),
            dynamic: true,
            ..File::default()
        });
    }
    if entry.is_server() && !input.spec.config.chart_values.is_empty() {
        files.push(File {
            content: BASE64_STANDARD.encode(chart_config(input)),
            path: format!("{directory}/managed-chart-config.yaml"),
            dynamic: true,
            ..File::default()
        });
    }
    files
}

fn snapshot_metadata(input: &ClusterInput) -> Vec<u8> {
    let name = format!("{}-etcd-snapshot-extra-metadata", input.runtime.name());
    json_document(&json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "kube-system"},
        "data": {"provisioning-cluster-spec": input.cluster_spec_annotation},
    }))
}

fn chart_config(input: &ClusterInput) -> Vec<u8> {
    let mut out = Vec::new();
    for (chart, values) in &input.spec.config.chart_values {
        let mut values = values.clone();
        if let Value::Object(map) = &mut values {
            let global = map.entry("global").or_insert_with(|| json!({}));
            if let Value::Object(global) = global
                && let Value::Object(cattle) = global.entry("cattle").or_insert_with(|| json!({}))
            {
                cattle.insert("clusterId".to_owned(), json!(input.spec.management_cluster_name));
            }
        }
        let content = String::from_utf8_lossy(&crate::digest::go_json(&values)).into_owned();
        let namespace = "kube-system";
        out.extend_from_slice(b"---\n");
        out.extend(json_document(&json!({
            "apiVersion": "helm.cattle.io/v1",
            "kind": "HelmChartConfig",
            "metadata": {"name": chart, "namespace": namespace},
            "spec": {"valuesContent": content},
        })));
    }
    out
}

/// JSON is YAML; one line per document keeps the bytes simple to compare.
fn json_document(value: &Value) -> Vec<u8> {
    let mut bytes = crate::digest::go_json(value);
    bytes.push(b'\n');
    bytes
}

/// The unit that a failing plan's log is found in.
pub fn unit(runtime: Runtime, entry: &Entry) -> &'static str {
    runtime.unit(entry.is_server())
}
