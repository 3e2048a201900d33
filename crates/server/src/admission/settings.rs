//! Validation of Settings: invalid values are rejected, and those without an effect give a warning.

use drover_api::management::v3::Setting;
use drover_apiserver::admission::{Admission, AdmissionRequest, Operation};
use drover_apiserver::resources::Resource;
use drover_apiserver::status::{FieldError, Status};
use drover_provisioning::settings::{Refused, Settings};
use futures::future::BoxFuture;
use kube::Resource as _;
use serde_json::{Value, json};

/// Settings with certificate authorities. Agents compute their checksums, which an additional newline would change.
const AUTHORITIES: [&str; 2] = ["cacerts", "internal-cacerts"];

/// Trims certificate authorities, and rejects unusable values.
pub(super) struct Usable;

impl Admission for Usable {
    fn name(&self) -> &str {
        "usable-settings"
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

    fn validate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        object: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        let value = object.and_then(|object| object["value"].as_str()).filter(|value| !value.is_empty());
        let refused = value.and_then(|value| Settings::default().set(request.name, value).err());
        let judged = match refused {
            None => Ok(()),
            Some(Refused::Unknown) => {
                request.warnings.add("stored, but Drover does not use a setting of this name yet");
                Ok(())
            }
            Some(Refused::Senseless(why)) => {
                let error = FieldError::invalid("value", &json!(value), why);
                Err(Status::invalid(request.resource.group_kind(), request.name, &[error]))
            }
        };
        Box::pin(async move { judged })
    }
}
