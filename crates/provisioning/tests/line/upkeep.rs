//! What people and newer drivers do to a cluster that must not harm it.

use std::collections::BTreeSet;

use drover_testkit::demo;
use drover_testkit::objects::condition;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::cluster::nodes;
use crate::players::provisioned;
use crate::world::{World, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_11_stripped_finalizers_come_back_and_nothing_is_deleted() {
    let (world, _manager, _players) = provisioned().await;
    let generated = async || {
        let mut found = BTreeSet::new();
        for (api_version, kind) in [
            ("cluster.x-k8s.io/v1beta2", "Cluster"),
            ("cluster.x-k8s.io/v1beta2", "MachineDeployment"),
            ("cluster.x-k8s.io/v1beta2", "MachineSet"),
            ("cluster.x-k8s.io/v1beta2", "Machine"),
            ("rke.cattle.io/v1", "RKECluster"),
            ("rke.cattle.io/v1", "RKEControlPlane"),
            ("management.cattle.io/v3", "Cluster"),
        ] {
            for object in world.objects.list(api_version, kind).await {
                assert!(object["metadata"]["deletionTimestamp"].is_null(), "{object:#}");
                found.insert(format!("{kind} {}", object["metadata"]["uid"]));
            }
        }
        found
    };
    let before = generated().await;
    let finalizers = demo::cluster(&world.objects).await["metadata"]["finalizers"].clone();
    assert!(finalizers.as_array().is_some_and(|list| list.len() >= 2), "{finalizers}");
    let stripped = json!({"metadata": {"finalizers": null}});
    world.objects.merge("provisioning.cattle.io/v1", "Cluster", "default", "demo", stripped).await;
    until("the finalizers are back", || async {
        demo::cluster(&world.objects).await["metadata"]["finalizers"] == finalizers
    })
    .await;
    // A change that goes through everything afterwards shows that it still works.
    demo::edit_pools(&world.objects, |pools| pools[1]["labels"] = json!({"tier": "silver"})).await;
    until("nodes follow the pool's labels", || async {
        let nodes = nodes(&world).await;
        nodes.iter().filter(|node| node["metadata"]["labels"]["tier"] == "silver").count() == 2
    })
    .await;
    assert_eq!(generated().await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_15_contradictory_autoscaling_sizes_are_refused() {
    let world = World::start().await;
    let refusal = async |sizes: Value| {
        let mut pool = json!({"name": "p", "machineConfigRef": {"kind": "LocalConfig", "name": "c"}});
        pool.as_object_mut().unwrap().extend(sizes.as_object().unwrap().clone());
        let cluster = serde_json::from_value(json!({
            "apiVersion": "provisioning.cattle.io/v1", "kind": "Cluster", "metadata": {"name": "demo"},
            "spec": {"kubernetesVersion": "v1.34.1+k3s1", "rkeConfig": {"machinePools": [pool]}},
        }))
        .unwrap();
        let api = world.objects.api("provisioning.cattle.io/v1", "Cluster", "default");
        match api.create(&PostParams { dry_run: true, ..PostParams::default() }, &cluster).await {
            Err(kube::Error::Api(status)) if status.code == 422 => status.message.clone(),
            other => format!("{:?}", other.map(|_| "accepted")),
        }
    };
    for (sizes, wanted) in [
        (json!({"workerRole": true, "autoscalingMinSize": 1}), "must both be set"),
        (json!({"workerRole": true, "autoscalingMaxSize": 1}), "must both be set"),
        (json!({"workerRole": true, "autoscalingMinSize": 3, "autoscalingMaxSize": 2}), "less than or equal"),
        (json!({"etcdRole": true, "autoscalingMinSize": 0, "autoscalingMaxSize": 2}), "EtcdRole is true"),
        (
            json!({"controlPlaneRole": true, "autoscalingMinSize": 0, "autoscalingMaxSize": 2}),
            "ControlPlaneRole is true",
        ),
        (json!({"workerRole": true, "autoscalingMinSize": 0, "autoscalingMaxSize": 2}), "accepted"),
    ] {
        let said = refusal(sizes.clone()).await;
        assert!(said.contains(wanted), "{sizes}: {said}");
        assert!(wanted == "accepted" || said.contains("machinePools[0]"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_13_a_health_check_comes_and_goes_and_says_that_nothing_acts_on_it() {
    let (world, _manager, _players) = provisioned().await;
    let objects = &world.objects;
    let check = || objects.get("cluster.x-k8s.io/v1beta2", "MachineHealthCheck", "default", "demo-w");
    assert_eq!(check().await, None);
    let timeout = async |value: Option<&str>| {
        demo::edit_pools(objects, |pools| {
            let pool = pools[1].as_object_mut().unwrap();
            pool.remove("unhealthyNodeTimeout");
            pool.extend(value.map(|value| ("unhealthyNodeTimeout".to_owned(), json!(value))));
        })
        .await;
    };
    // Cleared in either way in which people clear it.
    for cleared in [None, Some("0s")] {
        timeout(Some("5m")).await;
        until("the check exists and says that it has no effect", || async {
            let check = check().await.unwrap_or_default();
            let (status, message) = condition(&check, "RemediationAllowed");
            check["spec"]["checks"]["unhealthyNodeConditions"][0]["timeoutSeconds"] == 300
                && status == "False"
                && message.contains("without effect yet")
        })
        .await;
        until("the Cluster says so too", || async {
            let (status, message) = condition(&demo::cluster(objects).await, "ConfigAccepted");
            status == "False" && message.contains("machinePools[1].unhealthyNodeTimeout")
        })
        .await;
        // One that a person deletes comes back, also when nothing else happens any more.
        for _ in 0..3 {
            objects.delete("cluster.x-k8s.io/v1beta2", "MachineHealthCheck", "default", "demo-w").await;
            until("the check is back", || async { check().await.is_some() }).await;
        }
        timeout(cleared).await;
        until("the check is gone", || async { check().await.is_none() }).await;
        until("nothing is without effect", || async {
            condition(&demo::cluster(objects).await, "ConfigAccepted").0.is_empty()
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_setting_reaches_kubeconfigs_and_plans_without_a_restart() {
    use base64::Engine as _;
    let (world, _manager, _players) = provisioned().await;
    let objects = &world.objects;
    let machines = demo::machine_uids(objects).await;
    for (name, value) in
        [("internal-server-url", "https://inside.example"), ("system-default-registry", "registry.example")]
    {
        objects
            .create(json!({
                "apiVersion": "management.cattle.io/v3", "kind": "Setting", "metadata": {"name": name}, "value": value,
            }))
            .await;
    }
    let decoded = |text: &Value| {
        let text = text.as_str().unwrap_or_default();
        String::from_utf8(base64::engine::general_purpose::STANDARD.decode(text).unwrap()).unwrap()
    };
    until("the kubeconfig has the new address", || async {
        let secret = objects.get("v1", "Secret", "default", "demo-kubeconfig").await.unwrap();
        decoded(&secret["data"]["value"]).contains("https://inside.example/k8s/clusters/c-m-")
    })
    .await;
    until("every machine installs from the new registry", || async {
        let secrets = objects.list("v1", "Secret").await;
        let plans = secrets.iter().filter(|secret| secret["type"] == "rke.cattle.io/machine-plan");
        let from =
            |plan: &Value| decoded(&plan["data"]["plan"]).contains("registry.example/rancher/system-agent");
        plans.filter(|plan| from(plan)).count() == 3
    })
    .await;
    demo::ready(objects, "the new registry").await;
    assert_eq!(demo::machine_uids(objects).await, machines, "in place");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_6_7_a_newer_driver_replaces_nothing() {
    let (world, manager, _players) = provisioned().await;
    let templates = async || -> Vec<Value> {
        let all = world.objects.list("rke-machine.cattle.io/v1", "LocalMachineTemplate").await;
        all.iter().map(|template| template["spec"]["template"]["spec"].clone()).collect()
    };
    let (machines, before) = (demo::machine_uids(&world.objects).await, templates().await);
    assert!(before.len() == 2 && before.iter().all(|spec| spec["cpus"] == "1"), "{before:?}");

    manager.stop().await;
    world.upgraded.store(true, std::sync::atomic::Ordering::SeqCst);
    let _manager = world.manager(None);
    until("the driver's new field has its default", || async {
        let config = world
            .objects
            .get("rke-machine-config.cattle.io/v1", "LocalConfig", "default", "w")
            .await
            .unwrap();
        config["disks"] == "1"
    })
    .await;
    // A new pool has the field, and existing ones stay as they were.
    world
        .objects
        .create(json!({
            "apiVersion": "rke-machine-config.cattle.io/v1", "kind": "LocalConfig",
            "metadata": {"namespace": "default", "name": "new"},
        }))
        .await;
    demo::edit_pools(&world.objects, |pools| {
        let mut pool = pools[1].clone();
        (pool["name"], pool["machineConfigRef"]["name"]) = (json!("new"), json!("new"));
        pool.as_object_mut().unwrap().remove("dynamicSchemaSpec");
        pools.push(pool);
    })
    .await;
    demo::ready(&world.objects, "a new pool").await;
    until("machines of the new pool", || async { demo::machines(&world.objects).await.len() == 5 }).await;
    let after = templates().await;
    assert_eq!(after.len(), 3, "{after:?}");
    assert_eq!(after.iter().filter(|spec| spec["disks"] == "1").count(), 1, "{after:?}");
    assert!(demo::machine_uids(&world.objects).await.is_superset(&machines), "machines were replaced");

    // Dropped on purpose: the fields of now are recorded (check 7).
    let pools = demo::cluster(&world.objects).await["spec"]["rkeConfig"]["machinePools"].clone();
    assert!(!pools[1]["dynamicSchemaSpec"].as_str().unwrap().contains("disks"), "{pools:#}");
    demo::edit_pools(&world.objects, |pools| {
        drop(pools[1].as_object_mut().unwrap().remove("dynamicSchemaSpec"))
    })
    .await;
    until("the fields are recorded anew", || async {
        let cluster = demo::cluster(&world.objects).await;
        let recorded = &cluster["spec"]["rkeConfig"]["machinePools"][1]["dynamicSchemaSpec"];
        recorded.as_str().is_some_and(|recorded| recorded.contains("disks"))
    })
    .await;
}
