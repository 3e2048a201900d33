//! Registration tokens: what has no effect yet is told.

use drover_api::management::v3::ClusterRegistrationToken;
use drover_apiserver::admission::{Admission, AdmissionRequest, Operation};
use drover_apiserver::registry::Resource;
use drover_apiserver::status::Status;
use futures::future::BoxFuture;
use kube::Resource as _;
use serde_json::Value;

/// Tokens live as long as their object, whatever their spec asks for.
pub(super) struct Lasting;

impl Admission for Lasting {
    fn name(&self) -> &str {
        "lasting-tokens"
    }

    fn handles(&self, operation: Operation, resource: &Resource, subresource: &str) -> bool {
        operation != Operation::Delete
            && subresource.is_empty()
            && resource.def.group == ClusterRegistrationToken::group(&())
            && resource.def.kind == ClusterRegistrationToken::kind(&())
    }

    fn validate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        object: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        for field in ["ttl", "gracePeriod"] {
            if object.is_some_and(|object| object["spec"][field].as_i64().is_some_and(|minutes| minutes > 0))
            {
                request.warnings.add(format!("spec.{field} is stored, but tokens do not expire yet"));
            }
        }
        Box::pin(async { Ok(()) })
    }
}
