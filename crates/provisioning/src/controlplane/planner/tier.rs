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
use super::write::{FailurePolicy, with_annotation, with_minor_plan, with_plan};

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

/// A plan secret to be written, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct SecretWrite {
    pub machine: String,
    pub secret: Secret,
    pub reason: String,
}

/// What came out of a tier.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub writes: Vec<SecretWrite>,
    /// The pass ends here with this message.
    pub waiting: Option<String>,
    /// Later tiers go on, but the pass does not end clean.
    pub ignored: Option<String>,
    /// Machines that cannot be judged, and why. Everything else goes on, and the pass may end clean.
    pub unknown: Option<String>,
    /// Message per machine; none when it is as it should be.
    pub machines: BTreeMap<String, Option<String>>,
    /// Machines that have applied the plan that they should have.
    pub current: BTreeSet<String>,
    pub refused: BTreeSet<String>,
}

#[derive(Default)]
struct Buckets {
    uncordoning: Vec<String>,
    draining: Vec<String>,
    configuring: Vec<String>,
    failing: Vec<String>,
    non_ready: Vec<String>,
    /// Machines that have their plan, but whose health cannot be read.
    unknown: Vec<String>,
    details: BTreeMap<String, Vec<String>>,
}

impl Buckets {
    fn note(&mut self, machine: &str, detail: impl Into<String>) {
        let detail = detail.into();
        let list = self.details.entry(machine.to_owned()).or_default();
        if !detail.is_empty() && !list.contains(&detail) {
            list.push(detail);
        }
    }
}

/// Runs one tier.
pub fn reconcile(context: &Context<'_>, tier: &Tier<'_>) -> Result<Outcome, String> {
    let included: Vec<&Entry> = context.entries.iter().filter(|entry| (tier.include)(entry)).collect();
    let mut outcome = Outcome::default();
    if included.is_empty() {
        if tier.required {
            outcome.waiting = Some(format!("waiting for at least one {} node", tier.name));
        }
        return Ok(outcome);
    }
    let mut buckets = Buckets::default();
    let mut planned: Vec<(&Entry, Rendered)> = Vec::new();
    for entry in included.into_iter().filter(|entry| !(tier.exclude)(entry)) {
        match render(context, tier, entry) {
            Ok(rendered) => {
                outcome.refused.extend(rendered.refused.iter().cloned());
                planned.push((entry, rendered));
            }
            Err(RenderError::Ignore(message)) => {
                buckets.non_ready.push(entry.name().to_owned());
                buckets.note(entry.name(), message);
            }
            Err(RenderError::Machine(message)) => {
                buckets.failing.push(entry.name().to_owned());
                buckets.note(entry.name(), message);
            }
        }
    }
    // Machines that cannot be judged come last, so that the others do not wait for them.
    planned.sort_by_key(|(entry, _)| entry.node.health_unknown());
    let limit = concurrency::limit(tier.max_unavailable, planned.len())?;
    let mut unavailable = planned.iter().filter(|(entry, rendered)| is_unavailable(entry, rendered)).count();
    let is_current = |(entry, rendered): &&(&Entry, Rendered)| {
        (!is_changed(entry, rendered) || is_minor(entry, rendered))
            && (entry.node.in_sync || entry.is_undisturbed())
    };
    outcome.current = planned.iter().filter(is_current).map(|(entry, _)| entry.name().to_owned()).collect();
    for (entry, rendered) in &planned {
        step(context, tier, entry, rendered, limit, &mut unavailable, &mut buckets, &mut outcome);
    }
    report(tier.name, buckets, &planned, &mut outcome);
    Ok(outcome)
}

fn render(context: &Context<'_>, tier: &Tier<'_>, entry: &Entry) -> Result<Rendered, RenderError> {
    let join_url = if entry.is_only_worker() && !entry.is_init_node() {
        join::worker_url(entry, context.entries).map_err(RenderError::Ignore)?
    } else {
        tier.join_url.to_owned()
    };
    desired_plan(context.input, context.release, entry, &join_url)
}

/// Whether a machine takes one of the places of those that may be away at once. A machine whose health cannot be read
/// does so too, as one that does not report; but once its plan has proved itself a worker takes none, or its garbage
/// would keep all others from theirs. An etcd machine always does, because of the quorum.
fn is_unavailable(entry: &Entry, rendered: &Rendered) -> bool {
    let unchanged = !is_changed(entry, rendered);
    let away = unchanged && !entry.node.healthy && (!entry.is_unknown() || entry.is_etcd());
    !entry.node.in_sync || entry.in_drain() || away
}

fn is_changed(entry: &Entry, rendered: &Rendered) -> bool {
    entry.node.plan.as_ref() != Some(&rendered.plan) || entry.joined_to() != rendered.joined_to
}

/// The change is one that nobody waits for.
fn is_minor(entry: &Entry, rendered: &Rendered) -> bool {
    entry.node.plan.as_ref().is_some_and(|current| is_minor_change(current, &rendered.plan))
        && entry.joined_to() == rendered.joined_to
}

#[allow(clippy::too_many_arguments)]
fn step(
    context: &Context<'_>,
    tier: &Tier<'_>,
    entry: &Entry,
    rendered: &Rendered,
    limit: Option<usize>,
    unavailable: &mut usize,
    buckets: &mut Buckets,
    outcome: &mut Outcome,
) {
    let name = entry.name().to_owned();
    let Some(secret) = &entry.secret else { return };
    let mut write = |secret: Secret, reason: &str| {
        outcome.writes.push(SecretWrite { machine: name.clone(), secret, reason: reason.to_owned() });
    };
    let policy = if entry.is_windows() { FailurePolicy::WINDOWS } else { tier.policy };
    let planned = || with_plan(secret, &rendered.plan, &rendered.joined_to, policy, context.now);

    if !entry.has_plan() && !entry.lost_plan() {
        write(planned(), "initial plan");
        buckets.configuring.push(name.clone());
        buckets.note(&name, status_message(entry));
    } else if is_changed(entry, rendered) {
        if is_minor(entry, rendered) {
            let (plan, joined_to) = (&rendered.plan, &rendered.joined_to);
            write(with_minor_plan(secret, plan, joined_to, policy, context.now), "minor change");
            // It goes out beside everything else: what the machine waits for, if anything, is as before.
            settle(context, entry, secret, &name, &mut |_: Secret, _: &str| {}, buckets);
            return;
        }
        // A machine without its plan takes a place already, and cannot give it back before it has one.
        let has_place = entry.lost_plan() && limit.is_none_or(|limit| *unavailable <= limit);
        let allowed = entry.in_drain()
            || entry.node.failed
            || has_place
            || limit.is_none_or(|limit| *unavailable < limit)
            || (entry.node.applied_but_unhealthy() && !entry.probes_usable());
        if !allowed {
            buckets.note(&name, entry.garbage(&[keys::PLAN]).unwrap_or_default());
            buckets.configuring.push(name);
            return;
        }
        if !is_unavailable(entry, rendered) {
            *unavailable += 1;
        }
        match drain::before_plan(&rendered.plan, entry, context.entries.len(), tier.drain) {
            Step::Proceed => {
                write(planned(), if entry.lost_plan() { "plan repaired" } else { "plan changed" });
                buckets.configuring.push(name.clone());
                buckets.note(&name, "waiting for plan to be applied");
            }
            Step::Annotate(key, value) => {
                write(with_annotation(secret, key, &value), "start drain");
                buckets.draining.push(name);
            }
            Step::Wait(detail) => {
                buckets.draining.push(name.clone());
                buckets.note(&name, detail.unwrap_or_default());
            }
        }
    } else {
        settle(context, entry, secret, &name, &mut write, buckets);
    }
}

/// A machine whose plan is the desired one: is it done?
fn settle(
    context: &Context<'_>,
    entry: &Entry,
    secret: &Secret,
    name: &str,
    write: &mut impl FnMut(Secret, &str),
    buckets: &mut Buckets,
) {
    let message = status_message(entry);
    // It cannot be told whether the machine is done, and to wait for it might be for ever: the others go on. If its plan
    // has proved itself before, only the machine itself is in question.
    if let Some(garbage) = entry.garbage(&[keys::PROBE_STATUSES]).filter(|_| entry.node.in_sync) {
        let group = if entry.is_unknown() { &mut buckets.unknown } else { &mut buckets.failing };
        group.push(name.to_owned());
        buckets.note(name, garbage);
        return;
    }
    if !message.is_empty() && !entry.is_undisturbed() {
        buckets.configuring.push(name.to_owned());
        buckets.note(name, message);
        return;
    }
    match drain::after_plan(entry) {
        Step::Proceed => {}
        Step::Annotate(key, value) => {
            write(with_annotation(secret, key, &value), "end drain");
            buckets.uncordoning.push(name.to_owned());
            return;
        }
        Step::Wait(_) => {
            buckets.uncordoning.push(name.to_owned());
            return;
        }
    }
    if context.agent_connected && !kubelet_is_current(entry, &context.input.spec.kubernetes_version) {
        buckets.configuring.push(name.to_owned());
        buckets.note(name, "waiting for kubelet to update");
    } else if entry.is_control_plane() && !context.agent_connected {
        buckets.configuring.push(name.to_owned());
        buckets.note(name, "waiting for cluster agent to connect");
    } else if let Some(failure) = &entry.machine.failure {
        buckets.failing.push(name.to_owned());
        buckets.note(name, failure);
    } else if let Some(reason) = &entry.machine.not_ready {
        buckets.non_ready.push(name.to_owned());
        buckets.note(name, reason);
    }
}

/// What a machine's plan waits for; empty when it is in place and healthy.
pub fn status_message(entry: &Entry) -> String {
    let node = &entry.node;
    if !entry.has_plan() {
        return if entry.is_etcd() {
            "waiting for bootstrap etcd to be available"
        } else if entry.is_control_plane() {
            "waiting for etcd to be available"
        } else {
            "waiting for control plane to be available"
        }
        .to_owned();
    }
    if node.applied_plan.is_none() {
        return with_reason("waiting for agent to check in and apply initial plan", &node.failure);
    }
    if let Some(plan) = node.plan.as_ref().filter(|plan| !plan.error.is_empty()) {
        return plan.error.clone();
    }
    // First the cause: while a plan fails, probes that do so too are its doing, and mending them mends nothing.
    if node.failed && !node.in_sync {
        return with_reason("failure while applying plan", &node.failure);
    }
    if !node.unhealthy.is_empty() {
        return format!("waiting for probes: {}", probe_names(&node.unhealthy));
    }
    if node.in_sync { String::new() } else { "waiting for plan to be applied".to_owned() }
}

/// The machine chose the names, and their number.
fn probe_names(names: &[String]) -> String {
    const MOST: usize = 8;
    let short = |name: &String| name.chars().take(63).collect::<String>();
    let told = names.iter().take(MOST).map(short).collect::<Vec<_>>().join(", ");
    if names.len() <= MOST { told } else { format!("{told} and {} more", names.len() - MOST) }
}

/// What happened in the fixed words, and why.
pub fn with_reason(what: &str, why: &str) -> String {
    if why.is_empty() { what.to_owned() } else { format!("{what}: {why}") }
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

/// What a group of machines means for the pass.
enum Slot {
    Waiting,
    Ignored,
    Unknown,
}

fn report(tier: &str, buckets: Buckets, planned: &[(&Entry, Rendered)], outcome: &mut Outcome) {
    let groups = [
        ("uncordoning", "node(s)", &buckets.uncordoning, Slot::Waiting),
        ("draining", "node(s)", &buckets.draining, Slot::Waiting),
        ("configuring", "node(s)", &buckets.configuring, Slot::Waiting),
        ("failing", "machine(s)", &buckets.failing, Slot::Ignored),
        ("non-ready", "machine(s)", &buckets.non_ready, Slot::Ignored),
        ("unknown", "machine(s)", &buckets.unknown, Slot::Unknown),
    ];
    for (entry, _) in planned {
        outcome.machines.insert(entry.name().to_owned(), None);
    }
    for (verb, noun, names, slot) in groups {
        if names.is_empty() {
            continue;
        }
        let detail =
            |name: &String| buckets.details.get(name).map(|list| list.join(", ")).unwrap_or_default();
        let mut message = format!("{verb} {tier} {noun} {}", at_most_three(names));
        if let [only] = &names[..]
            && !detail(only).is_empty()
        {
            message = format!("{message}: {}", detail(only));
        }
        for name in names {
            let text = Some(detail(name)).filter(|text| !text.is_empty()).unwrap_or_else(|| message.clone());
            outcome.machines.insert(name.clone(), Some(text));
        }
        let slot = match slot {
            Slot::Waiting => &mut outcome.waiting,
            Slot::Ignored => &mut outcome.ignored,
            Slot::Unknown => &mut outcome.unknown,
        };
        slot.get_or_insert(message);
    }
}

fn at_most_three(names: &[String]) -> String {
    if names.len() <= 3 {
        return names.join(",");
    }
    format!("{} and {} more", names[..3].join(","), names.len() - 3)
}
