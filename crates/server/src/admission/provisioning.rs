//! Rules that keep recorded fields of pools, metadata of plan secrets, and drivers, credentials and namespaces that
//! are in use.

use drover_api::capi::v1beta2::Machine;
use drover_api::management::v3::{self as management, NodeDriver};
use drover_api::provisioning::v1::Cluster;
use drover_api::secret_types::MACHINE_PLAN;
use drover_apiserver::admission::{Admission, AdmissionRequest, Operation};
use drover_apiserver::resources::Resource;
use drover_apiserver::status::{FieldError, Status};
use drover_provisioning::admission as rules;
use drover_runtime::ObjectKey;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::reader::{ApiReader, is, list_all, list_in, reject};
use crate::plane::CONTROLLERS;

/// Types of Secrets that can be cloud credentials.
const CREDENTIAL_TYPES: [&str; 2] = ["Opaque", "provisioning.cattle.io/cloud-credential"];

/// Keeps `dynamicSchemaSpec` when an update of a Cluster omits it.
pub(super) struct RecordedSchemas;

impl Admission for RecordedSchemas {
    fn name(&self) -> &str {
        "recorded-schemas"
    }

    fn handles(&self, operation: Operation, resource: &Resource, subresource: &str) -> bool {
        operation == Operation::Update && subresource.is_empty() && is::<Cluster>(resource)
    }

    fn mutate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        object: &'a mut Value,
    ) -> BoxFuture<'a, Result<(), Status>> {
        if let Some(old) = request.old {
            rules::keep_schemas(object, old);
        }
        Box::pin(async { Ok(()) })
    }
}

/// Rejects a Cluster that can never work, instead of reporting it in the status.
pub(super) struct Possible;

impl Admission for Possible {
    fn name(&self) -> &str {
        "possible-clusters"
    }

    fn handles(&self, operation: Operation, resource: &Resource, subresource: &str) -> bool {
        operation != Operation::Delete && subresource.is_empty() && is::<Cluster>(resource)
    }

    fn validate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        object: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        // An object that does not parse is rejected by its schema.
        let Some(new) = object.and_then(typed::<Cluster>) else { return Box::pin(async { Ok(()) }) };
        let old: Option<Cluster> = request.old.and_then(typed);
        if let Some(missing) = new.spec.rke_config.as_ref().and_then(rules::missing_roles) {
            request.warnings.add(missing);
        }
        let errors: Vec<FieldError> = rules::refusals(&new, old.as_ref())
            .into_iter()
            .map(|never| FieldError::invalid(never.field, &never.value, never.why))
            .collect();
        let judged = if errors.is_empty() {
            Ok(())
        } else {
            Err(Status::invalid(request.resource.group_kind(), request.name, &errors))
        };
        Box::pin(async move { judged })
    }
}

/// Management Clusters are created by the controllers for provisioning Clusters; users who create one get a warning.
pub(super) struct Twins;

impl Admission for Twins {
    fn name(&self) -> &str {
        "twins"
    }

    fn handles(&self, operation: Operation, resource: &Resource, subresource: &str) -> bool {
        operation == Operation::Create && subresource.is_empty() && is::<management::Cluster>(resource)
    }

    fn validate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        _: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        request.warnings.add(
            "stored, but management Clusters created by users have no effect: create a Cluster of provisioning.cattle.io/v1 instead",
        );
        Box::pin(async { Ok(()) })
    }
}

/// Of its plan secret an agent may only change the data. The metadata is the planner's.
pub(super) struct PlanSecrets;

impl Admission for PlanSecrets {
    fn name(&self) -> &str {
        "plan-secrets"
    }

    fn handles(&self, operation: Operation, resource: &Resource, subresource: &str) -> bool {
        operation == Operation::Update && subresource.is_empty() && is::<Secret>(resource)
    }

    fn mutate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        object: &'a mut Value,
    ) -> BoxFuture<'a, Result<(), Status>> {
        let account = format!("system:serviceaccount:{}:{}", request.namespace, request.name);
        if let Some(old) =
            request.old.filter(|old| old["type"] == MACHINE_PLAN && request.user.name == account)
        {
            rules::keep_marks(object, old);
        }
        Box::pin(async { Ok(()) })
    }
}

/// Rejects the deletion of objects that are in use.
pub(super) struct InUse(pub(super) ApiReader);

impl InUse {
    /// Why the write is rejected.
    async fn complaint(
        &self,
        request: &AdmissionRequest<'_>,
        object: Option<&Value>,
    ) -> Result<Option<String>, Status> {
        let (Some(old), Some(client)) = (request.old, self.0.client()) else { return Ok(None) };
        if is::<Namespace>(request.resource) {
            let name = request.name;
            let (clusters, machines) = (list_in(&client, name).await?, list_in(&client, name).await?);
            return Ok(rules::namespace_in_use(&clusters, &machines));
        }
        if is::<NodeDriver>(request.resource) {
            let (Some(old), new) = (typed::<NodeDriver>(old), object.and_then(typed)) else {
                return Ok(None);
            };
            if new.is_some_and(|new| !rules::ends_driver(&old, &new)) {
                return Ok(None);
            }
            let (clusters, machines) = (list_all(&client).await?, list_all::<Machine>(&client).await?);
            return Ok(rules::driver_in_use(&old, &clusters, &machines));
        }
        if !can_be_credential(old) || request.user.name == CONTROLLERS {
            return Ok(None);
        }
        let key = ObjectKey::new(request.namespace, request.name);
        Ok(rules::credential_in_use(&key, &list_all(&client).await?))
    }
}

impl Admission for InUse {
    fn name(&self) -> &str {
        "in-use"
    }

    fn handles(&self, operation: Operation, resource: &Resource, subresource: &str) -> bool {
        match operation {
            Operation::Create => false,
            Operation::Update => subresource.is_empty() && is::<NodeDriver>(resource),
            Operation::Delete => {
                is::<NodeDriver>(resource) || is::<Secret>(resource) || is::<Namespace>(resource)
            }
        }
    }

    fn validate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        object: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move { reject(request, self.complaint(request, object).await?) })
    }
}

/// Credentials are the users'; what has an owner was made by a controller. Only credentials are worth a list of all
/// Clusters: the deletion of every cluster deletes several Secrets.
fn can_be_credential(secret: &Value) -> bool {
    let owned = secret["metadata"]["ownerReferences"].as_array().is_some_and(|owners| !owners.is_empty());
    !owned && secret["type"].as_str().is_some_and(|type_| CREDENTIAL_TYPES.contains(&type_))
}

fn typed<K: DeserializeOwned>(object: &Value) -> Option<K> {
    serde_json::from_value(object.clone()).ok()
}
