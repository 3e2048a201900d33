//! One archive: which images it holds, and where in the file their blobs lie.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::name::{Name, is_digest};

/// A document larger than this is none.
const DOCUMENT_LIMIT: u64 = 4 * 1024 * 1024;
/// Indexes in indexes, no deeper than this.
const DEPTH: usize = 3;

const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// Why an archive is not served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read, or is no tar file.
    #[error("it cannot be read as a tar file")]
    Read(#[from] io::Error),
    /// A document in it makes no sense.
    #[error("{name} in it is not understood")]
    Document {
        /// Which.
        name: String,
        /// Why.
        source: serde_json::Error,
    },
    /// Something is missing or wrong.
    #[error("{0}")]
    Layout(String),
}

/// A range of the archive's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub size: u64,
}

/// A manifest or index, ready to be sent.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// Its media type.
    pub media_type: String,
    /// Its bytes.
    pub bytes: Bytes,
}

/// An image under one of its names.
#[derive(Debug)]
pub struct Image {
    /// The name.
    pub name: Name,
    /// Digest of its manifest or index.
    pub manifest: String,
    /// Digests of everything that belongs to it: manifests and blobs.
    pub parts: BTreeSet<String>,
}

/// What an archive holds.
#[derive(Default, Debug)]
pub struct Archive {
    /// Images, one for each name.
    pub images: Vec<Image>,
    /// Manifests by digest.
    pub manifests: BTreeMap<String, Manifest>,
    /// Blobs by digest.
    pub blobs: BTreeMap<String, Extent>,
}

impl Archive {
    /// Indexes a plain tar file: an OCI image layout, what `docker save` writes, or both in one.
    pub fn read(file: File) -> Result<Self, Error> {
        let mut reader = Reader::new(file)?;
        let mut out = Self::default();
        if reader.find(Path::new("index.json")).is_some() {
            out.oci(&mut reader)?;
        }
        if reader.find(Path::new("manifest.json")).is_some() {
            out.docker(&mut reader)?;
        }
        if out.images.is_empty() {
            return Err(Error::Layout(
                "it holds no image with a name; write it with docker save NAME:TAG, or as an OCI layout with names".into(),
            ));
        }
        Ok(out)
    }

    /// Manifests as they were pushed, so that their digests are the publisher's.
    fn oci(&mut self, reader: &mut Reader) -> Result<(), Error> {
        let index: Document = reader.json("index.json")?;
        for descriptor in index.manifests.unwrap_or_default() {
            let full = descriptor.annotations.get("io.containerd.image.name");
            let short = descriptor.annotations.get("org.opencontainers.image.ref.name");
            // A bare tag names nothing; `docker save` says the rest in manifest.json.
            let named = full.or(short.filter(|name| name.contains(['/', ':'])));
            let Some(name) = named.and_then(|name| Name::parse(name)) else { continue };
            let mut parts = BTreeSet::new();
            if self.document(reader, &descriptor, &mut parts, DEPTH)? {
                self.images.push(Image { name, manifest: descriptor.digest, parts });
            }
        }
        Ok(())
    }

    /// Takes up a manifest with all that it names; false if it is not in the archive.
    fn document(
        &mut self,
        reader: &mut Reader,
        descriptor: &Descriptor,
        parts: &mut BTreeSet<String>,
        depth: usize,
    ) -> Result<bool, Error> {
        let Some(extent) = reader.blob(&descriptor.digest) else { return Ok(false) };
        if depth == 0 {
            return Err(Error::Layout("indexes in it are nested too deeply".into()));
        }
        let bytes = reader.bytes(extent, &descriptor.digest)?;
        if digest(&bytes) != descriptor.digest {
            return Err(Error::Layout(format!("{} in it has another digest", descriptor.digest)));
        }
        let document: Document = serde_json::from_slice(&bytes)
            .map_err(|source| Error::Document { name: descriptor.digest.clone(), source })?;
        parts.insert(descriptor.digest.clone());
        // Other platforms' manifests may have been left out when it was saved.
        for child in document.manifests.iter().flatten() {
            self.document(reader, child, parts, depth - 1)?;
        }
        for blob in document.config.iter().chain(document.layers.iter().flatten()) {
            let Some(extent) = reader.blob(&blob.digest) else {
                return Err(Error::Layout(format!("{} is named in it but missing", blob.digest)));
            };
            parts.insert(blob.digest.clone());
            self.blobs.insert(blob.digest.clone(), extent);
        }
        let guess = if document.manifests.is_some() { OCI_INDEX } else { OCI_MANIFEST };
        let media_type = [document.media_type, descriptor.media_type.clone(), guess.to_owned()]
            .into_iter()
            .find(|kind| !kind.is_empty())
            .unwrap_or_default();
        self.manifests.insert(descriptor.digest.clone(), Manifest { media_type, bytes: bytes.into() });
        Ok(true)
    }

    /// Images that only `manifest.json` names: their manifests are made here, from the files in the archive.
    fn docker(&mut self, reader: &mut Reader) -> Result<(), Error> {
        let saved: Vec<Saved> = reader.json("manifest.json")?;
        let mut known: BTreeMap<PathBuf, (String, Extent, &str)> = BTreeMap::new();
        for image in saved {
            let names: Vec<Name> =
                image.repo_tags.iter().flatten().filter_map(|tag| Name::parse(tag)).collect();
            let names: Vec<Name> =
                names.into_iter().filter(|name| !self.images.iter().any(|have| have.name == *name)).collect();
            if names.is_empty() {
                continue;
            }
            let mut parts = BTreeSet::new();
            let mut descriptors = vec![];
            for path in std::iter::once(&image.config).chain(&image.layers) {
                let missing = || Error::Layout(format!("{path} is named in manifest.json but missing"));
                let clean = clean(Path::new(path)).ok_or_else(missing)?;
                if !known.contains_key(&clean) {
                    let extent = reader.find(&clean).ok_or_else(missing)?;
                    let (digest, compression) = reader.hash(extent)?;
                    known.insert(clean.clone(), (digest, extent, compression));
                }
                let (digest, extent, compression) = &known[&clean];
                parts.insert(digest.clone());
                self.blobs.insert(digest.clone(), *extent);
                let kind = match descriptors.is_empty() {
                    true => OCI_CONFIG.to_owned(),
                    false => format!("{OCI_LAYER}{compression}"),
                };
                descriptors.push(json!({"mediaType": kind, "digest": digest, "size": extent.size}));
            }
            let layers = descriptors.split_off(1);
            let manifest = json!({
                "schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": descriptors.pop(), "layers": layers,
            });
            let bytes = manifest.to_string().into_bytes();
            let digest = digest(&bytes);
            parts.insert(digest.clone());
            let manifest = Manifest { media_type: OCI_MANIFEST.into(), bytes: bytes.into() };
            self.manifests.insert(digest.clone(), manifest);
            let images =
                names.into_iter().map(|name| Image { name, manifest: digest.clone(), parts: parts.clone() });
            self.images.extend(images);
        }
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    #[serde(default)]
    media_type: String,
    manifests: Option<Vec<Descriptor>>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// The archive's table of contents.
struct Reader {
    file: File,
    files: BTreeMap<PathBuf, Extent>,
    links: BTreeMap<PathBuf, PathBuf>,
}

impl Reader {
    fn new(file: File) -> io::Result<Self> {
        let (mut files, mut links) = (BTreeMap::new(), BTreeMap::new());
        let length = file.metadata()?.len();
        let mut archive = tar::Archive::new(file);
        for entry in archive.entries_with_seek()? {
            let entry = entry?;
            let Some(path) = clean(&entry.path()?) else { continue };
            let kind = entry.header().entry_type();
            if kind.is_file() {
                let extent = Extent { offset: entry.raw_file_position(), size: entry.size() };
                if extent.offset.checked_add(extent.size).is_none_or(|end| end > length) {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it is cut off"));
                }
                files.insert(path, extent);
            } else if (kind.is_symlink() || kind.is_hard_link())
                && let Some(target) = entry.link_name()?
            {
                let base =
                    if kind.is_symlink() { path.parent().unwrap_or(Path::new("")) } else { Path::new("") };
                links.insert(path.clone(), normal(&base.join(target)));
            }
        }
        Ok(Self { file: archive.into_inner(), files, links })
    }

    /// Older versions of Docker write a layer that occurs twice as a link to its first occurrence.
    fn find(&self, path: &Path) -> Option<Extent> {
        let path = self.links.get(path).map_or(path, PathBuf::as_path);
        self.files.get(path).copied()
    }

    fn blob(&self, digest: &str) -> Option<Extent> {
        is_digest(digest)
            .then(|| Path::new("blobs").join(digest.replace(':', "/")))
            .and_then(|path| self.find(&path))
    }

    fn bytes(&mut self, extent: Extent, name: &str) -> Result<Vec<u8>, Error> {
        if extent.size > DOCUMENT_LIMIT {
            return Err(Error::Layout(format!("{name} in it has more than {DOCUMENT_LIMIT} bytes")));
        }
        self.file.seek(SeekFrom::Start(extent.offset))?;
        let mut bytes = Vec::new();
        Read::by_ref(&mut self.file).take(extent.size).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn json<T: serde::de::DeserializeOwned>(&mut self, name: &str) -> Result<T, Error> {
        let extent = self.find(Path::new(name)).ok_or_else(|| Error::Layout(format!("{name} is missing")))?;
        let bytes = self.bytes(extent, name)?;
        serde_json::from_slice(&bytes).map_err(|source| Error::Document { name: name.to_owned(), source })
    }

    /// Digest of a file in the archive, and what a media type adds for its compression.
    fn hash(&mut self, extent: Extent) -> io::Result<(String, &'static str)> {
        self.file.seek(SeekFrom::Start(extent.offset))?;
        let mut content = Read::by_ref(&mut self.file).take(extent.size);
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; 256 * 1024];
        let mut compression = None;
        loop {
            let n = content.read(&mut buffer)?;
            if n == 0 {
                break;
            }
            compression.get_or_insert(match buffer[..n] {
                [0x1f, 0x8b, ..] => "+gzip",
                [0x28, 0xb5, 0x2f, 0xfd, ..] => "+zstd",
                _ => "",
            });
            hasher.update(&buffer[..n]);
        }
        Ok((hex(&hasher.finalize()), compression.unwrap_or_default()))
    }
}

/// The digest of some bytes, as manifests write it.
pub fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

/// The path below the archive's root; `None` if it leads out.
fn clean(path: &Path) -> Option<PathBuf> {
    let up = path.components().any(|part| matches!(part, Component::ParentDir | Component::Prefix(_)));
    (!up).then(|| normal(path))
}

fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::ParentDir => {
                out.pop();
            }
            _ => {}
        }
    }
    out
}
