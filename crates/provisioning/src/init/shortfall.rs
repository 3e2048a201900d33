//! Pools that have fewer machines than their spec says, or machines that the planner has not been over yet.

use std::sync::Arc;

use drover_api::capi::v1beta2::{Machine, MachineDeployment};
use drover_api::provisioning::v1::{Cluster, RKEMachinePool};

use super::pools::deployment_name;
use crate::keys::{conditions, labels};

/// What the first such pool lacks. Deployments are found by name.
pub fn of(
    cluster: &Cluster,
    machines: &[Arc<Machine>],
    deployment: impl Fn(&str) -> Option<Arc<MachineDeployment>>,
) -> Option<String> {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let pools = cluster.spec.rke_config.iter().flat_map(|config| &config.machine_pools);
    pools.filter(|pool| !pool.paused).find_map(|pool| {
        let deployment_name = deployment_name(name, &pool.name);
        let label = |machine: &&Arc<Machine>| {
            let labels = machine.metadata.labels.as_ref();
            labels.and_then(|labels| labels.get(labels::capi::DEPLOYMENT_NAME)) == Some(&deployment_name)
        };
        let staying = machines.iter().filter(label).filter(|m| m.metadata.deletion_timestamp.is_none());
        of_pool(pool, deployment(&deployment_name).as_deref(), &staying.collect::<Vec<_>>())
    })
}

fn of_pool(
    pool: &RKEMachinePool,
    deployment: Option<&MachineDeployment>,
    machines: &[&Arc<Machine>],
) -> Option<String> {
    let wanted = pool.quantity.unwrap_or(1);
    let there = i32::try_from(machines.len()).unwrap_or(i32::MAX);
    let pool = &pool.name;
    if deployment.is_none_or(|deployment| deployment.spec.replicas != Some(wanted)) || there < wanted {
        return Some(format!("waiting for pool {pool} to have {wanted} machines, it has {there}"));
    }
    let unseen = machines.iter().find(|machine| !is_configured(machine))?;
    let name = unseen.metadata.name.as_deref().unwrap_or_default();
    Some(format!("waiting for machine {name} of pool {pool} to be configured"))
}

/// The planner says so of every machine that has its plan.
fn is_configured(machine: &Machine) -> bool {
    let conditions = machine.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == conditions::RECONCILED && condition.status == "True")
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

    fn deployment(replicas: i32) -> Arc<MachineDeployment> {
        let mut deployment = MachineDeployment::new("demo-worker", Default::default());
        deployment.spec.replicas = Some(replicas);
        Arc::new(deployment)
    }

    #[test]
    fn a_pool_lacks_what_is_not_made_and_what_is_not_configured() {
        let done = [machine("a", Some("True")), machine("b", Some("True"))];
        let of = |quantity, machines: &[Arc<Machine>], replicas| {
            of(&cluster(quantity), machines, |_| Some(deployment(replicas)))
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
        assert_eq!(of(1, &done, 1), None, "what is too much goes");
        assert!(super::of(&cluster(2), &[], |_| None).is_some(), "a new pool");
    }
}
