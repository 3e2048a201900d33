//! The controllers of RKEControlPlanes and of plan secrets.

use std::collections::HashMap;
use std::time::Duration;

use drover_api::capi::v1beta2 as capi;
use drover_api::conditions::{reasons, types};
use drover_api::finalizers::cattle::RKE_CONTROL_PLANE;
use drover_api::rke::v1::{self as rke, RKEControlPlane};
use drover_runtime::events::Note;
use drover_runtime::{Error, Next, ObjectKey, Reconciler};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::observe::{self, state_secret_name};
use super::planner::garbage::Garbage;
use super::planner::pass::{Action, End, decide};
use super::planner::runtime::Runtime;
use super::planner::status;
use super::planner::{change, events};
use super::plansecret::{self, PlanApplied};
use super::readable::{Live, readable};
use crate::conditions as generic;
use crate::context::Context;
use crate::controlplane::planner::node::base64_encode;
use crate::init::removal::block_of;
use crate::init::remove::machines_message;
use crate::keys::{annotations, conditions, labels};
use crate::store::{Writer, status_of, to_dynamic};

/// Waits are ended by events; this only guards against a lost one.
const SAFETY: Duration = Duration::from_secs(30);

/// Reconciles one RKEControlPlane.
pub struct Planner {
    context: Context,
    writer: Writer,
    machines: Writer,
}

impl Planner {
    pub fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
            writer: Writer::new(&context.store, "planner", "control-plane"),
            machines: Writer::new(&context.store, "planner", "machine"),
        }
    }
}

impl Reconciler for Planner {
    const NAME: &'static str = "planner";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let Some(control_plane) = self.context.store.control_planes.get(&key) else { return Ok(Next::EVENT) };
        if control_plane.metadata.deletion_timestamp.is_some() {
            return self.remove(&control_plane).await;
        }
        if self.writer.finalizer(&to_dynamic(control_plane.as_ref())?, RKE_CONTROL_PLANE, true).await? {
            return Ok(Next::EVENT);
        }
        let now = self.context.now();
        let scope = observe::scope(&self.context, &control_plane);
        let decision = decide(&scope, now);
        let next = status::after(&scope, &decision, now);
        if decision.end != End::Silent {
            let desired = status_of(rke::API_VERSION, "RKEControlPlane", &key, json!(next));
            self.writer.apply_status(&desired).await?;
        }
        self.context.events.tell(control_plane.as_ref(), &events::events(&scope, &decision));
        if let Some(cluster) = self.context.store.clusters.get(&key) {
            self.context.events.tell(cluster.as_ref(), &change::notes(&scope, &decision));
        }
        for action in &decision.actions {
            self.carry_out(&control_plane, action).await?;
            self.context.events.tell(control_plane.as_ref(), &events::done(&scope, action));
        }
        Ok(match &decision.end {
            End::Ready | End::Silent => Next::EVENT,
            End::Again(_) => Next::after(Duration::from_millis(20)),
            End::Waiting(_) | End::Error(_) => Next::after(SAFETY),
        })
    }
}

impl Planner {
    async fn carry_out(&self, control_plane: &RKEControlPlane, action: &Action) -> Result<(), Error> {
        let key = ObjectKey::of(control_plane);
        match action {
            Action::WriteSecret(write) => {
                tracing::info!(cluster = %key, machine = write.machine, reason = write.reason, "plan secret written");
                self.writer.put_secret(&write.secret).await
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
            Action::MachineReconciled { machine, message, unknown, up_to_date } => {
                let text = message.as_deref().unwrap_or_default();
                let mut said = vec![match message {
                    None => Said { type_: conditions::RECONCILED, value: "True", reason: "Reconciled", text },
                    Some(_) => {
                        let reason = if *unknown { conditions::HEALTH_UNKNOWN } else { "Waiting" };
                        Said { type_: conditions::RECONCILED, value: "Unknown", reason, text }
                    }
                }];
                said.extend(up_to_date.map(|current| match current {
                    true => Said {
                        type_: types::UP_TO_DATE,
                        value: "True",
                        reason: reasons::UP_TO_DATE,
                        text: "",
                    },
                    false => Said {
                        type_: types::UP_TO_DATE,
                        value: "False",
                        reason: reasons::NOT_UP_TO_DATE,
                        text,
                    },
                }));
                set_machine_conditions(&self.context, &self.machines, &key.sibling(machine), &said).await
            }
            Action::MachineVersion { machine, version } => {
                let machine = key.sibling(machine);
                let Some(live) = self.context.store.machines.get(&machine) else { return Ok(()) };
                let patch = json!({"metadata": {"uid": live.metadata.uid}, "spec": {"version": version}});
                self.writer.merge(capi::API_VERSION, "Machine", &machine, patch).await
            }
        }
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
                "serverToken": base64_encode(self.context.token()),
                "agentToken": base64_encode(self.context.token()),
            },
        });
        self.writer.create(&desired).await.map(|_| ())
    }

    /// Custom control plane machines belong to nobody else: they are deleted here, then waited for.
    async fn remove(&self, control_plane: &RKEControlPlane) -> Result<Next, Error> {
        let key = ObjectKey::of(control_plane);
        let cluster = control_plane.spec.cluster_name.as_str();
        let machines =
            self.context.store.machines.by_label(labels::capi::CLUSTER_NAME, &key.namespace, cluster);
        let remaining: Vec<_> = machines
            .iter()
            .filter(|m| {
                m.metadata.labels.as_ref().is_some_and(|l| l.contains_key(labels::capi::CONTROL_PLANE))
            })
            .collect();
        if remaining.is_empty() {
            if self.writer.finalizer(&to_dynamic(control_plane)?, RKE_CONTROL_PLANE, false).await? {
                let note = Note::normal("Deleted", "No control plane machine is left");
                self.context.events.tell(control_plane, [&note]);
            }
            return Ok(Next::EVENT);
        }
        for machine in &remaining {
            let custom = machine.spec.infrastructure_ref.kind == "CustomMachine";
            if custom && machine.metadata.deletion_timestamp.is_none() {
                self.writer.delete(capi::API_VERSION, "Machine", &ObjectKey::of(machine.as_ref())).await?;
            }
        }
        let blocks: Vec<_> = remaining
            .iter()
            .map(|machine| (machine.metadata.name.clone().unwrap_or_default(), block_of(machine)))
            .collect();
        let now = self.context.now();
        let mut next = control_plane.status.clone().unwrap_or_default();
        for type_ in [conditions::WAITING, conditions::PENDING, conditions::UPDATED, conditions::PROVISIONED]
        {
            generic::set(&mut next.conditions, type_, generic::TRUE, "", "", now);
        }
        let message = machines_message(&blocks);
        if generic::get(&next.conditions, conditions::REMOVED)
            .is_none_or(|removed| removed.message != message)
        {
            self.context.events.tell(control_plane, [&Note::normal("Deleting", &message)]);
        }
        generic::set(&mut next.conditions, conditions::REMOVED, generic::UNKNOWN, "Waiting", &message, now);
        let desired = status_of(rke::API_VERSION, "RKEControlPlane", &key, json!(next));
        self.writer.apply_status(&desired).await?;
        Ok(Next::after(Duration::from_secs(5)))
    }
}

/// The least time between two repairs of one secret: a machine that writes garbage again and again must not make the
/// server write as often.
const REPAIR_PAUSE: SignedDuration = SignedDuration::from_secs(10);

/// Reconciles one plan secret.
pub struct PlanSecrets {
    context: Context,
    writer: Writer,
    /// When a secret was repaired last.
    repaired: Mutex<HashMap<ObjectKey, Timestamp>>,
}

impl PlanSecrets {
    pub fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
            writer: Writer::new(&context.store, "plansecret", "machine"),
            repaired: Mutex::default(),
        }
    }

    /// Until when a secret is not repaired again.
    fn pause(&self, key: &ObjectKey, garbage: &[Garbage]) -> Option<Timestamp> {
        if !garbage.iter().any(Garbage::is_repaired) {
            return None;
        }
        let (now, mut repaired) = (self.context.now(), self.repaired.lock());
        let until = repaired.get(key).and_then(|last| last.checked_add(REPAIR_PAUSE).ok());
        if until.is_none_or(|until| until <= now) {
            repaired.insert(key.clone(), now);
            return None;
        }
        until
    }
}

impl Reconciler for PlanSecrets {
    const NAME: &'static str = "plansecret";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let store = &self.context.store;
        let Some(secret) = store.secrets.get(&key) else {
            self.repaired.lock().remove(&key);
            return Ok(Next::EVENT);
        };
        if secret.type_.as_deref() != Some(drover_api::secret_types::MACHINE_PLAN)
            || secret.metadata.deletion_timestamp.is_some()
        {
            return Ok(Next::EVENT);
        }
        let label = |name: &str| {
            secret.metadata.labels.as_ref().and_then(|l| l.get(name)).cloned().unwrap_or_default()
        };
        let control_plane = store.control_planes.get(&key.sibling(label(labels::CLUSTER_NAME)));
        let version = control_plane.map(|cp| cp.spec.kubernetes_version.clone()).unwrap_or_default();
        let now = self.context.now();
        let decision = plansecret::decide(&secret, Runtime::of_version(&version), now);
        let told = plansecret::announce(
            decision.secret.as_ref().unwrap_or(&*secret),
            &self.context.settings.now().agent_offer,
        );
        let pause = self.pause(&key, &decision.garbage);
        if let (None, Some(next)) = (pause, told.as_ref().or(decision.secret.as_ref())) {
            self.writer.put_secret(next).await?;
        }
        let Some(machine) = observe::machine_of(store, &secret) else {
            return Ok(self.context.next(decision.look_again));
        };
        let live = machine.status.as_ref().and_then(|status| {
            status.conditions.iter().find(|c| c.type_ == conditions::PLAN_SECRET_READABLE)
        });
        let live =
            live.map(|c| Live { value: &c.status, message: &c.message, since: c.last_transition_time.0 });
        let (readable, until) = readable(&decision.garbage, &key.to_string(), pause.is_none(), live, now);
        let type_ = conditions::PLAN_APPLIED;
        let mut said: Vec<Said<'_>> = Vec::new();
        said.extend(match &decision.plan_applied {
            None => None,
            Some(PlanApplied::True) => Some(Said { type_, value: "True", reason: "PlanApplied", text: "" }),
            Some(PlanApplied::False(text)) => Some(Said { type_, value: "False", reason: "Error", text }),
        });
        said.extend(readable.as_ref().map(|readable| Said {
            type_: conditions::PLAN_SECRET_READABLE,
            value: readable.value,
            reason: readable.reason,
            text: &readable.message,
        }));
        if !said.is_empty() || live.is_some() {
            let machine = ObjectKey::of(machine.as_ref());
            set_machine_conditions(&self.context, &self.writer, &machine, &said).await?;
        }
        // The condition only tells that nothing fails; this is the moment when the plan has become the applied one.
        let applied = |secret: &k8s_openapi::api::core::v1::Secret| {
            secret.data.as_ref().and_then(|data| data.get("appliedPlan")).cloned()
        };
        let new = decision.secret.as_ref().is_some_and(|next| applied(next) != applied(&secret));
        if new && decision.garbage.is_empty() {
            let note = Note::normal("PlanApplied", "The machine has applied its plan");
            self.context.events.tell(machine.as_ref(), [&note]);
        }
        Ok(self.context.next([decision.look_again, pause, until].into_iter().flatten().min()))
    }
}

/// A condition of a Machine.
#[derive(Clone, Copy)]
struct Said<'a> {
    type_: &'a str,
    value: &'a str,
    reason: &'a str,
    text: &'a str,
}

impl Said<'_> {
    /// What the Machine tells when the condition changes; what is only waited for is in the condition.
    fn note(&self) -> Option<Note> {
        match (self.type_, self.value) {
            (conditions::PLAN_APPLIED, "False") => Some(Note::warning("PlanFailed", self.text)),
            (conditions::PLAN_SECRET_READABLE, "False") => {
                Some(Note::warning("PlanSecretUnreadable", self.text))
            }
            (conditions::PLAN_SECRET_READABLE, _) => Some(Note::warning("PlanSecretRepaired", self.text)),
            (conditions::RECONCILED, "True") => {
                Some(Note::normal("Reconciled", "The machine is configured as its control plane says"))
            }
            _ => None,
        }
    }
}

/// Applies conditions of a Machine under a manager of its own, so that Cluster API's conditions stay.
async fn set_machine_conditions(
    context: &Context,
    writer: &Writer,
    key: &ObjectKey,
    said: &[Said<'_>],
) -> Result<(), Error> {
    let Some(machine) = context.store.machines.get(key) else { return Ok(()) };
    let now = drover_runtime::conditions::whole_seconds(context.now());
    let live = |said: &Said<'_>| {
        machine.status.as_ref().and_then(|status| status.conditions.iter().find(|c| c.type_ == said.type_))
    };
    let conditions: Vec<Value> = said
        .iter()
        .map(|said| {
            let since =
                live(said).filter(|c| c.status == said.value).map_or(now, |c| c.last_transition_time.0);
            json!({
                "type": said.type_, "status": said.value, "reason": said.reason, "message": said.text,
                "lastTransitionTime": since.to_string(),
            })
        })
        .collect();
    let desired = status_of(capi::API_VERSION, "Machine", key, json!({"conditions": conditions}));
    writer.apply_status(&desired).await?;
    let changed =
        |said: &&Said<'_>| live(said).is_none_or(|c| c.status != said.value || c.message != said.text);
    let notes: Vec<Note> = said.iter().filter(changed).filter_map(Said::note).collect();
    context.events.tell(machine.as_ref(), &notes);
    Ok(())
}
