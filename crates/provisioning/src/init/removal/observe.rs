//! What is left of a cluster that is being deleted.

use std::sync::Arc;

use drover_api::provisioning::v1::Cluster;
use drover_api::{capi::v1beta2 as capi, management::v3 as management, rke::v1 as rke};
use drover_runtime::{Error, ObjectKey};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::ResourceExt;
use kube::api::ObjectMeta;

use super::decide::{Existence, GeneratedKind, Leftover, Remaining};
use crate::dynamic::MACHINE_GROUP;
use crate::init::objects::set::ObjectSet;
use crate::init::twin::identity::{self, Identity};
use crate::init::waits::MachineBlock;
use crate::init::{Init, kubeconfig};
use crate::keys::labels;

impl Init {
    /// Asks the API, not the caches: "absent" must be true. Of Machines and the control plane only the message depends on a
    /// cache: Cluster API keeps its Cluster until they are gone.
    pub(super) async fn remaining(
        &self,
        cluster: &Cluster,
        identity: &Identity,
    ) -> Result<(Remaining, Management), Error> {
        let key = ObjectKey::of(cluster);
        let store = &self.context.store;
        let management = self.management(cluster, identity).await?;
        let capi_cluster: Option<capi::Cluster> = self.writer.get(&key).await?;
        let capi_cluster = capi_cluster.filter(|object| is_owned(&object.metadata, cluster));
        let machines = store
            .machines
            .by_label(labels::capi::CLUSTER_NAME, &key.namespace, &key.name)
            .iter()
            .map(|machine| block_of(machine))
            .collect();
        let hash = ObjectSet::cluster(&key.namespace, &key.name).hash();
        let mut generated = Vec::new();
        if capi_cluster.is_none() {
            generated = self.leftovers(&key.namespace, &hash).await?;
        }
        let secret: Option<Secret> =
            self.writer.get(&key.sibling(kubeconfig::secret_name(&key.name))).await?;
        let secret = secret.filter(|object| is_owned(&object.metadata, cluster));
        let remaining = Remaining {
            twin: existence(management.twin.as_ref()),
            management_namespace: existence(management.namespace.as_ref()),
            namespace_unmarked: management.unmarked,
            capi_cluster: existence(capi_cluster.as_ref()),
            control_plane: store.control_planes.get(&key).is_some(),
            machines,
            generated,
            kubeconfig_secret: existence(secret.as_ref()),
        };
        Ok((remaining, management))
    }

    /// The management Cluster and its namespace, each only if it is proven to be this Cluster's.
    async fn management(&self, cluster: &Cluster, identity: &Identity) -> Result<Management, Error> {
        let mut evidence = self.evidence(cluster, identity);
        if !identity::is_id(&identity.id) {
            return Ok(Management::default());
        }
        let key = ObjectKey::cluster(&identity.id);
        let twin: Option<management::Cluster> = self.writer.get(&key).await?;
        let namespace: Option<Namespace> = self.writer.get(&key).await?;
        evidence.twin = twin.clone().map(Arc::new);
        evidence.namespace = namespace.clone().map(Arc::new);
        let allowed = identity::check(cluster, identity, &evidence).is_ok();
        let twin = twin.filter(|_| allowed);
        let marked = |namespace: &Namespace| identity::owns_namespace(cluster, identity, namespace);
        let owned = evidence.namespace.as_deref().is_some_and(marked);
        let unmarked = !owned && twin.is_some() && namespace.is_some();
        Ok(Management { namespace: namespace.filter(|_| allowed && (owned || unmarked)), twin, unmarked })
    }

    /// The generated objects that the API still has.
    async fn leftovers(&self, namespace: &str, hash: &str) -> Result<Vec<Leftover>, Error> {
        let label = format!("{}={hash}", labels::OBJECTSET_HASH);
        let (writer, label) = (&self.writer, label.as_str());
        let mut found = Vec::new();
        for kind in self.template_kinds() {
            let Some(resource) = self.context.store.dynamic.resource(MACHINE_GROUP, &kind) else { continue };
            let names = writer.dynamic(&resource).names(namespace, label).await?;
            found.extend(names.into_iter().map(|name| (GeneratedKind::Template(kind.clone()), name)));
        }
        let mut add = |kind: GeneratedKind, names: Vec<String>| {
            found.extend(names.into_iter().map(|name| (kind.clone(), name)));
        };
        add(GeneratedKind::Deployment, writer.names::<capi::MachineDeployment>(namespace, label).await?);
        add(GeneratedKind::HealthCheck, writer.names::<capi::MachineHealthCheck>(namespace, label).await?);
        add(GeneratedKind::RKECluster, writer.names::<rke::RKECluster>(namespace, label).await?);
        add(GeneratedKind::ControlPlane, writer.names::<rke::RKEControlPlane>(namespace, label).await?);
        add(
            GeneratedKind::BootstrapTemplate,
            writer.names::<rke::RKEBootstrapTemplate>(namespace, label).await?,
        );
        Ok(found.into_iter().map(|(kind, name)| Leftover { kind, name }).collect())
    }
}

/// The live management Cluster and its namespace.
#[derive(Default)]
pub(super) struct Management {
    pub(super) twin: Option<management::Cluster>,
    pub(super) namespace: Option<Namespace>,
    /// See [`Remaining::namespace_unmarked`].
    unmarked: bool,
}

/// An object of the same name that someone else made must not be deleted.
fn is_owned(object: &ObjectMeta, cluster: &Cluster) -> bool {
    object.owner_references.iter().flatten().any(|owner| Some(&owner.uid) == cluster.metadata.uid.as_ref())
}

fn existence<K: kube::Resource>(object: Option<&K>) -> Existence {
    match object {
        None => Existence::Gone,
        Some(object) if object.meta().deletion_timestamp.is_some() => Existence::Deleting,
        Some(_) => Existence::Present,
    }
}

/// A Machine, and what it reports about its deletion.
pub(crate) fn block_of(machine: &capi::Machine) -> MachineBlock {
    let conditions = machine.status.iter().flat_map(|status| &status.conditions);
    let deleting = conditions.into_iter().find(|c| c.type_ == "Deleting" && c.status == "True");
    MachineBlock {
        name: machine.name_any(),
        internal_error: deleting.is_some_and(|condition| condition.reason == "InternalError"),
        message: deleting.map(|condition| condition.message.clone()).unwrap_or_default(),
    }
}
