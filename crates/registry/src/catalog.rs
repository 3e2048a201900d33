//! The images in the folder. Archives that did not change are not read again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drover_image::{Compression, Digest, is_docker_hub};

use crate::archive::{Archive, Extent, Manifest};
use crate::unpacked;

/// The maximum depth of subfolders.
const DEPTH: usize = 8;

/// Identifies a version of a file, to detect that it was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    inode: u64,
    length: u64,
    modified: (i64, i64),
}

impl Stamp {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

/// One archive of the folder.
struct Known {
    stamp: Stamp,
    /// The uncompressed tar file: the archive itself, or a decompressed copy.
    plain: PathBuf,
    plain_stamp: Stamp,
    /// `None` if it cannot be served. The reason was logged once.
    archive: Option<Arc<Archive>>,
}

/// A snapshot of the images in the folder.
#[derive(Default)]
pub(crate) struct Catalog {
    known: BTreeMap<PathBuf, Arc<Known>>,
}

/// The file and range of a blob.
pub(crate) struct Located {
    pub(crate) file: PathBuf,
    pub(crate) stamp: Stamp,
    pub(crate) extent: Extent,
}

impl Catalog {
    /// Reads the folder again.
    pub(crate) fn refreshed(&self, folder: &Path, scratch: &Path) -> Self {
        let mut known = BTreeMap::new();
        let mut found = vec![];
        find(folder, DEPTH, &mut found);
        for (path, compression) in found {
            let Ok(stamp) = std::fs::metadata(&path).map(|metadata| Stamp::of(&metadata)) else { continue };
            let entry = match self.known.get(&path) {
                Some(have) if have.stamp == stamp => have.clone(),
                _ => Arc::new(load(&path, stamp, compression, scratch)),
            };
            known.insert(path, entry);
        }
        unpacked::tidy(scratch, &known.values().map(|entry| entry.plain.clone()).collect());
        Self { known }
    }

    /// Whether the folder is unchanged.
    pub(crate) fn is_current(&self, folder: &Path) -> bool {
        let mut found = vec![];
        find(folder, DEPTH, &mut found);
        found.len() == self.known.len()
            && found.iter().all(|(path, _)| {
                let now = std::fs::metadata(path).map(|metadata| Stamp::of(&metadata));
                self.known.get(path).is_some_and(|have| now.is_ok_and(|now| now == have.stamp))
            })
    }

    fn archives(&self) -> impl Iterator<Item = (&Known, &Archive)> {
        self.known.values().filter_map(|known| Some((known.as_ref(), known.archive.as_deref()?)))
    }

    /// Images of a repository; `ns` is the registry of the image reference, if the client sent it.
    fn images<'a>(
        &'a self,
        repository: &'a str,
        ns: Option<&'a str>,
    ) -> impl Iterator<Item = (&'a Known, &'a Archive, &'a crate::archive::Image)> {
        let ns = ns.map(|ns| if is_docker_hub(ns) { "docker.io" } else { ns });
        self.archives()
            .flat_map(|(known, archive)| archive.images.iter().map(move |image| (known, archive, image)))
            .filter(move |(_, _, image)| {
                image.name.repository == repository && ns.is_none_or(|ns| ns == image.name.namespace())
            })
    }

    pub(crate) fn has_repository(&self, repository: &str, ns: Option<&str>) -> bool {
        self.images(repository, ns).next().is_some()
    }

    /// All repositories.
    pub(crate) fn repositories(&self) -> BTreeSet<&str> {
        self.archives()
            .flat_map(|(_, archive)| archive.images.iter().map(|image| image.name.repository.as_str()))
            .collect()
    }

    pub(crate) fn tags<'a>(&'a self, repository: &'a str, ns: Option<&'a str>) -> BTreeSet<&'a str> {
        self.images(repository, ns).map(|(_, _, image)| image.name.tag.as_str()).collect()
    }

    /// A manifest by tag, with its digest. Docker Hub is preferred if images of several registries have the same path.
    pub(crate) fn tagged(&self, repository: &str, ns: Option<&str>, tag: &str) -> Option<(Digest, Manifest)> {
        let found = self.images(repository, ns).filter(|(_, _, image)| image.name.tag == tag);
        let (_, archive, image) =
            found.min_by_key(|(_, _, image)| (!is_docker_hub(&image.name.registry), &image.name.registry))?;
        Some((image.manifest.clone(), archive.manifests.get(&image.manifest)?.clone()))
    }

    /// A manifest by digest.
    pub(crate) fn manifest(&self, repository: &str, ns: Option<&str>, digest: &Digest) -> Option<Manifest> {
        self.images(repository, ns)
            .filter(|(_, _, image)| image.parts.contains(digest))
            .find_map(|(_, archive, _)| archive.manifests.get(digest).cloned())
    }

    /// A blob of one of the repository's images.
    pub(crate) fn blob(&self, repository: &str, ns: Option<&str>, digest: &Digest) -> Option<Located> {
        self.images(repository, ns).filter(|(_, _, image)| image.parts.contains(digest)).find_map(
            |(known, archive, _)| {
                let extent = *archive.blobs.get(digest)?;
                Some(Located { file: known.plain.clone(), stamp: known.plain_stamp, extent })
            },
        )
    }
}

fn load(path: &Path, stamp: Stamp, compression: Compression, scratch: &Path) -> Known {
    let plain = match compression {
        Compression::None => Ok(path.to_owned()),
        _ => unpacked::plain(scratch, path, &format!("{stamp:?}"), compression)
            .map_err(|error| format!("failed to decompress it: {error}")),
    };
    let read = plain.and_then(|plain| {
        let opened = File::open(&plain).and_then(|file| Ok((Stamp::of(&file.metadata()?), file)));
        let (plain_stamp, file) = opened.map_err(|error| error.to_string())?;
        let archive = Archive::read(file).map_err(|error| {
            let cause =
                std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            format!("{error}{cause}")
        })?;
        Ok((plain, plain_stamp, Some(Arc::new(archive))))
    });
    let (plain, plain_stamp, archive) = read.unwrap_or_else(|why| {
        tracing::warn!(archive = %path.display(), "skipping an image archive: {why}");
        (path.to_owned(), stamp, None)
    });
    Known { stamp, plain, plain_stamp, archive }
}

fn find(folder: &Path, depth: usize, found: &mut Vec<(PathBuf, Compression)>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.starts_with('.') {
            continue;
        }
        let path = entry.path();
        match std::fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() && depth > 0 => find(&path, depth - 1, found),
            Ok(metadata) if metadata.is_file() => {
                found.extend(Compression::of_archive(&name).map(|compression| (path, compression)));
            }
            _ => {}
        }
    }
}
