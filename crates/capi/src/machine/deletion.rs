//! The order in which a Machine is deleted: hooks, drain, volumes, server, bootstrap config, Node.

use drover_api::annotations::capi as annotations;
use drover_api::conditions::reasons;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::drain::{self, DrainPlan};
use super::scope::{DrainView, NodeView, Scope};
use crate::contract::ResolveError;
use crate::external::External;
use crate::meta;
use crate::waits::Hold;

/// Default time limit for deleting the Node.
const NODE_DELETION_TIMEOUT: i32 = 10;

/// The stage of a deletion.
#[derive(Clone, Debug, PartialEq)]
pub enum Stage {
    /// An annotation holds the deletion before the drain.
    PreDrainHook(Vec<String>),
    /// Pods are leaving the Node.
    Draining {
        /// The Node.
        node: String,
        /// Whether it must be cordoned first.
        cordon: bool,
        /// What to evict and what to wait for.
        plan: DrainPlan,
    },
    /// The drain cannot continue.
    DrainBlocked(Hold),
    /// Volumes are still attached.
    VolumeDetach(Vec<String>),
    /// An annotation holds the deletion before the server is deleted.
    PreTerminateHook(Vec<String>),
    /// The infra machine is being deleted.
    Infrastructure {
        /// Whether it still has to be deleted.
        delete: bool,
    },
    /// The infra machine cannot be deleted.
    InfrastructureBlocked(Hold),
    /// The bootstrap config is being deleted.
    Bootstrap {
        /// Whether it still has to be deleted.
        delete: bool,
    },
    /// The bootstrap config cannot be deleted.
    BootstrapBlocked(Hold),
    /// The Node is being deleted.
    Node(String),
    /// The Node cannot be deleted yet.
    NodeBlocked(Hold),
    /// Nothing is left.
    Done,
}

impl Stage {
    /// Reason of the `Deleting` condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::PreDrainHook(_) => reasons::WAITING_FOR_PRE_DRAIN_HOOK,
            Self::Draining { .. } | Self::DrainBlocked(_) => reasons::DRAINING_NODE,
            Self::VolumeDetach(_) => reasons::WAITING_FOR_VOLUME_DETACH,
            Self::PreTerminateHook(_) => reasons::WAITING_FOR_PRE_TERMINATE_HOOK,
            Self::Infrastructure { .. } => reasons::WAITING_FOR_INFRASTRUCTURE_DELETION,
            Self::Bootstrap { .. } => reasons::WAITING_FOR_BOOTSTRAP_DELETION,
            Self::InfrastructureBlocked(_) | Self::BootstrapBlocked(_) => reasons::INTERNAL_ERROR,
            Self::Node(_) | Self::NodeBlocked(_) => reasons::DELETING_NODE,
            Self::Done => reasons::DELETION_COMPLETED,
        }
    }
}

/// The current stage, and when to check again if no event comes first.
pub fn stage(scope: &Scope, now: Timestamp) -> (Stage, Option<SignedDuration>) {
    let node_allowed = node_deletion_allowed(scope);
    if !is_server_deleting(scope) {
        if node_allowed && let Some(held) = before_terminate(scope, now) {
            return held;
        }
        let hooks =
            meta::annotations_with_prefix(&scope.machine.metadata, annotations::PRE_TERMINATE_HOOK_PREFIX);
        if !hooks.is_empty() {
            return (Stage::PreTerminateHook(hooks), None);
        }
    }
    if let Some(stage) =
        external_stage(&scope.infra, |delete| Stage::Infrastructure { delete }, Stage::InfrastructureBlocked)
    {
        return (stage, None);
    }
    if let Some(stage) =
        external_stage(&scope.bootstrap, |delete| Stage::Bootstrap { delete }, Stage::BootstrapBlocked)
    {
        return (stage, None);
    }
    if node_allowed && let Some(held) = node_stage(scope, now) {
        return held;
    }
    (Stage::Done, None)
}

/// Whether the Node may be drained and deleted.
fn node_deletion_allowed(scope: &Scope) -> bool {
    let node_known = scope.node_name().is_some() || matches!(scope.node, NodeView::Found(_));
    if scope.is_cluster_deleting() || !node_known {
        return false;
    }
    if let Some(control_plane) = scope.control_plane.object() {
        if meta::is_deleting(&control_plane.metadata) {
            return false;
        }
        if scope.control_plane.provided().is_some_and(|cp| cp.boolean("/status/externalManagedControlPlane"))
        {
            return true;
        }
    }
    // Without a control-plane Machine there is no API left.
    scope.control_plane_machines > 0
}

/// Once the server is being deleted, there is nothing to drain.
fn is_server_deleting(scope: &Scope) -> bool {
    match &scope.infra {
        External::Found { object, .. } => meta::is_deleting(&object.metadata),
        other => other.is_gone() && scope.was_provisioned(),
    }
}

fn before_terminate(scope: &Scope, now: Timestamp) -> Option<(Stage, Option<SignedDuration>)> {
    let meta = &scope.machine.metadata;
    let hooks = meta::annotations_with_prefix(meta, annotations::PRE_DRAIN_HOOK_PREFIX);
    if !hooks.is_empty() {
        return Some((Stage::PreDrainHook(hooks), None));
    }
    let deletion = scope.machine.spec.deletion.clone().unwrap_or_default();
    let started = scope.machine.status.as_ref().and_then(|status| status.deletion.as_ref());
    let drain_left = left(
        deletion.node_drain_timeout_seconds,
        started.and_then(|s| s.node_drain_start_time.as_ref()),
        now,
    );
    if !meta::has_annotation(meta, annotations::EXCLUDE_NODE_DRAINING)
        && drain_left != Some(SignedDuration::ZERO)
        && let Some(stage) = drain_stage(scope, now)
    {
        // Evictions blocked by a disruption budget send no event: check every 20 s, as upstream.
        let retry = SignedDuration::from_secs(20);
        return Some((stage, Some(drain_left.map_or(retry, |left| left.min(retry)))));
    }
    let volumes_left = left(
        deletion.node_volume_detach_timeout_seconds,
        started.and_then(|s| s.wait_for_node_volume_detach_start_time.as_ref()),
        now,
    );
    if !meta::has_annotation(meta, annotations::EXCLUDE_WAIT_FOR_NODE_VOLUME_DETACH)
        && volumes_left != Some(SignedDuration::ZERO)
    {
        let volumes = attached_volumes(scope);
        if !volumes.is_empty() {
            // VolumeAttachments are read, not watched: check every 20 s, as upstream.
            let retry = SignedDuration::from_secs(20);
            return Some((
                Stage::VolumeDetach(volumes),
                Some(volumes_left.map_or(retry, |left| left.min(retry))),
            ));
        }
    }
    None
}

fn drain_stage(scope: &Scope, now: Timestamp) -> Option<Stage> {
    let stuck = |why: Hold| Stage::DrainBlocked(Hold::DrainBlocked(Box::new(why)));
    let node = match &scope.node {
        NodeView::Found(node) => node,
        NodeView::Disconnected(lost) => return Some(stuck(Hold::Disconnected(lost.why.to_string()))),
        NodeView::Several(names) => return Some(stuck(Hold::SeveralNodes(names.clone()))),
        NodeView::Absent | NodeView::NotSought => return None,
    };
    let empty = DrainView::default();
    let view = scope.drain.as_ref().unwrap_or(&empty);
    let plan = drain::plan(view, node, now);
    let cordon = node.spec.as_ref().and_then(|spec| spec.unschedulable) != Some(true);
    match &view.error {
        Some(error) => Some(stuck(Hold::Unreadable(error.clone()))),
        None if plan.is_done() && !cordon => None,
        None => Some(Stage::Draining { node: node.name_any(), cordon, plan }),
    }
}

fn attached_volumes(scope: &Scope) -> Vec<String> {
    let NodeView::Found(node) = &scope.node else { return Vec::new() };
    if drain::is_unreachable(node) {
        return Vec::new();
    }
    let in_use = node.status.iter().flat_map(|status| status.volumes_attached.iter().flatten());
    let mut volumes: Vec<String> = in_use.map(|volume| volume.name.clone()).collect();
    volumes.extend(scope.drain.iter().flat_map(|drain| drain.volumes.iter().cloned()));
    volumes.sort();
    volumes.dedup();
    volumes
}

fn external_stage(
    external: &External,
    deleting: impl Fn(bool) -> Stage,
    blocked: impl Fn(Hold) -> Stage,
) -> Option<Stage> {
    match external {
        External::Unset | External::NotFound(_) => None,
        // Without its CRD, the object does not exist either.
        External::Unresolvable(ResolveError::CrdMissing { .. }) => None,
        External::Unresolvable(error) => Some(blocked(Hold::Unresolvable(error.clone()))),
        External::Found { object, .. } => Some(deleting(!meta::is_deleting(&object.metadata))),
    }
}

fn node_stage(scope: &Scope, now: Timestamp) -> Option<(Stage, Option<SignedDuration>)> {
    let timeout = scope
        .machine
        .spec
        .deletion
        .as_ref()
        .and_then(|deletion| deletion.node_deletion_timeout_seconds)
        .unwrap_or(NODE_DELETION_TIMEOUT);
    let remaining = left(Some(timeout), scope.machine.metadata.deletion_timestamp.as_ref(), now);
    match &scope.node {
        NodeView::Found(node) => {
            // At least one attempt is made, however long the rest of the deletion took.
            let gave_up = remaining == Some(SignedDuration::ZERO) && meta::is_deleting(&node.metadata);
            (!gave_up).then(|| (Stage::Node(node.name_any()), remaining))
        }
        NodeView::Disconnected(lost) if remaining != Some(SignedDuration::ZERO) => {
            Some((Stage::NodeBlocked(Hold::Disconnected(lost.why.to_string())), remaining))
        }
        _ => None,
    }
}

/// The rest of a time limit: `None` without a limit (unset or 0), zero if it has passed.
fn left(
    seconds: Option<i32>,
    since: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>,
    now: Timestamp,
) -> Option<SignedDuration> {
    let limit = SignedDuration::from_secs(i64::from(seconds.filter(|seconds| *seconds > 0)?));
    let spent = since.map_or(SignedDuration::ZERO, |since| now.duration_since(since.0));
    Some((limit - spent).max(SignedDuration::ZERO))
}
