//! The input of a pass over a MachineDeployment.

use std::sync::Arc;

use drover_api::capi::v1beta2::{Cluster, Machine, MachineDeployment, MachineSet};
use drover_api::finalizers;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use crate::external::External;
use crate::machineset::decide::scaled;
use crate::meta;

/// A MachineDeployment and related objects.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// The deployment.
    pub deployment: MachineDeployment,
    /// Its Cluster.
    pub cluster: Option<Arc<Cluster>>,
    /// Its MachineSets.
    pub sets: Vec<Arc<MachineSet>>,
    /// Their Machines.
    pub machines: Vec<Arc<Machine>>,
    /// Template of the bootstrap configs.
    pub bootstrap_template: External,
    /// Template of the infra machines.
    pub infra_template: External,
}

/// How Machines are replaced.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Strategy {
    /// New ones are created and old ones deleted within limits.
    RollingUpdate {
        /// Machines above the desired number.
        max_surge: i32,
        /// Machines that may be unavailable.
        max_unavailable: i32,
    },
    /// Old ones are replaced when a user deletes them.
    OnDelete,
}

impl Scope {
    /// The deployment is being deleted.
    pub fn is_deleting(&self) -> bool {
        meta::is_deleting(&self.deployment.metadata)
    }

    /// The deployment or its Cluster is paused.
    pub fn is_paused(&self) -> bool {
        meta::is_paused(self.cluster.as_deref(), &self.deployment.metadata)
    }

    /// The finalizer is present.
    pub fn has_finalizer(&self) -> bool {
        self.deployment.finalizers().iter().any(|finalizer| finalizer == finalizers::capi::MACHINE_DEPLOYMENT)
    }

    /// Desired Machines.
    pub fn replicas(&self) -> i32 {
        self.deployment.spec.replicas.unwrap_or(1).max(0)
    }

    /// The strategy with absolute limits: surge is rounded up, unavailability down, and one of them is not zero.
    pub fn strategy(&self) -> Strategy {
        let strategy = self.deployment.spec.rollout.as_ref().and_then(|rollout| rollout.strategy.as_ref());
        if strategy.is_some_and(|strategy| strategy.type_ == "OnDelete") {
            return Strategy::OnDelete;
        }
        let limits = strategy.and_then(|strategy| strategy.rolling_update.clone()).unwrap_or_default();
        let replicas = self.replicas();
        let surge = scaled(&limits.max_surge.unwrap_or(IntOrString::Int(1)), replicas, true).max(0);
        let unavailable =
            scaled(&limits.max_unavailable.unwrap_or(IntOrString::Int(0)), replicas, false).max(0);
        let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
        Strategy::RollingUpdate { max_surge: surge, max_unavailable: unavailable.min(replicas.max(1)) }
    }
}
