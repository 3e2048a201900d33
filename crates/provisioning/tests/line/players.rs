//! Those who are elsewhere in real life: the Job runner with its driver, and an agent per machine.

use std::sync::Arc;
use std::time::Duration;

use drover_plan::{Plan, checksum, keys};
use drover_testkit::demo;
use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::world::{Manager, World};

/// They play until this is dropped.
pub(crate) struct Players(tokio::task::JoinHandle<()>);

impl Drop for Players {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(crate) fn play(world: &Arc<World>) -> Players {
    play_with(world, Agents::AtOnce)
}

/// How agents report.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Agents {
    /// A plan is applied and its probes pass with one write.
    AtOnce,
    /// As a real agent does: the plan is in progress, then applied with probes that fail, then they pass.
    StepByStep,
}

pub(crate) fn play_with(world: &Arc<World>, agents: Agents) -> Players {
    let world = world.clone();
    Players(tokio::spawn(async move {
        loop {
            run_jobs(&world).await;
            run_agents(&world, agents).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }))
}

/// A world with a manager, in which the demo cluster is Ready.
pub(crate) async fn provisioned() -> (Arc<World>, Manager, Players) {
    let world = Arc::new(World::start().await);
    let manager = world.manager(None);
    let players = play(&world);
    demo::make(&world.objects).await;
    demo::ready(&world.objects, "provisioned").await;
    (world, manager, players)
}

/// Every Job succeeds; `create` leaves the machine's store in the state secret.
async fn run_jobs(world: &World) {
    let jobs: Api<Job> = Api::all(world.objects.client());
    for job in jobs.list(&ListParams::default()).await.unwrap().items {
        if job.status.as_ref().is_some_and(|status| status.completion_time.is_some()) {
            continue;
        }
        let namespace = job.namespace().unwrap();
        let args =
            job.spec.as_ref().unwrap().template.spec.as_ref().unwrap().containers[0].args.clone().unwrap();
        let state = args.iter().find_map(|arg| arg.strip_prefix("--secret-name=")).unwrap();
        if args.iter().any(|arg| arg == "create") {
            let secrets: Api<Secret> = Api::namespaced(world.objects.client(), &namespace);
            let Ok(mut secret) = secrets.get(state).await else { continue };
            let number = 10 + secret.name_any().bytes().map(u32::from).sum::<u32>() % 200;
            secret.data.get_or_insert_default().insert("extractedConfig".into(), ByteString(store(number)));
            if secrets.replace(state, &PostParams::default(), &secret).await.is_err() {
                continue;
            }
        }
        let now = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap().to_string();
        // Another Job may have taken its place and its name since.
        let status = json!({"metadata": {"uid": job.uid()}, "status": {"completionTime": now, "startTime": now, "succeeded": 1, "conditions": [
            {"type": "SuccessCriteriaMet", "status": "True", "lastTransitionTime": now},
            {"type": "Complete", "status": "True", "lastTransitionTime": now},
        ]}});
        let own: Api<Job> = Api::namespaced(world.objects.client(), &namespace);
        let _ = own.patch_status(&job.name_any(), &PatchParams::default(), &Patch::Merge(status)).await;
    }
}

fn store(number: u32) -> Vec<u8> {
    let config = json!({"DriverName": "local", "Driver": {
        "IPAddress": format!("10.1.0.{number}"), "PrivateIPAddress": format!("10.1.0.{number}"),
    }})
    .to_string();
    let mut archive =
        tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    let mut header = tar::Header::new_gnu();
    header.set_size(config.len() as u64);
    header.set_mode(0o600);
    header.set_cksum();
    archive.append_data(&mut header, "root/machines/m/config.json", config.as_bytes()).unwrap();
    archive.into_inner().unwrap().finish().unwrap()
}

/// Every agent applies its plan; its node registers and, on a server, the tunnel opens.
async fn run_agents(world: &World, agents: Agents) {
    let secrets: Api<Secret> = Api::all(world.objects.client());
    let params = ListParams::default().fields("type=rke.cattle.io/machine-plan");
    for mut secret in secrets.list(&params).await.unwrap().items {
        let data = secret.data.clone().unwrap_or_default();
        let Some(bytes) = data.get(keys::PLAN).map(|plan| plan.0.clone()) else { continue };
        if !is_registered(world, &secret) {
            continue;
        }
        let text = |key: &str| data.get(key).map(|value| value.0.as_slice()).unwrap_or_default();
        // A test may have overwritten it.
        let Ok(plan) = drover_plan::from_slice::<Plan>(&bytes) else { continue };
        let probes = |healthy: bool| {
            let status = json!({"healthy": healthy, "successCount": 1});
            let all: serde_json::Map<String, Value> =
                plan.probes.keys().map(|name| (name.clone(), status.clone())).collect();
            Value::Object(all).to_string()
        };
        let (slow, done) = (agents == Agents::StepByStep, (keys::APPLIED_CHECKSUM, checksum(&bytes)));
        let report = match text(keys::PLAN_STATE) {
            b"pending" if slow => vec![(keys::PLAN_STATE, "in-progress".to_owned())],
            b"in-progress" if slow => {
                vec![(keys::PLAN_STATE, "succeeded".into()), done, (keys::PROBE_STATUSES, probes(false))]
            }
            b"succeeded" if slow && text(keys::PROBE_STATUSES) == probes(false).as_bytes() => {
                vec![(keys::PROBE_STATUSES, probes(true))]
            }
            b"pending" => {
                vec![(keys::PLAN_STATE, "succeeded".into()), done, (keys::PROBE_STATUSES, probes(true))]
            }
            _ => continue,
        };
        let healthy = report.iter().any(|(_, value)| *value == probes(true));
        let written = secret.data.get_or_insert_default();
        for (key, value) in report {
            written.insert(key.to_owned(), ByteString(value.into_bytes()));
        }
        let own: Api<Secret> = Api::namespaced(world.objects.client(), &secret.namespace().unwrap());
        if own.replace(&secret.name_any(), &PostParams::default(), &secret).await.is_ok() && healthy {
            register(world, &secret, &plan).await;
        }
    }
}

/// The agent of a custom machine runs once its registration was answered: it has its credential from that answer.
fn is_registered(world: &World, secret: &Secret) -> bool {
    let name = secret.name_any();
    let machine = name.strip_suffix("-machine-plan").filter(|name| name.starts_with("custom-"));
    machine.is_none_or(|machine| world.answered.lock().contains(machine))
}

async fn register(world: &World, secret: &Secret, plan: &Plan) {
    use base64::Engine as _;
    let decode = |text: &str| base64::engine::general_purpose::STANDARD.decode(text).unwrap();
    let config = plan.files.iter().find(|file| file.path.ends_with("50-rancher.yaml")).unwrap();
    let config: Value = serde_json::from_slice(&decode(&config.content)).unwrap();
    let labels: serde_json::Map<String, Value> = config["node-label"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|pair| pair.as_str()?.split_once('=').map(|(k, v)| (k.to_owned(), json!(v))))
        .collect();
    let name = secret.labels()["rke.cattle.io/machine-name"].clone();
    let image = plan.instructions[0].image.split(':').next_back().unwrap().replacen("-k3s", "+k3s", 1);
    let address = config["node-ip"][0].as_str().unwrap_or("10.1.0.250").to_owned();
    let nodes: Api<Node> = Api::all(world.downstream.clone());
    if nodes.get_opt(&name).await.unwrap().is_none() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": labels}, "spec": {"providerID": format!("k3s://{name}")},
        }))
        .unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
    }
    let now = "2026-01-01T00:00:00Z";
    let condition = |type_: &str, status: &str| {
        json!({"type": type_, "status": status, "reason": "Kubelet", "message": "",
               "lastHeartbeatTime": now, "lastTransitionTime": now})
    };
    let status = json!({"status": {
        "conditions": [
            condition("Ready", "True"), condition("MemoryPressure", "False"),
            condition("DiskPressure", "False"), condition("PIDPressure", "False"),
        ],
        "addresses": [{"type": "InternalIP", "address": address}],
        "nodeInfo": {
            "kubeletVersion": image, "architecture": "amd64", "bootID": "b", "containerRuntimeVersion": "c",
            "kernelVersion": "k", "kubeProxyVersion": "p", "machineID": "m", "operatingSystem": "linux",
            "osImage": "o", "systemUUID": "s",
        },
    }});
    nodes.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    if secret.labels().contains_key("rke.cattle.io/control-plane-role") {
        connect(world, "True").await;
    }
}

/// What the access layer does when a tunnel opens or closes.
pub(crate) async fn connect(world: &World, status: &str) {
    for twin in world.objects.list("management.cattle.io/v3", "Cluster").await {
        let twin_status = json!({
            "apiVersion": "management.cattle.io/v3", "kind": "Cluster", "metadata": {"name": twin["metadata"]["name"]},
            "status": {"conditions": [{"type": "Connected", "status": status}]},
        });
        let api = world.objects.api("management.cattle.io/v3", "Cluster", "");
        let name = twin["metadata"]["name"].as_str().unwrap();
        api.patch_status(
            name,
            &PatchParams::apply("drover/access/connected").force(),
            &Patch::Apply(twin_status),
        )
        .await
        .unwrap();
    }
}
