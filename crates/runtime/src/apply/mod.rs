//! Server-side apply with a named field manager. A request that would change nothing is not sent.
//!
//! A controller computes an object fully and applies it; fields of other writers are not affected. In steady state
//! the live object in the cache has every desired value, and the manager owns exactly the desired fields: then no
//! request is sent.

mod unchanged;

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ClusterResourceScope, NamespaceResourceScope};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Error;
use crate::pace::{self, Pace};

/// One writer: a client and the name under which it owns fields.
#[derive(Clone)]
pub struct Applier {
    client: Client,
    manager: String,
    pace: Option<Pace>,
}

/// The result of an apply.
#[derive(Debug, Clone)]
pub enum Applied<K> {
    /// The live object is up to date; nothing was sent.
    Unchanged,
    /// Only text of the status has changed, and it was written a moment ago. The pass is repeated when the write is
    /// due.
    Deferred,
    /// The server's response.
    Sent(Box<K>),
}

impl<K> Applied<K> {
    pub fn sent(self) -> Option<K> {
        match self {
            Self::Sent(object) => Some(*object),
            Self::Unchanged | Self::Deferred => None,
        }
    }
}

impl Applier {
    /// `scope` is unique per writer of an object: `drover/<controller>/<scope>`.
    pub fn new(client: Client, controller: &str, scope: &str) -> Self {
        let manager = format!("{}{controller}/{scope}", crate::cache::MANAGER_PREFIX);
        Self { client, manager, pace: None }
    }

    /// The same for a status that every pass computes: its text is written at most once a second (see [`pace`]).
    #[must_use]
    pub fn paced(self) -> Self {
        Self { pace: Some(Pace::default()), ..self }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn manager(&self) -> &str {
        &self.manager
    }

    /// Applies an object of a namespaced kind.
    pub async fn apply<K>(&self, desired: &K, live: Option<&K>) -> Result<Applied<K>, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + Debug + Serialize + DeserializeOwned,
    {
        let api = Api::namespaced(self.client.clone(), desired.namespace().as_deref().unwrap_or("default"));
        self.send(&api, desired, live, None).await
    }

    /// Applies an object of a cluster-scoped kind.
    pub async fn apply_cluster<K>(&self, desired: &K, live: Option<&K>) -> Result<Applied<K>, Error>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope>,
        K: Clone + Debug + Serialize + DeserializeOwned,
    {
        self.send(&Api::all(self.client.clone()), desired, live, None).await
    }

    /// Applies the `/status` of an object of a namespaced kind; only name and status of `desired` are sent.
    pub async fn apply_status<K>(&self, desired: &K, live: Option<&K>) -> Result<Applied<K>, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + Debug + Serialize + DeserializeOwned,
    {
        let api = Api::namespaced(self.client.clone(), desired.namespace().as_deref().unwrap_or("default"));
        self.send(&api, desired, live, Some("status")).await
    }

    /// Applies the `/status` of an object of a cluster-scoped kind.
    pub async fn apply_cluster_status<K>(&self, desired: &K, live: Option<&K>) -> Result<Applied<K>, Error>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope>,
        K: Clone + Debug + Serialize + DeserializeOwned,
    {
        self.send(&Api::all(self.client.clone()), desired, live, Some("status")).await
    }

    /// Applies an object of a kind that is known only at run time; `desired.types` must be set.
    pub async fn apply_dynamic(
        &self,
        api: &Api<DynamicObject>,
        desired: &DynamicObject,
        live: Option<&DynamicObject>,
    ) -> Result<Applied<DynamicObject>, Error> {
        self.send(api, desired, live, None).await
    }

    /// Applies the `/status` of an object of a kind that is known only at run time.
    pub async fn apply_dynamic_status(
        &self,
        api: &Api<DynamicObject>,
        desired: &DynamicObject,
        live: Option<&DynamicObject>,
    ) -> Result<Applied<DynamicObject>, Error> {
        self.send(api, desired, live, Some("status")).await
    }

    async fn send<K>(
        &self,
        api: &Api<K>,
        desired: &K,
        live: Option<&K>,
        subresource: Option<&str>,
    ) -> Result<Applied<K>, Error>
    where
        K: Resource + Clone + Debug + Serialize + DeserializeOwned,
    {
        let name = desired.name_any();
        let doing = || format!("apply {} {name}", subresource.unwrap_or("object"));
        let mut desired = serde_json::to_value(desired).map_err(Error::other(doing()))?;
        strip(&mut desired, subresource);
        if let Some(live) = live {
            let entry = owned_by(live, &self.manager, subresource);
            let uid = live.meta().uid.as_deref().unwrap_or_default();
            let live = serde_json::to_value(live).map_err(Error::other(doing()))?;
            if let Some(fields) = entry {
                if unchanged::is_unchanged(&desired, &live, fields) {
                    return Ok(Applied::Unchanged);
                }
                let only_text = || {
                    let desired = pace::with_text_of(desired.clone(), &live);
                    unchanged::is_unchanged(&desired, &live, fields)
                };
                if let Some(pace) = &self.pace
                    && subresource.is_some()
                    && only_text()
                    && pace.defer(uid)
                {
                    return Ok(Applied::Deferred);
                }
            }
        }
        let params = PatchParams::apply(&self.manager).force();
        let patch = Patch::Apply(&desired);
        let sent = match subresource {
            Some(_) => api.patch_status(&name, &params, &patch).await,
            None => api.patch(&name, &params, &patch).await,
        };
        if let (Some(pace), Some(_), Ok(object)) = (&self.pace, subresource, &sent) {
            pace.wrote(object.meta().uid.as_deref().unwrap_or_default());
        }
        let kind = desired.get("kind").and_then(Value::as_str).unwrap_or("object");
        sent.map(|object| Applied::Sent(Box::new(object))).map_err(Error::api(format!("apply {kind} {name}")))
    }
}

/// Keeps only the part that this write is about: an apply must not contain fields of the server.
fn strip(object: &mut Value, subresource: Option<&str>) {
    let Some(fields) = object.as_object_mut() else { return };
    if subresource.is_some() {
        fields.retain(|key, _| matches!(key.as_str(), "apiVersion" | "kind" | "metadata" | "status"));
        if let Some(meta) = fields.get_mut("metadata").and_then(Value::as_object_mut) {
            meta.retain(|key, _| matches!(key.as_str(), "name" | "namespace"));
        }
    } else {
        fields.remove("status");
        if let Some(meta) = fields.get_mut("metadata").and_then(Value::as_object_mut) {
            for key in
                ["managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "selfLink"]
            {
                meta.remove(key);
            }
        }
    }
}

fn owned_by<'a, K: Resource>(live: &'a K, manager: &str, subresource: Option<&str>) -> Option<&'a Value> {
    let ours = |entry: &&ManagedFieldsEntry| {
        entry.manager.as_deref() == Some(manager)
            && entry.operation.as_deref() == Some("Apply")
            && entry.subresource.as_deref() == subresource
    };
    live.meta().managed_fields.as_ref()?.iter().find(ours)?.fields_v1.as_ref().map(|fields| &fields.0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use drover_apiserver::auth::pki::Pki;
    use drover_apiserver::embedded::{Embedded, EmbeddedOptions};
    use drover_apiserver::identity::UserInfo;
    use k8s_openapi::api::core::v1::{ConfigMap, Node};
    use serde_json::json;

    use super::*;
    use crate::fault::{Fault, Faulty, Plan};

    fn config_map(data: Value) -> ConfigMap {
        let metadata = json!({"namespace": "default", "name": "a"});
        serde_json::from_value(json!({"metadata": metadata, "data": data})).unwrap()
    }

    #[tokio::test]
    async fn what_is_so_already_is_not_sent() {
        let pki = Arc::new(Pki::in_memory(jiff::Timestamp::now()).unwrap());
        let server = Embedded::start(EmbeddedOptions::in_memory(pki)).await.unwrap();
        // Counts calls without injecting a fault.
        let plan = Plan::new(Fault::Lost, 0);
        let service = Faulty::new(server.service(), plan.clone());
        let client = crate::in_process_client(service, UserInfo::system_masters("test"));
        let (ours, theirs) = (Applier::new(client.clone(), "a", "x"), Applier::new(client, "b", "x"));
        let desired = config_map(json!({"k": "v", "l": "w"}));

        let live = ours.apply(&desired, None).await.unwrap().sent().unwrap();
        assert_eq!(plan.writes(), 1);
        assert!(ours.apply(&desired, Some(&live)).await.unwrap().sent().is_none());
        assert_eq!(plan.writes(), 1, "the same again");
        // Fields of others do not matter.
        let live =
            theirs.apply(&config_map(json!({"m": "theirs"})), Some(&live)).await.unwrap().sent().unwrap();
        assert!(ours.apply(&desired, Some(&live)).await.unwrap().sent().is_none());
        assert_eq!(plan.writes(), 2);
        // The right values are not enough: they have to be ours.
        assert!(theirs.apply(&desired, Some(&live)).await.unwrap().sent().is_some());
        assert_eq!(plan.writes(), 3);
        // Fields that are no longer desired are removed.
        let less = config_map(json!({"k": "v"}));
        let live = ours.apply(&less, Some(&live)).await.unwrap().sent().unwrap();
        let live = ours.apply(&config_map(json!({"k": "other"})), Some(&live)).await.unwrap().sent().unwrap();
        assert_eq!((plan.writes(), live.data.unwrap()["k"].as_str()), (5, "other"));

        // The status is applied separately.
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
        let live = ours.apply_cluster(&node, None).await.unwrap().sent().unwrap();
        let status = json!({"metadata": {"name": "n"}, "status": {"phase": "Running"}});
        let desired: Node = serde_json::from_value(status).unwrap();
        let live = ours.apply_cluster_status(&desired, Some(&live)).await.unwrap().sent().unwrap();
        assert_eq!(plan.writes(), 7);
        assert!(ours.apply_cluster_status(&desired, Some(&live)).await.unwrap().sent().is_none());
        assert_eq!(plan.writes(), 7);
    }
}
