//! Objects of a Cluster API provider that Drover does not contain.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::world::{World, until};

pub(crate) const CORE: &str = "cluster.x-k8s.io/v1beta2";
const GROUP: &str = "test.drover.io";

/// The kinds of the provider.
pub(crate) async fn make_kinds(world: &World) {
    let crds: Api<CustomResourceDefinition> = Api::all(world.manager.client.clone());
    let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    for kind in ["TestMachine", "TestControlPlane"] {
        let singular = kind.to_lowercase();
        let crd = json!({
            "metadata": {
                "name": format!("{singular}s.{GROUP}"),
                "labels": {"cluster.x-k8s.io/v1beta1": "v1", "cluster.x-k8s.io/v1beta2": "v1"},
            },
            "spec": {
                "group": GROUP, "scope": "Namespaced",
                "names": {"kind": kind, "plural": format!("{singular}s"), "singular": singular},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "properties": {"spec": anything, "status": anything},
                }}}],
            },
        });
        let made = crds.create(&PostParams::default(), &serde_json::from_value(crd).unwrap()).await.unwrap();
        let name = made.metadata.name.unwrap();
        until(async || {
            let conditions = crds.get(&name).await.unwrap().status.and_then(|status| status.conditions);
            conditions.iter().flatten().any(|c| c.type_ == "Established" && c.status == "True")
        })
        .await;
    }
}

async fn create(world: &World, object: Value) {
    let text = |key: &str| object[key].as_str().unwrap().to_owned();
    let api = world.api(&text("apiVersion"), &text("kind"), "default");
    api.create(&PostParams::default(), &serde_json::from_value(object.clone()).unwrap()).await.unwrap();
}

/// A Cluster with a complete control plane.
pub(crate) async fn make_cluster(world: &World, name: &str) {
    let version = format!("{GROUP}/v1");
    create(
        world,
        json!({
            "apiVersion": version, "kind": "TestControlPlane", "metadata": {"name": name}, "spec": {},
            // Otherwise Nodes of a cluster without control plane Machines are not drained.
            "status": {"initialization": {"controlPlaneInitialized": true}, "externalManagedControlPlane": true},
        }),
    )
    .await;
    create(
        world,
        json!({
            "apiVersion": CORE, "kind": "Cluster", "metadata": {"name": name},
            "spec": {"controlPlaneRef": {"apiGroup": GROUP, "kind": "TestControlPlane", "name": name}},
        }),
    )
    .await;
}

/// A Machine whose server has a provider id.
pub(crate) async fn make_machine(world: &World, cluster: &str, name: &str, provider_id: &str) {
    let version = format!("{GROUP}/v1");
    create(
        world,
        json!({
            "apiVersion": version, "kind": "TestMachine", "metadata": {"name": name},
            "spec": {"providerID": provider_id}, "status": {"initialization": {"provisioned": true}},
        }),
    )
    .await;
    create(
        world,
        json!({
            "apiVersion": CORE, "kind": "Machine", "metadata": {"name": name},
            "spec": {
                "clusterName": cluster, "bootstrap": {"dataSecretName": "data"},
                "infrastructureRef": {"apiGroup": GROUP, "kind": "TestMachine", "name": name},
            },
        }),
    )
    .await;
}

/// A kubeconfig with a token.
pub(crate) fn kubeconfig(server: &str, ca: Option<&str>, token: &str) -> String {
    let mut cluster = json!({"server": server});
    if let Some(ca) = ca {
        cluster["certificate-authority-data"] = json!(STANDARD.encode(ca));
    }
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "c", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    })
    .to_string()
}

/// Writes the Secret with the kubeconfig of a cluster.
pub(crate) async fn set_kubeconfig(world: &World, cluster: &str, labels: Value, kubeconfig: &str) {
    let secrets: Api<Secret> = Api::namespaced(world.manager.client.clone(), "default");
    let name = format!("{cluster}-kubeconfig");
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": labels},
        "type": "cluster.x-k8s.io/secret", "data": {"value": STANDARD.encode(kubeconfig)},
    });
    secrets.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(secret)).await.unwrap();
}

/// Status, reason and message of a condition.
pub(crate) async fn condition(world: &World, kind: &str, name: &str, type_: &str) -> [String; 3] {
    let object = world.get(CORE, kind, "default", name).await.unwrap_or_default();
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.into_iter().find(|c| c["type"] == type_).unwrap_or_default();
    ["status", "reason", "message"].map(|key| found[key].as_str().unwrap_or_default().to_owned())
}
