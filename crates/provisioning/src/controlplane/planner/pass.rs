//! One whole pass of the planner, in the original's order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::keys::{annotations, conditions, labels};
use drover_api::rke::v1::{RKEControlPlaneSpec, RKEControlPlaneStatus};
use jiff::Timestamp;

use super::entry::Entry;
use super::initnode::{Election, elect};
use super::join;
use super::releases::Releases;
use super::render::addresses::Addresses;
use super::render::selector_files::{self, FileObjects};
use super::render::{ClusterInput, Tokens};
use super::runtime::Runtime;
use super::tier::{self, Context, SecretWrite, Tier};
use super::write::{FailurePolicy, with_annotation, with_label};
use crate::settings::Settings;

/// The kind of machines that people bring themselves.
const CUSTOM_MACHINE: &str = "CustomMachine";

/// Everything a pass looks at.
#[derive(Clone, Debug)]
pub struct Scope {
    pub namespace: String,
    pub name: String,
    pub generation: i64,
    /// Machine id that a person designated as init node.
    pub designated_init_node: String,
    /// Annotation `rke.cattle.io/cluster-spec`.
    pub cluster_spec_annotation: String,
    /// Annotation `cluster.x-k8s.io/paused` is present.
    pub paused: bool,
    pub spec: RKEControlPlaneSpec,
    pub status: RKEControlPlaneStatus,
    pub cluster: Option<CapiCluster>,
    /// By Machine name.
    pub entries: Vec<Entry>,
    pub state_secret: StateSecret,
    pub releases: Arc<Releases>,
    pub settings: Settings,
    pub machine_addresses: BTreeMap<String, Addresses>,
    /// What `machineSelectorFiles` refers to.
    pub file_objects: FileObjects,
    /// None while the cluster has no registration token.
    pub cluster_agent_manifest: Option<String>,
    /// The management cluster is connected.
    pub connected: bool,
}

/// The owning CAPI Cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapiCluster {
    pub name: String,
    pub deleting: bool,
    pub paused: bool,
    pub infrastructure_provisioned: bool,
}

/// The secret that holds the cluster's join tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateSecret {
    Missing,
    /// There is one, but not ours.
    Foreign(String),
    Found(Tokens),
}

/// What a pass wants done, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    WriteSecret(Box<SecretWrite>),
    /// Make the state secret with fresh random tokens.
    CreateStateSecret,
    /// Let an etcd machine go without safe removal.
    ForceEtcdRemoval {
        machine: String,
        bootstrap: String,
    },
    Unpause,
    /// Condition `Reconciled` of a Machine; no message means True. For a Machine that no deployment speaks for also
    /// `UpToDate`.
    MachineReconciled {
        machine: String,
        message: Option<String>,
        /// The Machine has its plan, and only its health cannot be read.
        unknown: bool,
        up_to_date: Option<bool>,
    },
    /// The version that the Machine's plan has brought it to, for people to see.
    MachineVersion {
        machine: String,
        version: String,
    },
}

/// How a pass ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Ready,
    Waiting(String),
    /// Wrote something that the next pass needs to see.
    Again(String),
    Error(String),
    /// The cluster goes away; nothing is written.
    Silent,
}

/// The result of a pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    pub actions: Vec<Action>,
    pub end: End,
    /// Conditions and flags other than those of the end itself.
    pub marks: Marks,
    /// Configuration keys that were left out because no machine knows them.
    pub refused: BTreeSet<String>,
    /// Machines that cannot be judged, and why; empty if there are none.
    pub unknown: String,
}

/// Facts of a pass that go into the status. `None` leaves what is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
        actions: vec![],
        marks: Marks::default(),
        refused: BTreeSet::new(),
        unknown: vec![],
    };
    let unknown = |pass: &Pass<'_>| pass.unknown.join("; ");
    let end = match pass.run() {
        Ok(()) => End::Ready,
        Err(End::Waiting(message)) if !pass.unknown.is_empty() => {
            End::Waiting(format!("{message}; {}", unknown(&pass)))
        }
        Err(end) => end,
    };
    let unknown = unknown(&pass);
    if end == End::Ready {
        pass.marks.stable = Some(true);
    }
    Decision { actions: pass.actions, end, marks: pass.marks, refused: pass.refused, unknown }
}

struct Pass<'a> {
    scope: &'a Scope,
    now: Timestamp,
    actions: Vec<Action>,
    marks: Marks,
    refused: BTreeSet<String>,
    unknown: Vec<String>,
}

type Step<T> = Result<T, End>;

fn waiting<T>(message: impl Into<String>) -> Step<T> {
    Err(End::Waiting(message.into()))
}

fn failed<T>(message: impl Into<String>) -> Step<T> {
    Err(End::Error(message.into()))
}

impl Pass<'_> {
    fn run(&mut self) -> Step<()> {
        let scope = self.scope;
        let version = &scope.spec.kubernetes_version;
        if let Err(error) = semver::Version::parse(version.trim_start_matches('v')) {
            return failed(format!("kubernetesVersion {version:?} is not a version: {error}"));
        }
        if let Some(cluster) = scope.cluster.as_ref().filter(|cluster| cluster.deleting) {
            if cluster.paused {
                self.actions.push(Action::Unpause);
            }
            return Err(End::Silent);
        }
        let Some(release) = scope.releases.get(version) else {
            let known: Vec<&str> = scope.releases.versions().into_iter().collect();
            return waiting(format!(
                "{}/{}: KDM release data is empty for {version}: set spec.kubernetesVersion to one of {}",
                scope.namespace,
                scope.name,
                known.join(", ")
            ));
        };
        let Some(cluster) = &scope.cluster else { return waiting("CAPI cluster does not exist") };
        if !cluster.infrastructure_provisioned {
            return waiting("waiting for infrastructure ready");
        }
        let runtime = Runtime::of_version(version);
        self.refresh_join_urls(runtime)?;
        self.check_sane()?;
        self.marks.provisioned = true;
        let tokens = self.tokens()?;
        if cluster.paused || scope.paused {
            return waiting("CAPI cluster or RKEControlPlane is paused");
        }
        self.check_etcd_plane()?;
        let init = self.init_node()?;
        let Some(manifest) = &scope.cluster_agent_manifest else {
            return waiting("waiting for the cluster's registration token");
        };
        if let Some(trouble) = selector_files::trouble(&scope.spec, &scope.file_objects, &scope.entries) {
            return failed(trouble);
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
        let context = Context {
            input: &input,
            release,
            entries: &scope.entries,
            agent_connected: scope.connected,
            now: self.now,
        };
        self.tiers(&context, &scope.entries[init])
    }

    /// A server's join URL is known once its Node is; a machine that joined before the manager kept note of
    /// it says so in its delivered configuration.
    fn refresh_join_urls(&mut self, runtime: Runtime) -> Step<()> {
        let before = self.actions.len();
        for entry in &self.scope.entries {
            let Some(secret) = &entry.secret else { continue };
            if entry.annotation(annotations::JOIN_URL_AUTOSET_DISABLED).is_empty()
                && let Some(url) = join::offered_url(entry, runtime)
                && url != entry.join_url()
            {
                self.write(entry, with_annotation(secret, annotations::JOIN_URL, &url), "join url known");
            } else if entry.joined_to().is_empty()
                && let Some(server) = delivered_server(entry, runtime)
            {
                self.write(
                    entry,
                    with_annotation(secret, annotations::JOINED_TO, &server),
                    "joined to known",
                );
            }
        }
        if self.actions.len() > before { Err(End::Again("join url changed".to_owned())) } else { Ok(()) }
    }

    fn check_sane(&mut self) -> Step<()> {
        let scope = self.scope;
        let has = |role: fn(&Entry) -> bool| scope.entries.iter().any(|e| role(e) && !e.is_deleting());
        if has(Entry::is_etcd) && has(Entry::is_control_plane) && has(Entry::is_worker) {
            return Ok(());
        }
        self.marks.stable = Some(false);
        if super::status::is_initialized(&scope.status) {
            self.marks.control_plane_initialized = Some(false);
            return waiting(format!("uninitializing rkecontrolplane {}/{}", scope.namespace, scope.name));
        }
        let leaving: Vec<&Entry> = scope.entries.iter().filter(|e| e.is_etcd() && e.is_deleting()).collect();
        if has(Entry::is_etcd) || leaving.is_empty() {
            let missing: Vec<&str> = [
                ("etcd", has(Entry::is_etcd)),
                ("control plane", has(Entry::is_control_plane)),
                ("worker", has(Entry::is_worker)),
            ]
            .into_iter()
            .filter(|(_, there)| !there)
            .map(|(name, _)| name)
            .collect();
            return waiting(format!(
                "waiting for at least one control plane, etcd, and worker node to be registered: no machine is {} yet",
                missing.join(" or ")
            ));
        }
        for entry in leaving {
            self.actions.push(Action::ForceEtcdRemoval {
                machine: entry.name().to_owned(),
                bootstrap: entry.machine.bootstrap_name.clone(),
            });
        }
        waiting("waiting for all etcd machines to be deleted")
    }

    fn tokens(&mut self) -> Step<Tokens> {
        let scope = self.scope;
        let name = format!("{}-rke-state", scope.name);
        match &scope.state_secret {
            StateSecret::Found(tokens) => Ok(tokens.clone()),
            StateSecret::Foreign(kind) => failed(format!(
                "secret {}/{name} has type {kind:?} instead of rke.cattle.io/cluster-state",
                scope.namespace
            )),
            StateSecret::Missing
                if scope.entries.iter().any(|e| !e.node.plan_bytes.is_empty() || e.lost_plan()) =>
            {
                failed(format!(
                    "secret {}/{name} is missing although plans were delivered; restore it from a backup, \
                     its tokens are not made anew",
                    scope.namespace
                ))
            }
            StateSecret::Missing => {
                self.actions.push(Action::CreateStateSecret);
                Err(End::Again("made the cluster's join tokens".to_owned()))
            }
        }
    }

    /// Once a cluster ran, its data lives on etcd machines; if all of them are new, only a snapshot helps. A
    /// machine that is being deleted does not count: electing a new one would start an empty cluster.
    fn check_etcd_plane(&mut self) -> Step<()> {
        let scope = self.scope;
        let bootstrapped = super::status::is_true(&scope.status, conditions::BOOTSTRAPPED)
            || scope.entries.iter().any(|e| !e.join_url().is_empty() || !e.joined_to().is_empty());
        let any_plan = scope
            .entries
            .iter()
            .any(|e| e.is_etcd() && !e.is_deleting() && (!e.node.plan_bytes.is_empty() || e.lost_plan()));
        if !bootstrapped || any_plan {
            return Ok(());
        }
        self.marks.stable = Some(false);
        waiting(
            "rkecontrolplane was already initialized but no etcd machines exist that have plans, indicating \
             the etcd plane has been entirely replaced. Restoration from etcd snapshot is required. (Drover does not \
             restore snapshots yet: delete the Cluster and make it anew.)",
        )
    }

    fn init_node(&mut self) -> Step<usize> {
        let scope = self.scope;
        match elect(&scope.entries, Some(&scope.designated_init_node)) {
            Election::Elected(index) => Ok(index),
            Election::Waiting(message) => waiting(message),
            Election::Remark { clear, set } => {
                for (index, value) in clear.into_iter().map(|i| (i, "")).chain(set.map(|i| (i, "true"))) {
                    let entry = &scope.entries[index];
                    if let Some(secret) = &entry.secret {
                        let reason =
                            if value.is_empty() { "no longer init node" } else { "elected init node" };
                        self.write(entry, with_label(secret, labels::INIT_NODE, value), reason);
                    }
                }
                Err(End::Again("init node changed".to_owned()))
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
            let message = match ignored {
                Some(message) => format!("{message} and join url to be available on bootstrap node"),
                None => "waiting for join url to be available on bootstrap node".to_owned(),
            };
            return waiting(tier::with_reason(&message, &join::missing_url(init)));
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

        let available = self
            .scope
            .entries
            .iter()
            .any(|e| e.is_control_plane() && !e.is_deleting() && !e.join_url().is_empty());
        if !available {
            return waiting("waiting for control plane to be available");
        }
        if !super::status::is_initialized(&self.scope.status) {
            self.marks.control_plane_initialized = Some(true);
            return waiting("marking control plane as initialized");
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
        ignored.map_or(Ok(()), waiting)
    }

    /// Runs a tier; a waiting tier ends the pass, an ignored message comes back.
    fn tier(&mut self, context: &Context<'_>, tier: &Tier<'_>) -> Step<Option<String>> {
        let outcome = tier::reconcile(context, tier).map_err(End::Error)?;
        self.refused.extend(outcome.refused);
        self.unknown.extend(outcome.unknown.filter(|text| !self.unknown.contains(text)));
        // A machine of two tiers has its plan from the first; a second write would collide with it.
        let fresh: Vec<_> =
            outcome.writes.into_iter().filter(|write| !self.has_written(&write.machine)).collect();
        self.actions.extend(fresh.into_iter().map(|write| Action::WriteSecret(Box::new(write))));
        let version = &context.input.spec.kubernetes_version;
        for (machine, message) in outcome.machines {
            let Some(entry) = context.entries.iter().find(|entry| entry.name() == machine) else { continue };
            let current = outcome.current.contains(&machine);
            // Of a pool's Machines Cluster API itself says so.
            let up_to_date = (entry.machine.infrastructure_kind == CUSTOM_MACHINE).then_some(current);
            if entry.machine.infrastructure_ready && differs(entry, &message, up_to_date) {
                self.actions.push(Action::MachineReconciled {
                    machine: machine.clone(),
                    unknown: message.is_some() && current && entry.is_unknown(),
                    message,
                    up_to_date,
                });
            }
            if current && !entry.is_deleting() && entry.machine.version.as_ref() != Some(version) {
                self.actions.push(Action::MachineVersion { machine, version: version.clone() });
            }
        }
        outcome.waiting.map_or(Ok(outcome.ignored), waiting)
    }

    fn has_written(&self, machine: &str) -> bool {
        let is_its =
            |action: &Action| matches!(action, Action::WriteSecret(write) if write.machine == machine);
        self.actions.iter().any(is_its)
    }

    fn write(&mut self, entry: &Entry, secret: k8s_openapi::api::core::v1::Secret, reason: &str) {
        self.actions.push(Action::WriteSecret(Box::new(SecretWrite {
            machine: entry.name().to_owned(),
            secret,
            reason: reason.to_owned(),
        })));
    }
}

fn differs(entry: &Entry, message: &Option<String>, up_to_date: Option<bool>) -> bool {
    let wanted = match message {
        None => ("True".to_owned(), String::new()),
        Some(message) => ("Unknown".to_owned(), message.clone()),
    };
    entry.machine.reconciled.as_ref() != Some(&wanted)
        || (up_to_date.is_some() && entry.machine.up_to_date != up_to_date)
}

fn delivered_server(entry: &Entry, runtime: Runtime) -> Option<String> {
    let bytes = entry.node.delivered_file(&runtime.config_file())?;
    let config: serde_json::Value = serde_json::from_slice(&bytes).ok()?;
    config["server"].as_str().filter(|server| !server.is_empty()).map(str::to_owned)
}
