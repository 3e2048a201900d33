//! `/scale`: `autoscaling/v1 Scale` over fields of the stored object.

use std::sync::Arc;

use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::decode::{self, Decoded};
use super::negotiate::{Offer, negotiate};
use super::patching::{self, Patch};
use super::respond::value_response;
use super::service::Call;
use super::{ApiBody, handlers};
use crate::object::{ObjectExt, at_path, set_path};
use crate::objects::UpdateOptions;
use crate::resources::{Resource, ScalePaths};
use crate::status::{FieldError, GroupName, Status};

const API_VERSION: &str = "autoscaling/v1";

/// Handles GET, PUT and PATCH.
pub(super) async fn serve(
    call: &Call<'_>,
    resource: &Arc<Resource>,
    paths: &ScalePaths,
) -> Result<Response<ApiBody>, Status> {
    let form = negotiate(&call.parts.headers, Offer::default())?;
    let namespace = handlers::namespace(call, resource);
    let name = call.info.name.as_str();
    let objects = &call.shared.objects;
    let options = UpdateOptions { subresource: "scale", unconditional: true, ..UpdateOptions::default() };
    let version = match call.info.verb {
        "get" => objects.get(resource, namespace, name)?,
        "update" => {
            let Decoded { value, duplicates } = decode::object(&call.parts.headers, &call.body)?;
            let context = handlers::context(call, duplicates)?;
            let change = |old: Option<&Value>| scaled(old.unwrap_or(&Value::Null), &value, paths);
            objects.update(&context, resource, namespace, name, options, change).await?.version
        }
        "patch" => {
            let (patch, context) = patching::decode(call, resource)?;
            match &patch {
                Patch::Apply(config) => {
                    let main = applied(resource, config, paths)?;
                    patching::apply(call, &context, resource, "scale", &main).await?.version
                }
                patch => {
                    let change = |old: Option<&Value>| {
                        let old = old.unwrap_or(&Value::Null);
                        let scale = patching::patched(call, resource, patch, &scale_of(old, paths))?;
                        scaled(old, &scale, paths)
                    };
                    objects.update(&context, resource, namespace, name, options, change).await?.version
                }
            }
        }
        _ => return Err(Status::method_not_allowed()),
    };
    let scale = scale_of(&resource.decode(&version).await?, paths);
    Ok(value_response(StatusCode::OK, &scale, form.encoding, call.pretty()))
}

/// Returns the Scale of an object.
fn scale_of(object: &Value, paths: &ScalePaths) -> Value {
    let number = |path: &[String]| at_path(object, path).and_then(Value::as_i64).unwrap_or(0);
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        let value = object.meta_str(field);
        if !value.is_empty() {
            metadata[field] = value.into();
        }
    }
    let mut status = json!({"replicas": number(&paths.status_replicas)});
    if let Some(selector) = paths.selector.as_ref().and_then(|path| at_path(object, path)) {
        let text = selector_text(selector);
        if !text.is_empty() {
            status["selector"] = text.into();
        }
    }
    let mut spec = json!({});
    if number(&paths.spec_replicas) != 0 {
        spec["replicas"] = number(&paths.spec_replicas).into();
    }
    json!({"kind": "Scale", "apiVersion": API_VERSION, "metadata": metadata, "spec": spec, "status": status})
}

/// A selector as text: in CRDs it is text, in built-in kinds a LabelSelector, in ReplicationController a map.
fn selector_text(selector: &Value) -> String {
    if let Some(text) = selector.as_str() {
        return text.to_owned();
    }
    let mut terms = Vec::new();
    let plain = selector.get("matchLabels").is_none() && selector.get("matchExpressions").is_none();
    let labels = if plain { Some(selector) } else { selector.get("matchLabels") };
    for (key, value) in labels.and_then(Value::as_object).into_iter().flatten() {
        terms.push(format!("{key}={}", value.as_str().unwrap_or_default()));
    }
    for term in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
        let key = term.top_str("key");
        let values = term.get("values").and_then(Value::as_array).into_iter().flatten();
        let mut values: Vec<&str> = values.filter_map(Value::as_str).collect();
        values.sort_unstable();
        match term.top_str("operator") {
            "In" => terms.push(format!("{key} in ({})", values.join(","))),
            "NotIn" => terms.push(format!("{key} notin ({})", values.join(","))),
            "Exists" => terms.push(key.to_owned()),
            "DoesNotExist" => terms.push(format!("!{key}")),
            _ => {}
        }
    }
    terms.join(",")
}

/// Returns the object with the replicas of a Scale.
fn scaled(old: &Value, scale: &Value, paths: &ScalePaths) -> Result<Value, Status> {
    if !matches!(scale.kind(), "" | "Scale") || !matches!(scale.api_version(), "" | API_VERSION) {
        return Err(Status::bad_request(format!(
            "expected {API_VERSION} Scale, got {} {}",
            scale.api_version(),
            scale.kind()
        )));
    }
    if !scale.name().is_empty() && scale.name() != old.name() {
        return Err(Status::bad_request("the name of the object does not match the name on the URL"));
    }
    let replicas = match scale.get("spec").and_then(|spec| spec.get("replicas")) {
        None | Some(Value::Null) => 0,
        Some(value) => value.as_i64().filter(|n| (0..=i64::from(i32::MAX)).contains(n)).ok_or_else(|| {
            let error = FieldError::invalid("spec.replicas", value, "must be greater than or equal to 0");
            Status::invalid(GroupName { group: "autoscaling", name: "Scale" }, old.name(), &[error])
        })?,
    };
    let mut object = old.clone();
    set_path(&mut object, &paths.spec_replicas, replicas.into());
    let revision = scale.resource_version();
    if !revision.is_empty() {
        object.set_meta_str("resourceVersion", revision);
    }
    if !scale.uid().is_empty() {
        object.set_meta_str("uid", scale.uid());
    }
    Ok(object)
}

/// Converts an applied Scale to an apply of the main object's replicas.
fn applied(resource: &Resource, config: &Value, paths: &ScalePaths) -> Result<Value, Status> {
    let replicas = config.get("spec").and_then(|spec| spec.get("replicas")).cloned();
    let replicas = replicas.ok_or_else(|| Status::bad_request("spec.replicas is required"))?;
    let mut main = json!({
        "apiVersion": resource.api_version(), "kind": resource.def.kind,
        "metadata": {"name": config.name()},
    });
    if !config.namespace().is_empty() {
        main.set_meta_str("namespace", config.namespace());
    }
    set_path(&mut main, &paths.spec_replicas, replicas);
    Ok(main)
}
