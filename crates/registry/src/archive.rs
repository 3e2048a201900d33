//! One archive: the images in it, and where in the file their blobs are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use drover_image::archive::{
    self as layout, DOCKER_MANIFEST, Entry, OCI_INDEX, SavedImage, blob_path, relative_path,
};
use drover_image::manifest::{self, DOCUMENT_LIMIT, Descriptor};
use drover_image::{Compression, Digest, Reference};
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// The maximum depth of indexes in indexes.
const DEPTH: usize = 3;

/// Why an archive is not served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read, or is not a tar file.
    #[error("failed to read it as a tar file")]
    Read(#[from] io::Error),
    /// A document in it is invalid.
    #[error("{name} in it is invalid")]
    Document {
        /// Which document.
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
    /// Its first byte.
    pub offset: u64,
    /// Its length in bytes.
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
    pub name: Reference,
    /// Digest of its manifest or index.
    pub manifest: Digest,
    /// Digests of all its manifests and blobs.
    pub parts: BTreeSet<Digest>,
}

/// The content of an archive.
#[derive(Default, Debug)]
pub struct Archive {
    /// Images, one for each name.
    pub images: Vec<Image>,
    /// Manifests by digest.
    pub manifests: BTreeMap<Digest, Manifest>,
    /// Blobs by digest.
    pub blobs: BTreeMap<Digest, Extent>,
}

impl Archive {
    /// Indexes an uncompressed tar file: an OCI image layout, the output of `docker save`, or both in one.
    pub fn read(file: File) -> Result<Self, Error> {
        let mut reader = Reader::new(file)?;
        let mut out = Self::default();
        if reader.find(Path::new(OCI_INDEX)).is_some() {
            out.oci(&mut reader)?;
        }
        if reader.find(Path::new(DOCKER_MANIFEST)).is_some() {
            out.docker(&mut reader)?;
        }
        if out.images.is_empty() {
            return Err(Error::Layout(
                "it contains no image with a name; create it with docker save NAME:TAG, or as an OCI image layout with names".into(),
            ));
        }
        Ok(out)
    }

    /// The images of an OCI image layout. Their manifests are served unchanged, so the digests are the publisher's.
    fn oci(&mut self, reader: &mut Reader) -> Result<(), Error> {
        let index: manifest::Manifest = reader.json(OCI_INDEX)?;
        for descriptor in index.manifests.unwrap_or_default() {
            let Some(name) = descriptor.references().next() else { continue };
            let mut parts = BTreeSet::new();
            if let Some(manifest) = self.document(reader, &descriptor, &mut parts, DEPTH)? {
                self.images.push(Image { name, manifest, parts });
            }
        }
        Ok(())
    }

    /// Adds a manifest and everything that it references, and returns its digest; `None` if the archive does not
    /// contain the manifest.
    fn document(
        &mut self,
        reader: &mut Reader,
        descriptor: &Descriptor,
        parts: &mut BTreeSet<Digest>,
        depth: usize,
    ) -> Result<Option<Digest>, Error> {
        let Some((digest, extent)) = reader.blob(descriptor) else { return Ok(None) };
        if depth == 0 {
            return Err(Error::Layout(format!("indexes are nested more than {DEPTH} levels deep")));
        }
        let bytes = reader.bytes(extent, &descriptor.digest)?;
        if Digest::of(&bytes) != digest {
            return Err(Error::Layout(format!("blob {digest} does not match its digest")));
        }
        let document: manifest::Manifest = serde_json::from_slice(&bytes)
            .map_err(|source| Error::Document { name: digest.to_string(), source })?;
        parts.insert(digest.clone());
        // The archive may contain only some of the platforms.
        for child in document.manifests.iter().flatten() {
            self.document(reader, child, parts, depth - 1)?;
        }
        for blob in document.config.iter().chain(document.layers.iter().flatten()) {
            let (digest, extent) =
                reader.blob(blob).ok_or_else(|| Error::Layout(format!("blob {} is missing", blob.digest)))?;
            parts.insert(digest.clone());
            self.blobs.insert(digest, extent);
        }
        let guess = match document.manifests {
            Some(_) => manifest::OCI_INDEX,
            None => manifest::OCI_MANIFEST,
        };
        let media_type = [document.media_type, descriptor.media_type.clone(), guess.to_owned()]
            .into_iter()
            .find(|kind| !kind.is_empty())
            .unwrap_or_default();
        self.manifests.insert(digest.clone(), Manifest { media_type, bytes: bytes.into() });
        Ok(Some(digest))
    }

    /// The images that only `manifest.json` names. Their manifests are generated from the files in the archive.
    fn docker(&mut self, reader: &mut Reader) -> Result<(), Error> {
        let saved: Vec<SavedImage> = reader.json(DOCKER_MANIFEST)?;
        let mut known: BTreeMap<PathBuf, (Digest, Extent, &str)> = BTreeMap::new();
        for image in saved {
            let new = |name: &Reference| !self.images.iter().any(|have| have.name == *name);
            let names: Vec<Reference> = image.references().filter(new).collect();
            if names.is_empty() {
                continue;
            }
            let mut parts = BTreeSet::new();
            let mut descriptors = vec![];
            for path in std::iter::once(&image.config).chain(&image.layers) {
                let missing =
                    || Error::Layout(format!("{path} is missing, but {DOCKER_MANIFEST} references it"));
                let clean = relative_path(Path::new(path)).ok_or_else(missing)?;
                if !known.contains_key(&clean) {
                    let extent = reader.find(&clean).ok_or_else(missing)?;
                    let (digest, compression) = reader.hash(extent)?;
                    known.insert(clean.clone(), (digest, extent, compression));
                }
                let (digest, extent, compression) = &known[&clean];
                parts.insert(digest.clone());
                self.blobs.insert(digest.clone(), *extent);
                let kind = match descriptors.is_empty() {
                    true => manifest::OCI_CONFIG.to_owned(),
                    false => format!("{}{compression}", manifest::OCI_LAYER),
                };
                descriptors
                    .push(json!({"mediaType": kind, "digest": digest.to_string(), "size": extent.size}));
            }
            let layers = descriptors.split_off(1);
            let manifest = json!({
                "schemaVersion": 2, "mediaType": manifest::OCI_MANIFEST, "config": descriptors.pop(), "layers": layers,
            });
            let bytes = manifest.to_string().into_bytes();
            let digest = Digest::of(&bytes);
            parts.insert(digest.clone());
            let manifest = Manifest { media_type: manifest::OCI_MANIFEST.into(), bytes: bytes.into() };
            self.manifests.insert(digest.clone(), manifest);
            let images =
                names.into_iter().map(|name| Image { name, manifest: digest.clone(), parts: parts.clone() });
            self.images.extend(images);
        }
        Ok(())
    }
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
            match layout::entry(&entry)? {
                Some((path, Entry::File)) => {
                    let extent = Extent { offset: entry.raw_file_position(), size: entry.size() };
                    if extent.offset.checked_add(extent.size).is_none_or(|end| end > length) {
                        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is truncated"));
                    }
                    files.insert(path, extent);
                }
                Some((path, Entry::Link(target))) => {
                    links.insert(path, target);
                }
                None => {}
            }
        }
        Ok(Self { file: archive.into_inner(), files, links })
    }

    fn find(&self, path: &Path) -> Option<Extent> {
        let path = self.links.get(path).map_or(path, PathBuf::as_path);
        self.files.get(path).copied()
    }

    fn blob(&self, descriptor: &Descriptor) -> Option<(Digest, Extent)> {
        let digest = Digest::parse(&descriptor.digest)?;
        self.find(&blob_path(&digest)).map(|extent| (digest, extent))
    }

    fn bytes(&mut self, extent: Extent, name: &str) -> Result<Vec<u8>, Error> {
        if extent.size > DOCUMENT_LIMIT {
            return Err(Error::Layout(format!("{name} in it is larger than {DOCUMENT_LIMIT} bytes")));
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

    /// Digest of a file in the archive, and the suffix of the media type for its compression.
    fn hash(&mut self, extent: Extent) -> io::Result<(Digest, &'static str)> {
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
            compression.get_or_insert(match Compression::of_layer(&buffer[..n]) {
                Compression::Gzip => "+gzip",
                Compression::Zstd => "+zstd",
                _ => "",
            });
            hasher.update(&buffer[..n]);
        }
        Ok((Digest::finish(hasher), compression.unwrap_or_default()))
    }
}
