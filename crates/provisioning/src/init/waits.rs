//! Why a cluster is not as its Cluster says: every refusal and every wait as a value. This file, [`identity`] and the
//! lists of problems of a spec are the only ones with the texts. Those of the original that clients match are its own.

use std::fmt;

use super::twin::identity;

/// Why no objects are generated from a Cluster until a user changes something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Without `rkeConfig`, a Cluster represents an imported cluster, which was provisioned outside Drover.
    Imported,
    /// The id of the management Cluster cannot be used.
    Identity(identity::Refusal),
    /// Every problem of the spec, with its field.
    Spec(Vec<String>),
    /// The API rejects an object as invalid.
    Rejected(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Imported => f.write_str(
                "spec.rkeConfig is missing, which makes this an imported cluster, and Drover does not import clusters yet; to \
                 have a cluster provisioned, set spec.kubernetesVersion and spec.rkeConfig",
            ),
            Self::Identity(refusal) => refusal.fmt(f),
            Self::Spec(problems) => f.write_str(&problems.join("; ")),
            Self::Rejected(error) => f.write_str(error),
        }
    }
}

/// What a cluster waits for, although its control plane may be Ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// A kind of a driver is being listed for the first time.
    Listing { kind: String },
    /// The planner has not seen the spec.
    ControlPlane { name: String },
    /// A pool has too few or too many machines.
    PoolSize { pool: String, wanted: i32, observed: i32 },
    /// A machine is made from a former template.
    Replacement { pool: String, machine: String },
    /// A machine does not have its plan.
    Configuration { pool: String, machine: String },
    /// A machine is being deleted.
    Removal { machine: String },
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listing { kind } => write!(f, "waiting for the objects of kind {kind} to be listed"),
            Self::ControlPlane { name } => {
                write!(f, "waiting for control plane {name} to take up the change")
            }
            Self::PoolSize { pool, wanted, observed } => {
                write!(f, "waiting for pool {pool} to have {wanted} machines, it has {observed}")
            }
            Self::Replacement { pool, machine } => {
                write!(f, "waiting for machine {machine} of pool {pool} to be replaced")
            }
            Self::Configuration { pool, machine } => {
                write!(f, "waiting for machine {machine} of pool {pool} to be configured")
            }
            Self::Removal { machine } => write!(f, "waiting for machine {machine} to be removed"),
        }
    }
}

/// What the removal of a cluster waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocked {
    ManagementCluster { id: String },
    Namespace { id: String },
    ControlPlane { name: String },
    CapiCluster { name: String },
    Machines(Vec<MachineBlock>),
    Kubeconfig,
}

/// A Machine that is being deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineBlock {
    pub name: String,
    pub internal_error: bool,
    /// What it reports about its deletion.
    pub message: String,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ManagementCluster { id } => write!(f, "waiting for management cluster [{id}] to delete"),
            Self::Namespace { id } => write!(f, "waiting for namespace [{id}] to delete"),
            Self::ControlPlane { name } => write!(f, "waiting for control plane [{name}] to delete"),
            Self::CapiCluster { name } => write!(f, "waiting for cluster-api cluster [{name}] to delete"),
            Self::Machines(machines) => {
                let texts: Vec<String> = machines.iter().map(MachineBlock::to_string).collect();
                f.write_str(&texts.join("; "))
            }
            Self::Kubeconfig => f.write_str("waiting for the cluster's kubeconfig to delete"),
        }
    }
}

impl fmt::Display for MachineBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        if self.internal_error {
            write!(f, "error deleting machine [{name}], machine must be deleted manually")?;
        } else {
            write!(f, "waiting for machine [{name}] to delete")?;
        }
        if self.message.is_empty() { Ok(()) } else { write!(f, " ({})", self.message) }
    }
}
