//! Reads caches into a [`Scope`].

use std::collections::HashMap;
use std::sync::Arc;

use drover_api::provisioning::v1::{Cluster, RKEMachinePool};
use drover_runtime::ObjectKey;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use parking_lot::Mutex;

use super::objects::set::ObjectSet;
use super::objects::{Sources, controlplane};
use super::pools::state::state_holders;
use super::scope::{Scope, Template};
use super::twin::DEFAULT_TOKEN;
use super::twin::identity::{self, Evidence, Identity};
use super::validation::schemas;
use super::{Init, kubeconfig, log};
use crate::admission::credential_key;
use crate::dynamic::{CONFIG_GROUP, MACHINE_GROUP};
use crate::keys::{annotations, labels};
use crate::store::{BY_CLUSTER_UID, BY_MANAGEMENT_ID};

/// The recorded specs of Clusters. They are compressed, and change only with the generation.
#[derive(Default)]
pub(super) struct RecordedSpecs(Mutex<HashMap<ObjectKey, RecordedSpec>>);

struct RecordedSpec {
    uid: Option<String>,
    generation: Option<i64>,
    text: String,
}

impl RecordedSpecs {
    fn of(&self, cluster: &Cluster) -> String {
        let key = ObjectKey::of(cluster);
        let meta = &cluster.metadata;
        let known = |known: &&RecordedSpec| known.uid == meta.uid && known.generation == meta.generation;
        if let Some(known) = self.0.lock().get(&key).filter(known) {
            return known.text.clone();
        }
        let text = controlplane::recorded_spec(cluster);
        let (uid, generation) = (meta.uid.clone(), meta.generation);
        self.0.lock().insert(key, RecordedSpec { uid, generation, text: text.clone() });
        text
    }

    pub(super) fn forget(&self, key: &ObjectKey) {
        self.0.lock().remove(key);
    }
}

impl Init {
    pub(super) async fn observe(&self, cluster: &Arc<Cluster>) -> Scope {
        let store = &self.context.store;
        let key = ObjectKey::of(cluster.as_ref());
        let identity = self.identity(cluster);
        let evidence = self.evidence(cluster, &identity);
        let (of_cluster, namespace) = (labels::capi::CLUSTER_NAME, key.namespace.as_str());
        let hash = ObjectSet::cluster(namespace, &key.name).hash();
        let mut scope = Scope {
            has_token: store.tokens.get(&ObjectKey::new(&identity.id, DEFAULT_TOKEN)).is_some(),
            capi_cluster: store.capi_cluster(namespace, &key.name),
            rke_cluster: store.rke_clusters.get(&key),
            control_plane: store.control_planes.get(&key),
            deployments: store.deployments.by_label(of_cluster, namespace, &key.name),
            sets: store.sets.by_label(of_cluster, namespace, &key.name),
            machines: store.machines.by_label(of_cluster, namespace, &key.name),
            health_checks: store.health_checks.by_label(labels::OBJECTSET_HASH, namespace, &hash),
            kubeconfig: store.secrets.get(&key.sibling(kubeconfig::secret_name(&key.name))),
            log: store.config_maps.get(&ObjectKey::new(&identity.id, log::NAME)),
            settings: self.context.settings.now(),
            recorded_pools: self.recorded_pools(cluster),
            cluster: cluster.clone(),
            identity,
            evidence,
            ..Scope::default()
        };
        let live = scope.kubeconfig.as_deref();
        if live.and_then(|secret| kubeconfig::own_token(secret, namespace, &key.name)).is_none() {
            scope.fresh_token = self.context.token();
        }
        scope.sources = self.sources(&scope);
        self.read_configs(&mut scope).await;
        self.read_templates(&mut scope, &hash).await;
        scope
    }

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

    fn recorded_pools(&self, cluster: &Cluster) -> Option<Vec<RKEMachinePool>> {
        let schema = |kind: &str| {
            let schema = self.context.store.schemas.get(&ObjectKey::cluster(kind.to_lowercase()))?;
            serde_json::to_string(&schema.spec).ok()
        };
        schemas::record(cluster.spec.rke_config.as_ref()?, schema)
    }

    fn sources(&self, scope: &Scope) -> Sources {
        let store = &self.context.store;
        let control_plane = scope.control_plane.as_deref();
        let mut sources = Sources {
            management_name: scope.identity.id.clone(),
            data_directories: control_plane
                .map(|plane| plane.spec.config.data_directories.clone().unwrap_or_default()),
            state_holders: state_holders(control_plane, scope.machines.iter().map(AsRef::as_ref)),
            versions: self.context.releases.versions().into_iter().map(str::to_owned).collect(),
            recorded_spec: self.recorded_specs.of(&scope.cluster),
            ..Sources::default()
        };
        let (namespace, spec) = (scope.key().namespace, &scope.cluster.spec);
        for pool in scope.pools() {
            for credential in [&pool.cloud_credential_secret_name, &spec.cloud_credential_secret_name] {
                let key = credential_key(&namespace, credential);
                if !credential.is_empty() && store.secrets.get(&key).is_some() {
                    sources.credentials.insert(credential.clone());
                }
            }
        }
        sources
    }

    /// The Configs of the pools, and the fields of their drivers.
    async fn read_configs(&self, scope: &mut Scope) {
        let store = &self.context.store;
        let cluster = scope.cluster.clone();
        for pool in cluster.spec.rke_config.iter().flat_map(|config| &config.machine_pools) {
            let reference = &pool.machine_config_ref;
            let (Some(kind), Some(name)) = (&reference.kind, &reference.name) else { continue };
            let Some(schema) = store.schemas.get(&ObjectKey::cluster(kind.to_lowercase())) else { continue };
            if kind.is_empty() || name.is_empty() {
                continue;
            }
            let fields = schema.spec.resource_fields.keys().cloned().collect();
            scope.sources.schemas.insert(kind.clone(), fields);
            match store.dynamic.get(CONFIG_GROUP, kind, &scope.key().sibling(name)).await {
                Ok(Some(config)) => _ = scope.sources.configs.insert((kind.clone(), name.clone()), config),
                Ok(None) => {}
                Err(_) => scope.unlisted = Some(kind.clone()),
            }
        }
    }

    async fn read_templates(&self, scope: &mut Scope, hash: &str) {
        for kind in self.template_kinds() {
            match self.context.store.dynamic.cache(MACHINE_GROUP, &kind).await {
                Ok(Some(cache)) => {
                    let found = cache.by_label(labels::OBJECTSET_HASH, &scope.key().namespace, hash);
                    scope.templates.extend(found.iter().map(|template| Template {
                        kind: kind.clone(),
                        name: template.name_any(),
                        deleting: template.metadata.deletion_timestamp.is_some(),
                    }));
                }
                Ok(None) => {}
                Err(_) => scope.unlisted = Some(kind),
            }
        }
    }

    /// Kinds of machine templates that exist now.
    pub(super) fn template_kinds(&self) -> Vec<String> {
        let mut kinds = self.context.store.dynamic.of_group(MACHINE_GROUP);
        kinds.retain(|kind| kind.ends_with("MachineTemplate"));
        kinds
    }
}
