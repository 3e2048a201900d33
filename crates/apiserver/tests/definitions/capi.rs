//! Cluster API's own CRDs.

use serde_json::{Value, json};

use crate::harness::{CRDS, Server, capi_crds};

#[tokio::test]
async fn cluster_api_is_served_and_validates_objects() {
    let Some(crds) = capi_crds() else { return };
    let server = Server::start().await;
    for (_, crd) in &crds {
        let mut crd = crd.clone();
        // Only kustomize adds the conversion webhook; the base files have none.
        crd["spec"]["conversion"] = Value::Null;
        let made = server.post(CRDS, &crd).await;
        assert_eq!(made["kind"], "CustomResourceDefinition", "{made}");
    }
    let stored = server.get(CRDS).await;
    for crd in stored["items"].as_array().unwrap() {
        let established = crd["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .any(|c| c["type"] == "Established" && c["status"] == "True");
        assert!(established, "{}", crd["metadata"]["name"]);
    }
    let clusters = "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/clusters";
    let cluster = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": "c"},
        "spec": {"infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "X", "name": "c"},
                 "unknown": true},
    });
    let made = server.post(clusters, &cluster).await;
    assert_eq!(made["metadata"]["generation"], 1, "{made}");
    assert!(made["spec"].get("unknown").is_none());
    let older = server.get("/apis/cluster.x-k8s.io/v1beta1/namespaces/default/clusters/c").await;
    assert_eq!(older["apiVersion"], "cluster.x-k8s.io/v1beta1");
    let mut bad = cluster.clone();
    bad["metadata"]["name"] = "bad".into();
    bad["spec"]["infrastructureRef"]["name"] = "".into();
    let refused = server.post(clusters, &bad).await;
    assert_eq!((&refused["code"], &refused["reason"]), (&json!(422), &json!("Invalid")));
    assert_eq!(refused["details"]["causes"][0]["field"], "spec.infrastructureRef.name");
    let table = server.table(clusters).await;
    let names: Vec<_> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(&names[..4], ["Name", "ClusterClass", "Available", "CP Desired"], "{names:?}");

    let checks = "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machinehealthchecks";
    let check = |kind: &str| {
        json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineHealthCheck", "metadata": {"name": "m"},
            "spec": {"clusterName": "c", "selector": {"matchLabels": {"a": "b"}},
                     "checks": {"unhealthyMachineConditions": [{"type": kind, "status": "False", "timeoutSeconds": 300}]}}})
    };
    let refused = server.post(checks, &check("Ready")).await;
    assert_eq!(refused["code"], 422, "{refused}");
    let made = server.post(checks, &check("InfrastructureReady")).await;
    assert_eq!(made["kind"], "MachineHealthCheck", "{made}");
}
