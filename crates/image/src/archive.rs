//! Image archives: tar files written by `docker save` (`manifest.json`), as an OCI image layout (`index.json`), or as
//! both in one file, as current versions of Docker do.

use std::{
    io::{self, Read},
    path::{Component, Path, PathBuf},
};

use serde::Deserialize;

use crate::{Digest, Reference, manifest::Descriptor};

/// The document that `docker save` writes.
pub const DOCKER_MANIFEST: &str = "manifest.json";
/// The root of an OCI image layout.
pub const OCI_INDEX: &str = "index.json";

/// The annotations that name an image in an OCI image layout. The first is containerd's and preferred.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

/// One image in [`DOCKER_MANIFEST`].
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct SavedImage {
    /// Path of its configuration in the archive.
    #[serde(default)]
    pub config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    /// Paths of its layers in the archive, bottom first.
    #[serde(default)]
    pub layers: Vec<String>,
}

impl SavedImage {
    /// The names of the image; invalid names are skipped.
    pub fn references(&self) -> impl Iterator<Item = Reference> {
        self.repo_tags.iter().flatten().filter_map(|tag| Reference::parse(tag))
    }
}

impl Descriptor {
    /// The names of an image in [`OCI_INDEX`]. A bare tag is not a name: then `docker save` writes the name to
    /// [`DOCKER_MANIFEST`].
    pub fn references(&self) -> impl Iterator<Item = Reference> {
        NAMES
            .iter()
            .filter_map(|key| self.annotations.as_ref()?.get(*key))
            .filter(|name| name.contains(['/', ':']))
            .filter_map(|name| Reference::parse(name))
    }
}

/// What an entry of an archive is.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry {
    /// A regular file.
    File,
    /// A link to another entry. Old versions of Docker write a layer that occurs twice as a link to its first
    /// occurrence.
    Link(PathBuf),
}

/// The path and kind of an entry; `None` for other kinds and for paths and links that leave the archive.
pub fn entry(entry: &tar::Entry<'_, impl Read>) -> io::Result<Option<(PathBuf, Entry)>> {
    let Some(path) = relative_path(&entry.path()?) else { return Ok(None) };
    let kind = entry.header().entry_type();
    if kind.is_file() {
        return Ok(Some((path, Entry::File)));
    }
    let base = match kind {
        _ if kind.is_symlink() => path.parent().unwrap_or(Path::new("")),
        _ if kind.is_hard_link() => Path::new(""),
        _ => return Ok(None),
    };
    let target = entry.link_name()?.and_then(|target| normalized(&base.join(target)));
    Ok(target.map(|target| (path, Entry::Link(target))))
}

/// The path relative to the archive's root; `None` if it contains `..`.
pub fn relative_path(path: &Path) -> Option<PathBuf> {
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

/// A relative path with its `..` resolved; `None` if it is absolute or leaves the root.
fn normalized(path: &Path) -> Option<PathBuf> {
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

/// The path of a blob in an OCI image layout.
pub fn blob_path(digest: &Digest) -> PathBuf {
    Path::new("blobs/sha256").join(digest.hex())
}

/// The digest of the blob at a path of an OCI image layout.
pub fn blob_digest(path: &Path) -> Option<Digest> {
    Digest::parse(&format!("sha256:{}", path.strip_prefix("blobs/sha256").ok()?.to_str()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(kind: tar::EntryType, name: &str, target: &str) -> Option<(PathBuf, Entry)> {
        let mut out = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_entry_type(kind);
        header.set_size(0);
        header.set_cksum();
        out.append(&header, io::empty()).unwrap();
        let bytes = out.into_inner().unwrap();
        let mut archive = tar::Archive::new(&bytes[..]);
        let found = archive.entries().unwrap().next().unwrap().unwrap();
        entry(&found).unwrap()
    }

    #[test]
    fn paths_and_links_stay_inside_the_archive() {
        use tar::EntryType::{Directory, Link, Regular, Symlink};
        let linked = |path: &str, to: &str| Some((path.into(), Entry::Link(to.into())));
        assert_eq!(entries(Regular, "./a/layer.tar", ""), Some(("a/layer.tar".into(), Entry::File)));
        assert_eq!(entries(Regular, "/a", ""), Some(("a".into(), Entry::File)));
        assert_eq!(entries(Regular, "a/../../b", ""), None);
        assert_eq!(entries(Directory, "a/", ""), None);
        assert_eq!(entries(Symlink, "b/layer.tar", "../a/layer.tar"), linked("b/layer.tar", "a/layer.tar"));
        assert_eq!(entries(Link, "b/layer.tar", "a/layer.tar"), linked("b/layer.tar", "a/layer.tar"));
        for target in ["../../a", "/a"] {
            assert_eq!(entries(Symlink, "b/layer.tar", target), None, "{target}");
        }
    }

    #[test]
    fn blobs_are_found_by_digest() {
        let digest = Digest::of(b"x");
        assert_eq!(blob_digest(&blob_path(&digest)), Some(digest));
        assert_eq!(blob_digest(Path::new("blobs/sha256/x")), None);
    }
}
