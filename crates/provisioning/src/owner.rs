//! Owner references, read by group and kind: versions change, owners do not.

use kube::api::ObjectMeta;

/// Name of the owner of a kind.
pub fn owner_name<'a>(meta: &'a ObjectMeta, group: &str, kind: &str) -> Option<&'a str> {
    let of_kind = |owner: &&k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference| {
        owner.kind == kind && owner.api_version.split_once('/').map_or("", |(group, _)| group) == group
    };
    meta.owner_references.iter().flatten().find(of_kind).map(|owner| owner.name.as_str())
}
