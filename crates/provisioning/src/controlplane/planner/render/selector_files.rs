//! `machineSelectorFiles`: files for machines, out of Secrets and ConfigMaps of the cluster's namespace.
//!
//! Whoever may edit a cluster must not thereby read every Secret beside it: an object has to name the clusters that may
//! have it. A file that cannot be had stops the whole cluster's plans, because a machine without it might come up
//! wrong, and the message names the object.

use std::collections::BTreeMap;

use drover_api::rke::v1::{K8sObjectFileSource, ProvisioningFileSource, RKEControlPlaneSpec};
use drover_plan::File;
use sha2::{Digest, Sha256};

use super::super::entry::Entry;
use super::selector::matches;
use crate::keys::annotations::AUTHORIZED_FOR_CLUSTERS;
use base64::prelude::{BASE64_STANDARD, Engine as _};

/// A Secret or ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileObject {
    /// Names of the clusters that may have its files.
    pub authorized_for: Vec<String>,
    pub data: BTreeMap<String, Vec<u8>>,
}

/// Objects by kind and name.
pub type FileObjects = BTreeMap<(&'static str, String), FileObject>;

/// What a cluster's spec refers to: kinds and names.
pub fn references(spec: &RKEControlPlaneSpec) -> impl Iterator<Item = (&'static str, &K8sObjectFileSource)> {
    spec.config.machine_selector_files.iter().flat_map(|files| &files.file_sources).flat_map(of_source)
}

fn of_source(source: &ProvisioningFileSource) -> impl Iterator<Item = (&'static str, &K8sObjectFileSource)> {
    let secret = source.secret.iter().map(|source| ("Secret", source));
    secret.chain(source.config_map.iter().map(|source| ("ConfigMap", source)))
}

/// The files of one machine, or why it cannot have them.
pub fn files(spec: &RKEControlPlaneSpec, objects: &FileObjects, entry: &Entry) -> Result<Vec<File>, String> {
    let selected = spec
        .config
        .machine_selector_files
        .iter()
        .filter(|files| matches(files.machine_label_selector.as_ref(), &entry.machine.labels));
    let mut out = Vec::new();
    for (kind, source) in selected.flat_map(|files| &files.file_sources).flat_map(of_source) {
        let named = format!("machineSelectorFiles: {kind} {}/{}", entry.machine.namespace, source.name);
        let object =
            objects.get(&(kind, source.name.clone())).ok_or_else(|| format!("{named} does not exist"))?;
        let cluster = &spec.cluster_name;
        if !object.authorized_for.contains(cluster) {
            return Err(format!(
                "{named} is not authorized for this cluster; its annotation {AUTHORIZED_FOR_CLUSTERS} must name {cluster}"
            ));
        }
        for item in &source.items {
            let content =
                object.data.get(&item.key).ok_or_else(|| format!("{named} has no key {:?}", item.key))?;
            if !item.path.starts_with('/') {
                return Err(format!("{named}: path {:?} of key {:?} is not absolute", item.path, item.key));
            }
            let hash = BASE64_STANDARD.encode(Sha256::digest(content));
            if !item.hash.is_empty() && item.hash != hash {
                return Err(format!(
                    "{named}: key {:?} has the hash {hash} instead of the expected {}",
                    item.key, item.hash
                ));
            }
            let permissions =
                if item.permissions.is_empty() { &source.default_permissions } else { &item.permissions };
            out.push(File {
                content: BASE64_STANDARD.encode(content),
                path: item.path.clone(),
                permissions: permissions.clone(),
                dynamic: item.dynamic,
                ..File::default()
            });
        }
    }
    Ok(out)
}

/// Why any machine of the cluster cannot have its files.
pub fn trouble(spec: &RKEControlPlaneSpec, objects: &FileObjects, entries: &[Entry]) -> Option<String> {
    entries.iter().find_map(|entry| files(spec, objects, entry).err())
}
