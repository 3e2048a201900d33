//! The status of a provisioning Cluster, most of which comes from its RKEControlPlane. Pure.

use std::borrow::Cow;

use drover_api::capi::v1beta2::MachineDeployment;
use drover_api::provisioning::v1::{Cluster, ClusterStatus};
use drover_api::rke::v1::{GenericCondition, RKEControlPlane};
use jiff::Timestamp;

use super::apply::Written;
use super::decide::{Action, Decision, Outcome};
use super::kubeconfig;
use super::outstanding::outstanding;
use super::scope::Scope;
use super::waits::{Refusal, Waiting};
use crate::conditions::{self as generic, FALSE, TRUE, UNKNOWN};
use crate::keys::conditions as types;

/// The control plane as far as it reports about the spec of now: Ready for another spec is not Ready.
pub fn plane<'a>(
    scope: &'a Scope,
    decision: &Decision,
    written: &Written,
) -> Option<Cow<'a, RKEControlPlane>> {
    let plane = scope.control_plane.as_deref()?;
    if decision.outcome != Outcome::Generated || !is_ready(plane) {
        return Some(Cow::Borrowed(plane));
    }
    let deployments = decision.actions.iter().filter_map(|action| match action {
        Action::ApplyDeployment(deployment) => Some(deployment.as_ref()),
        _ => None,
    });
    let deployments: Vec<&MachineDeployment> = deployments.collect();
    Some(not_ready_for(plane, outstanding(scope, &deployments, written.control_plane).as_ref()))
}

fn is_ready(plane: &RKEControlPlane) -> bool {
    let conditions = plane.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
    generic::is_true(conditions, types::READY)
}

fn not_ready_for<'a>(plane: &'a RKEControlPlane, waiting: Option<&Waiting>) -> Cow<'a, RKEControlPlane> {
    let mut plane = Cow::Borrowed(plane);
    let Some(waiting) = waiting else { return plane };
    if let Some(status) = &mut plane.to_mut().status {
        let ready = status.conditions.iter_mut().filter(|condition| condition.type_ == types::READY);
        for ready in ready {
            let message = waiting.to_string();
            (ready.status, ready.reason, ready.message) = (UNKNOWN.into(), "Waiting".into(), message);
        }
    }
    plane
}

/// The status after a pass. `error` is that of the write that failed, if one did.
pub fn status(
    scope: &Scope,
    outcome: &Outcome,
    control_plane: Option<&RKEControlPlane>,
    error: Option<&str>,
    now: Timestamp,
) -> ClusterStatus {
    let cluster = scope.cluster.as_ref();
    let mut status = cluster.status.clone().unwrap_or_default();
    let refusal = match outcome {
        Outcome::Refused(refusal) => Some(refusal.to_string()),
        _ => None,
    };
    let list = &mut status.conditions;
    match outcome {
        Outcome::Refused(Refusal::Identity(refusal)) => {
            generic::set(list, types::CREATED, FALSE, "Error", &refusal.to_string(), now);
        }
        _ => generic::set(list, types::CREATED, TRUE, "", "", now),
    }
    let made = match (outcome, error) {
        // It is tried again.
        (_, Some(error)) => (UNKNOWN, "Error", error.to_owned()),
        (Outcome::Refused(refusal), None) => (FALSE, "Error", refusal.to_string()),
        (Outcome::Waiting(waiting), None) => (UNKNOWN, "Waiting", waiting.to_string()),
        (Outcome::Generated | Outcome::Prepared, None) => (TRUE, "", String::new()),
    };
    generic::set(list, types::RKE_CLUSTER, made.0, made.1, &made.2, now);
    let ready = control_plane
        .and_then(|cp| cp.status.as_ref())
        .and_then(|s| generic::get(&s.conditions, types::READY).cloned());
    if let Some(ready) = ready {
        for target in [types::UPDATED, types::PROVISIONED, types::READY] {
            match &refusal {
                // It runs on as it was, which is not what the spec says.
                Some(why) if target == types::UPDATED => generic::set(list, target, FALSE, "Error", why, now),
                // This message is the one that `kubectl get` shows.
                Some(why) if target == types::READY && ready.message.is_empty() => {
                    generic::set(list, target, &ready.status, &ready.reason, why, now);
                }
                _ => generic::copy(list, target, &ready, now),
            }
        }
    } else if made.0 != TRUE {
        // There is no control plane that would report it.
        for target in [types::UPDATED, types::PROVISIONED, types::READY] {
            generic::set(list, target, made.0, made.1, &made.2, now);
        }
    }
    let warnings = warnings(cluster, control_plane);
    if warnings.is_empty() {
        list.retain(|condition| condition.type_ != types::CONFIG_ACCEPTED);
    } else {
        generic::set(list, types::CONFIG_ACCEPTED, FALSE, "NotInEffect", &warnings, now);
    }
    set_kstatus(list, refusal.as_deref(), now);
    status.fleet_workspace_name = cluster.metadata.namespace.clone().unwrap_or_default();
    if let Outcome::Refused(Refusal::Identity(refusal)) = outcome {
        if refusal.clears_status() {
            status.cluster_name.clear();
        }
        return status;
    }
    status.cluster_name.clone_from(&scope.identity.id);
    status.ready |= scope.is_connected();
    status.agent_deployed |= scope.is_connected();
    if (scope.is_connected() || scope.was_ready()) && error.is_none() {
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        status.client_secret_name = kubeconfig::secret_name(name);
    }
    if *outcome == Outcome::Generated && error.is_none() {
        status.observed_generation = cluster.metadata.generation.unwrap_or_default();
    }
    status
}

/// Shown whatever else is wrong, so that it is not found only after that is corrected.
fn warnings(cluster: &Cluster, control_plane: Option<&RKEControlPlane>) -> String {
    let mut parts = Vec::new();
    let unsupported = drover_api::provisioning::v1::unimplemented_fields(&cluster.spec);
    if !unsupported.is_empty() {
        parts.push(format!("accepted and stored, but without effect yet: {}", unsupported.join(", ")));
    }
    let refused = control_plane
        .and_then(|cp| cp.status.as_ref())
        .and_then(|status| generic::get(&status.conditions, types::CONFIG_ACCEPTED));
    parts.extend(refused.map(|condition| condition.message.clone()));
    parts.join("; ")
}

/// `Reconciling` and `Stalled`, which kstatus and its users read.
fn set_kstatus(list: &mut Vec<GenericCondition>, refusal: Option<&str>, now: Timestamp) {
    let ready = generic::get(list, types::READY).cloned();
    let (reconciling, stalled) = match (refusal, ready.as_ref().map(|ready| ready.status.as_str())) {
        (Some(_), _) | (_, Some(FALSE)) => (FALSE, TRUE),
        (_, Some(TRUE)) => (FALSE, FALSE),
        _ => (TRUE, FALSE),
    };
    let text = match refusal {
        Some(why) => why.to_owned(),
        None => ready.map(|ready| ready.message).unwrap_or_default(),
    };
    for (type_, value) in [(types::RECONCILING, reconciling), (types::STALLED, stalled)] {
        let message = if value == TRUE { text.as_str() } else { "" };
        generic::set(list, type_, value, "", message, now);
    }
}
