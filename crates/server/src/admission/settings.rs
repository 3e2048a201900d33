//! Settings in the form that those who read them rely on.

use drover_api::management::v3::Setting;
use drover_apiserver::admission::{Admission, AdmissionRequest, Operation};
use drover_apiserver::registry::Resource;
use drover_apiserver::status::Status;
use futures::future::BoxFuture;
use kube::Resource as _;
use serde_json::{Value, json};

/// Authorities, whose checksums agents compute: a newline more at the end would change them.
const AUTHORITIES: [&str; 2] = ["cacerts", "internal-cacerts"];

/// Authorities are stored without white space around them.
pub(super) struct Trimmed;

impl Admission for Trimmed {
    fn name(&self) -> &str {
        "trimmed-authorities"
    }

    fn handles(&self, operation: Operation, resource: &Resource, subresource: &str) -> bool {
        operation != Operation::Delete
            && subresource.is_empty()
            && resource.def.group == Setting::group(&())
            && resource.def.kind == Setting::kind(&())
    }

    fn mutate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        object: &'a mut Value,
    ) -> BoxFuture<'a, Result<(), Status>> {
        if AUTHORITIES.contains(&request.name)
            && let Some(value) = object["value"].as_str()
        {
            let trimmed = value.trim().to_owned();
            object["value"] = json!(trimmed);
        }
        Box::pin(async { Ok(()) })
    }
}
