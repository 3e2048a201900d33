//! Handlers of resource requests, one per verb.

use std::sync::Arc;

use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::decode::{self, Decoded};
use super::heavy::HEAVY_FROM;
use super::negotiate::{Form, Offer, negotiate};
use super::respond::{Renderer, json_response, value_response};
use super::service::Call;
use super::{ApiBody, patching, scale, stream};
use crate::objects::{ListPage, UpdateOptions, WriteContext};
use crate::resources::{ConnectRequest, Resource, Serve};
use crate::status::Status;

/// Handles a request for a resource.
pub(super) async fn resource(call: Call<'_>) -> Result<Response<ApiBody>, Status> {
    let info = call.info;
    let resource = call
        .shared
        .objects
        .resources()
        .resource(&info.group, &info.version, &info.resource)
        .ok_or_else(Status::not_found_path)?;
    if let Some(warning) = &resource.def.deprecation_warning {
        call.warnings.add(warning.clone());
    }
    check_scope(&call, &resource)?;
    if resource.virtual_resource.is_some() {
        return review(&call, &resource).await;
    }
    if !info.subresource.is_empty() {
        return subresource(call, &resource).await;
    }
    let nameless = info.name.is_empty() && matches!(info.verb, "update" | "patch");
    if nameless || !resource.has_verb(info.verb) {
        return Err(Status::method_not_allowed());
    }
    match info.verb {
        "get" => get(&call, &resource).await,
        "list" => list(&call, &resource).await,
        "watch" => stream::watch(&call, &resource).await,
        "create" => create(&call, &resource).await,
        "update" => update(&call, &resource, "").await,
        "patch" => patching::patch(&call, &resource, "").await,
        "delete" => delete(&call, &resource).await,
        "deletecollection" => delete_collection(&call, &resource).await,
        _ => Err(Status::method_not_allowed()),
    }
}

/// Namespaced objects need a namespace in the path; others must not have one.
fn check_scope(call: &Call<'_>, resource: &Resource) -> Result<(), Status> {
    let info = call.info;
    let namespaced_path = !info.namespace.is_empty() && info.resource != "namespaces";
    let across = matches!(info.verb, "list" | "watch" | "deletecollection") && info.name.is_empty();
    match (resource.def.namespaced, namespaced_path) {
        (true, false) if !across => Err(Status::not_found_path()),
        (false, true) => Err(Status::not_found_path()),
        _ => Ok(()),
    }
}

/// The namespace of an object request; empty for `namespaces/x` itself.
pub(super) fn namespace<'a>(call: &'a Call<'_>, resource: &Resource) -> &'a str {
    if resource.def.namespaced { &call.info.namespace } else { "" }
}

pub(super) fn range<'a>(call: &'a Call<'_>, resource: &Resource) -> Option<&'a str> {
    Some(namespace(call, resource)).filter(|namespace| !namespace.is_empty())
}

/// The format of the response, for an endpoint that returns objects.
pub(super) fn renderer(call: &Call<'_>, resource: &Arc<Resource>, list: bool) -> Result<Renderer, Status> {
    let watch = call.info.verb == "watch";
    let offer = Offer {
        table: call.shared.plugins.tables.is_some(),
        metadata: !list || watch,
        metadata_list: list || watch,
        aggregated: false,
    };
    Ok(Renderer {
        objects: call.shared.objects.clone(),
        plugins: call.shared.plugins.clone(),
        resource: resource.clone(),
        form: negotiate(&call.parts.headers, offer)?,
        pretty: call.pretty(),
        include_object: call.query.include_object()?,
    })
}

/// The writer and the options of a write, from query and headers.
pub(super) fn context(call: &Call<'_>, duplicates: Vec<String>) -> Result<WriteContext, Status> {
    let manager = match call.query.field_manager()? {
        Some(manager) => manager.to_owned(),
        None => {
            let agent =
                call.parts.headers.get(http::header::USER_AGENT).and_then(|agent| agent.to_str().ok());
            let name = agent.unwrap_or_default().split('/').next().unwrap_or_default();
            let name: String = name.chars().filter(|c| !c.is_control()).take(128).collect();
            if name.is_empty() { "unknown".into() } else { name }
        }
    };
    Ok(WriteContext {
        user: call.user.clone(),
        field_manager: manager,
        dry_run: call.query.dry_run()?,
        field_validation: call.query.field_validation()?,
        duplicate_fields: duplicates,
        warnings: call.warnings.clone(),
    })
}

async fn get(call: &Call<'_>, resource: &Arc<Resource>) -> Result<Response<ApiBody>, Status> {
    let renderer = renderer(call, resource, false)?;
    if let Some(revision) = call.query.resource_version()? {
        call.shared.objects.not_older_than(revision).await?;
    }
    let version = call.shared.objects.get(resource, namespace(call, resource), &call.info.name)?;
    renderer.object(StatusCode::OK, version).await
}

async fn list(call: &Call<'_>, resource: &Arc<Resource>) -> Result<Response<ApiBody>, Status> {
    let renderer = renderer(call, resource, true)?;
    let options = call.query.list(resource)?;
    let page = call.shared.objects.list(resource, range(call, resource), &options).await?;
    // Stored bytes are sent unchanged; any other format is built from every object.
    let large = page.items.iter().map(|item| item.len()).sum::<usize>() > HEAVY_FROM;
    if large && !call.heavy && !renderer.sends_stored_bytes() {
        return call.shared.heavy.run(async move { renderer.list(page).await }).await;
    }
    renderer.list(page).await
}

async fn create(call: &Call<'_>, resource: &Arc<Resource>) -> Result<Response<ApiBody>, Status> {
    if !call.info.name.is_empty() {
        return Err(Status::method_not_allowed());
    }
    let renderer = renderer(call, resource, false)?;
    let Decoded { value, duplicates } = decode::object(&call.parts.headers, &call.body)?;
    let context = context(call, duplicates)?;
    let outcome = call.shared.objects.create(&context, resource, namespace(call, resource), value).await?;
    renderer.object(StatusCode::CREATED, outcome.version).await
}

async fn update(
    call: &Call<'_>,
    resource: &Arc<Resource>,
    subresource: &str,
) -> Result<Response<ApiBody>, Status> {
    let renderer = renderer(call, resource, false)?;
    let Decoded { value, duplicates } = decode::object(&call.parts.headers, &call.body)?;
    let context = context(call, duplicates)?;
    let options = UpdateOptions {
        subresource,
        create: subresource.is_empty() && resource.def.rules.create_on_update,
        ..UpdateOptions::default()
    };
    let outcome =
        call.shared
            .objects
            .update(&context, resource, namespace(call, resource), &call.info.name, options, |_| {
                Ok(value.clone())
            })
            .await?;
    let code = if outcome.created { StatusCode::CREATED } else { StatusCode::OK };
    renderer.object(code, outcome.version).await
}

async fn delete(call: &Call<'_>, resource: &Arc<Resource>) -> Result<Response<ApiBody>, Status> {
    let renderer = renderer(call, resource, false)?;
    let (options, dry_run) = decode::delete_options(&call.parts.headers, &call.body, call.query)?;
    let context = WriteContext { dry_run, ..context(call, Vec::new())? };
    warn_of_orphans(call, resource, options.propagation.is_none());
    let name = &call.info.name;
    let deleted =
        call.shared.objects.delete(&context, resource, namespace(call, resource), name, &options).await?;
    if !deleted.removed {
        return renderer.object(StatusCode::OK, deleted.version).await;
    }
    let mut details = json!({"name": name, "kind": resource.def.plural, "uid": &*deleted.version.meta().uid});
    if !resource.def.group.is_empty() {
        details["group"] = resource.def.group.clone().into();
    }
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
    });
    Ok(value_response(StatusCode::OK, &status, renderer.form.encoding, renderer.pretty))
}

fn warn_of_orphans(call: &Call<'_>, resource: &Resource, by_default: bool) {
    if by_default && resource.def.rules.propagation == crate::resources::Propagation::Orphan {
        call.warnings.add("child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning");
    }
}

async fn delete_collection(call: &Call<'_>, resource: &Arc<Resource>) -> Result<Response<ApiBody>, Status> {
    let renderer = renderer(call, resource, true)?;
    let list = call.query.list(resource)?;
    let (options, dry_run) = decode::delete_options(&call.parts.headers, &call.body, call.query)?;
    let context = WriteContext { dry_run, ..context(call, Vec::new())? };
    let range = range(call, resource);
    let (items, revision) =
        call.shared.objects.delete_collection(&context, resource, range, &list, &options).await?;
    renderer.list(ListPage { items, revision, continue_token: None, remaining: None }).await
}

async fn subresource(call: Call<'_>, resource: &Arc<Resource>) -> Result<Response<ApiBody>, Status> {
    let info = call.info;
    let sub = resource.subresource(&info.subresource).ok_or_else(Status::not_found_path)?;
    if !sub.verbs.contains(&info.verb) {
        return Err(Status::method_not_allowed());
    }
    match (&sub.serve, info.verb) {
        (Serve::Status, "get") => get(&call, resource).await,
        (Serve::Status, "update") => update(&call, resource, "status").await,
        (Serve::Status, "patch") => patching::patch(&call, resource, "status").await,
        (Serve::Scale(paths), _) => scale::serve(&call, resource, paths).await,
        (Serve::Connect(connect), _) => {
            let Decoded { value, duplicates } = if call.body.is_empty() {
                Decoded::default()
            } else if info.verb == "patch" {
                decode::yaml(&call.body)?
            } else {
                decode::object(&call.parts.headers, &call.body)?
            };
            let context = context(&call, duplicates)?;
            let request = ConnectRequest {
                verb: info.verb,
                resource,
                namespace: namespace(&call, resource),
                name: &info.name,
                body: (!call.body.is_empty()).then_some(value),
                context: &context,
                objects: &call.shared.objects,
            };
            let (code, value) = connect.connect(request).await?;
            let code = StatusCode::from_u16(code).unwrap_or(StatusCode::OK);
            Ok(json_response(code, &value))
        }
        _ => Err(Status::method_not_allowed()),
    }
}

/// Handles a resource that is answered but never stored.
async fn review(call: &Call<'_>, resource: &Arc<Resource>) -> Result<Response<ApiBody>, Status> {
    let answer = resource.virtual_resource.as_ref().ok_or_else(Status::not_found_path)?;
    if call.info.verb != "create" || !call.info.name.is_empty() {
        return Err(Status::method_not_allowed());
    }
    // There is no metadata for a table or partial object: such clauses of Accept are ignored.
    let form: Form = negotiate(&call.parts.headers, Offer::default())?;
    let Decoded { value, duplicates } = decode::object(&call.parts.headers, &call.body)?;
    check_type(resource, &value)?;
    let context = context(call, duplicates)?;
    let value = answer.create(&context, &call.shared.objects, namespace(call, resource), value).await?;
    Ok(value_response(StatusCode::CREATED, &value, form.encoding, call.pretty()))
}

fn check_type(resource: &Resource, value: &Value) -> Result<(), Status> {
    let given = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
    let wrong = |field: &str, wanted: &str| !given(field).is_empty() && given(field) != wanted;
    if wrong("kind", &resource.def.kind) || wrong("apiVersion", resource.api_version()) {
        let message = format!(
            "the object ({}, {}) does not match the expected type ({}, {})",
            given("apiVersion"),
            given("kind"),
            resource.api_version(),
            resource.def.kind
        );
        return Err(Status::bad_request(message));
    }
    Ok(())
}
