//! Reads caches into a [`Scope`].

use std::collections::BTreeSet;
use std::sync::Arc;

use drover_api::capi::v1beta2::{ContractVersionedObjectReference, Machine, MachineSet};
use drover_api::labels::capi as labels;
use drover_runtime::{Error, ObjectKey};
use kube::ResourceExt;
use kube::api::{ApiResource, DynamicObject};
use serde_json::Value;

use super::MachineSetController;
use super::clone::{self, cloned_kind};
use super::scope::Scope;
use crate::admission::default_machine_set;
use crate::external::External;
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
        let mut scope = Scope {
            cluster,
            deployment,
            machines,
            bootstrap_template: self.externals.get(&namespace, template.bootstrap.config_ref.as_ref()).await,
            infra_template: self.externals.get(&namespace, Some(&template.infrastructure_ref)).await,
            control_plane: self.externals.get(&namespace, control_plane.as_ref()).await,
            unfinished,
            outdated: BTreeSet::new(),
            set,
        };
        for machine in &scope.machines {
            if self.is_outdated(&scope, machine, &namespace).await? {
                scope.outdated.insert(machine.name_any());
            }
        }
        Ok(scope)
    }

    async fn is_outdated(&self, scope: &Scope, machine: &Machine, namespace: &str) -> Result<bool, Error> {
        let name = machine.name_any();
        let desired = clone::machine(&scope.set, &name, Some(machine));
        if meta::is_deleting(&machine.metadata) {
            return Ok(clone::leaving_part(&desired) != clone::leaving_part(machine));
        }
        if self.machines.changes(&desired, machine)? {
            return Ok(true);
        }
        let clones = self.clones_of(scope, &name, namespace).await;
        Ok(clones.iter().any(|found| self.clone_changes(scope, found).is_some()))
    }

    /// Bootstrap config and infra machine of a Machine. Without its template a clone keeps what it has.
    pub(super) async fn clones_of<'a>(
        &self,
        scope: &'a Scope,
        name: &str,
        namespace: &str,
    ) -> Vec<Clone<'a>> {
        let mut clones = Vec::new();
        for (reference, template) in clone_references(scope) {
            let Ok((resource, _)) =
                self.externals.resolve(&reference.api_group, cloned_kind(&reference.kind))
            else {
                continue;
            };
            let Ok(cache) = self.externals.cache(&resource).await else { continue };
            if let Some(object) = cache.get(&ObjectKey::new(namespace, name)) {
                clones.push(Clone { reference, template, resource, object });
            }
        }
        clones
    }

    /// The patch that brings a clone up to date, if it is not.
    pub(super) fn clone_changes(&self, scope: &Scope, found: &Clone<'_>) -> Option<Value> {
        let template = found.template.object()?;
        clone::changes(&scope.set, template, found.reference, &found.object, &self.clone_manager)
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

/// What was cloned for a Machine, and from what.
pub(super) struct Clone<'a> {
    pub(super) reference: &'a ContractVersionedObjectReference,
    pub(super) template: &'a External,
    pub(super) resource: ApiResource,
    pub(super) object: Arc<DynamicObject>,
}

/// The set's templates with their references, in the order in which clones are made.
pub(super) fn clone_references(scope: &Scope) -> Vec<(&ContractVersionedObjectReference, &External)> {
    let template = &scope.set.spec.template.spec;
    let bootstrap =
        template.bootstrap.config_ref.iter().map(|reference| (reference, &scope.bootstrap_template));
    bootstrap.chain([(&template.infrastructure_ref, &scope.infra_template)]).collect()
}

/// Selected by the set, and controlled by it or by nobody.
pub(super) fn members(set: &MachineSet, of_cluster: Vec<Arc<Machine>>) -> Vec<Arc<Machine>> {
    let uid = set.uid().unwrap_or_default();
    of_cluster
        .into_iter()
        .filter(|machine| meta::selects(&set.spec.selector, machine.labels()))
        .filter(|machine| meta::controller_of(&machine.metadata).is_none_or(|owner| owner.uid == uid))
        .collect()
}
