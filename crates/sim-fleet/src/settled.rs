//! Checks whether all requested changes of a fleet are complete.

use std::collections::HashMap;

use drover_api::capi::v1beta2::Machine;
use drover_api::labels::capi::CLUSTER_NAME;
use drover_api::provisioning::v1::Cluster;
use drover_api::rke::v1::RKEControlPlane;
use drover_runtime::Error;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};

use crate::clusters::{LABEL, LABEL_VALUE, is_ready};

/// Returns the problems of each cluster.
pub async fn problems(client: &Client) -> Result<Vec<String>, Error> {
    let params = ListParams::default();
    let fleet = ListParams::default().labels(&format!("{LABEL}={LABEL_VALUE}"));
    let clusters =
        Api::<Cluster>::all(client.clone()).list(&fleet).await.map_err(Error::api("list Clusters"))?;
    let planes = Api::<RKEControlPlane>::all(client.clone()).list(&params).await;
    let planes = planes.map_err(Error::api("list RKEControlPlanes"))?;
    let machines = Api::<Machine>::all(client.clone()).list(&params).await;
    let machines = machines.map_err(Error::api("list Machines"))?;
    let planes: HashMap<String, &RKEControlPlane> =
        planes.items.iter().map(|plane| (plane.name_any(), plane)).collect();
    let mut by_cluster: HashMap<&str, Vec<&Machine>> = HashMap::new();
    for machine in &machines.items {
        let cluster = machine.labels().get(CLUSTER_NAME).map(String::as_str).unwrap_or_default();
        by_cluster.entry(cluster).or_default().push(machine);
    }
    Ok(clusters
        .items
        .iter()
        .filter_map(|cluster| {
            let name = cluster.name_any();
            let own = by_cluster.get(name.as_str()).map(Vec::as_slice).unwrap_or_default();
            let why = problem(cluster, planes.get(&name).copied(), own)?;
            Some(format!("{name}: {why}"))
        })
        .collect())
}

/// Returns why a cluster does not match its spec.
fn problem(cluster: &Cluster, plane: Option<&RKEControlPlane>, machines: &[&Machine]) -> Option<String> {
    if !is_ready(cluster) {
        let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
        let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
        let why = ready.map(|ready| ready.message.as_str()).unwrap_or("it has no condition Ready");
        return Some(format!("not Ready: {why}"));
    }
    let applied = plane.and_then(|plane| plane.status.as_ref()?.applied_spec.as_ref());
    let version = applied.map(|spec| spec.kubernetes_version.as_str()).unwrap_or_default();
    if version != cluster.spec.kubernetes_version {
        return Some(format!("its control plane has version {version:?}"));
    }
    let pools = cluster.spec.rke_config.iter().flat_map(|config| &config.machine_pools);
    let wanted: i32 = pools.filter_map(|pool| pool.quantity).sum();
    if machines.len() != usize::try_from(wanted).unwrap_or(0) {
        return Some(format!("it has {} Machines instead of {wanted}", machines.len()));
    }
    let has_node = |machine: &&&Machine| {
        machine.status.as_ref().is_some_and(|status| status.node_ref.is_some())
            && machine.metadata.deletion_timestamp.is_none()
    };
    let without = machines.iter().find(|machine| !has_node(machine))?;
    Some(format!("Machine {} has no Node", without.name_any()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clusters::{Shape, cluster};
    use serde_json::json;

    #[test]
    fn a_cluster_is_settled_when_version_and_machines_match_its_spec() {
        let shape = Shape { namespace: "fleet".into(), workers: 1, version: "v1".into() };
        let mut cluster = cluster(&shape, "sim-0001");
        assert!(problem(&cluster, None, &[]).unwrap().contains("not Ready"));
        cluster.metadata.generation = Some(2);
        let ready = json!({"observedGeneration": 2, "conditions": [{"type": "Ready", "status": "True"}]});
        cluster.status = serde_json::from_value(ready).unwrap();
        assert!(problem(&cluster, None, &[]).unwrap().contains("version"));
        let mut plane = RKEControlPlane::new("sim-0001", Default::default());
        let applied = json!({"appliedSpec": {
            "clusterName": "sim-0001", "kubernetesVersion": "v1", "managementClusterName": "c-1",
        }});
        plane.status = serde_json::from_value(applied).unwrap();
        assert!(problem(&cluster, Some(&plane), &[]).unwrap().contains("0 Machines instead of 2"));
        let mut machine = Machine::new("m", Default::default());
        assert!(problem(&cluster, Some(&plane), &[&machine, &machine]).unwrap().contains("no Node"));
        machine.status = serde_json::from_value(json!({"nodeRef": {"name": "m"}})).unwrap();
        assert_eq!(problem(&cluster, Some(&plane), &[&machine, &machine]), None);
    }
}
