//! Instruction images: their content becomes the folder in which an instruction runs.
//!
//! They come from `docker save` tarballs in the images directory, so a node needs no network to install.

mod compression;
mod reference;
mod tarball;
mod unpack;

use std::{
    io,
    path::{Path, PathBuf},
};

pub use reference::Reference;

use crate::host::{Host, Kind};

/// How deep the images directory is searched.
const DEPTH: usize = 8;

/// Why an image could not be staged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The reference makes no sense.
    #[error("image {0:?}: not a valid image reference")]
    Reference(String),
    /// No tarball holds it.
    #[error("image {image}: not found among the {looked_at} tarballs in {directory}")]
    NotFound {
        /// Which image.
        image: String,
        /// Where.
        directory: PathBuf,
        /// How many tarballs there are.
        looked_at: usize,
    },
    /// A tarball cannot be read.
    #[error("{path}: {source}")]
    Tarball {
        /// Which tarball.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A tarball is not what `docker save` writes.
    #[error("{path}: {message}")]
    Layout {
        /// Which tarball.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// An entry wants to leave the folder.
    #[error("image entry {0:?} would be written outside of the staging directory")]
    Escape(PathBuf),
    /// The machine refused.
    #[error("cannot unpack {path}: {source}")]
    Unpack {
        /// Which entry.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Unpacks the image into an existing, empty directory.
pub fn stage(host: &dyn Host, images: &Path, image: &str, into: &Path) -> Result<(), Error> {
    let wanted = Reference::parse(image).ok_or_else(|| Error::Reference(image.to_owned()))?;
    let tarballs = find(host, images, DEPTH);
    for path in &tarballs {
        match tarball::layers(host, path, &wanted) {
            Ok(Some(layers)) => return tarball::unpack(host, path, &layers, into),
            Ok(None) => {}
            // One broken tarball must not hide the good ones.
            Err(error) => tracing::warn!("skipping image tarball: {error}"),
        }
    }
    Err(Error::NotFound { image: image.to_owned(), directory: images.to_owned(), looked_at: tarballs.len() })
}

fn find(host: &dyn Host, directory: &Path, depth: usize) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for name in host.list(directory).unwrap_or_default() {
        let path = directory.join(&name);
        if name.starts_with('.') {
            continue;
        }
        match host.stat(&path).map(|stat| stat.kind) {
            Ok(Kind::Directory) if depth > 0 => found.extend(find(host, &path, depth - 1)),
            Ok(Kind::File | Kind::Symlink) if compression::of(&name).is_some() => found.push(path),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests;
