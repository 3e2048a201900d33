//! Discovery documents, legacy and aggregated, built once per generation of the resource table.

use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest, Sha512};

use crate::resources::{GroupVersions, Resource, Snapshot};

/// Content type of the aggregated form; clients treat any other as the legacy form.
pub(crate) const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The aggregated documents with their ETags.
pub struct Discovery {
    /// `/api`.
    pub core: Document,
    /// `/apis`.
    pub groups: Document,
}

/// A document and its ETag.
pub struct Document {
    /// JSON.
    pub body: Bytes,
    /// Quoted upper-case hex of SHA-512.
    pub etag: String,
}

impl Discovery {
    pub(crate) fn of(snapshot: &Snapshot) -> &Self {
        snapshot.discovery.get_or_init(|| {
            let (core, groups): (Vec<_>, Vec<_>) =
                snapshot.groups().into_iter().partition(|group| group.group.is_empty());
            Self { core: aggregated(snapshot, &core), groups: aggregated(snapshot, &groups) }
        })
    }
}

fn aggregated(snapshot: &Snapshot, groups: &[GroupVersions]) -> Document {
    let items: Vec<Value> = groups
        .iter()
        .map(|group| {
            let versions: Vec<Value> = group
                .versions
                .iter()
                .map(|version| {
                    let resources: Vec<Value> =
                        snapshot.in_version(&group.group, version).map(|r| aggregated_resource(r)).collect();
                    json!({"version": version, "resources": resources, "freshness": "Current"})
                })
                .collect();
            let mut metadata = json!({"creationTimestamp": null});
            if !group.group.is_empty() {
                metadata["name"] = group.group.clone().into();
            }
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    let document = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items,
    });
    let body = Bytes::from(document.to_string());
    let etag = format!("\"{}\"", hex::encode_upper(Sha512::digest(&body)));
    Document { body, etag }
}

fn aggregated_resource(resource: &Resource) -> Value {
    let def = &resource.def;
    let mut out = json!({
        "resource": def.plural,
        "responseKind": {"group": def.group, "version": def.version, "kind": def.kind},
        "scope": if def.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": def.singular,
        "verbs": def.verbs,
    });
    if !def.short_names.is_empty() {
        out["shortNames"] = def.short_names.clone().into();
    }
    if !def.categories.is_empty() {
        out["categories"] = def.categories.clone().into();
    }
    if !def.subresources.is_empty() {
        let subresources = def.subresources.iter().map(|sub| {
            let (group, version) =
                if sub.version.is_empty() { (&def.group, &def.version) } else { (&sub.group, &sub.version) };
            json!({
                "subresource": sub.name,
                "responseKind": {"group": group, "version": version, "kind": sub.kind},
                "verbs": sub.verbs,
            })
        });
        out["subresources"] = subresources.collect();
    }
    out
}

/// `/api`.
pub(crate) fn api_versions() -> Value {
    json!({
        "kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}],
    })
}

/// `/apis`.
pub(crate) fn group_list(snapshot: &Snapshot) -> Value {
    let groups: Vec<Value> =
        snapshot.groups().iter().filter(|group| !group.group.is_empty()).map(api_group).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/{group}`.
pub(crate) fn group(snapshot: &Snapshot, name: &str) -> Option<Value> {
    let group = snapshot.groups().into_iter().find(|group| group.group == name)?;
    let mut out = api_group(&group);
    out["kind"] = "APIGroup".into();
    out["apiVersion"] = "v1".into();
    Some(out)
}

fn api_group(group: &GroupVersions) -> Value {
    let entry =
        |version: &String| json!({"groupVersion": format!("{}/{version}", group.group), "version": version});
    let versions: Vec<Value> = group.versions.iter().map(entry).collect();
    json!({"name": group.group, "versions": versions, "preferredVersion": versions.first()})
}

/// `/api/v1`, `/apis/{group}/{version}`.
pub(crate) fn resource_list(snapshot: &Snapshot, group: &str, version: &str) -> Option<Value> {
    let mut resources = Vec::new();
    for resource in snapshot.in_version(group, version) {
        let def = &resource.def;
        let mut entry = json!({
            "name": def.plural, "singularName": def.singular, "namespaced": def.namespaced,
            "kind": def.kind, "verbs": def.verbs,
        });
        if !def.short_names.is_empty() {
            entry["shortNames"] = def.short_names.clone().into();
        }
        if !def.categories.is_empty() {
            entry["categories"] = def.categories.clone().into();
        }
        if resource.virtual_resource.is_none() {
            entry["storageVersionHash"] = storage_version_hash(resource).into();
        }
        resources.push(entry);
        for sub in &def.subresources {
            let mut entry = json!({
                "name": format!("{}/{}", def.plural, sub.name), "singularName": "",
                "namespaced": def.namespaced, "kind": sub.kind, "verbs": sub.verbs,
            });
            if !sub.version.is_empty() {
                entry["group"] = sub.group.clone().into();
                entry["version"] = sub.version.clone().into();
            }
            resources.push(entry);
        }
    }
    if resources.is_empty() {
        return None;
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Some(json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources,
    }))
}

/// Opaque to clients; changes when the stored version of the kind changes.
fn storage_version_hash(resource: &Resource) -> String {
    use base64::Engine;
    let text = format!("{}/{}", resource.storage_api_version(), resource.def.kind);
    let digest = sha2::Sha256::digest(text.as_bytes());
    base64::engine::general_purpose::STANDARD.encode(&digest[..8])
}
