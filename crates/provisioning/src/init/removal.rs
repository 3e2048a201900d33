//! Carries out the removal of a cluster, one step per pass.

use std::sync::Arc;
use std::time::Duration;

use drover_api::finalizers::cattle as finalizers;
use drover_api::provisioning::v1::{self as provisioning, Cluster};
use drover_api::{capi::v1beta2 as capi, management::v3 as management, rke::v1 as rke};
use drover_runtime::{Error, Next, ObjectKey};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::DynamicObject;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::controller::Init;
use super::identity::{self, Identity};
use super::objectset::ObjectSet;
use super::remove::{Existence, MachineBlock, Remaining, Step, next};
use super::template::MACHINE_API_VERSION;
use super::{events, kubeconfig};
use crate::conditions::{self as generic, TRUE, UNKNOWN};
use crate::keys::{annotations, conditions, labels};
use crate::store::{status_of, to_dynamic};

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
                let next = self.let_go(cluster).await?;
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
                self.writer.merge("v1", "Namespace", &key, patch).await?;
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
                self.writer.delete(capi::API_VERSION, "Cluster", &key).await?;
            }
            Step::DeleteGenerated => {
                for entry in &remaining.generated {
                    let (kind, name) = entry.split_once(' ').unwrap_or_default();
                    let api_version = api_version_of(kind);
                    self.writer.delete(api_version, kind, &key.sibling(name)).await?;
                }
            }
            Step::DeleteKubeconfig => {
                let name = kubeconfig::secret_name(&key.name);
                self.writer.delete("v1", "Secret", &key.sibling(name)).await?;
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
        let capi_cluster = self.writer.get(capi::API_VERSION, "Cluster", &key).await?;
        // A namesake that someone else made is not ours to delete.
        let ours = |object: &DynamicObject| {
            object
                .metadata
                .owner_references
                .iter()
                .flatten()
                .any(|o| Some(&o.uid) == cluster.metadata.uid.as_ref())
        };
        let capi_cluster = capi_cluster.filter(ours);
        let machines = store
            .machines
            .by_label(labels::capi::CLUSTER_NAME, &key.namespace, &key.name)
            .iter()
            .map(|machine| (machine.metadata.name.clone().unwrap_or_default(), block_of(machine)))
            .collect();
        let hash = ObjectSet::cluster(&key.namespace, &key.name).hash();
        let mut generated = Vec::new();
        if capi_cluster.is_none() {
            let mut kinds: Vec<(&str, String)> =
                self.template_kinds().into_iter().map(|kind| (MACHINE_API_VERSION, kind)).collect();
            for kind in ["MachineDeployment", "MachineHealthCheck"] {
                kinds.push((capi::API_VERSION, kind.to_owned()));
            }
            for kind in ["RKECluster", "RKEControlPlane", "RKEBootstrapTemplate"] {
                kinds.push((rke::API_VERSION, kind.to_owned()));
            }
            for (api_version, kind) in kinds {
                let names = self.generated_of(api_version, &kind, &key.namespace, &hash).await?;
                generated.extend(names.into_iter().map(|name| format!("{kind} {name}")));
            }
        }
        let secret_key = key.sibling(kubeconfig::secret_name(&key.name));
        let secret = self.writer.get("v1", "Secret", &secret_key).await?.filter(ours);
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
        let twin = self.writer.get(management::API_VERSION, "Cluster", &key).await?;
        let namespace = self.writer.get("v1", "Namespace", &key).await?;
        evidence.twin = twin.as_ref().map(typed).transpose()?.map(Arc::new);
        evidence.namespace = namespace.as_ref().map(typed).transpose()?.map(Arc::new);
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
        self.status_writer()
            .apply_status(&status_of(provisioning::API_VERSION, "Cluster", &key, json!(status)))
            .await?;
        Ok(())
    }

    async fn let_go(&self, cluster: &Cluster) -> Result<Next, Error> {
        let object = to_dynamic(cluster)?;
        for finalizer in [finalizers::RKE_CLUSTER, finalizers::PROVISIONING_CLUSTER] {
            if self.writer.finalizer(&object, finalizer, false).await? {
                return Ok(Next::after(Duration::from_millis(50)));
            }
        }
        Ok(Next::EVENT)
    }
}

/// The live management Cluster and its namespace.
#[derive(Default)]
struct Management {
    twin: Option<DynamicObject>,
    namespace: Option<DynamicObject>,
    /// See [`Remaining::namespace_unmarked`].
    unmarked: bool,
}

fn typed<K: DeserializeOwned>(object: &DynamicObject) -> Result<K, Error> {
    let value = serde_json::to_value(object).map_err(Error::other("read an object"))?;
    serde_json::from_value(value).map_err(Error::other("read an object"))
}

fn existence(object: Option<&DynamicObject>) -> Existence {
    match object {
        None => Existence::Gone,
        Some(object) if object.metadata.deletion_timestamp.is_some() => Existence::Deleting,
        Some(_) => Existence::Present,
    }
}

fn api_version_of(kind: &str) -> &'static str {
    match kind {
        "MachineDeployment" | "MachineHealthCheck" => capi::API_VERSION,
        kind if kind.ends_with("MachineTemplate") => MACHINE_API_VERSION,
        _ => rke::API_VERSION,
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
