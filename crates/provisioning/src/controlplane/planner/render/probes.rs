//! Health questions that the agent asks on its machine.

use std::collections::BTreeMap;

use drover_plan::{HttpGetAction, Probe};

use super::super::entry::Entry;
use super::super::runtime::Runtime;
use super::ClusterInput;
use super::config::{Config, string_list};

/// The probes of one machine, by name.
pub fn probes(input: &ClusterInput, entry: &Entry, config: &Config) -> BTreeMap<String, Probe> {
    let host = loopback(input);
    let tls = format!("{}/server/tls", input.data_dir);
    let mut probes = BTreeMap::new();
    let mut add = |name: &str, get: HttpGetAction| {
        probes.insert(
            name.to_owned(),
            Probe {
                initial_delay_seconds: 1,
                timeout_seconds: 5,
                success_threshold: 1,
                failure_threshold: 5,
                http_get: get,
            },
        );
    };
    let plain = |url: String| HttpGetAction { url, ..HttpGetAction::default() };
    if entry.is_etcd() && input.runtime == Runtime::Rke2 {
        add("etcd", plain(format!("http://{host}:2381/health")));
    }
    if entry.is_control_plane() {
        add(
            "kube-apiserver",
            HttpGetAction {
                url: format!("https://{host}:6443/readyz"),
                ca_cert: format!("{tls}/server-ca.crt"),
                client_cert: format!("{tls}/client-kube-apiserver.crt"),
                client_key: format!("{tls}/client-kube-apiserver.key"),
                insecure: false,
            },
        );
        for component in ["kube-controller-manager", "kube-scheduler"] {
            let args = string_list(config.get(&format!("{component}-arg")));
            let value = |name: &str| {
                args.iter().rev().find_map(|arg| arg.strip_prefix(&format!("{name}=")).map(str::to_owned))
            };
            let port = value("secure-port").unwrap_or_default();
            let ca_cert = value("tls-cert-file").unwrap_or_else(|| {
                format!("{}/{component}.crt", value("cert-dir").unwrap_or_else(|| tls.clone()))
            });
            let url = format!("https://{host}:{port}/healthz");
            add(component, HttpGetAction { url, ca_cert, ..HttpGetAction::default() });
        }
    }
    if !(input.runtime == Runtime::K3s && entry.is_only_etcd()) {
        add("kubelet", plain(format!("http://{host}:10248/healthz")));
    }
    let cni =
        input.spec.config.machine_global_config.get("cni").and_then(|cni| cni.as_str()).unwrap_or_default();
    if input.runtime == Runtime::Rke2
        && !entry.is_only_etcd()
        && !entry.is_windows()
        && ["", "calico", "calico+multus"].contains(&cni)
    {
        add("calico", plain(format!("http://{host}:9099/liveness")));
    }
    probes
}

fn loopback(input: &ClusterInput) -> &'static str {
    match input.spec.config.networking.as_ref().map(|networking| networking.stack_preference.as_str()) {
        Some("ipv4") => "127.0.0.1",
        Some("ipv6") => "[::1]",
        _ => "localhost",
    }
}
