//! What users see: events as in `kubectl describe`, columns as in `kubectl get`, and no writes in steady state.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use drover_sim_fleet::Registration;
use drover_testkit::objects::{Objects, condition};
use drover_testkit::{demo, eventually_within};
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

use crate::hands::registration_command;
use crate::life::sized;
use crate::site::Site;

const PROVISIONING: (&str, &str) = ("provisioning.cattle.io/v1", "Cluster");
const CORE: &str = "cluster.x-k8s.io/v1beta2";
const RKE: &str = "rke.cattle.io/v1";
const MACHINE: &str = "rke-machine.cattle.io/v1";

/// The events in `kubectl describe`, selected in the same way; `uid` distinguishes objects with the same name.
async fn told(objects: &Objects, kind: &str, name: &str, uid: Option<&str>) -> Vec<Event> {
    let mut fields =
        format!("involvedObject.name={name},involvedObject.namespace=default,involvedObject.kind={kind}");
    if let Some(uid) = uid {
        fields.push_str(&format!(",involvedObject.uid={uid}"));
    }
    let api: Api<Event> = Api::namespaced(objects.client(), "default");
    let mut list = api.list(&ListParams::default().fields(&fields)).await.unwrap().items;
    list.sort_by_key(|event| event.last_timestamp.as_ref().map(|time| time.0));
    list
}

/// Waits until an object has events with all of these reasons. Events are written in the background.
async fn tells(
    objects: &Objects,
    (api_version, kind): (&str, &str),
    name: &str,
    wanted: &[&str],
) -> Vec<Event> {
    let object = objects.get(api_version, kind, "default", name).await;
    let uid = object.as_ref().and_then(|object| object["metadata"]["uid"].as_str());
    eventually_within(demo::PATIENCE, || async {
        let events = told(objects, kind, name, uid).await;
        let has = |reason: &&&str| !events.iter().any(|event| event.reason.as_deref() == Some(reason));
        let missing: Vec<_> = wanted.iter().filter(has).collect();
        if missing.is_empty() {
            Ok(events)
        } else {
            Err(format!("{kind} {name} misses {missing:?}: {events:#?}"))
        }
    })
    .await
}

fn message<'a>(events: &'a [Event], reason: &str) -> &'a str {
    let found = events.iter().rev().find(|event| event.reason.as_deref() == Some(reason));
    found.and_then(|event| event.message.as_deref()).unwrap_or_default()
}

async fn names(objects: &Objects, api_version: &str, kind: &str) -> Vec<String> {
    let list = objects.list(api_version, kind).await;
    list.iter().map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

/// The table of `kubectl get`: column names, and the cells of each row.
async fn table(objects: &Objects, path: &str) -> (Vec<String>, Vec<Vec<Value>>) {
    let request = http::Request::get(path)
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(vec![])
        .unwrap();
    let table: Value = objects.client().request(request).await.unwrap();
    let columns = table["columnDefinitions"].as_array().unwrap().iter();
    let rows = table["rows"].as_array().unwrap().iter();
    (
        columns.map(|column| column["name"].as_str().unwrap().to_owned()).collect(),
        rows.map(|row| row["cells"].as_array().unwrap().clone()).collect(),
    )
}

/// Waits until these columns have values in every row.
async fn shows(objects: &Objects, path: &str, wanted: &[&str]) {
    eventually_within(demo::PATIENCE, || async {
        let (columns, rows) = table(objects, path).await;
        for (name, row) in wanted.iter().flat_map(|name| rows.iter().map(move |row| (name, row))) {
            let cell = columns.iter().position(|column| column == name).map(|at| &row[at]);
            if cell.is_none_or(|cell| cell.is_null() || *cell == json!("")) {
                return Err(format!("{path}: {name} is blank in {columns:?} {row:?}"));
            }
        }
        if rows.is_empty() { Err(format!("{path}: no rows")) } else { Ok(()) }
    })
    .await;
}

/// Every event in one line, with its version.
async fn all_events(objects: &Objects) -> BTreeSet<String> {
    let api: Api<Event> = Api::all(objects.client());
    let line = |e: Event| {
        let object = format!("{:?} {:?}", e.involved_object.kind, e.involved_object.name);
        format!("{object} {:?}: {:?} ({:?})", e.reason, e.message, e.metadata.resource_version)
    };
    api.list(&ListParams::default()).await.unwrap().items.into_iter().map(line).collect()
}

/// Every warning, with its object.
async fn warnings(objects: &Objects) -> BTreeSet<String> {
    let api: Api<Event> = Api::all(objects.client());
    let events = api.list(&ListParams::default()).await.unwrap().items;
    let warns = |event: &Event| event.type_.as_deref() == Some("Warning");
    let line = |e: Event| format!("{:?} {:?}: {:?}", e.involved_object.kind, e.reason, e.message);
    events.into_iter().filter(warns).map(line).collect()
}

/// Waits for three seconds without any write: the store's revision does not change.
pub(crate) async fn silence(objects: &Objects) {
    let revision = || async {
        let api: Api<Event> = Api::all(objects.client());
        api.list(&ListParams::default()).await.unwrap().metadata.resource_version
    };
    let start = Instant::now();
    let mut last = (revision().await, Instant::now());
    while last.1.elapsed() < Duration::from_secs(3) {
        assert!(start.elapsed() < demo::PATIENCE, "writes never stop");
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = revision().await;
        if now != last.0 {
            last = (now, Instant::now());
        }
    }
}

/// A Cluster with many errors reports all of them, in one event.
async fn refused(objects: &Objects) {
    objects
        .create(json!({
            "apiVersion": PROVISIONING.0, "kind": "Cluster", "metadata": {"namespace": "default", "name": "bad"},
            "spec": {"kubernetesVersion": "v9.0.0+k3s1", "rkeConfig": {"machinePools": [
                {"name": "none", "machineConfigRef": {"kind": "LocalConfig", "name": "missing"}},
            ]}},
        }))
        .await;
    let events = tells(objects, PROVISIONING, "bad", &["InvalidSpec"]).await;
    let said = message(&events, "InvalidSpec");
    for part in [
        "spec.kubernetesVersion",
        "machinePools[0] (none): at least one of etcdRole",
        "default/missing",
        "no pool with machines has etcdRole and controlPlaneRole and workerRole",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    eventually_within(demo::PATIENCE, || async {
        let cluster = objects.get(PROVISIONING.0, "Cluster", "default", "bad").await.unwrap();
        let ready = condition(&cluster, "Ready");
        if ready == ("False".to_owned(), said.to_owned()) { Ok(()) } else { Err(ready) }
    })
    .await;
    objects.delete(PROVISIONING.0, "Cluster", "default", "bad").await;
    tells(objects, PROVISIONING, "bad", &["Deleting", "Deleted"]).await;
}

/// A Cluster without rkeConfig would be an imported one, which is reported in conditions, events and columns.
async fn imported(objects: &Objects) {
    let cluster = json!({
        "apiVersion": PROVISIONING.0, "kind": "Cluster", "metadata": {"namespace": "default", "name": "bare"},
        "spec": {},
    });
    objects.create(cluster).await;
    let events = tells(objects, PROVISIONING, "bare", &["InvalidSpec"]).await;
    let said = message(&events, "InvalidSpec");
    assert!(said.starts_with("spec.rkeConfig is missing") && said.contains("does not import"), "{said}");
    eventually_within(demo::PATIENCE, || async {
        let path = "/apis/provisioning.cattle.io/v1/namespaces/default/clusters";
        let (columns, rows) = table(objects, path).await;
        let cell = |row: &[Value], name: &str| row[columns.iter().position(|c| c == name).unwrap()].clone();
        let row = rows.iter().find(|row| cell(row, "Name") == "bare").unwrap();
        let shown = (cell(row, "Ready"), cell(row, "Message"));
        if shown == (json!("False"), json!(said)) { Ok(()) } else { Err(shown) }
    })
    .await;
    objects.delete(PROVISIONING.0, "Cluster", "default", "bare").await;
    tells(objects, PROVISIONING, "bare", &["Deleted"]).await;
}

/// The events of each object of a Ready cluster.
async fn provisioned(objects: &Objects) {
    let wanted = ["Connected", "Ready"];
    tells(objects, PROVISIONING, "demo", &wanted).await;
    let wanted = ["Provisioned", "ControlPlaneInitialized"];
    tells(objects, (CORE, "Cluster"), "demo", &wanted).await;
    let wanted = ["InitNodeElected", "PlanWritten", "Ready"];
    let events = tells(objects, (RKE, "RKEControlPlane"), "demo", &wanted).await;
    assert!(message(&events, "InitNodeElected").contains("demo-cp-"), "{events:#?}");
    for name in names(objects, CORE, "MachineDeployment").await {
        tells(objects, (CORE, "MachineDeployment"), &name, &["SuccessfulCreate"]).await;
    }
    for name in names(objects, CORE, "MachineSet").await {
        tells(objects, (CORE, "MachineSet"), &name, &["SuccessfulCreate"]).await;
    }
    for name in names(objects, CORE, "Machine").await {
        tells(objects, (CORE, "Machine"), &name, &["SuccessfulSetNodeRef"]).await;
        tells(objects, (MACHINE, "LocalMachine"), &name, &["CreateJobSucceeded"]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_story_of_a_cluster_is_told_once_and_steady_state_writes_nothing() {
    let (site, manager) = Site::start(None).await;
    let objects = &site.objects;
    demo::make(objects).await;
    refused(objects).await;
    imported(objects).await;
    demo::ready(objects, "provisioned").await;
    provisioned(objects).await;
    for (path, columns) in [
        ("provisioning.cattle.io/v1/namespaces/default/clusters", &["Version", "Cluster Name", "Ready"][..]),
        ("rke.cattle.io/v1/namespaces/default/rkeclusters", &["Cluster", "Ready", "Endpoint"]),
        ("rke.cattle.io/v1/namespaces/default/rkecontrolplanes", &["Cluster", "Ready", "Version"]),
        (
            "rke.cattle.io/v1/namespaces/default/rkebootstraps",
            &["Cluster", "Machine", "Ready", "Data Secret"],
        ),
        (
            "cluster.x-k8s.io/v1beta2/namespaces/default/machines",
            &["Ready", "Up-to-date", "Version", "Phase"],
        ),
    ] {
        shows(objects, &format!("/apis/{path}"), columns).await;
    }
    let ready = table(objects, "/apis/provisioning.cattle.io/v1/namespaces/default/clusters").await;
    let at = ready.0.iter().position(|name| name == "Ready").unwrap();
    assert_eq!(ready.1[0][at], "True");

    // In steady state nothing is written, and restarts of watches give no new events.
    silence(objects).await;
    let before = all_events(objects).await;
    let poke = json!({"metadata": {"annotations": {"look": "again"}}});
    for (api_version, kind) in
        [PROVISIONING, (CORE, "Cluster"), (RKE, "RKEControlPlane"), (RKE, "RKECluster")]
    {
        objects.merge(api_version, kind, "default", "demo", poke.clone()).await;
    }
    for name in names(objects, CORE, "Machine").await {
        for (api_version, kind) in [(CORE, "Machine"), (RKE, "RKEBootstrap"), (MACHINE, "LocalMachine")] {
            objects.merge(api_version, kind, "default", &name, poke.clone()).await;
        }
    }
    silence(objects).await;
    let after = all_events(objects).await;
    let written: Vec<_> = after.difference(&before).collect();
    assert!(written.is_empty(), "written in steady state: {written:#?}");

    // An upgrade has an event at its start and end, also on the Cluster.
    demo::merge(objects, json!({"spec": {"kubernetesVersion": "v1.34.2+k3s1"}})).await;
    demo::ready(objects, "upgraded").await;
    let events = tells(objects, PROVISIONING, "demo", &["UpgradeStarted", "UpgradeFinished"]).await;
    assert!(message(&events, "UpgradeStarted").contains("from v1.34.1+k3s1 to v1.34.2+k3s1"), "{events:#?}");
    tells(objects, (RKE, "RKEControlPlane"), "demo", &["UpgradeStarted", "UpgradeFinished"]).await;
    eventually_within(demo::PATIENCE, || async {
        let machines = demo::machines(objects).await;
        let new = |machine: &Value| machine["spec"]["version"] == "v1.34.2+k3s1";
        if machines.iter().all(new) { Ok(()) } else { Err(machines) }
    })
    .await;

    // Fewer machines; a Windows pool, which is not supported; a custom machine.
    let gone: Vec<String> = names(objects, CORE, "Machine").await;
    demo::edit_pools(objects, |pools| {
        pools[1]["quantity"] = json!(1);
        pools[1]["machineOS"] = json!("windows");
    })
    .await;
    sized(&site, 2).await;
    let events = tells(objects, PROVISIONING, "demo", &["PoolScaled", "NotInEffect"]).await;
    assert_eq!(message(&events, "PoolScaled"), "Pool w: 2 -> 1 machine(s)");
    assert!(message(&events, "NotInEffect").contains("machinePools[1].machineOS"), "{events:#?}");
    demo::edit_pools(objects, |pools| pools[1]["machineOS"] = json!("linux")).await;
    demo::ready(objects, "scaled").await;
    sized(&site, 2).await;
    let left = names(objects, CORE, "Machine").await;
    let gone = gone.iter().find(|name| !left.contains(name)).unwrap();
    let wanted = ["WaitingForInfrastructureDeletion", "SuccessfulDeleteNode", "Deleted"];
    tells(objects, (CORE, "Machine"), gone, &wanted).await;
    let wanted = ["DeleteJobStarted", "DeleteJobSucceeded", "Deleted"];
    tells(objects, (MACHINE, "LocalMachine"), gone, &wanted).await;

    let command = registration_command(&site).await;
    site.datacenter.create("mine", "mine", Registration::from_command(&command).unwrap()).await.unwrap();
    sized(&site, 3).await;
    let custom = names(objects, RKE, "CustomMachine").await.remove(0);
    tells(objects, (RKE, "CustomMachine"), &custom, &["Registered", "Provisioned"]).await;
    let path = "/apis/rke.cattle.io/v1/namespaces/default/custommachines";
    shows(objects, path, &["Cluster", "Machine", "Ready", "Provider ID"]).await;
    shows(objects, "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machines", &["Up-to-date", "Version"])
        .await;

    let before = warnings(objects).await;
    demo::remove(objects, "removal").await;
    let events = tells(objects, PROVISIONING, "demo", &["Deleting", "Deleted"]).await;
    assert!(events.iter().all(|event| event.count.unwrap_or(1) < 10), "{events:#?}");
    tells(objects, (CORE, "Cluster"), "demo", &["Deleting", "WaitingForWorkersDeletion", "Deleted"]).await;
    tells(objects, (RKE, "RKEControlPlane"), "demo", &["Deleted"]).await;
    // A requested deletion gives no warnings.
    let after = warnings(objects).await;
    let new: Vec<_> = after.difference(&before).collect();
    assert!(new.is_empty(), "warnings of a deletion: {new:#?}");
    site.close(manager).await;
}
