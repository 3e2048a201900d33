//! Executes a decision. Every action may be repeated.

use std::collections::BTreeMap;

use drover_api::capi::v1beta2 as capi;
use drover_api::finalizers::cattle::MACHINE_PROVISION;
use drover_runtime::{Error, ObjectKey};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::decide::{Action, Decision};
use super::objects::{self, Names};
use super::scope::{Infra, Scope};
use super::{MachineProvision, events, status};
use crate::admission::credential_key;
use crate::keys::labels;

impl MachineProvision {
    /// Executes the actions in order; the first failure stops. `recorded` is the object after its attempt was recorded.
    pub(super) async fn apply(
        &self,
        infra: &Infra,
        scope: &Scope,
        decision: &Decision,
        recorded: &mut Option<DynamicObject>,
        now: Timestamp,
    ) -> Result<(), Error> {
        let names = Names::of(&scope.machine.name);
        for action in &decision.actions {
            match action {
                Action::Record => {
                    let status = status::status(scope, decision, None, now);
                    *recorded = self.write_status(infra, &infra.object, status).await?;
                }
                action => self.execute(infra, scope, action, &names).await?,
            }
            if let Some(note) = events::done(scope, action, &names.provision) {
                self.context.events.record(self.reference(&infra.object), note);
            }
        }
        Ok(())
    }

    /// Writes the status over what is known of the object; returns what the server stored, if it was written.
    pub(super) async fn write_status(
        &self,
        infra: &Infra,
        live: &DynamicObject,
        status: Value,
    ) -> Result<Option<DynamicObject>, Error> {
        let writer = self.machines();
        let desired = writer.object(&ObjectKey::of(infra.object.as_ref()), json!({ "status": status }));
        let written = writer.apply_status(&desired, Some(live)).await?;
        if let Some(written) = &written {
            self.noted.expect(infra.object.as_ref(), written.metadata.resource_version.clone());
        }
        Ok(written)
    }

    async fn execute(
        &self,
        infra: &Infra,
        scope: &Scope,
        action: &Action,
        names: &Names,
    ) -> Result<(), Error> {
        let key = ObjectKey::of(infra.object.as_ref());
        match action {
            Action::Record => Ok(()),
            Action::Adopt { machine } => self.adopt(&infra.object, machine.as_deref()).await,
            Action::StartJob { remove, attempt } => self.start(infra, scope, *remove, *attempt).await,
            Action::DeleteJob => self.writer.delete::<Job>(&key.sibling(&names.provision)).await,
            Action::CleanUp => self.clean_up(scope, &key, names).await,
            Action::CleanUpAll => self.clean_up_all(&key, names).await,
            Action::DeleteCapiMachine(name) => self.writer.delete::<capi::Machine>(&key.sibling(name)).await,
            Action::RemoveFinalizer(leftover) => {
                if let Some(left) = leftover {
                    tracing::warn!(machine = %key, left, "the removal ended without proof");
                }
                self.machines().remove_finalizer(&infra.object, MACHINE_PROVISION).await.map(|_| ())
            }
        }
    }

    /// Finalizer and label in one write. The label stays when the Machine is deleted, so that events and messages still
    /// name it.
    async fn adopt(&self, object: &DynamicObject, machine: Option<&str>) -> Result<(), Error> {
        let mut finalizers = object.finalizers().to_vec();
        if !finalizers.iter().any(|name| name == MACHINE_PROVISION) {
            finalizers.push(MACHINE_PROVISION.to_owned());
        }
        let mut patch = json!({"metadata": {
            "resourceVersion": object.metadata.resource_version, "finalizers": finalizers,
        }});
        if let Some(machine) = machine {
            patch["metadata"]["labels"] = json!({labels::CAPI_MACHINE_NAME: machine});
        }
        self.machines().merge(&ObjectKey::of(object), patch).await
    }

    async fn start(&self, infra: &Infra, scope: &Scope, remove: bool, attempt: i64) -> Result<(), Error> {
        let credential = self.credential(&scope.machine.namespace, &scope.machine.credential).await?;
        let input = objects::Input {
            infra: &infra.value,
            capi_machine: scope.capi_machine.as_deref().unwrap_or(&scope.machine.capi_machine),
            cluster: &scope.cluster,
            bootstrap_secret: scope.bootstrap_secret.as_deref().unwrap_or_default(),
            driver_url: &scope.machine.progress.driver_url,
            driver_hash: &scope.machine.progress.driver_hash,
            credential: &credential,
            settings: &scope.settings,
            managed_by: &scope.managed_by,
            attempt,
        };
        let support = objects::support(&input);
        // On removal the credential may not exist any more: what the last attempt used is kept.
        if remove && credential.is_empty() {
            self.writer.create(&support.environment).await?;
        } else {
            self.writer.apply(&support.environment).await?;
        }
        self.writer.apply(&support.state).await?;
        self.writer.apply(&support.account).await?;
        self.writer.apply(&support.role).await?;
        self.writer.apply(&support.binding).await?;
        self.writer.create(&objects::job(&input, remove)).await.map(|_| ())
    }

    /// The content of a cloud credential. It is needed once per Job, so it is read from the API.
    async fn credential(&self, namespace: &str, name: &str) -> Result<BTreeMap<String, Vec<u8>>, Error> {
        if name.is_empty() {
            return Ok(BTreeMap::new());
        }
        let secret = self.writer.get::<Secret>(&credential_key(namespace, name)).await?;
        let data = secret.and_then(|secret| secret.data).unwrap_or_default();
        Ok(data.into_iter().map(|(key, value)| (key, value.0)).collect())
    }

    /// After the creation: the Job, and the credential. The removal needs the rest again.
    async fn clean_up(&self, scope: &Scope, key: &ObjectKey, names: &Names) -> Result<(), Error> {
        self.writer.delete::<Job>(&key.sibling(&names.provision)).await?;
        if scope.machine.credential.is_empty() && scope.settings.proxy_env.is_empty() {
            return Ok(());
        }
        self.writer.delete::<Secret>(&key.sibling(&names.env_secret)).await
    }

    async fn clean_up_all(&self, key: &ObjectKey, names: &Names) -> Result<(), Error> {
        self.writer.delete::<Job>(&key.sibling(&names.provision)).await?;
        self.writer.delete::<RoleBinding>(&key.sibling(&names.provision)).await?;
        self.writer.delete::<Role>(&key.sibling(&names.provision)).await?;
        self.writer.delete::<ServiceAccount>(&key.sibling(&names.provision)).await?;
        self.writer.delete::<Secret>(&key.sibling(&names.env_secret)).await?;
        self.writer.delete::<Secret>(&key.sibling(&names.state_secret)).await
    }
}
