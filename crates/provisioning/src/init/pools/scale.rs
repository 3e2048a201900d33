//! The number of machines of a pool, which people change at the Cluster, and others at its MachineDeployment. Pure.

use drover_api::capi::v1beta2::MachineDeployment;
use drover_api::provisioning::v1::{RKEConfig, RKEMachinePool};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::deployment_name;

/// The quantity that was applied last. It distinguishes a scaled MachineDeployment from a changed pool.
pub const APPLIED_QUANTITY: &str = "drover.io/applied-quantity";

/// The configuration with another number of machines in the pool of a MachineDeployment.
pub fn with_quantity(
    cluster: &str,
    config: &RKEConfig,
    deployment: &str,
    quantity: i32,
) -> Option<RKEConfig> {
    let mut config = config.clone();
    let mut pools = config.machine_pools.iter_mut();
    pools.find(|pool| deployment_name(cluster, &pool.name) == deployment)?.quantity = Some(quantity);
    Some(config)
}

/// The quantity of the pool of a MachineDeployment that was created without `replicas`. It stands for [`APPLIED_QUANTITY`]
/// until the pool is changed for the first time, and saves the write of the scale.
pub const INITIAL_QUANTITY: &str = "drover.io/initial-quantity";

/// The quantity that was applied last, if it is noted.
pub fn applied_quantity(deployment: &MachineDeployment) -> Option<&str> {
    let notes = deployment.annotations();
    notes.get(APPLIED_QUANTITY).or_else(|| notes.get(INITIAL_QUANTITY)).map(String::as_str)
}

/// The number of machines, as it is applied beside the rest of a MachineDeployment, under a manager of its own and only
/// when the pool's quantity changes: applied with everything else it would undo a scale that is not seen yet.
pub fn scale(pool: &RKEMachinePool) -> Value {
    let mut fields = json!({"metadata": {"annotations": {APPLIED_QUANTITY: quantity_text(pool.quantity)}}});
    if let Some(quantity) = pool.quantity {
        fields["spec"] = json!({"replicas": quantity});
    }
    fields
}

/// A quantity as it is noted.
pub fn quantity_text(quantity: Option<i32>) -> String {
    quantity.map(|quantity| quantity.to_string()).unwrap_or_default()
}

/// A MachineDeployment was scaled by someone (for instance by an autoscaler) while its pool stayed as it was:
/// the pool should follow. Returns the new quantity.
pub fn scaled_to(
    replicas: Option<i32>,
    applied_quantity: Option<&str>,
    quantity: Option<i32>,
) -> Option<i32> {
    let applied = applied_quantity?;
    let replicas = replicas?;
    let unchanged_pool = applied == quantity_text(quantity);
    // A pool without a quantity has one machine.
    (unchanged_pool && replicas != quantity.unwrap_or(1)).then_some(replicas)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provisioning_check_14_a_scaled_deployment_is_followed_and_a_changed_pool_wins() {
        assert_eq!(scaled_to(Some(4), Some("2"), Some(2)), Some(4));
        assert_eq!(scaled_to(Some(2), Some("2"), Some(2)), None);
        assert_eq!(scaled_to(Some(4), Some("2"), Some(3)), None, "the pool changed as well");
        assert_eq!(scaled_to(Some(3), Some(""), None), Some(3), "no quantity before");
        assert_eq!(scaled_to(Some(1), Some(""), None), None);
        assert_eq!(scaled_to(Some(3), None, Some(2)), None, "nothing was applied yet");
    }
}
