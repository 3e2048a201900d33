//! A cluster in memory: machines with roles, agents that apply what they find, and a log of what was said.

use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use drover_api::rke::v1::{RKEControlPlaneSpec, RKEControlPlaneStatus};
use drover_plan::{checksum, keys};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use serde_json::json;

use super::super::entry::{Entry, MachineView};
use super::super::releases::Releases;
use super::super::render::Tokens;
use super::super::runtime::Runtime;
use crate::controlplane::decide::{Action, Decision, End, decide};
use crate::controlplane::scope::{CapiCluster, Scope, StateSecret};
use crate::controlplane::{change, events, machineconditions, status};
use crate::keys::labels;
use crate::plansecret::NodeState;
use crate::plansecret::upkeep::gzip;
use crate::settings::Settings;

#[derive(Clone)]
pub(crate) struct World {
    pub(crate) scope: Scope,
    pub(crate) now: Timestamp,
    /// What the control plane said, one line per change.
    pub(crate) log: Vec<String>,
    /// What the control plane told.
    pub(crate) told: Vec<String>,
    /// What its Machines told.
    pub(crate) machines_told: Vec<String>,
    /// Machines whose agent is dead.
    pub(crate) dead: Vec<String>,
    pub(crate) decision: Option<Decision>,
}

pub(crate) fn spec(version: &str) -> RKEControlPlaneSpec {
    serde_json::from_value(json!({
        "kubernetesVersion": version,
        "clusterName": "demo",
        "managementClusterName": "c-m-abcdefgh",
    }))
    .unwrap()
}

impl World {
    /// Machines are given as `name: roles`, roles being letters of `ecw`.
    pub(crate) fn new(machines: &[(&str, &str)]) -> Self {
        let scope = Scope {
            namespace: "default".into(),
            name: "demo".into(),
            generation: 1,
            has_finalizer: true,
            designated_init_node: String::new(),
            cluster_spec_annotation: String::new(),
            paused: false,
            spec: spec("v1.34.1+k3s1"),
            status: RKEControlPlaneStatus::default(),
            cluster: Some(CapiCluster {
                name: "demo".into(),
                infrastructure_provisioned: true,
                ..CapiCluster::default()
            }),
            entries: vec![],
            state_secret: StateSecret::Missing,
            releases: Arc::new(Releases::builtin()),
            settings: Settings { server_url: "https://10.0.0.1:8443".into(), ..Settings::default() },
            machine_addresses: Default::default(),
            file_objects: Default::default(),
            cluster_agent_manifest: Some("kind: Secret\n".into()),
            connected: false,
        };
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut world = Self {
            scope,
            now,
            log: vec![],
            told: vec![],
            machines_told: vec![],
            dead: vec![],
            decision: None,
        };
        for (index, (name, roles)) in machines.iter().enumerate() {
            world.add(name, roles, index + 1);
        }
        world
    }

    pub(crate) fn add(&mut self, name: &str, roles: &str, number: usize) {
        let mut machine = MachineView {
            namespace: "default".into(),
            name: name.into(),
            uid: format!("uid-{name}"),
            infrastructure_ready: true,
            internal_ips: vec![format!("10.0.0.{}", 10 + number)],
            bootstrap_name: name.into(),
            infrastructure_group: "rke.cattle.io".into(),
            infrastructure_kind: "CustomMachine".into(),
            infrastructure_name: name.into(),
            phase: "Provisioning".into(),
            ..MachineView::default()
        };
        let mut marks = std::collections::BTreeMap::new();
        for (letter, label) in
            [('e', labels::ETCD_ROLE), ('c', labels::CONTROL_PLANE_ROLE), ('w', labels::WORKER_ROLE)]
        {
            if roles.contains(letter) {
                marks.insert(label.to_owned(), "true".to_owned());
            }
        }
        machine.labels = marks.clone();
        let mut secret = Secret::default();
        secret.metadata.name = Some(format!("{name}-machine-plan"));
        secret.metadata.labels = Some(marks);
        let node = Arc::new(NodeState::of(&secret));
        self.scope.entries.push(Entry::new(machine, Some(Arc::new(secret)), Some(node)));
        self.scope.entries.sort_by(|a, b| a.name().cmp(b.name()));
    }

    pub(crate) fn entry(&self, name: &str) -> &Entry {
        self.scope.entries.iter().find(|entry| entry.name() == name).unwrap()
    }

    pub(crate) fn entry_mut(&mut self, name: &str) -> &mut Entry {
        self.scope.entries.iter_mut().find(|entry| entry.name() == name).unwrap()
    }

    pub(crate) fn edit_secret(&mut self, name: &str, edit: impl FnOnce(&mut Secret)) {
        let entry = self.entry_mut(name);
        let mut secret = (**entry.secret.as_ref().unwrap()).clone();
        edit(&mut secret);
        entry.replace(secret);
    }

    pub(crate) fn set_data(&mut self, name: &str, pairs: &[(&str, &str)]) {
        self.edit_secret(name, |secret| {
            let data = secret.data.get_or_insert_default();
            for (key, value) in pairs {
                data.insert(key.to_string(), ByteString(value.as_bytes().to_vec()));
            }
        });
    }

    /// An etcd-only node says where it is: its member list, and its own name in it.
    pub(crate) fn reports_address(&mut self, name: &str, address: &str) {
        let members = format!(
            "{{\"members\":[{{\"name\":\"{name}-1\",\"clientURLs\":[\"https://{address}:2379\"]}}]}}\n"
        );
        let output = json!({
            "capture-address": {"name": "capture-address", "stdout": BASE64_STANDARD.encode(members)},
            "etcd-name": {"name": "etcd-name", "stdout": BASE64_STANDARD.encode(format!("{name}-1\n"))},
        });
        let packed = gzip(output.to_string().as_bytes());
        self.edit_secret(name, |secret| {
            secret.data.as_mut().unwrap().insert("applied-periodic-output".into(), ByteString(packed));
        });
    }

    /// One pass, applied.
    pub(crate) fn pass(&mut self) -> End {
        let decision = decide(&self.scope, self.now);
        assert_eq!(decision, decide(&self.scope, self.now), "decide is a function");
        let next = status::status(&self.scope, &decision, None, self.now);
        let done = decision.actions.iter().flat_map(|action| events::done(&self.scope, action));
        let mut told = change::begun(&self.scope, &decision);
        told.extend(done);
        told.extend(change::finished(&self.scope, &decision));
        told.extend(events::events(&self.scope, &next));
        self.told.extend(told.iter().map(|note| format!("{}: {}", note.reason, note.message)));
        for action in &decision.actions {
            self.apply(action);
        }
        self.scope.status = next;
        self.say(match &decision.end {
            End::Ready => "Ready".to_owned(),
            End::Waiting(_) => format!("Waiting: {}", decision.message()),
            End::Again(prepared) => format!("Again: {prepared}"),
            End::Error(failure) => format!("Error: {failure}"),
            End::Silent => "Silent".to_owned(),
        });
        let end = decision.end.clone();
        self.decision = Some(decision);
        end
    }

    fn apply(&mut self, action: &Action) {
        if !matches!(action, Action::SetConditions { .. } | Action::SetVersion { .. }) {
            self.say(format!("  {action}"));
        }
        match action {
            Action::WriteSecret(write) => {
                let secret = write.secret.clone();
                self.edit_secret(&write.machine.clone(), |old| *old = secret);
            }
            Action::CreateStateSecret => {
                let tokens = Tokens { server: "server-token".into(), agent: "agent-token".into() };
                self.scope.state_secret = StateSecret::Found(tokens);
            }
            Action::AddFinalizer => self.scope.has_finalizer = true,
            Action::ForceEtcdRemoval { machine, .. } => {
                self.entry_mut(machine).machine.force_removal = true;
            }
            Action::Unpause => self.scope.cluster.as_mut().unwrap().paused = false,
            Action::SetVersion { machine, version } => {
                self.entry_mut(machine).machine.version = Some(version.clone());
            }
            Action::SetConditions { machine, conditions } => {
                let notes = machineconditions::notes(&self.entry(machine).machine.conditions, conditions);
                let notes = notes.iter().map(|note| format!("{machine}: {}: {}", note.reason, note.message));
                self.machines_told.extend(notes);
                self.entry_mut(machine).machine.conditions = conditions.clone();
            }
        }
    }

    fn say(&mut self, line: impl Into<String>) {
        let line = line.into();
        if self.log.last() != Some(&line) {
            self.log.push(line);
        }
    }

    /// Every living agent applies its plan, reports its probes unhealthy, then healthy; the Node appears.
    pub(crate) fn agents(&mut self) -> bool {
        let names: Vec<String> = self.scope.entries.iter().map(|entry| entry.name().to_owned()).collect();
        let mut acted = false;
        for name in names {
            if !self.dead.contains(&name) {
                acted |= self.agent(&name);
            }
        }
        acted
    }

    pub(crate) fn agent(&mut self, name: &str) -> bool {
        let version = self.scope.spec.kubernetes_version.clone();
        let data = self.entry(name).secret.as_ref().unwrap().data.clone().unwrap_or_default();
        let text = |key: &str| data.get(key).map(|v| String::from_utf8_lossy(&v.0).into_owned());
        let Some(plan) = text(keys::PLAN) else { return false };
        let probes = self.entry(name).node.plan.as_ref().map(|plan| plan.probes.clone()).unwrap_or_default();
        let answer = |healthy: bool| {
            let statuses: serde_json::Map<String, serde_json::Value> =
                probes.keys().map(|probe| (probe.clone(), json!({"healthy": healthy}))).collect();
            serde_json::Value::Object(statuses).to_string()
        };
        let mut step: Vec<(&str, String)> = match text(keys::PLAN_STATE).as_deref() {
            Some("pending") => vec![(keys::PLAN_STATE, "in-progress".into())],
            Some("in-progress") => vec![
                (keys::PLAN_STATE, "succeeded".into()),
                (keys::APPLIED_CHECKSUM, checksum(plan.as_bytes())),
                (keys::PROBE_STATUSES, answer(false)),
            ],
            _ if !probes.is_empty()
                && text(keys::PROBE_STATUSES).as_deref() == Some(answer(false).as_str()) =>
            {
                vec![(keys::PROBE_STATUSES, answer(true))]
            }
            _ => vec![],
        };
        let healthy = text(keys::PROBE_STATUSES).as_deref() == Some(answer(true).as_str());
        if step.is_empty() && healthy && self.node_appears(name, &version) {
            return true;
        }
        let acted = !step.is_empty();
        let pairs: Vec<(&str, &str)> = step.iter_mut().map(|(k, v)| (*k, v.as_str())).collect();
        self.set_data(name, &pairs);
        acted
    }

    /// The kubelet runs the plan's version; the tunnel opens with the first control plane node.
    fn node_appears(&mut self, name: &str, version: &str) -> bool {
        let serves = self.entry(name).is_control_plane();
        if serves && !self.scope.connected {
            self.scope.connected = true;
            self.say("  agent connects");
            return true;
        }
        if !self.scope.connected {
            return false;
        }
        let machine = &mut self.entry_mut(name).machine;
        if machine.kubelet_version.as_deref() == Some(version) {
            return false;
        }
        machine.kubelet_version = Some(version.to_owned());
        machine.node_ref = Some(name.to_owned());
        machine.phase = "Running".into();
        true
    }

    /// Status and message of a Machine's condition.
    pub(crate) fn machine_condition(&self, name: &str, type_: &str) -> Option<(String, String)> {
        let condition = self.entry(name).machine.conditions.get(type_)?;
        Some((condition.status.clone(), condition.message.clone()))
    }

    /// The edits that were written, as `machine: reason`. What only follows from the agents' reports is left out.
    pub(crate) fn written(&self) -> Vec<String> {
        let lines = self.log.iter().filter_map(|line| line.strip_prefix("  write ")?.split_once(": "));
        let edits = lines.flat_map(|(name, reasons)| {
            let of_agent = ["plan applied", "probes passed", "failed plan is tried again", "keys repaired"];
            let own = reasons.split(", ").filter(move |reason| !of_agent.contains(reason));
            own.map(move |reason| format!("{name}: {reason}"))
        });
        edits.collect()
    }

    /// Passes and agents take turns until nothing changes.
    pub(crate) fn settle(&mut self) -> End {
        for _ in 0..200 {
            let before = self.scope.entries.iter().map(|e| e.secret.clone()).collect::<Vec<_>>();
            let status = self.scope.status.clone();
            let end = self.pass();
            let acted = self.agents();
            let same = before == self.scope.entries.iter().map(|e| e.secret.clone()).collect::<Vec<_>>();
            if same && !acted && status == self.scope.status {
                return end;
            }
            self.now += jiff::SignedDuration::from_secs(1);
        }
        panic!("does not settle:\n{}", self.log.join("\n"));
    }

    /// The delivered configuration.
    pub(crate) fn config(&self, name: &str) -> serde_json::Value {
        let bytes = self.entry(name).node.delivered_file(&Runtime::K3s.config_file()).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    /// Status and message of a condition.
    pub(crate) fn condition(&self, type_: &str) -> Option<(String, String)> {
        let found = self.scope.status.conditions.iter().find(|c| c.type_ == type_)?;
        Some((found.status.clone(), found.message.clone()))
    }

    pub(crate) fn message(&self) -> String {
        let ready = self.scope.status.conditions.iter().find(|c| c.type_ == "Ready");
        ready.map(|c| format!("{} {}", c.status, c.message)).unwrap_or_default()
    }
}
