//! A cluster's life: created, changed in place, scaled, deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use drover_agent::host::Host as _;
use drover_testkit::{demo, eventually_within};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;

use crate::site::Site;

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn version(node: &Node) -> &str {
    &node.status.as_ref().unwrap().node_info.as_ref().unwrap().kubelet_version
}

fn uids(nodes: &[Node]) -> BTreeSet<String> {
    nodes.iter().map(|node| node.uid().unwrap()).collect()
}

/// Waits until the cluster has this many Nodes, all Ready, and the datacenter as many machines.
pub(crate) async fn sized(site: &Site, wanted: usize) -> Vec<Node> {
    eventually_within(demo::PATIENCE, || async {
        let (nodes, machines) = (site.nodes().await, site.datacenter.names());
        if nodes.len() == wanted && machines.len() == wanted && nodes.iter().all(is_ready) {
            return Ok(nodes);
        }
        let names: Vec<_> = nodes.iter().map(|node| (node.name_any(), is_ready(node))).collect();
        Err(format!("Nodes {names:?}, machines {machines:?}, wanted {wanted}"))
    })
    .await
}

/// A file of every machine, by the machine's name.
async fn everywhere(site: &Site, path: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for name in site.datacenter.names() {
        let content = site.datacenter.with(&name, async |machine| machine.host.read(Path::new(path))).await;
        found.insert(name, String::from_utf8(content.unwrap().unwrap()).unwrap());
    }
    found
}

/// Waits until this many Nodes have the label.
async fn labelled(site: &Site, key: &str, value: &str, wanted: usize) {
    eventually_within(demo::PATIENCE, || async {
        let nodes = site.nodes().await;
        let has = |node: &&Node| node.labels().get(key).is_some_and(|found| found == value);
        let found = nodes.iter().filter(has).count();
        if found == wanted { Ok(()) } else { Err(format!("{found} Nodes have {key}={value}")) }
    })
    .await;
}

/// Waits until the server has recorded the last specification, and every machine has applied its plan.
async fn applied(site: &Site) {
    const RECORD: &str =
        "/var/lib/rancher/k3s/server/manifests/rancher/k3s-etcd-snapshot-extra-metadata.yaml";
    eventually_within(demo::PATIENCE, || async {
        let plane = site.objects.get("rke.cattle.io/v1", "RKEControlPlane", "default", "demo").await.unwrap();
        let spec =
            plane["metadata"]["annotations"]["rke.cattle.io/cluster-spec"].as_str().unwrap().to_owned();
        let names = site.datacenter.names();
        let server = names.iter().find(|name| name.contains("-cp-")).unwrap();
        let record = site.datacenter.with(server, async |m| m.host.read(Path::new(RECORD))).await;
        let record = record.unwrap().unwrap_or_default();
        if !String::from_utf8(record).unwrap().contains(&spec) {
            return Err("the server has no record of the last specification".to_owned());
        }
        let secrets = site.objects.list("v1", "Secret").await;
        let plans = secrets.iter().filter(|secret| secret["type"] == "rke.cattle.io/machine-plan");
        let late: Vec<_> = plans.filter(|s| s["data"]["plan"] != s["data"]["appliedPlan"]).collect();
        if late.is_empty() { Ok(()) } else { Err(format!("{} plans are not applied", late.len())) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_1_35_a_cluster_lives_from_nothing_to_nothing() {
    let (site, manager) = Site::start(None).await;
    let objects = &site.objects;
    demo::make(objects).await;
    demo::ready(objects, "provisioned").await;
    demo::exactly_once(objects, "provisioning").await;
    let nodes = sized(&site, 3).await;
    let roles = |role: &str| {
        let label = format!("node-role.kubernetes.io/{role}");
        nodes.iter().filter(|node| node.labels().contains_key(&label)).count()
    };
    assert_eq!((roles("control-plane"), roles("etcd")), (1, 1));
    assert!(nodes.iter().all(|node| version(node) == "v1.34.1+k3s1"));
    assert_eq!(nodes.iter().filter(|node| node.labels().get("tier").is_some_and(|t| t == "gold")).count(), 2);
    let addresses: BTreeSet<String> = nodes
        .iter()
        .flat_map(|node| node.status.as_ref()?.addresses.as_ref())
        .flatten()
        .map(|a| a.address.clone())
        .collect();
    for name in site.datacenter.names() {
        let address = site.datacenter.with(&name, async |machine| machine.address.to_string()).await.unwrap();
        assert!(addresses.contains(&address), "{address} of {name} is not in {addresses:?}");
    }

    // Its owner uses it through proxy and tunnel.
    let maps: Api<ConfigMap> = Api::namespaced(site.downstream().await, "default");
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "mine"}})).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();

    // Changes in place: the version, then the configuration. No machine, Machine or Node is replaced.
    let (machines, hosts) = (demo::machine_uids(objects).await, site.datacenter.names());
    demo::merge(objects, json!({"spec": {"kubernetesVersion": "v1.34.2+k3s1"}})).await;
    demo::ready(objects, "upgraded").await;
    let upgraded = sized(&site, 3).await;
    assert!(upgraded.iter().all(|node| version(node) == "v1.34.2+k3s1"));
    let stamps = everywhere(&site, "/var/lib/rancher/k3s/restart_stamp").await;
    let config = json!({"machineGlobalConfig": {"kubelet-arg": ["max-pods=42"]}});
    demo::merge(objects, json!({"spec": {"rkeConfig": config}})).await;
    demo::ready(objects, "reconfigured").await;
    let configured = everywhere(&site, "/etc/rancher/k3s/config.yaml.d/50-rancher.yaml").await;
    assert!(configured.values().all(|text| text.contains("max-pods=42")), "{configured:#?}");
    let restarted = everywhere(&site, "/var/lib/rancher/k3s/restart_stamp").await;
    assert!(stamps.iter().all(|(name, stamp)| restarted[name] != *stamp), "{stamps:?} {restarted:?}");

    // Labels and taints of a pool are copied to its Nodes without a restart.
    demo::edit_pools(objects, |pools| {
        pools[1]["labels"] = json!({"tier": "silver"});
        pools[1]["taints"] = json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]);
    })
    .await;
    labelled(&site, "tier", "silver", 2).await;
    eventually_within(demo::PATIENCE, || async {
        let tainted =
            |node: &&Node| node.spec.iter().flat_map(|s| s.taints.iter().flatten()).any(|t| t.key == "k");
        let found = site.nodes().await.iter().filter(tainted).count();
        if found == 2 { Ok(()) } else { Err(format!("{found} follow")) }
    })
    .await;
    demo::ready(objects, "relabelled").await;
    // The same for servers, repeatedly: a label must not be the reason for a restart at the next change.
    for pin in ["one", "two", "three"] {
        demo::edit_pools(objects, |pools| pools[0]["labels"] = json!({ "pin": pin })).await;
        labelled(&site, "pin", pin, 1).await;
        demo::ready(objects, pin).await;
    }
    demo::edit_pools(objects, |pools| pools[1]["labels"] = json!({"tier": "tin"})).await;
    labelled(&site, "tier", "tin", 2).await;
    demo::ready(objects, "edited once more").await;
    applied(&site).await;
    assert_eq!(everywhere(&site, "/var/lib/rancher/k3s/restart_stamp").await, restarted);
    assert_eq!(demo::machine_uids(objects).await, machines);
    assert_eq!(site.datacenter.names(), hosts);
    assert_eq!(uids(&sized(&site, 3).await), uids(&nodes));
    maps.delete("mine", &DeleteParams::default()).await.unwrap();

    // Scaling up and down. The server remains.
    for quantity in [4, 1] {
        demo::edit_pools(objects, |pools| pools[1]["quantity"] = json!(quantity)).await;
        sized(&site, 1 + quantity).await;
        demo::ready(objects, "scaled").await;
    }
    let server = |names: &BTreeSet<String>| names.iter().find(|name| name.contains("-cp-")).cloned();
    assert_eq!(server(&site.datacenter.names()), server(&hosts));

    demo::remove(objects, "removal").await;
    assert_eq!(site.datacenter.names(), BTreeSet::new());
    site.close(manager).await;
}
