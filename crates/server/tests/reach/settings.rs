//! Settings take effect at once, and invalid ones are rejected.

use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::refusal;
use crate::world::{World, until};

const HERE: &str = "https://drover.example:8443";

async fn set(world: &World, name: &str, value: &str) {
    let settings = world.api("management.cattle.io/v3", "Setting", "");
    let patch = Patch::Merge(json!({"value": value}));
    settings.patch(name, &PatchParams::default(), &patch).await.unwrap();
}

/// Waits until machines and users are given this address.
async fn used(world: &World, id: &str, url: &str) {
    until(async || {
        let token = ("management.cattle.io/v3", "ClusterRegistrationToken");
        let token = world.get(token.0, token.1, id, "default-token").await.unwrap_or_default();
        let command = token["status"]["nodeCommand"].as_str().unwrap_or_default();
        let request = http::Request::get("/system-agent-install.sh").body(vec![]).unwrap();
        let script = world.admin.request_text(request).await.unwrap();
        command.contains(&format!("{url}/system-agent-install.sh"))
            && script.contains(&format!("{url}/assets"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_setting_takes_effect_at_once() {
    let world = World::start().await;
    let (id, _) = world.make_cluster("demo").await;
    let url = world.manager.url.clone();
    used(&world, &id, &url).await;
    assert!(!world.is_called("drover.example").await);

    set(&world, "server-url", HERE).await;
    used(&world, &id, HERE).await;
    until(async || world.is_called("drover.example").await && world.is_called("localhost").await).await;

    set(&world, "server-url", "").await;
    used(&world, &id, &url).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_setting_is_rejected_and_an_unknown_one_gives_a_warning() {
    let world = World::start().await;
    let settings = world.api("management.cattle.io/v3", "Setting", "");
    let make = async |name: &str, value: &str| {
        let object = json!({
            "apiVersion": "management.cattle.io/v3", "kind": "Setting", "metadata": {"name": name}, "value": value,
        });
        settings.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await
    };
    let (code, text) = refusal(make("agent-tls-mode", "perhaps").await);
    assert!(code == 422 && text.contains("\"perhaps\" is not strict or system-store"), "{text}");
    make("agent-tls-mode", "system-store").await.unwrap();
    until(async || {
        let request = http::Request::get("/system-agent-install.sh").body(vec![]).unwrap();
        world.admin.request_text(request).await.unwrap().contains("STRICT_VERIFY:-false")
    })
    .await;
    make("brand", "mine").await.unwrap();
    until(async || {
        let events = world.api("v1", "Event", "default").list(&Default::default()).await.unwrap();
        let is_reported =
            |event: &Value| event["involvedObject"]["name"] == "brand" && event["reason"] == "NotInEffect";
        events.items.iter().any(|event| is_reported(&json!(event)))
    })
    .await;
    world.stop().await;
}
