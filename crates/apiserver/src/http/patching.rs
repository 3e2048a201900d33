//! Handles PATCH requests.

use std::sync::Arc;

use http::{Response, StatusCode};
use serde_json::Value;

use super::decode::{self, Decoded};
use super::query::invalid;
use super::service::Call;
use super::{ApiBody, handlers};
use crate::object::ObjectExt;
use crate::objects::{Outcome, UpdateOptions, WriteContext};
use crate::patch::{Manager, PatchType, json_patch, merge_patch};
use crate::resources::Resource;
use crate::status::{FieldError, Status};

/// A patch, decoded as far as possible without the object.
pub(super) enum Patch {
    Json(bytes::Bytes),
    Merge(Value),
    Strategic(Value),
    Apply(Value),
}

/// Handles a PATCH of an object or its status.
pub(super) async fn patch(
    call: &Call<'_>,
    resource: &Arc<Resource>,
    subresource: &str,
) -> Result<Response<ApiBody>, Status> {
    let renderer = handlers::renderer(call, resource, false)?;
    let (patch, context) = decode(call, resource)?;
    let outcome = match &patch {
        Patch::Apply(config) => apply(call, &context, resource, subresource, config).await?,
        patch => {
            let options = UpdateOptions { subresource, unconditional: true, ..UpdateOptions::default() };
            let namespace = handlers::namespace(call, resource);
            let change = |old: Option<&Value>| patched(call, resource, patch, old.unwrap_or(&Value::Null));
            call.shared
                .objects
                .update(&context, resource, namespace, &call.info.name, options, change)
                .await?
        }
    };
    let code = if outcome.created { StatusCode::CREATED } else { StatusCode::OK };
    renderer.object(code, outcome.version).await
}

/// Decodes body and options of a patch.
pub(super) fn decode(call: &Call<'_>, resource: &Resource) -> Result<(Patch, WriteContext), Status> {
    let plugins = &call.shared.plugins;
    let headers = &call.parts.headers;
    let kind = decode::patch_type(headers, resource, plugins.strategic.is_some(), plugins.fields.is_some())?;
    if call.query.get("force").is_some() && kind != PatchType::Apply {
        let error = FieldError::forbidden("force", "may not be specified for non-apply patch");
        return Err(invalid("PatchOptions", &[error]));
    }
    let (patch, duplicates) = match kind {
        PatchType::Json => (Patch::Json(call.body.clone()), Vec::new()),
        PatchType::Apply => {
            let Decoded { value, duplicates } = decode::yaml(&call.body)?;
            (Patch::Apply(value), duplicates)
        }
        PatchType::Merge | PatchType::Strategic => {
            let Decoded { value, duplicates } = decode::json(&call.body)?;
            if !value.is_object() {
                return Err(Status::bad_request("error decoding patch: the patch must be an object"));
            }
            (if kind == PatchType::Merge { Patch::Merge(value) } else { Patch::Strategic(value) }, duplicates)
        }
    };
    let context = handlers::context(call, duplicates)?;
    if kind == PatchType::Apply && call.query.field_manager()?.is_none() {
        let error = FieldError::required("fieldManager", "is required for apply patch");
        return Err(invalid("PatchOptions", &[error]));
    }
    Ok((patch, context))
}

/// Applies a patch other than server-side apply.
pub(super) fn patched(
    call: &Call<'_>,
    resource: &Resource,
    patch: &Patch,
    old: &Value,
) -> Result<Value, Status> {
    match patch {
        Patch::Json(bytes) => json_patch(old, bytes),
        Patch::Merge(patch) => {
            let mut object = old.clone();
            merge_patch(&mut object, patch);
            Ok(object)
        }
        Patch::Strategic(patch) => {
            let strategic = call.shared.plugins.strategic.as_ref();
            let strategic = strategic.ok_or_else(|| Status::internal("no strategic merge"))?;
            strategic.merge(resource, old, patch)
        }
        Patch::Apply(_) => Err(Status::internal("apply is not a plain patch")),
    }
}

/// Server-side apply.
pub(super) async fn apply(
    call: &Call<'_>,
    context: &WriteContext,
    resource: &Arc<Resource>,
    subresource: &str,
    config: &Value,
) -> Result<Outcome, Status> {
    let objects = &call.shared.objects;
    let fields = objects.fields().ok_or_else(|| Status::internal("no field manager"))?;
    if config.api_version() != resource.api_version() && subresource != "scale" {
        return Err(Status::bad_request(format!(
            "Incorrect version specified in apply patch. Specified patch version: {}, expected: {}",
            config.api_version(),
            resource.api_version()
        )));
    }
    let managed = config.get("metadata").and_then(|meta| meta.get("managedFields"));
    if managed.is_some_and(|managed| !managed.is_null()) {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    let force = call.query.flag("force");
    // Creating an object by apply requires the create permission, too; check before anything is changed.
    let namespace = handlers::namespace(call, resource);
    let name = &call.info.name;
    let create = subresource.is_empty() && objects.get(resource, namespace, name).is_err();
    if create {
        may_create(call).await?;
    }
    let options = UpdateOptions { subresource, create, unconditional: true, tracked: true };
    let now = objects.clock().now();
    let by = Manager { name: &context.field_manager, subresource, now };
    let change = |live: Option<&Value>| fields.apply(resource, live, config, &by, force);
    objects.update(context, resource, namespace, name, options, change).await
}

async fn may_create(call: &Call<'_>) -> Result<(), Status> {
    let mut attributes = call.info.attributes(&call.user, call.query);
    attributes.verb = "create".into();
    let decision = call.shared.plugins.authorizer.authorize(&attributes).await?;
    if decision.allowed {
        return Ok(());
    }
    let resource = crate::status::GroupName { group: &call.info.group, name: &call.info.resource };
    Err(Status::forbidden(resource, &call.info.name, &attributes.denial(&decision.reason)))
}
