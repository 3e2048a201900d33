//! Follows waits from an object down to the cause. Pure.
//!
//! The waits of an object are those in `status.waits`, or else its conditions. A wait leads to the object that it
//! names, or else to the objects on which the kind depends. The last object that waits is the cause.

use std::cmp::Reverse;

use drover_api::capi::v1beta2::{Cluster as CapiCluster, Machine, MachineDeployment, MachineSet};
use drover_api::conditions::types;
use drover_api::labels::capi::{DEPLOYMENT_NAME, SET_NAME};
use drover_api::provisioning::v1::Cluster;
use drover_api::rke::v1::RKEControlPlane;
use drover_api::wait::{Wait, WaitObject};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;

use super::{own, replaced};
use crate::family::{Family, Item, JOB_NAME, Key};

/// One object in the chain, and its wait.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Step {
    /// The object that waits.
    pub(crate) object: WaitObject,
    /// Its API group: two kinds are called Cluster.
    pub(crate) api_group: String,
    /// The wait.
    pub(crate) wait: Wait,
    /// Whether it has failed, rather than not being complete yet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) failed: bool,
}

impl Step {
    pub(super) fn key(&self) -> Key {
        Key::new(&self.api_group, &self.object.kind, &self.object.name)
    }
}

/// Why an object is not finished.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    /// The object that was asked about.
    pub(crate) object: WaitObject,
    /// Whether anything is waited for.
    pub(crate) waiting: bool,
    /// From the object down to the cause.
    pub(crate) chain: Vec<Step>,
    /// The causes of other chains.
    pub(crate) also: Vec<Step>,
}

/// Explains `root`.
pub(crate) fn explain(family: &Family, root: &Item) -> Report {
    let mut chains = Vec::new();
    descend(family, root, &[], &mut Vec::new(), &mut chains);
    chains.sort_by_key(|chain: &Vec<Step>| {
        let cause = chain.last();
        let failed = cause.is_some_and(|step| step.failed);
        let since = cause.and_then(|step| step.wait.since.as_ref()).map(|time| time.0);
        // Failures first, then those nearest to a server, then the oldest, then in the order of the walk.
        (!failed, Reverse(cause.map(nearness)), since.is_none(), since)
    });
    let mut chains = chains.into_iter();
    let chain = chains.next().unwrap_or_default();
    let mut also: Vec<Step> = Vec::new();
    for step in chains.filter_map(|mut chain| chain.pop()) {
        if Some(&step) != chain.last() && !also.contains(&step) {
            also.push(step);
        }
    }
    Report { object: root.reference(), waiting: !chain.is_empty(), chain, also }
}

/// How near an object is to the server that it describes.
fn nearness(step: &Step) -> u8 {
    match step.object.kind.as_str() {
        "Cluster" => 0,
        "RKEControlPlane" => 1,
        "MachineDeployment" => 2,
        "MachineSet" => 3,
        "Machine" => 4,
        "Job" => 6,
        "Pod" => 7,
        // Objects of providers.
        _ => 5,
    }
}

/// Adds every chain that goes through `item`.
fn descend(family: &Family, item: &Item, path: &[Step], seen: &mut Vec<Key>, chains: &mut Vec<Vec<Step>>) {
    if seen.contains(&item.key) {
        return;
    }
    seen.push(item.key.clone());
    let own = own::steps(item);
    if own.is_empty() {
        // It waits for nothing itself; one of its parts may.
        for next in parts(family, item) {
            descend(family, next, path, seen, chains);
        }
    }
    for (step, type_) in own {
        let next = if step.wait.object == step.object {
            causes(family, item, type_.as_deref())
        } else {
            named(family, item, &step.wait)
        };
        let path: Vec<Step> = path.iter().cloned().chain([step]).collect();
        let before = chains.len();
        for next in next {
            descend(family, next, &path, seen, chains);
        }
        if chains.len() == before {
            let failure = replaced::last_failure(family, &path);
            chains.push(path.into_iter().chain(failure).collect());
        }
    }
    seen.pop();
}

/// The other object that a wait names.
fn named<'a>(family: &'a Family, item: &Item, wait: &Wait) -> Vec<&'a Item> {
    let is_named = |other: &&Item| {
        other.key != item.key && other.key.kind == wait.object.kind && other.key.name == wait.object.name
    };
    family.items.iter().filter(is_named).collect()
}

/// The objects that belong to an object.
fn parts<'a>(family: &'a Family, item: &Item) -> Vec<&'a Item> {
    if item.is::<Job>() { vec![] } else { causes(family, item, None) }
}

/// The objects that may have caused a condition.
fn causes<'a>(family: &'a Family, item: &Item, condition: Option<&str>) -> Vec<&'a Item> {
    let labelled = |key: &'static str| {
        let name = item.key.name.clone();
        family.all::<Machine>().filter(move |machine| machine.label(key) == Some(name.as_str()))
    };
    let referred = |pointer: &str| item.refers(pointer).and_then(|key| family.get(&key));
    if item.is::<Cluster>() {
        let below = [Key::of::<RKEControlPlane>(&item.key.name), Key::of::<CapiCluster>(&item.key.name)];
        return below.iter().filter_map(|key| family.get(key)).collect();
    }
    if item.is::<CapiCluster>() {
        let infra = referred("/spec/infrastructureRef");
        let plane = referred("/spec/controlPlaneRef");
        let workers = family.all::<MachineDeployment>();
        return match condition {
            Some(types::INFRASTRUCTURE_READY) => infra.into_iter().collect(),
            Some(types::CONTROL_PLANE_INITIALIZED | types::CONTROL_PLANE_AVAILABLE) => {
                plane.into_iter().collect()
            }
            Some(types::WORKERS_AVAILABLE) => workers.collect(),
            Some(types::REMOTE_CONNECTION_PROBE) => {
                plane.into_iter().chain(family.all::<Machine>()).collect()
            }
            Some(types::PAUSED) => vec![],
            _ => workers.chain(plane).chain(infra).chain(family.all::<Machine>()).collect(),
        };
    }
    if item.is::<RKEControlPlane>() || item.refers("/spec/machineTemplate/spec/infrastructureRef").is_some() {
        return family.all::<MachineDeployment>().chain(family.all::<Machine>()).collect();
    }
    if item.is::<MachineDeployment>() {
        let sets = family.all::<MachineSet>();
        let mine = sets.filter(|set| set.label(DEPLOYMENT_NAME) == Some(item.key.name.as_str()));
        return mine.chain(labelled(DEPLOYMENT_NAME)).collect();
    }
    if item.is::<MachineSet>() {
        return labelled(SET_NAME).collect();
    }
    if item.is::<Machine>() {
        let infra = || referred("/spec/infrastructureRef");
        let bootstrap = || referred("/spec/bootstrap/configRef");
        return match condition {
            Some(types::BOOTSTRAP_CONFIG_READY) => bootstrap().into_iter().collect(),
            Some(types::INFRASTRUCTURE_READY) => infra().into_iter().collect(),
            Some(types::DELETING) | None => bootstrap().into_iter().chain(infra()).collect(),
            Some(_) => vec![],
        };
    }
    if item.is::<Job>() {
        if item.condition("Failed").is_some() {
            // The Job's message is the output of the last attempt.
            return vec![];
        }
        let mine = |pod: &&Item| pod.label(JOB_NAME) == Some(item.key.name.as_str());
        let mut pods: Vec<&Item> = family.all::<Pod>().filter(mine).collect();
        // The newest attempt that has ended: while another one runs, it says why the Job is not complete.
        pods.sort_by_key(|pod| pod.object.metadata.creation_timestamp.as_ref().map(|time| time.0));
        return pods.into_iter().rev().find(|pod| own::has_ended(pod)).into_iter().collect();
    }
    let job = item.text("/status/jobName").and_then(|name| family.get(&Key::of::<Job>(name)));
    job.into_iter().collect()
}
