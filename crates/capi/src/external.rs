//! Providers' objects: resolved through their CRD, watched once per kind, and mapped to the objects that refer to
//! them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use drover_api::capi::v1beta2::ContractVersionedObjectReference;
use drover_runtime::{Cache, Caches, Change, Error, ObjectKey};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject};
use parking_lot::Mutex;

use crate::contract::{Contract, Provided, ResolveError, resolve, resource_of};
use crate::waits::Hold;

/// How long a pass waits for the first list of a kind before it yields to others.
const FIRST_LIST: Duration = Duration::from_secs(2);

/// Name of the index from a provider's object to the objects that refer to it.
pub const INDEX: &str = "external";

/// The target of a reference.
#[derive(Clone, Debug, Default)]
pub enum External {
    /// There is no reference.
    #[default]
    Unset,
    /// The reference cannot be resolved.
    Unresolvable(ResolveError),
    /// The kind is served, but the object does not exist.
    NotFound(ApiResource),
    /// The object.
    Found {
        /// Its API resource.
        resource: ApiResource,
        /// Its contract.
        contract: Contract,
        /// The object itself.
        object: Arc<DynamicObject>,
    },
}

impl External {
    /// The object with its contract.
    pub fn provided(&self) -> Option<Provided<'_>> {
        match self {
            Self::Found { contract, object, .. } => Some(Provided { object, contract: *contract }),
            _ => None,
        }
    }

    /// The object.
    pub fn object(&self) -> Option<&DynamicObject> {
        self.provided().map(|provided| provided.object)
    }

    /// An error if the pass must be repeated, because no event reports that the kind is listed.
    pub fn is_listed(&self) -> Result<(), Error> {
        match self {
            Self::Unresolvable(ResolveError::NotListed { plural }) => Err(Error::Stale(plural.clone())),
            _ => Ok(()),
        }
    }

    /// Why the object behind `reference` cannot be used.
    pub fn hold(&self, reference: &ContractVersionedObjectReference) -> Option<Hold> {
        match self {
            Self::Unresolvable(error) => Some(Hold::Unresolvable(error.clone())),
            Self::NotFound(_) => Some(Hold::Missing(reference.into())),
            Self::Unset | Self::Found { .. } => None,
        }
    }

    /// It certainly does not exist.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Unset | Self::NotFound(_))
    }
}

type Listener = Box<dyn Fn(&str) + Send + Sync>;

/// Resolves references. Clones share their watches.
#[derive(Clone)]
pub struct Externals {
    caches: Caches,
    crds: Cache<CustomResourceDefinition>,
    listeners: Arc<Mutex<Vec<Listener>>>,
    /// The caches that are subscribed to, by resource.
    watched: Arc<Mutex<HashMap<String, Cache<DynamicObject>>>>,
}

impl Externals {
    /// Resolves references with `caches`.
    pub fn new(caches: Caches) -> Self {
        let crds = caches.all::<CustomResourceDefinition>();
        crds.index(INDEX, |crd| vec![format!("{}/{}", crd.spec.group, crd.spec.names.kind)]);
        let watched: Arc<Mutex<HashMap<String, Cache<DynamicObject>>>> = Arc::default();
        let (ended, of_kinds) = (watched.clone(), caches.clone());
        crds.subscribe(move |change| {
            // A CRD that is created again needs a new list, because the old cache ended with the CRD.
            let Some(crd) = change.old.filter(|_| change.new.is_none()) else { return };
            for version in &crd.spec.versions {
                let resource = resource_of(crd, &version.name);
                of_kinds.end_dynamic(&resource);
                ended.lock().remove(&id(&resource));
            }
        });
        Self { caches, crds, listeners: Arc::default(), watched }
    }

    /// The CRDs, for controllers that must run again when one appears or its labels change.
    pub fn crds(&self) -> &Cache<CustomResourceDefinition> {
        &self.crds
    }

    /// Calls `listener` with the [`index_value`] of every provider's object that changes.
    pub fn on_change(&self, listener: impl Fn(&str) + Send + Sync + 'static) {
        self.listeners.lock().push(Box::new(listener));
    }

    /// The API resource of a group and kind.
    pub fn resolve(&self, group: &str, kind: &str) -> Result<(ApiResource, Contract), ResolveError> {
        match self.crds.by_index(INDEX, &format!("{group}/{kind}")).first() {
            Some(crd) => resolve(crd),
            None => Err(ResolveError::CrdMissing { kind: kind.to_owned(), group: group.to_owned() }),
        }
    }

    /// The cache of a kind after its first list; an object that is not in it does not exist.
    pub async fn cache(&self, resource: &ApiResource) -> Result<Cache<DynamicObject>, ResolveError> {
        let cache = self.caches.dynamic(resource);
        let known = self.watched.lock().insert(id(resource), cache.clone());
        if !known.is_some_and(|known| known.is(&cache)) {
            cache.index_by_owner();
            let (listeners, group, kind) =
                (self.listeners.clone(), resource.group.clone(), resource.kind.clone());
            cache.subscribe(move |change: &Change<'_, DynamicObject>| {
                let value = index_value(&group, &kind, change.key);
                listeners.lock().iter().for_each(|listener| listener(&value));
            });
        }
        match tokio::time::timeout(FIRST_LIST, cache.synced()).await {
            Ok(()) => Ok(cache),
            Err(_) => {
                Err(ResolveError::NotListed { plural: format!("{}.{}", resource.plural, resource.group) })
            }
        }
    }

    /// Resolves `reference`.
    pub async fn get(
        &self,
        namespace: &str,
        reference: Option<&ContractVersionedObjectReference>,
    ) -> External {
        let Some(reference) = reference else { return External::Unset };
        let (resource, contract) = match self.resolve(&reference.api_group, &reference.kind) {
            Ok(resolved) => resolved,
            Err(error) => return External::Unresolvable(error),
        };
        match self.cache(&resource).await {
            Err(error) => External::Unresolvable(error),
            Ok(cache) => match cache.get(&ObjectKey::new(namespace, &reference.name)) {
                Some(object) => External::Found { resource, contract, object },
                None => External::NotFound(resource),
            },
        }
    }

    /// The API of a kind.
    pub fn api(&self, namespace: &str, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.caches.client().clone(), namespace, resource)
    }
}

fn id(resource: &ApiResource) -> String {
    format!("{}/{}", resource.api_version, resource.plural)
}

/// The index value of an object's reference to a provider's object.
pub fn index_value(group: &str, kind: &str, key: &ObjectKey) -> String {
    format!("{group}/{kind}/{}/{}", key.namespace, key.name)
}

/// The index values of references from `namespace`.
pub fn index_values<'a>(
    namespace: Option<&str>,
    references: impl IntoIterator<Item = &'a ContractVersionedObjectReference>,
) -> Vec<String> {
    let namespace = namespace.unwrap_or_default();
    references
        .into_iter()
        .map(|reference| {
            index_value(&reference.api_group, &reference.kind, &ObjectKey::new(namespace, &reference.name))
        })
        .collect()
}
