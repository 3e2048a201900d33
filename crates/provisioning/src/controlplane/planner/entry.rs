//! Machines as the planner sees them: Machine, plan secret and what the secret says.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::keys::{annotations, labels};
use drover_plan::keys;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;

use crate::controlplane::machineconditions::MachineConditions;
use crate::plansecret::NodeState;

/// The kind of machines that people bring themselves.
pub const CUSTOM_MACHINE: &str = "CustomMachine";

/// One machine. A machine without a plan secret has no role, so that no tier includes it. Otherwise its roles are those of
/// the Machine. The plan secret carries the same roles, but the machine itself can write it and must not gain a role.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    pub machine: MachineView,
    pub secret: Option<Arc<Secret>>,
    /// What the secret says.
    pub node: Arc<NodeState>,
    /// The secret was repaired a moment ago; not again before this.
    pub repair_after: Option<Timestamp>,
}

/// The fields of a CAPI Machine that plans depend on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineView {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub labels: BTreeMap<String, String>,
    pub deleting: bool,
    pub phase: String,
    /// Condition `InfrastructureReady` is True.
    pub infrastructure_ready: bool,
    pub internal_ips: Vec<String>,
    pub external_ips: Vec<String>,
    /// Kubelet version of the Node, once CAPI has seen it.
    pub kubelet_version: Option<String>,
    /// Name of the Node, once known.
    pub node_ref: Option<String>,
    pub bootstrap_name: String,
    pub infrastructure_group: String,
    pub infrastructure_kind: String,
    pub infrastructure_name: String,
    /// The Machine is broken for good, and why.
    pub failure: Option<String>,
    /// The Machine is not ready yet, and why; empty when it is.
    pub not_ready: Option<String>,
    /// `spec.version`.
    pub version: Option<String>,
    /// Its deletion was told not to wait for etcd.
    pub force_removal: bool,
    /// The conditions that the planner sets, as they are.
    pub conditions: MachineConditions,
}

impl Entry {
    /// A machine whose secret says `node`.
    pub fn new(machine: MachineView, secret: Option<Arc<Secret>>, node: Option<Arc<NodeState>>) -> Self {
        let node = node.unwrap_or_else(|| Arc::new(NodeState { healthy: true, ..NodeState::default() }));
        Self { machine, secret, node, repair_after: None }
    }

    /// Replaces the secret by an edited copy; parsed again only if the data differ.
    pub fn replace(&mut self, secret: Secret) {
        if self.secret.as_ref().is_none_or(|old| old.data != secret.data) {
            self.node = Arc::new(NodeState::of(&secret));
        }
        self.secret = Some(Arc::new(secret));
    }

    /// `namespace/name` of the secret.
    pub fn secret_name(&self) -> String {
        let name = self.secret.as_ref().and_then(|secret| secret.metadata.name.as_deref());
        format!("{}/{}", self.machine.namespace, name.unwrap_or_default())
    }

    pub fn name(&self) -> &str {
        &self.machine.name
    }

    pub fn label(&self, key: &str) -> &str {
        lookup(self.secret.as_ref().and_then(|secret| secret.metadata.labels.as_ref()), key)
    }

    pub fn annotation(&self, key: &str) -> &str {
        lookup(self.secret.as_ref().and_then(|secret| secret.metadata.annotations.as_ref()), key)
    }

    fn has_role(&self, role: &str) -> bool {
        self.secret.is_some() && self.machine.labels.get(role).is_some_and(|value| value == "true")
    }

    pub fn is_etcd(&self) -> bool {
        self.has_role(labels::ETCD_ROLE)
    }

    pub fn is_control_plane(&self) -> bool {
        self.has_role(labels::CONTROL_PLANE_ROLE)
    }

    pub fn is_worker(&self) -> bool {
        self.has_role(labels::WORKER_ROLE)
    }

    pub fn is_server(&self) -> bool {
        self.is_etcd() || self.is_control_plane()
    }

    pub fn is_only_etcd(&self) -> bool {
        self.is_etcd() && !self.is_control_plane()
    }

    pub fn is_only_control_plane(&self) -> bool {
        self.is_control_plane() && !self.is_etcd()
    }

    pub fn is_only_worker(&self) -> bool {
        self.is_worker() && !self.is_server()
    }

    pub fn is_windows(&self) -> bool {
        self.label(labels::OS) == "windows"
    }

    pub fn is_deleting(&self) -> bool {
        self.machine.deleting
    }

    pub fn is_init_node(&self) -> bool {
        self.label(labels::INIT_NODE) == "true"
    }

    pub fn join_url(&self) -> &str {
        self.annotation(annotations::JOIN_URL)
    }

    pub fn joined_to(&self) -> &str {
        self.annotation(annotations::JOINED_TO)
    }

    pub fn has_plan(&self) -> bool {
        self.node.plan.as_ref().is_some_and(|plan| !plan.instructions.is_empty())
    }

    /// The plan that was delivered was overwritten or removed.
    pub fn lost_plan(&self) -> bool {
        let node = &self.node;
        !self.has_plan() && (node.applied_plan.is_some() || node.garbage_in(keys::PLAN).is_some())
    }

    /// What is unusable in the plan secret, in words, and of which keys.
    pub fn garbage(&self, keys: &[&str]) -> Option<String> {
        let name = self.secret_name();
        let told: Vec<String> = self
            .node
            .garbage
            .iter()
            .filter(|garbage| keys.contains(&garbage.key))
            .map(|garbage| garbage.message(&name))
            .collect();
        (!told.is_empty()).then(|| told.join("; "))
    }

    /// Whether the machine runs its plan cannot be told, though once it did.
    pub fn is_unknown(&self) -> bool {
        self.node.health_unknown() && self.node.in_sync && self.probes_usable()
    }

    /// The probes of the current plan passed once.
    pub fn probes_usable(&self) -> bool {
        !self.annotation(annotations::PLAN_PROBES_PASSED).is_empty()
    }

    /// Since its probes passed, nothing changed but minor files: only such a plan keeps the stamp. Nothing restarts for
    /// it, so nothing waits until it is applied and every probe has been asked again.
    pub fn is_undisturbed(&self) -> bool {
        let node = &self.node;
        let untroubled = !node.failed && (node.healthy || node.unasked);
        let is_plan = node.plan.as_ref().is_some_and(|plan| plan.error.is_empty());
        self.probes_usable() && is_plan && node.applied_plan.is_some() && untroubled
    }

    pub fn in_drain(&self) -> bool {
        [annotations::PRE_DRAIN, annotations::POST_DRAIN, annotations::DRAIN_OPTIONS, annotations::UNCORDON]
            .into_iter()
            .any(|key| !self.annotation(key).is_empty())
    }
}

fn lookup<'a>(map: Option<&'a BTreeMap<String, String>>, key: &str) -> &'a str {
    map.and_then(|map| map.get(key)).map(String::as_str).unwrap_or_default()
}
