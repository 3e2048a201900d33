//! Finds an image in an archive and unpacks it. The archive may be compressed, so it is read from start to end.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    path::{Path, PathBuf},
};

use drover_image::{
    Compression, Digest, Reference,
    archive::{self, DOCKER_MANIFEST, Entry, OCI_INDEX, SavedImage, blob_digest, blob_path},
    manifest::DOCUMENT_LIMIT,
    read_layer,
};
use sha2::Sha256;

use super::{Error, oci, unpack};
use crate::host::Host;

/// Blobs up to this size are kept in memory, up to this total.
const SMALL: u64 = 64 * 1024;
const SMALL_TOTAL: u64 = 1024 * 1024;

/// Paths of the layers of the image in the archive, bottom first; `None` if the archive does not contain the image.
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
        let Some((name, Entry::File)) = archive::entry(&entry).map_err(failed)? else { continue };
        if name == Path::new(DOCKER_MANIFEST) {
            docker = true;
            let found = saved(&read(entry).map_err(failed)?, wanted).map_err(layout)?;
            if found.is_some() {
                return Ok(found);
            }
        } else if name == Path::new(OCI_INDEX) {
            index = Some(read(entry).map_err(failed)?);
        } else if blob_digest(&name).is_some() {
            small.offer(name, entry).map_err(failed)?;
        }
    }
    match index {
        Some(index) => oci::layers(path, &index, wanted, &mut |digest| {
            small.get(host, path, &blob_path(digest)).map_err(failed)
        }),
        None if docker => Ok(None),
        None => Err(layout(format!(
            "it contains neither {DOCKER_MANIFEST} (docker save) nor {OCI_INDEX} (OCI image layout)"
        ))),
    }
}

/// The layers of the image in a `manifest.json`. The error is a message about that document.
fn saved(manifest: &[u8], wanted: &Reference) -> Result<Option<Vec<PathBuf>>, String> {
    if wanted.digest.is_some() {
        // manifest.json does not contain the registry's digest, so it cannot identify the image.
        return Ok(None);
    }
    let images: Vec<SavedImage> =
        serde_json::from_slice(manifest).map_err(|error| format!("{DOCKER_MANIFEST}: {error}"))?;
    let image = images.into_iter().find(|image| image.references().any(|name| name == *wanted));
    let Some(image) = image else { return Ok(None) };
    let inside = |layer: &String| {
        archive::relative_path(Path::new(layer))
            .ok_or_else(|| format!("layer {layer} is outside of the archive"))
    };
    image.layers.iter().map(inside).collect::<Result<_, _>>().map(Some)
}

fn read(entry: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    entry.take(DOCUMENT_LIMIT).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Small blobs that were read on the way. Documents are among them, and a compressed archive cannot be rewound.
#[derive(Default)]
struct Small {
    blobs: BTreeMap<PathBuf, Vec<u8>>,
    bytes: u64,
}

impl Small {
    fn offer(&mut self, name: PathBuf, entry: tar::Entry<'_, impl Read>) -> io::Result<()> {
        let size = entry.size();
        if size <= SMALL && self.bytes + size <= SMALL_TOTAL {
            self.bytes += size;
            self.blobs.insert(name, read(entry)?);
        }
        Ok(())
    }

    fn get(&self, host: &dyn Host, path: &Path, wanted: &Path) -> io::Result<Option<Vec<u8>>> {
        match self.blobs.get(wanted) {
            Some(bytes) => Ok(Some(bytes.clone())),
            None => find(host, path, wanted, |entry| read(entry)),
        }
    }
}

/// Reads the archive from its start until the wanted file.
fn find<T>(
    host: &dyn Host,
    path: &Path,
    wanted: &Path,
    then: impl Fn(&mut tar::Entry<'_, Box<dyn Read>>) -> io::Result<T>,
) -> io::Result<Option<T>> {
    for entry in open(host, path)?.entries()? {
        let mut entry = entry?;
        if matches!(archive::entry(&entry)?, Some((name, Entry::File)) if name == wanted) {
            return then(&mut entry).map(Some);
        }
    }
    Ok(None)
}

/// Unpacks the layers in their order.
pub(super) fn unpack(host: &dyn Host, path: &Path, layers: &[PathBuf], into: &Path) -> Result<(), Error> {
    let failed = |source| Error::Tarball { path: path.to_owned(), source };
    let layout = |message: String| Error::Layout { path: path.to_owned(), message };
    let mut links: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    let mut done = 0;
    let mut budget = unpack::Budget::default();
    while let Some(mut layer) = layers.get(done) {
        // Start again for each layer that does not follow its predecessor: a compressed archive cannot be rewound.
        let before = done;
        let mut archive = open(host, path).map_err(failed)?;
        for entry in archive.entries().map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = match archive::entry(&entry).map_err(failed)? {
                Some((name, Entry::File)) => name,
                Some((name, Entry::Link(target))) => {
                    // Only the first one is used, so that a link that changes cannot cause an endless loop.
                    links.entry(name).or_insert(target);
                    continue;
                }
                None => continue,
            };
            if name != *links.get(layer).unwrap_or(layer) {
                continue;
            }
            let mut entry = Hashed { inner: entry, hasher: Sha256::default() };
            unpack::layer(host, read_layer(&mut entry).map_err(failed)?, into, &mut budget)?;
            io::copy(&mut entry, &mut io::sink()).map_err(failed)?;
            if blob_digest(&name).is_some_and(|digest| digest != Digest::finish(entry.hasher)) {
                return Err(layout(format!("layer {} does not match its digest", name.display())));
            }
            done += 1;
            match layers.get(done) {
                Some(next) => layer = next,
                None => break,
            }
        }
        if done > before {
            continue;
        }
        let Some(target) = links.get(layer) else {
            return Err(layout(format!("layer {} is missing", layer.display())));
        };
        if find(host, path, target, |_| Ok(())).map_err(failed)?.is_none() {
            let (layer, target) = (layer.display(), target.display());
            return Err(layout(format!("layer {layer} is a link to {target}, which is missing")));
        }
    }
    Ok(())
}

/// Hashes everything that is read.
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

fn open(host: &dyn Host, path: &Path) -> io::Result<tar::Archive<Box<dyn Read>>> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let compression = Compression::of_archive(name).unwrap_or(Compression::None);
    Ok(tar::Archive::new(compression.reader(host.open(path)?)?))
}
