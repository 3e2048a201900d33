//! Which versions exist, and which options each knows. The planner refuses what it finds no data for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How an option's value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgKind {
    Text,
    Boolean,
    List,
}

/// The options of one version.
#[derive(Clone, Debug, Default)]
pub struct Release {
    pub server_args: BTreeMap<String, ArgKind>,
    pub agent_args: BTreeMap<String, ArgKind>,
}

impl Release {
    /// The kind of an option on a node with or without server roles; none if that node does not know it.
    pub fn arg(&self, name: &str, server: bool) -> Option<ArgKind> {
        let agent = self.agent_args.get(name);
        if server { self.server_args.get(name).or(agent).copied() } else { agent.copied() }
    }

    /// Whether any node of the cluster knows the option.
    pub fn knows(&self, name: &str) -> bool {
        self.server_args.contains_key(name) || self.agent_args.contains_key(name)
    }
}

/// Release data by full version (`v1.34.1+k3s1`). Tables may be added beside the built-in one.
#[derive(Clone, Debug)]
pub struct Releases {
    by_version: BTreeMap<String, Arc<Release>>,
}

impl Releases {
    pub fn empty() -> Self {
        Self { by_version: BTreeMap::new() }
    }

    /// The versions that the simulated K3s implements.
    pub fn builtin() -> Self {
        let mut releases = Self::empty();
        let k3s = Arc::new(k3s());
        for version in ["v1.34.1+k3s1", "v1.34.2+k3s1", "v1.35.0+k3s1"] {
            releases.by_version.insert(version.to_owned(), k3s.clone());
        }
        releases
    }

    pub fn insert(&mut self, version: &str, release: Release) {
        self.by_version.insert(version.to_owned(), Arc::new(release));
    }

    pub fn get(&self, version: &str) -> Option<&Release> {
        let version = if version.starts_with('v') { version.to_owned() } else { format!("v{version}") };
        self.by_version.get(&version).map(Arc::as_ref)
    }

    pub fn versions(&self) -> BTreeSet<&str> {
        self.by_version.keys().map(String::as_str).collect()
    }
}

impl Default for Releases {
    fn default() -> Self {
        Self::builtin()
    }
}

fn k3s() -> Release {
    let agent = [
        (ArgKind::Text, K3S_AGENT_TEXT),
        (ArgKind::Boolean, K3S_AGENT_BOOLEAN),
        (ArgKind::List, K3S_AGENT_LIST),
    ];
    let server = [
        (ArgKind::Text, K3S_SERVER_TEXT),
        (ArgKind::Boolean, K3S_SERVER_BOOLEAN),
        (ArgKind::List, K3S_SERVER_LIST),
    ];
    let collect = |groups: [(ArgKind, &[&str]); 3]| {
        groups
            .into_iter()
            .flat_map(|(kind, names)| names.iter().map(move |name| (name.to_string(), kind)))
            .collect()
    };
    Release { server_args: collect(server), agent_args: collect(agent) }
}

const K3S_AGENT_TEXT: &[&str] = &[
    "container-runtime-endpoint",
    "debug",
    "flannel-conf",
    "flannel-iface",
    "image-service-endpoint",
    "lb-server-port",
    "log",
    "pause-image",
    "private-registry",
    "resolv-conf",
    "snapshotter",
    "v",
    "vmodule",
    "with-node-id",
    "node-name",
    "system-default-registry",
    "airgap-extra-registry",
];
const K3S_AGENT_BOOLEAN: &[&str] = &[
    "bind-address-internal",
    "disable-apiserver-lb",
    "docker",
    "enable-pprof",
    "nonroot-devices",
    "prefer-bundled-bin",
    "protect-kernel-defaults",
    "rootless",
    "selinux",
];
const K3S_AGENT_LIST: &[&str] =
    &["kube-proxy-arg", "kubelet-arg", "node-external-ip", "node-ip", "node-label", "node-taint"];

const K3S_SERVER_TEXT: &[&str] = &[
    "advertise-address",
    "advertise-port",
    "agent-token",
    "audit-policy-file",
    "bind-address",
    "cloud-provider-config",
    "cluster-dns",
    "cluster-domain",
    "datastore-cafile",
    "datastore-certfile",
    "datastore-endpoint",
    "datastore-keyfile",
    "default-local-storage-path",
    "egress-selector-mode",
    "etcd-s3-access-key",
    "etcd-s3-bucket",
    "etcd-s3-endpoint",
    "etcd-s3-endpoint-ca",
    "etcd-s3-folder",
    "etcd-s3-region",
    "etcd-s3-retention",
    "etcd-s3-secret-key",
    "etcd-snapshot-dir",
    "etcd-snapshot-name",
    "etcd-snapshot-retention",
    "etcd-snapshot-schedule-cron",
    "flannel-backend",
    "flannel-conf",
    "helm-job-image",
    "https-listen-port",
    "kine-tls",
    "kube-apiserver-image",
    "log",
    "secrets-encryption-provider",
    "service-node-port-range",
    "servicelb-namespace",
    "snapshotter",
    "system-default-registry",
    "v",
    "vpn-auth",
    "vpn-auth-file",
    "write-kubeconfig",
    "write-kubeconfig-group",
    "write-kubeconfig-mode",
];
const K3S_SERVER_BOOLEAN: &[&str] = &[
    "cluster-init",
    "debug",
    "disable-cloud-controller",
    "disable-helm-controller",
    "disable-kube-proxy",
    "disable-network-policy",
    "disable-scheduler",
    "docker",
    "embedded-registry",
    "enable-pprof",
    "etcd-disable-snapshots",
    "etcd-expose-metrics",
    "etcd-s3",
    "etcd-s3-insecure",
    "etcd-s3-skip-ssl-verify",
    "etcd-snapshot-compress",
    "flannel-external-ip",
    "flannel-ipv6-masq",
    "multi-cluster-cidr",
    "prefer-bundled-bin",
    "protect-kernel-defaults",
    "rootless",
    "secrets-encryption",
    "selinux",
    "supervisor-metrics",
    "tls-san-security",
];
const K3S_SERVER_LIST: &[&str] = &[
    "cluster-cidr",
    "disable",
    "etcd-arg",
    "kube-apiserver-arg",
    "kube-cloud-controller-manager-arg",
    "kube-controller-manager-arg",
    "kube-scheduler-arg",
    "service-cidr",
    "tls-san",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_versions_have_no_data() {
        let releases = Releases::builtin();
        assert!(releases.get("v1.34.1+k3s1").is_some());
        assert!(releases.get("1.34.1+k3s1").is_some());
        assert!(releases.get("v1.99.0+k3s1").is_none());
    }

    #[test]
    fn workers_know_only_agent_options() {
        let releases = Releases::builtin();
        let release = releases.get("v1.35.0+k3s1").unwrap();
        assert_eq!(release.arg("disable", true), Some(ArgKind::List));
        assert_eq!(release.arg("disable", false), None);
        assert_eq!(release.arg("kubelet-arg", false), Some(ArgKind::List));
        assert!(release.knows("disable") && !release.knows("disabel"));
    }
}
