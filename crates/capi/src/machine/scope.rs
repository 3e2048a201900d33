//! The input of a pass over a Machine.

use std::collections::BTreeSet;
use std::sync::Arc;

use drover_access_api::Disconnected;
use drover_api::capi::v1beta2::{Cluster, Machine, MachineDeployment, MachineSet};
use drover_api::finalizers;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;

use crate::external::External;
use crate::meta;

/// A Machine and related objects.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// The Machine.
    pub machine: Machine,
    /// Its Cluster.
    pub cluster: Option<Arc<Cluster>>,
    /// The Cluster is being deleted.
    pub leaving: bool,
    /// The set that created it.
    pub set: Option<Arc<MachineSet>>,
    /// The deployment of that set.
    pub deployment: Option<Arc<MachineDeployment>>,
    /// Its bootstrap config.
    pub bootstrap: External,
    /// Its infra machine.
    pub infra: External,
    /// The Cluster's control plane.
    pub control_plane: External,
    /// Control-plane Machines of the Cluster that are not being deleted.
    pub control_plane_machines: usize,
    /// Its Node.
    pub node: NodeView,
    /// The content of the Node; read only while the Machine is being deleted.
    pub drain: Option<DrainView>,
}

/// The Node of a Machine, as far as known.
#[derive(Clone, Debug, Default)]
pub enum NodeView {
    /// There is no provider id yet.
    #[default]
    NotSought,
    /// The cluster cannot be reached.
    Disconnected(Disconnected),
    /// No Node has the provider id.
    Absent,
    /// Several Nodes have it, which is an error.
    Several(Vec<String>),
    /// The Node.
    Found(Arc<Node>),
}

/// The content of a Node for a drain.
#[derive(Clone, Debug, Default)]
pub struct DrainView {
    /// The pods.
    pub pods: Vec<Pod>,
    /// DaemonSets that exist, as `namespace/name`.
    pub daemon_sets: BTreeSet<String>,
    /// Volumes with a VolumeAttachment.
    pub volumes: Vec<String>,
    /// Why the lists are incomplete.
    pub error: Option<String>,
}

impl Scope {
    /// The Machine is being deleted.
    pub fn is_deleting(&self) -> bool {
        meta::is_deleting(&self.machine.metadata)
    }

    /// The Cluster is being deleted.
    pub fn is_cluster_deleting(&self) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| meta::is_deleting(&cluster.metadata))
    }

    /// The Machine or its Cluster is paused.
    pub fn is_paused(&self) -> bool {
        meta::is_paused(self.cluster.as_deref(), &self.machine.metadata)
    }

    /// The finalizer is present.
    pub fn has_finalizer(&self) -> bool {
        self.machine.finalizers().iter().any(|finalizer| finalizer == finalizers::capi::MACHINE)
    }

    /// It has been provisioned; stays true.
    pub fn was_provisioned(&self) -> bool {
        self.machine
            .status
            .as_ref()
            .and_then(|status| status.initialization.as_ref())
            .is_some_and(|initialization| initialization.infrastructure_provisioned == Some(true))
    }

    /// Its bootstrap data has existed; stays true.
    pub fn had_data_secret(&self) -> bool {
        self.machine
            .status
            .as_ref()
            .and_then(|status| status.initialization.as_ref())
            .is_some_and(|initialization| initialization.bootstrap_data_secret_created == Some(true))
    }

    /// Name of the Node, once known.
    pub fn node_name(&self) -> Option<&str> {
        self.machine.status.as_ref()?.node_ref.as_ref().map(|node| node.name.as_str())
    }
}
