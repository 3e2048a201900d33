//! Finds one image in an OCI image layout: `index.json` names images, everything else is a blob under its digest.

use std::path::{Path, PathBuf};

use drover_image::{
    Digest, Reference,
    archive::{OCI_INDEX, blob_path},
    manifest::{Document, Manifest, Platform, choose, foreign_platform, parse},
};

use super::Error;

/// The maximum depth of indexes in indexes.
const DEPTH: usize = 4;

/// Reads a small blob of the layout; `None` if the layout does not contain it.
pub(super) type Blobs<'a> = dyn FnMut(&Digest) -> Result<Option<Vec<u8>>, Error> + 'a;

/// Paths of the layers of the image in the layout at `path`, bottom first; `None` if the layout does not contain the
/// image.
pub(super) fn layers(
    path: &Path,
    index: &[u8],
    wanted: &Reference,
    blob: &mut Blobs<'_>,
) -> Result<Option<Vec<PathBuf>>, Error> {
    let layout = |message: String| Error::Layout { path: path.to_owned(), message };
    let Some(mut digest) = root(index, wanted).map_err(layout)? else { return Ok(None) };
    for depth in 0..DEPTH {
        let bytes = match blob(&digest)? {
            Some(bytes) => bytes,
            // The layout was not looked up by name, so this is only a different image.
            None if depth == 0 && wanted.digest.is_some() => return Ok(None),
            None => return Err(layout(format!("blob {digest} is missing"))),
        };
        if Digest::of(&bytes) != digest {
            return Err(layout(format!("blob {digest} does not match its digest")));
        }
        match parse(&bytes, Platform::here()).map_err(layout)? {
            Document::Index(chosen) => digest = chosen.digest,
            Document::Image { config, layers } => {
                let config = blob(&config.digest)?.unwrap_or_default();
                if let Some(other) = foreign_platform(&config, Platform::here()) {
                    return Err(layout(format!(
                        "the image is for platform {other}, this host is {}",
                        Platform::here()
                    )));
                }
                return Ok(Some(layers.iter().map(|layer| blob_path(&layer.digest)).collect()));
            }
        }
    }
    Err(layout(format!("indexes are nested more than {DEPTH} levels deep")))
}

/// The digest of the image's manifest or index.
fn root(index: &[u8], wanted: &Reference) -> Result<Option<Digest>, String> {
    if let Some(digest) = &wanted.digest {
        return Ok(Digest::parse(digest));
    }
    let index: Manifest = serde_json::from_slice(index).map_err(|error| format!("{OCI_INDEX}: {error}"))?;
    let mut manifests = index.manifests.unwrap_or_default();
    manifests.retain(|descriptor| descriptor.references().any(|name| name == *wanted));
    // There can be one descriptor per platform with the same name.
    match manifests.is_empty() {
        true => Ok(None),
        false => choose(&manifests, Platform::here()).map(|chosen| Some(chosen.digest)),
    }
}
