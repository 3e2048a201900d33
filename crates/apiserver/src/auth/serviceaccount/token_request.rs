//! `POST serviceaccounts/{name}/token`.

use super::claims::Ref;
use super::{Binding, Issuer};
use crate::clock::rfc3339_seconds;
use crate::resources::{Connect, ConnectRequest};
use crate::status::{FieldError, GroupName, Status};
use crate::storage::{Key, Version};
use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

const DEFAULT_SECONDS: i64 = 3_600;
const MIN_SECONDS: i64 = 600;
const MAX_SECONDS: i64 = 1 << 32;

/// Serves the subresource.
pub struct TokenRequest {
    issuer: Arc<Issuer>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    audiences: Option<Vec<String>>,
    expiration_seconds: Option<i64>,
    bound_object_ref: Option<BoundObject>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct BoundObject {
    kind: String,
    api_version: String,
    name: String,
    uid: String,
}

impl TokenRequest {
    /// Issues tokens with this issuer.
    pub fn new(issuer: Arc<Issuer>) -> Self {
        Self { issuer }
    }

    fn answer(&self, request: &ConnectRequest<'_>) -> Result<Value, Status> {
        let (namespace, name) = (request.namespace, request.name);
        let body = request.body.clone().unwrap_or_default();
        let account = request.objects.get(request.resource, namespace, name)?;
        for (field, wanted) in [("name", name), ("namespace", namespace)] {
            if body["metadata"][field].as_str().is_some_and(|v| !v.is_empty() && v != wanted) {
                return Err(Status::bad_request(format!(
                    "the {field} of the object does not match the {field} on the URL"
                )));
            }
        }
        let spec: Spec = match body.get("spec").filter(|s| !s.is_null()) {
            Some(spec) => serde_json::from_value(spec.clone())
                .map_err(|e| Status::bad_request(format!("the object provided is unrecognized: {e}")))?,
            None => Spec::default(),
        };
        let seconds = spec.expiration_seconds.unwrap_or(DEFAULT_SECONDS);
        check_seconds(seconds)?;
        let audiences = spec
            .audiences
            .filter(|a| !a.is_empty())
            .unwrap_or_else(|| self.issuer.options().audiences.clone());
        let binding = match &spec.bound_object_ref {
            Some(bound) => bind(request, bound)?,
            None => Binding::default(),
        };
        let account = Ref { name: name.to_owned(), uid: account.meta().uid.to_string() };
        let (token, expiry) =
            self.issuer.mint(namespace, account, &audiences, seconds, binding).map_err(Status::internal)?;
        let bound = body["spec"].get("boundObjectRef").cloned().unwrap_or_default();
        Ok(json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "metadata": {
                "name": name, "namespace": namespace,
                "creationTimestamp": rfc3339_seconds(request.objects.clock().now()),
            },
            "spec": {"audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": bound},
            "status": {"token": token, "expirationTimestamp": rfc3339_seconds(expiry)},
        }))
    }
}

impl Connect for TokenRequest {
    fn connect<'a>(&'a self, request: ConnectRequest<'a>) -> BoxFuture<'a, Result<(u16, Value), Status>> {
        let result = match request.verb {
            "create" => self.answer(&request).map(|object| (201, object)),
            _ => Err(Status::method_not_allowed()),
        };
        Box::pin(std::future::ready(result))
    }
}

fn check_seconds(seconds: i64) -> Result<(), Status> {
    let why = if seconds < MIN_SECONDS {
        "may not specify a duration less than 10 minutes"
    } else if seconds > MAX_SECONDS {
        "may not specify a duration larger than 2^32 seconds"
    } else {
        return Ok(());
    };
    let kind = GroupName { group: "authentication.k8s.io", name: "TokenRequest" };
    Err(Status::invalid(kind, "", &[FieldError::invalid("spec.expirationSeconds", &seconds.into(), why)]))
}

fn bind(request: &ConnectRequest<'_>, bound: &BoundObject) -> Result<Binding, Status> {
    let (resource, namespace) = match (bound.api_version.as_str(), bound.kind.as_str()) {
        ("v1", "Pod") => ("pods", request.namespace),
        ("v1", "Secret") => ("secrets", request.namespace),
        ("v1", "Node") => ("nodes", ""),
        (version, kind) => {
            return Err(Status::bad_request(format!(
                "cannot bind token for serviceaccount to object of type {version}, Kind={kind}"
            )));
        }
    };
    let about = GroupName { group: "", name: resource };
    let found = request.objects.storage().index().get(&Key::new("", resource, namespace, &bound.name));
    let found: Arc<Version> = found.ok_or_else(|| Status::not_found(about, &bound.name))?;
    if !bound.uid.is_empty() && *found.meta().uid != *bound.uid {
        let why = format!(
            "the UID in the bound object reference ({}) does not match the UID in record. The object might have been deleted and then recreated",
            bound.uid
        );
        return Err(Status::conflict(about, &bound.name, &why));
    }
    let reference = Some(Ref { name: bound.name.clone(), uid: found.meta().uid.to_string() });
    Ok(match resource {
        "secrets" => Binding { secret: reference, ..Binding::default() },
        "nodes" => Binding { node: reference, ..Binding::default() },
        _ => {
            let pod = found.decode();
            if pod["spec"]["serviceAccountName"].as_str() != Some(request.name) {
                return Err(Status::bad_request(format!(
                    "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
                    request.name
                )));
            }
            let node = pod["spec"]["nodeName"].as_str().filter(|n| !n.is_empty());
            let node = node.map(|n| {
                let live = request.objects.storage().index().get(&Key::new("", "nodes", "", n));
                Ref { name: n.to_owned(), uid: live.map(|v| v.meta().uid.to_string()).unwrap_or_default() }
            });
            Binding { pod: reference, node, ..Binding::default() }
        }
    })
}
