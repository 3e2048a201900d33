//! The waits of one object, from its status. Pure.

use drover_api::capi::v1beta2::{Cluster as CapiCluster, Machine, MachineDeployment, MachineSet};
use drover_api::conditions::{reasons, types};
use drover_api::provisioning::v1::Cluster;
use drover_api::rke::v1::RKEControlPlane;
use drover_api::wait::Wait;
use drover_capi::waits::of_condition;
use drover_runtime::conditions::FALSE;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::Value;

use super::walk::Step;
use crate::family::{Condition, Item};

/// Condition reasons of the original programs that mean a failure.
const FAILURES: [&str; 2] = ["Error", "InternalError"];

/// Infra machines that `drover machine` manages.
const LOCAL: &str = "LocalMachine";

fn step(item: &Item, failed: bool, wait: Wait) -> Step {
    Step { object: item.reference(), api_group: item.key.group.clone(), wait, failed }
}

/// The waits of an object, each with the type of the condition from which it was read, if any.
pub(super) fn steps(item: &Item) -> Vec<(Step, Option<String>)> {
    if item.is::<Job>() {
        return job(item).into_iter().map(|step| (step, None)).collect();
    }
    if item.is::<Pod>() {
        return pod(item).into_iter().map(|step| (step, None)).collect();
    }
    let typed = item.waits();
    if !typed.is_empty() {
        let failed =
            |wait: &Wait| wait.reason.ends_with("Failed") || FAILURES.contains(&wait.reason.as_str());
        let step = |wait: Wait| step(item, failed(&wait), wait);
        return typed.into_iter().map(|wait| (step(wait), None)).collect();
    }
    let failure = failure(item);
    let waiting = condition_types(item).iter().find_map(|type_| {
        let condition = item.condition(type_)?;
        let step = of(item, &condition)?;
        Some((step, Some(condition.type_)))
    });
    let finalizers = || finalizers(item).map(|step| (step, None));
    failure.map(|step| (step, None)).or(waiting).or_else(finalizers).into_iter().collect()
}

/// A failure that is not repaired automatically. Cluster API has no condition for it.
fn failure(item: &Item) -> Option<Step> {
    let is_core = item.is::<Machine>() || item.is::<CapiCluster>();
    let message = item.text("/status/deprecated/v1beta1/failureMessage")?;
    let reason = item.text("/status/deprecated/v1beta1/failureReason").unwrap_or("Failed");
    (is_core && !item.is_deleting()).then(|| {
        let wait = Wait { reason: reason.to_owned(), ..Wait::new("", item.reference(), message) }
            .expected("its providers fulfil their contract")
            .observed("it has failed")
            .remedy("correct what the message says, or delete the object to have it replaced");
        step(item, true, wait)
    })
}

const MACHINE: [&str; 9] = [
    types::DELETING,
    types::PAUSED,
    types::BOOTSTRAP_CONFIG_READY,
    types::INFRASTRUCTURE_READY,
    "PlanSecretReadable",
    "PlanApplied",
    "Reconciled",
    types::NODE_HEALTHY,
    types::HEALTH_CHECK_SUCCEEDED,
];
const MACHINE_WITH_NODE: [&str; 9] = [
    types::DELETING,
    types::PAUSED,
    types::BOOTSTRAP_CONFIG_READY,
    types::INFRASTRUCTURE_READY,
    "PlanSecretReadable",
    "PlanApplied",
    types::NODE_HEALTHY,
    "Reconciled",
    types::HEALTH_CHECK_SUCCEEDED,
];

/// The conditions that explain an object, causes before effects.
fn condition_types(item: &Item) -> &'static [&'static str] {
    if item.is::<Cluster>() {
        return if item.is_deleting() {
            &["Removed"]
        } else {
            &["RKECluster", types::READY, "Stalled", "Updated"]
        };
    }
    if item.is::<RKEControlPlane>() {
        return if item.is_deleting() { &["Removed"] } else { &[types::READY] };
    }
    if item.is::<CapiCluster>() {
        return &[
            types::DELETING,
            types::PAUSED,
            types::INFRASTRUCTURE_READY,
            types::CONTROL_PLANE_INITIALIZED,
            types::CONTROL_PLANE_AVAILABLE,
            types::REMOTE_CONNECTION_PROBE,
            types::WORKERS_AVAILABLE,
        ];
    }
    if item.is::<MachineDeployment>() {
        return &[
            types::DELETING,
            types::PAUSED,
            types::SCALING_UP,
            types::ROLLING_OUT,
            types::SCALING_DOWN,
            types::AVAILABLE,
        ];
    }
    if item.is::<MachineSet>() {
        return &[
            types::DELETING,
            types::PAUSED,
            types::SCALING_UP,
            types::SCALING_DOWN,
            types::MACHINES_READY,
        ];
    }
    if item.is::<Machine>() {
        // If the Node exists, it explains the Machine; otherwise the Machine explains why there is no Node.
        let node = item.condition(types::NODE_HEALTHY).map(|condition| condition.reason);
        return match node.as_deref() {
            Some(reasons::NODE_NOT_HEALTHY | reasons::NODE_HEALTHY_UNKNOWN | reasons::NODE_DELETED) => {
                &MACHINE_WITH_NODE
            }
            _ => &MACHINE,
        };
    }
    if item.is_deleting() { &["DeleteJob", types::DELETING] } else { &[types::READY, types::AVAILABLE] }
}

fn of(item: &Item, condition: &Condition) -> Option<Step> {
    let read = k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition {
        type_: condition.type_.clone(),
        status: condition.status.clone(),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        last_transition_time: Time(condition.since.unwrap_or_default()),
        observed_generation: None,
    };
    let wait = of_condition(&item.reference(), &read)?;
    let failed = condition.status == FALSE && FAILURES.contains(&condition.reason.as_str());
    let wait = with_remedy(item, condition, Wait { since: condition.since.map(Time), ..wait });
    Some(step(item, failed, wait))
}

/// What ends a condition of Rancher or Drover, and what a person can do.
fn with_remedy(item: &Item, condition: &Condition, wait: Wait) -> Wait {
    let name = &item.key.name;
    match condition.type_.as_str() {
        "RKECluster" | "Stalled" | "Updated" if item.is::<Cluster>() => wait
            .expected("the specification of the cluster is valid, and everything that it refers to exists")
            .remedy(format!(
                "correct what the message describes: `kubectl edit clusters.provisioning.cattle.io {name}`"
            )),
        types::READY if item.is::<Cluster>() || item.is::<RKEControlPlane>() => {
            wait.expected("every machine is configured as the specification says")
        }
        types::READY => wait.expected("the server exists"),
        "Removed" => wait.expected("everything that belongs to it is deleted"),
        "DeleteJob" => wait.expected("the server is deleted"),
        "Reconciled" => wait.expected("the machine has applied its plan and is healthy").remedy(
            "check the agent on the machine: `rancher-system-agent status`, `journalctl -u rancher-system-agent`",
        ),
        "PlanApplied" => wait.expected("the agent applies the plan without an error").remedy(
            "see the agent's error at the end of the message, or all of it with `journalctl -u rancher-system-agent` on the machine",
        ),
        "PlanSecretReadable" => wait.expected("the plan secret of the machine can be read"),
        types::NODE_HEALTHY if item.refers("/spec/infrastructureRef").is_some_and(|it| it.kind == LOCAL) => {
            let advice = wait.remedy.as_deref().unwrap_or("check the machine");
            let advice = format!("{advice}; start a stopped local machine with `drover machine start {name}`");
            wait.remedy(advice)
        }
        _ => wait,
    }
}

/// A deletion that no condition explains.
fn finalizers(item: &Item) -> Option<Step> {
    let since = item.object.metadata.deletion_timestamp.clone()?;
    let left = item.object.finalizers().join(", ");
    let wait = Wait::new("WaitingForFinalizers", item.reference(), format!("waiting for finalizers: {left}"))
        .expected("the controllers that added the finalizers remove them")
        .observed(format!("remaining finalizers: {left}"));
    Some(step(item, false, Wait { since: Some(since), ..wait }))
}

fn job(item: &Item) -> Option<Step> {
    let object = item.reference();
    let conditions = item.conditions();
    let is = |type_: &str| conditions.iter().find(|c| c.type_ == type_ && c.status != FALSE);
    let step = |wait: Wait, since, failed| {
        step(item, failed, Wait { since, ..wait }.expected("the Job's program succeeds"))
    };
    if is("Complete").is_some() {
        return None;
    }
    if let Some(failed) = is("Failed") {
        let attempts = item.object.data["status"]["failed"].as_i64().unwrap_or(0);
        let wait = Wait { reason: failed.reason.clone(), ..Wait::new("", object, &failed.message) }
            .observed(format!("it failed, attempts: {attempts}"))
            .remedy("correct what the message describes; a new Job is created automatically");
        return Some(step(wait, failed.since.map(Time), true));
    }
    if let Some(held) = conditions.iter().find(|condition| condition.status != FALSE) {
        let message = if held.message.is_empty() { &held.reason } else { &held.message };
        let wait = Wait { reason: held.reason.clone(), ..Wait::new("", object, message) }
            .observed(format!("{} is {}", held.type_, held.status));
        return Some(step(wait, held.since.map(Time), false));
    }
    let started = item.text("/status/startTime").and_then(|time| time.parse().ok()).map(Time);
    let wait = match &started {
        Some(_) => Wait::new("JobRunning", object, "the Job is running").observed("it is running"),
        None => Wait::new("JobNotStarted", object, "the Job has not started").observed("it has not started"),
    };
    let since = started.or_else(|| item.object.metadata.creation_timestamp.clone());
    Some(step(wait, since, false))
}

fn terminated(pod: &Item) -> Option<&Value> {
    pod.object.data.pointer("/status/containerStatuses/0/state/terminated")
}

/// Whether the program of an attempt has ended.
pub(super) fn has_ended(pod: &Item) -> bool {
    terminated(pod).is_some()
}

/// An attempt of a Job that failed.
fn pod(item: &Item) -> Option<Step> {
    let ended = terminated(item)?;
    let code = ended["exitCode"].as_i64().filter(|code| *code != 0)?;
    let message = ended["message"].as_str().unwrap_or_default();
    let output = if message.is_empty() { "the program printed nothing" } else { message };
    let wait = Wait::new("AttemptFailed", item.reference(), output)
        .expected("the program exits with 0")
        .observed(format!("it exited with {code}"))
        .remedy(format!(
            "correct what the message describes; if the Pod is real, `kubectl logs {}` shows all of its output",
            item.key.name
        ));
    let since = ended["finishedAt"].as_str().and_then(|time| time.parse().ok()).map(Time);
    Some(step(item, true, Wait { since, ..wait }))
}
