//! Translates ownership between an object and its `/scale`, which has `.spec.replicas` at a path of its own.

use super::{Managed, Operation};
use crate::fieldpath::{PathElement, Set};

const SCALE_VERSION: &str = "autoscaling/v1";

/// The path of the replicas in each version; an inner `None` is a version without scale. Entries of other versions are
/// dropped.
type Paths<'a> = &'a dyn Fn(&str) -> Option<Option<Vec<PathElement>>>;

/// The owners of replicas, as owners in a Scale.
pub fn to_scale(parent: &Managed, replicas_path: Paths<'_>) -> Managed {
    let mut scale = Managed::default();
    for entry in &parent.entries {
        if let Some(Some(path)) = replicas_path(&entry.api_version)
            && entry.fields.has(&path)
        {
            let mut entry = entry.clone();
            entry.api_version = SCALE_VERSION.to_owned();
            entry.fields = in_scale();
            scale.entries.push(entry);
        }
    }
    scale
}

/// The owners of the object after a write through `/scale` that resulted in the owners `scale` of the Scale. New owners
/// are recorded at `api_version`.
pub fn to_parent(parent: &Managed, scale: &Managed, api_version: &str, replicas_path: Paths<'_>) -> Managed {
    let mut out = Managed::default();
    let mut scale: Vec<_> = scale.entries.iter().collect();
    for entry in &parent.entries {
        let Some(path) = replicas_path(&entry.api_version) else { continue };
        let mut entry = entry.clone();
        if let Some(path) = path.filter(|path| entry.fields.has(path)) {
            // The version is not part of an owner's identity in a Scale.
            let kept = scale.iter().position(|other| {
                (&other.manager, other.operation, &other.subresource)
                    == (&entry.manager, entry.operation, &entry.subresource)
            });
            match kept {
                Some(at) => {
                    scale.swap_remove(at);
                }
                None => {
                    let mut replicas = Set::new();
                    replicas.insert(&path);
                    entry.fields = entry.fields.difference(&replicas);
                }
            }
        }
        if !entry.fields.is_empty() {
            out.entries.push(entry);
        }
    }
    if let Some(Some(path)) = replicas_path(api_version) {
        for entry in scale {
            if entry.fields.has(&in_scale_path()) {
                let mut entry = entry.clone();
                entry.api_version = api_version.to_owned();
                entry.fields = Set::new();
                entry.fields.insert(&path);
                out.entries.push(entry);
            }
        }
    }
    out.entries.sort_by_key(|entry| entry.operation == Operation::Update);
    out
}

fn in_scale_path() -> [PathElement; 2] {
    [PathElement::field("spec"), PathElement::field("replicas")]
}

fn in_scale() -> Set {
    Set::of_fields(&[&["spec", "replicas"]])
}
