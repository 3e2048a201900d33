//! Pure: what an RKECluster should look like.

use drover_api::rke::v1::{RKECluster, RKEClusterStatus};
use jiff::Timestamp;

use crate::conditions as generic;
use crate::keys::conditions;

/// What to do about an RKECluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Nobody owns it yet, or it is paused.
    Leave,
    /// The placeholder endpoint has to be set first.
    SetEndpoint,
    /// Everything is in place.
    SetStatus(RKEClusterStatus),
}

/// The endpoint is a placeholder that satisfies Cluster API's contract; the cluster is reached through its
/// tunnel.
pub const ENDPOINT: (&str, i32) = ("localhost", 6443);

/// Decides. `owner_paused` is none while the owning Cluster is unknown.
pub fn decide(cluster: &RKECluster, owner_paused: Option<bool>, now: Timestamp) -> Decision {
    if owner_paused != Some(false) || cluster.metadata.deletion_timestamp.is_some() {
        return Decision::Leave;
    }
    let valid =
        cluster.spec.control_plane_endpoint.as_ref().is_some_and(|end| !end.host.is_empty() && end.port != 0);
    if !valid {
        return Decision::SetEndpoint;
    }
    let mut list = cluster.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    generic::set(&mut list, conditions::READY, generic::TRUE, "", "", now);
    Decision::SetStatus(RKEClusterStatus {
        conditions: list,
        initialization: Some(drover_api::rke::v1::RKEClusterInitializationStatus { provisioned: Some(true) }),
        ready: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use drover_api::rke::v1::APIEndpoint;

    #[test]
    fn endpoint_first_then_provisioned() {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut cluster = RKECluster::default();
        assert_eq!(decide(&cluster, None, now), Decision::Leave);
        assert_eq!(decide(&cluster, Some(true), now), Decision::Leave);
        assert_eq!(decide(&cluster, Some(false), now), Decision::SetEndpoint);
        cluster.spec.control_plane_endpoint = Some(APIEndpoint { host: ENDPOINT.0.into(), port: ENDPOINT.1 });
        let Decision::SetStatus(status) = decide(&cluster, Some(false), now) else { panic!() };
        assert!(status.ready && status.initialization.as_ref().unwrap().provisioned == Some(true));
        assert!(generic::is_true(&status.conditions, "Ready"));
    }
}
