//! Tokens that are bound to roles, a time or a number of machines, and what a registered machine must prove.

use std::sync::Arc;

use drover_provisioning::registration::connect::{Answer, Call};
use drover_testkit::demo;
use drover_testkit::objects::Objects;
use futures::future::join_all;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::custom::announced;
use crate::registration::{call, decoded, registration_token};
use crate::world::{Manager, World, until};

const CRT: (&str, &str) = ("management.cattle.io/v3", "ClusterRegistrationToken");
const ROLES: &str = "drover.io/registration-roles";
const LIMIT: &str = "drover.io/registration-limit";
const WORKER: (&str, &str) = ("role-worker", "true");

/// A cluster without pools, and the manager that registers servers for it.
async fn start() -> (Arc<World>, Manager, String) {
    let world = Arc::new(World::start().await);
    let manager = world.manager(None);
    let twin = announced(&world).await;
    (world, manager, twin)
}

/// A registration token with these annotations and this life in minutes: what machines present.
async fn token(world: &World, manager: &Manager, twin: &str, name: &str, notes: Value, ttl: i64) -> String {
    world
        .objects
        .create(json!({
            "apiVersion": CRT.0, "kind": CRT.1,
            "metadata": {"namespace": twin, "name": name, "annotations": notes},
            "spec": {"clusterName": twin, "ttl": ttl},
        }))
        .await;
    let secret = format!("crt-token-{name}");
    until("the token has a Secret", || async {
        world.objects.get("v1", "Secret", twin, &secret).await.is_some()
    })
    .await;
    let token = decoded(&world.objects.get("v1", "Secret", twin, &secret).await.unwrap(), "token");
    // A call without a machine ID creates nothing. Its answer shows whether the token is known.
    until("the endpoint knows the token", || async {
        let answer = manager.connect.agent(&call(&token, &[("id", "")])).await;
        answer.body.contains("X-Cattle-Id")
            && manager.connect.agent(&call(&token, &[("id", "x")])).await.body != "the token is not known"
    })
    .await;
    token
}

async fn machines(objects: &Objects) -> usize {
    demo::machines(objects).await.len()
}

/// Nothing was made for a call that was refused.
async fn refused(world: &World, manager: &Manager, call: &Call, status: u16, words: &[&str]) {
    let before = machines(&world.objects).await;
    let answer = manager.connect.agent(call).await;
    assert_eq!(answer.status, status, "{answer:?}");
    assert!(words.iter().all(|word| answer.body.contains(word)), "{words:?}: {answer:?}");
    assert!(!answer.body.contains("kubeConfig"), "{answer:?}");
    assert_eq!(machines(&world.objects).await, before);
    let secrets = world.objects.list("v1", "Secret").await;
    assert!(secrets.iter().all(|secret| secret["type"] != "rke.cattle.io/machine-request"));
}

/// The token in the kubeconfig of an answer.
fn credential(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{answer:?}");
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    let kubeconfig: Value = serde_json::from_str(body["kubeConfig"].as_str().unwrap()).unwrap();
    kubeconfig["users"][0]["user"]["token"].as_str().unwrap().to_owned()
}

/// What the agent of a machine writes once it runs.
async fn report(world: &World, answer: &Answer) {
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    let secrets: Api<Secret> = Api::namespaced(world.client_with(&credential(answer)), "default");
    let name = body["secretName"].as_str().unwrap();
    until("the agent reports", || async {
        let mut secret = secrets.get(name).await.unwrap();
        secret.data.get_or_insert_default().insert("probe-statuses".into(), ByteString(b"{}".to_vec()));
        secrets.replace(name, &PostParams::default(), &secret).await.is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_token_registers_no_server() {
    let (world, manager, twin) = start().await;
    let worker = token(&world, &manager, &twin, "w", json!({ROLES: "worker"}), 0).await;
    for role in ["role-etcd", "role-control-plane"] {
        let call = call(&worker, &[("id", "attacker"), WORKER, (role, "true")]);
        refused(&world, &manager, &call, 403, &["worker only", "get registration-command"]).await;
    }
    let answer = manager.connect.agent(&call(&worker, &[("id", "good"), WORKER])).await;
    assert_eq!(answer.status, 200, "{answer:?}");

    // A token for servers gives what it says, and one whose terms make no sense gives nothing.
    let server = token(&world, &manager, &twin, "s", json!({ROLES: "etcd,controlplane"}), 0).await;
    let roles = [("role-etcd", "true"), ("role-control-plane", "true")];
    refused(&world, &manager, &call(&server, &[("id", "s"), roles[0], WORKER]), 403, &["asks for worker"])
        .await;
    let answer = manager.connect.agent(&call(&server, &[("id", "s"), roles[0], roles[1]])).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let broken = token(&world, &manager, &twin, "b", json!({ROLES: "everything"}), 0).await;
    refused(&world, &manager, &call(&broken, &[("id", "b"), WORKER]), 403, &["everything"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_ends_with_its_time_and_is_removed_later() {
    let (world, manager, twin) = start().await;
    let token = token(&world, &manager, &twin, "brief", json!({ROLES: "worker"}), 60).await;
    until("the status says until when", || async {
        let object = world.objects.get(CRT.0, CRT.1, &twin, "brief").await.unwrap();
        object["status"]["expiresAt"].as_str().is_some_and(|text| text.ends_with('Z'))
    })
    .await;
    assert_eq!(manager.connect.agent(&call(&token, &[("id", "early"), WORKER])).await.status, 200);
    world.clock.advance(61 * 60);
    refused(&world, &manager, &call(&token, &[("id", "late"), WORKER]), 401, &["expired", "new command"])
        .await;

    world.clock.advance(25 * 60 * 60);
    // The timer runs on real time; any event makes the controller look at the clock.
    let patch = json!({"metadata": {"annotations": {"look": "again"}}});
    world.objects.merge(CRT.0, CRT.1, &twin, "brief", patch).await;
    until("the token is gone", || async {
        world.objects.get("v1", "Secret", &twin, "crt-token-brief").await.is_none()
    })
    .await;
    assert!(world.objects.get(CRT.0, CRT.1, &twin, "default-token").await.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limited_token_counts_machines_once_also_when_they_come_together() {
    let (world, manager, twin) = start().await;
    let token = token(&world, &manager, &twin, "two", json!({ROLES: "worker", LIMIT: "2"}), 0).await;
    let ids: Vec<String> = (0..6).map(|number| format!("m{number}")).collect();
    // Each server calls twice, as one that lost an answer.
    let calls = ids.iter().chain(&ids).map(|id| {
        let (manager, call) = (&manager, call(&token, &[("id", id), WORKER]));
        async move { (id, manager.connect.agent(&call).await) }
    });
    let answers = join_all(calls).await;
    let with = |status: u16| answers.iter().filter(|(_, answer)| answer.status == status).count();
    assert_eq!((with(200), with(403)), (4, 8), "{answers:?}");
    assert_eq!(machines(&world.objects).await, 2);
    let (full, answer) = answers.iter().find(|(_, answer)| answer.status == 403).unwrap();
    assert!(answer.body.contains("made for 2 machines"), "{full}: {answer:?}");

    // A machine that is gone gives its place to nobody else.
    let (taken, _) = answers.iter().find(|(_, answer)| answer.status == 200).unwrap();
    let machine = demo::machines(&world.objects).await;
    let machine =
        machine.iter().find(|m| m["metadata"]["labels"]["rke.cattle.io/machine-id"] == taken.as_str());
    let name = machine.unwrap()["metadata"]["name"].as_str().unwrap();
    world.objects.delete("cluster.x-k8s.io/v1beta2", "Machine", "default", name).await;
    until("the machine is gone", || async { machines(&world.objects).await == 1 }).await;
    refused(&world, &manager, &call(&token, &[("id", "new"), WORKER]), 403, &["made for 2 machines"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registered_machine_must_prove_that_it_is_the_one() {
    let (world, manager, twin) = start().await;
    let (first, second) = (
        registration_token(&world).await,
        token(&world, &manager, &twin, "w", json!({ROLES: "worker"}), 0).await,
    );
    let headers = [("id", "victim"), WORKER];
    let answer = manager.connect.agent(&call(&first, &headers)).await;
    let own = credential(&answer);

    // The answer was lost: the same token gets it again, for a short time. Another token does not.
    assert_eq!(manager.connect.agent(&call(&first, &headers)).await.body, answer.body);
    let sentence = ["victim", "does not prove", "cattle-id"];
    refused(&world, &manager, &call(&second, &headers), 409, &sentence).await;
    world.clock.advance(11 * 60);
    refused(&world, &manager, &call(&first, &headers), 409, &sentence).await;
    world.clock.advance(-11 * 60);
    assert_eq!(manager.connect.agent(&call(&first, &headers)).await.status, 200);

    // Once the agent runs, only the machine itself is answered.
    report(&world, &answer).await;
    until("the report is seen", || async {
        manager.connect.agent(&call(&first, &headers)).await.status == 409
    })
    .await;
    refused(
        &world,
        &manager,
        &call(&first, &[headers[0], WORKER, ("machine-token", "guess")]),
        409,
        &sentence,
    )
    .await;
    for token in [&first, &second] {
        let again = call(token, &[headers[0], WORKER, ("machine-token", &own)]);
        assert_eq!(credential(&manager.connect.agent(&again).await), own);
    }
    // The proof is kept nowhere.
    let kept = world.objects.list("v1", "Secret").await;
    let kept = kept.iter().filter(|secret| secret["type"] != "kubernetes.io/service-account-token");
    assert!(!json!(kept.collect::<Vec<_>>()).to_string().contains(&own));

    // A call with other roles than before gets an error instead of being ignored.
    let other = call(&first, &[headers[0], ("role-etcd", "true"), ("machine-token", &own)]);
    refused(&world, &manager, &other, 409, &["role worker", "asks for etcd", "delete the Machine"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_without_roles_can_be_switched_off() {
    let (world, manager, twin) = start().await;
    let unscoped = registration_token(&world).await;
    let scoped = token(&world, &manager, &twin, "w", json!({ROLES: "worker"}), 0).await;
    assert_eq!(manager.connect.agent(&call(&unscoped, &[("id", "a"), WORKER])).await.status, 200);
    world
        .objects
        .create(json!({
            "apiVersion": "management.cattle.io/v3", "kind": "Setting",
            "metadata": {"name": "registration-unscoped-tokens"}, "value": "false",
        }))
        .await;
    until("the setting is in force", || async {
        manager.connect.agent(&call(&unscoped, &[("id", "a"), WORKER])).await.status == 403
    })
    .await;
    let sentence = ["registration-unscoped-tokens", "get registration-command"];
    refused(&world, &manager, &call(&unscoped, &[("id", "b"), WORKER]), 403, &sentence).await;
    assert_eq!(manager.connect.agent(&call(&scoped, &[("id", "c"), WORKER])).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_calls_too_often_is_told_when_to_come_back() {
    let (world, manager, twin) = start().await;
    let (one, other) = (
        token(&world, &manager, &twin, "one", json!({ROLES: "worker"}), 0).await,
        token(&world, &manager, &twin, "other", json!({ROLES: "worker"}), 0).await,
    );
    let calls = |token: &str, number: usize, address: &str| {
        let mut call = call(token, &[("id", "")]);
        call.address = Some(address.parse().unwrap());
        join_all(vec![call; number].into_iter().map(|call| {
            let manager = &manager;
            async move { manager.connect.agent(&call).await }
        }))
    };
    let limited = |answers: &[Answer]| {
        let limited: Vec<_> = answers.iter().filter(|answer| answer.status == 429).cloned().collect();
        assert!(limited.iter().all(|answer| answer.retry_after >= Some(1)), "{limited:?}");
        limited.len()
    };
    let answers = calls(&one, 500, "10.0.0.1").await;
    assert!((200..=450).contains(&limited(&answers)), "{}", limited(&answers));
    assert_eq!(limited(&calls(&other, 10, "10.0.0.1").await), 0, "another token is not concerned");
    // Unknown tokens are counted together, by address; a good one from there is not concerned.
    assert!(limited(&calls("guess", 200, "10.0.0.2").await) > 100);
    assert_eq!(limited(&calls("guess", 10, "10.0.0.3").await), 0);
    assert_eq!(limited(&calls(&other, 10, "10.0.0.2").await), 0);
}
