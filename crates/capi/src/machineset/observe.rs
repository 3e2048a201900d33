//! Reads caches into a [`Scope`].

use std::collections::BTreeSet;
use std::sync::Arc;

use drover_api::capi::v1beta2::{ContractVersionedObjectReference, Machine, MachineSet};
use drover_api::labels::capi as labels;
use drover_runtime::{Error, ObjectKey};
use kube::ResourceExt;

use super::MachineSetController;
use super::clone::cloned_kind;
use super::scope::Scope;
use crate::admission::default_machine_set;
use crate::meta;

impl MachineSetController {
    pub(super) async fn observe(&self, set: &MachineSet) -> Result<Scope, Error> {
        // With the API's defaults, for an API without our hooks.
        let mut set = set.clone();
        default_machine_set(&mut set, None);
        let namespace = set.namespace().unwrap_or_default();
        let cluster = self.caches.clusters.get(&ObjectKey::new(&namespace, &set.spec.cluster_name));
        let control_plane = cluster.as_ref().and_then(|cluster| cluster.spec.control_plane_ref.clone());
        let deployment = meta::controller_of(&set.metadata)
            .filter(|owner| meta::is_core_owner(owner, "MachineDeployment"))
            .and_then(|owner| self.caches.machine_deployments.get(&ObjectKey::new(&namespace, &owner.name)));
        let template = &set.spec.template.spec;
        let machines = members(
            &set,
            self.caches.machines.by_label(labels::CLUSTER_NAME, &namespace, &set.spec.cluster_name),
        );
        let unfinished = self.unfinished(&set, &namespace).await?;
        Ok(Scope {
            cluster,
            deployment,
            machines,
            bootstrap_template: self.externals.get(&namespace, template.bootstrap.config_ref.as_ref()).await,
            infra_template: self.externals.get(&namespace, Some(&template.infrastructure_ref)).await,
            control_plane: self.externals.get(&namespace, control_plane.as_ref()).await,
            unfinished,
            set,
        })
    }

    /// Clones that still belong to the set itself and have no Machine of their name. Without them, others would be
    /// created.
    async fn unfinished(&self, set: &MachineSet, namespace: &str) -> Result<BTreeSet<String>, Error> {
        let template = &set.spec.template.spec;
        let references: Vec<&ContractVersionedObjectReference> =
            template.bootstrap.config_ref.iter().chain([&template.infrastructure_ref]).collect();
        let uid = set.uid().unwrap_or_default();
        let mut names = BTreeSet::new();
        for reference in references {
            let Ok((resource, _)) =
                self.externals.resolve(&reference.api_group, cloned_kind(&reference.kind))
            else {
                continue;
            };
            let cache = self.externals.cache(&resource).await;
            let clones = cache.map_err(Error::other("find clones"))?.by_index("owner", &uid);
            names.extend(
                clones
                    .iter()
                    .filter(|clone| !meta::is_deleting(&clone.metadata))
                    .map(|clone| clone.name_any()),
            );
        }
        names.retain(|name| self.caches.machines.get(&ObjectKey::new(namespace, name)).is_none());
        Ok(names)
    }
}

/// Selected by the set, and controlled by it or without a controller.
pub(super) fn members(set: &MachineSet, of_cluster: Vec<Arc<Machine>>) -> Vec<Arc<Machine>> {
    let uid = set.uid().unwrap_or_default();
    of_cluster
        .into_iter()
        .filter(|machine| meta::selects(&set.spec.selector, machine.labels()))
        .filter(|machine| meta::controller_of(&machine.metadata).is_none_or(|owner| owner.uid == uid))
        .collect()
}
