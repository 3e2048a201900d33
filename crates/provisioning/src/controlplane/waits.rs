//! Why a control plane is not Ready: every wait and every failure of the planner as a value. This file is the only one with
//! the texts. Those of the original that clients match are its own, byte for byte.

use std::fmt;

use serde::Serialize;

use crate::plansecret::failure::with_reason;

/// What a pass waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Waiting {
    /// No release data for the version; `known` are the versions that there is some for.
    Release {
        control_plane: String,
        version: String,
        known: Vec<String>,
    },
    /// The CAPI Cluster does not exist.
    Cluster,
    /// The cluster infrastructure is not provisioned.
    Infrastructure,
    Paused,
    /// Machines of a role went away; the control plane is marked as not initialized.
    Uninitializing {
        control_plane: String,
    },
    /// No machine has one of these roles.
    Roles {
        missing: Vec<Role>,
    },
    /// All etcd machines are being deleted.
    EtcdDeletion,
    /// None of the etcd machines has the cluster's data.
    EtcdReplaced,
    /// No etcd machine can start the cluster yet.
    InitNode,
    /// The init node that a person asked for is not there.
    DesignatedInitNode {
        machine_id: String,
    },
    /// The cluster has no registration token yet.
    RegistrationToken,
    /// A tier without machines.
    NoMachine {
        tier: &'static str,
    },
    /// Machines of a tier.
    Machines(Group),
    /// The init node has no URL that others could join; `after` is what the node itself waits for.
    JoinUrl {
        init_node: String,
        after: Option<Group>,
        why: String,
    },
    /// No control plane machine can be joined.
    ControlPlane,
    /// The status is being written; the next pass goes on.
    Initialized,
}

/// A role of machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Role {
    Etcd,
    ControlPlane,
    Worker,
}

/// What happens to machines of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Activity {
    Uncordoning,
    Draining,
    Configuring,
    Failing,
    NonReady,
    /// They have their plan, but their health cannot be read.
    Unknown,
}

/// Machines of a tier that are waited for alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    pub tier: &'static str,
    pub activity: Activity,
    pub machines: Vec<MachineWait>,
}

/// One machine that is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MachineWait {
    pub machine: String,
    pub details: Vec<Detail>,
}

/// What one machine is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Detail {
    /// An etcd machine waits for the first one.
    BootstrapEtcd,
    Etcd,
    ControlPlane,
    /// The agent has not applied a plan yet; with its last failure.
    FirstPlan {
        failure: String,
    },
    /// The plan itself carries an error.
    PlanError(String),
    /// The agent cannot apply the plan.
    PlanFailed {
        failure: String,
    },
    Probes(Vec<String>),
    Plan,
    Kubelet,
    ClusterAgent,
    /// Cluster API says that the machine has failed.
    MachineFailed(String),
    /// Cluster API says that the machine is not ready.
    MachineNotReady(String),
    /// Keys of the plan secret hold what they are not for.
    Unreadable(String),
    /// Pods cannot be drained.
    Drain {
        machine: String,
        error: String,
    },
    /// There is no server to join yet.
    NoServer,
    /// The plan cannot be made.
    Render(String),
}

/// What a pass prepared; the next one goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Prepared {
    Finalizer,
    JoinTokens,
    InitNode,
}

/// What a person has to mend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Failure {
    Version {
        version: String,
        error: String,
    },
    /// The secret with the join tokens is of another type.
    StateSecretType {
        secret: String,
        type_: String,
    },
    /// The secret with the join tokens was deleted.
    StateSecretMissing {
        secret: String,
    },
    /// `machineSelectorFiles` refers to something that cannot be used.
    Files(String),
    Concurrency(String),
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Release { control_plane, version, known } => write!(
                f,
                "{control_plane}: KDM release data is empty for {version}: set spec.kubernetesVersion to one of {}",
                known.join(", ")
            ),
            Self::Cluster => f.write_str("CAPI cluster does not exist"),
            Self::Infrastructure => f.write_str("waiting for infrastructure ready"),
            Self::Paused => f.write_str("CAPI cluster or RKEControlPlane is paused"),
            Self::Uninitializing { control_plane } => write!(f, "uninitializing rkecontrolplane {control_plane}"),
            Self::Roles { missing } => {
                let missing: Vec<String> = missing.iter().map(Role::to_string).collect();
                write!(
                    f,
                    "waiting for at least one control plane, etcd, and worker node to be registered: no machine is {} \
                     yet",
                    missing.join(" or ")
                )
            }
            Self::EtcdDeletion => f.write_str("waiting for all etcd machines to be deleted"),
            Self::EtcdReplaced => f.write_str(
                "rkecontrolplane was already initialized but no etcd machines exist that have plans, indicating the \
                 etcd plane has been entirely replaced. Restoration from etcd snapshot is required. (Drover cannot \
                 restore snapshots yet: delete and recreate the Cluster.)",
            ),
            Self::InitNode => f.write_str("waiting for viable init node"),
            Self::DesignatedInitNode { machine_id } => {
                write!(f, "unable to find designated init node matching machine ID {machine_id}")
            }
            Self::RegistrationToken => f.write_str("waiting for the cluster's registration token"),
            Self::NoMachine { tier } => write!(f, "waiting for at least one {tier} node"),
            Self::Machines(group) => group.fmt(f),
            Self::JoinUrl { after, why, .. } => {
                let what = match after {
                    Some(group) => format!("{group} and join url to be available on bootstrap node"),
                    None => "waiting for join url to be available on bootstrap node".to_owned(),
                };
                f.write_str(&with_reason(&what, why))
            }
            Self::ControlPlane => Detail::ControlPlane.fmt(f),
            Self::Initialized => f.write_str("marking control plane as initialized"),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Etcd => "etcd",
            Self::ControlPlane => "control plane",
            Self::Worker => "worker",
        })
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, noun) = match self.activity {
            Activity::Uncordoning => ("uncordoning", "node(s)"),
            Activity::Draining => ("draining", "node(s)"),
            Activity::Configuring => ("configuring", "node(s)"),
            Activity::Failing => ("failing", "machine(s)"),
            Activity::NonReady => ("non-ready", "machine(s)"),
            Activity::Unknown => ("unknown", "machine(s)"),
        };
        let names: Vec<&str> = self.machines.iter().map(|wait| wait.machine.as_str()).collect();
        write!(f, "{verb} {} {noun} {}", self.tier, at_most_three(&names))?;
        match &self.machines[..] {
            [only] if !only.details.is_empty() => write!(f, ": {only}"),
            _ => Ok(()),
        }
    }
}

impl Group {
    /// What one of its machines shows.
    pub fn message(&self, wait: &MachineWait) -> String {
        if wait.details.is_empty() { self.to_string() } else { wait.to_string() }
    }
}

/// The details, with commas between.
impl fmt::Display for MachineWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let details: Vec<String> = self.details.iter().map(Detail::to_string).collect();
        f.write_str(&details.join(", "))
    }
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BootstrapEtcd => f.write_str("waiting for bootstrap etcd to be available"),
            Self::Etcd => f.write_str("waiting for etcd to be available"),
            Self::ControlPlane => f.write_str("waiting for control plane to be available"),
            Self::FirstPlan { failure } => {
                f.write_str(&with_reason("waiting for agent to check in and apply initial plan", failure))
            }
            Self::PlanFailed { failure } => f.write_str(&with_reason("failure while applying plan", failure)),
            Self::Probes(names) => write!(f, "waiting for probes: {}", probe_names(names)),
            Self::Plan => f.write_str("waiting for plan to be applied"),
            Self::Kubelet => f.write_str("waiting for kubelet to update"),
            Self::ClusterAgent => f.write_str("waiting for cluster agent to connect"),
            Self::Drain { machine, error } => write!(f, "error draining machine {machine}: {error}"),
            Self::NoServer => f.write_str("no control plane node with a join url is available"),
            Self::PlanError(text)
            | Self::MachineFailed(text)
            | Self::MachineNotReady(text)
            | Self::Unreadable(text)
            | Self::Render(text) => f.write_str(text),
        }
    }
}

impl fmt::Display for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Finalizer => "added the finalizer",
            Self::JoinTokens => "created the cluster's join tokens",
            Self::InitNode => "init node changed",
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version { version, error } => {
                write!(f, "kubernetesVersion {version:?} is not a version: {error}")
            }
            Self::StateSecretType { secret, type_ } => {
                write!(f, "secret {secret} has type {type_:?} instead of rke.cattle.io/cluster-state")
            }
            Self::StateSecretMissing { secret } => write!(
                f,
                "secret {secret} is missing although plans were delivered: restore it from a backup, its tokens cannot \
                 be created again"
            ),
            Self::Files(text) | Self::Concurrency(text) => f.write_str(text),
        }
    }
}

/// The machine chose the names, and their number.
fn probe_names(names: &[String]) -> String {
    const MOST: usize = 8;
    let short = |name: &String| name.chars().take(63).collect::<String>();
    let told = names.iter().take(MOST).map(short).collect::<Vec<_>>().join(", ");
    if names.len() <= MOST { told } else { format!("{told} and {} more", names.len() - MOST) }
}

fn at_most_three(names: &[&str]) -> String {
    if names.len() <= 3 {
        return names.join(",");
    }
    format!("{} and {} more", names[..3].join(","), names.len() - 3)
}
