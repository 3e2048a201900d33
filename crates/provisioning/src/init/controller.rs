//! The controller of provisioning Clusters.

use std::collections::BTreeSet;

use drover_api::capi::v1beta2::MachineDeployment;
use drover_api::finalizers::cattle as finalizers;
use drover_api::provisioning::v1::{self as provisioning, Cluster};
use drover_api::rke::v1::{RKEBootstrapTemplate, RKECluster, RKEControlPlane};
use drover_api::{capi::v1beta2 as capi, management::v3 as management};
use drover_runtime::{Error, Next, ObjectKey, Reconciler};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{DynamicObject, ObjectMeta};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::generate::{GenerateError, Generated, Surroundings, generate, owner_reference};
use super::identity::{self, Evidence, Identity, Refusal};
use super::objectset::ObjectSet;
use super::pools::{APPLIED_QUANTITY, deployment_name, quantity_text, scale, scaled_to, state_holders};
use super::shortfall::{self, Seen};
use super::{events, kubeconfig, log, schemas, status, twin};
use crate::admission::credential_key;
use crate::conditions as generic;
use crate::context::Context;
use crate::dynamic::{CONFIG_GROUP, MACHINE_GROUP};
use crate::keys::{annotations, conditions, labels};
use crate::selectors::require_credentials;
use crate::store::{BY_CLUSTER_UID, BY_MANAGEMENT_ID, Writer, status_of};

/// Reconciles one provisioning Cluster.
pub struct Init {
    pub(super) context: Context,
    pub(super) writer: Writer,
    twin: Writer,
    scale: Writer,
    status: Writer,
}

impl Init {
    pub fn new(context: &Context) -> Self {
        let writer = |scope: &str| Writer::new(&context.store, "init", scope);
        Self {
            context: context.clone(),
            writer: writer("cluster"),
            twin: writer("twin"),
            scale: writer("scale"),
            status: writer("status"),
        }
    }
}

impl Reconciler for Init {
    const NAME: &'static str = "init";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let store = &self.context.store;
        let Some(cluster) = store.clusters.get(&key) else { return Ok(Next::EVENT) };
        if cluster.metadata.deletion_timestamp.is_some() {
            return self.remove(&cluster).await;
        }
        // Finalizers come first; until the cache shows them nothing is generated.
        let finalizers = [finalizers::PROVISIONING_CLUSTER, finalizers::RKE_CLUSTER];
        if self.writer.add_finalizers(cluster.as_ref(), &finalizers).await? {
            return Ok(Next::EVENT);
        }
        require_credentials(&self.context.store, &cluster)?;
        let identity = self.identity(&cluster);
        let evidence = self.evidence(&cluster, &identity);
        if let Err(refusal) = identity::check(&cluster, &identity, &evidence) {
            return self.report_refusal(&cluster, &refusal).await;
        }
        self.apply_twin(&cluster, &identity, &evidence).await?;
        if self.follow_scale(&cluster).await? || self.record_schemas(&cluster).await? {
            return Ok(Next::EVENT);
        }
        let mut generated =
            self.surroundings(&cluster, &identity.id).await.and_then(|around| generate(&cluster, &around));
        let mut written = None;
        if let Ok(made) = &generated {
            match self.write(&cluster, made).await {
                // What the API calls invalid stays so until somebody changes it.
                Err(error) if error.is_invalid() => {
                    generated = Err(GenerateError::Invalid(error.chain()));
                }
                other => written = other?,
            }
        }
        self.report(&cluster, &identity.id, &generated, written).await
    }
}

impl Init {
    /// The id that the Cluster would have, according to the caches.
    pub(super) fn identity(&self, cluster: &Cluster) -> Identity {
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        identity::wanted(cluster, &self.context.store.twins.by_index(BY_CLUSTER_UID, uid))
    }

    /// What the caches know about an id.
    pub(super) fn evidence(&self, cluster: &Cluster, identity: &Identity) -> Evidence {
        let store = &self.context.store;
        let mut others = store.clusters.by_index(BY_MANAGEMENT_ID, &identity.id);
        others.retain(|other| other.metadata.uid != cluster.metadata.uid);
        let key = ObjectKey::cluster(&identity.id);
        let (twin, namespace) = (store.twins.get(&key), store.namespaces.get(&key));
        let exists = |object: &ObjectMeta| {
            let owner = object.annotations.as_ref().and_then(|notes| notes.get(annotations::CLUSTER_UID));
            owner.is_some_and(|uid| !store.clusters.by_index(BY_CLUSTER_UID, uid).is_empty())
        };
        let referenced = twin.as_deref().and_then(identity::reference);
        Evidence {
            twin_owner_exists: twin.as_ref().is_some_and(|twin| exists(&twin.metadata)),
            namespace_owner_exists: namespace.as_ref().is_some_and(|namespace| exists(&namespace.metadata)),
            referenced_exists: referenced.is_some_and(|key| store.clusters.get(&key).is_some()),
            others,
            twin,
            namespace,
        }
    }

    /// Says why the cluster cannot have its id. Nothing else is written.
    async fn report_refusal(&self, cluster: &Cluster, refusal: &Refusal) -> Result<Next, Error> {
        let key = ObjectKey::of(cluster);
        let plane = self.context.store.control_planes.get(&key);
        let next = status::refused(cluster, refusal, plane.as_deref(), self.context.now());
        if refusal.clears_status() && cluster.management_id().is_some() {
            // Left out of an apply, the field would stay as its author wrote it.
            let patch = json!({"metadata": {"uid": cluster.metadata.uid}, "status": {"clusterName": ""}});
            self.status.merge_status::<Cluster>(&key, patch).await?;
        }
        self.status.apply_status(&status_of::<Cluster>(&key, next.clone())).await?;
        self.context.events.tell(cluster, &events::of_status(cluster, &next));
        Ok(Next::EVENT)
    }

    async fn apply_twin(
        &self,
        cluster: &Cluster,
        identity: &Identity,
        evidence: &Evidence,
    ) -> Result<(), Error> {
        let name = &identity.id;
        let namespace = evidence.namespace.as_deref();
        if namespace.is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_some()) {
            return Err(Error::Stale(format!("namespace {name}, which is being deleted")));
        }
        let twin = twin::twin(cluster, name);
        // An id that a person chose may be in use although the cache does not show it yet.
        let is_new = evidence.twin.is_none() && !identity.derived;
        if is_new && !self.twin.create(&twin).await? {
            return Err(Error::Stale(format!("management cluster {name}")));
        }
        self.twin.apply(&twin).await?;
        self.twin.apply(&twin::namespace(cluster, name)).await?;
        self.twin.apply(&twin::token(name)).await?;
        let display = cluster.metadata.name.as_deref().unwrap_or_default();
        if twin::annotation(cluster, annotations::MANAGEMENT_CLUSTER_DISPLAY_NAME) != display {
            let fields = json!({"metadata": {
                "uid": cluster.metadata.uid,
                "annotations": {annotations::MANAGEMENT_CLUSTER_DISPLAY_NAME: display},
            }});
            self.twin.apply_fields::<Cluster>(&ObjectKey::of(cluster), fields).await?;
        }
        Ok(())
    }

    /// Writes what differs; the control plane's generation if it was among that.
    async fn write(&self, cluster: &Cluster, generated: &Generated) -> Result<Option<i64>, Error> {
        self.adopt(cluster, generated).await?;
        let mut written = None;
        for object in &generated.objects {
            match object["kind"].as_str().unwrap_or_default() {
                "RKECluster" => _ = self.writer.apply(&typed::<RKECluster>(object)?).await?,
                "RKEControlPlane" => {
                    let stored = self.writer.apply(&typed::<RKEControlPlane>(object)?).await?;
                    written = stored.and_then(|stored| stored.metadata.generation);
                }
                "Cluster" => _ = self.writer.apply(&typed::<capi::Cluster>(object)?).await?,
                "RKEBootstrapTemplate" => {
                    self.writer.apply(&typed::<RKEBootstrapTemplate>(object)?).await?;
                }
                "MachineDeployment" => self.apply_deployment(cluster, &typed(object)?).await?,
                "MachineHealthCheck" => {
                    self.writer.apply(&typed::<capi::MachineHealthCheck>(object)?).await?;
                }
                kind => self.apply_template(kind, object).await?,
            }
        }
        self.prune(cluster, generated).await?;
        Ok(written)
    }

    async fn apply_template(&self, kind: &str, object: &Value) -> Result<(), Error> {
        let dynamic = &self.context.store.dynamic;
        let resource = dynamic.resource(MACHINE_GROUP, kind).ok_or_else(|| Error::Stale(kind.to_owned()))?;
        let desired: DynamicObject = typed(object)?;
        let live = dynamic.get(MACHINE_GROUP, kind, &ObjectKey::of(&desired)).await?;
        self.writer.dynamic(&resource).apply(&desired, live.as_deref()).await.map(|_| ())
    }

    async fn apply_deployment(&self, cluster: &Cluster, desired: &MachineDeployment) -> Result<(), Error> {
        let (key, own) = (ObjectKey::of(cluster), ObjectKey::of(desired));
        let live = self.context.store.deployments.get(&own);
        let pools = cluster.spec.rke_config.iter().flat_map(|config| &config.machine_pools);
        let pool = pools.into_iter().find(|pool| deployment_name(&key.name, &pool.name) == own.name);
        let Some(pool) = pool else { return Ok(()) };
        let note = events::of_pool(live.as_deref(), pool);
        if let Some(live) = live {
            let applied = live.metadata.annotations.as_ref().and_then(|a| a.get(APPLIED_QUANTITY));
            if applied != Some(&quantity_text(pool.quantity)) {
                self.scale.apply_fields::<MachineDeployment>(&own, scale(pool)).await?;
            }
            let mut desired = desired.clone();
            desired.spec.replicas = None;
            self.writer.apply(&desired).await?;
        } else {
            self.writer.apply(desired).await?;
        }
        self.context.events.tell(cluster, &note);
        Ok(())
    }

    /// A MachineDeployment that someone scaled: the pool follows, instead of being forced back.
    async fn follow_scale(&self, cluster: &Cluster) -> Result<bool, Error> {
        let key = ObjectKey::of(cluster);
        let Some(config) = &cluster.spec.rke_config else { return Ok(false) };
        for (index, pool) in config.machine_pools.iter().enumerate() {
            let name = deployment_name(&key.name, &pool.name);
            let Some(deployment) = self.context.store.deployments.get(&key.sibling(name)) else { continue };
            let applied = deployment.metadata.annotations.as_ref().and_then(|a| a.get(APPLIED_QUANTITY));
            let replicas = deployment.spec.replicas;
            // Noted also while the rest of the spec is refused, or a scale back would look like a pool that was changed.
            let agreed = pool.quantity.is_some() && replicas == pool.quantity;
            if agreed && applied.is_some_and(|applied| *applied != quantity_text(pool.quantity)) {
                let note = events::of_pool(Some(&deployment), pool);
                self.scale
                    .apply_fields::<MachineDeployment>(&ObjectKey::of(deployment.as_ref()), scale(pool))
                    .await?;
                self.context.events.tell(cluster, &note);
                return Ok(true);
            }
            let Some(quantity) = scaled_to(replicas, applied.map(String::as_str), pool.quantity) else {
                continue;
            };
            let mut pools = json!(config.machine_pools);
            pools[index]["quantity"] = json!(quantity);
            let patch = json!({
                "metadata": {"resourceVersion": cluster.metadata.resource_version},
                "spec": {"rkeConfig": {"machinePools": pools}},
            });
            self.writer.merge::<Cluster>(&key, patch).await?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Pools that do not say which fields their driver has get those of now.
    async fn record_schemas(&self, cluster: &Cluster) -> Result<bool, Error> {
        let store = &self.context.store;
        let Some(config) = &cluster.spec.rke_config else { return Ok(false) };
        let schema = |kind: &str| {
            let schema = store.schemas.get(&ObjectKey::cluster(kind.to_lowercase()))?;
            serde_json::to_string(&schema.spec).ok()
        };
        let Some(pools) = schemas::record(config, schema) else { return Ok(false) };
        let patch = json!({
            "metadata": {"resourceVersion": cluster.metadata.resource_version},
            "spec": {"rkeConfig": {"machinePools": pools}},
        });
        self.writer.merge::<Cluster>(&ObjectKey::of(cluster), patch).await?;
        Ok(true)
    }

    /// What generation needs.
    async fn surroundings(
        &self,
        cluster: &Cluster,
        management_name: &str,
    ) -> Result<Surroundings, GenerateError> {
        let store = &self.context.store;
        let key = ObjectKey::of(cluster);
        let namespace = &key.namespace;
        let machines = store.machines.by_label(labels::capi::CLUSTER_NAME, namespace, &key.name);
        let control_plane = store.control_planes.get(&key);
        let mut around = Surroundings {
            management_name: management_name.to_owned(),
            data_directories: control_plane
                .as_ref()
                .map(|plane| plane.spec.config.data_directories.clone().unwrap_or_default()),
            state_holders: state_holders(control_plane.as_deref(), machines.iter().map(AsRef::as_ref)),
            versions: self.context.releases.versions().into_iter().map(str::to_owned).collect(),
            ..Surroundings::default()
        };
        let pools = cluster.spec.rke_config.iter().flat_map(|config| &config.machine_pools);
        for pool in pools {
            let kind = pool.machine_config_ref.kind.clone().unwrap_or_default();
            let name = pool.machine_config_ref.name.clone().unwrap_or_default();
            if kind.is_empty() || name.is_empty() {
                continue;
            }
            if let Some(schema) = store.schemas.get(&ObjectKey::cluster(kind.to_lowercase())) {
                let fields = schema.spec.resource_fields.keys().cloned().collect();
                around.schemas.insert(kind.clone(), fields);
                let key = ObjectKey::new(namespace, &name);
                let config = store
                    .dynamic
                    .get(CONFIG_GROUP, &kind, &key)
                    .await
                    .map_err(|error| GenerateError::NotYet(error.chain()))?;
                if let Some(config) = config {
                    around.configs.insert((kind, name), json!(config.as_ref()));
                }
            }
            for credential in [&pool.cloud_credential_secret_name, &cluster.spec.cloud_credential_secret_name]
            {
                let key = credential_key(namespace, credential);
                if !credential.is_empty() && store.secrets.get(&key).is_some() {
                    around.credentials.insert(credential.clone());
                }
            }
        }
        Ok(around)
    }

    /// Takes a controller reference on the Configs, so that they go with the cluster.
    async fn adopt(&self, cluster: &Cluster, generated: &Generated) -> Result<(), Error> {
        for (kind, name) in &generated.adopt {
            let key = ObjectKey::of(cluster).sibling(name);
            let dynamic = &self.context.store.dynamic;
            let Some(resource) = dynamic.resource(CONFIG_GROUP, kind) else { continue };
            let Some(config) = dynamic.get(CONFIG_GROUP, kind, &key).await? else { continue };
            let owners = config.metadata.owner_references.clone().unwrap_or_default();
            if owners.iter().any(|owner| Some(&owner.uid) == cluster.metadata.uid.as_ref()) {
                continue;
            }
            let mut list = json!(owners).as_array().cloned().unwrap_or_default();
            list.push(owner_reference(cluster));
            let patch = json!({"metadata": {
                "resourceVersion": config.metadata.resource_version, "ownerReferences": list,
            }});
            self.writer.dynamic(&resource).merge(&key, patch).await?;
        }
        Ok(())
    }

    /// Removes what is no longer generated: deployments and checks of removed pools, then templates that no
    /// deployment and no set uses any more.
    async fn prune(&self, cluster: &Cluster, generated: &Generated) -> Result<(), Error> {
        let store = &self.context.store;
        let key = ObjectKey::of(cluster);
        let hash = ObjectSet::cluster(&key.namespace, &key.name).hash();
        let wanted: BTreeSet<(&str, &str)> = generated
            .objects
            .iter()
            .map(|o| {
                (o["kind"].as_str().unwrap_or_default(), o["metadata"]["name"].as_str().unwrap_or_default())
            })
            .collect();
        let deployments = store.deployments.by_label(labels::OBJECTSET_HASH, &key.namespace, &hash);
        let checks = store.health_checks.by_label(labels::OBJECTSET_HASH, &key.namespace, &hash);
        let names = deployments
            .iter()
            .map(|d| ("MachineDeployment", d.metadata.name.clone(), d.metadata.deletion_timestamp.is_some()))
            .chain(checks.iter().map(|c| {
                ("MachineHealthCheck", c.metadata.name.clone(), c.metadata.deletion_timestamp.is_some())
            }));
        for (kind, name, deleting) in names {
            let name = name.unwrap_or_default();
            if !deleting && !wanted.contains(&(kind, name.as_str())) {
                if kind == "MachineDeployment" {
                    self.writer.delete::<MachineDeployment>(&key.sibling(&name)).await?;
                    self.context.events.tell(cluster, [&events::pool_removed(&name)]);
                } else {
                    self.writer.delete::<capi::MachineHealthCheck>(&key.sibling(&name)).await?;
                }
            }
        }
        self.prune_templates(cluster, &hash, &wanted).await
    }

    async fn prune_templates(
        &self,
        cluster: &Cluster,
        hash: &str,
        wanted: &BTreeSet<(&str, &str)>,
    ) -> Result<(), Error> {
        let store = &self.context.store;
        let key = ObjectKey::of(cluster);
        let mut used: BTreeSet<String> = wanted.iter().map(|(_, name)| name.to_string()).collect();
        let deployments = store.deployments.by_label(labels::OBJECTSET_HASH, &key.namespace, hash);
        used.extend(deployments.iter().map(|d| d.spec.template.spec.infrastructure_ref.name.clone()));
        let sets = store.sets.by_label(labels::capi::CLUSTER_NAME, &key.namespace, &key.name);
        used.extend(sets.iter().map(|s| s.spec.template.spec.infrastructure_ref.name.clone()));
        for kind in self.template_kinds() {
            let Some(resource) = store.dynamic.resource(MACHINE_GROUP, &kind) else { continue };
            let Some(cache) = store.dynamic.cache(MACHINE_GROUP, &kind).await? else { continue };
            for template in cache.by_label(labels::OBJECTSET_HASH, &key.namespace, hash) {
                let name = template.name_any();
                if !used.contains(&name) && template.metadata.deletion_timestamp.is_none() {
                    self.writer.dynamic(&resource).delete(&key.sibling(name)).await?;
                }
            }
        }
        Ok(())
    }

    /// Kinds of machine templates that exist now.
    pub(super) fn template_kinds(&self) -> Vec<String> {
        let mut kinds = self.context.store.dynamic.of_group(MACHINE_GROUP);
        kinds.retain(|kind| kind.ends_with("MachineTemplate"));
        kinds
    }

    async fn report(
        &self,
        cluster: &Cluster,
        management_name: &str,
        generated: &Result<Generated, GenerateError>,
        written: Option<i64>,
    ) -> Result<Next, Error> {
        let store = &self.context.store;
        let key = ObjectKey::of(cluster);
        let now = self.context.now();
        let twin_key = ObjectKey::cluster(management_name);
        let twin = store.twins.get(&twin_key);
        let twin_conditions =
            twin.as_ref().and_then(|t| t.status.as_ref()).map(|s| s.conditions.clone()).unwrap_or_default();
        let connected = generic::is_true(&twin_conditions, conditions::CONNECTED);
        let control_plane = store.control_planes.get(&key);
        let was_ready = cluster.status.as_ref().is_some_and(|status| status.ready);
        let has_kubeconfig =
            (connected || was_ready) && self.ensure_kubeconfig(cluster, &twin_key.name).await?;
        let of_cluster = labels::capi::CLUSTER_NAME;
        let machines = store.machines.by_label(of_cluster, &key.namespace, &key.name);
        let shortfall = generated.as_ref().ok().and_then(|generated| {
            shortfall::of(&Seen {
                cluster,
                generated: &generated.objects,
                control_plane: control_plane.as_deref(),
                written,
                deployments: &store.deployments.by_label(of_cluster, &key.namespace, &key.name),
                sets: &store.sets.by_label(of_cluster, &key.namespace, &key.name),
                machines: &machines,
            })
        });
        let plane = control_plane.as_deref().map(|plane| status::with_shortfall(plane, shortfall.as_deref()));
        let mut next =
            status::of_cluster(cluster, generated, plane.as_deref(), connected, has_kubeconfig, now);
        management_name.clone_into(&mut next.cluster_name);
        self.status.apply_status(&status_of::<Cluster>(&key, next.clone())).await?;
        self.context.events.tell(cluster, &events::of_status(cluster, &next));
        if let Some(twin) = &twin {
            let status = status::of_twin(twin, cluster, plane.as_deref(), machines.len(), now);
            self.status.apply_status(&status_of::<management::Cluster>(&twin_key, status)).await?;
        }
        self.write_log(&twin_key.name, &next).await?;
        match generated {
            Err(GenerateError::NotYet(_)) => Ok(Next::after(std::time::Duration::from_secs(10))),
            _ => Ok(Next::EVENT),
        }
    }

    /// Makes the kubeconfig secret, or brings it up to date with the settings; the token stays.
    async fn ensure_kubeconfig(&self, cluster: &Cluster, management_name: &str) -> Result<bool, Error> {
        let key = ObjectKey::of(cluster);
        let settings = self.context.settings.now();
        let name = kubeconfig::secret_name(&key.name);
        let live = self.context.store.secrets.get(&key.sibling(name));
        let token = live
            .as_ref()
            .and_then(|secret| secret.data.as_ref()?.get("token"))
            .map(|token| String::from_utf8_lossy(&token.0).into_owned())
            .filter(|token| kubeconfig::is_own_token(&key.namespace, &key.name, token))
            .unwrap_or_else(|| kubeconfig::new_token(&key.namespace, &key.name, &self.context.token()));
        let value = kubeconfig::render(&settings, management_name, &token);
        let desired = kubeconfig::secret(cluster, &value, &token);
        if live.is_none() {
            self.writer.create(&desired).await?;
        } else {
            self.writer.apply(&desired).await?;
        }
        Ok(true)
    }

    async fn write_log(&self, namespace: &str, status: &provisioning::ClusterStatus) -> Result<(), Error> {
        let Some((message, failed)) = log::message(status) else { return Ok(()) };
        let live = self.context.store.config_maps.get(&ObjectKey::new(namespace, log::NAME));
        let field = |key: &str| {
            live.as_ref().and_then(|map| map.data.as_ref()?.get(key).cloned()).unwrap_or_default()
        };
        let Some(text) = log::append(&field("log"), &field("last"), &message, failed, self.context.now())
        else {
            return Ok(());
        };
        let data = [("log", text), ("last", message)].map(|(key, text)| (key.to_owned(), text));
        let desired = ConfigMap {
            metadata: ObjectMeta {
                namespace: Some(namespace.to_owned()),
                name: Some(log::NAME.to_owned()),
                ..ObjectMeta::default()
            },
            data: Some(data.into()),
            ..ConfigMap::default()
        };
        let Some(stored) = self.writer.apply(&desired).await? else { return Ok(()) };
        // Without waiting, the next pass would append to an old log.
        let revision = stored.metadata.resource_version.unwrap_or_default();
        let key = ObjectKey::new(namespace, log::NAME);
        self.context.store.config_maps.shows(&key, &revision, std::time::Duration::from_secs(2)).await;
        Ok(())
    }

    pub(super) fn status_writer(&self) -> &Writer {
        &self.status
    }

    pub(super) fn control_plane_exists(&self, key: &ObjectKey) -> bool {
        self.context.store.control_planes.get(key).is_some()
    }
}

fn typed<K: DeserializeOwned>(object: &Value) -> Result<K, Error> {
    serde_json::from_value(object.clone()).map_err(Error::other("read a generated object"))
}
