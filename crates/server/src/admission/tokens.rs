//! Validation of registration tokens: invalid terms are rejected, and those without an effect give a warning.

use std::collections::BTreeMap;

use drover_api::annotations::drover::REGISTRATION_ROLES;
use drover_api::management::v3::ClusterRegistrationToken;
use drover_apiserver::admission::{Admission, AdmissionRequest, Operation};
use drover_apiserver::resources::Resource;
use drover_apiserver::status::Status;
use drover_provisioning::init::twin::DEFAULT_TOKEN;
use drover_provisioning::registration::terms::Terms;
use futures::future::BoxFuture;
use kube::Resource as _;
use serde_json::Value;

/// Validates the terms of registration tokens.
pub(super) struct Readable;

impl Admission for Readable {
    fn name(&self) -> &str {
        "readable-tokens"
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
        let Some(object) = object else { return Box::pin(async { Ok(()) }) };
        let minutes = |field: &str| object["spec"][field].as_i64().unwrap_or_default();
        if minutes("gracePeriod") > 0 {
            request.warnings.add("spec.gracePeriod is stored, but tokens are not rotated yet".to_owned());
        }
        let default = object["metadata"]["name"] == DEFAULT_TOKEN;
        if default && minutes("ttl") > 0 {
            request.warnings.add(format!(
                "spec.ttl would end this token, but agents of the cluster may connect with {DEFAULT_TOKEN}: create another token instead"
            ));
        }
        let problem = problem(object, default);
        Box::pin(async move { problem.map_or(Ok(()), |why| Err(Status::bad_request(why))) })
    }
}

fn problem(object: &Value, default: bool) -> Option<String> {
    let notes = object["metadata"]["annotations"].as_object().into_iter().flatten();
    let notes: BTreeMap<String, String> =
        notes.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect();
    if default && notes.contains_key(REGISTRATION_ROLES) {
        return Some(format!(
            "annotation {REGISTRATION_ROLES} cannot be set on {DEFAULT_TOKEN}, with which agents of the cluster connect: create \
             another token, or disable tokens without roles with the setting registration-unscoped-tokens"
        ));
    }
    Terms::of(&notes).err().map(|why| format!("annotation {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn invalid_terms_are_rejected() {
        let of = |notes: Value, default| problem(&json!({"metadata": {"annotations": notes}}), default);
        assert_eq!(of(Value::Null, true), None);
        assert_eq!(of(json!({"drover.io/registration-roles": "worker", "x": "y"}), false), None);
        let why = of(json!({"drover.io/registration-roles": "workers"}), false).unwrap();
        assert!(why.contains("\"workers\" is not a role"), "{why}");
        let why = of(json!({"drover.io/registration-limit": "0"}), false).unwrap();
        assert!(why.contains("drover.io/registration-limit"), "{why}");
        let why = of(json!({"drover.io/registration-roles": "worker"}), true).unwrap();
        assert!(why.contains("default-token"), "{why}");
    }
}
