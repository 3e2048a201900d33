//! The message of the condition `Deleting`, by stage.

use std::fmt;

use super::Shown;
use crate::cluster::decide::Stage as ClusterStage;
use crate::machine::deletion::Stage as MachineStage;

/// The message when only the finalizer is left.
pub(crate) const DELETION_COMPLETED: &str = "Deletion completed";

impl fmt::Display for MachineStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PreDrainHook(hooks) | Self::PreTerminateHook(hooks) => {
                write!(f, "waiting for the annotations {} to be removed", hooks.join(", "))
            }
            Self::Draining { node, plan, .. } => {
                write!(f, "Drain of Node {node} not completed yet")?;
                for (what, pods) in [
                    ("being evicted", &plan.evict),
                    ("being deleted", &plan.leaving),
                    ("waited for until completed", &plan.completing),
                ] {
                    if !pods.is_empty() {
                        write!(f, "\n* {what}: {}", Shown { items: pods, most: 3 })?;
                    }
                }
                Ok(())
            }
            Self::DrainBlocked(why)
            | Self::InfrastructureBlocked(why)
            | Self::BootstrapBlocked(why)
            | Self::NodeBlocked(why) => why.fmt(f),
            Self::VolumeDetach(volumes) => {
                write!(f, "waiting for volumes to be detached: {}", volumes.join(", "))
            }
            Self::Infrastructure { .. } => f.write_str("waiting for the infra machine to be deleted"),
            Self::Bootstrap { .. } => f.write_str("waiting for the bootstrap config to be deleted"),
            Self::Node(name) => write!(f, "deleting Node {name}"),
            Self::Done => f.write_str(DELETION_COMPLETED),
        }
    }
}

impl fmt::Display for ClusterStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workers(left) => {
                write!(f, "waiting for {} to be deleted", Shown { items: left, most: 5 })
            }
            Self::ControlPlane => f.write_str("waiting for the control plane to be deleted"),
            Self::Infrastructure => f.write_str("waiting for the infrastructure to be deleted"),
            Self::Blocked(why) => why.fmt(f),
            Self::Done => f.write_str(DELETION_COMPLETED),
        }
    }
}
