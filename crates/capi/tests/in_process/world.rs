//! An API server in memory, managers that can die, and a provider of servers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use drover_access_api::{ClusterAccess, ClusterChange, ClusterHandle, Disconnected, Listener, provider_id};
use drover_apiserver::auth::pki::Pki;
use drover_apiserver::embedded::{Embedded, EmbeddedOptions};
use drover_apiserver::identity::UserInfo;
use drover_runtime::fault::{Fault, Faulty, Plan};
use drover_runtime::{Cache, Caches, ObjectKey, SystemClock, in_process_client};
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{CORE, TEST};

pub(crate) struct World {
    pub(crate) client: Client,
    server: Embedded,
}

/// A running set of controllers.
pub(crate) struct Manager {
    stop: CancellationToken,
    task: JoinHandle<()>,
    _guard: DropGuard,
}

impl Manager {
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

impl World {
    pub(crate) async fn start() -> Self {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
        let server = Embedded::start(EmbeddedOptions::in_memory(Arc::new(
            Pki::in_memory(jiff::Timestamp::now()).unwrap(),
        )))
        .await
        .unwrap();
        let client = in_process_client(server.service(), UserInfo::system_masters("test"));
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        let kinds = [
            "TestConfig",
            "TestConfigTemplate",
            "TestMachine",
            "TestMachineTemplate",
            "TestCluster",
            "TestControlPlane",
        ];
        let core = drover_api::crds().into_iter().filter(|crd| crd.spec.group == "cluster.x-k8s.io");
        for crd in core.chain(kinds.map(provider_crd)) {
            crds.create(&PostParams::default(), &crd).await.unwrap();
        }
        eventually("CRDs are served", || async {
            let list = crds.list(&ListParams::default()).await.unwrap();
            list.items.iter().all(|crd| {
                let conditions = crd.status.iter().flat_map(|status| status.conditions.iter().flatten());
                conditions.into_iter().any(|c| c.type_ == "Established" && c.status == "True")
            })
        })
        .await;
        Self { client, server }
    }

    /// Starts the controllers, whose writes may meet a fault.
    pub(crate) fn manager(&self, plan: Option<Arc<Plan>>) -> Manager {
        let plan = plan.unwrap_or_else(|| Plan::new(Fault::Lost, 0));
        let service = Faulty::new(self.server.service(), plan);
        self.manager_with(in_process_client(service, UserInfo::system_masters("manager")))
    }

    /// Starts the controllers, to whom an API in trouble does not list one kind before `go_on`.
    pub(crate) fn manager_without_list(&self, plural: &'static str, go_on: CancellationToken) -> Manager {
        let service = self.server.service();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (service, go_on) = (service.clone(), go_on.clone());
            async move {
                let is_list =
                    *request.method() == http::Method::GET && request.uri().path().ends_with(plural);
                if is_list {
                    go_on.cancelled().await;
                }
                tower::ServiceExt::oneshot(service, request).await
            }
        });
        self.manager_with(in_process_client(service, UserInfo::system_masters("manager")))
    }

    fn manager_with(&self, client: Client) -> Manager {
        let stop = CancellationToken::new();
        let caches = Caches::new(client, stop.clone());
        let below = Caches::new(self.client.clone(), stop.clone());
        let workload = Arc::new(Downstream { client: self.client.clone(), nodes: below.all() });
        let task = tokio::spawn(drover_capi::run(caches, workload, Arc::new(SystemClock), stop.clone()));
        Manager { _guard: stop.clone().drop_guard(), stop, task }
    }

    /// Plays the bootstrap and infrastructure provider until dropped.
    pub(crate) fn provider(&self) -> DropGuard {
        let stop = CancellationToken::new();
        let (client, guard) = (self.client.clone(), stop.clone().drop_guard());
        tokio::spawn(async move {
            while !stop.is_cancelled() {
                play_provider(&client).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        guard
    }

    /// A namespace with a Cluster `demo` whose providers are done, and templates.
    pub(crate) async fn cluster(&self, namespace: &str) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let object = serde_json::from_value(json!({ "metadata": { "name": namespace } })).unwrap();
        namespaces.create(&PostParams::default(), &object).await.unwrap();
        let provider = |kind: &str, status: Value| {
            json!({
                "apiVersion": TEST, "kind": kind, "metadata": { "name": "demo", "namespace": namespace },
                "spec": { "controlPlaneEndpoint": { "host": "localhost", "port": 6443 } },
                "status": status,
            })
        };
        self.create(provider("TestCluster", json!({ "initialization": { "provisioned": true } }))).await;
        self.create(provider(
            "TestControlPlane",
            json!({
                "initialization": { "controlPlaneInitialized": true },
                // No Machine of this world runs a control plane, yet Nodes may be drained and deleted.
                "externalManagedControlPlane": true,
            }),
        ))
        .await;
        let reference = |kind: &str| json!({ "apiGroup": "test.drover.io", "kind": kind, "name": "demo" });
        self.create(json!({
            "apiVersion": CORE, "kind": "Cluster", "metadata": { "name": "demo", "namespace": namespace },
            "spec": {
                "infrastructureRef": reference("TestCluster"), "controlPlaneRef": reference("TestControlPlane"),
            },
        }))
        .await;
        self.template(namespace, "TestConfigTemplate", "boot", json!({})).await;
    }

    pub(crate) async fn template(&self, namespace: &str, kind: &str, name: &str, spec: Value) {
        self.create(json!({
            "apiVersion": TEST, "kind": kind, "metadata": { "name": name, "namespace": namespace },
            "spec": { "template": { "spec": spec } },
        }))
        .await;
    }

    pub(crate) async fn deployment(&self, namespace: &str, replicas: i32, infra: &str) {
        if self.get(TEST, "TestMachineTemplate", namespace, infra).await.is_none() {
            self.template(namespace, "TestMachineTemplate", infra, json!({ "size": 1 })).await;
        }
        let mut deployment: drover_api::capi::v1beta2::MachineDeployment = serde_json::from_value(json!({
            "apiVersion": CORE, "kind": "MachineDeployment", "metadata": { "name": "md", "namespace": namespace },
            "spec": {
                "clusterName": "demo", "replicas": replicas, "selector": {},
                "template": { "spec": {
                    "clusterName": "demo",
                    "version": "v1.34.1+k3s1",
                    "bootstrap": {
                        "configRef": { "apiGroup": "test.drover.io", "kind": "TestConfigTemplate", "name": "boot" },
                    },
                    "infrastructureRef": { "apiGroup": "test.drover.io", "kind": "TestMachineTemplate", "name": infra },
                } },
            },
        }))
        .unwrap();
        drover_capi::admission::default_machine_deployment(&mut deployment, None);
        assert_eq!(drover_capi::admission::validate_machine_deployment(&deployment, None), []);
        self.create(serde_json::to_value(deployment).unwrap()).await;
    }

    /// Waits until nothing is written for a while, which is also what steady state promises.
    pub(crate) async fn idle(&self) {
        let start = Instant::now();
        let mut last = (self.revision().await, Instant::now());
        while last.1.elapsed() < Duration::from_millis(400) {
            assert!(start.elapsed() < Duration::from_secs(60), "writes never stop");
            tokio::time::sleep(Duration::from_millis(20)).await;
            let revision = self.revision().await;
            if revision != last.0 {
                last = (revision, Instant::now());
            }
        }
    }

    async fn revision(&self) -> BTreeMap<String, String> {
        let mut seen = BTreeMap::new();
        for kind in ["Cluster", "MachineDeployment", "MachineSet", "Machine"] {
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource(CORE, kind));
            for object in api.list(&ListParams::default()).await.unwrap().items {
                let key = format!("{kind} {}/{}", object.namespace().unwrap_or_default(), object.name_any());
                seen.insert(key, object.resource_version().unwrap_or_default());
            }
        }
        seen
    }

    pub(crate) async fn create(&self, object: Value) {
        let dynamic: DynamicObject = serde_json::from_value(object.clone()).unwrap();
        let resource = resource(object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        api.create(&PostParams::default(), &dynamic).await.unwrap();
    }

    pub(crate) async fn merge(&self, version: &str, kind: &str, namespace: &str, name: &str, patch: Value) {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource(version, kind));
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub(crate) async fn delete(&self, version: &str, kind: &str, namespace: &str, name: &str) {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource(version, kind));
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }

    pub(crate) async fn get(&self, version: &str, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource(version, kind));
        api.get_opt(name).await.unwrap().map(|object| json!(object))
    }

    pub(crate) async fn list(&self, version: &str, kind: &str, namespace: &str) -> Vec<Value> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource(version, kind));
        api.list(&ListParams::default()).await.unwrap().items.into_iter().map(|item| json!(item)).collect()
    }

    pub(crate) async fn nodes(&self) -> Vec<Node> {
        let api: Api<Node> = Api::all(self.client.clone());
        api.list(&ListParams::default()).await.unwrap().items
    }
}

pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut check: impl FnMut() -> F) {
    let start = Instant::now();
    while !check().await {
        assert!(start.elapsed() < Duration::from_secs(60), "not in 60 s: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn resource(api_version: &str, kind: &str) -> ApiResource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    ApiResource {
        group: group.into(),
        version: version.into(),
        api_version: api_version.into(),
        kind: kind.into(),
        plural: format!("{}s", kind.to_lowercase()),
    }
}

pub(crate) fn provider_crd(kind: &str) -> CustomResourceDefinition {
    let spec = if kind == "TestMachine" {
        json!({
            "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": { "size": { "type": "integer" } },
        })
    } else {
        json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
    };
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("{}s.test.drover.io", kind.to_lowercase()),
            "labels": { "cluster.x-k8s.io/v1beta1": "v1", "cluster.x-k8s.io/v1beta2": "v1" },
        },
        "spec": {
            "group": "test.drover.io", "scope": "Namespaced",
            "names": { "kind": kind, "plural": format!("{}s", kind.to_lowercase()), "singular": kind.to_lowercase() },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "properties": {
                    "spec": spec,
                    "status": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                } } },
            }],
        },
    }))
    .unwrap()
}

/// One turn: bootstrap data appears, servers whose Machine has data appear, and with them their Nodes.
async fn play_provider(client: &Client) {
    let all = |kind: &str| Api::<DynamicObject>::all_with(client.clone(), &resource(TEST, kind));
    let of = |kind: &str, namespace: &str| {
        Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource(TEST, kind))
    };
    let params = PatchParams::default();
    for config in
        all("TestConfig").list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default()
    {
        if config.data["status"].is_null() {
            let patch = json!({ "status": { "dataSecretName": "data", "initialization": { "dataSecretCreated": true } } });
            let api = of("TestConfig", &config.namespace().unwrap_or_default());
            let _ = api.patch(&config.name_any(), &params, &Patch::Merge(patch)).await;
        }
    }
    let machines: Api<drover_api::capi::v1beta2::Machine> = Api::all(client.clone());
    for machine in machines.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default() {
        let (name, namespace) = (machine.name_any(), machine.namespace().unwrap_or_default());
        if machine.spec.bootstrap.data_secret_name.is_none() || machine.spec.provider_id.is_some() {
            continue;
        }
        let id = format!("test://{namespace}/{name}");
        let node = json!({
            "metadata": { "name": name }, "spec": { "providerID": id },
            "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "R", "message": "" }] },
        });
        let nodes: Api<Node> = Api::all(client.clone());
        let _ = nodes.create(&PostParams::default(), &serde_json::from_value(node.clone()).unwrap()).await;
        let _ = nodes.patch_status(&name, &params, &Patch::Merge(json!({ "status": node["status"] }))).await;
        let patch =
            json!({ "spec": { "providerID": id }, "status": { "initialization": { "provisioned": true } } });
        let _ = of("TestMachine", &namespace).patch(&name, &params, &Patch::Merge(patch)).await;
    }
}

/// The managed cluster is the same API server: its Nodes are the test's Nodes.
struct Downstream {
    client: Client,
    nodes: Cache<Node>,
}

impl ClusterAccess for Downstream {
    fn cluster(&self, _: &ObjectKey) -> Result<ClusterHandle, Disconnected> {
        Ok(ClusterHandle::new(self.client.clone(), self.nodes.clone()))
    }

    fn on_change(&self, listener: Listener) {
        self.nodes.subscribe(move |change| {
            let id = change.either().and_then(|node| provider_id(node));
            let namespace = id.and_then(|id| id.strip_prefix("test://")?.split('/').next());
            let cluster = ObjectKey::new(namespace.unwrap_or_default(), "demo");
            listener(&ClusterChange { cluster: &cluster, node: Some(change) });
        });
    }
}
