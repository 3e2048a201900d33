//! Executes a decision. Every step has preconditions and can be repeated.

use drover_api::capi::v1beta2::{API_VERSION, Cluster, Machine, MachineDeployment, MachineSet};
use drover_api::finalizers;
use drover_runtime::error::found;
use drover_runtime::{Error, finalizer};
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DeleteParams, Preconditions};
use serde_json::json;

use super::ClusterController;
use super::decide::{Action, Decision, Descendant, Part};
use super::events;
use super::scope::Scope;
use crate::apply::own_by_cluster;
use crate::external::External;

impl ClusterController {
    /// Executes the actions in order; the first failure stops.
    pub(super) async fn apply(&self, scope: &Scope, decision: &Decision) -> Result<(), Error> {
        for action in &decision.actions {
            self.execute(scope, action).await?;
            self.events.publish(&scope.cluster, &events::done(scope, action));
        }
        Ok(())
    }

    async fn execute(&self, scope: &Scope, action: &Action) -> Result<(), Error> {
        let cluster = &scope.cluster;
        let namespace = cluster.namespace().unwrap_or_default();
        let api: Api<Cluster> = Api::namespaced(self.client.clone(), &namespace);
        match action {
            Action::AddFinalizer => {
                finalizer::ensure(&api, cluster, finalizers::capi::CLUSTER).await.map(|_| ())
            }
            Action::RemoveFinalizer => {
                finalizer::remove(&api, cluster, finalizers::capi::CLUSTER).await.map(|_| ())
            }
            Action::Own(part) => own_by_cluster(&self.externals, cluster, external(scope, *part)).await,
            Action::Endpoint { host, port } => {
                let desired = json!({
                    "apiVersion": API_VERSION,
                    "kind": "Cluster",
                    "metadata": { "name": cluster.name_any(), "namespace": namespace },
                    "spec": { "controlPlaneEndpoint": { "host": host, "port": port } },
                });
                let desired = serde_json::from_value(desired).map_err(Error::other("build Cluster"))?;
                self.spec.apply_fields(&desired, cluster).await.map(|_| ())
            }
            Action::DeleteDescendant(descendant) => self.delete_descendant(descendant, &namespace).await,
            Action::Delete(part) => {
                let External::Found { resource, object, .. } = external(scope, *part) else { return Ok(()) };
                let name = object.name_any();
                let deleted =
                    self.externals.api(&namespace, resource).delete(&name, &exactly(object.uid())).await;
                found(deleted).map(|_| ()).map_err(Error::api(format!("delete {} {name}", resource.kind)))
            }
        }
    }

    async fn delete_descendant(&self, descendant: &Descendant, namespace: &str) -> Result<(), Error> {
        let Descendant { kind, name, uid } = descendant;
        let resource = match *kind {
            "MachineDeployment" => ApiResource::erase::<MachineDeployment>(&()),
            "MachineSet" => ApiResource::erase::<MachineSet>(&()),
            _ => ApiResource::erase::<Machine>(&()),
        };
        let api = self.externals.api(namespace, &resource);
        let deleted = api.delete(name, &exactly(uid.clone())).await;
        found(deleted).map(|_| ()).map_err(Error::api(format!("delete {kind} {name}")))
    }
}

/// A new object with the same name must not be deleted instead.
fn exactly(uid: Option<String>) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions { uid, resource_version: None }),
        ..DeleteParams::background()
    }
}

fn external(scope: &Scope, part: Part) -> &External {
    match part {
        Part::Infrastructure => &scope.infra,
        Part::ControlPlane => &scope.control_plane,
    }
}
