//! Failures of machines that no longer exist. Pure.
//!
//! A Machine whose server cannot be created is deleted and replaced, so its successor only shows that a Job is running.
//! The failure remains in the events, and it is the cause until a server of the same MachineSet has been created.

use drover_api::capi::v1beta2::{Cluster as CapiCluster, Machine, MachineDeployment, MachineSet};
use drover_api::conditions::types;
use drover_api::labels::capi::{DEPLOYMENT_NAME, SET_NAME};
use drover_api::labels::rke::CAPI_MACHINE_NAME;
use drover_api::wait::Wait;
use drover_runtime::conditions::TRUE;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::walk::Step;
use crate::family::{Family, Item, Key};

/// Reason of the event about an infra machine whose server could not be created.
const CREATE_ERROR: &str = "CreateError";

/// The newest failure to create a server for the MachineSets that `path` leads to.
pub(super) fn last_failure(family: &Family, path: &[Step]) -> Option<Step> {
    let end = path.last().filter(|step| !step.failed)?;
    let end = family.get(&end.key())?;
    if !is_creating(family, end) || family.all::<CapiCluster>().any(Item::is_deleting) {
        return None;
    }
    let sets = path.iter().rev().find_map(|step| sets(family, family.get(&step.key())?))?;
    let failures = sets.into_iter().filter(|set| !set.is_deleting()).filter_map(|set| {
        let created = last_created(family, set);
        let mine = family.warnings.iter().filter(|warning| {
            warning.reason == CREATE_ERROR
                && is_member(&set.key.name, &warning.object.name)
                && family.get(&warning.key).is_none()
                && warning.at > created
        });
        mine.max_by_key(|warning| warning.at)
    });
    let failure = failures.max_by_key(|warning| warning.at)?;
    let wait = Wait {
        reason: failure.reason.clone(),
        object: failure.object.clone(),
        message: failure.message.clone(),
        since: failure.at.map(Time),
        ..Wait::default()
    };
    let wait = wait
        .expected("the server is created")
        .observed("creating it failed, and its Machine was replaced")
        .remedy("correct what the message describes; the next attempt starts automatically");
    Some(Step { object: failure.object.clone(), api_group: failure.key.group.clone(), wait, failed: true })
}

/// Whether a chain that ends here waits for a server to be created.
fn is_creating(family: &Family, end: &Item) -> bool {
    end.is::<Job>()
        || end.is::<MachineSet>()
        || end.is::<MachineDeployment>()
        || family.all::<Machine>().any(|machine| infra(machine).as_ref() == Some(&end.key))
}

fn infra(machine: &Item) -> Option<Key> {
    machine.refers("/spec/infrastructureRef")
}

/// The MachineSets of an object.
fn sets<'a>(family: &'a Family, item: &'a Item) -> Option<Vec<&'a Item>> {
    if item.is::<MachineSet>() {
        return Some(vec![item]);
    }
    if item.is::<MachineDeployment>() {
        let name = Some(item.key.name.as_str());
        return Some(family.all::<MachineSet>().filter(|set| set.label(DEPLOYMENT_NAME) == name).collect());
    }
    let machine = match item.label(CAPI_MACHINE_NAME) {
        Some(name) if item.is::<Job>() => family.get(&Key::of::<Machine>(name))?,
        _ => Some(item).filter(|item| item.is::<Machine>())?,
    };
    Some(family.get(&Key::of::<MachineSet>(machine.label(SET_NAME)?)).into_iter().collect())
}

/// When the newest server of a set was created.
fn last_created(family: &Family, set: &Item) -> Option<Timestamp> {
    let machines = family.all::<Machine>().filter(|machine| machine.label(SET_NAME) == Some(&set.key.name));
    let ready = machines.filter_map(|machine| machine.condition(types::INFRASTRUCTURE_READY));
    ready.filter(|condition| condition.status == TRUE).filter_map(|condition| condition.since).max()
}

/// Whether a Machine, and therefore its infra machine, has a name that the set generated.
fn is_member(set: &str, machine: &str) -> bool {
    let suffix = machine.strip_prefix(set).and_then(|rest| rest.strip_prefix('-'));
    suffix.is_some_and(|suffix| !suffix.is_empty() && !suffix.contains('-'))
}
