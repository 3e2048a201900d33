//! Custom resource definitions: serves resources for stored CRDs.
//!
//! [`strategy`] applies defaults to a CRD and validates it when it is written. [`observer`] wraps the store and, on
//! every write of a CRD, makes [`controller`] update the served resources before the writer gets its response. So
//! discovery, OpenAPI and serving change together, and `Established` is set only after the resource is served.
//! [`names`] and [`conditions`] decide a CRD's status, [`kind`] is the behaviour of one served version, and
//! [`finalize`] removes the instances of a CRD that is being deleted.

mod conditions;
pub mod controller;
mod finalize;
pub mod kind;
mod known_fields;
mod names;
pub mod observer;
pub mod strategy;
mod terminating;
mod validate;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::Value;

pub use controller::Controller;
pub use kind::CustomKind;
pub use observer::{Observer, observe};

use crate::resources::{Resource, ResourceDef, Rules, SubresourceDef};
use crate::status::Status;

/// API group of CRDs.
pub const GROUP: &str = "apiextensions.k8s.io";
/// Plural name of CRDs.
pub const PLURAL: &str = "customresourcedefinitions";
/// Set with the first DELETE; removed when no instance is left.
pub const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// The resource `customresourcedefinitions` itself.
pub fn resource() -> Resource {
    let kind = "CustomResourceDefinition";
    let def = ResourceDef {
        group: GROUP.into(),
        version: "v1".into(),
        plural: PLURAL.into(),
        singular: "customresourcedefinition".into(),
        kind: kind.into(),
        list_kind: format!("{kind}List"),
        short_names: vec!["crd".into(), "crds".into()],
        categories: vec!["api-extensions".into()],
        namespaced: false,
        verbs: vec!["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
        subresources: vec![SubresourceDef::status(kind)],
        rules: Rules { unconditional_update: false, generation: true, wipe_status: true, ..Rules::default() },
        ..ResourceDef::default()
    };
    Resource::new(def, Arc::new(strategy::CrdStrategy))
}

/// Converts objects of one kind between its versions, in process.
///
/// Replaces `spec.conversion`; registered by the CRD's name.
pub trait Converter: Send + Sync + 'static {
    /// Returns `object` in version `to` (without group); the caller sets `apiVersion`.
    fn convert(&self, object: Value, to: &str) -> Result<Value, Status>;
}
