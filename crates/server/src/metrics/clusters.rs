//! Clusters, machines and Jobs, counted in the caches at each scrape.

use std::collections::BTreeMap;
use std::fmt;

use drover_api::capi::v1beta2::{Machine, MachineDeployment};
use drover_api::provisioning::v1::Cluster;
use drover_api::rke::v1::{GenericCondition, RKEControlPlane};
use drover_runtime::Cache;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::gauges;

const READY: &str = "Ready";
const AVAILABLE: &str = "Available";

/// Phases that are also shown with the value 0, so that dashboards have them from the start.
const CLUSTER_PHASES: [&str; 5] = ["Provisioning", "Ready", "Updating", "Failed", "Deleting"];
/// The phases of Cluster API.
const MACHINE_PHASES: [&str; 9] = [
    "Pending",
    "Provisioning",
    "Provisioned",
    "Running",
    "Updating",
    "Deleting",
    "Deleted",
    "Failed",
    "Unknown",
];
const JOB_STATES: [&str; 4] = ["Pending", "Active", "Complete", "Failed"];

/// `drover_clusters{phase}`, `drover_machines{phase}`, `drover_jobs{state}` and `drover_waits{kind,reason}`.
pub struct Clusters {
    pub clusters: Cache<Cluster>,
    pub control_planes: Cache<RKEControlPlane>,
    pub deployments: Cache<MachineDeployment>,
    pub machines: Cache<Machine>,
    pub jobs: Cache<Job>,
}

impl fmt::Debug for Clusters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clusters")
    }
}

impl Collector for Clusters {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut waits = BTreeMap::new();
        let clusters = self.clusters.list();
        let machines = self.machines.list();
        for cluster in &clusters {
            let conditions = cluster.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
            count_wait(&mut waits, "Cluster", generic_reason(conditions, READY));
        }
        for plane in self.control_planes.list() {
            count_wait(&mut waits, "RKEControlPlane", control_plane_reason(&plane));
        }
        for deployment in self.deployments.list() {
            count_wait(&mut waits, "MachineDeployment", deployment_reason(&deployment));
        }
        for machine in &machines {
            count_wait(&mut waits, "Machine", machine_reason(machine));
        }
        let phases = tally(CLUSTER_PHASES, clusters.iter().map(|cluster| cluster_phase(cluster)));
        gauges(&mut encoder, "drover_clusters", "Clusters by phase", labelled("phase", phases))?;
        let phases = tally(MACHINE_PHASES, machines.iter().map(|machine| machine_phase(machine)));
        gauges(&mut encoder, "drover_machines", "Machines by phase", labelled("phase", phases))?;
        let states = tally(JOB_STATES, self.jobs.list().iter().map(|job| job_state(job)));
        gauges(&mut encoder, "drover_jobs", "Jobs by state", labelled("state", states))?;
        let waits = waits
            .into_iter()
            .map(|((kind, reason), count)| ([("kind", kind.to_owned()), ("reason", reason)], count));
        let help = "Objects that are not ready, by the reason that their condition gives";
        gauges(&mut encoder, "drover_waits", help, waits)
    }
}

type Waits = BTreeMap<(&'static str, String), usize>;

fn count_wait(waits: &mut Waits, kind: &'static str, reason: Option<&str>) {
    if let Some(reason) = reason {
        *waits.entry((kind, reason.to_owned())).or_default() += 1;
    }
}

fn labelled<'a>(
    name: &'static str,
    counts: BTreeMap<&'a str, usize>,
) -> impl Iterator<Item = ([(&'static str, &'a str); 1], usize)> {
    counts.into_iter().map(move |(value, count)| ([(name, value)], count))
}

fn tally<'a>(
    known: impl IntoIterator<Item = &'a str>,
    found: impl IntoIterator<Item = &'a str>,
) -> BTreeMap<&'a str, usize> {
    let mut counts: BTreeMap<_, _> = known.into_iter().map(|name| (name, 0)).collect();
    for name in found {
        *counts.entry(name).or_default() += 1;
    }
    counts
}

fn cluster_phase(cluster: &Cluster) -> &'static str {
    if cluster.metadata.deletion_timestamp.is_some() {
        return "Deleting";
    }
    let status = cluster.status.as_ref();
    let ready = status.and_then(|status| status.conditions.iter().find(|c| c.type_ == READY));
    match ready.map(|ready| ready.status.as_str()) {
        Some("True") => "Ready",
        Some("False") => "Failed",
        // It was Ready before.
        _ if status.is_some_and(|status| status.ready) => "Updating",
        _ => "Provisioning",
    }
}

/// A phase that Cluster API does not define was written by another client and is not used as a label.
fn machine_phase(machine: &Machine) -> &'static str {
    let phase = machine.status.as_ref().and_then(|status| status.phase.as_deref());
    MACHINE_PHASES.into_iter().find(|known| Some(*known) == phase).unwrap_or("Unknown")
}

fn job_state(job: &Job) -> &'static str {
    let status = job.status.as_ref();
    let mut conditions = status.into_iter().flat_map(|status| status.conditions.iter().flatten());
    let ended = conditions.find(|c| matches!(c.type_.as_str(), "Complete" | "Failed") && c.status == "True");
    match ended.map(|condition| condition.type_.as_str()) {
        Some("Complete") => "Complete",
        Some(_) => "Failed",
        None if status.and_then(|status| status.active).is_some_and(|active| active > 0) => "Active",
        None => "Pending",
    }
}

fn generic_reason<'a>(conditions: &'a [GenericCondition], type_: &str) -> Option<&'a str> {
    let condition = conditions.iter().find(|condition| condition.type_ == type_)?;
    (condition.status != "True").then_some(condition.reason.as_str())
}

fn reason<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a str> {
    let condition = conditions.iter().find(|condition| condition.type_ == type_)?;
    (condition.status != "True").then_some(condition.reason.as_str())
}

fn control_plane_reason(plane: &RKEControlPlane) -> Option<&str> {
    generic_reason(&plane.status.as_ref()?.conditions, READY)
}

fn machine_reason(machine: &Machine) -> Option<&str> {
    reason(&machine.status.as_ref()?.conditions, READY)
}

fn deployment_reason(deployment: &MachineDeployment) -> Option<&str> {
    reason(&deployment.status.as_ref()?.conditions, AVAILABLE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cluster(ready_before: bool, ready: Option<&str>) -> Cluster {
        let conditions: Vec<_> =
            ready.map(|status| json!({"type": "Ready", "status": status})).into_iter().collect();
        let status = json!({"ready": ready_before, "conditions": conditions});
        serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {}, "status": status})).unwrap()
    }

    #[test]
    fn a_clusters_phase_follows_its_ready_condition() {
        let phase = |before, ready| cluster_phase(&cluster(before, ready));
        assert_eq!(phase(false, None), "Provisioning");
        assert_eq!(phase(false, Some("Unknown")), "Provisioning");
        assert_eq!(phase(true, Some("True")), "Ready");
        assert_eq!(phase(true, Some("Unknown")), "Updating");
        assert_eq!(phase(true, Some("False")), "Failed");
        let mut deleted = cluster(true, Some("True"));
        deleted.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        assert_eq!(cluster_phase(&deleted), "Deleting");
    }

    #[test]
    fn a_job_is_pending_until_it_is_active_and_then_ends() {
        let state = |status| job_state(&serde_json::from_value(json!({"status": status})).unwrap());
        assert_eq!(state(json!({})), "Pending");
        assert_eq!(state(json!({"active": 1})), "Active");
        let ended = |type_: &str| json!({"conditions": [{"type": type_, "status": "True"}]});
        assert_eq!((state(ended("Complete")), state(ended("Failed"))), ("Complete", "Failed"));
    }

    #[test]
    fn phases_of_other_clients_are_dropped_and_known_ones_are_always_shown() {
        let machine = |phase: &str| {
            let value = json!({"metadata": {"name": "m"}, "spec": {"clusterName": "c", "bootstrap": {}, "infrastructureRef":
                {"apiGroup": "a", "kind": "k", "name": "n"}}, "status": {"phase": phase}});
            serde_json::from_value::<Machine>(value).unwrap()
        };
        assert_eq!(
            (machine_phase(&machine("Running")), machine_phase(&machine("x"))),
            ("Running", "Unknown")
        );
        assert_eq!(tally(["a", "b"], ["b", "b"]), [("a", 0), ("b", 2)].into());
    }
}
