//! Executes a decision. Every step has preconditions and can be repeated.

use std::sync::Arc;

use drover_api::capi::v1beta2::{API_VERSION, Machine, MachineSet};
use drover_api::finalizers;
use drover_api::labels::capi as labels;
use drover_runtime::error::{found, is_already_exists};
use drover_runtime::{Error, finalizer};
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;

use super::MachineSetController;
use super::clone;
use super::decide::{Action, Decision};
use super::events;
use super::observe::{Clone, clone_references};
use super::scope::Scope;
use crate::apply::own_by_cluster;
use crate::meta;

impl MachineSetController {
    /// Executes the actions in order; the first failure stops.
    pub(super) async fn apply(&self, scope: &Scope, decision: &Decision) -> Result<(), Error> {
        for action in &decision.actions {
            if let Err(error) = self.execute(scope, action).await {
                let note = events::failed(action, &error.chain());
                self.events.publish(&scope.set, note.iter().filter(|_| !error.is_conflict()));
                return Err(error);
            }
            self.events.publish(&scope.set, &events::done(action));
        }
        Ok(())
    }

    async fn execute(&self, scope: &Scope, action: &Action) -> Result<(), Error> {
        let set = &scope.set;
        let namespace = set.namespace().unwrap_or_default();
        let api: Api<MachineSet> = Api::namespaced(self.client.clone(), &namespace);
        match action {
            Action::AddFinalizer => {
                finalizer::ensure(&api, set, finalizers::capi::MACHINE_SET).await.map(|_| ())
            }
            Action::RemoveFinalizer => {
                finalizer::remove(&api, set, finalizers::capi::MACHINE_SET).await.map(|_| ())
            }
            Action::Label => self.label(scope, &namespace).await,
            Action::OwnTemplates => {
                let Some(cluster) = &scope.cluster else { return Ok(()) };
                for template in [&scope.bootstrap_template, &scope.infra_template] {
                    own_by_cluster(&self.externals, cluster, template).await?;
                }
                Ok(())
            }
            Action::Adopt(name) => self.adopt(scope, name, &namespace).await,
            Action::Update(name) => self.update(scope, name, &namespace).await,
            Action::Create(name) => self.create(scope, name, &namespace).await,
            Action::Delete { name, uid, reason } => {
                tracing::info!(machine = %name, set = %set.name_any(), %reason, "deleting Machine");
                let api: Api<Machine> = Api::namespaced(self.client.clone(), &namespace);
                let preconditions = Some(Preconditions { uid: uid.clone(), resource_version: None });
                let params = DeleteParams { preconditions, ..DeleteParams::background() };
                let deleted = found(api.delete(name, &params).await)
                    .map_err(Error::api(format!("delete Machine {name}")))?;
                if let Some(deleting) = deleted.and_then(|deleted| deleted.left()) {
                    self.expected.expect(set, deleting.resource_version());
                }
                Ok(())
            }
            Action::DeleteClones(name) => self.delete_clones(set, name, &namespace).await,
        }
    }

    async fn label(&self, scope: &Scope, namespace: &str) -> Result<(), Error> {
        let set = &scope.set;
        let mut metadata = json!({
            "name": set.name_any(),
            "namespace": namespace,
            "labels": { labels::CLUSTER_NAME: set.spec.cluster_name },
        });
        if let (true, Some(cluster)) = (scope.stands_alone(), &scope.cluster) {
            metadata["ownerReferences"] = json!([meta::owner_reference(&**cluster, false)]);
        }
        let desired = json!({ "apiVersion": API_VERSION, "kind": "MachineSet", "metadata": metadata });
        let desired = serde_json::from_value(desired).map_err(Error::other("build MachineSet"))?;
        self.metadata.apply_fields(&desired, set).await.map(|_| ())
    }

    async fn adopt(&self, scope: &Scope, name: &str, namespace: &str) -> Result<(), Error> {
        let Some(machine) = scope.machines.iter().find(|machine| machine.name_any() == name) else {
            return Ok(());
        };
        let mut owners = machine.metadata.owner_references.clone().unwrap_or_default();
        owners.push(meta::owner_reference(&scope.set, true));
        let patch = json!([
            { "op": "test", "path": "/metadata/uid", "value": machine.uid() },
            { "op": "test", "path": "/metadata/resourceVersion", "value": machine.resource_version() },
            { "op": "add", "path": "/metadata/ownerReferences", "value": owners },
        ]);
        let patch = serde_json::from_value(patch).map_err(Error::other("build patch"))?;
        let api: Api<Machine> = Api::namespaced(self.client.clone(), namespace);
        match api.patch(name, &PatchParams::default(), &Patch::Json::<()>(patch)).await {
            Ok(adopted) => {
                self.expected.expect(&scope.set, adopted.resource_version());
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 422 || status.code == 404 => {
                Err(Error::Stale(format!("Machine {name}")))
            }
            Err(source) => Err(Error::Api { operation: format!("adopt Machine {name}"), source }),
        }
    }

    /// Copies labels, annotations, timeouts, gates and taints to Machines without replacing them.
    async fn update(&self, scope: &Scope, name: &str, namespace: &str) -> Result<(), Error> {
        let set = &scope.set;
        let Some(live) = scope.machines.iter().find(|machine| machine.name_any() == name) else {
            return Ok(());
        };
        let desired = clone::machine(set, name, Some(live));
        if meta::is_deleting(&live.metadata) {
            return self.update_leaving(&desired, live, namespace).await;
        }
        if let Some(written) = self.machines.apply(&desired, Some(live)).await?.sent() {
            self.expected.expect(set, written.resource_version());
        }
        for found in self.clones_of(scope, name, namespace).await {
            self.update_clone(scope, &found).await?;
        }
        Ok(())
    }

    /// Updates the fields that a deletion uses in a Machine that is being deleted. It is a merge patch, because an
    /// apply would recreate a Machine that has been deleted in the meantime.
    async fn update_leaving(&self, desired: &Machine, live: &Machine, namespace: &str) -> Result<(), Error> {
        let api: Api<Machine> = Api::namespaced(self.client.clone(), namespace);
        let patch = json!({ "metadata": { "uid": live.uid() }, "spec": clone::leaving_part(desired) });
        let name = live.name_any();
        let sent = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
        found(sent).map(|_| ()).map_err(Error::api(format!("update Machine {name}")))
    }

    /// Labels and annotations of the set's template reach the clones of a Machine.
    async fn update_clone(&self, scope: &Scope, found: &Clone<'_>) -> Result<(), Error> {
        let Some(patch) = self.clone_changes(scope, found) else { return Ok(()) };
        let (name, namespace) = (found.object.name_any(), found.object.namespace().unwrap_or_default());
        let params =
            PatchParams { field_manager: Some(self.clone_manager.to_owned()), ..PatchParams::default() };
        let api = self.externals.api(&namespace, &found.resource);
        let sent = api.patch(&name, &params, &Patch::Merge(patch)).await;
        sent.map(|_| ()).map_err(Error::api(format!("update {} {name}", found.resource.kind)))
    }

    /// Creates bootstrap config, infra machine and Machine. If one is rejected, the previous ones are deleted. If it
    /// is unknown whether one was created, they are kept, because a Machine without them would wait forever: the next
    /// pass continues.
    async fn create(&self, scope: &Scope, name: &str, namespace: &str) -> Result<(), Error> {
        let set = &scope.set;
        let mut made: Vec<ApiResource> = Vec::new();
        let outcome = self.create_all(scope, name, namespace, &mut made).await;
        if let Err(error) = &outcome {
            tracing::warn!(machine = %name, set = %set.name_any(), error = error.chain(), "failed to create Machine");
            if !error.is_refusal() {
                return outcome;
            }
            for resource in made.iter().rev() {
                let deleted =
                    self.externals.api(namespace, resource).delete(name, &DeleteParams::background()).await;
                found(deleted).map_err(Error::api(format!("delete {} {name}", resource.kind)))?;
            }
        }
        outcome
    }

    async fn create_all(
        &self,
        scope: &Scope,
        name: &str,
        namespace: &str,
        made: &mut Vec<ApiResource>,
    ) -> Result<(), Error> {
        let set = &scope.set;
        for (reference, template) in clone_references(scope) {
            let Some(object) = template.object() else {
                return Err(Error::Invalid(format!("{} {} does not exist", reference.kind, reference.name)));
            };
            let (resource, _) = self
                .externals
                .resolve(&reference.api_group, clone::cloned_kind(&reference.kind))
                .map_err(|error| Error::Invalid(error.to_string()))?;
            let desired =
                clone::clone(set, object, reference, &resource, name).map_err(Error::other("build clone"))?;
            let api = self.externals.api(namespace, &resource);
            let params =
                PostParams { field_manager: Some(self.clone_manager.to_owned()), ..PostParams::default() };
            match api.create(&params, &desired).await {
                Ok(_) => made.push(resource.clone()),
                // Left over from a creation that was interrupted.
                Err(error) if is_already_exists(&error) => {
                    let left = api.get(name).await;
                    let object = left.map_err(Error::api(format!("read {} {name}", resource.kind)))?;
                    let found = Clone { reference, template, resource, object: Arc::new(object) };
                    self.update_clone(scope, &found).await?;
                }
                Err(source) => {
                    return Err(Error::Api { operation: format!("create {} {name}", resource.kind), source });
                }
            }
        }
        let desired = clone::machine(set, name, None);
        if let Some(created) = self.machines.apply(&desired, None).await?.sent() {
            self.expected.expect(set, created.resource_version());
        }
        Ok(())
    }

    async fn delete_clones(&self, set: &MachineSet, name: &str, namespace: &str) -> Result<(), Error> {
        let machines: Api<Machine> = Api::namespaced(self.client.clone(), namespace);
        let machine =
            machines.get_metadata_opt(name).await.map_err(Error::api(format!("read Machine {name}")))?;
        if machine.is_some() {
            return Err(Error::Stale(format!("Machine {name}")));
        }
        let template = &set.spec.template.spec;
        for reference in template.bootstrap.config_ref.iter().chain([&template.infrastructure_ref]) {
            let Ok((resource, _)) =
                self.externals.resolve(&reference.api_group, clone::cloned_kind(&reference.kind))
            else {
                continue;
            };
            let deleted =
                self.externals.api(namespace, &resource).delete(name, &DeleteParams::background()).await;
            found(deleted).map_err(Error::api(format!("delete {} {name}", resource.kind)))?;
        }
        Ok(())
    }
}
