//! `PUT /api/v1/namespaces/{name}/finalize`: the only way to change `spec.finalizers`.

use crate::auth::fields::put;
use crate::objects::UpdateOptions;
use crate::registry::{Connect, ConnectRequest};
use crate::status::{GroupName, Status};
use futures::future::BoxFuture;
use serde_json::Value;

/// Serves the subresource.
#[derive(Clone, Copy, Debug, Default)]
pub struct Finalize;

impl Connect for Finalize {
    fn connect<'a>(&'a self, request: ConnectRequest<'a>) -> BoxFuture<'a, Result<(u16, Value), Status>> {
        Box::pin(async move {
            if request.verb != "update" {
                return Err(Status::method_not_allowed());
            }
            let sent = request.body.unwrap_or_default();
            if sent["metadata"]["name"].as_str().is_some_and(|n| n != request.name) {
                return Err(Status::bad_request("the name of the object does not match the name on the URL"));
            }
            let options =
                UpdateOptions { subresource: "finalize", unconditional: true, ..UpdateOptions::default() };
            let change = |old: Option<&Value>| {
                let mut object = old.cloned().unwrap_or_default();
                let uid = sent["metadata"]["uid"].as_str().unwrap_or_default();
                if !uid.is_empty() && object["metadata"]["uid"] != uid {
                    let about = GroupName { group: "", name: "namespaces" };
                    return Err(Status::conflict(
                        about,
                        request.name,
                        "the UID in the request is another one",
                    ));
                }
                if let Some(revision) = sent["metadata"]["resourceVersion"].as_str().filter(|r| !r.is_empty())
                {
                    put(&mut object, &["metadata", "resourceVersion"], revision);
                }
                let finalizers = sent["spec"]["finalizers"].as_array().cloned().unwrap_or_default();
                put(&mut object, &["spec", "finalizers"], finalizers);
                Ok(object)
            };
            let outcome = request
                .objects
                .update(request.context, request.resource, "", request.name, options, change)
                .await?;
            Ok((200, outcome.version.decode()))
        })
    }
}
