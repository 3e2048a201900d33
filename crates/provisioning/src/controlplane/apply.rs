//! Executes a decision. Every step is guarded and may be repeated.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use drover_api::capi::v1beta2 as capi;
use drover_api::finalizers::cattle::RKE_CONTROL_PLANE;
use drover_api::rke::v1::{self as rke, RKEControlPlane};
use drover_runtime::{Error, ObjectKey};
use serde_json::{Value, json};

use super::Planner;
use super::decide::{Action, Decision, PlanWrite};
use super::events;
use super::machineconditions::{self, MachineConditions};
use super::observe::state_secret_name;
use super::scope::Scope;
use crate::keys::{annotations, labels};
use crate::plansecret::Reason;
use crate::store::{status_of, to_dynamic};

impl Planner {
    /// Executes the actions in order; the first failure stops.
    pub(super) async fn apply(
        &self,
        control_plane: &RKEControlPlane,
        scope: &Scope,
        decision: &Decision,
    ) -> Result<(), Error> {
        for action in &decision.actions {
            self.execute(control_plane, action).await?;
            self.context.events.tell(control_plane, &events::done(scope, action));
        }
        Ok(())
    }

    async fn execute(&self, control_plane: &RKEControlPlane, action: &Action) -> Result<(), Error> {
        let key = ObjectKey::of(control_plane);
        match action {
            Action::AddFinalizer => {
                let object = to_dynamic(control_plane)?;
                self.writer.finalizer(&object, RKE_CONTROL_PLANE, true).await.map(|_| ())
            }
            Action::WriteSecret(write) => {
                tracing::info!(cluster = %key, %action, "plan secret written");
                self.write(&key, write).await
            }
            Action::CreateStateSecret => self.create_state_secret(control_plane).await,
            Action::ForceEtcdRemoval { machine, bootstrap } => {
                let excluded = json!({"metadata": {"annotations": {
                    annotations::capi::EXCLUDE_NODE_DRAINING: "true",
                    annotations::capi::EXCLUDE_WAIT_FOR_NODE_VOLUME_DETACH: "true",
                }}});
                self.writer.merge(capi::API_VERSION, "Machine", &key.sibling(machine), excluded).await?;
                let forced = json!({"metadata": {"annotations": {annotations::ETCD_FORCE_REMOVE: "true"}}});
                self.writer.merge(rke::API_VERSION, "RKEBootstrap", &key.sibling(bootstrap), forced).await
            }
            Action::Unpause => {
                let patch = json!({"spec": {"paused": false}});
                self.writer.merge(capi::API_VERSION, "Cluster", &key, patch).await
            }
            Action::SetConditions { machine, conditions } => {
                self.set_conditions(&key.sibling(machine), conditions).await
            }
            Action::SetVersion { machine, version } => {
                let machine = key.sibling(machine);
                let Some(live) = self.context.store.machines.get(&machine) else { return Ok(()) };
                let patch = json!({"metadata": {"uid": live.metadata.uid}, "spec": {"version": version}});
                self.writer.merge(capi::API_VERSION, "Machine", &machine, patch).await
            }
        }
    }

    async fn write(&self, key: &ObjectKey, write: &PlanWrite) -> Result<(), Error> {
        self.writer.put_secret(&write.secret).await?;
        if write.reasons.contains(&Reason::KeysRepaired) {
            self.repairs.record(&write.secret, self.context.now());
        }
        if let Some(machine) = self.context.store.machines.get(&key.sibling(&write.machine)) {
            self.context.events.tell(machine.as_ref(), &events::written(write));
        }
        Ok(())
    }

    async fn set_conditions(&self, key: &ObjectKey, conditions: &MachineConditions) -> Result<(), Error> {
        let Some(machine) = self.context.store.machines.get(key) else { return Ok(()) };
        let list: Vec<Value> = conditions
            .iter()
            .map(|(type_, condition)| {
                json!({
                    "type": type_, "status": condition.status, "reason": condition.reason,
                    "message": condition.message, "lastTransitionTime": condition.since.to_string(),
                })
            })
            .collect();
        let desired = status_of(capi::API_VERSION, "Machine", key, json!({"conditions": list}));
        self.machines.apply_status(&desired).await?;
        let notes = machineconditions::notes(&super::observe::machine_conditions(&machine), conditions);
        self.context.events.tell(machine.as_ref(), &notes);
        Ok(())
    }

    async fn create_state_secret(&self, control_plane: &RKEControlPlane) -> Result<(), Error> {
        let key = ObjectKey::of(control_plane);
        let desired = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {
                "namespace": key.namespace,
                "name": state_secret_name(&key.name),
                "labels": {labels::BACKUP: "true", labels::capi::CLUSTER_NAME: key.name},
                "ownerReferences": [{
                    "apiVersion": rke::API_VERSION, "kind": "RKEControlPlane",
                    "name": key.name, "uid": control_plane.metadata.uid,
                    "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "type": drover_api::secret_types::CLUSTER_STATE,
            "data": {
                "serverToken": BASE64_STANDARD.encode(self.context.token()),
                "agentToken": BASE64_STANDARD.encode(self.context.token()),
            },
        });
        self.writer.create(&desired).await.map(|_| ())
    }
}
