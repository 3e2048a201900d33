//! The writes of a controller, under its own field manager.

use std::future::Future;
use std::time::Duration;

use drover_runtime::apply::Applier;
use drover_runtime::error::{found, is_already_exists, is_not_found};
use drover_runtime::{Error, ObjectKey, finalizer};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions,
};
use serde_json::Value;

use super::{Kind, Store};

/// A call to the API may take this long.
const LIMIT: Duration = Duration::from_secs(30);

/// One controller's writes.
#[derive(Clone)]
pub struct Writer {
    store: Store,
    applier: Applier,
}

impl Writer {
    pub fn new(store: &Store, controller: &str, scope: &str) -> Self {
        let applier = Applier::new(store.caches.client().clone(), controller, scope);
        Self { store: store.clone(), applier }
    }

    /// The same for a status that every pass computes (see [`Applier::paced`]).
    #[must_use]
    pub fn paced(self) -> Self {
        Self { applier: self.applier.paced(), ..self }
    }

    /// The writes of a kind that is known only at run time.
    pub fn dynamic<'a>(&'a self, resource: &'a ApiResource) -> DynamicWriter<'a> {
        DynamicWriter { writer: self, resource }
    }

    fn api<K: Kind>(&self, namespace: &str) -> Api<K> {
        K::api(self.store.caches.client().clone(), namespace)
    }

    /// Applies an object; not sent when nothing would change. Returns the server's answer if it was sent.
    pub async fn apply<K: Kind>(&self, desired: &K) -> Result<Option<K>, Error> {
        let key = ObjectKey::of(desired);
        let live = K::cache(&self.store).get(&key);
        self.apply_over(desired, live.as_deref()).await
    }

    /// The same for an object that the cache does not hold whole.
    pub async fn apply_over<K: Kind>(&self, desired: &K, live: Option<&K>) -> Result<Option<K>, Error> {
        let doing = doing::<K>("apply", &ObjectKey::of(desired));
        Ok(within(doing, K::apply(&self.applier, desired, live)).await??.sent())
    }

    /// Applies a status; of `desired` only name and status count.
    pub async fn apply_status<K: Kind>(&self, desired: &K) -> Result<Option<K>, Error> {
        let key = ObjectKey::of(desired);
        let live = K::cache(&self.store).get(&key);
        let doing = doing::<K>("apply the status of", &key);
        let applied = within(doing, K::apply_status(&self.applier, desired, live.as_deref()));
        Ok(applied.await??.sent())
    }

    /// Applies some fields of an object whose other fields have another field manager. The request is always sent.
    pub async fn apply_fields<K: Kind>(&self, key: &ObjectKey, fields: Value) -> Result<(), Error> {
        let resource = ApiResource::erase::<K>(&());
        let mut desired = DynamicObject::new(&key.name, &resource).data(fields);
        if let Some(meta) = desired.data.as_object_mut().and_then(|fields| fields.remove("metadata")) {
            desired.metadata = serde_json::from_value(meta).map_err(Error::other("read an object"))?;
        }
        desired.metadata.name = Some(key.name.clone());
        desired.metadata.namespace = Some(key.namespace.clone()).filter(|namespace| !namespace.is_empty());
        self.dynamic(&resource).apply(&desired, None).await.map(|_| ())
    }

    /// Creates an object with a known name; one that exists is left as it is. Returns whether it was created.
    pub async fn create<K: Kind>(&self, desired: &K) -> Result<bool, Error> {
        let key = ObjectKey::of(desired);
        create(&self.api::<K>(&key.namespace), desired, doing::<K>("create", &key)).await
    }

    /// The object as the API has it now, and not as a cache shows it.
    pub async fn get<K: Kind>(&self, key: &ObjectKey) -> Result<Option<K>, Error> {
        get(&self.api::<K>(&key.namespace), key, doing::<K>("get", key)).await
    }

    /// The names of the objects with a label, as the API has them now.
    pub async fn names<K: Kind>(&self, namespace: &str, label: &str) -> Result<Vec<String>, Error> {
        names(&self.api::<K>(namespace), label, &K::kind(&())).await
    }

    /// Deletes an object and what it owns. One that does not exist is deleted.
    pub async fn delete<K: Kind>(&self, key: &ObjectKey) -> Result<(), Error> {
        let doing = doing::<K>("delete", key);
        delete(&self.api::<K>(&key.namespace), key, &DeleteParams::background(), doing).await
    }

    /// Deletes exactly this object, and not one of the same name that was created since.
    pub async fn delete_this<K: Kind>(&self, object: &K) -> Result<(), Error> {
        let key = ObjectKey::of(object);
        let only = Preconditions { uid: object.meta().uid.clone(), resource_version: None };
        let params = DeleteParams::background().preconditions(only);
        delete(&self.api::<K>(&key.namespace), &key, &params, doing::<K>("delete", &key)).await
    }

    /// Merge patch; a resourceVersion or uid in the patch guards it.
    pub async fn merge<K: Kind>(&self, key: &ObjectKey, patch: Value) -> Result<(), Error> {
        merge(&self.api::<K>(&key.namespace), key, patch, doing::<K>("patch", key)).await
    }

    /// Merge patch of the status.
    pub async fn merge_status<K: Kind>(&self, key: &ObjectKey, patch: Value) -> Result<(), Error> {
        let doing = doing::<K>("patch the status of", key);
        let api = self.api::<K>(&key.namespace);
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let sent = within(doing.clone(), api.patch_status(&key.name, &params, &patch)).await?;
        sent.map(|_| ()).map_err(Error::api(doing))
    }

    /// Adds finalizers in one write, those that the object lacks; returns whether a write was made.
    pub async fn add_finalizers<K: Kind>(&self, object: &K, finalizers: &[&str]) -> Result<bool, Error> {
        let namespace = object.meta().namespace.as_deref().unwrap_or_default();
        finalizer::ensure_all(&self.api::<K>(namespace), object, finalizers).await
    }

    /// Removes finalizers in one write; returns whether a write was made.
    pub async fn remove_finalizers<K: Kind>(&self, object: &K, finalizers: &[&str]) -> Result<bool, Error> {
        let namespace = object.meta().namespace.as_deref().unwrap_or_default();
        finalizer::remove_all(&self.api::<K>(namespace), object, finalizers).await
    }

    /// Writes a Secret whole, with the resourceVersion it was read with.
    pub async fn put_secret(&self, secret: &Secret) -> Result<(), Error> {
        let key = ObjectKey::of(secret);
        let doing = doing::<Secret>("update", &key);
        let mut secret = secret.clone();
        // The cache keeps only part of it; absent means "as it is".
        secret.metadata.managed_fields = None;
        let api = self.api::<Secret>(&key.namespace);
        let stored = within(doing.clone(), api.replace(&key.name, &PostParams::default(), &secret))
            .await?
            .map_err(Error::api(doing))?;
        let revision = stored.metadata.resource_version.unwrap_or_default();
        self.store.secrets.shows(&key, &revision, Duration::from_secs(2)).await;
        Ok(())
    }
}

/// The writes of a kind that is known only at run time. The caller has the live object, if there is one.
pub struct DynamicWriter<'a> {
    writer: &'a Writer,
    resource: &'a ApiResource,
}

impl DynamicWriter<'_> {
    fn api(&self, namespace: &str) -> Api<DynamicObject> {
        let client = self.writer.store.caches.client().clone();
        if namespace.is_empty() {
            Api::all_with(client, self.resource)
        } else {
            Api::namespaced_with(client, namespace, self.resource)
        }
    }

    fn doing(&self, verb: &str, key: &ObjectKey) -> String {
        format!("{verb} {} {key}", self.resource.kind)
    }

    /// An object of the kind with these fields.
    pub fn object(&self, key: &ObjectKey, fields: Value) -> DynamicObject {
        let object = DynamicObject::new(&key.name, self.resource).data(fields);
        if key.namespace.is_empty() { object } else { object.within(&key.namespace) }
    }

    /// Applies an object; not sent when nothing would change. Returns the server's answer if it was sent.
    pub async fn apply(
        &self,
        desired: &DynamicObject,
        live: Option<&DynamicObject>,
    ) -> Result<Option<DynamicObject>, Error> {
        let key = ObjectKey::of(desired);
        let api = self.api(&key.namespace);
        let applied = self.writer.applier.apply_dynamic(&api, desired, live);
        Ok(within(self.doing("apply", &key), applied).await??.sent())
    }

    /// Applies a status; of `desired` only name and status count.
    pub async fn apply_status(
        &self,
        desired: &DynamicObject,
        live: Option<&DynamicObject>,
    ) -> Result<Option<DynamicObject>, Error> {
        let key = ObjectKey::of(desired);
        let api = self.api(&key.namespace);
        let applied = self.writer.applier.apply_dynamic_status(&api, desired, live);
        Ok(within(self.doing("apply the status of", &key), applied).await??.sent())
    }

    /// Creates an object with a known name; one that exists is left as it is. Returns whether it was created.
    pub async fn create(&self, desired: &DynamicObject) -> Result<bool, Error> {
        let key = ObjectKey::of(desired);
        create(&self.api(&key.namespace), desired, self.doing("create", &key)).await
    }

    /// The object as the API has it now, and not as a cache shows it.
    pub async fn get(&self, key: &ObjectKey) -> Result<Option<DynamicObject>, Error> {
        get(&self.api(&key.namespace), key, self.doing("get", key)).await
    }

    /// The names of the objects with a label, as the API has them now.
    pub async fn names(&self, namespace: &str, label: &str) -> Result<Vec<String>, Error> {
        names(&self.api(namespace), label, &self.resource.kind).await
    }

    /// Deletes an object and what it owns. One that does not exist is deleted.
    pub async fn delete(&self, key: &ObjectKey) -> Result<(), Error> {
        delete(&self.api(&key.namespace), key, &DeleteParams::background(), self.doing("delete", key)).await
    }

    /// Merge patch; a resourceVersion or uid in the patch guards it.
    pub async fn merge(&self, key: &ObjectKey, patch: Value) -> Result<(), Error> {
        merge(&self.api(&key.namespace), key, patch, self.doing("patch", key)).await
    }

    /// Adds a finalizer; returns whether a write was made.
    pub async fn add_finalizer(&self, object: &DynamicObject, finalizer: &str) -> Result<bool, Error> {
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        finalizer::ensure(&self.api(namespace), object, finalizer).await
    }

    /// Removes a finalizer; returns whether a write was made.
    pub async fn remove_finalizer(&self, object: &DynamicObject, finalizer: &str) -> Result<bool, Error> {
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        finalizer::remove(&self.api(namespace), object, finalizer).await
    }
}

fn doing<K: Kind>(verb: &str, key: &ObjectKey) -> String {
    format!("{verb} {} {key}", K::kind(&()))
}

async fn create<K>(api: &Api<K>, desired: &K, doing: String) -> Result<bool, Error>
where
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    match within(doing.clone(), api.create(&PostParams::default(), desired)).await? {
        Ok(_) => Ok(true),
        Err(error) if is_already_exists(&error) => Ok(false),
        Err(source) => Err(Error::Api { operation: doing, source }),
    }
}

async fn get<K>(api: &Api<K>, key: &ObjectKey, doing: String) -> Result<Option<K>, Error>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    found(within(doing.clone(), api.get(&key.name)).await?).map_err(Error::api(doing))
}

async fn names<K>(api: &Api<K>, label: &str, kind: &str) -> Result<Vec<String>, Error>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let doing = format!("list {kind}");
    // A kind that does not exist any more has no objects.
    let listed = within(doing.clone(), api.list_metadata(&ListParams::default().labels(label))).await?;
    let list = found(listed).map_err(Error::api(doing))?;
    Ok(list.into_iter().flat_map(|list| list.items).filter_map(|item| item.metadata.name).collect())
}

async fn delete<K>(api: &Api<K>, key: &ObjectKey, params: &DeleteParams, doing: String) -> Result<(), Error>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    match within(doing.clone(), api.delete(&key.name, params)).await? {
        Ok(_) => Ok(()),
        Err(error) if is_not_found(&error) => Ok(()),
        Err(source) => Err(Error::Api { operation: doing, source }),
    }
}

async fn merge<K>(api: &Api<K>, key: &ObjectKey, patch: Value, doing: String) -> Result<(), Error>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    let sent = within(doing.clone(), api.patch(&key.name, &params, &patch)).await?;
    sent.map(|_| ()).map_err(Error::api(doing))
}

async fn within<T>(doing: String, call: impl Future<Output = T>) -> Result<T, Error> {
    tokio::time::timeout(LIMIT, call).await.map_err(|late| Error::other(doing)(late))
}
