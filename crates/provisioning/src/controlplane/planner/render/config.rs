//! `50-rancher.yaml`: the distribution's configuration of one machine, from cluster and role.

use std::collections::{BTreeMap, BTreeSet};

use crate::keys::{annotations, labels};
use k8s_openapi::api::core::v1::Taint;
use serde_json::{Map, Value, json};

use super::super::entry::Entry;
use super::super::releases::{ArgKind, Release};
use super::super::runtime::Runtime;
use super::addresses::{Addresses, node_addresses};
use super::selector::matches;
use super::{ClusterInput, RenderError};

/// Configuration by option.
pub type Config = BTreeMap<String, Value>;

/// What a person set, filtered to what this machine's role and release understand, and the keys that were
/// left out because no machine of the cluster would know them.
pub fn user_config(input: &ClusterInput, release: &Release, entry: &Entry) -> (Config, BTreeSet<String>) {
    let spec = &input.spec.config;
    let mut config = Config::new();
    if input.runtime == Runtime::Rke2 {
        config.insert("cni".to_owned(), json!("calico"));
    }
    config.extend(spec.machine_global_config.clone());
    for selected in &spec.machine_selector_config {
        if matches(selected.machine_label_selector.as_ref(), &entry.machine.labels) {
            config.extend(selected.config.clone());
        }
    }
    let mut refused = BTreeSet::new();
    let mut filtered = Config::new();
    for (key, value) in config {
        match release.arg(&key, entry.is_server()).and_then(|kind| accept(kind, &value)) {
            Some(value) => {
                filtered.insert(key, value);
            }
            None if !release.knows(&key) || !is_acceptable(&value) => {
                refused.insert(key);
            }
            None => {}
        }
    }
    (filtered, refused)
}

/// Numbers are written as text, where the original drops them in silence; maps are refused and reported.
fn accept(kind: ArgKind, value: &Value) -> Option<Value> {
    match (kind, value) {
        (ArgKind::Boolean, Value::String(text)) => Some(Value::Bool(text.eq_ignore_ascii_case("true"))),
        (_, Value::Number(number)) => Some(Value::String(number.to_string())),
        (_, Value::Array(items)) => {
            Some(Value::Array(
                items
                    .iter()
                    .map(|item| {
                        if let Value::Number(n) = item { Value::String(n.to_string()) } else { item.clone() }
                    })
                    .collect(),
            ))
        }
        (_, Value::String(_) | Value::Bool(_)) => Some(value.clone()),
        _ => None,
    }
}

fn is_acceptable(value: &Value) -> bool {
    !matches!(value, Value::Object(_))
}

/// The whole configuration of one machine, before file parameters.
pub fn machine_config(
    input: &ClusterInput,
    release: &Release,
    entry: &Entry,
    join_url: &str,
) -> Result<(Config, BTreeSet<String>), RenderError> {
    let (mut config, refused) = user_config(input, release, entry);
    if let Some(directories) = &input.spec.config.data_directories
        && !directories.k8s_distro.is_empty()
    {
        config.insert("data-dir".to_owned(), json!(directories.k8s_distro));
    }
    add_etcd(&mut config, input, entry);
    add_roles(&mut config, input, entry, join_url);
    add_component_args(&mut config, input, entry);
    add_tokens(&mut config, input, entry);
    add_addresses(&mut config, input, entry)?;
    add_labels_and_taints(&mut config, input, entry)?;
    Ok((config, refused))
}

fn add_etcd(config: &mut Config, input: &ClusterInput, entry: &Entry) {
    let Some(etcd) = input.spec.config.etcd.as_ref().filter(|_| entry.is_etcd()) else { return };
    if etcd.disable_snapshots {
        config.insert("etcd-disable-snapshots".to_owned(), json!(true));
    }
    if etcd.snapshot_retention > 0 {
        config.insert("etcd-snapshot-retention".to_owned(), json!(etcd.snapshot_retention));
    }
    if !etcd.snapshot_schedule_cron.is_empty() {
        config.insert("etcd-snapshot-schedule-cron".to_owned(), json!(etcd.snapshot_schedule_cron));
    }
}

fn add_roles(config: &mut Config, input: &ClusterInput, entry: &Entry, join_url: &str) {
    if entry.is_init_node() {
        if input.runtime == Runtime::K3s {
            config.insert("cluster-init".to_owned(), json!(true));
        }
    } else {
        config.insert("server".to_owned(), json!(join_url));
    }
    if entry.is_only_etcd() {
        for key in ["disable-scheduler", "disable-apiserver", "disable-controller-manager"] {
            config.insert(key.to_owned(), json!(true));
        }
    }
    if entry.is_only_control_plane() {
        config.insert("disable-etcd".to_owned(), json!(true));
    }
    if entry.is_server() && !input.settings.system_default_registry.is_empty() {
        config.insert("system-default-registry".to_owned(), json!(input.settings.system_default_registry));
    }
    let node_name = entry.label(labels::NODE_NAME);
    if !node_name.is_empty() {
        config.insert("node-name".to_owned(), json!(node_name));
    }
}

/// Controller manager and scheduler serve with certificates of their own below the data directory, so that
/// the probes can verify them.
fn add_component_args(config: &mut Config, input: &ClusterInput, entry: &Entry) {
    if !entry.is_control_plane() {
        return;
    }
    for (component, port) in [("kube-controller-manager", 10257), ("kube-scheduler", 10259)] {
        let key = format!("{component}-arg");
        let mut args = string_list(config.get(&key));
        let has = |args: &[String], name: &str| args.iter().any(|arg| arg.starts_with(&format!("{name}=")));
        let directory = format!("{}/server/tls/{component}", input.data_dir);
        if !has(&args, "tls-cert-file") && !has(&args, "cert-dir") {
            args.push(format!("cert-dir={directory}"));
            if input.runtime == Runtime::Rke2 {
                config
                    .insert(format!("{component}-extra-mount"), json!([format!("{directory}:{directory}")]));
            }
        }
        if !has(&args, "secure-port") {
            args.push(format!("secure-port={port}"));
        }
        config.insert(key, json!(args));
    }
}

fn add_tokens(config: &mut Config, input: &ClusterInput, entry: &Entry) {
    if entry.is_only_worker() {
        config.insert("token".to_owned(), json!(input.tokens.agent));
    } else {
        config.insert("token".to_owned(), json!(input.tokens.server));
        config.insert("agent-token".to_owned(), json!(input.tokens.agent));
    }
}

fn add_addresses(config: &mut Config, input: &ClusterInput, entry: &Entry) -> Result<(), RenderError> {
    let mut known = Addresses {
        external: super::addresses::split(entry.annotation(annotations::ADDRESS)),
        internal: super::addresses::split(entry.annotation(annotations::INTERNAL_ADDRESS)),
        ..Addresses::default()
    };
    if entry.machine.infrastructure_group == "rke-machine.cattle.io" {
        let saved = input.machine_addresses.get(&entry.machine.infrastructure_name).ok_or_else(|| {
            RenderError::Ignore(format!(
                "waiting for machine {}/{} driver config to be saved",
                entry.machine.namespace, entry.machine.name
            ))
        })?;
        known.driver = saved.driver.clone();
        known.ipv6 = saved.ipv6.clone();
        if known.external.is_empty() {
            known.external = saved.external.clone();
        }
        if known.internal.is_empty() {
            known.internal = saved.internal.clone();
        }
    }
    let first_cidr = string_list(config.get("service-cidr")).first().cloned();
    let found = node_addresses(&known, first_cidr.as_deref());
    let node_ip = append(config, "node-ip", found.node_ip);
    let mut external = string_list(config.get("node-external-ip"));
    if !config.contains_key("cloud-provider-name") && !node_ip.is_empty() {
        external = append(config, "node-external-ip", found.external_ip);
    }
    if entry.is_server() && !external.is_empty() && external != node_ip {
        config.insert("advertise-address".to_owned(), json!(node_ip.first()));
        append(config, "tls-san", external);
    }
    Ok(())
}

fn add_labels_and_taints(
    config: &mut Config,
    input: &ClusterInput,
    entry: &Entry,
) -> Result<(), RenderError> {
    let mut node_labels = string_list(config.get("node-label"));
    let text = entry.annotation(annotations::LABELS);
    if !text.is_empty() {
        let map: BTreeMap<String, String> = serde_json::from_str(text).map_err(|error| {
            RenderError::Machine(format!(
                "annotation {} is not a map of labels: {error}",
                annotations::LABELS
            ))
        })?;
        node_labels.extend(map.into_iter().map(|(key, value)| format!("{key}={value}")));
    }
    node_labels.push(format!("{}={}", labels::MACHINE_UID, entry.machine.uid));
    node_labels.sort();
    node_labels.dedup();
    config.insert("node-label".to_owned(), json!(node_labels));

    let mut taints = string_list(config.get("node-taint"));
    let text = entry.annotation(annotations::TAINTS);
    if !text.is_empty() {
        let list: Vec<Taint> = serde_json::from_str(text).map_err(|error| {
            RenderError::Machine(format!(
                "annotation {} is not a list of taints: {error}",
                annotations::TAINTS
            ))
        })?;
        taints.extend(list.iter().map(taint_text));
    }
    if !entry.is_worker() {
        let k3s_server = input.runtime == Runtime::K3s && entry.is_control_plane();
        if entry.is_etcd() && !k3s_server {
            taints.push("node-role.kubernetes.io/etcd:NoExecute".to_owned());
        }
        if entry.is_control_plane() {
            taints.push("node-role.kubernetes.io/control-plane:NoSchedule".to_owned());
        }
    }
    taints.sort();
    taints.dedup();
    config.insert("node-taint".to_owned(), json!(taints));
    Ok(())
}

fn taint_text(taint: &Taint) -> String {
    match taint.value.as_deref() {
        None | Some("") => format!("{}:{}", taint.key, taint.effect),
        Some(value) => format!("{}={value}:{}", taint.key, taint.effect),
    }
}

fn append(config: &mut Config, key: &str, more: Vec<String>) -> Vec<String> {
    let mut list = string_list(config.get(key));
    for item in more {
        if !list.contains(&item) {
            list.push(item);
        }
    }
    if !list.is_empty() {
        config.insert(key.to_owned(), json!(list));
    }
    list
}

/// A list option may be given as one text.
pub fn string_list(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| item.as_str().map(str::to_owned).unwrap_or_else(|| item.to_string()))
            .collect(),
        Some(Value::String(text)) if !text.is_empty() => vec![text.clone()],
        _ => Vec::new(),
    }
}

/// JSON with two spaces, keys sorted, without null, "" and empty lists: what the original writes, byte for
/// byte (`<`, `>` and `&` included).
pub fn to_bytes(config: &Config, without: &[&str]) -> Vec<u8> {
    let kept: Map<String, Value> = config
        .iter()
        .filter(|(key, value)| !without.contains(&key.as_str()) && !is_empty(value))
        .map(|(key, value)| (key.clone(), crate::digest::sorted(value)))
        .collect();
    let text = serde_json::to_string_pretty(&Value::Object(kept)).unwrap_or_default();
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", character as u32))
            }
            other => out.push(other),
        }
    }
    out.into_bytes()
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}
