//! Reads caches into a [`Scope`].

use std::sync::Arc;

use drover_api::capi::v1beta2::{MachineDeployment, MachineSet};
use drover_api::labels::capi as labels;
use drover_runtime::ObjectKey;
use kube::ResourceExt;

use super::MachineDeploymentController;
use super::scope::Scope;
use crate::admission::default_machine_deployment;
use crate::meta;

impl MachineDeploymentController {
    pub(super) async fn observe(&self, deployment: &MachineDeployment) -> Scope {
        // With the API's defaults, for an API without our hooks.
        let mut deployment = deployment.clone();
        default_machine_deployment(&mut deployment, None);
        let namespace = deployment.namespace().unwrap_or_default();
        let cluster_name = &deployment.spec.cluster_name;
        let template = &deployment.spec.template.spec;
        let sets = sets_of(
            &deployment,
            self.caches.machine_sets.by_label(labels::CLUSTER_NAME, &namespace, cluster_name),
        );
        let machines = sets
            .iter()
            .flat_map(|set| self.caches.machines.by_index("owner", &set.uid().unwrap_or_default()))
            .collect();
        Scope {
            cluster: self.caches.clusters.get(&ObjectKey::new(&namespace, cluster_name)),
            machines,
            sets,
            bootstrap_template: self.externals.get(&namespace, template.bootstrap.config_ref.as_ref()).await,
            infra_template: self.externals.get(&namespace, Some(&template.infrastructure_ref)).await,
            deployment,
        }
    }
}

/// Controlled by the deployment, or selected by it and without a controller.
fn sets_of(deployment: &MachineDeployment, of_cluster: Vec<Arc<MachineSet>>) -> Vec<Arc<MachineSet>> {
    let uid = deployment.uid().unwrap_or_default();
    of_cluster
        .into_iter()
        .filter(|set| match meta::controller_of(&set.metadata) {
            Some(owner) => owner.uid == uid,
            None => meta::selects(&deployment.spec.selector, set.labels()),
        })
        .collect()
}
