//! One whole pass over a control plane, in the original's order: what to write, and what is waited for. Pure and total.
//!
//! The pass works on copies of the plan secrets. What the server adds to the agents' reports comes first
//! ([`crate::plansecret::upkeep`]), and everything after it sees the edited copies. At the end there is at most one write
//! per plan secret, with all its reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use serde::Serialize;

use super::machineconditions::{self, Facts, MachineConditions, SecretFacts, TierFacts};
use super::planner::entry::Entry;
use super::planner::initnode::{Election, elect};
use super::planner::join;
use super::planner::render::selector_files;
use super::planner::render::{ClusterInput, Tokens};
use super::planner::runtime::Runtime;
use super::planner::tier::{self, Context, Tier};
use super::scope::{Scope, StateSecret};
use super::status;
use super::waits::{Failure, Group, Prepared, Role, Waiting};
use crate::keys::{annotations, conditions, labels};
use crate::plansecret::edit::{with_annotation, with_label};
use crate::plansecret::garbage::Garbage;
use crate::plansecret::readable::readable;
use crate::plansecret::upkeep::{PlanApplied, upkeep};
use crate::plansecret::{FailurePolicy, Reason};

/// What a pass wants done, in order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Action {
    AddFinalizer,
    WriteSecret(Box<PlanWrite>),
    /// Create the state secret with new random tokens.
    CreateStateSecret,
    /// Delete an etcd machine without removing its member first.
    ForceEtcdRemoval {
        machine: String,
        bootstrap: String,
    },
    Unpause,
    /// The conditions of a Machine that the planner sets.
    SetConditions {
        machine: String,
        conditions: MachineConditions,
    },
    /// The version that the Machine's plan has brought it to, for people to see.
    SetVersion {
        machine: String,
        version: String,
    },
}

/// A plan secret to be written, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanWrite {
    pub machine: String,
    pub secret: Secret,
    pub reasons: Vec<Reason>,
}

/// One line, for previews and logs. What a secret holds is not shown.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddFinalizer => f.write_str("add the finalizer"),
            Self::WriteSecret(write) => {
                let reasons: Vec<String> = write.reasons.iter().map(Reason::to_string).collect();
                write!(f, "write {}: {}", write.machine, reasons.join(", "))
            }
            Self::CreateStateSecret => f.write_str("create state secret"),
            Self::ForceEtcdRemoval { machine, .. } => write!(f, "force removal of {machine}"),
            Self::Unpause => f.write_str("unpause"),
            Self::SetConditions { machine, conditions } => {
                let named: Vec<String> =
                    conditions.iter().map(|(type_, c)| format!("{type_}={}", c.status)).collect();
                write!(f, "set conditions of {machine}: {}", named.join(", "))
            }
            Self::SetVersion { machine, version } => write!(f, "set version of {machine} to {version}"),
        }
    }
}

/// How a pass ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum End {
    Ready,
    Waiting(Waiting),
    /// Wrote something that the next pass needs to see.
    Again(Prepared),
    Error(Failure),
    /// The cluster is being deleted; nothing is written.
    Silent,
}

/// The result of a pass.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    pub actions: Vec<Action>,
    pub end: End,
    /// Conditions and flags other than those of the end itself.
    pub marks: Marks,
    /// Configuration keys that were left out because no machine knows them.
    pub refused: BTreeSet<String>,
    /// Machines that are waited for, or that fail, in every tier that the pass came to.
    pub groups: Vec<Group>,
    /// Machines that cannot be judged. Nothing waits for them.
    pub unknown: Vec<Group>,
    /// Look again then.
    pub again: Option<Timestamp>,
}

impl Decision {
    /// The message of condition `Ready`.
    pub fn message(&self) -> String {
        let end = match &self.end {
            End::Waiting(waiting) => Some(waiting.to_string()),
            End::Error(failure) => return failure.to_string(),
            End::Again(_) | End::Ready | End::Silent => None,
        };
        let parts: Vec<String> = end.into_iter().chain(self.unknown.iter().map(Group::to_string)).collect();
        parts.join("; ")
    }
}

/// Facts of a pass that go into the status. `None` leaves what is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Marks {
    pub provisioned: bool,
    pub bootstrapped: bool,
    pub stable: Option<bool>,
    pub control_plane_initialized: Option<bool>,
}

/// Runs a pass.
pub fn decide(scope: &Scope, now: Timestamp) -> Decision {
    let mut pass = Pass {
        scope,
        now,
        entries: Rc::new(scope.entries.clone()),
        edits: vec![Edit::default(); scope.entries.len()],
        actions: vec![],
        machines: BTreeMap::new(),
        versions: vec![],
        marks: Marks::default(),
        refused: BTreeSet::new(),
        groups: vec![],
        unknown: vec![],
        again: None,
    };
    let end = match pass.run() {
        Ok(()) => End::Ready,
        Err(end) => end,
    };
    pass.finish(end)
}

struct Pass<'a> {
    scope: &'a Scope,
    now: Timestamp,
    /// With the edits of this pass, except new plans and drains: tiers judge what was there before.
    entries: Rc<Vec<Entry>>,
    /// By index of the entry.
    edits: Vec<Edit>,
    actions: Vec<Action>,
    machines: BTreeMap<String, TierFacts>,
    versions: Vec<Action>,
    marks: Marks,
    refused: BTreeSet<String>,
    groups: Vec<Group>,
    unknown: Vec<Group>,
    again: Option<Timestamp>,
}

/// What a pass does to one plan secret.
#[derive(Clone, Default)]
struct Edit {
    reasons: Vec<Reason>,
    /// Worth a write of its own.
    due: bool,
    /// The secret as its tier wants it, made of the entry's.
    planned: Option<Secret>,
    facts: Option<SecretFacts>,
}

type Step<T> = Result<T, End>;

fn waiting<T>(waiting: Waiting) -> Step<T> {
    Err(End::Waiting(waiting))
}

fn failed<T>(failure: Failure) -> Step<T> {
    Err(End::Error(failure))
}

impl Pass<'_> {
    fn run(&mut self) -> Step<()> {
        let scope = self.scope;
        let version = &scope.spec.kubernetes_version;
        if !scope.has_finalizer {
            self.actions.push(Action::AddFinalizer);
            return Err(End::Again(Prepared::Finalizer));
        }
        if let Some(cluster) = scope.cluster.as_ref().filter(|cluster| cluster.deleting) {
            if cluster.paused {
                self.actions.push(Action::Unpause);
            }
            return Err(End::Silent);
        }
        let runtime = Runtime::of_version(version);
        self.upkeep(runtime);
        if let Err(error) = semver::Version::parse(version.trim_start_matches('v')) {
            return failed(Failure::Version { version: version.clone(), error: error.to_string() });
        }
        let Some(release) = scope.releases.get(version) else {
            let known = scope.releases.versions().into_iter().map(str::to_owned).collect();
            return waiting(Waiting::Release { control_plane: scope.key(), version: version.clone(), known });
        };
        let Some(cluster) = &scope.cluster else { return waiting(Waiting::Cluster) };
        if !cluster.infrastructure_provisioned {
            return waiting(Waiting::Infrastructure);
        }
        self.refresh_join_urls(runtime);
        self.check_sane()?;
        self.marks.provisioned = true;
        let tokens = self.tokens()?;
        if cluster.paused || scope.paused {
            return waiting(Waiting::Paused);
        }
        self.check_etcd_plane()?;
        let init = self.init_node()?;
        let Some(manifest) = &scope.cluster_agent_manifest else {
            return waiting(Waiting::RegistrationToken);
        };
        if let Some(trouble) = selector_files::trouble(&scope.spec, &scope.file_objects, &scope.entries) {
            return failed(Failure::Files(trouble));
        }
        let data_dir = match &scope.spec.config.data_directories {
            Some(directories) if !directories.k8s_distro.is_empty() => directories.k8s_distro.clone(),
            _ => runtime.default_data_dir(),
        };
        let input = ClusterInput {
            spec: scope.spec.clone(),
            config_generation: scope.status.config_generation,
            runtime,
            data_dir,
            tokens,
            settings: scope.settings.clone(),
            machine_addresses: scope.machine_addresses.clone(),
            file_objects: scope.file_objects.clone(),
            cluster_agent_manifest: manifest.clone(),
            cluster_spec_annotation: scope.cluster_spec_annotation.clone(),
        };
        let entries = self.entries.clone();
        let context = Context {
            input: &input,
            release,
            entries: &entries,
            agent_connected: scope.connected,
            now: self.now,
        };
        self.tiers(&context, &entries[init])
    }

    /// What the server adds to the agents' reports. A secret that was repaired a moment ago is left alone: a machine that
    /// writes garbage again and again must not make the server write as often.
    fn upkeep(&mut self, runtime: Runtime) {
        let scope = self.scope;
        for (index, entry) in scope.entries.iter().enumerate() {
            let Some(secret) = &entry.secret else { continue };
            let upkeep = upkeep(secret, &entry.node, runtime, &scope.settings.agent_offer, self.now);
            let repairs = entry.node.garbage.iter().any(Garbage::is_repaired);
            let pause = entry.repair_after.filter(|until| repairs && *until > self.now);
            if let (None, Some((secret, reasons))) = (pause, upkeep.edit) {
                reasons.into_iter().for_each(|reason| self.edits[index].reasons.push(reason));
                self.replace(index, secret, upkeep.due);
            }
            let live = entry.machine.conditions.get(conditions::PLAN_SECRET_READABLE);
            let name = entry.secret_name();
            let (readable, until) = readable(
                &entry.node.garbage,
                &name,
                pause.is_none(),
                live.map(machineconditions::MachineCondition::live),
                self.now,
            );
            let plan_applied: Option<PlanApplied> = upkeep.plan_applied;
            self.edits[index].facts = Some(SecretFacts { plan_applied, readable });
            let times = [self.again, upkeep.again, pause, until];
            self.again = times.into_iter().flatten().min();
        }
    }

    fn replace(&mut self, index: usize, secret: Secret, due: bool) {
        Rc::make_mut(&mut self.entries)[index].replace(secret);
        self.edits[index].due |= due;
    }

    fn edit(&mut self, index: usize, secret: Secret, reason: Reason) {
        self.edits[index].reasons.push(reason);
        self.replace(index, secret, true);
    }

    /// A server's join URL is known once its Node is; a machine that joined before the manager recorded where says so in
    /// its delivered configuration.
    fn refresh_join_urls(&mut self, runtime: Runtime) {
        let entries = self.entries.clone();
        for (index, entry) in entries.iter().enumerate() {
            let Some(secret) = &entry.secret else { continue };
            if entry.annotation(annotations::JOIN_URL_AUTOSET_DISABLED).is_empty()
                && let Some(url) = join::offered_url(entry, runtime)
                && url != entry.join_url()
            {
                self.edit(index, with_annotation(secret, annotations::JOIN_URL, &url), Reason::JoinUrl);
            } else if entry.joined_to().is_empty()
                && let Some(server) = delivered_server(entry, runtime)
            {
                self.edit(index, with_annotation(secret, annotations::JOINED_TO, &server), Reason::JoinedTo);
            }
        }
    }

    fn check_sane(&mut self) -> Step<()> {
        let scope = self.scope;
        let has = |role: fn(&Entry) -> bool| scope.entries.iter().any(|e| role(e) && !e.is_deleting());
        if has(Entry::is_etcd) && has(Entry::is_control_plane) && has(Entry::is_worker) {
            return Ok(());
        }
        self.marks.stable = Some(false);
        if status::is_initialized(&scope.status) {
            self.marks.control_plane_initialized = Some(false);
            return waiting(Waiting::Uninitializing { control_plane: scope.key() });
        }
        let leaving: Vec<&Entry> = scope.entries.iter().filter(|e| e.is_etcd() && e.is_deleting()).collect();
        if has(Entry::is_etcd) || leaving.is_empty() {
            let roles = [
                (Role::Etcd, has(Entry::is_etcd)),
                (Role::ControlPlane, has(Entry::is_control_plane)),
                (Role::Worker, has(Entry::is_worker)),
            ];
            let missing = roles.into_iter().filter(|(_, there)| !there).map(|(role, _)| role).collect();
            return waiting(Waiting::Roles { missing });
        }
        for entry in leaving.into_iter().filter(|entry| !entry.machine.force_removal) {
            self.actions.push(Action::ForceEtcdRemoval {
                machine: entry.name().to_owned(),
                bootstrap: entry.machine.bootstrap_name.clone(),
            });
        }
        waiting(Waiting::EtcdDeletion)
    }

    fn tokens(&mut self) -> Step<Tokens> {
        let scope = self.scope;
        let secret = format!("{}-rke-state", scope.key());
        match &scope.state_secret {
            StateSecret::Found(tokens) => Ok(tokens.clone()),
            StateSecret::Foreign(type_) => failed(Failure::StateSecretType { secret, type_: type_.clone() }),
            StateSecret::Missing
                if scope.entries.iter().any(|e| !e.node.plan_bytes.is_empty() || e.lost_plan()) =>
            {
                failed(Failure::StateSecretMissing { secret })
            }
            StateSecret::Missing => {
                self.actions.push(Action::CreateStateSecret);
                Err(End::Again(Prepared::JoinTokens))
            }
        }
    }

    /// Once a cluster ran, its data lives on etcd machines; if all of them are new, only a snapshot helps. A
    /// machine that is being deleted does not count: electing a new one would start an empty cluster.
    fn check_etcd_plane(&mut self) -> Step<()> {
        let (scope, entries) = (self.scope, self.entries.clone());
        let bootstrapped = status::is_true(&scope.status, conditions::BOOTSTRAPPED)
            || entries.iter().any(|e| !e.join_url().is_empty() || !e.joined_to().is_empty());
        let any_plan = entries
            .iter()
            .any(|e| e.is_etcd() && !e.is_deleting() && (!e.node.plan_bytes.is_empty() || e.lost_plan()));
        if !bootstrapped || any_plan {
            return Ok(());
        }
        self.marks.stable = Some(false);
        waiting(Waiting::EtcdReplaced)
    }

    /// The election is stored before any plan depends on it: two machines that both started a cluster could not be
    /// joined again.
    fn init_node(&mut self) -> Step<usize> {
        let entries = self.entries.clone();
        match elect(&entries, Some(&self.scope.designated_init_node)) {
            Election::Elected(index) => Ok(index),
            Election::Waiting(message) => waiting(message),
            Election::Remark { clear, set } => {
                let clear = clear.into_iter().map(|index| (index, "", Reason::InitNodeDismissed));
                let set = set.map(|index| (index, "true", Reason::InitNodeElected));
                for (index, value, reason) in clear.chain(set) {
                    if let Some(secret) = &entries[index].secret {
                        self.edit(index, with_label(secret, labels::INIT_NODE, value), reason);
                    }
                }
                Err(End::Again(Prepared::InitNode))
            }
        }
    }

    fn tiers(&mut self, context: &Context<'_>, init: &Entry) -> Step<()> {
        let strategy = context.input.spec.config.upgrade_strategy.clone().unwrap_or_default();
        let control_plane_drain = strategy.control_plane_drain_options.as_ref();
        let server_tier = |name, include, exclude, max_unavailable, join_url| Tier {
            name,
            required: true,
            include,
            exclude,
            max_unavailable,
            join_url,
            drain: control_plane_drain,
            policy: FailurePolicy::TIER,
        };
        let not_init: fn(&Entry) -> bool = |e| !e.is_init_node() || e.is_deleting();
        let is_init: fn(&Entry) -> bool = |e| e.is_init_node() || e.is_deleting();

        let mut ignored = self.tier(context, &server_tier("bootstrap", Entry::is_etcd, not_init, "1", ""))?;
        if init.join_url().is_empty() {
            return waiting(Waiting::JoinUrl {
                init_node: init.name().to_owned(),
                after: ignored,
                why: join::missing_url(init),
            });
        }
        // Only now has the cluster existed: a machine that never came up leaves nothing to be restored.
        self.marks.bootstrapped = true;

        let url = init.join_url();
        let etcd = self.tier(context, &server_tier("etcd", Entry::is_etcd, is_init, "1", url))?;
        let concurrency = &strategy.control_plane_concurrency;
        let control_plane = self.tier(
            context,
            &server_tier("control plane", Entry::is_control_plane, is_init, concurrency, url),
        )?;
        ignored = ignored.or(etcd).or(control_plane);

        let available = context
            .entries
            .iter()
            .any(|e| e.is_control_plane() && !e.is_deleting() && !e.join_url().is_empty());
        if !available {
            return waiting(Waiting::ControlPlane);
        }
        if !status::is_initialized(&self.scope.status) {
            self.marks.control_plane_initialized = Some(true);
            return waiting(Waiting::Initialized);
        }
        for windows in [false, true] {
            let worker = Tier {
                name: "worker",
                required: false,
                include: if windows {
                    |e| e.is_only_worker() && e.is_windows()
                } else {
                    |e| e.is_only_worker() && !e.is_windows()
                },
                exclude: is_init,
                max_unavailable: &strategy.worker_concurrency,
                join_url: "",
                drain: strategy.worker_drain_options.as_ref(),
                policy: if windows { FailurePolicy::WINDOWS } else { FailurePolicy::TIER },
            };
            let more = self.tier(context, &worker)?;
            ignored = ignored.or(more);
        }
        ignored.map_or(Ok(()), |group| waiting(Waiting::Machines(group)))
    }

    /// Runs a tier. A waiting tier ends the pass; machines that nothing waits for come back.
    fn tier(&mut self, context: &Context<'_>, tier: &Tier<'_>) -> Step<Option<Group>> {
        let outcome =
            tier::reconcile(context, tier).map_err(|text| End::Error(Failure::Concurrency(text)))?;
        self.refused.extend(outcome.refused);
        self.unknown.extend(outcome.unknown.filter(|group| !self.unknown.contains(group)));
        self.groups.extend(outcome.groups);
        for write in outcome.writes {
            let edit = &mut self.edits[write.index];
            // A machine of two tiers has its plan from the first; a second edit would collide with it.
            if edit.planned.is_none() {
                edit.planned = Some(write.secret);
                edit.reasons.push(write.reason);
                edit.due = true;
            }
        }
        let version = &context.input.spec.kubernetes_version;
        for (machine, waiting) in outcome.machines {
            let Some(entry) = context.entries.iter().find(|entry| entry.name() == machine) else { continue };
            let current = outcome.current.contains(&machine);
            if current && !entry.is_deleting() && entry.machine.version.as_ref() != Some(version) {
                let (machine, version) = (machine.clone(), version.clone());
                let action = Action::SetVersion { machine, version };
                self.versions.extend((!self.versions.contains(&action)).then_some(action));
            }
            let unknown = waiting.is_some() && current && entry.is_unknown();
            self.machines.insert(machine, TierFacts { waiting, unknown, current });
        }
        outcome.waiting.map_or(Ok(outcome.ignored), waiting)
    }

    /// Puts the writes together: plan secrets first, those without a new plan before the others, then Machines.
    fn finish(mut self, end: End) -> Decision {
        if end == End::Ready {
            self.marks.stable = Some(true);
        }
        let mut writes = Vec::new();
        let mut conditions = Vec::new();
        for (entry, edit) in self.entries.iter().zip(&self.edits) {
            let facts = Facts { secret: edit.facts.clone(), tier: self.machines.get(entry.name()).cloned() };
            if let Some(conditions_) = machineconditions::changed(entry, &facts, self.now) {
                let machine = entry.name().to_owned();
                conditions.push(Action::SetConditions { machine, conditions: conditions_ });
            }
            let secret = edit.planned.as_ref().or(entry.secret.as_deref()).filter(|_| edit.due);
            writes.extend(secret.map(|secret| PlanWrite {
                machine: entry.name().to_owned(),
                secret: secret.clone(),
                reasons: edit.reasons.clone(),
            }));
        }
        let planned = |write: &PlanWrite| {
            (!write.reasons.contains(&Reason::InitNodeDismissed), write.reasons.iter().any(Reason::is_plan))
        };
        writes.sort_by_key(planned);
        let writes = writes.into_iter().map(|write| Action::WriteSecret(Box::new(write)));
        self.actions.extend(writes.chain(conditions).chain(self.versions));
        Decision {
            actions: self.actions,
            end,
            marks: self.marks,
            refused: self.refused,
            groups: self.groups,
            unknown: self.unknown,
            again: self.again,
        }
    }
}

fn delivered_server(entry: &Entry, runtime: Runtime) -> Option<String> {
    let bytes = entry.node.delivered_file(&runtime.config_file())?;
    let config: serde_json::Value = serde_json::from_slice(&bytes).ok()?;
    config["server"].as_str().filter(|server| !server.is_empty()).map(str::to_owned)
}
