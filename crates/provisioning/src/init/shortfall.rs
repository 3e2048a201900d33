//! What of a spec has not arrived yet, although the control plane says Ready: it speaks of the spec and the machines that it
//! has seen.

use std::sync::Arc;

use drover_api::capi::v1beta2::{Machine, MachineDeployment, MachineSet};
use drover_api::provisioning::v1::{Cluster, RKEMachinePool};
use drover_api::rke::v1::RKEControlPlane;
use serde_json::Value;

use super::pools::deployment_name;
use crate::keys::{conditions, labels};

/// A cluster as the caches show it, which may be a moment ago, and what was just generated for it.
pub struct Seen<'a> {
    pub cluster: &'a Cluster,
    pub generated: &'a [Value],
    pub control_plane: Option<&'a RKEControlPlane>,
    /// The control plane's generation, if this pass has written it.
    pub written: Option<i64>,
    pub deployments: &'a [Arc<MachineDeployment>],
    pub sets: &'a [Arc<MachineSet>],
    pub machines: &'a [Arc<Machine>],
}

/// The first thing that is missing.
pub fn of(seen: &Seen<'_>) -> Option<String> {
    let name = seen.cluster.metadata.name.as_deref().unwrap_or_default();
    if seen.control_plane.is_some_and(|plane| is_behind(plane, seen.written)) {
        return Some(format!("waiting for control plane {name} to take up the change"));
    }
    let pools = seen.cluster.spec.rke_config.iter().flat_map(|config| &config.machine_pools);
    let mut pools = pools.filter(|pool| !pool.paused);
    pools.find_map(|pool| of_pool(pool, &deployment_name(name, &pool.name), seen)).or_else(|| surplus(seen))
}

/// A machine of a pool that is too much, or replaced, or whose pool is gone.
fn surplus(seen: &Seen<'_>) -> Option<String> {
    let labelled = |machine: &&Arc<Machine>| {
        let labels = machine.metadata.labels.as_ref();
        labels.is_some_and(|labels| labels.contains_key(labels::capi::DEPLOYMENT_NAME))
    };
    let going = |machine: &&Arc<Machine>| machine.metadata.deletion_timestamp.is_some();
    let machine = seen.machines.iter().filter(labelled).find(going)?;
    Some(format!(
        "waiting for machine {} to be removed",
        machine.metadata.name.as_deref().unwrap_or_default()
    ))
}

fn is_behind(plane: &RKEControlPlane, written: Option<i64>) -> bool {
    let generation = plane.metadata.generation.unwrap_or_default();
    let observed = plane.status.as_ref().map(|status| status.observed_generation).unwrap_or_default();
    observed != generation || written.is_some_and(|written| written > generation)
}

fn of_pool(pool: &RKEMachinePool, deployment: &str, seen: &Seen<'_>) -> Option<String> {
    let machines: Vec<&Arc<Machine>> =
        seen.machines.iter().filter(|machine| is_staying_in(machine, deployment)).collect();
    // Without a number it is one, also where nobody fills that in.
    let wanted = pool.quantity.unwrap_or(1);
    let there = i32::try_from(machines.len()).unwrap_or(i32::MAX);
    let live = seen.deployments.iter().find(|live| live.metadata.name.as_deref() == Some(deployment));
    let pool = &pool.name;
    if live.is_none_or(|live| live.spec.replicas.unwrap_or(1) != wanted) || there != wanted {
        return Some(format!("waiting for pool {pool} to have {wanted} machines, it has {there}"));
    }
    let name = |machine: &Machine| machine.metadata.name.clone().unwrap_or_default();
    if let Some(old) = machines.iter().find(|machine| is_of_another_template(machine, deployment, seen)) {
        return Some(format!("waiting for machine {} of pool {pool} to be replaced", name(old)));
    }
    let unseen = machines.iter().find(|machine| !is_configured(machine))?;
    Some(format!("waiting for machine {} of pool {pool} to be configured", name(unseen)))
}

fn is_staying_in(machine: &Machine, deployment: &str) -> bool {
    let labels = machine.metadata.labels.as_ref();
    let label = labels.and_then(|labels| labels.get(labels::capi::DEPLOYMENT_NAME));
    machine.metadata.deletion_timestamp.is_none() && label.is_some_and(|name| name == deployment)
}

/// Another machine template is another kind of server, so a rollout is due or under way.
fn is_of_another_template(machine: &Machine, deployment: &str, seen: &Seen<'_>) -> bool {
    let wanted = seen.generated.iter().find(|object| {
        object["kind"] == "MachineDeployment" && object["metadata"]["name"].as_str() == Some(deployment)
    });
    let owners = machine.metadata.owner_references.iter().flatten();
    let mut sets = owners
        .filter(|owner| owner.kind == "MachineSet")
        .filter_map(|owner| seen.sets.iter().find(|set| set.metadata.uid.as_ref() == Some(&owner.uid)));
    let (Some(wanted), Some(set)) = (wanted, sets.next()) else { return false };
    let template = &wanted["spec"]["template"]["spec"]["infrastructureRef"]["name"];
    template.as_str() != Some(&set.spec.template.spec.infrastructure_ref.name)
}

/// The planner says so of every machine that has its plan. One whose health cannot be read has it too.
fn is_configured(machine: &Machine) -> bool {
    let conditions = machine.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
    let reconciled = conditions.iter().find(|condition| condition.type_ == conditions::RECONCILED);
    reconciled.is_some_and(|c| c.status == "True" || c.reason == conditions::HEALTH_UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cluster(quantity: i32) -> Cluster {
        let pool = json!({
            "name": "worker", "workerRole": true, "quantity": quantity,
            "machineConfigRef": {"kind": "LocalConfig", "name": "a"},
        });
        let spec = json!({"kubernetesVersion": "v1.34.1+k3s1", "rkeConfig": {"machinePools": [pool]}});
        serde_json::from_value(json!({
            "apiVersion": "provisioning.cattle.io/v1", "kind": "Cluster",
            "metadata": {"name": "demo", "namespace": "ns"}, "spec": spec,
        }))
        .unwrap()
    }

    fn machine(name: &str, reconciled: Option<&str>) -> Arc<Machine> {
        let condition = reconciled.map(|status| {
            json!({"type": "Reconciled", "status": status, "reason": "", "message": "",
                   "lastTransitionTime": "2026-01-01T00:00:00Z"})
        });
        let machine = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {"name": name, "labels": {"cluster.x-k8s.io/deployment-name": "demo-worker"}},
            "spec": {
                "clusterName": "demo", "bootstrap": {},
                "infrastructureRef": {"apiGroup": "g", "kind": "K", "name": name},
            },
            "status": {"conditions": condition.into_iter().collect::<Vec<_>>()},
        });
        Arc::new(serde_json::from_value(machine).unwrap())
    }

    fn deployment(replicas: Option<i32>) -> Arc<MachineDeployment> {
        let mut deployment = MachineDeployment::new("demo-worker", Default::default());
        deployment.spec.replicas = replicas;
        Arc::new(deployment)
    }

    fn seen<'a>(cluster: &'a Cluster, deployments: &'a [Arc<MachineDeployment>]) -> Seen<'a> {
        let (generated, control_plane, written, sets, machines) = (&[], None, None, &[], &[]);
        Seen { cluster, generated, control_plane, written, deployments, sets, machines }
    }

    #[test]
    fn a_pool_lacks_what_is_not_made_and_what_is_not_configured() {
        let done = [machine("a", Some("True")), machine("b", Some("True"))];
        let of = |quantity, machines: &[Arc<Machine>], replicas| {
            of(&Seen { machines, ..seen(&cluster(quantity), &[deployment(Some(replicas))]) })
        };
        assert_eq!(of(2, &done, 2), None);
        let told = of(3, &done, 2).unwrap();
        assert_eq!(told, "waiting for pool worker to have 3 machines, it has 2", "nobody has scaled it yet");
        assert!(of(3, &done, 3).is_some(), "the Machine is not made yet");
        for status in [None, Some("Unknown")] {
            let [a, b] = done.clone();
            let told = of(3, &[a, b, machine("c", status)], 3).unwrap();
            assert_eq!(told, "waiting for machine c of pool worker to be configured");
        }
        assert!(of(1, &done, 2).is_some(), "nobody has scaled it down yet");
        assert!(of(1, &done, 1).is_some(), "nobody has deleted what is too much yet");
        let [a, mut b] = done.clone();
        Arc::make_mut(&mut b).metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(of(1, &[a, b], 1).as_deref(), Some("waiting for machine b to be removed"));
        assert!(super::of(&seen(&cluster(2), &[])).is_some(), "a new pool");
    }

    #[test]
    fn a_pool_without_quantity_has_one_machine_also_where_nobody_fills_that_in() {
        let mut cluster = cluster(1);
        cluster.spec.rke_config.as_mut().unwrap().machine_pools[0].quantity = None;
        for replicas in [None, Some(1)] {
            let machines = [machine("a", Some("True"))];
            let deployments = [deployment(replicas)];
            assert_eq!(of(&Seen { machines: &machines, ..seen(&cluster, &deployments) }), None);
        }
    }

    #[test]
    fn machines_of_a_former_template_are_not_yet_what_the_spec_says() {
        let (cluster, deployments) = (cluster(1), [deployment(Some(1))]);
        let mut old = machine("a", Some("True"));
        Arc::make_mut(&mut old).metadata.owner_references = serde_json::from_value(json!([
            {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet", "name": "set", "uid": "uid-1"},
        ]))
        .unwrap();
        let mut set = MachineSet::new("set", Default::default());
        set.metadata.uid = Some("uid-1".into());
        set.spec.template.spec.infrastructure_ref.name = "demo-worker-old".into();
        let (machines, sets) = ([old], [Arc::new(set)]);
        let told = |template: &str| {
            let generated = [json!({
                "kind": "MachineDeployment", "metadata": {"name": "demo-worker"},
                "spec": {"template": {"spec": {"infrastructureRef": {"name": template}}}},
            })];
            let seen = seen(&cluster, &deployments);
            of(&Seen { generated: &generated, sets: &sets, machines: &machines, ..seen })
        };
        assert_eq!(told("demo-worker-old"), None);
        let waiting = "waiting for machine a of pool worker to be replaced";
        assert_eq!(told("demo-worker-new").as_deref(), Some(waiting));
    }

    #[test]
    fn a_control_plane_that_has_not_seen_the_change_does_not_speak_for_it() {
        let (cluster, deployments) = (cluster(0), [deployment(Some(0))]);
        let told = |generation: i64, observed: i64, written: Option<i64>| {
            let plane: RKEControlPlane = serde_json::from_value(json!({
                "metadata": {"name": "demo", "generation": generation},
                "spec": {"clusterName": "demo", "managementClusterName": "c-m-1"},
                "status": {"observedGeneration": observed},
            }))
            .unwrap();
            of(&Seen { control_plane: Some(&plane), written, ..seen(&cluster, &deployments) })
        };
        assert_eq!(told(2, 2, None), None);
        assert_eq!(told(2, 2, Some(2)), None, "the write changed nothing of the spec");
        let waiting = Some("waiting for control plane demo to take up the change");
        assert_eq!(told(2, 1, None).as_deref(), waiting, "the planner has not been over it");
        assert_eq!(told(2, 2, Some(3)).as_deref(), waiting, "the cache does not show it yet");
    }
}
