//! The input of a pass over a Cluster.

use std::sync::Arc;

use drover_access_api::Disconnected;
use drover_api::capi::v1beta2::{Cluster, Machine, MachineDeployment, MachineSet};
use drover_api::finalizers;
use drover_api::labels::capi as labels;
use kube::ResourceExt;

use crate::external::External;
use crate::meta;

/// A Cluster and related objects.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// The Cluster.
    pub cluster: Cluster,
    /// Its infra cluster.
    pub infra: External,
    /// Its control plane.
    pub control_plane: External,
    /// Its MachineDeployments.
    pub deployments: Vec<Arc<MachineDeployment>>,
    /// Its MachineSets.
    pub sets: Vec<Arc<MachineSet>>,
    /// Its Machines.
    pub machines: Vec<Arc<Machine>>,
    /// Why its API cannot be reached; `None` if it can.
    pub disconnected: Option<Disconnected>,
}

impl Scope {
    /// The Cluster is being deleted.
    pub fn is_deleting(&self) -> bool {
        meta::is_deleting(&self.cluster.metadata)
    }

    /// The Cluster is paused.
    pub fn is_paused(&self) -> bool {
        meta::is_paused(Some(&self.cluster), &self.cluster.metadata)
    }

    /// The finalizer is present.
    pub fn has_finalizer(&self) -> bool {
        self.cluster.finalizers().iter().any(|finalizer| finalizer == finalizers::capi::CLUSTER)
    }

    /// The infrastructure has been provisioned; stays true.
    pub fn was_provisioned(&self) -> bool {
        let initialization = self.cluster.status.as_ref().and_then(|status| status.initialization.as_ref());
        initialization.is_some_and(|initialization| initialization.infrastructure_provisioned == Some(true))
    }

    /// The control plane has been initialized; stays true.
    pub fn was_initialized(&self) -> bool {
        let initialization = self.cluster.status.as_ref().and_then(|status| status.initialization.as_ref());
        initialization.is_some_and(|initialization| initialization.control_plane_initialized == Some(true))
    }

    /// Machines that run the control plane.
    pub fn control_plane_machines(&self) -> impl Iterator<Item = &Arc<Machine>> {
        self.machines.iter().filter(|machine| is_control_plane(machine))
    }

    /// Machines that do not.
    pub fn worker_machines(&self) -> impl Iterator<Item = &Arc<Machine>> {
        self.machines.iter().filter(|machine| !is_control_plane(machine))
    }
}

/// The Machine runs the control plane.
pub fn is_control_plane(machine: &Machine) -> bool {
    meta::label(&machine.metadata, labels::CONTROL_PLANE).is_some()
}
