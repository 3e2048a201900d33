//! Ownership of providers' objects.

use std::time::Duration;

use drover_api::capi::v1beta2::Cluster;
use drover_api::labels::capi as labels;
use drover_runtime::Error;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::external::{External, Externals};
use crate::meta;

/// How long the first statuses of MachineDeployments and MachineSets are put off: in their first second the counts in them
/// change with every object that is created, and nothing depends on them yet.
pub(crate) const FIRST_STATUS: Duration = Duration::from_secs(1);

/// Whether [`own_by_cluster`] has anything to write.
pub(crate) fn lacks_owner(cluster: &Cluster, external: &External) -> bool {
    let Some(object) = external.object() else { return false };
    let ours = meta::owner_reference(cluster, false);
    let owned =
        object.owner_references().iter().any(|owner| meta::same_owner(owner, &ours) && owner.uid == ours.uid);
    let labelled = meta::label(&object.metadata, labels::CLUSTER_NAME) == Some(ours.name.as_str());
    !(owned && labelled || meta::is_deleting(&object.metadata))
}

/// Makes the Cluster an owner (but not the controller) of a provider's object and labels it, with a JSON patch with
/// `test`.
pub(crate) async fn own_by_cluster(
    externals: &Externals,
    cluster: &Cluster,
    external: &External,
) -> Result<(), Error> {
    let External::Found { resource, object, .. } = external else { return Ok(()) };
    if !lacks_owner(cluster, external) {
        return Ok(());
    }
    let ours = meta::owner_reference(cluster, false);
    let mut owners = object.metadata.owner_references.clone().unwrap_or_default();
    match owners.iter().position(|owner| meta::same_owner(owner, &ours)) {
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
