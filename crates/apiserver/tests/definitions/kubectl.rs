//! Check 1: kubectl works without warnings.

use serde_json::json;

use crate::harness::{CRDS, Server, capi_crds, tank_crd};

const TANK: &str = "
apiVersion: example.com/v1
kind: Tank
metadata: {name: t, namespace: default}
spec: {color: green, crew: [{name: joe}]}
";

#[tokio::test]
async fn a_crd_and_its_first_object_in_one_file() {
    let server = Server::start().await;
    let file = server.file("both.yaml", &format!("# YAML\n{}\n---{TANK}", tank_crd()));
    // kubectl refreshes its discovery for an unknown kind only if the cache is from an earlier run.
    if server.kubectl(&["get", "namespaces"]).await.is_none() {
        return;
    }
    // `create` resolves each kind when it reaches it, so the CRD must be served when its create returns.
    let Some(created) = server.kubectl(&["create", "-f", &file]).await else { return };
    let created = created.clean();
    assert!(
        created.contains("tanks.example.com created") && created.contains("tank.example.com/t created"),
        "{created}"
    );
    let applied =
        server.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &file]).await.unwrap().clean();
    assert!(applied.contains("tank.example.com/t serverside-applied"), "{applied}");
    let wide = server.kubectl(&["get", "tk", "-n", "default", "-o", "wide"]).await.unwrap().clean();
    let mut lines = wide.lines();
    assert_eq!(
        lines.next().unwrap().split_whitespace().collect::<Vec<_>>(),
        ["NAME", "SIZE", "COLOR", "AGE"]
    );
    assert!(lines.next().unwrap().starts_with("t "), "{wide}");
    let waited = server
        .kubectl(&["wait", "--for=condition=Established", "crd/tanks.example.com", "--timeout=5s"])
        .await;
    waited.unwrap().clean();
    let deleted =
        server.kubectl(&["delete", "crd", "tanks.example.com", "--timeout=20s"]).await.unwrap().clean();
    assert!(deleted.contains("deleted"), "{deleted}");
}

#[tokio::test]
async fn apply_merges_custom_resources_and_rejects_mistakes() {
    let server = Server::start().await;
    server.post(CRDS, &tank_crd()).await;
    let file = server.file("tank.yaml", TANK);
    let Some(first) = server.kubectl(&["apply", "-f", &file]).await else { return };
    first.clean();
    server.kubectl(&["label", "tank", "t", "-n", "default", "by=hand"]).await.unwrap().clean();
    let changed = server.file("tank.yaml", &TANK.replace("green", "grey"));
    let second = server.kubectl(&["apply", "-f", &changed]).await.unwrap().clean();
    assert!(second.contains("configured"), "{second}");
    let tank = server.get("/apis/example.com/v1/namespaces/default/tanks/t").await;
    assert_eq!((&tank["spec"]["color"], &tank["metadata"]["labels"]["by"]), (&json!("grey"), &json!("hand")));
    let diff = server.kubectl(&["diff", "-f", &changed]).await.unwrap().clean();
    assert_eq!(diff, "");
    let typo = server.file("typo.yaml", &TANK.replace("color: green", "colour: green"));
    let refused = server.kubectl(&["apply", "-f", &typo]).await.unwrap();
    assert!(!refused.ok && refused.err.contains("unknown field \"spec.colour\""), "{refused:?}");
    let invalid = server.file("invalid.yaml", &TANK.replace("green", "pink"));
    let refused = server.kubectl(&["apply", "-f", &invalid]).await.unwrap();
    assert!(!refused.ok && refused.err.contains("supported values: \"green\", \"grey\""), "{refused:?}");
}

#[tokio::test]
async fn apply_merges_built_in_lists_by_key() {
    let server = Server::start().await;
    let deployment = |image: &str| {
        let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": {
            "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": image}]}}});
        let metadata = json!({"name": "d", "namespace": "default"});
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}).to_string()
    };
    let file = server.file("d.json", &deployment("one"));
    let Some(first) = server.kubectl(&["apply", "-f", &file]).await else { return };
    first.clean();
    let sidecar = r#"{"spec":{"template":{"spec":{"containers":[{"name":"sidecar","image":"s"}]}}}}"#;
    server.kubectl(&["patch", "deploy", "d", "-n", "default", "-p", sidecar]).await.unwrap().clean();
    let file = server.file("d.json", &deployment("two"));
    server.kubectl(&["apply", "-f", &file]).await.unwrap().clean();
    let stored = server.get("/apis/apps/v1/namespaces/default/deployments/d").await;
    let mut images: Vec<_> = stored["spec"]["template"]["spec"]["containers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["image"].as_str().unwrap())
        .collect();
    images.sort_unstable();
    assert_eq!(images, ["s", "two"]);
    let wide = server.kubectl(&["get", "deploy", "-n", "default", "-o", "wide"]).await.unwrap().clean();
    assert!(wide.starts_with("NAME   READY   UP-TO-DATE   AVAILABLE   AGE   CONTAINERS"), "{wide}");
}

#[tokio::test]
async fn explain_describes_built_in_and_custom_kinds() {
    let server = Server::start().await;
    server.post(CRDS, &tank_crd()).await;
    let Some(pods) = server.kubectl(&["explain", "pods.spec.containers"]).await else { return };
    let pods = pods.clean();
    for part in ["KIND:       Pod", "FIELD: containers <[]Container>", "imagePullPolicy", "-required-"] {
        assert!(pods.contains(part), "{part}: {pods}");
    }
    let tank = server.kubectl(&["explain", "tank.spec.size"]).await.unwrap().clean();
    assert!(tank.contains("GROUP:      example.com") && tank.contains("How big it is."), "{tank}");
    let resources = server.kubectl(&["api-resources"]).await.unwrap().clean();
    assert!(
        resources
            .lines()
            .any(|l| l.starts_with("tanks ") && l.contains("example.com/v1") && l.ends_with("Tank"))
    );
    let Some(crds) = capi_crds() else { return };
    for (_, crd) in crds.iter().filter(|(_, c)| c["spec"]["names"]["kind"] == "Cluster") {
        server.post(CRDS, crd).await;
    }
    let cluster = server.kubectl(&["explain", "cluster.spec", "--recursive"]).await.unwrap().clean();
    for part in ["VERSION:    v1beta2", "infrastructureRef", "cidrBlocks", "topology"] {
        assert!(cluster.contains(part), "{part}: {cluster}");
    }
    let wide = server.kubectl(&["get", "crd", "-o", "wide"]).await.unwrap().clean();
    assert!(wide.starts_with("NAME") && wide.contains("CREATED AT"), "{wide}");
}

#[tokio::test]
async fn an_unserved_kind_is_reported() {
    let server = Server::start().await;
    let file = server.file("none.yaml", &TANK.replace("kind: Tank", "kind: Boat"));
    for verb in ["apply", "create"] {
        let Some(refused) = server.kubectl(&[verb, "-f", &file]).await else { return };
        assert!(refused.err.contains("no matches for kind \"Boat\""), "{verb}: {}", refused.err);
    }
}
