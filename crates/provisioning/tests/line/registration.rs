//! Machines that register.

use std::collections::BTreeMap;
use std::sync::Arc;

use drover_provisioning::registration::connect::Call;
use drover_testkit::{demo, eventually_within};
use serde_json::Value;

use crate::players::play;
use crate::world::World;

fn call(bearer: &str, headers: &[(&str, &str)]) -> Call {
    let headers: BTreeMap<String, Vec<String>> =
        headers.iter().map(|(key, value)| (key.to_string(), vec![value.to_string()])).collect();
    Call { bearer: bearer.to_owned(), headers, host: "example".into() }
}

fn decoded(secret: &Value, key: &str) -> String {
    use base64::Engine as _;
    let text = secret["data"][key].as_str().unwrap_or_default();
    String::from_utf8(base64::engine::general_purpose::STANDARD.decode(text).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_17_18_20_21_tokens_and_custom_machines() {
    let world = Arc::new(World::start().await);
    let manager = world.manager(None);
    let players = play(&world);
    let objects = &world.objects;
    demo::make(objects).await;
    demo::ready(objects, "provisioned").await;

    // No id, wrong token: refused, and nothing is made (check 18).
    assert_eq!(manager.connect.agent(&call("random", &[])).await.status, 401);
    assert_eq!(manager.connect.agent(&call("random", &[("id", "x")])).await.status, 401);

    // The bootstrap script's token gets the machine's own plan (check 17).
    let secrets = objects.list("v1", "Secret").await;
    let bootstrap = secrets.iter().find(|secret| secret["type"] == "rke.cattle.io/bootstrap").unwrap();
    let script = decoded(bootstrap, "value");
    let token =
        script.lines().find_map(|line| line.strip_prefix("CATTLE_TOKEN=\"")?.strip_suffix('"')).unwrap();
    let answer = manager.connect.agent(&call(token, &[("id", "abc")])).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    let bootstrap_name = bootstrap["metadata"]["name"].as_str().unwrap();
    let plan = bootstrap_name.replace("-machine-bootstrap", "-machine-plan");
    assert_eq!(
        (body["namespace"].as_str(), body["secretName"].as_str()),
        (Some("default"), Some(plan.as_str()))
    );
    let kubeconfig: Value = serde_json::from_str(body["kubeConfig"].as_str().unwrap()).unwrap();
    assert_eq!(kubeconfig["clusters"][0]["cluster"]["server"], "https://10.0.0.1:8443");

    // A server that a person brought joins with the cluster's token (checks 20, 21).
    let twin = demo::cluster(objects).await["status"]["clusterName"].as_str().unwrap().to_owned();
    let crt = objects.get("v1", "Secret", &twin, "crt-token-default-token").await.unwrap();
    let token = decoded(&crt, "token");
    assert_eq!(token.len(), 54);
    let headers = [("id", "my-server"), ("role-worker", "true"), ("labels", "zone=a"), ("node-name", "mine")];
    let answer = manager.connect.agent(&call(&token, &headers)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let again = manager.connect.agent(&call(&token, &headers)).await;
    assert_eq!(again.body, answer.body, "the same server gets the same answer");
    let custom: Vec<Value> = demo::machines(objects)
        .await
        .into_iter()
        .filter(|machine| machine["metadata"]["name"].as_str().unwrap().starts_with("custom-"))
        .collect();
    assert_eq!(custom.len(), 1);
    assert_eq!(custom[0]["metadata"]["labels"]["zone"], "a");
    eventually_within(demo::PATIENCE, || async {
        let machines = demo::machines(objects).await;
        let joined = machines.iter().any(|machine| {
            machine["metadata"]["name"] == custom[0]["metadata"]["name"]
                && machine["status"]["nodeRef"]["name"].is_string()
        });
        if joined { Ok(()) } else { Err("the custom machine is no node") }
    })
    .await;
    players.abort();
}
