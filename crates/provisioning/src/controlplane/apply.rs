//! Executes a decision. Every step is guarded and may be repeated.

use drover_api::capi::v1beta2 as capi;
use drover_api::finalizers::cattle::RKE_CONTROL_PLANE;
use drover_api::rke::v1::{RKEBootstrap, RKEControlPlane};
use drover_plan::keys;
use drover_runtime::{Error, ObjectKey};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::ObjectMeta;
use serde_json::json;

use super::Planner;
use super::decide::{Action, Decision, PlanWrite};
use super::events;
use super::machineconditions::{self, MachineConditions};
use super::observe::state_secret_name;
use super::scope::Scope;
use crate::keys::{annotations, labels};
use crate::owner::controller_reference;
use crate::plansecret::Reason;
use crate::store::status_of;

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
            self.context.events.publish(control_plane, &events::done(scope, action));
        }
        Ok(())
    }

    async fn execute(&self, control_plane: &RKEControlPlane, action: &Action) -> Result<(), Error> {
        let key = ObjectKey::of(control_plane);
        match action {
            Action::AddFinalizer => {
                self.writer.add_finalizers(control_plane, &[RKE_CONTROL_PLANE]).await.map(|_| ())
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
                self.writer.merge::<capi::Machine>(&key.sibling(machine), excluded).await?;
                let forced = json!({"metadata": {"annotations": {annotations::ETCD_FORCE_REMOVE: "true"}}});
                self.writer.merge::<RKEBootstrap>(&key.sibling(bootstrap), forced).await
            }
            Action::Unpause => {
                let patch = json!({"spec": {"paused": false}});
                self.writer.merge::<capi::Cluster>(&key, patch).await
            }
            Action::SetConditions { machine, conditions } => {
                self.set_conditions(&key.sibling(machine), conditions).await
            }
            Action::SetVersion { machine, version } => {
                let machine = key.sibling(machine);
                let Some(live) = self.context.store.machines.get(&machine) else { return Ok(()) };
                let patch = json!({"metadata": {"uid": live.metadata.uid}, "spec": {"version": version}});
                self.writer.merge::<capi::Machine>(&machine, patch).await
            }
        }
    }

    async fn write(&self, key: &ObjectKey, write: &PlanWrite) -> Result<(), Error> {
        let live = self.context.store.secrets.get(&ObjectKey::of(&write.secret));
        let is_first = live.is_none_or(|live| !is_applied(&live));
        self.writer.put_secret(&write.secret).await?;
        if write.reasons.contains(&Reason::KeysRepaired) {
            self.repairs.record(&write.secret, self.context.now());
        }
        if let Some(machine) = self.context.store.machines.get(&key.sibling(&write.machine)) {
            self.context.events.publish(machine.as_ref(), &events::written(write, is_first));
        }
        Ok(())
    }

    async fn set_conditions(&self, key: &ObjectKey, conditions: &MachineConditions) -> Result<(), Error> {
        let Some(machine) = self.context.store.machines.get(key) else { return Ok(()) };
        let list = conditions.iter().map(|(type_, condition)| Condition {
            type_: (*type_).to_owned(),
            status: condition.status.clone(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            last_transition_time: Time(condition.since),
            observed_generation: None,
        });
        let status = capi::MachineStatus { conditions: list.collect(), ..capi::MachineStatus::default() };
        self.machines.apply_status(&status_of::<capi::Machine>(key, status)).await?;
        let notes = machineconditions::notes(&super::observe::machine_conditions(&machine), conditions);
        self.context.events.publish(machine.as_ref(), &notes);
        Ok(())
    }

    async fn create_state_secret(&self, control_plane: &RKEControlPlane) -> Result<(), Error> {
        let key = ObjectKey::of(control_plane);
        let tokens = ["serverToken", "agentToken"];
        let token = |name: &str| (name.to_owned(), ByteString(self.context.token().into_bytes()));
        let desired = Secret {
            metadata: ObjectMeta {
                name: Some(state_secret_name(&key.name)),
                labels: Some(
                    [
                        (labels::BACKUP.to_owned(), "true".to_owned()),
                        (labels::capi::CLUSTER_NAME.to_owned(), key.name),
                    ]
                    .into(),
                ),
                namespace: Some(key.namespace),
                owner_references: Some(vec![controller_reference(control_plane)]),
                ..ObjectMeta::default()
            },
            type_: Some(drover_api::secret_types::CLUSTER_STATE.to_owned()),
            data: Some(tokens.map(token).into()),
            ..Secret::default()
        };
        self.writer.create(&desired).await.map(|_| ())
    }
}

/// Whether any plan has been applied to the machine.
fn is_applied(secret: &Secret) -> bool {
    secret.data.as_ref().is_some_and(|data| data.contains_key(keys::APPLIED_PLAN))
}
