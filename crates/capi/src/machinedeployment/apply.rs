//! Executes a decision. Every step has preconditions and can be repeated.

use drover_api::annotations::capi as annotations;
use drover_api::capi::v1beta2::{API_VERSION, MachineDeployment, MachineSet};
use drover_api::finalizers;
use drover_api::labels::capi as labels;
use drover_runtime::error::found;
use drover_runtime::{Error, finalizer};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::json;

use super::MachineDeploymentController;
use super::decide::{Action, Decision};
use super::events;
use super::scope::{Scope, Strategy};
use super::template;
use crate::apply::own_by_cluster;
use crate::meta;

impl MachineDeploymentController {
    /// Executes the actions in order; the first failure stops.
    pub(super) async fn apply(&self, scope: &Scope, decision: &Decision) -> Result<(), Error> {
        for action in &decision.actions {
            if let Err(error) = self.execute(scope, action).await {
                let note = events::failed(action, &error.chain());
                self.events.publish(&scope.deployment, note.iter().filter(|_| !error.is_conflict()));
                return Err(error);
            }
            self.events.publish(&scope.deployment, &events::done(scope, action));
        }
        Ok(())
    }

    async fn execute(&self, scope: &Scope, action: &Action) -> Result<(), Error> {
        let deployment = &scope.deployment;
        let namespace = deployment.namespace().unwrap_or_default();
        let api: Api<MachineDeployment> = Api::namespaced(self.client.clone(), &namespace);
        let sets: Api<MachineSet> = Api::namespaced(self.client.clone(), &namespace);
        match action {
            Action::AddFinalizer => {
                finalizer::ensure(&api, deployment, finalizers::capi::MACHINE_DEPLOYMENT).await.map(|_| ())
            }
            Action::RemoveFinalizer => {
                finalizer::remove(&api, deployment, finalizers::capi::MACHINE_DEPLOYMENT).await.map(|_| ())
            }
            Action::Label { revision } => self.label(scope, *revision, &namespace).await,
            Action::OwnTemplates => {
                let Some(cluster) = &scope.cluster else { return Ok(()) };
                for template in [&scope.bootstrap_template, &scope.infra_template] {
                    own_by_cluster(&self.externals, cluster, template).await?;
                }
                Ok(())
            }
            Action::Adopt(name) => {
                let Some(set) = scope.sets.iter().find(|set| set.name_any() == *name) else { return Ok(()) };
                let mut owners = set.metadata.owner_references.clone().unwrap_or_default();
                owners.push(meta::owner_reference(deployment, true));
                let patch = json!([
                    { "op": "test", "path": "/metadata/resourceVersion", "value": set.resource_version() },
                    { "op": "add", "path": "/metadata/ownerReferences", "value": owners },
                ]);
                let patch = serde_json::from_value(patch).map_err(Error::other("build patch"))?;
                match sets.patch(name, &PatchParams::default(), &Patch::Json::<()>(patch)).await {
                    Ok(adopted) => self.expected.expect(deployment, adopted.resource_version()),
                    Err(kube::Error::Api(status)) if [404, 422].contains(&status.code) => {
                        return Err(Error::Stale(format!("MachineSet {name}")));
                    }
                    Err(source) => {
                        return Err(Error::Api { operation: format!("adopt MachineSet {name}"), source });
                    }
                }
                Ok(())
            }
            Action::Set(plan) => {
                let live = scope.sets.iter().find(|set| set.name_any() == plan.name);
                let surge = match scope.strategy() {
                    Strategy::RollingUpdate { max_surge, .. } => max_surge,
                    Strategy::OnDelete => 0,
                };
                let live = live.map(|set| &**set);
                let desired = template::machine_set(deployment, plan, live, scope.replicas() + surge);
                if let Some(written) = self.sets.apply(&desired, live).await?.sent() {
                    self.expected.expect(deployment, written.resource_version());
                }
                Ok(())
            }
            Action::Delete { name, uid } => {
                let preconditions = Some(Preconditions { uid: uid.clone(), resource_version: None });
                let params = DeleteParams { preconditions, ..DeleteParams::background() };
                found(sets.delete(name, &params).await)
                    .map(|_| ())
                    .map_err(Error::api(format!("delete MachineSet {name}")))
            }
        }
    }

    async fn label(&self, scope: &Scope, revision: Option<i64>, namespace: &str) -> Result<(), Error> {
        let deployment = &scope.deployment;
        let mut metadata = json!({
            "name": deployment.name_any(),
            "namespace": namespace,
            "labels": { labels::CLUSTER_NAME: deployment.spec.cluster_name },
            "finalizers": [finalizers::capi::MACHINE_DEPLOYMENT],
        });
        if let Some(revision) = revision {
            metadata["annotations"] = json!({ annotations::REVISION: revision.to_string() });
        }
        if let Some(cluster) = &scope.cluster {
            metadata["ownerReferences"] = json!([meta::owner_reference(&**cluster, false)]);
        }
        let desired = json!({ "apiVersion": API_VERSION, "kind": "MachineDeployment", "metadata": metadata });
        let desired = serde_json::from_value(desired).map_err(Error::other("build MachineDeployment"))?;
        self.metadata.apply_fields(&desired, deployment).await.map(|_| ())
    }
}
