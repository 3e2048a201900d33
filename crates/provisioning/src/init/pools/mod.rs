//! Machine pools: what is wrong with them, and the MachineDeployment and MachineHealthCheck of each.

pub mod deployment;
pub mod duration;
pub mod healthcheck;
pub mod nodemarks;
pub mod problems;
pub mod scale;
pub mod state;

use drover_api::names::safe_concat_name;

pub use self::duration::parse_duration;
use crate::keys::labels;

/// Name of a pool's MachineDeployment.
pub fn deployment_name(cluster: &str, pool: &str) -> String {
    safe_concat_name(&[cluster, pool])
}

/// Labels that say what a machine is; a pool's own label must not change that.
pub fn is_reserved(key: &str) -> bool {
    [
        labels::ETCD_ROLE,
        labels::CONTROL_PLANE_ROLE,
        labels::WORKER_ROLE,
        labels::CLUSTER_NAME,
        labels::MACHINE_POOL_NAME,
        labels::capi::CLUSTER_NAME,
        labels::capi::DEPLOYMENT_NAME,
        labels::capi::CONTROL_PLANE,
        labels::OS,
    ]
    .contains(&key)
}
