//! Executes a decision. Every step has preconditions and can be repeated.

use drover_access_api::{ClusterHandle, Eviction, PodRemoval};
use drover_api::finalizers;
use drover_runtime::error::found;
use drover_runtime::{Error, ObjectKey, finalizer};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::{Value, json};

use super::MachineController;
use super::decide::{Action, Decision, Part, desired_owners};
use super::events;
use super::scope::Scope;
use crate::external::External;

/// Field manager of changes to Nodes.
const NODE_MANAGER: &str = "drover-machine";

impl MachineController {
    /// Executes the actions in order; the first failure stops. Returns the Machine's generation if that changed.
    pub(super) async fn apply(&self, scope: &Scope, decision: &Decision) -> Result<Option<i64>, Error> {
        let mut generation = None;
        for action in &decision.actions {
            let done = match action {
                Action::Apply(desired) => self.apply_fields(scope, desired).await.map(|new| generation = new),
                action => self.execute(scope, action).await,
            };
            if let Err(error) = done {
                let note = events::failed(action, &error.chain());
                self.events.publish(&scope.machine, note.iter().filter(|_| !error.is_conflict()));
                return Err(error);
            }
            self.events.publish(&scope.machine, &events::done(action));
        }
        Ok(generation)
    }

    async fn apply_fields(&self, scope: &Scope, desired: &Value) -> Result<Option<i64>, Error> {
        let desired = serde_json::from_value(desired.clone()).map_err(Error::other("build Machine"))?;
        let sent = self.spec.apply_fields(&desired, &scope.machine).await?.sent();
        Ok(sent.and_then(|written| written.metadata.generation))
    }

    async fn execute(&self, scope: &Scope, action: &Action) -> Result<(), Error> {
        let machine = &scope.machine;
        let namespace = machine.namespace().unwrap_or_default();
        let api: Api<drover_api::capi::v1beta2::Machine> = Api::namespaced(self.client.clone(), &namespace);
        match action {
            Action::AddFinalizer => {
                finalizer::ensure(&api, machine, finalizers::capi::MACHINE).await.map(|_| ())
            }
            Action::RemoveFinalizer => {
                finalizer::remove(&api, machine, finalizers::capi::MACHINE).await.map(|_| ())
            }
            Action::Apply(desired) => self.apply_fields(scope, desired).await.map(|_| ()),
            Action::Adopt(part) => self.adopt(scope, *part, &namespace).await,
            Action::Delete(part) => self.delete(scope, *part, &namespace).await,
            Action::PatchNode { name, patch } => {
                let cluster = self.connected(scope)?;
                let sent = cluster.patch_node(NODE_MANAGER, name, patch.clone()).await;
                sent.map_err(Error::api(format!("update Node {name}")))
            }
            Action::Cordon(name) => {
                let patch = json!({ "spec": { "unschedulable": true } });
                let sent = self.connected(scope)?.patch_node(NODE_MANAGER, name, patch).await;
                sent.map_err(Error::api(format!("cordon Node {name}")))
            }
            Action::Evict { pods, grace_seconds } => {
                let cluster = self.connected(scope)?;
                let how = PodRemoval { force: false, grace_seconds: *grace_seconds };
                for pod in pods {
                    let removed = cluster.remove_pod(&pod.namespace, &pod.name, how).await;
                    if let Eviction::Blocked(why) = removed.map_err(Error::api(format!("evict pod {pod}")))? {
                        tracing::debug!(%pod, why, "a disruption budget does not allow the eviction");
                    }
                }
                Ok(())
            }
            Action::DeleteNode(name) => {
                let deleted = self.connected(scope)?.delete_node(name, None).await;
                deleted.map_err(Error::api(format!("delete Node {name}")))
            }
        }
    }

    fn connected(&self, scope: &Scope) -> Result<ClusterHandle, Error> {
        let namespace = scope.machine.namespace().unwrap_or_default();
        let key = ObjectKey::new(namespace, &scope.machine.spec.cluster_name);
        self.access.cluster(&key).map_err(|lost| Error::Stale(lost.why.to_string()))
    }

    /// With a JSON patch with `test`, because others own other entries of the list.
    async fn adopt(&self, scope: &Scope, part: Part, namespace: &str) -> Result<(), Error> {
        let External::Found { resource, object, .. } = external(scope, part) else { return Ok(()) };
        let name = object.name_any();
        let mut patch = vec![
            json!({ "op": "test", "path": "/metadata/uid", "value": object.uid() }),
            json!({ "op": "test", "path": "/metadata/resourceVersion", "value": object.resource_version() }),
            json!({ "op": "add", "path": "/metadata/ownerReferences", "value": desired_owners(scope, object) }),
        ];
        if object.metadata.labels.is_none() {
            patch.push(json!({ "op": "add", "path": "/metadata/labels", "value": {} }));
        }
        patch.push(json!({
            "op": "add",
            "path": "/metadata/labels/cluster.x-k8s.io~1cluster-name",
            "value": scope.machine.spec.cluster_name,
        }));
        let patch = serde_json::from_value(json!(patch)).map_err(Error::other("build patch"))?;
        let api = self.externals.api(namespace, resource);
        match api.patch(&name, &PatchParams::default(), &Patch::Json::<()>(patch)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 422 => {
                Err(Error::Stale(format!("{} {name}", resource.kind)))
            }
            Err(source) => Err(Error::Api { operation: format!("adopt {} {name}", resource.kind), source }),
        }
    }

    async fn delete(&self, scope: &Scope, part: Part, namespace: &str) -> Result<(), Error> {
        let External::Found { resource, object, .. } = external(scope, part) else { return Ok(()) };
        let name = object.name_any();
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: object.uid(), resource_version: None }),
            ..DeleteParams::background()
        };
        let deleted = self.externals.api(namespace, resource).delete(&name, &params).await;
        found(deleted).map(|_| ()).map_err(Error::api(format!("delete {} {name}", resource.kind)))
    }
}

fn external(scope: &Scope, part: Part) -> &External {
    match part {
        Part::Bootstrap => &scope.bootstrap,
        Part::Infrastructure => &scope.infra,
    }
}
