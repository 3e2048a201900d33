//! The order of a removal: management Cluster, Cluster API objects with their machines, the namespace, the kubeconfig; then
//! the finalizers. One step per pass, of what the API itself still has; nothing is remembered between passes. Pure.

use super::super::waits::{Blocked, MachineBlock};

/// What still exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remaining {
    pub twin: Existence,
    pub management_namespace: Existence,
    /// The namespace is this cluster's, but only the management Cluster, which is deleted first, proves it.
    pub namespace_unmarked: bool,
    pub capi_cluster: Existence,
    pub control_plane: bool,
    /// Machines that still exist.
    pub machines: Vec<MachineBlock>,
    /// Generated objects that Cluster API does not own.
    pub generated: Vec<Leftover>,
    pub kubeconfig_secret: Existence,
}

/// Whether an object is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existence {
    #[default]
    Gone,
    Deleting,
    Present,
}

/// A generated object that is still there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    pub kind: GeneratedKind,
    pub name: String,
}

/// Kinds that are generated in the namespace of the Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GeneratedKind {
    /// A driver's machine template.
    Template(String),
    Deployment,
    HealthCheck,
    RKECluster,
    ControlPlane,
    BootstrapTemplate,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    MarkNamespace,
    DeleteTwin,
    DeleteManagementNamespace,
    DeleteCapiCluster,
    DeleteGenerated,
    DeleteKubeconfig,
    Wait(Blocked),
    /// Nothing is left; the finalizers are removed.
    Done,
}

/// Decides the next step.
pub fn next(cluster: &str, id: &str, remaining: &Remaining) -> Step {
    if remaining.namespace_unmarked {
        return Step::MarkNamespace;
    }
    match remaining.twin {
        Existence::Present => return Step::DeleteTwin,
        Existence::Deleting => {
            return Step::Wait(Blocked::ManagementCluster { id: id.to_owned() });
        }
        Existence::Gone => {}
    }
    match remaining.capi_cluster {
        Existence::Present => return Step::DeleteCapiCluster,
        Existence::Deleting => {
            let name = cluster.to_owned();
            return Step::Wait(if !remaining.machines.is_empty() {
                Blocked::Machines(remaining.machines.clone())
            } else if remaining.control_plane {
                Blocked::ControlPlane { name }
            } else {
                Blocked::CapiCluster { name }
            });
        }
        Existence::Gone => {}
    }
    if !remaining.machines.is_empty() {
        return Step::Wait(Blocked::Machines(remaining.machines.clone()));
    }
    if !remaining.generated.is_empty() {
        return Step::DeleteGenerated;
    }
    match remaining.management_namespace {
        Existence::Present => return Step::DeleteManagementNamespace,
        Existence::Deleting => {
            return Step::Wait(Blocked::Namespace { id: id.to_owned() });
        }
        Existence::Gone => {}
    }
    match remaining.kubeconfig_secret {
        Existence::Gone => Step::Done,
        Existence::Deleting => Step::Wait(Blocked::Kubeconfig),
        Existence::Present => Step::DeleteKubeconfig,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provisioning_check_35_order_of_removal() {
        let mut left = Remaining {
            twin: Existence::Present,
            management_namespace: Existence::Present,
            namespace_unmarked: true,
            capi_cluster: Existence::Present,
            control_plane: true,
            machines: ["m1", "m2"]
                .map(|name| MachineBlock { name: name.into(), ..MachineBlock::default() })
                .into(),
            generated: vec![Leftover {
                kind: GeneratedKind::Template("LocalMachineTemplate".into()),
                name: "demo-w-1".into(),
            }],
            kubeconfig_secret: Existence::Present,
        };
        let step = |left: &Remaining| next("demo", "c-m-x", left);
        let waits = |left: &Remaining| match step(left) {
            Step::Wait(blocked) => blocked.to_string(),
            other => panic!("{other:?}"),
        };
        assert_eq!(step(&left), Step::MarkNamespace);
        left.namespace_unmarked = false;
        assert_eq!(step(&left), Step::DeleteTwin);
        left.twin = Existence::Deleting;
        assert_eq!(waits(&left), "waiting for management cluster [c-m-x] to delete");
        left.twin = Existence::Gone;
        assert_eq!(step(&left), Step::DeleteCapiCluster);
        left.capi_cluster = Existence::Deleting;
        let text = "waiting for machine [m1] to delete; waiting for machine [m2] to delete";
        assert_eq!(waits(&left), text);
        left.machines =
            vec![MachineBlock { name: "m1".into(), internal_error: true, message: "no API".into() }];
        let text = "error deleting machine [m1], machine must be deleted manually (no API)";
        assert_eq!(waits(&left), text);
        left.machines.clear();
        assert_eq!(waits(&left), "waiting for control plane [demo] to delete");
        left.control_plane = false;
        assert_eq!(waits(&left), "waiting for cluster-api cluster [demo] to delete");
        left.capi_cluster = Existence::Gone;
        assert_eq!(step(&left), Step::DeleteGenerated);
        left.generated.clear();
        assert_eq!(step(&left), Step::DeleteManagementNamespace);
        left.management_namespace = Existence::Gone;
        assert_eq!(step(&left), Step::DeleteKubeconfig);
        left.kubeconfig_secret = Existence::Gone;
        assert_eq!(step(&left), Step::Done);
    }

    #[test]
    fn provisioning_check_34_a_cluster_deleted_at_once_still_takes_its_capi_cluster_along() {
        let left = Remaining { capi_cluster: Existence::Present, ..Remaining::default() };
        assert_eq!(next("demo", "c-m-x", &left), Step::DeleteCapiCluster);
        assert_eq!(next("demo", "c-m-x", &Remaining::default()), Step::Done);
    }
}
