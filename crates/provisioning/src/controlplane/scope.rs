//! Everything a pass over an RKEControlPlane looks at.

use std::collections::BTreeMap;
use std::sync::Arc;

use drover_api::rke::v1::{RKEControlPlaneSpec, RKEControlPlaneStatus};

use super::planner::entry::Entry;
use super::planner::releases::Releases;
use super::planner::render::Tokens;
use super::planner::render::addresses::Addresses;
use super::planner::render::selector_files::FileObjects;
use crate::settings::Settings;

/// An RKEControlPlane and what surrounds it.
#[derive(Clone, Debug)]
pub struct Scope {
    pub namespace: String,
    pub name: String,
    pub generation: i64,
    /// Our finalizer is there.
    pub has_finalizer: bool,
    /// Machine id that a person designated as init node.
    pub designated_init_node: String,
    /// Annotation `rke.cattle.io/cluster-spec`.
    pub cluster_spec_annotation: String,
    /// Annotation `cluster.x-k8s.io/paused` is present.
    pub paused: bool,
    pub spec: RKEControlPlaneSpec,
    pub status: RKEControlPlaneStatus,
    pub cluster: Option<CapiCluster>,
    /// By Machine name.
    pub entries: Vec<Entry>,
    pub state_secret: StateSecret,
    pub releases: Arc<Releases>,
    pub settings: Settings,
    pub machine_addresses: BTreeMap<String, Addresses>,
    /// What `machineSelectorFiles` refers to.
    pub file_objects: FileObjects,
    /// None while the cluster has no registration token.
    pub cluster_agent_manifest: Option<String>,
    /// The management cluster is connected.
    pub connected: bool,
}

impl Scope {
    /// `namespace/name`, as messages have it.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// The owning CAPI Cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapiCluster {
    pub name: String,
    pub deleting: bool,
    pub paused: bool,
    pub infrastructure_provisioned: bool,
}

/// The secret that holds the cluster's join tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateSecret {
    Missing,
    /// There is one, but of another type.
    Foreign(String),
    Found(Tokens),
}
