//! A machine that writes garbage into its plan secret, with its own credential, hurts only itself.

use std::collections::BTreeSet;

use drover_plan::keys;
use drover_testkit::objects::condition;
use drover_testkit::{demo, eventually_within};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::players::{play, provisioned};
use crate::registration::{bootstrap_tokens, registered};
use crate::world::{Manager, World, until};

/// What the agent of a worker has: access to its plan secret, which is the second; the third is the Machine's name.
async fn own_secret(world: &World, manager: &Manager) -> (Api<Secret>, String, String) {
    for (index, (_, token)) in bootstrap_tokens(world).await.into_iter().enumerate() {
        let (name, client) = registered(world, manager, &token, &format!("id-{index}")).await;
        let own: Api<Secret> = Api::namespaced(client, "default");
        let labels = own.get(&name).await.unwrap().labels().clone();
        if !labels.contains_key("rke.cattle.io/etcd-role") {
            return (own, name, labels["rke.cattle.io/machine-name"].clone());
        }
    }
    panic!("no worker");
}

/// Writes a key, or removes it, as the agent would: the whole secret, until nobody else was faster.
async fn write(own: &Api<Secret>, name: &str, key: &str, value: Option<&[u8]>) {
    loop {
        let mut secret = own.get(name).await.unwrap();
        let data = secret.data.get_or_insert_default();
        match value {
            Some(value) => drop(data.insert(key.to_owned(), ByteString(value.to_vec()))),
            None => drop(data.remove(key)),
        }
        match own.replace(name, &PostParams::default(), &secret).await {
            Ok(_) => return,
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => panic!("{key}: {error}"),
        }
    }
}

async fn machine(world: &World, name: &str) -> Value {
    world.objects.get("cluster.x-k8s.io/v1beta2", "Machine", "default", name).await.unwrap()
}

/// Labels of the machines whose plan has the option.
async fn machines_with(world: &World, option: &str) -> BTreeSet<String> {
    use base64::Engine as _;
    let secrets: Api<Secret> = Api::namespaced(world.objects.client(), "default");
    let all = secrets.list(&Default::default()).await.unwrap().items;
    let mut found = BTreeSet::new();
    for secret in all {
        let plan = secret.data.as_ref().and_then(|data| data.get(keys::PLAN));
        let Some(plan) = plan.and_then(|plan| drover_plan::from_slice::<drover_plan::Plan>(&plan.0).ok())
        else {
            continue;
        };
        let has = |text: &str| {
            let content = base64::engine::general_purpose::STANDARD.decode(text).unwrap_or_default();
            String::from_utf8_lossy(&content).contains(option)
        };
        if plan.files.iter().any(|file| has(&file.content)) {
            found.insert(secret.labels()["rke.cattle.io/machine-name"].clone());
        }
    }
    found
}

async fn configure(world: &World, option: &str) {
    let config = json!({"spec": {"rkeConfig": {"machineGlobalConfig": {"kubelet-arg": [option]}}}});
    demo::merge(&world.objects, config).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_in_a_key_that_the_server_writes_too_is_repaired_and_told() {
    let (world, manager, players) = provisioned().await;
    // The machine does nothing by itself, so that every repair is Drover's.
    drop(players);
    let (own, name, worker) = own_secret(&world, &manager).await;
    let before = own.get(&name).await.unwrap().data.unwrap();
    let garbage = [vec![b'{'; 70_000], b"-99999999999999999999".to_vec(), vec![0xff, 0x00]];
    for (round, key) in [keys::APPLIED_PLAN, keys::FAILURE_COUNT, keys::PLAN_STATE, keys::MAX_FAILURES]
        .into_iter()
        .enumerate()
    {
        // A machine that writes garbage all the time is not repaired all the time.
        world.clock.advance(11);
        write(&own, &name, key, Some(&garbage[round % garbage.len()])).await;
        until(key, || async {
            let data = own.get(&name).await.unwrap().data.unwrap();
            let default = ByteString(b"0".to_vec());
            match key {
                keys::MAX_FAILURES => !data.contains_key(key),
                _ => data.get(key) == before.get(key).or(Some(&default)),
            }
        })
        .await;
        until("the Machine names the key", || async {
            let (status, message) = condition(&machine(&world, &worker).await, "PlanSecretReadable");
            status == "True" && message.starts_with(&format!("repaired: key {key} of Secret default/{name}"))
        })
        .await;
        let (status, message) = condition(&demo::cluster(&world.objects).await, "Ready");
        assert_eq!((status.as_str(), message.as_str()), ("True", ""), "{key}");
    }
    until("every repair is an event of the Machine", || async {
        let events = world.objects.list("v1", "Event").await;
        let reported = |key: &str| {
            events.iter().any(|event| {
                event["involvedObject"]["name"] == worker.as_str()
                    && event["reason"] == "PlanSecretRepaired"
                    && event["message"].as_str().unwrap_or_default().contains(&format!("key {key} "))
            })
        };
        reported(keys::APPLIED_PLAN) && reported(keys::PLAN_STATE) && reported(keys::FAILURE_COUNT)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_of_the_agent_is_named_and_every_other_machine_is_managed() {
    let (world, manager, players) = provisioned().await;
    drop(players);
    let (own, name, worker) = own_secret(&world, &manager).await;
    for (round, key) in [
        keys::PROBE_STATUSES,
        keys::APPLIED_PERIODIC_OUTPUT,
        keys::APPLIED_OUTPUT,
        keys::APPLIED_CHECKSUM,
        keys::FAILED_CHECKSUM,
        keys::SUCCESS_COUNT,
        keys::LAST_APPLY_TIME,
    ]
    .into_iter()
    .enumerate()
    {
        let before = own.get(&name).await.unwrap().data.unwrap().get(key).cloned();
        write(&own, &name, key, Some(b"[\"garbage\"")).await;
        until("the Machine names the key", || async {
            let (status, message) = condition(&machine(&world, &worker).await, "PlanSecretReadable");
            status == "False" && message.starts_with(&format!("key {key} of Secret default/{name} holds"))
        })
        .await;
        if key == keys::PROBE_STATUSES {
            eventually_within(demo::PATIENCE, || async {
                let ready = condition(&demo::cluster(&world.objects).await, "Ready");
                let reported = ready.1.contains(&format!("unknown worker machine(s) {worker}: key {key} "));
                if ready.0 == "True" && reported { Ok(()) } else { Err(ready) }
            })
            .await;
            let (status, message) = condition(&machine(&world, &worker).await, "Reconciled");
            assert!(status == "Unknown" && message.contains(key), "{status} {message}");
        }
        // A change reaches the others while the garbage is there, and the machine itself too.
        let option = format!("v={round}");
        configure(&world, &option).await;
        let players = play(&world);
        until("every machine has the changed configuration", || async {
            machines_with(&world, &option).await.len() == 3
        })
        .await;
        drop(players);
        write(&own, &name, key, before.as_ref().map(|value| value.0.as_slice())).await;
        let players = play(&world);
        demo::ready(&world.objects, key).await;
        drop(players);
        until("the Machine is readable again", || async {
            condition(&machine(&world, &worker).await, "PlanSecretReadable").0 == "True"
        })
        .await;
        let (status, message) = condition(&demo::cluster(&world.objects).await, "Ready");
        assert_eq!((status.as_str(), message.as_str()), ("True", ""), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_that_its_machine_overwrites_is_written_again() {
    let (world, manager, _players) = provisioned().await;
    let (own, name, worker) = own_secret(&world, &manager).await;
    let uids = demo::machine_uids(&world.objects).await;
    let plan = own.get(&name).await.unwrap().data.unwrap()[keys::PLAN].clone();
    for value in [Some(&b"{\"instructions\": 7}"[..]), Some(b"{}"), None] {
        write(&own, &name, keys::PLAN, value).await;
        until("the plan is back and applied", || async {
            let data = own.get(&name).await.unwrap().data.unwrap();
            data[keys::PLAN_STATE].0 == b"succeeded" && data.get(keys::PLAN) == Some(&plan)
        })
        .await;
        demo::ready(&world.objects, "the plan is back").await;
    }
    assert_eq!(demo::machine_uids(&world.objects).await, uids);
    until("the repair is reported", || async {
        let events = world.objects.list("v1", "Event").await;
        let mut reported = events.iter().filter(|event| event["reason"] == "PlanRepaired");
        reported.any(|event| event["message"].as_str().unwrap_or_default().contains(&worker))
    })
    .await;
}
