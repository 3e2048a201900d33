//! Writes parts of objects: typed objects have required fields that a writer may not own.

use drover_api::capi::v1beta2::Cluster;
use drover_api::labels::capi as labels;
use drover_runtime::Error;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde_json::json;

use crate::external::{External, Externals};
use crate::meta;

/// A typed object as a dynamic one.
pub(crate) fn dynamic<K: Serialize>(object: &K) -> Result<DynamicObject, Error> {
    let value = serde_json::to_value(object).map_err(Error::other("read object"))?;
    serde_json::from_value(value).map_err(Error::other("read object"))
}

/// The API of a typed kind for partial objects.
pub(crate) fn partial<K>(client: &Client, namespace: &str) -> Api<DynamicObject>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<K>(&()))
}

/// Makes the Cluster an owner (but not the controller) of a provider's object and labels it, with a JSON patch with
/// `test`.
pub(crate) async fn own_by_cluster(
    externals: &Externals,
    cluster: &Cluster,
    external: &External,
) -> Result<(), Error> {
    let External::Found { resource, object, .. } = external else { return Ok(()) };
    let ours = meta::owner_reference(cluster, false);
    let mut owners = object.metadata.owner_references.clone().unwrap_or_default();
    let position = owners.iter().position(|owner| meta::same_owner(owner, &ours));
    let owned = position.is_some_and(|at| owners[at].uid == ours.uid);
    let label = meta::label(&object.metadata, labels::CLUSTER_NAME);
    if (owned && label == ours.name.as_str().into()) || meta::is_deleting(&object.metadata) {
        return Ok(());
    }
    match position {
        Some(at) => owners[at] = ours.clone(),
        None => owners.push(ours.clone()),
    }
    let mut patch = vec![
        json!({ "op": "test", "path": "/metadata/resourceVersion", "value": object.resource_version() }),
        json!({ "op": "add", "path": "/metadata/ownerReferences", "value": owners }),
    ];
    if object.metadata.labels.is_none() {
        patch.push(json!({ "op": "add", "path": "/metadata/labels", "value": {} }));
    }
    patch.push(json!({
        "op": "add", "path": "/metadata/labels/cluster.x-k8s.io~1cluster-name", "value": ours.name,
    }));
    let patch = serde_json::from_value(json!(patch)).map_err(Error::other("build patch"))?;
    let (name, namespace) = (object.name_any(), object.namespace().unwrap_or_default());
    match externals
        .api(&namespace, resource)
        .patch(&name, &PatchParams::default(), &Patch::Json::<()>(patch))
        .await
    {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 422 => {
            Err(Error::Stale(format!("{} {name}", resource.kind)))
        }
        Err(source) => Err(Error::Api { operation: format!("own {} {name}", resource.kind), source }),
    }
}
