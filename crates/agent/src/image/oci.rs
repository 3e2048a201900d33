//! The OCI image layout: an `index.json` that names images, and everything else as a blob under its digest.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{
    Error, Reference,
    registry::{
        Digest,
        manifest::{Document, Platform, foreign_platform, parse},
    },
};

/// Where names stand, as containerd and everybody else writes them.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];
/// Indexes of indexes end somewhere.
const DEPTH: usize = 4;

/// Reads a small blob of the layout; `None` if it is not in there.
pub(super) type Blobs<'a> = dyn FnMut(&Digest) -> Result<Option<Vec<u8>>, Error> + 'a;

/// The blob's place in a layout.
pub(super) fn place(digest: &Digest) -> PathBuf {
    Path::new("blobs/sha256").join(digest.hex())
}

/// Which blob a place is for.
pub(super) fn digest_of(place: &Path) -> Option<Digest> {
    Digest::parse(&format!("sha256:{}", place.strip_prefix("blobs/sha256").ok()?.to_str()?))
}

/// The layers of the image in the layout at `path`, bottom first; `None` if it is not in there.
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
            // A digest alone does not say that it is here.
            None if depth == 0 && wanted.digest.is_some() => return Ok(None),
            None => return Err(layout(format!("{digest} is named in it but missing"))),
        };
        if Digest::of(&bytes) != digest {
            return Err(layout(format!("{digest} in it has another digest")));
        }
        match parse(&bytes, Platform::here()).map_err(layout)? {
            Document::Index(chosen) => digest = chosen.digest,
            Document::Image { config, layers } => {
                let config = blob(&config.digest)?.unwrap_or_default();
                if let Some(other) = foreign_platform(&config, Platform::here()) {
                    return Err(layout(format!("the image is for {other}, not for {}", Platform::here())));
                }
                return Ok(Some(layers.iter().map(|layer| place(&layer.digest)).collect()));
            }
        }
    }
    Err(layout("indexes in it are nested too deeply".into()))
}

/// The manifest or index of the image.
fn root(index: &[u8], wanted: &Reference) -> Result<Option<Digest>, String> {
    if let Some(digest) = &wanted.digest {
        return Ok(Digest::parse(digest));
    }
    let mut index: Value = serde_json::from_slice(index).map_err(|error| format!("index.json: {error}"))?;
    let Some(manifests) = index["manifests"].as_array_mut() else { return Ok(None) };
    manifests.retain(|descriptor| is(descriptor, wanted));
    if manifests.is_empty() {
        return Ok(None);
    }
    // The same name may stand there once for each platform.
    match parse(index.to_string().as_bytes(), Platform::here())? {
        Document::Index(chosen) => Ok(Some(chosen.digest)),
        Document::Image { .. } => Ok(None),
    }
}

fn is(descriptor: &Value, wanted: &Reference) -> bool {
    NAMES
        .iter()
        .filter_map(|key| descriptor["annotations"][*key].as_str())
        // A bare tag names nothing.
        .filter(|name| name.contains(['/', ':']))
        .any(|name| Reference::parse(name).as_ref() == Some(wanted))
}
