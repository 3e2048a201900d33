//! Everything that these controllers wait for or fail with, as values. Their texts are only here.
//!
//! The CRDs are Cluster API's, so the values are stored as conditions, with a reason and the text as the message.
//! [`of_condition`] converts a condition back for `drover why`.

mod deletion;
mod read;
#[cfg(test)]
mod tests;

use std::fmt;

use drover_api::annotations::capi as annotations;
use drover_api::capi::v1beta2::ContractVersionedObjectReference;

use crate::admission::NO_TOPOLOGY;
use crate::contract::ResolveError;

pub(crate) use deletion::DELETION_COMPLETED;
pub use read::{is_negative, of_condition};

/// A provider's object, from a reference.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Subject {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
}

impl From<&ContractVersionedObjectReference> for Subject {
    fn from(reference: &ContractVersionedObjectReference) -> Self {
        Self { kind: reference.kind.clone(), name: reference.name.clone() }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// Why an object is not complete, or why nothing is created or deleted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Hold {
    /// A Machine has no source of bootstrap data.
    NoBootstrap,
    /// A Cluster with a topology has no objects of its own.
    NoTopology,
    /// A reference cannot be resolved.
    Unresolvable(ResolveError),
    /// An object existed and was deleted.
    Deleted(Subject),
    /// An object does not exist yet.
    Missing(Subject),
    /// The infrastructure was deleted after it had been provisioned.
    Lost(Subject),
    /// An object reports a condition with an invalid status.
    InvalidStatus {
        /// The object.
        subject: Subject,
        /// Type of the condition.
        condition: String,
        /// The status.
        status: String,
    },
    /// A bootstrap config has not created its data.
    NoData(Subject),
    /// A bootstrap config has created its data, but does not refer to the Secret.
    NoDataSecret(Subject),
    /// An infra machine has no provider id.
    NoProviderId(Subject),
    /// The infrastructure is not provisioned.
    NotProvisioned(Subject),
    /// The control plane is not initialized.
    NotInitialized(Subject),
    /// The same in a cluster without a control plane object.
    NoControlPlaneNode,
    /// The control plane of such a cluster is not available.
    ControlPlaneNotInitialized,
    /// The cluster cannot be reached; the text comes from the connection.
    Disconnected(String),
    /// Several Nodes have one provider id.
    SeveralNodes(Vec<String>),
    /// The Node was deleted.
    NodeDeleted(String),
    /// No Node has the provider id.
    NoNode {
        /// The provider id.
        provider_id: String,
    },
    /// There is no provider id yet.
    NodeNotSought {
        /// Kind of the infra machine.
        kind: String,
    },
    /// The content of a Node could not be read; the text comes from the cluster's API.
    Unreadable(String),
    /// A drain cannot continue.
    DrainBlocked(Box<Hold>),
    /// The object was stored, but is invalid.
    Invalid(String),
    /// An annotation forbids creating Machines.
    CreateDisabled,
    /// The control plane has no version yet.
    ControlPlaneProvisioning,
    /// The control plane is being upgraded.
    ControlPlaneUpgrading {
        /// Its version.
        from: String,
        /// The version that it is upgraded to.
        to: String,
    },
    /// The Machines would be newer than the control plane.
    TooNew {
        /// Version of the Machines.
        version: String,
        /// Version of the control plane.
        control_plane: String,
    },
    /// The Machines would be too old for the control plane.
    TooOld {
        /// Version of the Machines.
        version: String,
        /// Version of the control plane.
        control_plane: String,
    },
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoBootstrap => f.write_str("spec.bootstrap has neither configRef nor dataSecretName"),
            Self::NoTopology => f.write_str(NO_TOPOLOGY),
            Self::Unresolvable(error) => error.fmt(f),
            Self::Deleted(subject) => write!(f, "{subject} has been deleted"),
            Self::Missing(subject) => write!(f, "{subject} does not exist"),
            Self::Lost(subject) => write!(f, "{subject} was deleted after it had been provisioned"),
            Self::InvalidStatus { subject, condition, status } => {
                write!(f, "{subject} reports {condition} with the invalid status {status:?}")
            }
            Self::NoData(subject) => write!(f, "waiting for {subject} to report its data as created"),
            Self::NoDataSecret(subject) => {
                write!(f, "{subject} reports its data as created, but status.dataSecretName is not set")
            }
            Self::NoProviderId(subject) => write!(f, "waiting for {subject} to set spec.providerID"),
            Self::NotProvisioned(subject) => {
                write!(f, "waiting for {subject} to report itself as provisioned")
            }
            Self::NotInitialized(subject) => {
                write!(f, "waiting for {subject} to report its control plane as initialized")
            }
            Self::NoControlPlaneNode => {
                f.write_str("waiting for the first control-plane Machine to have a Node")
            }
            Self::ControlPlaneNotInitialized => {
                f.write_str("waiting for the control plane to be initialized")
            }
            Self::Disconnected(why) | Self::Unreadable(why) | Self::Invalid(why) => f.write_str(why),
            Self::SeveralNodes(names) => {
                write!(f, "Nodes {} have the same provider ID", names.join(", "))
            }
            Self::NodeDeleted(name) => write!(f, "Node {name} has been deleted"),
            Self::NoNode { provider_id } => {
                write!(f, "waiting for a Node with spec.providerID {provider_id} to exist")
            }
            Self::NodeNotSought { kind } => write!(f, "waiting for {kind} to report spec.providerID"),
            Self::DrainBlocked(why) => write!(
                f,
                "{why}; to continue without draining, set spec.deletion.nodeDrainTimeoutSeconds or the annotation {}",
                annotations::EXCLUDE_NODE_DRAINING
            ),
            Self::CreateDisabled => {
                write!(f, "the annotation {} is set", annotations::DISABLE_MACHINE_CREATE)
            }
            Self::ControlPlaneProvisioning => {
                f.write_str("the control plane is provisioning (ControlPlaneIsStable)")
            }
            Self::ControlPlaneUpgrading { from, to } => {
                write!(f, "the control plane is upgrading from {from} to {to} (ControlPlaneIsStable)")
            }
            Self::TooNew { version, control_plane } => write!(
                f,
                "version {version} is newer than the control plane's {control_plane} (KubernetesVersionSkew)"
            ),
            Self::TooOld { version, control_plane } => write!(
                f,
                "version {version} is more than three minors older than the control plane's {control_plane} \
                 (KubernetesVersionSkew)"
            ),
        }
    }
}

/// Why a MachineSet deletes a Machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DeleteReason {
    /// The set itself is being deleted.
    SetDeleted,
    /// There are more Machines than replicas.
    Surplus,
    /// A health check found it unhealthy.
    Unhealthy,
}

impl fmt::Display for DeleteReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SetDeleted => "the MachineSet is being deleted",
            Self::Surplus => "the MachineSet has too many Machines",
            Self::Unhealthy => "the Machine is unhealthy",
        })
    }
}

/// Names, of which only the first few are shown.
pub(crate) struct Shown<'a, T> {
    pub(crate) items: &'a [T],
    pub(crate) most: usize,
}

impl<T: fmt::Display> fmt::Display for Shown<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, item) in self.items.iter().take(self.most).enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{item}")?;
        }
        match self.items.len().saturating_sub(self.most) {
            0 => Ok(()),
            more => write!(f, ", ... ({more} more)"),
        }
    }
}
