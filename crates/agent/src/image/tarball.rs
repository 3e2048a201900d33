//! The layout that `docker save` writes: a `manifest.json` that names layers, and the layers as tar files.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    path::{Component, Path, PathBuf},
};

use serde::Deserialize;

use super::{Error, Reference, compression, unpack};
use crate::host::Host;

/// A manifest larger than this is none.
const MANIFEST_LIMIT: u64 = 4 * 1024 * 1024;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Image {
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// The layers of the image in the tarball, bottom first; `None` if it is not in there.
pub(super) fn layers(
    host: &dyn Host,
    path: &Path,
    wanted: &Reference,
) -> Result<Option<Vec<PathBuf>>, Error> {
    if wanted.digest.is_some() {
        // A saved tarball does not carry the registry's digest, so nothing here can be what was asked for.
        return Ok(None);
    }
    let failed = |source| Error::Tarball { path: path.to_owned(), source };
    let layout = |message: String| Error::Layout { path: path.to_owned(), message };
    let mut archive = open(host, path).map_err(failed)?;
    for entry in archive.entries().map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if clean(&entry.path().map_err(failed)?).as_deref() != Some(Path::new("manifest.json")) {
            continue;
        }
        let mut text = Vec::new();
        entry.take(MANIFEST_LIMIT).read_to_end(&mut text).map_err(failed)?;
        let images: Vec<Image> =
            serde_json::from_slice(&text).map_err(|error| layout(format!("manifest.json: {error}")))?;
        let image = images.into_iter().find(|image| {
            image.repo_tags.iter().flatten().any(|tag| Reference::parse(tag).as_ref() == Some(wanted))
        });
        let Some(image) = image else { return Ok(None) };
        return image
            .layers
            .iter()
            .map(|layer| {
                clean(Path::new(layer)).ok_or_else(|| layout(format!("layer {layer} leaves the tarball")))
            })
            .collect::<Result<_, _>>()
            .map(Some);
    }
    Err(layout("no manifest.json; not written by docker save".into()))
}

/// Unpacks the layers in their order.
pub(super) fn unpack(host: &dyn Host, path: &Path, layers: &[PathBuf], into: &Path) -> Result<(), Error> {
    let failed = |source| Error::Tarball { path: path.to_owned(), source };
    // Older versions write a layer that occurs twice as a symlink to its first occurrence.
    let mut links: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    let mut done = 0;
    let mut budget = unpack::Budget::default();
    while let Some(mut layer) = layers.get(done) {
        // From the beginning for each layer that does not follow its predecessor: a compressed file cannot be rewound.
        let before = done;
        let mut archive = open(host, path).map_err(failed)?;
        for entry in archive.entries().map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Some(name) = clean(&entry.path().map_err(failed)?) else { continue };
            if let Some(target) = entry.link_name().map_err(failed)?
                && entry.header().entry_type().is_symlink()
            {
                let target = name.parent().unwrap_or(Path::new("")).join(target);
                if let Some(target) = clean_up(&target) {
                    links.insert(name, target);
                }
                continue;
            }
            if name != *links.get(layer).unwrap_or(layer) || !entry.header().entry_type().is_file() {
                continue;
            }
            unpack::layer(host, compression::sniff(entry).map_err(failed)?, into, &mut budget)?;
            done += 1;
            match layers.get(done) {
                Some(next) => layer = next,
                None => break,
            }
        }
        if done == before && !links.contains_key(layer) {
            let message = format!("layer {} is named in manifest.json but missing", layer.display());
            return Err(Error::Layout { path: path.to_owned(), message });
        }
        if done == before && !seen(host, path, &links[layer]).map_err(failed)? {
            let message = format!("layer {} is a link to nothing", layer.display());
            return Err(Error::Layout { path: path.to_owned(), message });
        }
    }
    Ok(())
}

fn seen(host: &dyn Host, path: &Path, wanted: &Path) -> io::Result<bool> {
    for entry in open(host, path)?.entries()? {
        let entry = entry?;
        if entry.header().entry_type().is_file() && clean(&entry.path()?).as_deref() == Some(wanted) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn open(host: &dyn Host, path: &Path) -> io::Result<tar::Archive<Box<dyn Read>>> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let kind = compression::of(name).unwrap_or(compression::Compression::None);
    Ok(tar::Archive::new(compression::reader(kind, host.open(path)?)?))
}

/// The path below the archive's root; `None` if it leads out.
pub(super) fn clean(path: &Path) -> Option<PathBuf> {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(out)
}

fn clean_up(path: &Path) -> Option<PathBuf> {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::ParentDir if out.pop() => {}
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(out)
}
