//! Machines that register.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use drover_provisioning::registration::connect::Call;
use drover_testkit::demo;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Client;
use kube::api::{
    Api, ApiResource, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

use crate::custom::announced;
use crate::players::provisioned;
use crate::world::{Manager, World, until};

pub(crate) fn call(bearer: &str, headers: &[(&str, &str)]) -> Call {
    let headers: BTreeMap<String, Vec<String>> =
        headers.iter().map(|(key, value)| (key.to_string(), vec![value.to_string()])).collect();
    Call { bearer: bearer.to_owned(), headers, host: "example".into(), address: None }
}

pub(crate) fn decoded(secret: &Value, key: &str) -> String {
    use base64::Engine as _;
    let text = secret["data"][key].as_str().unwrap_or_default();
    String::from_utf8(base64::engine::general_purpose::STANDARD.decode(text).unwrap()).unwrap()
}

/// Name of each bootstrap secret, and the token in its script.
pub(crate) async fn bootstrap_tokens(world: &World) -> Vec<(String, String)> {
    let secrets = world.objects.list("v1", "Secret").await;
    let scripts = secrets.iter().filter(|secret| secret["type"] == "rke.cattle.io/bootstrap");
    scripts
        .map(|secret| {
            let script = decoded(secret, "value");
            let token =
                |line: &str| line.strip_prefix("CATTLE_TOKEN=\"")?.strip_suffix('"').map(str::to_owned);
            let token = script.lines().find_map(token).unwrap();
            (secret["metadata"]["name"].as_str().unwrap().to_owned(), token)
        })
        .collect()
}

/// What servers that people bring present.
pub(crate) async fn registration_token(world: &World) -> String {
    let twin =
        demo::cluster(&world.objects).await["status"]["clusterName"].as_str().unwrap_or_default().to_owned();
    let crt = world.objects.get("v1", "Secret", &twin, "crt-token-default-token").await.unwrap();
    decoded(&crt, "token")
}

/// Registers with a bootstrap token: the plan secret's name, and a client with the credential that was given.
pub(crate) async fn registered(world: &World, manager: &Manager, token: &str, id: &str) -> (String, Client) {
    let answer = manager.connect.agent(&call(token, &[("id", id)])).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    let kubeconfig: Value = serde_json::from_str(body["kubeConfig"].as_str().unwrap()).unwrap();
    let token = kubeconfig["users"][0]["user"]["token"].as_str().unwrap();
    (body["secretName"].as_str().unwrap().to_owned(), world.client_with(token))
}

/// The UIDs of all Secrets and Machines, which distinguish them from later objects of the same name.
async fn uids(world: &World) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (api_version, kind) in [("v1", "Secret"), ("cluster.x-k8s.io/v1beta2", "Machine")] {
        for object in world.objects.list(api_version, kind).await {
            let meta = &object["metadata"];
            found.insert(format!("{kind} {} {} {}", meta["namespace"], meta["name"], meta["uid"]));
        }
    }
    found
}

/// Requests of servers that people bring.
async fn requests(world: &World) -> Vec<Value> {
    let secrets = world.objects.list("v1", "Secret").await;
    secrets.into_iter().filter(|secret| secret["type"] == "rke.cattle.io/machine-request").collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_18_a_call_without_id_or_with_a_wrong_token_leaves_nothing() {
    let (world, manager, _players) = provisioned().await;
    let bootstrap = bootstrap_tokens(&world).await.remove(0).1;
    let registration = registration_token(&world).await;
    let before = uids(&world).await;
    let id = [("id", "x"), ("role-worker", "true")];
    let calls: [(&str, &[(&str, &str)]); 7] = [
        (&bootstrap, &[]),
        (&bootstrap, &[("id", "")]),
        (&registration, &[]),
        (&registration, &[("id", ""), ("role-worker", "true")]),
        ("random", &[]),
        ("random", &id),
        ("", &id),
    ];
    for (token, headers) in calls {
        let answer = manager.connect.agent(&call(token, headers)).await;
        assert_eq!(answer.status, 401, "{token:?} {headers:?}: {answer:?}");
    }
    // Others may still tidy up: what is new matters.
    let made: Vec<String> = uids(&world).await.difference(&before).cloned().collect();
    assert_eq!(made, Vec::<String>::new());
    // Nor do such calls count as use: past thirty seconds the token is still good.
    world.clock.advance(60);
    assert_eq!(manager.connect.agent(&call(&bootstrap, &[("id", "x")])).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_that_no_machine_can_have_are_refused_at_once_and_leave_nothing() {
    let (world, manager, _players) = provisioned().await;
    let bootstrap = bootstrap_tokens(&world).await.remove(0).1;
    let registration = registration_token(&world).await;
    let before = uids(&world).await;
    let refused = async |token: &str, headers: &[(&str, &str)], word: &str| {
        let call = call(token, headers);
        // Far less than the time for which a call is held.
        let answer = tokio::time::timeout(Duration::from_secs(20), manager.connect.agent(&call)).await;
        let answer = answer.unwrap_or_else(|_| panic!("{headers:?}: no answer"));
        assert_eq!(answer.status, 400, "{headers:?}: {answer:?}");
        assert!(answer.body.contains(word), "{headers:?}: {answer:?}");
    };
    for token in [&bootstrap, &registration] {
        refused(token, &[("id", "../../../etc"), ("role-worker", "true")], "../../../etc").await;
    }
    for (header, value, word) in [
        ("labels", "foo=!!", "label foo"),
        ("labels", "a b=c", "\"a b\""),
        ("labels", "cattle.io/os=linux,zone=bad/value", "bad/value"),
        ("labels", "rke.cattle.io/etcd-role=true", "rke.cattle.io/etcd-role"),
        ("taints", "nonsense", "nonsense"),
        ("taints", "a=b:Bogus", "Bogus"),
        ("node-name", "BAD_Name/..", "BAD_Name/.."),
        ("labels", "cattle.io/owner=me", "cattle.io/owner"),
        ("labels", "node.cluster.x-k8s.io/x=y", "node.cluster.x-k8s.io/x"),
        ("address", "127.0.0.1", "X-Cattle-Address"),
        ("internal-address", "10.0.0.300", "10.0.0.300"),
    ] {
        refused(&registration, &[("id", "x"), ("role-worker", "true"), (header, value)], word).await;
    }
    let made: Vec<String> = uids(&world).await.difference(&before).cloned().collect();
    assert_eq!(made, Vec::<String>::new());

    // An unknown token is reported before any other error.
    let unknown = call("random", &[("id", "x"), ("taints", "nonsense")]);
    assert_eq!(manager.connect.agent(&unknown).await.status, 401);
    // What was refused was no use of the token; and a machine of a pool is what its pool says, whatever it sends.
    world.clock.advance(60);
    let pooled = call(&bootstrap, &[("id", "y"), ("labels", "foo=!!"), ("node-name", "BAD_Name/..")]);
    assert_eq!(manager.connect.agent(&pooled).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_needs_a_role_and_nothing_else() {
    let (world, manager, _players) = provisioned().await;
    let token = registration_token(&world).await;
    let before = uids(&world).await;
    let mut headers =
        vec![("id", "bare"), ("role-etcd", ""), ("labels", ""), ("taints", ""), ("node-name", "")];
    let answer = manager.connect.agent(&call(&token, &headers)).await;
    assert!(answer.status == 400 && answer.body.contains("no role"), "{answer:?}");
    assert_eq!(uids(&world).await.difference(&before).count(), 0);
    headers.push(("role-worker", "true"));
    let answer = manager.connect.agent(&call(&token, &headers)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let machines = demo::machines(&world.objects).await;
    let marks = machines.iter().map(|machine| &machine["metadata"]["labels"]);
    let bare = marks.into_iter().find(|labels| labels["rke.cattle.io/machine-id"] == "bare").unwrap();
    assert!(!bare.to_string().contains("etcd-role"), "{bare:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_check_16_a_registration_token_is_in_its_secret_and_nowhere_else() {
    let world = World::start().await;
    let _manager = world.manager(None);
    let twin = announced(&world).await;
    let token = registration_token(&world).await;
    let kind = ("management.cattle.io/v3", "ClusterRegistrationToken");
    let object = || async { world.objects.get(kind.0, kind.1, &twin, "default-token").await.unwrap() };
    until("the commands are there", || async { object().await["status"]["nodeCommand"].is_string() }).await;
    let object = object().await;
    let status = &object["status"];
    assert_eq!(status["token"].as_str().unwrap_or_default(), "", "{object:#}");
    assert_eq!(status["tokenSecretName"], "crt-token-default-token");
    for command in ["command", "insecureCommand", "nodeCommand", "insecureNodeCommand", "manifestUrl"] {
        assert!(
            status[command].as_str().is_some_and(|text| text.contains("{token}")),
            "{command}: {status:#}"
        );
    }
    assert!(token.len() > 40 && !object.to_string().contains(&token), "{object:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_20_a_request_that_a_killed_manager_left_goes_after_its_life() {
    let world = World::start().await;
    let manager = world.manager(None);
    let twin = announced(&world).await;
    manager.stop().await;
    // Written for a server, whose caller then saw the manager die.
    let headers = json!({"id": ["x"], "role-worker": ["true"]}).to_string();
    world
        .objects
        .create(json!({
            "apiVersion": "v1", "kind": "Secret", "type": "rke.cattle.io/machine-request",
            "metadata": {"namespace": twin, "name": "custom-0123456789ab"}, "stringData": {"data": headers},
        }))
        .await;
    let second = world.manager(None);
    until("the next manager answers the request", || async {
        let left = requests(&world).await;
        left.iter()
            .any(|secret| secret["metadata"]["labels"]["rke.cattle.io/machine-name"] == "custom-0123456789ab")
    })
    .await;
    second.stop().await;
    world.clock.advance(61);
    let _third = world.manager(None);
    until("the request is gone", || async { requests(&world).await.is_empty() }).await;
    let machines = demo::machines(&world.objects).await;
    assert_eq!(machines.len(), 1, "what it asked for stays: {machines:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_check_17_20_21_tokens_and_custom_machines() {
    let (world, manager, _players) = provisioned().await;

    // The bootstrap script's token gets the machine's own plan (check 17).
    let (bootstrap_name, token) = bootstrap_tokens(&world).await.remove(0);
    let answer = manager.connect.agent(&call(&token, &[("id", "abc")])).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    let plan = bootstrap_name.replace("-machine-bootstrap", "-machine-plan");
    assert_eq!(
        (body["namespace"].as_str(), body["secretName"].as_str()),
        (Some("default"), Some(plan.as_str()))
    );
    let kubeconfig: Value = serde_json::from_str(body["kubeConfig"].as_str().unwrap()).unwrap();
    assert_eq!(kubeconfig["clusters"][0]["cluster"]["server"], "https://10.0.0.1:8443");

    // A server that a person brought joins with the cluster's token (checks 20, 21).
    let token = registration_token(&world).await;
    assert_eq!(token.len(), 54);
    let headers = [("id", "my-server"), ("role-worker", "true"), ("labels", "zone=a"), ("node-name", "mine")];
    let answer = manager.connect.agent(&call(&token, &headers)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    // Installed twice, it is still one Machine (agent#39). With proof, as its agent may have reported.
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    let kubeconfig: Value = serde_json::from_str(body["kubeConfig"].as_str().unwrap()).unwrap();
    let proof = kubeconfig["users"][0]["user"]["token"].as_str().unwrap();
    let with_proof: Vec<_> = headers.into_iter().chain([("machine-token", proof)]).collect();
    let again = manager.connect.agent(&call(&token, &with_proof)).await;
    assert_eq!(again.body, answer.body, "the same server gets the same answer");
    assert_eq!(requests(&world).await, Vec::<Value>::new(), "answered");
    let custom: Vec<Value> = demo::machines(&world.objects)
        .await
        .into_iter()
        .filter(|machine| machine["metadata"]["name"].as_str().unwrap().starts_with("custom-"))
        .collect();
    assert_eq!(custom.len(), 1);
    assert_eq!(custom[0]["metadata"]["labels"]["zone"], "a");
    world.answered.lock().insert(custom[0]["metadata"]["name"].as_str().unwrap().to_owned());
    until("the custom machine becomes a node", || async {
        let machines = demo::machines(&world.objects).await;
        machines.iter().any(|machine| {
            machine["metadata"]["name"] == custom[0]["metadata"]["name"]
                && machine["status"]["nodeRef"]["name"].is_string()
        })
    })
    .await;
}

fn forbidden<T: std::fmt::Debug>(answer: kube::Result<T>) {
    assert!(matches!(&answer, Err(kube::Error::Api(status)) if status.code == 403), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_plane_check_35_a_plan_account_reaches_its_own_plan_secret_only() {
    let (world, manager, _players) = provisioned().await;
    let tokens = bootstrap_tokens(&world).await;
    let (own, client) = registered(&world, &manager, &tokens[0].1, "a").await;
    let (other, _) = registered(&world, &manager, &tokens[1].1, "b").await;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");

    // Its own: read, followed, written.
    let secret = secrets.get(&own).await.unwrap();
    let only = format!("metadata.name={own}");
    assert_eq!(secrets.list(&ListParams::default().fields(&only)).await.unwrap().items.len(), 1);
    let mut events = secrets.watch(&WatchParams::default().fields(&only), "0").await.unwrap().boxed();
    let Some(Ok(WatchEvent::Added(seen))) = events.next().await else { panic!("no event") };
    assert_eq!(seen.metadata.name.as_deref(), Some(own.as_str()));
    until("its own secret is written", || async {
        let mut secret = secrets.get(&own).await.unwrap();
        secret.data.get_or_insert_default().insert("applied-output".into(), k8s_openapi::ByteString(vec![1]));
        secrets.replace(&own, &PostParams::default(), &secret).await.is_ok()
    })
    .await;

    // Nothing else, and not with other verbs.
    forbidden(secrets.get(&other).await);
    forbidden(secrets.get(&tokens[0].0).await);
    forbidden(secrets.list(&ListParams::default()).await);
    forbidden(secrets.list(&ListParams::default().fields(&format!("metadata.name={other}"))).await);
    forbidden(secrets.list(&ListParams::default().fields("type=rke.cattle.io/machine-plan")).await);
    forbidden(secrets.watch(&WatchParams::default(), "0").await.map(|_| ()));
    let patch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    forbidden(secrets.patch(&own, &PatchParams::default(), &patch).await);
    forbidden(secrets.delete(&own, &DeleteParams::default()).await);
    let stolen = Secret { metadata: secret.metadata.clone(), ..Secret::default() };
    forbidden(Api::namespaced(client.clone(), "default").create(&PostParams::default(), &stolen).await);
    forbidden(Api::<Secret>::all(client.clone()).list(&ListParams::default()).await);
    forbidden(Api::<Secret>::namespaced(client.clone(), "kube-system").get(&own).await);
    forbidden(Api::<ConfigMap>::namespaced(client.clone(), "default").list(&ListParams::default()).await);
    for (api_version, kind) in [
        ("provisioning.cattle.io/v1", "Cluster"),
        ("cluster.x-k8s.io/v1beta2", "Machine"),
        ("rke.cattle.io/v1", "RKEControlPlane"),
    ] {
        let (group, version) = api_version.split_once('/').unwrap();
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<kube::api::DynamicObject> = Api::namespaced_with(client.clone(), "default", &resource);
        forbidden(api.list(&ListParams::default()).await);
    }

    // The account that only bootstraps may not even read the plan.
    let accounts = world.objects.list("v1", "Secret").await;
    let account = tokens[0].0.clone();
    let is_token = |secret: &&Value| {
        secret["metadata"]["annotations"]["kubernetes.io/service-account.name"] == account.as_str()
    };
    let bootstrap = world.client_with(&decoded(accounts.iter().find(is_token).unwrap(), "token"));
    forbidden(Api::<Secret>::namespaced(bootstrap, "default").get(&own).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_plane_check_34_bootstrap_tokens_end_after_use_and_unused() {
    let (world, manager, _players) = provisioned().await;
    let tokens = bootstrap_tokens(&world).await;
    let status =
        async |which: usize| manager.connect.agent(&call(&tokens[which].1, &[("id", "x")])).await.status;

    // Used once: good for another thirty seconds (agent#38). What nobody used stays good.
    assert_eq!(status(0).await, 200);
    world.clock.advance(31);
    assert_eq!(status(0).await, 401);
    assert_eq!(status(1).await, 200);
    // Unused: thirty minutes.
    world.clock.advance(30 * 60);
    assert_eq!(status(2).await, 401);
    // The end is written down: it does not come back with the clock.
    world.clock.advance(-31 * 60);
    assert_eq!((status(0).await, status(2).await), (401, 401));
}
