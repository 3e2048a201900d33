//! Image archives: what `docker save` writes, a `manifest.json` that names layers, and the layers as tar files; or an
//! [OCI layout](super::oci); or both in one, as newer versions of Docker have it.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    path::{Component, Path, PathBuf},
};

use serde::Deserialize;
use sha2::Sha256;

use super::{
    Error, Reference, compression, oci,
    registry::{Digest, manifest::DOCUMENT_LIMIT},
    unpack,
};
use crate::host::Host;

/// Blobs up to this size are kept at hand, up to so many bytes in all.
const SMALL: u64 = 64 * 1024;
const SMALL_IN_ALL: u64 = 1024 * 1024;

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
    let failed = |source| Error::Tarball { path: path.to_owned(), source };
    let layout = |message: String| Error::Layout { path: path.to_owned(), message };
    let (mut docker, mut index, mut small) = (false, None, Small::default());
    let mut archive = open(host, path).map_err(failed)?;
    for entry in archive.entries().map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Some(name) = clean(&entry.path().map_err(failed)?) else { continue };
        if name == Path::new("manifest.json") {
            docker = true;
            let found = saved(&read(entry).map_err(failed)?, wanted).map_err(layout)?;
            if found.is_some() {
                return Ok(found);
            }
        } else if name == Path::new("index.json") {
            index = Some(read(entry).map_err(failed)?);
        } else if oci::digest_of(&name).is_some() {
            small.offer(name, entry).map_err(failed)?;
        }
    }
    match index {
        Some(index) => oci::layers(path, &index, wanted, &mut |digest| {
            small.get(host, path, &oci::place(digest)).map_err(failed)
        }),
        None if docker => Ok(None),
        None => Err(layout(
            "neither manifest.json nor index.json; not written by docker save, and no OCI layout".into(),
        )),
    }
}

/// The layers by a `manifest.json`. The error is a sentence about it.
fn saved(manifest: &[u8], wanted: &Reference) -> Result<Option<Vec<PathBuf>>, String> {
    if wanted.digest.is_some() {
        // It does not carry the registry's digest, so nothing in it can be what was asked for.
        return Ok(None);
    }
    let images: Vec<Image> =
        serde_json::from_slice(manifest).map_err(|error| format!("manifest.json: {error}"))?;
    let image = images.into_iter().find(|image| {
        image.repo_tags.iter().flatten().any(|tag| Reference::parse(tag).as_ref() == Some(wanted))
    });
    let Some(image) = image else { return Ok(None) };
    let inside =
        |layer: &String| clean(Path::new(layer)).ok_or_else(|| format!("layer {layer} leaves the tarball"));
    image.layers.iter().map(inside).collect::<Result<_, _>>().map(Some)
}

fn read(entry: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    entry.take(DOCUMENT_LIMIT).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Small blobs that passed by: documents are among them, and a compressed file cannot be rewound.
#[derive(Default)]
struct Small {
    blobs: BTreeMap<PathBuf, Vec<u8>>,
    bytes: u64,
}

impl Small {
    fn offer(&mut self, name: PathBuf, entry: tar::Entry<'_, impl Read>) -> io::Result<()> {
        let size = entry.size();
        if size <= SMALL && self.bytes + size <= SMALL_IN_ALL && entry.header().entry_type().is_file() {
            self.bytes += size;
            self.blobs.insert(name, read(entry)?);
        }
        Ok(())
    }

    fn get(&self, host: &dyn Host, path: &Path, wanted: &Path) -> io::Result<Option<Vec<u8>>> {
        if let Some(bytes) = self.blobs.get(wanted) {
            return Ok(Some(bytes.clone()));
        }
        for entry in open(host, path)?.entries()? {
            let entry = entry?;
            if entry.header().entry_type().is_file() && clean(&entry.path()?).as_deref() == Some(wanted) {
                return read(entry).map(Some);
            }
        }
        Ok(None)
    }
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
                    // The first one counts: a link that changes on the way would be followed for ever.
                    links.entry(name).or_insert(target);
                }
                continue;
            }
            if name != *links.get(layer).unwrap_or(layer) || !entry.header().entry_type().is_file() {
                continue;
            }
            let mut entry = Hashed { inner: entry, hasher: Sha256::default() };
            unpack::layer(host, compression::sniff(&mut entry).map_err(failed)?, into, &mut budget)?;
            io::copy(&mut entry, &mut io::sink()).map_err(failed)?;
            if oci::digest_of(&name).is_some_and(|digest| digest != Digest::finish(entry.hasher)) {
                let message = format!("layer {} has another digest than its name says", name.display());
                return Err(Error::Layout { path: path.to_owned(), message });
            }
            done += 1;
            match layers.get(done) {
                Some(next) => layer = next,
                None => break,
            }
        }
        if done == before && !links.contains_key(layer) {
            let message = format!("layer {} is named in it but missing", layer.display());
            return Err(Error::Layout { path: path.to_owned(), message });
        }
        if done == before && !seen(host, path, &links[layer]).map_err(failed)? {
            let message = format!("layer {} is a link to nothing", layer.display());
            return Err(Error::Layout { path: path.to_owned(), message });
        }
    }
    Ok(())
}

/// Hashes what is read.
struct Hashed<R> {
    inner: R,
    hasher: Sha256,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        sha2::Digest::update(&mut self.hasher, &buffer[..n]);
        Ok(n)
    }
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
