//! The controllers of custom machines: registration requests and CustomMachines. Both are too small for rooms of their own:
//! [`unmanaged`] says what a request becomes, and a CustomMachine has only a status.

use std::sync::Arc;
use std::time::Duration;

use drover_api::capi::v1beta2::Machine;
use drover_api::rke::v1 as rke;
use drover_runtime::events::Note;
use drover_runtime::{Error, Next, ObjectKey, Reconciler};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Secret;
use serde_json::json;

use super::unmanaged::{self, Request, Target};
use crate::conditions::{self as generic, TRUE};
use crate::context::Context;
use crate::keys::{annotations, conditions, labels};
use crate::store::{BY_MANAGEMENT_CLUSTER, Store, Writer, status_of};

/// An answered request is kept this long for a client that asks again.
const REQUEST_LIFE: SignedDuration = SignedDuration::from_mins(1);

/// Reconciles one machine-request Secret.
pub struct Requests {
    context: Context,
    writer: Writer,
}

impl Requests {
    pub fn new(context: &Context) -> Self {
        Self { context: context.clone(), writer: Writer::new(&context.store, "unmanaged", "machine") }
    }
}

impl Reconciler for Requests {
    const NAME: &'static str = "unmanaged";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let store = &self.context.store;
        let Some(secret) = store.secrets.get(&key) else { return Ok(Next::EVENT) };
        if secret.type_.as_deref() != Some(drover_api::secret_types::MACHINE_REQUEST) {
            return Ok(Next::EVENT);
        }
        // The time comes from the object, so that a restart does not forget it.
        let made = secret.metadata.creation_timestamp.as_ref().map_or(self.context.now(), |time| time.0);
        let due = made.checked_add(REQUEST_LIFE).unwrap_or(made);
        if self.context.now() >= due {
            self.writer.delete::<Secret>(&key).await?;
            return Ok(Next::EVENT);
        }
        let answered = secret.metadata.labels.as_ref().is_some_and(|l| l.contains_key(labels::MACHINE_NAME));
        if answered || !key.name.starts_with("custom-") {
            return Ok(self.context.next(Some(due)));
        }
        let found = store.control_planes.by_index(BY_MANAGEMENT_CLUSTER, &key.namespace);
        let Some(control_plane) = found.into_iter().next() else {
            return Ok(Next::after(Duration::from_secs(5)));
        };
        let request: Request = secret
            .data
            .as_ref()
            .and_then(|data| serde_json::from_slice(&data.get("data")?.0).ok())
            .unwrap_or_default();
        let namespace = control_plane.metadata.namespace.clone().unwrap_or_default();
        let cluster = control_plane.spec.cluster_name.clone();
        let id = request.get("id").and_then(|values| values.first());
        let name = match id.and_then(|id| registered(store, &key.namespace, id)) {
            Some(machine) => machine.metadata.name.clone().unwrap_or_default(),
            None => key.name.clone(),
        };
        let known = store.machines.get(&ObjectKey::new(&namespace, &name)).is_some();
        if !known {
            let notes = secret.metadata.annotations.as_ref();
            let token = notes.and_then(|notes| notes.get(annotations::REGISTRATION_TOKEN));
            let token = token.map(String::as_str);
            let target = Target { namespace: &namespace, cluster: &cluster, name: &name, token };
            let objects = unmanaged::objects(&target, &request);
            self.writer.apply(&objects.bootstrap).await?;
            self.writer.apply(&objects.infrastructure).await?;
            self.writer.apply(&objects.machine).await?;
        }
        let answer = json!({"metadata": {"labels": {
            labels::MACHINE_NAMESPACE: namespace, labels::MACHINE_NAME: name,
        }}});
        self.writer.merge::<Secret>(&key, answer).await?;
        Ok(self.context.next(Some(due)))
    }
}

/// The Machine of a server that is registered with a management cluster: by its name, or the only one with its id.
pub fn registered(store: &Store, management: &str, id: &str) -> Option<Arc<Machine>> {
    let control_plane =
        store.control_planes.by_index(BY_MANAGEMENT_CLUSTER, management).into_iter().next()?;
    let namespace = control_plane.metadata.namespace.as_deref()?;
    if let Some(machine) = store.machines.get(&ObjectKey::new(namespace, unmanaged::name_of("custom-", id))) {
        return Some(machine);
    }
    let cluster = &control_plane.spec.cluster_name;
    let mut same = store.machines.by_label(labels::capi::CLUSTER_NAME, namespace, cluster);
    same.retain(|m| {
        m.metadata.labels.as_ref().is_some_and(|l| l.get(labels::MACHINE_ID).is_some_and(|i| i == id))
    });
    if same.len() == 1 { same.pop() } else { None }
}

/// Reconciles one CustomMachine: there is no server to make, so it is ready at once.
pub struct CustomMachines {
    context: Context,
    writer: Writer,
}

impl CustomMachines {
    pub fn new(context: &Context) -> Self {
        Self { context: context.clone(), writer: Writer::new(&context.store, "unmanaged", "custommachine") }
    }
}

impl Reconciler for CustomMachines {
    const NAME: &'static str = "custommachine";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let Some(machine) = self.context.store.custom_machines.get(&key) else { return Ok(Next::EVENT) };
        if machine.metadata.deletion_timestamp.is_some() {
            return Ok(Next::EVENT);
        }
        let provisioned = !machine.spec.provider_id.is_empty();
        let mut list = machine.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        generic::set(&mut list, conditions::READY, TRUE, "", "", self.context.now());
        let status = rke::CustomMachineStatus {
            conditions: list,
            ready: provisioned,
            initialization: Some(rke::RKEClusterInitializationStatus { provisioned: Some(provisioned) }),
            ..rke::CustomMachineStatus::default()
        };
        let notes = events(&machine);
        self.writer.apply_status(&status_of::<rke::CustomMachine>(&key, status)).await?;
        self.context.events.publish(machine.as_ref(), &notes);
        Ok(Next::EVENT)
    }
}

/// What a CustomMachine tells: that it came, and that its Node is known. Pure.
fn events(machine: &rke::CustomMachine) -> Vec<Note> {
    let mut notes = Vec::new();
    if machine.status.is_none() {
        let message = "A server registered itself with the cluster's registration command";
        notes.push(Note::normal("Registered", message));
    }
    let id = &machine.spec.provider_id;
    if !id.is_empty() && !machine.status.as_ref().is_some_and(|status| status.ready) {
        notes.push(Note::normal("Provisioned", format!("The server has become a Node, known as {id}")));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_custom_machine_tells_that_it_came_and_that_it_joined() {
        let reasons =
            |machine: &rke::CustomMachine| events(machine).iter().map(|n| n.reason).collect::<Vec<_>>();
        let mut machine = rke::CustomMachine::default();
        assert_eq!(reasons(&machine), ["Registered"]);
        machine.status = Some(rke::CustomMachineStatus::default());
        assert_eq!(reasons(&machine), Vec::<&str>::new());
        machine.spec.provider_id = "k3s://mine".into();
        assert_eq!(reasons(&machine), ["Provisioned"]);
        machine.status = Some(rke::CustomMachineStatus { ready: true, ..Default::default() });
        assert_eq!(reasons(&machine), Vec::<&str>::new());
    }
}
