//! Everything that a pass over a provisioning Cluster looks at.

use std::sync::Arc;

use drover_api::capi::v1beta2::{self as capi, Machine, MachineDeployment, MachineHealthCheck, MachineSet};
use drover_api::finalizers::cattle as finalizers;
use drover_api::provisioning::v1::{Cluster, RKEMachinePool};
use drover_api::rke::v1::{GenericCondition, RKECluster, RKEControlPlane};
use drover_runtime::ObjectKey;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt;

use super::objects::Sources;
use super::pools::deployment_name;
use super::twin::identity::{Evidence, Identity};
use crate::conditions as generic;
use crate::keys::conditions;
use crate::settings::Settings;

/// The finalizers of a provisioning Cluster.
pub const FINALIZERS: [&str; 2] = [finalizers::PROVISIONING_CLUSTER, finalizers::RKE_CLUSTER];

/// A Cluster and what surrounds it.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    pub cluster: Arc<Cluster>,
    pub identity: Identity,
    /// What is known about the id, with the management Cluster and its namespace.
    pub evidence: Evidence,
    /// The management Cluster has a registration token.
    pub has_token: bool,
    pub sources: Sources,
    /// The pools with their drivers' fields recorded, if some are not recorded yet.
    pub recorded_pools: Option<Vec<RKEMachinePool>>,
    pub capi_cluster: Option<Arc<capi::Cluster>>,
    pub rke_cluster: Option<Arc<RKECluster>>,
    pub control_plane: Option<Arc<RKEControlPlane>>,
    pub deployments: Vec<Arc<MachineDeployment>>,
    pub sets: Vec<Arc<MachineSet>>,
    pub machines: Vec<Arc<Machine>>,
    /// Those that were generated.
    pub health_checks: Vec<Arc<MachineHealthCheck>>,
    /// Machine templates that were generated.
    pub templates: Vec<Template>,
    /// A kind of a driver that is not listed completely yet.
    pub unlisted: Option<String>,
    pub kubeconfig: Option<Arc<Secret>>,
    pub log: Option<Arc<ConfigMap>>,
    pub settings: Settings,
    /// A fresh token, for a kubeconfig that does not exist yet.
    pub fresh_token: String,
}

/// A machine template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pub kind: String,
    pub name: String,
    pub deleting: bool,
}

impl Scope {
    pub fn key(&self) -> ObjectKey {
        ObjectKey::of(self.cluster.as_ref())
    }

    pub fn pools(&self) -> &[RKEMachinePool] {
        self.cluster.spec.rke_config.as_ref().map(|config| &config.machine_pools[..]).unwrap_or_default()
    }

    pub fn has_finalizers(&self) -> bool {
        let present = self.cluster.finalizers();
        FINALIZERS.iter().all(|finalizer| present.iter().any(|there| there == finalizer))
    }

    /// The MachineDeployment of a pool.
    pub fn deployment_of(&self, pool: &RKEMachinePool) -> Option<&Arc<MachineDeployment>> {
        let name = deployment_name(&self.cluster.name_any(), &pool.name);
        self.deployments.iter().find(|deployment| deployment.name_any() == name)
    }

    pub fn twin_conditions(&self) -> &[GenericCondition] {
        let status = self.evidence.twin.as_ref().and_then(|twin| twin.status.as_ref());
        status.map(|status| &status.conditions[..]).unwrap_or_default()
    }

    /// The cluster answers through its tunnel.
    pub fn is_connected(&self) -> bool {
        generic::is_true(self.twin_conditions(), conditions::CONNECTED)
    }

    /// The cluster has answered once.
    pub fn was_ready(&self) -> bool {
        self.cluster.status.as_ref().is_some_and(|status| status.ready)
    }
}
