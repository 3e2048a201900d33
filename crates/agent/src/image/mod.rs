//! Instruction images: an instruction runs in a directory with the content of its image.
//!
//! Images are read from archives in the images directory (`docker save` or OCI image layouts), so that a node can
//! install without a network. Otherwise they are pulled from registries; the management plane can be one of them.

mod oci;
pub mod registry;
mod tarball;
mod unpack;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use drover_image::{Compression, Reference, read_layer};
pub use unpack::{Budget, layer as unpack_layer};

use crate::{
    config::Config,
    host::{Host, Kind, offload},
};
use registry::{Puller, cache};

/// The maximum depth of subdirectories of the images directory.
const DEPTH: usize = 8;

/// Why an image could not be staged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The reference is invalid.
    #[error("image {0:?}: invalid image reference")]
    Reference(String),
    /// No tarball contains it.
    #[error("image {image}: not found among the {looked_at} tarballs in {directory}")]
    NotFound {
        /// The image.
        image: String,
        /// The images directory.
        directory: PathBuf,
        /// The number of tarballs.
        looked_at: usize,
    },
    /// No tarball contains it, and pulling it failed.
    #[error(
        "image {image}: not found among the {looked_at} tarballs in {directory}, and pulling it failed: {tried}"
    )]
    Pull {
        /// The image.
        image: String,
        /// The images directory.
        directory: PathBuf,
        /// The number of tarballs.
        looked_at: usize,
        /// The registries with their errors.
        tried: String,
    },
    /// The operation was interrupted.
    #[error("staging image {0} was interrupted")]
    BrokeOff(String),
    /// Reading a tarball failed.
    #[error("{path}: {source}")]
    Tarball {
        /// The tarball.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A tarball that is neither from `docker save` nor an OCI layout, or invalid.
    #[error("{path}: {message}")]
    Layout {
        /// The tarball.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// An entry would be written outside of the directory.
    #[error("image entry {0:?} would be written outside of the staging directory")]
    Escape(PathBuf),
    /// An operation on the host failed.
    #[error("failed to unpack {path}: {source}")]
    Unpack {
        /// The entry.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The sources of a machine's images.
pub struct Images {
    directory: PathBuf,
    puller: Puller,
}

impl Images {
    /// From the configuration.
    pub fn new(config: &Config) -> Self {
        let cache = cache::Cache::new(&config.var_dir().join("cache"), cache::LIMIT);
        Self { directory: config.images_directory.clone(), puller: Puller::new(config, cache) }
    }

    /// Unpacks the image into an existing, empty directory.
    pub async fn stage(&self, host: &Arc<dyn Host>, image: &str, into: &Path) -> Result<(), Error> {
        let (inner, directory) = (host.clone(), self.directory.clone());
        let (name, target) = (image.to_owned(), into.to_owned());
        let local = offload(&**host, move || stage(&*inner, &directory, &name, &target)).await;
        let (directory, looked_at) = match local {
            Some(Err(Error::NotFound { directory, looked_at, .. })) => (directory, looked_at),
            Some(done) => return done,
            None => return Err(Error::BrokeOff(image.to_owned())),
        };
        let wanted = Reference::parse(image).ok_or_else(|| Error::Reference(image.to_owned()))?;
        let layers = self.puller.pull(host, &wanted).await.map_err(|refusal| Error::Pull {
            image: image.to_owned(),
            directory,
            looked_at,
            tried: refusal.to_string(),
        })?;
        let (inner, cache, target) = (host.clone(), self.puller.cache.clone(), into.to_owned());
        let unpacked = offload(&**host, move || {
            let mut budget = Budget::default();
            for blob in &layers {
                let path = cache.path(&blob.digest);
                let layer = inner.open(&path).and_then(read_layer);
                let layer = layer.map_err(|source| Error::Tarball { path, source })?;
                unpack::layer(&*inner, layer, &target, &mut budget)?;
            }
            if let Err(error) = cache.used(&*inner, &layers) {
                tracing::warn!("failed to clean up the cache of layers: {error}");
            }
            Ok(())
        });
        unpacked.await.unwrap_or_else(|| Err(Error::BrokeOff(image.to_owned())))
    }
}

/// Unpacks the image from a tarball into an existing, empty directory.
fn stage(host: &dyn Host, images: &Path, image: &str, into: &Path) -> Result<(), Error> {
    let wanted = Reference::parse(image).ok_or_else(|| Error::Reference(image.to_owned()))?;
    let tarballs = find(host, images, DEPTH);
    for path in &tarballs {
        match tarball::layers(host, path, &wanted) {
            Ok(Some(layers)) => match tarball::unpack(host, path, &layers, into) {
                Err(error @ Error::Layout { .. }) => {
                    tracing::warn!("skipping image tarball: {error}");
                    clear(host, into).map_err(|source| Error::Tarball { path: path.clone(), source })?;
                }
                other => return other,
            },
            Ok(None) => {}
            // An invalid tarball must not hide the valid ones.
            Err(error) => tracing::warn!("skipping image tarball: {error}"),
        }
    }
    Err(Error::NotFound { image: image.to_owned(), directory: images.to_owned(), looked_at: tarballs.len() })
}

/// Removes what a damaged archive left.
fn clear(host: &dyn Host, directory: &Path) -> io::Result<()> {
    for name in host.list(directory)? {
        let path = directory.join(name);
        match host.stat(&path)?.kind {
            Kind::Directory => host.remove_tree(&path)?,
            _ => host.remove_file(&path)?,
        }
    }
    Ok(())
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
            Ok(Kind::File | Kind::Symlink) if Compression::of_archive(&name).is_some() => found.push(path),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests;
