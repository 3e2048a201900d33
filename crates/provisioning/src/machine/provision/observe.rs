//! Reads caches into a [`Scope`].

use std::sync::Arc;

use drover_api::capi::v1beta2 as capi;
use drover_runtime::ObjectKey;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::json;

use super::objects::Names;
use super::scope::{Infra, JobView, Scope};
use super::state::Machine;
use super::waits::Waiting;
use super::{MachineProvision, namesake};
use crate::keys::{annotations, labels};
use crate::machine::args::{ClusterNames, driver_of};
use crate::machine::drivers;
use crate::owner::owner_name;
use crate::store::BY_DRIVER;

impl MachineProvision {
    pub(super) fn infra(&self, object: Arc<DynamicObject>) -> Infra {
        let mut value = json!(object.as_ref());
        value["apiVersion"] = json!(self.resource.api_version);
        value["kind"] = json!(self.resource.kind);
        Infra { object, value }
    }

    pub(super) fn observe(&self, infra: &Infra) -> Scope {
        let (store, object) = (&self.context.store, infra.object.as_ref());
        let key = ObjectKey::of(object);
        let owner = owner_name(&object.metadata, "cluster.x-k8s.io", "Machine");
        let machine = owner.and_then(|name| store.machines.get(&key.sibling(name)));
        let cluster = machine.as_ref().and_then(|m| store.capi_cluster(&key.namespace, &m.spec.cluster_name));
        let bootstrap_secret = machine.as_ref().and_then(|m| m.spec.bootstrap.data_secret_name.clone());
        let job = store.jobs.get(&key.sibling(Names::of(&key.name).provision));
        let driver = store.drivers.by_index(BY_DRIVER, &driver_of(&self.resource.kind)).into_iter().next();
        Scope {
            machine: Machine::read(&infra.value),
            owner: owner.map(str::to_owned),
            capi_machine: machine.as_ref().and_then(|m| m.metadata.name.clone()),
            cluster: machine.as_deref().map(|m| self.cluster_names(m)).unwrap_or_default(),
            owned_by_set: owner_name(&object.metadata, "cluster.x-k8s.io", "MachineSet").is_some(),
            blocked: blocked(machine.as_deref(), cluster.as_deref()).or_else(|| self.namesake(object)),
            bootstrap_secret,
            job: job.as_deref().map(|job| self.job_view(job)),
            namespace_terminating: store
                .namespaces
                .get(&ObjectKey::cluster(&key.namespace))
                .is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_some()),
            managed_by: drivers::job_runner(driver.as_deref()),
            settings: self.context.settings.now(),
        }
    }

    /// The Cluster of a machine has the name of its CAPI Cluster.
    fn cluster_names(&self, machine: &capi::Machine) -> ClusterNames {
        let key = ObjectKey::of(machine).sibling(&machine.spec.cluster_name);
        let id = self.context.store.management_ids.id_of(&key).unwrap_or_default();
        ClusterNames { name: key.name, id }
    }

    fn namesake(&self, object: &DynamicObject) -> Option<Waiting> {
        let claims = namesake::claims(object);
        let blocked = claims
            .iter()
            .find_map(|claim| namesake::blocked(object, &self.cache.by_index(namesake::INDEX, claim)));
        blocked.map(|machine| Waiting::Namesake { machine })
    }

    fn job_view(&self, job: &Job) -> JobView {
        let status = job.status.clone().unwrap_or_default();
        let condition = |type_: &str| {
            status.conditions.iter().flatten().find(|c| c.type_ == type_ && c.status == "True").cloned()
        };
        let failed = condition("Failed").map(|condition| {
            let reason = condition.reason.unwrap_or_default();
            let message = condition.message.unwrap_or_default();
            (reason, self.termination_message(job).unwrap_or(message))
        });
        JobView {
            remove: job.labels().get(labels::INFRA_REMOVE).is_some_and(|value| value == "true"),
            deleting: job.metadata.deletion_timestamp.is_some(),
            complete: condition("Complete").is_some()
                || (status.completion_time.is_some() && failed.is_none()),
            failed,
        }
    }

    /// What the newest failed pod of the Job wrote at its end.
    fn termination_message(&self, job: &Job) -> Option<String> {
        let mut own = self.context.store.pods.by_index("owner", &job.uid()?);
        own.sort_by_key(|pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0));
        own.iter().rev().find_map(|pod| {
            let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
            let ended = statuses.first()?.state.as_ref()?.terminated.as_ref()?;
            ended.message.clone().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
        })
    }
}

/// What of a Machine its server depends on.
pub(crate) fn machine_gates(machine: &capi::Machine) -> (Option<&str>, Option<&str>, bool) {
    let paused =
        machine.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(annotations::capi::PAUSED));
    (machine.metadata.uid.as_deref(), machine.spec.bootstrap.data_secret_name.as_deref(), paused)
}

/// What of a Cluster its servers depend on: whether it is paused, and whether its infrastructure is ready.
pub(crate) fn cluster_gates(cluster: &capi::Cluster) -> (bool, bool) {
    let initialization = cluster.status.as_ref().and_then(|status| status.initialization.as_ref());
    let provisioned = initialization.and_then(|done| done.infrastructure_provisioned).unwrap_or(false);
    (cluster.spec.paused.unwrap_or(false), provisioned)
}

/// The gates before a server is created, in order.
fn blocked(machine: Option<&capi::Machine>, cluster: Option<&capi::Cluster>) -> Option<Waiting> {
    let Some(machine) = machine else { return Some(Waiting::Machine) };
    let name = machine.spec.cluster_name.clone();
    let Some(cluster) = cluster else { return Some(Waiting::Cluster { name }) };
    let (_, data, paused) = machine_gates(machine);
    let (cluster_paused, provisioned) = cluster_gates(cluster);
    if paused || cluster_paused {
        Some(Waiting::Paused { cluster: name })
    } else if !provisioned {
        Some(Waiting::Infrastructure { cluster: name })
    } else if data.is_none() {
        Some(Waiting::BootstrapData { machine: machine.name_any() })
    } else {
        None
    }
}
