//! The roles of a custom machine, as flags of the command, headers of a call, labels of a Machine and terms of a token
//! spell them. Pure.

use std::collections::BTreeMap;
use std::fmt;

use crate::keys::labels;
use crate::machine::unmanaged::{Request, all};

/// Roles of a custom machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    pub etcd: bool,
    pub control_plane: bool,
    pub worker: bool,
}

impl Roles {
    /// Reads `worker,etcd,controlplane`, in any order. An empty list is a mistake: it would be a token for nothing.
    pub fn parse(list: &str) -> Result<Self, String> {
        let mut roles = Self::default();
        for word in list.split(',').map(str::trim) {
            match word {
                "worker" => roles.worker = true,
                "etcd" => roles.etcd = true,
                "controlplane" => roles.control_plane = true,
                _ => return Err(format!("{word:?} is not a role: use worker, etcd or controlplane")),
            }
        }
        Ok(roles)
    }

    /// What a machine asks for.
    pub fn of_request(request: &Request) -> Self {
        let has = |role: &str| all(request, role).iter().any(|value| value == "true");
        Self { etcd: has("role-etcd"), control_plane: has("role-control-plane"), worker: has("role-worker") }
    }

    /// What a Machine is.
    pub fn of_labels(marks: &BTreeMap<String, String>) -> Self {
        let has = |role: &str| marks.get(role).is_some_and(|value| value == "true");
        Self {
            etcd: has(labels::ETCD_ROLE),
            control_plane: has(labels::CONTROL_PLANE_ROLE),
            worker: has(labels::WORKER_ROLE),
        }
    }

    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Whether the machine becomes a part of the control plane, which holds every secret of its cluster.
    pub fn is_server(self) -> bool {
        self.etcd || self.control_plane
    }

    /// Those that `allowed` does not have.
    pub fn beyond(self, allowed: Self) -> Self {
        Self {
            etcd: self.etcd && !allowed.etcd,
            control_plane: self.control_plane && !allowed.control_plane,
            worker: self.worker && !allowed.worker,
        }
    }

    /// In the order in which they are written.
    pub fn names(self) -> Vec<&'static str> {
        [(self.etcd, "etcd"), (self.control_plane, "controlplane"), (self.worker, "worker")]
            .into_iter()
            .filter_map(|(has, name)| has.then_some(name))
            .collect()
    }

    /// As arguments of the command.
    pub fn flags(self) -> String {
        self.names().iter().map(|name| format!("--{name}")).collect::<Vec<_>>().join(" ")
    }
}

/// In a sentence: `etcd, controlplane and worker`.
impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.names()[..] {
            [] => f.write_str("none"),
            [only] => f.write_str(only),
            [first @ .., last] => write!(f, "{} and {last}", first.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_read_strictly() {
        let both = Roles { etcd: true, worker: true, ..Roles::default() };
        assert_eq!(Roles::parse("worker, etcd"), Ok(both));
        assert_eq!(both.names().join(","), "etcd,worker");
        assert_eq!(Roles::parse(&both.names().join(",")), Ok(both));
        for list in ["", "worker,", "all", "control-plane", "Worker"] {
            assert!(Roles::parse(list).is_err(), "{list}");
        }
        let all = Roles::parse("etcd,controlplane,worker").unwrap();
        assert_eq!(
            (all.to_string(), all.flags()),
            ("etcd, controlplane and worker".to_owned(), "--etcd --controlplane --worker".to_owned())
        );
    }

    #[test]
    fn roles_beyond_what_is_allowed() {
        let worker = Roles { worker: true, ..Roles::default() };
        let all = Roles { etcd: true, control_plane: true, worker: true };
        assert!(worker.beyond(all).is_empty());
        assert_eq!(all.beyond(worker).to_string(), "etcd and controlplane");
        assert!(all.is_server() && !worker.is_server());
    }
}
