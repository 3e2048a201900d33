//! Removal of a cluster: twin, Cluster API objects, machines, the kubeconfig's user; then the finalizers.
//! Every step asks the API itself, not a cache, and nothing is remembered between passes.

/// What still exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remaining {
    pub twin: Existence,
    pub management_namespace: Existence,
    /// The namespace is this cluster's, but only the management Cluster, which is deleted first, proves it.
    pub namespace_unmarked: bool,
    pub capi_cluster: Existence,
    pub control_plane: bool,
    /// Machines that block, each with what it says about its deletion.
    pub machines: Vec<(String, MachineBlock)>,
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

/// What a machine says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineBlock {
    pub internal_error: bool,
    pub message: String,
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
    Wait(String),
    /// Everything is gone; the finalizers may go.
    Done,
}

/// Decides the next step.
pub fn next(cluster: &str, management_name: &str, remaining: &Remaining) -> Step {
    if remaining.namespace_unmarked {
        return Step::MarkNamespace;
    }
    match remaining.twin {
        Existence::Present => return Step::DeleteTwin,
        Existence::Deleting => {
            return Step::Wait(format!("waiting for management cluster [{management_name}] to delete"));
        }
        Existence::Gone => {}
    }
    match remaining.capi_cluster {
        Existence::Present => return Step::DeleteCapiCluster,
        Existence::Deleting => {
            return Step::Wait(if !remaining.machines.is_empty() {
                machines_message(&remaining.machines)
            } else if remaining.control_plane {
                format!("waiting for control plane [{cluster}] to delete")
            } else {
                format!("waiting for cluster-api cluster [{cluster}] to delete")
            });
        }
        Existence::Gone => {}
    }
    if !remaining.machines.is_empty() {
        return Step::Wait(machines_message(&remaining.machines));
    }
    if !remaining.generated.is_empty() {
        return Step::DeleteGenerated;
    }
    match remaining.management_namespace {
        Existence::Present => return Step::DeleteManagementNamespace,
        Existence::Deleting => {
            return Step::Wait(format!("waiting for namespace [{management_name}] to delete"));
        }
        Existence::Gone => {}
    }
    match remaining.kubeconfig_secret {
        Existence::Gone => Step::Done,
        Existence::Deleting => Step::Wait("waiting for the cluster's kubeconfig to delete".to_owned()),
        Existence::Present => Step::DeleteKubeconfig,
    }
}

/// All blocking machines, with their reasons.
pub fn machines_message(machines: &[(String, MachineBlock)]) -> String {
    let parts: Vec<String> = machines
        .iter()
        .map(|(name, block)| {
            let base = if block.internal_error {
                format!("error deleting machine [{name}], machine must be deleted manually")
            } else {
                format!("waiting for machine [{name}] to delete")
            };
            if block.message.is_empty() { base } else { format!("{base} ({})", block.message) }
        })
        .collect();
    parts.join("; ")
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
            machines: vec![("m1".into(), MachineBlock::default()), ("m2".into(), MachineBlock::default())],
            generated: vec![Leftover {
                kind: GeneratedKind::Template("LocalMachineTemplate".into()),
                name: "demo-w-1".into(),
            }],
            kubeconfig_secret: Existence::Present,
        };
        let step = |left: &Remaining| next("demo", "c-m-x", left);
        assert_eq!(step(&left), Step::MarkNamespace);
        left.namespace_unmarked = false;
        assert_eq!(step(&left), Step::DeleteTwin);
        left.twin = Existence::Deleting;
        assert_eq!(step(&left), Step::Wait("waiting for management cluster [c-m-x] to delete".into()));
        left.twin = Existence::Gone;
        assert_eq!(step(&left), Step::DeleteCapiCluster);
        left.capi_cluster = Existence::Deleting;
        let text = "waiting for machine [m1] to delete; waiting for machine [m2] to delete";
        assert_eq!(step(&left), Step::Wait(text.into()));
        left.machines = vec![("m1".into(), MachineBlock { internal_error: true, message: "no API".into() })];
        let text = "error deleting machine [m1], machine must be deleted manually (no API)";
        assert_eq!(step(&left), Step::Wait(text.into()));
        left.machines.clear();
        assert_eq!(step(&left), Step::Wait("waiting for control plane [demo] to delete".into()));
        left.control_plane = false;
        assert_eq!(step(&left), Step::Wait("waiting for cluster-api cluster [demo] to delete".into()));
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
