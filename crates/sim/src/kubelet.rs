//! The tasks of every node: register its Node, keep it up to date, and send heartbeats.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{
    Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::config::{Config, Role};
use crate::paths::Paths;

/// The interval of renewing the lease, as in a kubelet.
const HEARTBEAT: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);
/// Records which labels came from the configuration, so that labels removed from it are removed from the Node.
const CONFIGURED_LABELS: &str = "k3s.io/node-config-labels";

/// The properties of a node.
#[derive(Clone, Debug)]
pub struct Identity {
    pub name: String,
    pub role: Role,
    pub version: String,
    pub addresses: Vec<NodeAddress>,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub system: NodeSystemInfo,
}

impl Identity {
    /// Reads them from the configuration and the host. `address` is the address of the node.
    pub fn new(
        config: &Config,
        role: Role,
        version: &str,
        hostname: &str,
        address: IpAddr,
        paths: &Paths,
    ) -> Result<Self, Error> {
        let name = config.text("node-name").unwrap_or_else(|| hostname.to_owned()).to_lowercase();
        let mut labels: BTreeMap<String, String> = [
            ("beta.kubernetes.io/arch", arch()),
            ("beta.kubernetes.io/instance-type", "k3s"),
            ("beta.kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", arch()),
            ("kubernetes.io/hostname", name.as_str()),
            ("kubernetes.io/os", "linux"),
            ("node.kubernetes.io/instance-type", "k3s"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        if role == Role::Server {
            let etcd = config.flag("cluster-init") || config.text("server").is_some();
            let with_etcd = etcd && !config.flag("disable-etcd");
            let roles = [(!config.flag("disable-apiserver"), "control-plane"), (with_etcd, "etcd")];
            for (_, role) in roles.iter().filter(|(has, _)| *has) {
                labels.insert(format!("node-role.kubernetes.io/{role}"), "true".into());
            }
        }
        for label in config.list("node-label") {
            let (key, value) = label.split_once('=').unwrap_or((&label, ""));
            labels.insert(key.to_owned(), value.to_owned());
        }
        let taints =
            config.list("node-taint").iter().map(|taint| parse_taint(taint)).collect::<Result<_, _>>()?;
        let mut addresses = vec![];
        let internal = config.list("node-ip");
        let internal = if internal.is_empty() { vec![address.to_string()] } else { split_lists(&internal) };
        for (type_, list) in
            [("InternalIP", internal), ("ExternalIP", split_lists(&config.list("node-external-ip")))]
        {
            addresses.extend(list.into_iter().map(|address| NodeAddress { type_: type_.into(), address }));
        }
        addresses.push(NodeAddress { type_: "Hostname".into(), address: name.clone() });
        let system = system_info(version, paths);
        Ok(Self { name, role, version: version.to_owned(), addresses, labels, taints, system })
    }

    pub fn provider_id(&self) -> String {
        format!("k3s://{}", self.name)
    }
}

fn split_lists(values: &[String]) -> Vec<String> {
    values
        .iter()
        .flat_map(|v| v.split(','))
        .map(str::trim)
        .filter(|v| !v.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Parses `key[=value]:effect`.
fn parse_taint(text: &str) -> Result<Taint, Error> {
    let bad = || Error::Invalid(format!("invalid node-taint {text:?}: expected key[=value]:effect"));
    let (rest, effect) = text.rsplit_once(':').ok_or_else(bad)?;
    if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        return Err(bad());
    }
    let (key, value) = rest.split_once('=').map_or((rest, None), |(key, value)| (key, Some(value)));
    Ok(Taint {
        key: key.to_owned(),
        value: value.filter(|v| !v.is_empty()).map(str::to_owned),
        effect: effect.to_owned(),
        time_added: None,
    })
}

fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn system_info(version: &str, paths: &Paths) -> NodeSystemInfo {
    let uname = nix::sys::utsname::uname().ok();
    let kernel = uname.map(|u| u.release().to_string_lossy().into_owned()).unwrap_or_default();
    let os_release = std::fs::read_to_string(paths.os_release()).unwrap_or_default();
    let pretty = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let machine_id = std::fs::read_to_string(paths.at("etc/machine-id")).unwrap_or_default();
    NodeSystemInfo {
        architecture: arch().into(),
        operating_system: "linux".into(),
        kernel_version: kernel,
        kubelet_version: version.into(),
        kube_proxy_version: version.into(),
        container_runtime_version: format!("sim://{}", env!("CARGO_PKG_VERSION")),
        os_image: pretty.map(|name| name.trim_matches('"').to_owned()).unwrap_or_else(|| "Linux".into()),
        machine_id: machine_id.trim().to_owned(),
        ..NodeSystemInfo::default()
    }
}

/// Registers the Node once, and sends heartbeats until `stop` is cancelled. As with a kubelet, a deleted Node is not
/// registered again until the distribution is restarted. Otherwise a running machine could not be removed from its
/// cluster.
pub async fn run(client: Client, identity: Identity, stop: CancellationToken) {
    let ended = stop.cancelled_owned();
    let work = async move {
        loop {
            match register(client.clone(), identity.clone()).await {
                Ok(()) => break,
                Err(error) => tracing::warn!(error = %chain(&error), "failed to register the Node"),
            }
            tokio::time::sleep(RETRY).await;
        }
        tracing::info!(node = identity.name, "Node registered");
        loop {
            let beat = heartbeat(client.clone(), identity.name.clone()).await;
            if let Err(error) = beat {
                tracing::warn!(error = %chain(&error), "failed to write a heartbeat");
                tokio::time::sleep(RETRY).await;
            } else {
                tokio::time::sleep(HEARTBEAT).await;
            }
            if matches!(Api::<Node>::all(client.clone()).get_metadata_opt(&identity.name).await, Ok(None)) {
                tracing::warn!(
                    node = identity.name,
                    "Node not found; it is registered again after a restart"
                );
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = ended => {}
    }
}

fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// Creates or updates the Node, then reports it Ready.
async fn register(client: Client, identity: Identity) -> Result<(), Error> {
    let identity = &identity;
    let nodes: Api<Node> = Api::all(client.clone());
    let configured = serde_json::to_string(&identity.labels.keys().collect::<Vec<_>>()).unwrap_or_default();
    match nodes.get_opt(&identity.name).await.map_err(failed("read the Node"))? {
        None => {
            let node = Node {
                metadata: ObjectMeta {
                    name: Some(identity.name.clone()),
                    labels: Some(identity.labels.clone()),
                    annotations: Some([(CONFIGURED_LABELS.to_owned(), configured)].into()),
                    ..ObjectMeta::default()
                },
                spec: Some(NodeSpec {
                    provider_id: Some(identity.provider_id()),
                    taints: (!identity.taints.is_empty()).then(|| identity.taints.clone()),
                    ..NodeSpec::default()
                }),
                ..Node::default()
            };
            nodes.create(&PostParams::default(), &node).await.map_err(failed("create the Node"))?;
        }
        Some(node) => {
            let patch = label_patch(&node, identity, &configured);
            nodes
                .patch(&identity.name, &PatchParams::default(), &Patch::Merge(patch))
                .await
                .map_err(failed("update the Node"))?;
        }
    }
    let status = json!({"status": status_of(identity, Timestamp::now())});
    nodes
        .patch_status(&identity.name, &PatchParams::default(), &Patch::Strategic(status))
        .await
        .map_err(failed("update the Node's status"))?;
    Ok(())
}

fn failed(what: &'static str) -> impl FnOnce(kube::Error) -> Error {
    move |source| Error::Kube { what, source }
}

/// Removes labels that were removed from the configuration. Labels and taints of other writers are kept.
fn label_patch(node: &Node, identity: &Identity, configured: &str) -> serde_json::Value {
    let mut labels: serde_json::Map<_, _> =
        identity.labels.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    let before = node.annotations().get(CONFIGURED_LABELS);
    let before: Vec<String> = before.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    for gone in before.into_iter().filter(|key| !identity.labels.contains_key(key)) {
        labels.insert(gone, serde_json::Value::Null);
    }
    json!({"metadata": {"labels": labels, "annotations": {CONFIGURED_LABELS: configured}}})
}

fn status_of(identity: &Identity, now: Timestamp) -> NodeStatus {
    let now = Time(drover_runtime::conditions::whole_seconds(now));
    let condition = |type_: &str, status: &str, reason: &str, message: &str| NodeCondition {
        type_: type_.into(),
        status: status.into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_heartbeat_time: Some(now.clone()),
        last_transition_time: Some(now.clone()),
    };
    let sizes: BTreeMap<String, Quantity> =
        [("cpu", "2"), ("memory", "4Gi"), ("pods", "110"), ("ephemeral-storage", "20Gi")]
            .map(|(key, value)| (key.to_owned(), Quantity(value.into())))
            .into();
    NodeStatus {
        addresses: Some(identity.addresses.clone()),
        node_info: Some(identity.system.clone()),
        capacity: Some(sizes.clone()),
        allocatable: Some(sizes),
        conditions: Some(vec![
            condition(
                "MemoryPressure",
                "False",
                "KubeletHasSufficientMemory",
                "kubelet has sufficient memory available",
            ),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            condition(
                "PIDPressure",
                "False",
                "KubeletHasSufficientPID",
                "kubelet has sufficient PID available",
            ),
            condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        ]),
        ..NodeStatus::default()
    }
}

async fn heartbeat(client: Client, node: String) -> Result<(), Error> {
    let node = node.as_str();
    const DOING: &str = "renew the node's Lease";
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let now = MicroTime(Timestamp::now());
    let renew = json!({"spec": {"renewTime": now}});
    match leases.patch(node, &PatchParams::default(), &Patch::Merge(renew)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => {
            let lease = Lease {
                metadata: ObjectMeta { name: Some(node.into()), ..ObjectMeta::default() },
                spec: Some(LeaseSpec {
                    holder_identity: Some(node.into()),
                    lease_duration_seconds: Some(40),
                    renew_time: Some(now),
                    ..LeaseSpec::default()
                }),
            };
            leases.create(&PostParams::default(), &lease).await.map(|_| ()).map_err(failed(DOING))
        }
        Err(source) => Err(failed(DOING)(source)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_are_parsed_and_errors_name_invalid_ones() {
        let taint = parse_taint("dedicated=gpu:NoSchedule").unwrap();
        assert_eq!(
            (taint.key.as_str(), taint.value.as_deref(), taint.effect.as_str()),
            ("dedicated", Some("gpu"), "NoSchedule")
        );
        assert_eq!(parse_taint("node-role.kubernetes.io/etcd:NoExecute").unwrap().value, None);
        for bad in ["dedicated", "dedicated=gpu:Never"] {
            assert!(parse_taint(bad).unwrap_err().to_string().contains(bad));
        }
    }

    #[test]
    fn labels_removed_from_the_configuration_are_removed_and_others_are_kept() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path(), "/var/lib/rancher/k3s");
        let identity = |labels: &[&str]| {
            let flags: Vec<_> = labels.iter().map(|label| format!("--node-label={label}")).collect();
            let config = Config::load(root.path(), &flags).unwrap();
            Identity::new(&config, Role::Agent, "v1.34.1+k3s1", "Host", "10.0.0.1".parse().unwrap(), &paths)
                .unwrap()
        };
        let before = identity(&["a=1", "b=2"]);
        assert_eq!(before.name, "host");
        let mut node = Node::default();
        let configured = serde_json::to_string(&before.labels.keys().collect::<Vec<_>>()).unwrap();
        node.metadata.annotations = Some([(CONFIGURED_LABELS.to_owned(), configured)].into());
        node.metadata.labels = Some([("foreign".to_owned(), "x".to_owned())].into());
        let patch = label_patch(&node, &identity(&["a=3"]), "[]");
        assert_eq!(patch["metadata"]["labels"]["a"], "3");
        assert!(patch["metadata"]["labels"]["b"].is_null());
        assert!(patch["metadata"]["labels"].get("foreign").is_none());
    }
}
