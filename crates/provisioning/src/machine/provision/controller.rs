//! The controller of one kind of infra machines.

use std::collections::BTreeMap;
use std::time::Duration;

use drover_api::capi::v1beta2 as capi;
use drover_api::finalizers::cattle::MACHINE_PROVISION;
use drover_runtime::events::Note;
use drover_runtime::{Cache, Error, Expectations, Next, ObjectKey, Reconciler};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ObjectReference, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt;
use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value, json};

use super::decide::{JobView, Scope, Step, decide, status};
use super::objects::{self, Names};
use super::state::Machine;
use super::{events, namesake};
use crate::context::Context;
use crate::keys::{annotations, labels};
use crate::machine::args::driver_of;
use crate::machine::drivers;
use crate::owner::owner_name;
use crate::store::{BY_DRIVER, DynamicWriter, Writer};

/// Reconciles infra machines of one kind.
pub struct MachineProvision {
    context: Context,
    resource: ApiResource,
    cache: Cache<DynamicObject>,
    writer: Writer,
    /// Attempts that we noted and that the cache may not show yet.
    noted: Expectations,
}

impl MachineProvision {
    pub fn new(context: &Context, resource: &ApiResource, cache: &Cache<DynamicObject>) -> Self {
        cache.index(namesake::INDEX, namesake::claims);
        Self {
            context: context.clone(),
            resource: resource.clone(),
            cache: cache.clone(),
            writer: Writer::new(&context.store, "machineprovision", "machine"),
            noted: Expectations::default(),
        }
    }
}

impl Reconciler for MachineProvision {
    const NAME: &'static str = "machineprovision";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let Some(known) = self.cache.get(&key) else {
            self.noted.forget(&key);
            return Ok(Next::EVENT);
        };
        // An object that was deleted just when its attempt was noted looks as if nothing had been made for it.
        self.noted.met(known.as_ref(), &self.cache).await?;
        let Some(object) = self.cache.get(&key) else { return Ok(Next::EVENT) };
        let mut infra = json!(object.as_ref());
        infra["apiVersion"] = json!(self.resource.api_version);
        infra["kind"] = json!(self.resource.kind);
        if self.note_owner(&object, &infra).await? {
            return Ok(Next::EVENT);
        }
        let scope = self.scope(&object, &infra);
        let now = self.context.now();
        let mut decision = decide(&scope, now);
        decision.progress.credential = credential_name(&infra);
        let is_ours = scope.machine.has_finalizer || !scope.machine.deleting;
        if is_ours && decision.steps != [Step::AddFinalizer] {
            // Noted before the Job exists: an attempt that is not recorded could be forgotten.
            let writer = self.machines();
            let status = json!({"status": status(&scope.machine, &decision.progress, now)});
            let desired = writer.object(&key, status);
            if let Some(written) = writer.apply_status(&desired, Some(&object)).await? {
                self.noted.expect(object.as_ref(), written.metadata.resource_version);
            }
        }
        let tell = |note: Note| self.context.events.record(self.reference(&object), note);
        events::events(&scope, &decision).into_iter().for_each(tell);
        for step in &decision.steps {
            self.carry_out(&object, &infra, &scope, step).await?;
            events::done(&scope, step, &Names::of(&key.name).provision).into_iter().for_each(tell);
        }
        let waiting = decision.progress.waiting.is_some();
        let next = self.context.next(decision.look_again);
        // Gates are watched; a slow look guards against a lost event.
        Ok(if waiting { next.min(Next::after(Duration::from_secs(30))) } else { next })
    }
}

impl MachineProvision {
    /// The label stays when the Machine is gone, so that events and messages still know its name.
    async fn note_owner(&self, object: &DynamicObject, infra: &Value) -> Result<bool, Error> {
        let owner = owner_name(&object.metadata, "cluster.x-k8s.io", "Machine");
        let noted = infra["metadata"]["labels"][labels::CAPI_MACHINE_NAME].as_str();
        let (Some(owner), None) = (owner, noted) else { return Ok(false) };
        if object.metadata.deletion_timestamp.is_some() {
            return Ok(false);
        }
        let patch = json!({"metadata": {
            "uid": object.metadata.uid, "labels": {labels::CAPI_MACHINE_NAME: owner},
        }});
        self.machines().merge(&ObjectKey::of(object), patch).await?;
        Ok(true)
    }

    fn scope(&self, object: &DynamicObject, infra: &Value) -> Scope {
        let store = &self.context.store;
        let key = ObjectKey::of(object);
        let owner = owner_name(&object.metadata, "cluster.x-k8s.io", "Machine");
        let machine = owner.and_then(|name| store.machines.get(&key.sibling(name)));
        let cluster = machine.as_ref().and_then(|m| store.capi_cluster(&key.namespace, &m.spec.cluster_name));
        let bootstrap_secret = machine.as_ref().and_then(|m| m.spec.bootstrap.data_secret_name.clone());
        let job = store.jobs.get(&key.sibling(Names::of(&key.name).provision));
        Scope {
            machine: Machine::read(infra),
            capi_machine: machine.as_ref().and_then(|m| m.metadata.name.clone()),
            owned_by_set: owner_name(&object.metadata, "cluster.x-k8s.io", "MachineSet").is_some(),
            blocked: blocked(machine.as_deref(), cluster.as_deref()).or_else(|| self.namesake(object)),
            bootstrap_secret,
            job: job.as_deref().map(|job| self.job_view(job)),
            namespace_terminating: store
                .namespaces
                .get(&ObjectKey::cluster(&key.namespace))
                .is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_some()),
            settings: self.context.settings.now(),
        }
    }

    fn namesake(&self, object: &DynamicObject) -> Option<String> {
        let claims = namesake::claims(object);
        claims
            .iter()
            .find_map(|claim| namesake::blocked(object, &self.cache.by_index(namesake::INDEX, claim)))
    }

    fn job_view(&self, job: &Job) -> JobView {
        let status = job.status.clone().unwrap_or_default();
        let condition = |type_: &str| {
            status.conditions.iter().flatten().find(|c| c.type_ == type_ && c.status == "True").cloned()
        };
        let failed = condition("Failed").map(|condition| {
            let reason = condition.reason.unwrap_or_default();
            let message = condition.message.unwrap_or_default();
            (reason, self.termination_message(job).unwrap_or(message))
        });
        JobView {
            remove: job.labels().get(labels::INFRA_REMOVE).is_some_and(|value| value == "true"),
            deleting: job.metadata.deletion_timestamp.is_some(),
            complete: condition("Complete").is_some()
                || (status.completion_time.is_some() && failed.is_none()),
            failed,
        }
    }

    /// What the newest failed pod of the Job said at its end.
    fn termination_message(&self, job: &Job) -> Option<String> {
        let mut own = self.context.store.pods.by_index("owner", &job.uid()?);
        own.sort_by_key(|pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0));
        own.iter().rev().find_map(|pod| {
            let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
            let ended = statuses.first()?.state.as_ref()?.terminated.as_ref()?;
            ended.message.clone().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
        })
    }

    async fn carry_out(
        &self,
        object: &DynamicObject,
        infra: &Value,
        scope: &Scope,
        step: &Step,
    ) -> Result<(), Error> {
        let key = ObjectKey::of(object);
        let names = Names::of(&key.name);
        match step {
            Step::AddFinalizer => self.machines().add_finalizer(object, MACHINE_PROVISION).await.map(|_| ()),
            Step::StartJob { remove, attempt } => self.start(infra, scope, *remove, *attempt).await,
            Step::DeleteJob => self.writer.delete::<Job>(&key.sibling(&names.provision)).await,
            Step::CleanUp => self.clean_up(&key, &names).await,
            Step::CleanUpAll => {
                self.clean_up(&key, &names).await?;
                self.writer.delete::<Secret>(&key.sibling(&names.state_secret)).await
            }
            Step::DeleteCapiMachine(name) => self.writer.delete::<capi::Machine>(&key.sibling(name)).await,
            Step::DropFinalizer(leftover) => {
                if let Some(left) = leftover {
                    tracing::warn!(machine = %key, left, "removal ended without proof");
                }
                self.machines().remove_finalizer(object, MACHINE_PROVISION).await.map(|_| ())
            }
        }
    }

    async fn start(&self, infra: &Value, scope: &Scope, remove: bool, attempt: i64) -> Result<(), Error> {
        let store = &self.context.store;
        let credential: BTreeMap<String, Vec<u8>> = match credential_name(infra).as_str() {
            "" => BTreeMap::new(),
            name => {
                let key = match name.split_once(':') {
                    Some((namespace, name)) => ObjectKey::new(namespace, name),
                    None => ObjectKey::new(&scope.machine.namespace, name),
                };
                let secret = self.writer.get::<Secret>(&key).await?;
                let data = secret.and_then(|secret| secret.data).unwrap_or_default();
                data.into_iter().map(|(key, value)| (key, value.0)).collect()
            }
        };
        let driver = store.drivers.by_index(BY_DRIVER, &driver_of(&self.resource.kind)).into_iter().next();
        let managed_by = drivers::job_runner(driver.as_deref());
        let input = objects::Input {
            infra,
            capi_machine: scope.capi_machine.as_deref().unwrap_or(&scope.machine.capi_machine),
            bootstrap_secret: scope.bootstrap_secret.as_deref().unwrap_or_default(),
            driver_url: &scope.machine.progress.driver_url,
            driver_hash: &scope.machine.progress.driver_hash,
            credential: &credential,
            settings: &scope.settings,
            managed_by: &managed_by,
            attempt,
        };
        let support = objects::support(&input);
        // On removal the credential may be gone: what the last attempt used still stands.
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

    async fn clean_up(&self, key: &ObjectKey, names: &Names) -> Result<(), Error> {
        self.writer.delete::<Job>(&key.sibling(&names.provision)).await?;
        self.writer.delete::<RoleBinding>(&key.sibling(&names.provision)).await?;
        self.writer.delete::<Role>(&key.sibling(&names.provision)).await?;
        self.writer.delete::<ServiceAccount>(&key.sibling(&names.provision)).await?;
        self.writer.delete::<Secret>(&key.sibling(&names.env_secret)).await
    }

    fn reference(&self, object: &DynamicObject) -> ObjectReference {
        ObjectReference {
            api_version: Some(self.resource.api_version.clone()),
            kind: Some(self.resource.kind.clone()),
            namespace: object.metadata.namespace.clone(),
            name: object.metadata.name.clone(),
            uid: object.metadata.uid.clone(),
            ..ObjectReference::default()
        }
    }

    fn machines(&self) -> DynamicWriter<'_> {
        self.writer.dynamic(&self.resource)
    }
}

fn credential_name(infra: &Value) -> String {
    let from = |value: &Value| value.as_str().filter(|name| !name.is_empty()).map(str::to_owned);
    from(&infra["spec"]["common"]["cloudCredentialSecretName"])
        .or_else(|| from(&infra["status"]["cloudCredentialSecretName"]))
        .unwrap_or_default()
}

/// What of a Machine its server depends on.
pub(crate) fn machine_gates(machine: &capi::Machine) -> (Option<&str>, Option<&str>, bool) {
    let paused =
        machine.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(annotations::capi::PAUSED));
    (machine.metadata.uid.as_deref(), machine.spec.bootstrap.data_secret_name.as_deref(), paused)
}

/// What of a Cluster its servers depend on: whether it is paused, and whether its infrastructure is ready.
pub(crate) fn cluster_gates(cluster: &capi::Cluster) -> (bool, bool) {
    let initialization = cluster.status.as_ref().and_then(|status| status.initialization.as_ref());
    let provisioned = initialization.and_then(|done| done.infrastructure_provisioned).unwrap_or(false);
    (cluster.spec.paused.unwrap_or(false), provisioned)
}

/// The gates before a server is made, in order.
fn blocked(machine: Option<&capi::Machine>, cluster: Option<&capi::Cluster>) -> Option<String> {
    let Some(machine) = machine else { return Some("waiting for its Machine".to_owned()) };
    let Some(cluster) = cluster else { return Some("waiting for its Cluster".to_owned()) };
    let (_, data, paused) = machine_gates(machine);
    let (cluster_paused, provisioned) = cluster_gates(cluster);
    if paused || cluster_paused {
        Some("the cluster is paused".to_owned())
    } else if !provisioned {
        Some("waiting for cluster infrastructure to be ready".to_owned())
    } else if data.is_none() {
        Some("waiting for bootstrap data".to_owned())
    } else {
        None
    }
}
