//! Who may open the tunnel of a cluster. The holder of the tunnel acts as the cluster, so registrations of others
//! must not be recorded and their sessions not be used.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;

use crate::world::{Dialer, Downstream, Mortal, World, until};

const TWIN: (&str, &str) = ("management.cattle.io/v3", "Cluster");
const CREDENTIALS: &str = "cattle-global-data";

type Agent = JoinHandle<drover_tunnel::Error>;

fn dialer() -> Arc<Dialer> {
    Arc::new(Dialer::default())
}

/// Status and text of a rejected tunnel.
fn refused(opened: Result<Agent, drover_tunnel::Error>) -> (u16, String) {
    match opened {
        Err(drover_tunnel::Error::Refused { status, body }) => (status, body),
        Err(other) => panic!("not refused, but: {other}"),
        Ok(_) => panic!("the tunnel was accepted"),
    }
}

/// What is recorded about a cluster: the registration's part of the management Cluster with the time of its last
/// write, and the whole Secret. Other controllers also write the management Cluster. The endpoint is written last.
async fn record(world: &World, id: &str) -> (Value, Value, Value) {
    let twin = world.get(TWIN.0, TWIN.1, "", id).await.unwrap();
    let name = format!("cluster-serviceaccounttoken-{id}");
    let secret = world.get("v1", "Secret", CREDENTIALS, &name).await.unwrap_or_default();
    let status = &twin["status"];
    let endpoint = status["apiEndpoint"].clone();
    let managers = twin["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let written: Vec<_> =
        managers.into_iter().filter(|entry| entry["manager"] == "drover/access/registration").collect();
    let recorded = json!([written, endpoint, status["caCert"], status["serviceAccountTokenSecret"]]);
    (recorded, secret, endpoint)
}

/// A cluster whose own agent is connected and whose objects no longer change.
async fn connected(world: &World, cluster: &Downstream) -> (String, String, Agent) {
    let (id, token) = world.make_cluster("demo").await;
    let agent = world.agent(&token, &cluster.params().await, dialer()).await.unwrap();
    world.is_connected(&id).await;
    (id, token, agent)
}

/// A Secret created through the proxy is created in this cluster.
async fn leads_to(world: &World, id: &str, cluster: &Downstream, name: &str) {
    let there: Api<Secret> = Api::namespaced(world.proxied(id).await, "default");
    let secret = serde_json::from_value(json!({
        "metadata": {"name": name}, "stringData": {"password": "hunter2"},
    }));
    there.create(&PostParams::default(), &secret.unwrap()).await.unwrap();
    let here: Api<Secret> = Api::namespaced(cluster.client.clone(), "default");
    assert!(here.get_opt(name).await.unwrap().is_some(), "the Secret is not in the cluster");
}

async fn reported(world: &World, part: &str) {
    until(async || {
        let events = world.api("v1", "Event", "default").list(&Default::default()).await.unwrap();
        events.items.iter().map(|event| json!(event)).any(|event| {
            event["reason"] == "TunnelRefused"
                && event["involvedObject"]["name"] == "demo"
                && event["message"].as_str().is_some_and(|message| message.contains(part))
        })
    })
    .await;
}

async fn set_tokens_suffice(world: &World, value: &str) {
    let settings = world.api("management.cattle.io/v3", "Setting", "");
    let object = json!({
        "apiVersion": "management.cattle.io/v3", "kind": "Setting",
        "metadata": {"name": "tunnel-registration-token"}, "value": value,
    });
    settings
        .patch("tunnel-registration-token", &PatchParams::apply("test").force(), &Patch::Apply(object))
        .await
        .unwrap();
}

/// A tunnel that is opened with only the registration token, after the Setting has taken effect.
async fn accepted_by_token(world: &World, token: &str, params: &Value) -> Agent {
    let opened = async || {
        let opened = world.open(Some(token), None, params, dialer()).await;
        opened.map(Some).map_err(|error| error.to_string())
    };
    drover_testkit::eventually(opened).await.unwrap()
}

/// Attack (a): without an upgrade, with invented parameters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_an_upgrade_records_nothing() {
    let (world, cluster) = (World::start().await, Downstream::start().await);
    let (id, token, agent) = connected(&world, &cluster).await;
    let before = record(&world, &id).await;
    let params = json!({"cluster": {"address": "127.0.0.1:1", "token": "t", "caCert": "Y2E="}});
    for (token, params) in [(&token, params), (&token, Downstream::start().await.params().await)] {
        let mut stream = world.connection().await;
        let request = format!(
            "GET /v3/connect HTTP/1.1\r\nHost: drover\r\nX-API-Tunnel-Token: {token}\r\n\
             X-API-Tunnel-Params: {}\r\nConnection: close\r\n\r\n",
            STANDARD.encode(params.to_string()),
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    }
    assert_eq!(record(&world, &id).await, before);
    leads_to(&world, &id, &cluster, "one").await;
    assert_eq!(world.connected(&id).await.0, "True");
    agent.abort();
    world.stop().await;
}

/// Attack (b): with an upgrade and the attacker's own API.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_token_of_a_worker_command_does_not_open_the_tunnel() {
    let (world, cluster, attacker) =
        (World::start().await, Downstream::start().await, Downstream::start().await);
    let (id, token, agent) = connected(&world, &cluster).await;
    let worker = world.make_machine("demo", "worker", &["worker"]).await;
    world.report_ca(&worker, &attacker.ca).await;
    let (before, params) = (record(&world, &id).await, attacker.params().await);
    let (code, text) = refused(world.open(Some(&token), None, &params, dialer()).await);
    assert!(
        code == 403 && text.contains("a registration token alone does not open the tunnel"),
        "{code} {text}"
    );
    for token in [Some(token.as_str()), None] {
        let (code, text) = refused(world.open(token, Some(&worker.bearer), &params, dialer()).await);
        assert!(code == 403 && text.contains("neither the control-plane nor the etcd role"), "{code} {text}");
    }
    // Not with the right CA either.
    let (code, _) = refused(world.open(None, Some(&worker.bearer), &cluster.params().await, dialer()).await);
    assert_eq!(code, 403);
    reported(&world, "neither the control-plane nor the etcd role").await;
    reported(&world, "a registration token alone").await;
    assert_eq!(record(&world, &id).await, before);
    leads_to(&world, &id, &cluster, "password").await;
    assert!(attacker.asked.lock().is_empty(), "{:?}", attacker.asked.lock());
    assert_eq!(world.connected(&id).await.0, "True");
    agent.abort();
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_bearer_token_opens_no_tunnel() {
    let (world, cluster) = (World::start().await, Downstream::start().await);
    let (_, token) = world.make_cluster("demo").await;
    let (_, other) = world.make_cluster("other").await;
    let params = cluster.params().await;
    let (code, text) = refused(world.open(Some(&token), Some("made-up"), &params, dialer()).await);
    assert!(code == 401 && text.contains("credential of the machine is invalid"), "{code} {text}");
    let (code, text) = refused(world.open(None, None, &params, dialer()).await);
    assert_eq!((code, text.as_str()), (401, "failed authentication"));
    let machine = world.make_machine("demo", "cp", &["control-plane", "etcd"]).await;
    world.report_ca(&machine, &cluster.ca).await;
    let (code, text) = refused(world.open(Some(&other), Some(&machine.bearer), &params, dialer()).await);
    assert!(code == 403 && text.contains("of another cluster"), "{code} {text}");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_of_the_etcd_role_may_open_the_tunnel() {
    let (world, cluster) = (World::start().await, Downstream::start().await);
    let (id, _) = world.make_cluster("demo").await;
    let params = cluster.params().await;
    let etcd = world.make_machine("demo", "etcd", &["etcd"]).await;
    // Its own report does not count, and there is no other one yet.
    world.report_ca(&etcd, &cluster.ca).await;
    let (code, text) = refused(world.open(None, Some(&etcd.bearer), &params, dialer()).await);
    assert!(code == 503 && text.contains("no control-plane machine has reported"), "{code} {text}");
    let server = world.make_machine("demo", "server", &["control-plane"]).await;
    world.report_ca(&server, &cluster.ca).await;
    let agent = world.open(None, Some(&etcd.bearer), &params, dialer()).await.unwrap();
    world.is_connected(&id).await;
    leads_to(&world, &id, &cluster, "one").await;
    agent.abort();
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registration_with_another_ca_is_rejected_and_reported_and_a_rotation_is_accepted() {
    let (world, cluster, other) =
        (World::start().await, Downstream::start().await, Downstream::start().await);
    let (id, _) = world.make_cluster("demo").await;
    let machine = world.make_machine("demo", "cp", &["control-plane", "etcd"]).await;
    world.report_ca(&machine, &cluster.ca).await;
    let first = world.open(None, Some(&machine.bearer), &cluster.params().await, dialer()).await.unwrap();
    world.is_connected(&id).await;
    let before = record(&world, &id).await;
    let (code, text) =
        refused(world.open(None, Some(&machine.bearer), &other.params().await, dialer()).await);
    assert!(code == 403 && text.contains("its control-plane machines reported"), "{code} {text}");
    reported(&world, "machine default/cp registers the cluster with the CA").await;
    assert_eq!(record(&world, &id).await, before);
    leads_to(&world, &id, &cluster, "one").await;
    // A rotated CA is reported first, then registered.
    world.report_ca(&machine, &other.ca).await;
    let second = world.open(None, Some(&machine.bearer), &other.params().await, dialer()).await.unwrap();
    until(async || record(&world, &id).await.2 != before.2).await;
    first.abort();
    until(async || {
        let there: Api<Secret> = Api::namespaced(world.proxied(&id).await, "default");
        there.get_opt("none").await.is_ok()
    })
    .await;
    leads_to(&world, &id, &other, "two").await;
    second.abort();
    world.stop().await;
}

/// A session that fails verification is not recorded, and no request uses it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_that_does_not_answer_or_accept_its_credential_is_not_registered() {
    let (world, cluster) = (World::start().await, Downstream::start().await);
    let (id, token, agent) = connected(&world, &cluster).await;
    let before = record(&world, &id).await;
    let machine = world.make_machine("demo", "second", &["control-plane", "etcd"]).await;
    let mut wrong = cluster.params().await;
    wrong["cluster"]["token"] = json!("not-a-token-of-this-cluster");
    let unproven = world.open(Some(&token), Some(&machine.bearer), &wrong, dialer()).await.unwrap();
    let silent = Mortal::default();
    silent.die();
    let lost =
        world.open(None, Some(&machine.bearer), &cluster.params().await, Arc::new(silent)).await.unwrap();
    leads_to(&world, &id, &cluster, "one").await;
    unproven.await.unwrap();
    reported(&world, "the cluster's API answered 401").await;
    leads_to(&world, &id, &cluster, "two").await;
    lost.await.unwrap();
    reported(&world, "did not answer within").await;
    assert_eq!(record(&world, &id).await, before);
    leads_to(&world, &id, &cluster, "three").await;
    agent.abort();
    world.stop().await;
}

/// The value of a ClusterRegistrationToken, once it has one.
async fn value_of(world: &World, id: &str, token: &str) -> String {
    drover_testkit::eventually(async || {
        let secret = world.get("v1", "Secret", id, &format!("crt-token-{token}")).await;
        let secret = secret.ok_or("no secret yet")?;
        let token = STANDARD.decode(secret["data"]["token"].as_str().ok_or("no token yet")?).unwrap();
        Ok::<_, &str>(String::from_utf8(token).unwrap())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_registration_token_opens_the_tunnel_of_an_imported_cluster() {
    let (world, cluster) = (World::start().await, Downstream::start().await);
    let id = "c-imported";
    let token = json!({"metadata": {"namespace": id, "name": "default-token"}, "spec": {"clusterName": id}});
    for (kind, namespace, mut object) in [
        (("v1", "Namespace"), "", json!({"metadata": {"name": id}})),
        (TWIN, "", json!({"metadata": {"name": id}, "spec": {"displayName": "imported"}})),
        (("management.cattle.io/v3", "ClusterRegistrationToken"), id, token),
    ] {
        (object["apiVersion"], object["kind"]) = (json!(kind.0), json!(kind.1));
        let api = world.api(kind.0, kind.1, namespace);
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    }
    let token = value_of(&world, id, "default-token").await;
    let params = cluster.params().await;
    let agent = world.open(Some(&token), None, &params, dialer()).await.unwrap();
    world.is_connected(id).await;
    leads_to(&world, id, &cluster, "one").await;
    // A token for certain roles is not a credential of a cluster.
    let tokens = world.api("management.cattle.io/v3", "ClusterRegistrationToken", id);
    let scoped = json!({
        "apiVersion": "management.cattle.io/v3", "kind": "ClusterRegistrationToken",
        "metadata": {
            "namespace": id, "name": "workers", "annotations": {"drover.io/registration-roles": "worker"},
        },
        "spec": {"clusterName": id},
    });
    tokens.create(&PostParams::default(), &serde_json::from_value(scoped).unwrap()).await.unwrap();
    let scoped = value_of(&world, id, "workers").await;
    until(async || match world.open(Some(&scoped), None, &params, dialer()).await {
        Err(drover_tunnel::Error::Refused { status: 403, body }) => {
            body.contains("machines of certain roles")
        }
        _ => false,
    })
    .await;
    agent.abort();
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_setting_permits_a_registration_token_but_never_over_a_machine() {
    let (world, cluster) = (World::start().await, Downstream::start().await);
    let (id, token) = world.make_cluster("demo").await;
    let params = cluster.params().await;
    let by_token = async || world.open(Some(&token), None, &params, dialer()).await;
    assert_eq!(refused(by_token().await).0, 403);
    set_tokens_suffice(&world, "true").await;
    let first = accepted_by_token(&world, &token, &params).await;
    world.is_connected(&id).await;
    // When the setting is removed, sessions that it permitted end.
    set_tokens_suffice(&world, "false").await;
    first.await.unwrap();
    assert_eq!(refused(by_token().await).0, 403);

    // A machine's registration replaces a token's, and is never replaced by one.
    set_tokens_suffice(&world, "true").await;
    let second = accepted_by_token(&world, &token, &params).await;
    world.is_connected(&id).await;
    let machine = world.make_machine("demo", "cp", &["control-plane", "etcd"]).await;
    world.report_ca(&machine, &cluster.ca).await;
    let agent = world.open(None, Some(&machine.bearer), &params, dialer()).await.unwrap();
    second.await.unwrap();
    world.is_connected(&id).await;
    let over = |(code, text): (u16, String)| {
        assert!(code == 403 && text.contains("machine default/cp has registered"), "{code} {text}");
    };
    over(refused(by_token().await));
    agent.abort();
    until(async || world.connected(&id).await.0 == "False").await;
    over(refused(by_token().await));

    // A deleted machine has no registration; its tunnel would end, too.
    let agent = world.open(None, Some(&machine.bearer), &params, dialer()).await.unwrap();
    world.is_connected(&id).await;
    let machines = world.api("cluster.x-k8s.io/v1beta2", "Machine", "default");
    machines.delete("cp", &DeleteParams::default()).await.unwrap();
    let finalizers = Patch::Merge(json!({"metadata": {"finalizers": null, "annotations": null}}));
    until(async || {
        let _ = machines.patch("cp", &PatchParams::default(), &finalizers).await;
        machines.get_opt("cp").await.unwrap().is_none()
    })
    .await;
    agent.await.unwrap();
    let last = accepted_by_token(&world, &token, &params).await;
    world.is_connected(&id).await;
    last.abort();
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_record_is_corrected_while_the_tunnel_is_open_and_when_it_is_opened() {
    let (world, cluster) = (World::start().await, Downstream::start().await);
    let (id, token, agent) = connected(&world, &cluster).await;
    let right = record(&world, &id).await.2;
    let twins = world.api(TWIN.0, TWIN.1, "");
    let wrong = Patch::Merge(json!({"status": {"apiEndpoint": "https://127.0.0.1:1", "caCert": "Y2E="}}));
    twins.patch_status(&id, &PatchParams::default(), &wrong).await.unwrap();
    until(async || record(&world, &id).await.2 == right && world.connected(&id).await.0 == "True").await;
    leads_to(&world, &id, &cluster, "one").await;
    let secrets: Api<Secret> = Api::namespaced(world.manager.client.clone(), CREDENTIALS);
    let name = format!("cluster-serviceaccounttoken-{id}");
    let stolen = Patch::Merge(json!({"data": {"credential": STANDARD.encode("other")}}));
    secrets.patch(&name, &PatchParams::default(), &stolen).await.unwrap();
    let credential = async || {
        let secret = secrets.get_opt(&name).await.unwrap();
        secret.map(|secret| crate::world::text(&secret, "credential")).unwrap_or_default()
    };
    until(async || !["", "other"].contains(&credential().await.as_str())).await;
    secrets.delete(&name, &DeleteParams::default()).await.unwrap();
    until(async || !["", "other"].contains(&credential().await.as_str())).await;
    until(async || world.connected(&id).await.0 == "True").await;
    leads_to(&world, &id, &cluster, "two").await;

    // Changed while no tunnel is open: corrected when the right agent connects.
    agent.abort();
    until(async || world.connected(&id).await.0 == "False").await;
    twins.patch_status(&id, &PatchParams::default(), &wrong).await.unwrap();
    let agent = world.agent(&token, &cluster.params().await, dialer()).await.unwrap();
    world.is_connected(&id).await;
    assert_eq!(record(&world, &id).await.2, right);
    leads_to(&world, &id, &cluster, "three").await;
    agent.abort();
    world.stop().await;
}
