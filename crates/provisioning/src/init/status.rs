//! Conditions on their way up: RKEControlPlane → provisioning Cluster and management twin.

use std::borrow::Cow;

use drover_api::management::v3 as management;
use drover_api::provisioning::v1::{Cluster, ClusterStatus};
use drover_api::rke::v1::{GenericCondition, RKEControlPlane};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use super::generate::{GenerateError, Generated};
use super::identity::Refusal;
use super::kubeconfig;
use crate::conditions::{self as generic, FALSE, TRUE, UNKNOWN};
use crate::keys::{annotations, conditions as types};

/// The control plane as far as it speaks for what the spec says now: Ready of something else is not Ready.
pub fn with_shortfall<'a>(plane: &'a RKEControlPlane, shortfall: Option<&str>) -> Cow<'a, RKEControlPlane> {
    let mut plane = Cow::Borrowed(plane);
    let conditions = plane.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
    let is_ready = |condition: &GenericCondition| condition.type_ == types::READY && condition.status == TRUE;
    if let (Some(why), Some(at)) = (shortfall, conditions.iter().position(is_ready))
        && let Some(status) = &mut plane.to_mut().status
    {
        let ready = &mut status.conditions[at];
        (ready.status, ready.reason, ready.message) = (UNKNOWN.into(), "Waiting".into(), why.into());
    }
    plane
}

/// The provisioning Cluster's status after a pass.
pub fn of_cluster(
    cluster: &Cluster,
    generated: &Result<Generated, GenerateError>,
    control_plane: Option<&RKEControlPlane>,
    connected: bool,
    has_kubeconfig: bool,
    now: Timestamp,
) -> ClusterStatus {
    let mut status = cluster.status.clone().unwrap_or_default();
    let list = &mut status.conditions;
    generic::set(list, types::CREATED, TRUE, "", "", now);
    match generated {
        Ok(_) => generic::set(list, types::RKE_CLUSTER, TRUE, "", "", now),
        Err(GenerateError::Invalid(why)) => generic::set(list, types::RKE_CLUSTER, FALSE, "Error", why, now),
        Err(GenerateError::NotYet(why)) => {
            generic::set(list, types::RKE_CLUSTER, UNKNOWN, "Waiting", why, now);
        }
    }
    let ready = control_plane
        .and_then(|cp| cp.status.as_ref())
        .and_then(|s| generic::get(&s.conditions, types::READY).cloned());
    if let Some(ready) = ready {
        for target in [types::UPDATED, types::PROVISIONED, types::READY] {
            match generated {
                // It runs on as it was, which is not what the spec says.
                Err(GenerateError::Invalid(why)) if target == types::UPDATED => {
                    generic::set(list, target, FALSE, "Error", why, now);
                }
                // This message is the one that `kubectl get` shows.
                Err(GenerateError::Invalid(why)) if target == types::READY && ready.message.is_empty() => {
                    generic::set(list, target, &ready.status, &ready.reason, why, now);
                }
                _ => generic::copy(list, target, &ready, now),
            }
        }
    } else if let Err(error) = generated {
        // Nothing else will ever speak for this cluster: say here what keeps it.
        let value = if matches!(error, GenerateError::Invalid(_)) { FALSE } else { UNKNOWN };
        let reason = if value == FALSE { "Error" } else { "Waiting" };
        for target in [types::UPDATED, types::PROVISIONED, types::READY] {
            generic::set(list, target, value, reason, &error.to_string(), now);
        }
    }
    let warnings = warnings(cluster, control_plane);
    if warnings.is_empty() {
        list.retain(|condition| condition.type_ != types::CONFIG_ACCEPTED);
    } else {
        generic::set(list, types::CONFIG_ACCEPTED, FALSE, "NotInEffect", &warnings, now);
    }
    set_kstatus(list, generated, now);
    status.ready |= connected;
    if has_kubeconfig {
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        status.client_secret_name = kubeconfig::secret_name(name);
    }
    status.fleet_workspace_name = cluster.metadata.namespace.clone().unwrap_or_default();
    status.agent_deployed |= connected;
    if generated.is_ok() {
        status.observed_generation = cluster.metadata.generation.unwrap_or_default();
    }
    status
}

/// The status of a Cluster that cannot have its management Cluster.
pub fn refused(
    cluster: &Cluster,
    refusal: &Refusal,
    control_plane: Option<&RKEControlPlane>,
    now: Timestamp,
) -> ClusterStatus {
    let why = refusal.to_string();
    let generated = Err(GenerateError::Invalid(why.clone()));
    let mut status = of_cluster(cluster, &generated, control_plane, false, false, now);
    generic::set(&mut status.conditions, types::CREATED, FALSE, "Error", &why, now);
    if refusal.clears_status() {
        status.cluster_name.clear();
    }
    status
}

/// Told whatever else is wrong: who mends that should not learn of this only then.
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
fn set_kstatus(
    list: &mut Vec<GenericCondition>,
    generated: &Result<Generated, GenerateError>,
    now: Timestamp,
) {
    let ready = generic::get(list, types::READY).cloned();
    let (reconciling, stalled) = match (generated, ready.as_ref().map(|ready| ready.status.as_str())) {
        (Err(GenerateError::Invalid(_)), _) | (_, Some(FALSE)) => (FALSE, TRUE),
        (_, Some(TRUE)) => (FALSE, FALSE),
        _ => (TRUE, FALSE),
    };
    let text = match generated {
        Err(GenerateError::Invalid(why)) => why.clone(),
        _ => ready.map(|ready| ready.message).unwrap_or_default(),
    };
    for (type_, value) in [(types::RECONCILING, reconciling), (types::STALLED, stalled)] {
        let message = if value == TRUE { text.as_str() } else { "" };
        generic::set(list, type_, value, "", message, now);
    }
}

/// What is applied to the twin's status. Only conditions that are ours appear, so that those of others stay.
pub fn of_twin(
    twin: &management::Cluster,
    cluster: &Cluster,
    control_plane: Option<&RKEControlPlane>,
    machines: usize,
    now: Timestamp,
) -> management::ClusterStatus {
    let live = twin.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    let mut list: Vec<GenericCondition> = Vec::new();
    let mut copy = |target: &str, source: &GenericCondition| {
        let mut one: Vec<GenericCondition> = generic::get(&live, target).cloned().into_iter().collect();
        generic::copy(&mut one, target, source, now);
        list.extend(one);
    };
    let conditions = control_plane.and_then(|cp| cp.status.as_ref()).map(|status| &status.conditions[..]);
    let of = |type_: &str| conditions.and_then(|list| generic::get(list, type_));
    let stable = of(types::STABLE).is_some_and(|stable| stable.status == TRUE);
    if let Some(ready) = of(types::READY) {
        copy(types::UPDATED, ready);
        // The tunnel and its health checks know nothing of a stopped cluster, so readiness stays ours.
        copy(types::READY, ready);
    }
    if let Some(provisioned) = of(types::PROVISIONED) {
        copy(types::PROVISIONED, provisioned);
    }
    list.sort_by(|a, b| a.type_.cmp(&b.type_));
    let pools = cluster.spec.rke_config.as_ref().map(|config| &config.machine_pools[..]).unwrap_or_default();
    let chosen = cluster.metadata.annotations.as_ref().and_then(|a| a.get(annotations::UI_PROVIDER)).cloned();
    let provider = chosen.unwrap_or_else(|| match pools.first() {
        None => "custom".to_owned(),
        Some(pool) => {
            let kind = pool.machine_config_ref.kind.as_deref().unwrap_or_default();
            kind.strip_suffix("Config").unwrap_or(kind).to_lowercase()
        }
    });
    let distribution = if cluster.spec.kubernetes_version.contains("k3s") { "k3s" } else { "rke2" };
    management::ClusterStatus {
        conditions: list,
        driver: "imported".to_owned(),
        provider: distribution.to_owned(),
        ready_reconciling: !stable,
        info: Some(management::ClusterInfo {
            machine_provider: provider,
            kubernetes_version: cluster.spec.kubernetes_version.clone(),
            node_count: i64::try_from(machines).unwrap_or(i64::MAX),
            provisioning_cluster_ref: Some(ObjectReference {
                api_version: Some(drover_api::provisioning::v1::API_VERSION.to_owned()),
                kind: Some("Cluster".to_owned()),
                namespace: cluster.metadata.namespace.clone(),
                name: cluster.metadata.name.clone(),
                ..ObjectReference::default()
            }),
            ..management::ClusterInfo::default()
        }),
        ..management::ClusterStatus::default()
    }
}
