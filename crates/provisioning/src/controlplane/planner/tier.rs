//! One tier of a pass: which machines get a new plan now, and what the tier waits for.

use std::collections::{BTreeMap, BTreeSet};

use drover_api::rke::v1::DrainOptions;
use drover_plan::{File, Plan, keys};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;

use super::concurrency;
use super::drain::{self, Step};
use super::entry::Entry;
use super::join;
use super::releases::Release;
use super::render::{ClusterInput, RenderError, Rendered, desired_plan};
use crate::controlplane::waits::{Activity, Detail, Group, MachineWait, Waiting};
use crate::plansecret::edit::{with_annotation, with_minor_plan, with_plan};
use crate::plansecret::{FailurePolicy, Reason};

/// Which machines a tier is about, and how it treats them.
pub struct Tier<'a> {
    pub name: &'static str,
    pub required: bool,
    pub include: fn(&Entry) -> bool,
    pub exclude: fn(&Entry) -> bool,
    pub max_unavailable: &'a str,
    /// Where non-workers join; workers choose for themselves.
    pub join_url: &'a str,
    pub drain: Option<&'a DrainOptions>,
    pub policy: FailurePolicy,
}

/// What every tier of a pass shares.
pub struct Context<'a> {
    pub input: &'a ClusterInput,
    pub release: &'a Release,
    pub entries: &'a [Entry],
    pub agent_connected: bool,
    pub now: Timestamp,
}

/// The plan secret of an entry, edited, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    pub index: usize,
    pub secret: Secret,
    pub reason: Reason,
}

/// What came out of a tier.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub writes: Vec<Write>,
    /// The pass ends here.
    pub waiting: Option<Waiting>,
    /// Later tiers go on, but the pass does not end clean.
    pub ignored: Option<Group>,
    /// Machines that cannot be judged. Everything else goes on, and the pass may end clean.
    pub unknown: Option<Group>,
    /// Every group of machines but those that cannot be judged.
    pub groups: Vec<Group>,
    /// Message per machine; none when it is as it should be.
    pub machines: BTreeMap<String, Option<String>>,
    /// Machines that have applied the plan that they should have.
    pub current: BTreeSet<String>,
    pub refused: BTreeSet<String>,
}

/// What happens to which machine, in the order in which it was found out, and what each is waited for.
#[derive(Default)]
struct Buckets {
    machines: Vec<(Activity, String)>,
    details: BTreeMap<String, Vec<Detail>>,
}

impl Buckets {
    fn put(&mut self, activity: Activity, machine: &str, detail: impl Into<Option<Detail>>) {
        self.machines.push((activity, machine.to_owned()));
        if let Some(detail) = detail.into() {
            let list = self.details.entry(machine.to_owned()).or_default();
            if !list.contains(&detail) {
                list.push(detail);
            }
        }
    }

    /// The machines by what happens to them.
    fn groups(&self, tier: &'static str) -> Vec<Group> {
        let wait = |machine: &String| MachineWait {
            machine: machine.clone(),
            details: self.details.get(machine).cloned().unwrap_or_default(),
        };
        let mut groups: BTreeMap<Activity, Vec<MachineWait>> = BTreeMap::new();
        for (activity, machine) in &self.machines {
            groups.entry(*activity).or_default().push(wait(machine));
        }
        groups.into_iter().map(|(activity, machines)| Group { tier, activity, machines }).collect()
    }
}

/// Runs one tier.
pub fn reconcile(context: &Context<'_>, tier: &Tier<'_>) -> Result<Outcome, String> {
    let all = context.entries.iter().enumerate();
    let included: Vec<(usize, &Entry)> = all.filter(|(_, entry)| (tier.include)(entry)).collect();
    let mut outcome = Outcome::default();
    if included.is_empty() {
        outcome.waiting = tier.required.then_some(Waiting::NoMachine { tier: tier.name });
        return Ok(outcome);
    }
    let mut buckets = Buckets::default();
    let mut planned: Vec<Planned<'_>> = Vec::new();
    for (index, entry) in included.into_iter().filter(|(_, entry)| !(tier.exclude)(entry)) {
        match render(context, tier, entry) {
            Ok(rendered) => {
                outcome.refused.extend(rendered.refused.iter().cloned());
                planned.push(Planned { index, entry, rendered });
            }
            Err(NoPlan::NoServer) => buckets.put(Activity::NonReady, entry.name(), Detail::NoServer),
            Err(NoPlan::Render(RenderError::Ignore(message))) => {
                buckets.put(Activity::NonReady, entry.name(), Detail::Render(message));
            }
            Err(NoPlan::Render(RenderError::Machine(message))) => {
                buckets.put(Activity::Failing, entry.name(), Detail::Render(message));
            }
        }
    }
    // Machines that cannot be judged come last, so that the others do not wait for them.
    planned.sort_by_key(|planned| planned.entry.node.health_unknown());
    let mut places = Places {
        limit: concurrency::limit(tier.max_unavailable, planned.len())?,
        taken: planned.iter().filter(|planned| planned.is_unavailable()).count(),
    };
    let current = planned.iter().filter(|planned| planned.is_current());
    outcome.current = current.map(|planned| planned.entry.name().to_owned()).collect();
    for planned in &planned {
        outcome.writes.extend(step(context, tier, planned, &mut places, &mut buckets));
    }
    report(tier.name, &buckets, &planned, &mut outcome);
    Ok(outcome)
}

/// A machine and the plan that it should have.
struct Planned<'a> {
    index: usize,
    entry: &'a Entry,
    rendered: Rendered,
}

/// How many machines may be away at once, and how many are.
struct Places {
    limit: Option<usize>,
    taken: usize,
}

/// Why a machine has no plan.
enum NoPlan {
    NoServer,
    Render(RenderError),
}

fn render(context: &Context<'_>, tier: &Tier<'_>, entry: &Entry) -> Result<Rendered, NoPlan> {
    let join_url = if entry.is_only_worker() && !entry.is_init_node() {
        join::worker_url(entry, context.entries).ok_or(NoPlan::NoServer)?
    } else {
        tier.join_url.to_owned()
    };
    desired_plan(context.input, context.release, entry, &join_url).map_err(NoPlan::Render)
}

impl Planned<'_> {
    /// Whether the machine takes one of the places of those that may be away at once. A machine whose health cannot be read
    /// does so too, as one that does not report; but once its plan has proved itself a worker takes none, or its garbage
    /// would keep all others from theirs. An etcd machine always does, because of the quorum.
    fn is_unavailable(&self) -> bool {
        let entry = self.entry;
        let away = !self.is_changed() && !entry.node.healthy && (!entry.is_unknown() || entry.is_etcd());
        !entry.node.in_sync || entry.in_drain() || away
    }

    fn is_changed(&self) -> bool {
        self.entry.node.plan.as_ref() != Some(&self.rendered.plan)
            || self.entry.joined_to() != self.rendered.joined_to
    }

    /// The change is one that nothing waits for.
    fn is_minor(&self) -> bool {
        let plan = self.entry.node.plan.as_ref();
        plan.is_some_and(|current| is_minor_change(current, &self.rendered.plan))
            && self.entry.joined_to() == self.rendered.joined_to
    }

    /// The machine has applied the plan that it should have.
    fn is_current(&self) -> bool {
        (!self.is_changed() || self.is_minor()) && (self.entry.node.in_sync || self.entry.is_undisturbed())
    }

    fn write(&self, secret: Secret, reason: Reason) -> Option<Write> {
        Some(Write { index: self.index, secret, reason })
    }
}

/// The next step of one machine.
fn step(
    context: &Context<'_>,
    tier: &Tier<'_>,
    planned: &Planned<'_>,
    places: &mut Places,
    buckets: &mut Buckets,
) -> Option<Write> {
    let Planned { entry, rendered, .. } = planned;
    let (name, secret) = (entry.name(), entry.secret.as_ref()?);
    let policy = if entry.is_windows() { FailurePolicy::WINDOWS } else { tier.policy };
    let with_plan = || with_plan(secret, &rendered.plan, &rendered.joined_to, policy, context.now);

    if !entry.has_plan() && !entry.lost_plan() {
        buckets.put(Activity::Configuring, name, waiting_for(entry));
        return planned.write(with_plan(), Reason::InitialPlan);
    }
    if !planned.is_changed() {
        return settle(context, planned, secret, buckets);
    }
    if planned.is_minor() {
        // It goes out beside everything else: what the machine waits for, if anything, is as before.
        settle(context, planned, secret, buckets);
        let next = with_minor_plan(secret, &rendered.plan, &rendered.joined_to, policy, context.now);
        return planned.write(next, Reason::MinorChange);
    }
    // A machine without its plan takes a place already, and cannot give it back before it has one.
    let has_place = entry.lost_plan() && places.limit.is_none_or(|limit| places.taken <= limit);
    let allowed = entry.in_drain()
        || entry.node.failed
        || has_place
        || places.limit.is_none_or(|limit| places.taken < limit)
        || (entry.node.applied_but_unhealthy() && !entry.probes_usable());
    if !allowed {
        buckets.put(Activity::Configuring, name, entry.garbage(&[keys::PLAN]).map(Detail::Unreadable));
        return None;
    }
    if !planned.is_unavailable() {
        places.taken += 1;
    }
    match drain::before_plan(&rendered.plan, entry, context.entries.len(), tier.drain) {
        Step::Proceed => {
            buckets.put(Activity::Configuring, name, Detail::Plan);
            let reason = if entry.lost_plan() { Reason::PlanRepaired } else { Reason::PlanChanged };
            planned.write(with_plan(), reason)
        }
        Step::Annotate(key, value) => {
            buckets.put(Activity::Draining, name, None);
            planned.write(with_annotation(secret, key, &value), Reason::DrainStarted)
        }
        Step::Wait(detail) => {
            buckets.put(Activity::Draining, name, detail);
            None
        }
    }
}

/// A machine whose plan is the desired one: is it done?
fn settle(
    context: &Context<'_>,
    planned: &Planned<'_>,
    secret: &Secret,
    buckets: &mut Buckets,
) -> Option<Write> {
    let (entry, name) = (planned.entry, planned.entry.name());
    // It cannot be told whether the machine is done, and to wait for it might be for ever: the others go on. If its plan
    // has proved itself before, only the machine itself is in question.
    if let Some(garbage) = entry.garbage(&[keys::PROBE_STATUSES]).filter(|_| entry.node.in_sync) {
        let activity = if entry.is_unknown() { Activity::Unknown } else { Activity::Failing };
        buckets.put(activity, name, Detail::Unreadable(garbage));
        return None;
    }
    if let Some(detail) = waiting_for(entry).filter(|_| !entry.is_undisturbed()) {
        buckets.put(Activity::Configuring, name, detail);
        return None;
    }
    match drain::after_plan(entry) {
        Step::Proceed => {}
        Step::Annotate(key, value) => {
            buckets.put(Activity::Uncordoning, name, None);
            return planned.write(with_annotation(secret, key, &value), Reason::DrainEnded);
        }
        Step::Wait(_) => {
            buckets.put(Activity::Uncordoning, name, None);
            return None;
        }
    }
    if context.agent_connected && !kubelet_is_current(entry, &context.input.spec.kubernetes_version) {
        buckets.put(Activity::Configuring, name, Detail::Kubelet);
    } else if entry.is_control_plane() && !context.agent_connected {
        buckets.put(Activity::Configuring, name, Detail::ClusterAgent);
    } else if let Some(failure) = &entry.machine.failure {
        buckets.put(Activity::Failing, name, Detail::MachineFailed(failure.clone()));
    } else if let Some(reason) = &entry.machine.not_ready {
        buckets.put(Activity::NonReady, name, Detail::MachineNotReady(reason.clone()));
    }
    None
}

/// What a machine's plan waits for; none when it is in place and healthy.
pub fn waiting_for(entry: &Entry) -> Option<Detail> {
    let node = &entry.node;
    if !entry.has_plan() {
        return Some(if entry.is_etcd() {
            Detail::BootstrapEtcd
        } else if entry.is_control_plane() {
            Detail::Etcd
        } else {
            Detail::ControlPlane
        });
    }
    if node.applied_plan.is_none() {
        return Some(Detail::FirstPlan { failure: node.failure.clone() });
    }
    if let Some(plan) = node.plan.as_ref().filter(|plan| !plan.error.is_empty()) {
        return Some(Detail::PlanError(plan.error.clone()));
    }
    // First the cause: while a plan fails, probes that fail too are its doing, and mending them mends nothing.
    if node.failed && !node.in_sync {
        return Some(Detail::PlanFailed { failure: node.failure.clone() });
    }
    if !node.unhealthy.is_empty() {
        return Some(Detail::Probes(node.unhealthy.clone()));
    }
    (!node.in_sync).then_some(Detail::Plan)
}

/// Only files marked minor differ.
pub fn is_minor_change(current: &Plan, desired: &Plan) -> bool {
    if current.instructions != desired.instructions
        || current.periodic_instructions != desired.periodic_instructions
        || current.probes != desired.probes
        || current.error != desired.error
    {
        return false;
    }
    let find = |path: &str| -> Option<&File> { current.files.iter().find(|file| file.path == path) };
    desired.files.iter().all(|file| file.minor || find(&file.path).is_some_and(|old| same_file(old, file)))
}

fn same_file(a: &File, b: &File) -> bool {
    a.content == b.content && a.permissions == b.permissions && a.dynamic == b.dynamic && a.minor == b.minor
}

fn kubelet_is_current(entry: &Entry, wanted: &str) -> bool {
    let Some(kubelet) = &entry.machine.kubelet_version else { return true };
    let core = |text: &str| -> Option<(u64, u64, u64)> {
        let version = semver::Version::parse(text.trim_start_matches('v')).ok()?;
        Some((version.major, version.minor, version.patch))
    };
    core(kubelet) == core(wanted)
}

fn report(tier: &'static str, buckets: &Buckets, planned: &[Planned<'_>], outcome: &mut Outcome) {
    for planned in planned {
        outcome.machines.insert(planned.entry.name().to_owned(), None);
    }
    for group in buckets.groups(tier) {
        for wait in &group.machines {
            outcome.machines.insert(wait.machine.clone(), Some(group.message(wait)));
        }
        if group.activity == Activity::Unknown {
            outcome.unknown = Some(group);
            continue;
        }
        outcome.groups.push(group.clone());
        match group.activity {
            Activity::Failing | Activity::NonReady => drop(outcome.ignored.get_or_insert(group)),
            _ => drop(outcome.waiting.get_or_insert(Waiting::Machines(group))),
        }
    }
}
