//! Namespace: has a second list of finalizers in its spec, and a phase.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::{child, keep_field};
use crate::object::{ObjectExt, object_mut};
use crate::objects::UpdateOptions;
use crate::resources::{Connect, ConnectRequest, Serve, SubresourceDef};
use crate::status::Status;

const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Sets the label with the namespace's name.
pub(super) fn default_namespace(namespace: &mut Value) {
    let name = namespace.name().to_owned();
    if name.is_empty() {
        return;
    }
    let labels = namespace.metadata_mut().entry("labels").or_insert(Value::Null);
    object_mut(labels).insert(NAME_LABEL.into(), name.into());
}

pub(super) fn create_namespace(namespace: &mut Value) {
    let spec = child(namespace, "spec");
    let has = spec["finalizers"].as_array().is_some_and(|list| list.iter().any(|f| f == "kubernetes"));
    if !has {
        let list = object_mut(spec).entry("finalizers").or_insert(json!([]));
        match list {
            Value::Array(items) => items.push("kubernetes".into()),
            other => *other = json!(["kubernetes"]),
        }
    }
    child(namespace, "status")["phase"] = "Active".into();
}

/// Only `/finalize` changes `spec.finalizers`.
pub(super) fn update_namespace(namespace: &mut Value, old: &Value, subresource: &str) {
    if subresource != "finalize" {
        keep_field(namespace, old, "spec");
    }
}

pub(super) fn holds(namespace: &Value) -> bool {
    namespace["spec"]["finalizers"].as_array().is_some_and(|list| !list.is_empty())
}

pub(super) fn terminate(namespace: &mut Value) {
    child(namespace, "status")["phase"] = "Terminating".into();
}

/// `PUT /finalize`.
pub(super) fn finalize() -> SubresourceDef {
    SubresourceDef {
        name: "finalize".into(),
        group: String::new(),
        version: String::new(),
        kind: "Namespace".into(),
        verbs: vec!["update"],
        serve: Serve::Connect(Arc::new(Finalize)),
    }
}

struct Finalize;

impl Connect for Finalize {
    fn connect<'a>(&'a self, request: ConnectRequest<'a>) -> BoxFuture<'a, Result<(u16, Value), Status>> {
        Box::pin(async move {
            let body = request.body.ok_or_else(|| Status::bad_request("a Namespace is required"))?;
            let options = UpdateOptions { subresource: "finalize", ..UpdateOptions::default() };
            let change = |old: Option<&Value>| {
                // Changes only the finalizers of the spec, with the caller's uid and resourceVersion as preconditions.
                let mut namespace = old.cloned().unwrap_or_default();
                namespace["spec"]["finalizers"] = body["spec"]["finalizers"].clone();
                if namespace["spec"]["finalizers"].is_null() {
                    object_mut(&mut namespace["spec"]).remove("finalizers");
                }
                namespace.set_meta_str("resourceVersion", body.resource_version());
                if !body.uid().is_empty() {
                    namespace.set_meta_str("uid", body.uid());
                }
                Ok(namespace)
            };
            let outcome = request
                .objects
                .update(request.context, request.resource, "", request.name, options, change)
                .await?;
            Ok((200, outcome.version.decode()))
        })
    }
}
