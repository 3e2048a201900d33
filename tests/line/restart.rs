//! Conditions of clusters while the management plane is restarted: they stay as they were, unless a cluster is lost.

use std::collections::BTreeMap;
use std::time::Duration;

use drover_server::RETURN_LIMIT;
use drover_testkit::objects::condition;
use drover_testkit::{demo, eventually_within};
use serde_json::Value;

use crate::life::sized;
use crate::site::Site;
use crate::story::silence;

const TWIN: (&str, &str) = ("management.cattle.io/v3", "Cluster");
/// Objects with conditions that depend on the cluster's responses.
const KINDS: [(&str, &str); 7] = [
    ("provisioning.cattle.io/v1", "Cluster"),
    ("rke.cattle.io/v1", "RKEControlPlane"),
    ("cluster.x-k8s.io/v1beta2", "Cluster"),
    ("cluster.x-k8s.io/v1beta2", "MachineDeployment"),
    ("cluster.x-k8s.io/v1beta2", "MachineSet"),
    ("cluster.x-k8s.io/v1beta2", "Machine"),
    TWIN,
];

/// What each object says, and how often it was written.
async fn told(site: &Site) -> BTreeMap<String, (Value, Value)> {
    let mut told = BTreeMap::new();
    for (api_version, kind) in KINDS {
        for object in site.objects.list(api_version, kind).await {
            let name = format!("{api_version} {kind} {}", object["metadata"]["name"]);
            let says =
                (object["metadata"]["resourceVersion"].clone(), object["status"]["conditions"].clone());
            told.insert(name, says);
        }
    }
    told
}

async fn connected(site: &Site) -> String {
    let twin =
        site.objects.list(TWIN.0, TWIN.1).await.into_iter().find(|twin| twin["spec"]["internal"] != true);
    condition(&twin.unwrap(), "Connected").0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_management_plane_is_no_news_of_a_cluster_unless_that_stays_away() {
    let (site, manager) = Site::start(None).await;
    demo::make(&site.objects).await;
    demo::ready(&site.objects, "before the restart").await;
    sized(&site, 3).await;
    silence(&site.objects).await;
    let before = told(&site).await;
    assert!(before.len() >= 9, "{before:#?}");

    manager.kill().await;
    let manager = site.patient_manager(None, RETURN_LIMIT).await;
    sized(&site, 3).await;
    silence(&site.objects).await;
    let after = told(&site).await;
    for (name, says) in &before {
        assert_eq!(Some(says), after.get(name), "{name}");
    }

    // A loss that this server has seen is reported at once.
    let name = site.datacenter.names().into_iter().find(|name| name.contains("-cp-")).unwrap();
    site.datacenter.with(&name, async |machine| machine.power_off().await).await;
    lost(&site).await;
    site.datacenter.with(&name, async |machine| machine.power_on().await).await;
    demo::ready(&site.objects, "after a power cut").await;
    silence(&site.objects).await;

    // A cluster that does not reconnect is reported after the time limit by all dependent objects.
    manager.kill().await;
    site.datacenter.with(&name, async |machine| machine.power_off().await).await;
    let manager = site.patient_manager(None, Duration::from_secs(3)).await;
    assert_eq!(connected(&site).await, "True", "it may reconnect");
    lost(&site).await;
    site.close(manager).await;
}

/// Waits until the cluster is not connected, and its Machines are unknown.
async fn lost(site: &Site) {
    eventually_within(demo::PATIENCE, || async {
        let (connected, machines) = (connected(site).await, demo::machines(&site.objects).await);
        let ready: Vec<_> = machines.iter().map(|machine| condition(machine, "NodeHealthy").0).collect();
        let cluster = condition(&demo::cluster(&site.objects).await, "Ready").0;
        let told = connected == "False" && ready.iter().all(|ready| ready == "Unknown") && cluster != "True";
        if told { Ok(()) } else { Err(format!("Connected {connected}, Nodes {ready:?}, Ready {cluster}")) }
    })
    .await;
}
