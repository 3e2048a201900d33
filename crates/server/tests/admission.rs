//! Which writes the management plane's API rejects or corrects: a real API with its hooks, in memory.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use drover_apiserver::UserInfo;
use drover_apiserver::auth::pki::Pki;
use drover_apiserver::embedded::{Embedded, EmbeddedOptions};
use drover_runtime::in_process_client;
use drover_server::admission;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use serde_json::{Value, json};

struct World {
    client: Client,
    _embedded: Arc<Embedded>,
}

impl World {
    async fn start() -> Self {
        let embedded = Embedded::start(EmbeddedOptions {
            admission: admission::hooks(),
            ..EmbeddedOptions::in_memory(Arc::new(Pki::in_memory(jiff::Timestamp::now()).unwrap()))
        });
        let embedded = Arc::new(embedded.await.unwrap());
        admission::watch_over(&embedded);
        // The name in the administrator's certificate.
        let client = in_process_client(embedded.service(), UserInfo::system_masters("system:admin"));
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        for crd in drover_api::crds() {
            crds.create(&PostParams::default(), &crd).await.unwrap();
        }
        let world = Self { client, _embedded: embedded };
        drover_testkit::eventually(async || {
            let list = crds.list(&Default::default()).await.unwrap();
            let established = |crd: &CustomResourceDefinition| {
                let mut conditions = crd.status.iter().flat_map(|s| s.conditions.iter().flatten());
                conditions.any(|c| c.type_ == "Established" && c.status == "True")
            };
            if list.items.iter().all(established) { Ok(()) } else { Err("not every CRD is served") }
        })
        .await;
        world
    }

    fn api(&self, group: &str, version: &str, kind: &str, namespace: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        if namespace.is_empty() {
            Api::all_with(self.client.clone(), &resource)
        } else {
            Api::namespaced_with(self.client.clone(), namespace, &resource)
        }
    }

    fn clusters(&self) -> Api<DynamicObject> {
        self.api("provisioning.cattle.io", "v1", "Cluster", "default")
    }

    async fn create(&self, api: &Api<DynamicObject>, object: Value) {
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    }

    async fn make_cluster(&self) {
        let cluster = json!({
            "apiVersion": "provisioning.cattle.io/v1", "kind": "Cluster", "metadata": {"name": "demo"},
            "spec": {"kubernetesVersion": "v1.34.1+k3s1", "rkeConfig": {"machinePools": [
                {"name": "w", "quantity": 1, "workerRole": true, "cloudCredentialSecretName": "mine",
                 "dynamicSchemaSpec": "{\"resourceFields\":{}}",
                 "machineConfigRef": {"kind": "LocalConfig", "name": "w"}},
            ]}},
        });
        self.create(&self.clusters(), cluster).await;
    }

    async fn pools(&self) -> Value {
        json!(self.clusters().get("demo").await.unwrap())["spec"]["rkeConfig"]["machinePools"].clone()
    }
}

/// The text of a 403.
fn refusal<T: std::fmt::Debug>(answer: kube::Result<T>) -> String {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 403 => status.message.clone(),
        other => panic!("not refused: {other:?}"),
    }
}

fn merge(patch: Value) -> Patch<Value> {
    Patch::Merge(patch)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_23_a_driver_in_use_stays() {
    let world = World::start().await;
    let drivers = world.api("management.cattle.io", "v3", "NodeDriver", "");
    for name in ["local", "spare"] {
        let driver = json!({
            "apiVersion": "management.cattle.io/v3", "kind": "NodeDriver", "metadata": {"name": name},
            "spec": {"active": true, "displayName": name, "url": "local://"},
        });
        world.create(&drivers, driver).await;
    }
    world.make_cluster().await;
    let (params, off) = (PatchParams::default(), merge(json!({"spec": {"active": false}})));

    for text in [
        refusal(drivers.patch("local", &params, &off).await),
        refusal(drivers.delete("local", &DeleteParams::default()).await),
    ] {
        assert!(text.contains("machine pool \"w\" of cluster default/demo uses it"), "{text}");
    }
    let described = merge(json!({"spec": {"description": "of this host"}}));
    drivers.patch("local", &params, &described).await.unwrap();

    // The other driver is unused, and later the first one is, too.
    drivers.patch("spare", &params, &off).await.unwrap();
    drivers.delete("spare", &DeleteParams::default()).await.unwrap();
    world.clusters().delete("demo", &DeleteParams::default()).await.unwrap();
    drivers.patch("local", &params, &off).await.unwrap();
    drivers.delete("local", &DeleteParams::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_38_a_credential_that_a_pool_refers_to_stays() {
    let world = World::start().await;
    let secrets = world.api("", "v1", "Secret", "default");
    for name in ["mine", "spare"] {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
            "stringData": {"localcredentialConfig-key": "k"},
        });
        world.create(&secrets, secret).await;
    }
    world.make_cluster().await;
    let text = refusal(secrets.delete("mine", &DeleteParams::default()).await);
    assert!(text.contains("machine pool \"w\" of cluster default/demo uses it"), "{text}");
    // Keys may be added and unused ones removed; this one after its cluster is deleted.
    let rotated = merge(json!({"stringData": {"localcredentialConfig-key": "n"}}));
    secrets.patch("mine", &PatchParams::default(), &rotated).await.unwrap();
    secrets.delete("spare", &DeleteParams::default()).await.unwrap();
    world.clusters().delete("demo", &DeleteParams::default()).await.unwrap();
    secrets.delete("mine", &DeleteParams::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_of_servers_is_scaled_only_within_the_limits_of_its_cluster() {
    let world = World::start().await;
    let pool = |name: &str, roles: &[&str]| {
        let mut pool =
            json!({"name": name, "quantity": 1, "machineConfigRef": {"kind": "LocalConfig", "name": name}});
        roles.iter().for_each(|role| pool[*role] = json!(true));
        pool
    };
    let cluster = json!({
        "apiVersion": "provisioning.cattle.io/v1", "kind": "Cluster", "metadata": {"name": "demo"},
        "spec": {"kubernetesVersion": "v1.34.1+k3s1", "rkeConfig": {"machinePools": [
            pool("cp", &["etcdRole", "controlPlaneRole"]), pool("w", &["workerRole"]),
        ]}},
    });
    world.create(&world.clusters(), cluster).await;
    let deployments = world.api("cluster.x-k8s.io", "v1beta2", "MachineDeployment", "default");
    for (name, role) in [("demo-cp", "rke.cattle.io/etcd-role"), ("demo-w", "rke.cattle.io/worker-role")] {
        let labels = json!({role: "true", "pool": name});
        let reference = |kind: &str| json!({"apiGroup": "rke.cattle.io", "kind": kind, "name": "t"});
        let deployment = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment", "metadata": {"name": name},
            "spec": {"clusterName": "demo", "replicas": 1, "selector": {"matchLabels": {"pool": name}},
                "template": {"metadata": {"labels": labels}, "spec": {"clusterName": "demo",
                    "bootstrap": {"configRef": reference("RKEBootstrapTemplate")},
                    "infrastructureRef": reference("LocalMachineTemplate")}}},
        });
        world.create(&deployments, deployment).await;
    }
    let params = PatchParams::default();
    let to = |replicas: i32| merge(json!({"spec": {"replicas": replicas}}));

    for text in [
        refusal(deployments.patch_scale("demo-cp", &params, &to(3)).await),
        refusal(deployments.patch("demo-cp", &params, &to(3)).await),
    ] {
        assert!(text.contains("the simulated distribution runs one server per cluster"), "{text}");
    }
    deployments.patch_scale("demo-w", &params, &to(3)).await.unwrap();
    // A cluster that never ran has nothing to lose, and other changes are not restricted.
    deployments.patch_scale("demo-cp", &params, &to(0)).await.unwrap();
    deployments.patch_scale("demo-cp", &params, &to(1)).await.unwrap();
    let planes = world.api("rke.cattle.io", "v1", "RKEControlPlane", "default");
    let plane = json!({
        "apiVersion": "rke.cattle.io/v1", "kind": "RKEControlPlane", "metadata": {"name": "demo"},
        "spec": {"clusterName": "demo", "kubernetesVersion": "v1.34.1+k3s1", "managementClusterName": "c-m-1"},
    });
    world.create(&planes, plane).await;
    let ran = merge(json!({"status": {"conditions": [{"type": "Bootstrapped", "status": "True"}]}}));
    planes.patch_status("demo", &params, &ran).await.unwrap();
    let machines = world.api("cluster.x-k8s.io", "v1beta2", "Machine", "default");
    let reference = json!({"apiGroup": "rke.cattle.io", "kind": "LocalMachine", "name": "m"});
    for (name, role, pool) in [("m-cp", "etcd", "cp"), ("m-w", "worker", "w")] {
        let labels = json!({
            format!("rke.cattle.io/{role}-role"): "true", "rke.cattle.io/rke-machine-pool-name": pool,
            "cluster.x-k8s.io/cluster-name": "demo", "cluster.x-k8s.io/deployment-name": format!("demo-{pool}"),
            "cluster.x-k8s.io/set-name": format!("demo-{pool}-x"),
        });
        let machine = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {"name": name, "labels": labels},
            "spec": {"clusterName": "demo", "bootstrap": {"dataSecretName": "x"}, "infrastructureRef": reference},
        });
        world.create(&machines, machine).await;
    }
    let text = refusal(deployments.patch_scale("demo-cp", &params, &to(0)).await);
    assert!(text.contains("no machine with etcdRole would be left"), "{text}");

    // The same through its set, the deletion of its objects, and the deletion of the CAPI Cluster.
    let sets = world.api("cluster.x-k8s.io", "v1beta2", "MachineSet", "default");
    let mut set = json!(deployments.get("demo-cp").await.unwrap());
    set["kind"] = json!("MachineSet");
    set["metadata"] = json!({"name": "demo-cp-x", "labels": {"cluster.x-k8s.io/deployment-name": "demo-cp"}});
    let spec = set["spec"].as_object_mut().unwrap();
    spec.retain(|key, _| ["clusterName", "replicas", "selector", "template"].contains(&key.as_str()));
    set.as_object_mut().unwrap().remove("status");
    world.create(&sets, set).await;
    let parts = world.api("cluster.x-k8s.io", "v1beta2", "Cluster", "default");
    let part = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": "demo"},
        "spec": {"infrastructureRef": {"apiGroup": "rke.cattle.io", "kind": "RKECluster", "name": "demo"}}});
    world.create(&parts, part).await;
    let delete = DeleteParams::default();
    for (text, why) in [
        (
            refusal(sets.patch_scale("demo-cp-x", &params, &to(0)).await),
            "no machine with etcdRole would be left",
        ),
        (refusal(sets.patch_scale("demo-cp-x", &params, &to(2)).await), "one server per cluster"),
        (refusal(sets.delete("demo-cp-x", &delete).await), "no other etcd machine"),
        (refusal(deployments.delete("demo-cp", &delete).await), "no other etcd machine"),
        (refusal(machines.delete("m-cp", &delete).await), "no other etcd machine"),
        (refusal(parts.delete("demo", &delete).await), "part of clusters.provisioning.cattle.io demo"),
    ] {
        assert!(text.contains(why), "{text}");
    }
    machines.delete("m-w", &delete).await.unwrap();
    // Controllers are not restricted, for instance after the Cluster is deleted.
    let controller = in_process_client(world._embedded.service(), UserInfo::system_masters("system:drover"));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", "MachineSet"));
    let as_controller: Api<DynamicObject> = Api::default_namespaced_with(controller, &resource);
    as_controller.patch_scale("demo-cp-x", &params, &to(0)).await.unwrap();
    let labelled = merge(json!({"metadata": {"labels": {"mine": "1"}}}));
    deployments.patch("demo-cp", &params, &labelled).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_7_an_update_without_the_recorded_fields_keeps_them() {
    let world = World::start().await;
    world.make_cluster().await;
    let pool = json!({"name": "w", "quantity": 2, "workerRole": true,
                      "machineConfigRef": {"kind": "LocalConfig", "name": "w"}});
    let without = merge(json!({"spec": {"rkeConfig": {"machinePools": [pool]}}}));
    world.clusters().patch("demo", &PatchParams::default(), &without).await.unwrap();
    let pools = world.pools().await;
    assert_eq!(
        (&pools[0]["quantity"], &pools[0]["dynamicSchemaSpec"]),
        (&json!(2), &json!("{\"resourceFields\":{}}"))
    );
    let allowed = merge(json!({
        "metadata": {"annotations": {"provisioning.cattle.io/allow-dynamic-schema-drop": "true"}},
        "spec": {"rkeConfig": {"machinePools": [pool]}},
    }));
    world.clusters().patch("demo", &PatchParams::default(), &allowed).await.unwrap();
    assert!(world.pools().await[0]["dynamicSchemaSpec"].is_null());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_side_apply_can_remove_a_pool_with_fields_recorded_by_another_manager() {
    let world = World::start().await;
    let pool = |name: &str| {
        json!({"name": name, "quantity": 1, "workerRole": true,
                                   "machineConfigRef": {"kind": "LocalConfig", "name": name}})
    };
    let cluster = |pools: Vec<Value>| {
        json!({
            "apiVersion": "provisioning.cattle.io/v1", "kind": "Cluster", "metadata": {"name": "demo"},
            "spec": {"kubernetesVersion": "v1.34.1+k3s1", "rkeConfig": {"machinePools": pools}},
        })
    };
    let (clusters, person) = (world.clusters(), PatchParams::apply("person"));
    clusters.patch("demo", &person, &Patch::Apply(cluster(vec![pool("a"), pool("b")]))).await.unwrap();
    // As the controller does.
    let mut pools = world.pools().await;
    for pool in pools.as_array_mut().unwrap() {
        pool["dynamicSchemaSpec"] = json!("{}");
    }
    let controller = PatchParams { field_manager: Some("drover".into()), ..PatchParams::default() };
    let recorded = merge(json!({"spec": {"rkeConfig": {"machinePools": pools}}}));
    clusters.patch("demo", &controller, &recorded).await.unwrap();
    clusters.patch("demo", &person, &Patch::Apply(cluster(vec![pool("a")]))).await.unwrap();
    let pools = world.pools().await;
    assert_eq!((pools.as_array().unwrap().len(), &pools[0]["name"]), (1, &json!("a")));
    assert_eq!(pools[0]["dynamicSchemaSpec"], "{}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_cluster_is_rejected_with_all_fields_in_one_response() {
    let world = World::start().await;
    let clusters = world.clusters();
    let refused = async |name: &str, version: &str, pool: Value| {
        let cluster = json!({
            "apiVersion": "provisioning.cattle.io/v1", "kind": "Cluster", "metadata": {"name": name},
            "spec": {"kubernetesVersion": version, "rkeConfig": {"machinePools": [pool]}},
        });
        let answer = clusters.create(&PostParams::default(), &serde_json::from_value(cluster).unwrap()).await;
        let Err(kube::Error::Api(status)) = answer else { panic!("not refused: {answer:?}") };
        assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"), "{status:?}");
        let causes = status.details.map(|details| details.causes).unwrap_or_default();
        causes.into_iter().map(|cause| (cause.field, cause.message)).collect::<Vec<_>>()
    };
    let pool = |name: &str, kind: &str| json!({"name": name, "quantity": 1, "workerRole": true, "machineConfigRef": {"kind": kind, "name": "w"}});
    let causes = refused("c-abcde", "v1.34.1", pool("A_B", "Banana")).await;
    let fields: Vec<&str> = causes.iter().map(|(field, _)| field.as_str()).collect();
    let of_pool = "spec.rkeConfig.machinePools[0]";
    let wanted = [
        "metadata.name",
        "spec.kubernetesVersion",
        &format!("{of_pool}.name"),
        &format!("{of_pool}.machineConfigRef.kind"),
    ];
    assert_eq!(fields, wanted, "{causes:?}");
    assert!(causes[1].1.contains("such as v1.34.1+k3s1"), "{causes:?}");

    let mut many = pool("w", "LocalConfig");
    many["quantity"] = json!(1_u64 << 40);
    let causes = refused("demo", "v1.34.1+k3s1", many).await;
    assert_eq!(causes[0].0, format!("{of_pool}.quantity"), "{causes:?}");
    assert!(causes[0].1.contains("1099511627776") && causes[0].1.contains("int32"), "{causes:?}");

    // An unknown version is stored, and a stored object can be changed and deleted.
    world.make_cluster().await;
    let newer = merge(json!({"spec": {"kubernetesVersion": "v1.99.0+k3s1"}}));
    clusters.patch("demo", &PatchParams::default(), &newer).await.unwrap();
    let answer = clusters
        .patch("demo", &PatchParams::default(), &merge(json!({"spec": {"kubernetesVersion": "latest"}})))
        .await;
    assert!(matches!(&answer, Err(kube::Error::Api(status)) if status.code == 422), "{answer:?}");
    clusters.delete("demo", &DeleteParams::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_with_a_cluster_cannot_be_deleted() {
    let world = World::start().await;
    let namespaces = world.api("", "v1", "Namespace", "");
    for name in ["team", "spare"] {
        world
            .create(&namespaces, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
            .await;
    }
    let clusters = world.api("provisioning.cattle.io", "v1", "Cluster", "team");
    let cluster = json!({
        "apiVersion": "provisioning.cattle.io/v1", "kind": "Cluster", "metadata": {"name": "demo"},
        "spec": {"kubernetesVersion": "v1.34.1+k3s1"},
    });
    world.create(&clusters, cluster).await;
    let text = refusal(namespaces.delete("team", &DeleteParams::default()).await);
    assert!(text.contains("it contains cluster team/demo") && text.contains("delete that first"), "{text}");
    namespaces.delete("spare", &DeleteParams::default()).await.unwrap();
    clusters.delete("demo", &DeleteParams::default()).await.unwrap();
    namespaces.delete("team", &DeleteParams::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_changes_only_the_data_of_its_plan_secret() {
    let world = World::start().await;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "rke.cattle.io/machine-plan",
        "metadata": {"name": "w-machine-plan", "labels": {"rke.cattle.io/worker-role": "true"},
                     "annotations": {"note": "kept"}},
    });
    let in_default = world.api("", "v1", "Secret", "default");
    world.create(&in_default, secret).await;
    let agent = UserInfo {
        name: "system:serviceaccount:default:w-machine-plan".into(),
        ..UserInfo::system_masters("agent")
    };
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Secret"));
    let agents: Api<DynamicObject> =
        Api::default_namespaced_with(in_process_client(world._embedded.service(), agent), &resource);
    let mut taken = json!(agents.get("w-machine-plan").await.unwrap());
    taken["metadata"]["labels"]["rke.cattle.io/etcd-role"] = json!("true");
    taken["metadata"]["annotations"] = json!({"other": "mine"});
    taken["metadata"]["finalizers"] = json!(["evil.io/stay"]);
    taken["immutable"] = json!(true);
    taken["data"] = json!({"plan-state": "c3VjY2VlZGVk", "plan": "e30=", "appliedPlan": "e30="});
    let taken = serde_json::from_value(taken).unwrap();
    let written = json!(agents.replace("w-machine-plan", &PostParams::default(), &taken).await.unwrap());
    assert_eq!(written["data"], json!({"plan-state": "c3VjY2VlZGVk"}), "the plan is the server's");
    let metadata = &written["metadata"];
    assert_eq!(metadata["labels"], json!({"rke.cattle.io/worker-role": "true"}));
    assert_eq!(metadata["annotations"], json!({"note": "kept"}));
    assert!(metadata.get("finalizers").is_none() && written.get("immutable").is_none(), "{written:#}");
    // Other users may change what their permissions allow.
    let person = merge(json!({"metadata": {"labels": {"mine": "1"}}}));
    let changed = json!(in_default.patch("w-machine-plan", &PatchParams::default(), &person).await.unwrap());
    assert_eq!(changed["metadata"]["labels"]["mine"], "1");
}
