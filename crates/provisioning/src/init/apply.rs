//! Executes a decision. Every step may be repeated.

use drover_api::capi::v1beta2::{MachineDeployment, MachineHealthCheck};
use drover_api::finalizers;
use drover_api::provisioning::v1::Cluster;
use drover_runtime::{Error, ObjectKey};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use serde_json::json;

use super::decide::{Action, Decision, Preparation};
use super::objects::template::MACHINE_API_VERSION;
use super::owned::{own, with_finalizer};
use super::pools::deployment_name;
use super::pools::scale::scale;
use super::scope::Scope;
use super::{Init, events};
use crate::dynamic::{CONFIG_GROUP, MACHINE_GROUP};
use crate::keys::annotations;
use crate::owner::cluster_reference;

/// What was written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Written {
    /// Generation of the control plane, if it was written.
    pub control_plane: Option<i64>,
    /// The Cluster of Cluster API as an owner, if it was written.
    pub owner: Option<OwnerReference>,
}

impl Init {
    /// Executes the actions in order; the first failure stops.
    pub(super) async fn apply(
        &self,
        scope: &Scope,
        decision: &Decision,
        written: &mut Written,
    ) -> Result<(), Error> {
        let namespace = scope.evidence.namespace.as_deref();
        let ending = namespace.is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_some());
        if ending && !decision.actions.is_empty() {
            return Err(Error::Stale(format!("namespace {}, which is being deleted", scope.identity.id)));
        }
        for action in &decision.actions {
            self.execute(scope, action, written).await?;
            self.context.events.publish(scope.cluster.as_ref(), &events::done(scope, action));
        }
        Ok(())
    }

    async fn execute(&self, scope: &Scope, action: &Action, written: &mut Written) -> Result<(), Error> {
        let key = scope.key();
        match action {
            Action::Prepare(preparation) => self.prepare(&scope.cluster, preparation).await?,
            Action::CreateTwin(twin) => {
                if !self.twin.create(twin.as_ref()).await? {
                    return Err(Error::Stale(format!("management cluster {}", scope.identity.id)));
                }
            }
            Action::ApplyTwin(twin) => _ = self.twin.apply(twin.as_ref()).await?,
            Action::ApplyNamespace(namespace) => _ = self.twin.apply(namespace.as_ref()).await?,
            Action::ApplyToken(token) => _ = self.twin.apply(token.as_ref()).await?,
            Action::SetPools(pools) => {
                let patch = json!({
                    "metadata": {"resourceVersion": scope.cluster.metadata.resource_version},
                    "spec": {"rkeConfig": {"machinePools": pools}},
                });
                self.writer.merge::<Cluster>(&key, patch).await?;
            }
            Action::Scale(pool) => {
                let deployment = key.sibling(deployment_name(&key.name, &pool.name));
                self.scale.apply_fields::<MachineDeployment>(&deployment, scale(pool)).await?;
            }
            Action::OwnConfig { config, owners } => {
                let Some(live) = scope.sources.configs.get(config) else { return Ok(()) };
                let Some(resource) = self.context.store.dynamic.resource(CONFIG_GROUP, &config.0) else {
                    return Ok(());
                };
                let patch = json!({"metadata": {
                    "resourceVersion": live.metadata.resource_version, "ownerReferences": owners,
                }});
                self.writer.dynamic(&resource).merge(&key.sibling(&config.1), patch).await?;
            }
            Action::ApplyCapiCluster(object) => {
                let mut object = object.clone();
                let live = scope.capi_cluster.as_deref();
                with_finalizer(
                    &mut object.metadata,
                    live.map(|live| &live.metadata),
                    finalizers::capi::CLUSTER,
                );
                let stored = self.writer.apply(object.as_ref()).await?;
                written.owner = stored.as_ref().or(live).map(cluster_reference);
            }
            Action::ApplyRkeCluster(object) => {
                let mut object = object.clone();
                own(&mut object.metadata, written.owner.as_ref());
                self.writer.apply(object.as_ref()).await?;
            }
            Action::ApplyControlPlane(object) => {
                let mut object = object.clone();
                own(&mut object.metadata, written.owner.as_ref());
                let live = scope.control_plane.as_deref().map(|live| &live.metadata);
                with_finalizer(&mut object.metadata, live, finalizers::cattle::RKE_CONTROL_PLANE);
                let stored = self.writer.apply(object.as_ref()).await?;
                written.control_plane = stored.and_then(|stored| stored.metadata.generation);
            }
            Action::ApplyBootstrapTemplate(object) => {
                let mut object = object.clone();
                own(&mut object.metadata, written.owner.as_ref());
                self.writer.apply(object.as_ref()).await?;
            }
            Action::ApplyTemplate(object) => {
                let mut object = object.clone();
                own(&mut object.metadata, written.owner.as_ref());
                let kind = object.types.as_ref().map(|types| types.kind.as_str()).unwrap_or_default();
                let dynamic = &self.context.store.dynamic;
                let resource = dynamic.resource(MACHINE_GROUP, kind);
                let resource =
                    resource.ok_or_else(|| Error::Stale(format!("{kind}.{MACHINE_API_VERSION}")))?;
                let live = dynamic.get(MACHINE_GROUP, kind, &ObjectKey::of(object.as_ref())).await?;
                self.writer.dynamic(&resource).apply(&object, live.as_deref()).await?;
            }
            Action::ApplyDeployment(object) => _ = self.writer.apply(object.as_ref()).await?,
            Action::ApplyHealthCheck(object) => _ = self.writer.apply(object.as_ref()).await?,
            Action::DeleteDeployment(name) => {
                self.writer.delete::<MachineDeployment>(&key.sibling(name)).await?;
            }
            Action::DeleteHealthCheck(name) => {
                self.writer.delete::<MachineHealthCheck>(&key.sibling(name)).await?;
            }
            Action::DeleteTemplate { kind, name } => {
                if let Some(resource) = self.context.store.dynamic.resource(MACHINE_GROUP, kind) {
                    self.writer.dynamic(&resource).delete(&key.sibling(name)).await?;
                }
            }
            Action::CreateKubeconfig(secret) => _ = self.writer.create(secret.as_ref()).await?,
            Action::ApplyKubeconfig(secret) => _ = self.writer.apply(secret.as_ref()).await?,
        }
        Ok(())
    }

    /// One write for all; the resourceVersion guards what is written as a whole list.
    async fn prepare(&self, cluster: &Cluster, preparation: &Preparation) -> Result<(), Error> {
        let mut meta = json!({"resourceVersion": cluster.metadata.resource_version});
        if !preparation.finalizers.is_empty() {
            let present = cluster.finalizers().iter();
            let all: Vec<&String> = present.chain(&preparation.finalizers).collect();
            meta["finalizers"] = json!(all);
        }
        if let Some(name) = &preparation.display_name {
            meta["annotations"] = json!({annotations::MANAGEMENT_CLUSTER_DISPLAY_NAME: name});
        }
        let mut patch = json!({"metadata": meta});
        if let Some(pools) = &preparation.pools {
            patch["spec"] = json!({"rkeConfig": {"machinePools": pools}});
        }
        self.writer.merge::<Cluster>(&ObjectKey::of(cluster), patch).await
    }
}
