//! Carries out the removal of a cluster, one step per pass.

use std::sync::Arc;
use std::time::Duration;

use drover_api::finalizers::cattle as finalizers;
use drover_api::provisioning::v1::Cluster;
use drover_api::{capi::v1beta2 as capi, management::v3 as management, rke::v1 as rke};
use drover_runtime::{Error, Next, ObjectKey};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::ObjectMeta;
use serde_json::json;

use super::controller::Init;
use super::identity::{self, Identity};
use super::objectset::ObjectSet;
use super::remove::{Existence, GeneratedKind, Leftover, MachineBlock, Remaining, Step, next};
use super::{events, kubeconfig};
use crate::conditions::{self as generic, TRUE, UNKNOWN};
use crate::dynamic::MACHINE_GROUP;
use crate::keys::{annotations, conditions, labels};
use crate::store::status_of;

/// What blocks is watched; this is for what sends no event.
const AGAIN: Duration = Duration::from_secs(5);

impl Init {
    pub(super) async fn remove(&self, cluster: &Cluster) -> Result<Next, Error> {
        let key = ObjectKey::of(cluster);
        let identity = self.identity(cluster);
        let management_name = &identity.id;
        let (remaining, live) = self.remaining(cluster, &identity).await?;
        let step = next(&key.name, management_name, &remaining);
        let note = events::of_removal(cluster, &step, management_name);
        match step {
            Step::Done => {
                let next = self.remove_finalizers(cluster).await?;
                self.context.events.tell(cluster, &note);
                return Ok(next);
            }
            Step::Wait(message) => {
                self.report_removal(cluster, &message).await?;
                self.context.events.tell(cluster, &note);
                return Ok(Next::after(AGAIN));
            }
            Step::MarkNamespace => {
                let key = ObjectKey::cluster(management_name);
                let uid = live.namespace.as_ref().and_then(|namespace| namespace.metadata.uid.clone());
                let patch = json!({"metadata": {
                    "uid": uid, "annotations": {annotations::CLUSTER_UID: cluster.metadata.uid},
                }});
                self.writer.merge::<Namespace>(&key, patch).await?;
            }
            Step::DeleteTwin => {
                self.report_removal(cluster, &format!("deleting management cluster [{management_name}]"))
                    .await?;
                if let Some(twin) = &live.twin {
                    self.writer.delete_this(twin).await?;
                }
            }
            Step::DeleteManagementNamespace => {
                if let Some(namespace) = &live.namespace {
                    self.writer.delete_this(namespace).await?;
                }
            }
            Step::DeleteCapiCluster => {
                self.report_removal(cluster, &format!("deleting cluster-api cluster [{}]", key.name)).await?;
                self.writer.delete::<capi::Cluster>(&key).await?;
            }
            Step::DeleteGenerated => {
                for leftover in &remaining.generated {
                    self.delete_generated(leftover, &key.sibling(&leftover.name)).await?;
                }
            }
            Step::DeleteKubeconfig => {
                let name = kubeconfig::secret_name(&key.name);
                self.writer.delete::<Secret>(&key.sibling(name)).await?;
            }
        }
        self.context.events.tell(cluster, &note);
        Ok(Next::after(Duration::from_millis(50)))
    }

    /// Asks the API, not the caches: "absent" must be true. Of Machines and the control plane only the message depends on a
    /// cache: Cluster API keeps its Cluster until they are gone.
    async fn remaining(
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
            .map(|machine| (machine.metadata.name.clone().unwrap_or_default(), block_of(machine)))
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
            control_plane: self.control_plane_exists(&key),
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

    async fn report_removal(&self, cluster: &Cluster, message: &str) -> Result<(), Error> {
        let now = self.context.now();
        let mut status = cluster.status.clone().unwrap_or_default();
        for type_ in [conditions::PROVISIONED, conditions::WAITING, conditions::PENDING, conditions::UPDATED]
        {
            generic::set(&mut status.conditions, type_, TRUE, "", "", now);
        }
        generic::set(&mut status.conditions, conditions::REMOVED, UNKNOWN, "Waiting", message, now);
        generic::set(&mut status.conditions, conditions::READY, UNKNOWN, "Removing", message, now);
        let key = ObjectKey::of(cluster);
        self.status_writer().apply_status(&status_of::<Cluster>(&key, status)).await?;
        Ok(())
    }

    async fn remove_finalizers(&self, cluster: &Cluster) -> Result<Next, Error> {
        let all = [finalizers::RKE_CLUSTER, finalizers::PROVISIONING_CLUSTER];
        self.writer.remove_finalizers(cluster, &all).await.map(|_| Next::EVENT)
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

    async fn delete_generated(&self, leftover: &Leftover, key: &ObjectKey) -> Result<(), Error> {
        let writer = &self.writer;
        match &leftover.kind {
            GeneratedKind::Template(kind) => match self.context.store.dynamic.resource(MACHINE_GROUP, kind) {
                Some(resource) => writer.dynamic(&resource).delete(key).await,
                // Deleted with its kind.
                None => Ok(()),
            },
            GeneratedKind::Deployment => writer.delete::<capi::MachineDeployment>(key).await,
            GeneratedKind::HealthCheck => writer.delete::<capi::MachineHealthCheck>(key).await,
            GeneratedKind::RKECluster => writer.delete::<rke::RKECluster>(key).await,
            GeneratedKind::ControlPlane => writer.delete::<rke::RKEControlPlane>(key).await,
            GeneratedKind::BootstrapTemplate => writer.delete::<rke::RKEBootstrapTemplate>(key).await,
        }
    }
}

/// The live management Cluster and its namespace.
#[derive(Default)]
struct Management {
    twin: Option<management::Cluster>,
    namespace: Option<Namespace>,
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

/// What a Machine says about its deletion.
pub(crate) fn block_of(machine: &capi::Machine) -> MachineBlock {
    let deleting = machine
        .status
        .iter()
        .flat_map(|status| &status.conditions)
        .find(|condition| condition.type_ == "Deleting" && condition.status == "True");
    MachineBlock {
        internal_error: deleting.is_some_and(|condition| condition.reason == "InternalError"),
        message: deleting.map(|condition| condition.message.clone()).unwrap_or_default(),
    }
}
