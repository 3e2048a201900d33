//! Actions of users besides the Cluster: deleting a Machine, and adding a custom machine.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use drover_sim_fleet::Registration;
use drover_testkit::{demo, eventually_within};
use kube::ResourceExt;

use crate::life::sized;
use crate::site::Site;

/// The command of the registration token that adds a custom machine as a worker.
pub(crate) async fn registration_command(site: &Site) -> String {
    let objects = &site.objects;
    let twin = demo::cluster(objects).await["status"]["clusterName"].as_str().unwrap().to_owned();
    let tokens = objects.list("management.cattle.io/v3", "ClusterRegistrationToken").await;
    let template = tokens[0]["status"]["insecureNodeCommand"].as_str().unwrap().to_owned();
    let secret = objects.get("v1", "Secret", &twin, "crt-token-default-token").await.unwrap();
    let token = STANDARD.decode(secret["data"]["token"].as_str().unwrap()).unwrap();
    template.replace("{token}", std::str::from_utf8(&token).unwrap()) + " --worker"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_20_a_deleted_machine_is_replaced_and_a_brought_one_joins() {
    let (site, manager) = Site::start(None).await;
    let objects = &site.objects;
    demo::make(objects).await;
    demo::ready(objects, "provisioned").await;
    let before = site.datacenter.names();

    let victim = before.iter().find(|name| name.contains("-w-")).unwrap();
    objects.delete("cluster.x-k8s.io/v1beta2", "Machine", "default", victim).await;
    eventually_within(demo::PATIENCE, || async {
        let now = site.datacenter.names();
        if now.len() == 3 && !now.contains(victim) { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
    let nodes: BTreeSet<String> = sized(&site, 3).await.iter().map(ResourceExt::name_any).collect();
    assert_eq!(nodes, site.datacenter.names());
    demo::ready(objects, "replaced").await;

    let command = registration_command(&site).await;
    site.datacenter.create("mine", "mine", Registration::from_command(&command).unwrap()).await.unwrap();
    let nodes = sized(&site, 4).await;
    assert!(nodes.iter().any(|node| node.name_any() == "mine"));
    let machine = eventually_within(demo::PATIENCE, || async {
        let machines = demo::machines(objects).await;
        let joined = machines.iter().find(|machine| machine["status"]["nodeRef"]["name"] == "mine");
        joined.cloned().ok_or(machines)
    })
    .await;
    assert!(machine["metadata"]["name"].as_str().unwrap().starts_with("custom-"), "{machine:#}");
    let labels = &machine["metadata"]["labels"];
    assert_eq!(labels["rke.cattle.io/worker-role"], "true", "{labels}");
    assert_eq!(labels["cattle.io/os"], "linux", "{labels}");
    assert!(labels["rke.cattle.io/etcd-role"].is_null(), "{labels}");
    demo::ready(objects, "joined").await;

    // The custom machine remains; everything else is deleted.
    demo::remove(objects, "removal").await;
    assert_eq!(site.datacenter.names(), BTreeSet::from(["mine".to_owned()]));
    site.close(manager).await;
}
