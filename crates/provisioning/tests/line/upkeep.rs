//! What people and newer drivers do to a cluster that must not harm it.

use std::collections::{BTreeMap, BTreeSet};

use drover_testkit::demo;
use drover_testkit::objects::{Objects, condition};
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

async fn set(objects: &Objects, name: &str, value: &str) {
    let setting = json!({
        "apiVersion": "management.cattle.io/v3", "kind": "Setting", "metadata": {"name": name}, "value": value,
    });
    objects.create(setting).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_setting_reaches_kubeconfigs_and_plans_without_a_restart() {
    use base64::Engine as _;
    let (world, _manager, _players) = provisioned().await;
    let objects = &world.objects;
    let machines = demo::machine_uids(objects).await;
    let decoded = |text: &Value| {
        let text = text.as_str().unwrap_or_default();
        String::from_utf8(base64::engine::general_purpose::STANDARD.decode(text).unwrap()).unwrap()
    };
    let in_kubeconfig = async |address: &str| {
        let secret = objects.get("v1", "Secret", "default", "demo-kubeconfig").await.unwrap();
        decoded(&secret["data"]["value"]).contains(&format!("{address}/k8s/clusters/c-m-"))
    };
    // access#32: the kubeconfig, and the manifest with the URL for the cluster's agent.
    let url = "https://drover.example";
    set(objects, "server-url", url).await;
    until("the kubeconfig has the new address", || in_kubeconfig(url)).await;
    until("the agent's manifest has the new address", || async {
        let secrets = objects.list("v1", "Secret").await;
        let plans = secrets.iter().filter(|secret| secret["type"] == "rke.cattle.io/machine-plan");
        let manifests = plans.filter_map(|secret| {
            let plan: Value = serde_json::from_str(&decoded(&secret["data"]["plan"])).unwrap();
            let files = plan["files"].as_array().cloned().unwrap_or_default();
            let own = |file: &&Value| file["path"].as_str().unwrap().ends_with("/cluster-agent.yaml");
            files.iter().find(own).map(|file| decoded(&file["content"]))
        });
        let manifests: Vec<String> = manifests.collect();
        let address = base64::engine::general_purpose::STANDARD.encode(url);
        manifests.len() == 1 && manifests[0].contains(&format!("\"url\":\"{address}\""))
    })
    .await;

    set(objects, "internal-server-url", "https://inside.example").await;
    set(objects, "system-default-registry", "registry.example").await;
    until("the kubeconfig has the inner address", || in_kubeconfig("https://inside.example")).await;
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
    until("the fields are recorded again", || async {
        let cluster = demo::cluster(&world.objects).await;
        let recorded = &cluster["spec"]["rkeConfig"]["machinePools"][1]["dynamicSchemaSpec"];
        recorded.as_str().is_some_and(|recorded| recorded.contains("disks"))
    })
    .await;
}

const MACHINES: &str = "rke-machine.cattle.io/v1";

/// The driver options in the machine templates, by name.
async fn templates(objects: &Objects) -> BTreeMap<String, Value> {
    let all = objects.list(MACHINES, "LocalMachineTemplate").await;
    let entry = |template: &Value| {
        let name = template["metadata"]["name"].as_str().unwrap().to_owned();
        (name, template["spec"]["template"]["spec"].clone())
    };
    all.iter().map(entry).collect()
}

/// Uids of the Machines of one pool.
async fn of_pool(objects: &Objects, pool: &str) -> BTreeSet<String> {
    let prefix = format!("demo-{pool}-");
    let machines = demo::machines(objects).await;
    let its = machines.iter().filter(|m| m["metadata"]["name"].as_str().unwrap().starts_with(&prefix));
    its.map(|machine| machine["metadata"]["uid"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_22_an_active_driver_has_three_kinds_that_are_served_and_labelled() {
    let world = World::start().await;
    let _manager = world.manager(None);
    let kinds = || async {
        let crds = world.objects.list("apiextensions.k8s.io/v1", "CustomResourceDefinition").await;
        let of_driver = |crd: &Value| crd["spec"]["names"]["kind"].as_str().unwrap().starts_with("Local");
        crds.into_iter().filter(of_driver).collect::<Vec<_>>()
    };
    until("three kinds are Established", || async {
        let kinds = kinds().await;
        kinds.len() == 3 && kinds.iter().all(|crd| condition(crd, "Established").0 == "True")
    })
    .await;
    for crd in kinds().await {
        for contract in ["cluster.x-k8s.io/v1beta1", "cluster.x-k8s.io/v1beta2"] {
            assert_eq!(crd["metadata"]["labels"][contract], "v1", "{crd:#}");
        }
    }
    // The driver's defaults are in its Config, where numbers are strings. A template contains only values that were set.
    let metadata = json!({"namespace": "default", "name": "plain"});
    let create = async |api_version: &str, kind: &str| {
        let object = json!({
            "apiVersion": api_version, "kind": kind, "metadata": metadata,
            "spec": {"clusterName": "demo", "template": {"spec": {}}},
        });
        world.objects.create(object).await;
        world.objects.get(api_version, kind, "default", "plain").await.unwrap()
    };
    assert_eq!(create("rke-machine-config.cattle.io/v1", "LocalConfig").await["cpus"], "1");
    let template = create(MACHINES, "LocalMachineTemplate").await;
    assert_eq!(template["spec"]["template"]["spec"], json!({}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_4_a_changed_driver_field_rolls_its_pool_and_the_old_template_goes() {
    let (world, _manager, _players) = provisioned().await;
    let objects = &world.objects;
    let before = templates(objects).await;
    let (servers, workers) = (of_pool(objects, "cp").await, of_pool(objects, "w").await);
    assert!(before.len() == 2 && before.values().all(|spec| spec["cpus"] == "1"), "{before:?}");
    objects
        .merge("rke-machine-config.cattle.io/v1", "LocalConfig", "default", "w", json!({"cpus": "2"}))
        .await;
    until("other workers have taken over", || async {
        let now = of_pool(objects, "w").await;
        now.len() == 2 && now.is_disjoint(&workers)
    })
    .await;
    demo::ready(objects, "rolled").await;
    // One per pool, although no MachineDeployment changes any more.
    until("the former template is gone", || async { templates(objects).await.len() == 2 }).await;
    let after = templates(objects).await;
    let of = |templates: &BTreeMap<String, Value>, pool: &str| {
        templates.keys().find(|name| name.starts_with(&format!("demo-{pool}-"))).unwrap().clone()
    };
    assert_eq!(of(&after, "cp"), of(&before, "cp"));
    assert_ne!(of(&after, "w"), of(&before, "w"));
    assert_eq!(after[&of(&after, "w")]["cpus"], "2");
    let deployment = objects.get("cluster.x-k8s.io/v1beta2", "MachineDeployment", "default", "demo-w").await;
    let reference = &deployment.unwrap()["spec"]["template"]["spec"]["infrastructureRef"]["name"];
    assert_eq!(*reference, of(&after, "w").as_str());
    assert_eq!(of_pool(objects, "cp").await, servers, "the other pool was not touched");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_3_labels_taints_and_credentials_replace_nothing() {
    let (world, _manager, _players) = provisioned().await;
    let objects = &world.objects;
    let names = async || templates(objects).await.into_keys().collect::<Vec<_>>();
    let (machines, before) = (demo::machine_uids(objects).await, names().await);
    for name in ["one", "two"] {
        let data = json!({"localcredentialConfig-token": name});
        let metadata = json!({"namespace": "default", "name": name});
        objects
            .create(json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}))
            .await;
    }
    let changes: [(&str, Value); 5] = [
        ("labels", json!({"tier": "silver"})),
        ("taints", json!([{"key": "k", "value": "v", "effect": "NoSchedule"}])),
        ("cloudCredentialSecretName", json!("one")),
        ("cloudCredentialSecretName", json!("two")),
        ("labels", json!({})),
    ];
    for (field, value) in changes {
        // A credential may not be heard of yet when it is named: the next look finds it.
        demo::edit_pools(objects, |pools| pools[1][field] = value.clone()).await;
        until(&format!("the template follows {field} {value}"), || async {
            let specs = templates(objects).await;
            let spec = specs.iter().find(|(name, _)| name.starts_with("demo-w-")).unwrap().1.clone();
            let common = &spec["common"][field];
            *common == value || (value == json!({}) && common.is_null())
        })
        .await;
    }
    demo::ready(objects, "labels, taints and credentials").await;
    assert_eq!(names().await, before);
    assert_eq!(demo::machine_uids(objects).await, machines);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_8_a_pool_broken_later_takes_nothing_away() {
    let (world, _manager, _players) = provisioned().await;
    let objects = &world.objects;
    let kept = async || {
        let mut found = BTreeSet::new();
        for kind in ["MachineDeployment", "MachineSet", "Machine"] {
            for object in objects.list("cluster.x-k8s.io/v1beta2", kind).await {
                assert!(object["metadata"]["deletionTimestamp"].is_null(), "{object:#}");
                found.insert(format!("{kind} {}", object["metadata"]["uid"]));
            }
        }
        found.extend(templates(objects).await.into_keys());
        found
    };
    let before = kept().await;
    let good = demo::cluster(objects).await["spec"]["rkeConfig"]["machinePools"].clone();
    // Two pools of one name are refused by the API already.
    type Damage = fn(&mut Vec<Value>);
    let broken: [(&str, Damage); 2] = [
        ("(w)", |pools| drop(pools[1].as_object_mut().unwrap().remove("workerRole"))),
        ("(w): machineConfigRef", |pools| pools[1]["machineConfigRef"] = json!({})),
    ];
    for (number, (named, damage)) in broken.into_iter().enumerate() {
        demo::edit_pools(objects, damage).await;
        until(&format!("the condition of damage {number} names pool {named}"), || async {
            let (status, message) = condition(&demo::cluster(objects).await, "RKECluster");
            status == "False" && message.contains(named)
        })
        .await;
        assert_eq!(kept().await, before, "damage {number}");
        let repaired = good.clone();
        demo::edit_pools(objects, |pools| *pools = repaired.as_array().unwrap().clone()).await;
        demo::ready(objects, "repaired").await;
        assert_eq!(kept().await, before, "after damage {number}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_25_a_running_create_job_outlives_settings_and_managers() {
    let world = World::start().await;
    let objects = &world.objects;
    let manager = world.manager(None);
    demo::make(objects).await;
    // Nobody runs Jobs here: they stay as they were made.
    let jobs = async || -> BTreeMap<String, Value> {
        let all = objects.list("batch/v1", "Job").await;
        all.into_iter().map(|job| (job["metadata"]["name"].as_str().unwrap().to_owned(), job)).collect()
    };
    let environments = async || -> BTreeMap<String, Value> {
        let mut found = BTreeMap::new();
        for job in jobs().await.values() {
            let container = &job["spec"]["template"]["spec"]["containers"][0];
            let name = container["envFrom"][0]["secretRef"]["name"].as_str().unwrap();
            let secret = objects.get("v1", "Secret", "default", name).await.unwrap();
            found.insert(name.to_owned(), secret["metadata"]["resourceVersion"].clone());
        }
        found
    };
    until("every machine has its Job", || async { jobs().await.len() == 3 }).await;
    let before = (jobs().await, environments().await);

    let unchanged = async |what: &str| {
        let now = (jobs().await, environments().await);
        for (name, job) in &before.0 {
            assert_eq!(now.0.get(name), Some(job), "{what}");
        }
        for (name, revision) in &before.1 {
            assert_eq!(now.1.get(name), Some(revision), "{name} after {what}");
        }
    };
    // A machine that comes later shows that the change has arrived.
    let grown = async |size: usize| {
        demo::edit_pools(objects, |pools| pools[1]["quantity"] = json!(size)).await;
        until("the new machine's Job", || async { jobs().await.len() == size + 1 }).await;
        let jobs = jobs().await;
        let new = jobs.into_iter().filter(|(name, _)| !before.0.contains_key(name));
        new.map(|(_, job)| job["spec"]["template"]["spec"]["containers"][0].clone()).collect::<Vec<_>>()
    };
    set(objects, "machine-provision-image", "registry.example/machine:2").await;
    set(objects, "machine-provision-image-pull-policy", "Always").await;
    set(objects, "cacerts", "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----").await;
    let new = grown(3).await;
    assert_eq!(new[0]["image"], "registry.example/machine:2");
    assert_eq!(new[0]["imagePullPolicy"], "Always");
    unchanged("new settings").await;

    manager.stop().await;
    let _manager = world.manager(None);
    assert_eq!(grown(4).await.len(), 2);
    unchanged("another manager").await;
}
