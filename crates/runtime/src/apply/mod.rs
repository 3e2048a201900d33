//! Server-side apply with a named field manager. A request that would change nothing is not sent.
//!
//! The rule (design decision 18): a controller computes an object fully and applies it; fields that other
//! clients write are not affected. In steady state the live object, known from a cache, already holds every
//! desired value *and* our manager owns exactly the desired fields: then no request is made. That this was so is
//! remembered by a hash, so that a pass which wants the same of the same version compares nothing.

mod compare;
mod settled;

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::{ClusterResourceScope, NamespaceResourceScope};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Error;
use crate::fields::owned_fields;
use crate::pace::{self, Pace};
use compare::{Difference, compare, only_reports};
use settled::Settled;

/// One writer: a client and the name under which it owns fields.
#[derive(Clone)]
pub struct Applier {
    client: Client,
    manager: String,
    pace: Option<Pace>,
    /// Fields of the status, besides conditions and waits, that only report.
    reports: &'static [&'static str],
    /// How long the first status of an object is put off.
    first: Duration,
    settled: Arc<Settled>,
}

/// The result of an apply.
#[derive(Debug, Clone)]
pub enum Applied<K> {
    /// The live object is up to date; nothing was sent.
    Unchanged,
    /// Only what the status reports to people changed: the pass is repeated when the write is due.
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
        Self { client, manager, pace: None, reports: &[], first: pace::FIRST, settled: Arc::default() }
    }

    /// The same for a status that every pass computes from what there is: changes of what it only reports are written
    /// once they have settled (see [`pace`](crate::pace)).
    #[must_use]
    pub fn paced(self) -> Self {
        self.paced_with(&[])
    }

    /// The same, where these fields of the status only report, too.
    #[must_use]
    pub fn paced_with(self, reports: &'static [&'static str]) -> Self {
        Self { pace: Some(Pace::default()), reports, ..self }
    }

    /// The same, but the first status of an object is put off so long: for statuses that controllers do not act upon while
    /// the object is new.
    #[must_use]
    pub fn first_after(self, first: Duration) -> Self {
        Self { first, ..self }
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

    /// Applies some fields of an object of a namespaced kind: a typed object carries required fields that a writer may
    /// not own.
    pub async fn apply_fields<K>(
        &self,
        desired: &DynamicObject,
        live: &K,
    ) -> Result<Applied<DynamicObject>, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize,
    {
        let namespace = desired.namespace().unwrap_or_else(|| "default".into());
        let api = Api::namespaced_with(self.client.clone(), &namespace, &ApiResource::erase::<K>(&()));
        self.send(&api, desired, Some(live), None).await
    }

    /// Whether an apply of the object would write anything.
    pub fn changes<K: Resource + Serialize>(&self, desired: &K, live: &K) -> Result<bool, Error> {
        let doing = || format!("compare {}", desired.name_any());
        let wanted = self.settled.fingerprint(desired, None).map_err(Error::other(doing()))?;
        let version = settled::Version::of(live);
        if self.settled.holds(&version, wanted) {
            return Ok(false);
        }
        let Some(fields) = owned_by(live, &self.manager, None) else { return Ok(true) };
        let mut desired = serde_json::to_value(desired).map_err(Error::other(doing()))?;
        strip(&mut desired, None);
        let live = serde_json::to_value(live).map_err(Error::other(doing()))?;
        let unchanged = compare(&desired, &live, &fields, self.reports) == Difference::None;
        if unchanged {
            self.settled.note(&version, wanted);
        }
        Ok(!unchanged)
    }

    async fn send<K, L>(
        &self,
        api: &Api<K>,
        desired: &K,
        live: Option<&L>,
        subresource: Option<&str>,
    ) -> Result<Applied<K>, Error>
    where
        K: Resource + Clone + Debug + Serialize + DeserializeOwned,
        L: Resource + Serialize,
    {
        let name = desired.name_any();
        let doing = || format!("apply {} {name}", subresource.unwrap_or("object"));
        let wanted = self.settled.fingerprint(desired, subresource).map_err(Error::other(doing()))?;
        let live = live.map(|live| (live, settled::Version::of(live)));
        if live.as_ref().is_some_and(|(_, version)| self.settled.holds(version, wanted)) {
            return Ok(Applied::Unchanged);
        }
        let mut desired = serde_json::to_value(desired).map_err(Error::other(doing()))?;
        strip(&mut desired, subresource);
        if let Some((live, version)) = &live {
            let pace = self.pace.as_ref().filter(|_| subresource.is_some());
            if let Some(fields) = owned_by(*live, &self.manager, subresource) {
                let live = serde_json::to_value(live).map_err(Error::other(doing()))?;
                match compare(&desired, &live, &fields, self.reports) {
                    Difference::None => {
                        self.settled.note(version, wanted);
                        pace.iter().for_each(|pace| pace.forget(version.uid));
                        return Ok(Applied::Unchanged);
                    }
                    Difference::Report
                        if pace.is_some_and(|pace| pace.defer(version.uid, self.settled.state(&desired))) =>
                    {
                        return Ok(Applied::Deferred);
                    }
                    Difference::Report | Difference::Substance => {}
                }
            } else if let Some(pace) = pace {
                let deferred = if only_reports(&desired, self.reports) {
                    pace.defer(version.uid, self.settled.state(&desired))
                } else {
                    pace.defer_first(version.uid, self.first)
                };
                if deferred {
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
        if let Ok(object) = &sent {
            let version = settled::Version::of(object);
            self.settled.note(&version, wanted);
            self.pace.iter().for_each(|pace| pace.forget(version.uid));
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

fn owned_by<'a, K: Resource>(
    live: &'a K,
    manager: &str,
    subresource: Option<&str>,
) -> Option<Cow<'a, Value>> {
    let is_own = |entry: &&ManagedFieldsEntry| {
        entry.manager.as_deref() == Some(manager)
            && entry.operation.as_deref() == Some("Apply")
            && entry.subresource.as_deref() == subresource
    };
    owned_fields(live.meta().managed_fields.as_ref()?.iter().find(is_own)?)
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
    async fn an_unchanged_object_is_not_sent() {
        let pki = Arc::new(Pki::in_memory(jiff::Timestamp::now()).unwrap());
        let server = Embedded::start(EmbeddedOptions::in_memory(pki)).await.unwrap();
        // Counts calls without injecting a fault.
        let plan = Plan::new(Fault::Lost, 0);
        let service = Faulty::new(server.service(), plan.clone());
        let client = crate::in_process_client(service, UserInfo::system_masters("test"));
        let (applier, other) = (Applier::new(client.clone(), "a", "x"), Applier::new(client, "b", "x"));
        let desired = config_map(json!({"k": "v", "l": "w"}));

        let live = applier.apply(&desired, None).await.unwrap().sent().unwrap();
        assert_eq!(plan.writes(), 1);
        assert!(applier.apply(&desired, Some(&live)).await.unwrap().sent().is_none());
        assert_eq!(plan.writes(), 1, "unchanged");
        // Fields of other managers are irrelevant.
        let live =
            other.apply(&config_map(json!({"m": "theirs"})), Some(&live)).await.unwrap().sent().unwrap();
        assert!(applier.apply(&desired, Some(&live)).await.unwrap().sent().is_none());
        assert_eq!(plan.writes(), 2);
        // Equal values are not enough: the manager must own them.
        assert!(other.apply(&desired, Some(&live)).await.unwrap().sent().is_some());
        assert_eq!(plan.writes(), 3);
        // Fields that are no longer desired are removed.
        let less = config_map(json!({"k": "v"}));
        let live = applier.apply(&less, Some(&live)).await.unwrap().sent().unwrap();
        let live =
            applier.apply(&config_map(json!({"k": "other"})), Some(&live)).await.unwrap().sent().unwrap();
        assert_eq!((plan.writes(), live.data.unwrap()["k"].as_str()), (5, "other"));

        // The status is applied separately.
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
        let live = applier.apply_cluster(&node, None).await.unwrap().sent().unwrap();
        let status = json!({"metadata": {"name": "n"}, "status": {"phase": "Running"}});
        let desired: Node = serde_json::from_value(status).unwrap();
        let live = applier.apply_cluster_status(&desired, Some(&live)).await.unwrap().sent().unwrap();
        assert_eq!(plan.writes(), 7);
        assert!(applier.apply_cluster_status(&desired, Some(&live)).await.unwrap().sent().is_none());
        assert_eq!(plan.writes(), 7);
    }
}
