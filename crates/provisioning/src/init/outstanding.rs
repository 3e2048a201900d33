//! What of a spec is not carried out, although the control plane is Ready: it reports about the spec and the machines that
//! it has seen. Pure.

use std::sync::Arc;

use drover_api::capi::v1beta2::{Machine, MachineDeployment};
use drover_api::provisioning::v1::RKEMachinePool;
use drover_api::rke::v1::RKEControlPlane;
use kube::ResourceExt;

use super::pools::deployment_name;
use super::scope::Scope;
use super::waits::Waiting;
use crate::keys::{conditions, labels};

/// The first thing that is missing. `wanted` are the MachineDeployments as they are generated, and `written` is the generation
/// of the control plane, if this pass has written it.
pub fn outstanding(scope: &Scope, wanted: &[&MachineDeployment], written: Option<i64>) -> Option<Waiting> {
    let name = scope.cluster.name_any();
    if scope.control_plane.as_deref().is_some_and(|plane| is_behind(plane, written)) {
        return Some(Waiting::ControlPlane { name });
    }
    let mut pools = scope.pools().iter().filter(|pool| !pool.paused);
    let of_pool = |pool| of_pool(pool, &deployment_name(&name, &pool.name), scope, wanted);
    pools.find_map(of_pool).or_else(|| surplus(scope))
}

/// A machine of a pool that is too much, or replaced, or whose pool was removed.
fn surplus(scope: &Scope) -> Option<Waiting> {
    let of_pool = |machine: &&Arc<Machine>| machine.labels().contains_key(labels::capi::DEPLOYMENT_NAME);
    let is_deleting = |machine: &&Arc<Machine>| machine.metadata.deletion_timestamp.is_some();
    let machine = scope.machines.iter().filter(of_pool).find(is_deleting)?;
    Some(Waiting::Removal { machine: machine.name_any() })
}

fn is_behind(plane: &RKEControlPlane, written: Option<i64>) -> bool {
    let generation = plane.metadata.generation.unwrap_or_default();
    let observed = plane.status.as_ref().map(|status| status.observed_generation).unwrap_or_default();
    observed != generation || written.is_some_and(|written| written > generation)
}

fn of_pool(
    pool: &RKEMachinePool,
    deployment: &str,
    scope: &Scope,
    generated: &[&MachineDeployment],
) -> Option<Waiting> {
    let machines: Vec<&Arc<Machine>> =
        scope.machines.iter().filter(|machine| is_staying_in(machine, deployment)).collect();
    // Without a number it is one, also where nobody fills that in.
    let wanted = pool.quantity.unwrap_or(1);
    let observed = i32::try_from(machines.len()).unwrap_or(i32::MAX);
    let live = scope.deployments.iter().find(|live| live.metadata.name.as_deref() == Some(deployment));
    let pool = pool.name.clone();
    if live.is_none_or(|live| live.spec.replicas.unwrap_or(1) != wanted) || observed != wanted {
        return Some(Waiting::PoolSize { pool, wanted, observed });
    }
    let is_old = |machine: &&&Arc<Machine>| is_of_another_template(machine, deployment, scope, generated);
    if let Some(old) = machines.iter().find(is_old) {
        return Some(Waiting::Replacement { pool, machine: old.name_any() });
    }
    let unseen = machines.iter().find(|machine| !is_configured(machine))?;
    Some(Waiting::Configuration { pool, machine: unseen.name_any() })
}

fn is_staying_in(machine: &Machine, deployment: &str) -> bool {
    let label = machine.labels().get(labels::capi::DEPLOYMENT_NAME);
    machine.metadata.deletion_timestamp.is_none() && label.is_some_and(|name| name == deployment)
}

/// Another machine template is another kind of server, so a rollout is due or under way.
fn is_of_another_template(
    machine: &Machine,
    deployment: &str,
    scope: &Scope,
    generated: &[&MachineDeployment],
) -> bool {
    let wanted = generated.iter().find(|wanted| wanted.metadata.name.as_deref() == Some(deployment));
    let mut sets = machine
        .owner_references()
        .iter()
        .filter(|owner| owner.kind == "MachineSet")
        .filter_map(|owner| scope.sets.iter().find(|set| set.metadata.uid.as_ref() == Some(&owner.uid)));
    let (Some(wanted), Some(set)) = (wanted, sets.next()) else { return false };
    wanted.spec.template.spec.infrastructure_ref.name != set.spec.template.spec.infrastructure_ref.name
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
    use drover_api::capi::v1beta2::MachineSet;
    use drover_api::provisioning::v1::Cluster;
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

    fn scope(cluster: Cluster, deployments: Vec<Arc<MachineDeployment>>, machines: &[Arc<Machine>]) -> Scope {
        Scope { cluster: Arc::new(cluster), deployments, machines: machines.to_vec(), ..Scope::default() }
    }

    fn generated(template: &str) -> MachineDeployment {
        let mut deployment = MachineDeployment::new("demo-worker", Default::default());
        deployment.spec.template.spec.infrastructure_ref.name = template.to_owned();
        deployment
    }

    fn text(scope: &Scope) -> Option<String> {
        outstanding(scope, &[&generated("")], None).map(|waiting| waiting.to_string())
    }

    #[test]
    fn a_pool_lacks_what_is_not_made_and_what_is_not_configured() {
        let done = [machine("a", Some("True")), machine("b", Some("True"))];
        let of = |quantity, machines: &[Arc<Machine>], replicas| {
            text(&scope(cluster(quantity), vec![deployment(Some(replicas))], machines))
        };
        assert_eq!(of(2, &done, 2), None);
        let reported = of(3, &done, 2).unwrap();
        assert_eq!(
            reported, "waiting for pool worker to have 3 machines, it has 2",
            "nobody has scaled it yet"
        );
        assert!(of(3, &done, 3).is_some(), "the Machine is not made yet");
        for status in [None, Some("Unknown")] {
            let [a, b] = done.clone();
            let reported = of(3, &[a, b, machine("c", status)], 3).unwrap();
            assert_eq!(reported, "waiting for machine c of pool worker to be configured");
        }
        assert!(of(1, &done, 2).is_some(), "nobody has scaled it down yet");
        assert!(of(1, &done, 1).is_some(), "nobody has deleted what is too much yet");
        let [a, mut b] = done.clone();
        Arc::make_mut(&mut b).metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(of(1, &[a, b], 1).as_deref(), Some("waiting for machine b to be removed"));
        assert!(text(&scope(cluster(2), vec![], &[])).is_some(), "a new pool");
    }

    #[test]
    fn a_pool_without_quantity_has_one_machine_also_where_nobody_fills_that_in() {
        let mut cluster = cluster(1);
        cluster.spec.rke_config.as_mut().unwrap().machine_pools[0].quantity = None;
        for replicas in [None, Some(1)] {
            let machines = [machine("a", Some("True"))];
            assert_eq!(text(&scope(cluster.clone(), vec![deployment(replicas)], &machines)), None);
        }
    }

    #[test]
    fn machines_of_a_former_template_are_not_yet_what_the_spec_says() {
        let mut old = machine("a", Some("True"));
        Arc::make_mut(&mut old).metadata.owner_references = serde_json::from_value(json!([
            {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet", "name": "set", "uid": "uid-1"},
        ]))
        .unwrap();
        let mut set = MachineSet::new("set", Default::default());
        set.metadata.uid = Some("uid-1".into());
        set.spec.template.spec.infrastructure_ref.name = "demo-worker-old".into();
        let scope =
            Scope { sets: vec![Arc::new(set)], ..scope(cluster(1), vec![deployment(Some(1))], &[old]) };
        let reported = |template: &str| {
            outstanding(&scope, &[&generated(template)], None).map(|waiting| waiting.to_string())
        };
        assert_eq!(reported("demo-worker-old"), None);
        let waiting = "waiting for machine a of pool worker to be replaced";
        assert_eq!(reported("demo-worker-new").as_deref(), Some(waiting));
    }

    #[test]
    fn a_control_plane_that_has_not_seen_the_change_does_not_speak_for_it() {
        let reported = |generation: i64, observed: i64, written: Option<i64>| {
            let plane: RKEControlPlane = serde_json::from_value(json!({
                "metadata": {"name": "demo", "generation": generation},
                "spec": {"clusterName": "demo", "managementClusterName": "c-m-1"},
                "status": {"observedGeneration": observed},
            }))
            .unwrap();
            let mut scope = scope(cluster(0), vec![deployment(Some(0))], &[]);
            scope.control_plane = Some(Arc::new(plane));
            outstanding(&scope, &[&generated("")], written).map(|waiting| waiting.to_string())
        };
        assert_eq!(reported(2, 2, None), None);
        assert_eq!(reported(2, 2, Some(2)), None, "the write changed nothing of the spec");
        let waiting = Some("waiting for control plane demo to take up the change");
        assert_eq!(reported(2, 1, None).as_deref(), waiting, "the planner has not been over it");
        assert_eq!(reported(2, 2, Some(3)).as_deref(), waiting, "the cache does not show it yet");
    }
}
