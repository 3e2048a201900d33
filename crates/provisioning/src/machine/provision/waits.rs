//! What an infra machine waits for. This file is the only one with the texts; those of the original are its own.

use std::fmt;

use drover_api::wait::{Wait, WaitObject};
use drover_runtime::ObjectKey;

/// A wait. All objects but that of a namesake are in the machine's own namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// No Machine owns the infra machine.
    Machine,
    /// The Machine's Cluster is not known.
    Cluster { name: String },
    /// The Cluster or the Machine is paused.
    Paused { cluster: String },
    /// The infrastructure of the cluster is not ready.
    Infrastructure { cluster: String },
    /// The Machine has no bootstrap data.
    BootstrapData { machine: String },
    /// Another machine claims the same name of a server or of a host.
    Namesake { machine: ObjectKey },
    /// A Job of an earlier attempt is being deleted.
    FormerJob { job: String },
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine => f.write_str("waiting for its Machine"),
            Self::Cluster { .. } => f.write_str("waiting for its Cluster"),
            Self::Paused { .. } => f.write_str("the cluster is paused"),
            Self::Infrastructure { .. } => f.write_str("waiting for cluster infrastructure to be ready"),
            Self::BootstrapData { .. } => f.write_str("waiting for bootstrap data"),
            Self::Namesake { machine } => write!(
                f,
                "waiting for machine {machine} to be deleted: both servers would have the same name; delete this \
                 Machine to get one with another name"
            ),
            Self::FormerJob { .. } => f.write_str("waiting for the previous Job to be deleted"),
        }
    }
}

/// The record of a wait of the infra machine `own`.
pub fn record(waiting: &Waiting, own: &WaitObject) -> Wait {
    let beside = |kind: &str, name: &str| WaitObject::new(kind, &own.namespace, name);
    match waiting {
        Waiting::Machine => Wait::new("WaitingForMachine", own.clone(), waiting)
            .expected("a Machine owns it")
            .observed("its owner does not exist, or is not known yet"),
        Waiting::Cluster { name } => {
            Wait::new("WaitingForCluster", beside("Cluster", name), waiting).expected("it exists")
        }
        Waiting::Paused { cluster } => Wait::new("Paused", beside("Cluster", cluster), waiting)
            .expected("neither it nor the Machine is paused")
            .remedy("end the pause"),
        Waiting::Infrastructure { cluster } => {
            Wait::new("WaitingForInfrastructure", beside("Cluster", cluster), waiting)
                .expected("the cluster infrastructure is provisioned")
        }
        Waiting::BootstrapData { machine } => {
            Wait::new("WaitingForBootstrapData", beside("Machine", machine), waiting)
                .expected("its bootstrap provider created the bootstrap secret")
        }
        Waiting::Namesake { machine } => {
            let object = WaitObject::new(&own.kind, &machine.namespace, &machine.name);
            Wait::new("WaitingForName", object, waiting)
                .expected("it is deleted")
                .observed("both servers would have the same name")
                .remedy("delete this Machine to get one with another name")
        }
        Waiting::FormerJob { job } => {
            Wait::new("WaitingForJobDeletion", beside("Job", job), waiting).expected("it is deleted")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wait_names_what_it_waits_for() {
        let name = || "x".to_owned();
        let all = [
            Waiting::Machine,
            Waiting::Cluster { name: name() },
            Waiting::Paused { cluster: name() },
            Waiting::Infrastructure { cluster: name() },
            Waiting::BootstrapData { machine: name() },
            Waiting::Namesake { machine: ObjectKey::new("other", "x") },
            Waiting::FormerJob { job: name() },
        ];
        let own = WaitObject::new("LocalMachine", "default", "m");
        let records: Vec<Wait> = all.iter().map(|waiting| record(waiting, &own)).collect();
        let reasons: std::collections::BTreeSet<&str> =
            records.iter().map(|wait| wait.reason.as_str()).collect();
        assert_eq!(reasons.len(), all.len(), "{reasons:?}");
        assert!(records.iter().all(|wait| !wait.expected.is_empty() && !wait.object.name.is_empty()));
        assert_eq!(records[5].object, WaitObject::new("LocalMachine", "other", "x"));
    }
}
