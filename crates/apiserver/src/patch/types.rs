//! The type of a resource: from the table for built-in kinds, from its schema for custom resources.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use drover_smd::managed::Versions;
use drover_smd::schema::{Schema, Type, TypeId};
use futures::FutureExt;
use parking_lot::RwLock;
use serde_json::Value;

use super::table::Builtin;
use crate::resources::{Resource, ResourceTable};

/// Types of resources, compiled once per registration.
#[derive(Default)]
pub(super) struct Types {
    resources: OnceLock<Weak<ResourceTable>>,
    /// By apiVersion and kind, with the registration they were compiled for.
    compiled: RwLock<HashMap<(String, String), Registered>>,
}

type Registered = (u64, Arc<Compiled>);

/// A type and its schema.
pub(super) enum Compiled {
    Builtin(Type<'static>),
    Own { schema: Schema, id: TypeId },
}

impl Compiled {
    pub(super) fn ty(&self) -> Type<'_> {
        match self {
            Self::Builtin(ty) => *ty,
            Self::Own { schema, id } => Type { schema, id: *id },
        }
    }
}

impl Types {
    /// Sets the table with the other versions of a kind.
    pub(super) fn attach(&self, resources: &Arc<ResourceTable>) {
        let _ = self.resources.set(Arc::downgrade(resources));
    }

    /// The type of a resource.
    pub(super) fn of(&self, resource: &Resource) -> Arc<Compiled> {
        let key = (resource.api_version().to_owned(), resource.def.kind.clone());
        if let Some((id, compiled)) = self.compiled.read().get(&key)
            && *id == resource.id()
        {
            return compiled.clone();
        }
        let compiled = Arc::new(compile(resource));
        self.compiled.write().insert(key, (resource.id(), compiled.clone()));
        compiled
    }

    /// The versions of a resource's kind in which managers may have written; only those of `entries` are needed.
    pub(super) fn versions<'a>(
        &self,
        resource: &'a Resource,
        spoken: impl Iterator<Item = &'a str>,
    ) -> KindVersions<'a> {
        let mut siblings = HashMap::new();
        if let Some(resources) = self.resources.get().and_then(Weak::upgrade) {
            for api_version in spoken.filter(|version| *version != resource.api_version()) {
                let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
                if group == resource.def.group
                    && let Some(sibling) = resources.snapshot().kind(group, version, &resource.def.kind)
                {
                    siblings.insert(api_version.to_owned(), (sibling.clone(), self.of(sibling)));
                }
            }
        }
        KindVersions { resource, own: self.of(resource), siblings }
    }
}

/// All versions of a kind that are needed for one write.
pub(super) struct KindVersions<'a> {
    resource: &'a Resource,
    own: Arc<Compiled>,
    siblings: HashMap<String, (Arc<Resource>, Arc<Compiled>)>,
}

impl KindVersions<'_> {
    fn resource(&self, api_version: &str) -> Option<&Resource> {
        if api_version == self.resource.api_version() {
            return Some(self.resource);
        }
        self.siblings.get(api_version).map(|(resource, _)| &**resource)
    }
}

impl Versions for KindVersions<'_> {
    fn type_at(&self, api_version: &str) -> Option<Type<'_>> {
        if api_version == self.resource.api_version() {
            return Some(self.own.ty());
        }
        self.siblings.get(api_version).map(|(_, compiled)| compiled.ty())
    }

    fn convert(&self, object: &Value, from: &str, to: &str) -> Result<Value, String> {
        let (Some(source), Some(target)) = (self.resource(from), self.resource(to)) else {
            return Err(format!("no conversion from {from} to {to}"));
        };
        // In-process conversions are ready at once; those that must be awaited are not available here.
        let waits = || format!("the conversion from {from} to {to} does not run in process");
        let stored = source.strategy.to_storage(object.clone()).now_or_never().ok_or_else(waits)?;
        let stored = stored.map_err(|status| status.message)?;
        let converted = target.strategy.from_storage(vec![stored]).now_or_never().ok_or_else(waits)?;
        let mut converted = converted.map_err(|status| status.message)?.pop().ok_or_else(waits)?;
        converted["apiVersion"] = to.into();
        Ok(converted)
    }
}

fn compile(resource: &Resource) -> Compiled {
    if let Some(ty) = Builtin::get().kind(resource.api_version(), &resource.def.kind) {
        return Compiled::Builtin(ty);
    }
    if let Some(custom) = resource.strategy.custom() {
        let mut schema = Schema::new();
        let object_meta = schema.add_object_meta();
        let id = schema.add_custom_resource(&custom.open_api, object_meta);
        return Compiled::Own { schema, id };
    }
    let (schema, id) = Builtin::get().unknown_kind();
    Compiled::Own { schema, id }
}
