//! Owner references. They are read by group and kind: versions change, owners do not.

use drover_api::capi::v1beta2 as capi;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use kube::api::ObjectMeta;

/// The reference by which an object owns and controls another.
pub fn controller_reference<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.meta().name.clone().unwrap_or_default(),
        uid: owner.meta().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The reference by which a Cluster of Cluster API owns the objects of its providers, without controlling them.
pub fn cluster_reference(cluster: &capi::Cluster) -> OwnerReference {
    OwnerReference { controller: None, block_owner_deletion: None, ..controller_reference(cluster) }
}

/// Name of the owner of a kind.
pub fn owner_name<'a>(meta: &'a ObjectMeta, group: &str, kind: &str) -> Option<&'a str> {
    let of_kind = |owner: &&OwnerReference| {
        owner.kind == kind && owner.api_version.split_once('/').map_or("", |(group, _)| group) == group
    };
    meta.owner_references.iter().flatten().find(of_kind).map(|owner| owner.name.as_str())
}
