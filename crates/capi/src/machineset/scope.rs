//! The input of a pass over a MachineSet.

use std::collections::BTreeSet;
use std::sync::Arc;

use drover_api::annotations::capi as annotations;
use drover_api::capi::v1beta2::{Cluster, Machine, MachineDeployment, MachineSet};
use drover_api::finalizers;
use drover_api::labels::capi as labels;
use kube::ResourceExt;

use crate::apply::lacks_owner;
use crate::external::External;
use crate::meta;

/// A MachineSet and related objects.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// The set.
    pub set: MachineSet,
    /// Its Cluster.
    pub cluster: Option<Arc<Cluster>>,
    /// The deployment that owns it.
    pub deployment: Option<Arc<MachineDeployment>>,
    /// Its Machines, including those that are being deleted: selected, and controlled by it or without a controller.
    pub machines: Vec<Arc<Machine>>,
    /// Template of the bootstrap configs.
    pub bootstrap_template: External,
    /// Template of the infra machines.
    pub infra_template: External,
    /// The Cluster's control plane.
    pub control_plane: External,
    /// Names of clones of this set without a Machine: a creation was interrupted.
    pub unfinished: BTreeSet<String>,
    /// Names of Machines that, with their clones, differ from what the set wants.
    pub outdated: BTreeSet<String>,
}

impl Scope {
    /// The set is being deleted.
    pub fn is_deleting(&self) -> bool {
        meta::is_deleting(&self.set.metadata)
    }

    /// The set or its Cluster is paused.
    pub fn is_paused(&self) -> bool {
        meta::is_paused(self.cluster.as_deref(), &self.set.metadata)
    }

    /// The finalizer is present.
    pub fn has_finalizer(&self) -> bool {
        self.set.finalizers().iter().any(|finalizer| finalizer == finalizers::capi::MACHINE_SET)
    }

    /// No deployment made the set.
    pub fn stands_alone(&self) -> bool {
        meta::controller_of(&self.set.metadata).is_none()
            && meta::label(&self.set.metadata, labels::DEPLOYMENT_NAME).is_none()
    }

    /// The set lacks its label or, if it stands alone, its Cluster as owner.
    pub fn lacks_label(&self) -> bool {
        let label = meta::label(&self.set.metadata, labels::CLUSTER_NAME);
        let cluster = self.cluster.as_deref().filter(|_| self.stands_alone());
        let owned = |cluster: &Cluster| {
            self.set.owner_references().iter().any(|owner| Some(&owner.uid) == cluster.metadata.uid.as_ref())
        };
        label != Some(self.set.spec.cluster_name.as_str()) || !cluster.is_none_or(owned)
    }

    /// A template lacks the Cluster as owner.
    pub fn lacks_template_owner(&self) -> bool {
        let templates = [&self.bootstrap_template, &self.infra_template];
        self.cluster.as_deref().is_some_and(|cluster| templates.iter().any(|t| lacks_owner(cluster, t)))
    }

    /// The set is the newest of its deployment, or has none: only such a set replaces unhealthy Machines, and only
    /// such a set needs its templates.
    pub fn is_current(&self) -> bool {
        let Some(deployment) = &self.deployment else { return true };
        let revision = |meta| meta::annotation(meta, annotations::REVISION).map(str::to_owned);
        revision(&deployment.metadata) == revision(&self.set.metadata)
    }
}
