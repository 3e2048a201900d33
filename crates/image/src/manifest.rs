//! Manifests of images, and indexes of manifests by platform.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::Digest;

/// The maximum size of a manifest, an index or an image configuration.
pub const DOCUMENT_LIMIT: u64 = 4 * 1024 * 1024;
/// The maximum size of one layer, compressed.
pub const LAYER_LIMIT: u64 = 4 << 30;
/// The maximum size of all layers of an image, compressed.
pub const IMAGE_LIMIT: u64 = 8 << 30;
const LAYERS: usize = 128;

/// Media type of an OCI image manifest.
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of an OCI index.
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// Media type of an OCI image configuration.
pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// Media type of an uncompressed OCI layer.
pub const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// The `Accept` header of a request for a manifest.
pub const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json";

/// A blob that a manifest references.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// Its expected digest.
    pub digest: Digest,
    /// Its expected size in bytes.
    pub size: u64,
}

/// What a manifest leads to on one platform.
#[derive(Debug, PartialEq, Eq)]
pub enum Document {
    /// The manifest for the platform, which has to be fetched next.
    Index(Blob),
    /// An image.
    Image {
        /// Its configuration.
        config: Blob,
        /// Bottom first.
        layers: Vec<Blob>,
    },
}

/// An operating system and architecture, with the names that Go uses.
#[derive(Clone, Copy, Debug)]
pub struct Platform {
    /// For example `linux`.
    pub os: &'static str,
    /// For example `amd64`.
    pub architecture: &'static str,
}

impl Platform {
    /// The platform that this program was built for.
    pub fn here() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            other => other,
        };
        Self { os: std::env::consts::OS, architecture }
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)
    }
}

/// A manifest or an index as it is written: an index has `manifests`, an image has `config` and `layers`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    #[serde(default)]
    schema_version: u64,
    /// Its media type; empty if it does not say.
    #[serde(default)]
    pub media_type: String,
    /// The manifests of an index.
    pub manifests: Option<Vec<Descriptor>>,
    /// The configuration of an image.
    pub config: Option<Descriptor>,
    /// The layers of an image, bottom first.
    pub layers: Option<Vec<Descriptor>>,
}

/// A reference from a manifest to a blob or to another manifest.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// The media type of what it references.
    #[serde(default)]
    pub media_type: String,
    /// The digest of what it references, not validated.
    pub digest: String,
    size: u64,
    platform: Option<RawPlatform>,
    pub(crate) annotations: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize)]
struct RawPlatform {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    #[serde(default)]
    variant: String,
}

/// Parses a manifest or index. The error is a message about the document.
pub fn parse(bytes: &[u8], platform: Platform) -> Result<Document, String> {
    let raw: Manifest =
        serde_json::from_slice(bytes).map_err(|error| format!("invalid manifest: {error}"))?;
    if raw.schema_version != 2 {
        let version = raw.schema_version;
        return Err(format!(
            "manifest schema version {version} is not supported (only 2 is); push the image again with a current tool"
        ));
    }
    if let Some(manifests) = raw.manifests {
        return choose(&manifests, platform).map(Document::Index);
    }
    let config = raw.config.ok_or_else(|| {
        format!("the manifest ({}) is neither an image nor an index: \"config\" is missing", raw.media_type)
    })?;
    let layers = raw.layers.unwrap_or_default();
    if layers.len() > LAYERS {
        return Err(format!("the image has {} layers, the limit is {LAYERS}", layers.len()));
    }
    let mut total = 0_u64;
    let mut blobs = Vec::with_capacity(layers.len());
    for layer in &layers {
        let blob = layer.blob("layer", LAYER_LIMIT)?;
        if !is_layer(&layer.media_type) {
            let Descriptor { media_type, digest, .. } = layer;
            return Err(format!("layer {digest} has media type {media_type:?}, which is not supported"));
        }
        total = total.saturating_add(blob.size);
        blobs.push(blob);
    }
    if total > IMAGE_LIMIT {
        return Err(format!("the layers of the image have {total} bytes, the limit is {IMAGE_LIMIT}"));
    }
    Ok(Document::Image { config: config.blob("config", DOCUMENT_LIMIT)?, layers: blobs })
}

/// Only that it is a tar file matters, because the compression is detected from the first bytes.
fn is_layer(media_type: &str) -> bool {
    let docker = "application/vnd.docker.image.rootfs.";
    media_type.is_empty()
        || media_type.starts_with("application/vnd.oci.image.layer.")
            && media_type.contains(".tar")
            && !media_type.ends_with("+encrypted")
        || media_type.starts_with(docker) && media_type.contains(".tar")
}

/// The manifest for the platform.
pub fn choose(manifests: &[Descriptor], platform: Platform) -> Result<Blob, String> {
    let fits = |descriptor: &&Descriptor| {
        descriptor
            .platform
            .as_ref()
            .is_some_and(|found| found.os == platform.os && found.architecture == platform.architecture)
    };
    let variant = |descriptor: &&Descriptor| descriptor.platform.as_ref().map(|found| found.variant.clone());
    // Prefer one without a variant: a variant may need a newer processor.
    let found = manifests.iter().filter(fits).min_by_key(variant);
    // A single manifest without a platform is used on every platform.
    let found = found.or(match manifests {
        [only] if only.platform.is_none() => Some(only),
        _ => None,
    });
    let Some(found) = found else {
        let mut others: Vec<String> = manifests
            .iter()
            .filter_map(|descriptor| descriptor.platform.as_ref())
            .filter(|found| found.os != "unknown")
            .map(|found| format!("{}/{}", found.os, found.architecture))
            .collect();
        others.sort();
        others.dedup();
        others.truncate(20);
        let others = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
        return Err(format!("no image for platform {platform}; available platforms: {others}"));
    };
    found.blob("manifest", DOCUMENT_LIMIT)
}

impl Descriptor {
    fn blob(&self, what: &str, limit: u64) -> Result<Blob, String> {
        let digest = Digest::parse(&self.digest).ok_or_else(|| {
            format!("{what} digest {:?} is invalid: expected sha256: and 64 hex digits", self.digest)
        })?;
        if self.size > limit {
            return Err(format!("{what} {digest} has {} bytes, the limit is {limit}", self.size));
        }
        Ok(Blob { digest, size: self.size })
    }
}

/// The platform in the image's configuration, if it differs from this one.
pub fn foreign_platform(config: &[u8], platform: Platform) -> Option<String> {
    let found: RawPlatform = serde_json::from_slice(config).ok()?;
    let other = |found: &str, here: &str| !found.is_empty() && found != here;
    (other(&found.os, platform.os) || other(&found.architecture, platform.architecture))
        .then(|| format!("{}/{}", found.os, found.architecture))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const HERE: Platform = Platform { os: "linux", architecture: "amd64" };

    fn read(value: &serde_json::Value) -> Result<Document, String> {
        parse(value.to_string().as_bytes(), HERE)
    }

    fn digest(of: &str) -> String {
        Digest::of(of.as_bytes()).to_string()
    }

    #[test]
    fn the_manifest_for_the_platform_is_chosen() {
        let entry = |of: &str, os: &str, architecture: &str, variant: &str| {
            json!({
                "digest": digest(of), "size": 3, "platform": {"os": os, "architecture": architecture, "variant": variant},
            })
        };
        let index = json!({"schemaVersion": 2, "manifests": [
            entry("a", "linux", "arm64", "v8"), entry("b", "linux", "amd64", "v3"), entry("c", "linux", "amd64", ""),
            entry("d", "unknown", "unknown", ""),
        ]});
        let Ok(Document::Index(blob)) = read(&index) else { panic!() };
        assert_eq!(blob, Blob { digest: Digest::of(b"c"), size: 3 });
        let index = json!({"schemaVersion": 2, "manifests": [
            entry("a", "windows", "amd64", ""), entry("b", "linux", "arm64", ""), entry("d", "unknown", "unknown", ""),
        ]});
        assert_eq!(
            read(&index).unwrap_err(),
            "no image for platform linux/amd64; available platforms: linux/arm64, windows/amd64"
        );
        let index = json!({"schemaVersion": 2, "manifests": [{"digest": digest("x"), "size": 1}]});
        assert!(matches!(read(&index), Ok(Document::Index(_))));
        assert!(
            read(&json!({"schemaVersion": 2, "manifests": []}))
                .unwrap_err()
                .ends_with("available platforms: none")
        );
    }

    #[test]
    fn unsupported_manifests_are_rejected_with_a_reason() {
        let image = |layer: serde_json::Value| json!({"schemaVersion": 2, "config": {"digest": digest("c"), "size": 2}, "layers": [layer]});
        let layer = |kind: &str, size: u64| json!({"mediaType": kind, "digest": digest("l"), "size": size});
        let oci = "application/vnd.oci.image.layer.v1.tar+zstd";
        assert!(matches!(read(&image(layer(oci, 1))), Ok(Document::Image { .. })));
        assert!(read(&image(layer("application/vnd.docker.image.rootfs.diff.tar.gzip", 1))).is_ok());
        for (document, expected) in [
            (json!({"schemaVersion": 1, "fsLayers": []}), "schema version 1"),
            (json!({"schemaVersion": 2, "mediaType": "x"}), "neither an image nor an index"),
            (json!("no"), "invalid manifest"),
            (image(layer("application/vnd.cncf.helm.chart.content.v1.tar+gzip", 1)), "is not supported"),
            (image(layer(oci, LAYER_LIMIT + 1)), "the limit is"),
            (image(json!({"digest": "sha512:00", "size": 1})), "expected sha256"),
            (image(json!({"digest": "sha256:../../etc/passwd", "size": 1})), "expected sha256"),
        ] {
            let error = read(&document).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let many = vec![layer(oci, LAYER_LIMIT); 3];
        let many = json!({"schemaVersion": 2, "config": {"digest": digest("c"), "size": 2}, "layers": many});
        assert!(read(&many).unwrap_err().contains("the layers of the image have"));
    }

    #[test]
    fn an_image_for_another_platform_is_detected() {
        assert_eq!(
            foreign_platform(br#"{"os":"linux","architecture":"arm64"}"#, HERE).as_deref(),
            Some("linux/arm64")
        );
        assert_eq!(foreign_platform(br#"{"os":"linux","architecture":"amd64"}"#, HERE), None);
        assert_eq!(foreign_platform(b"{}", HERE), None);
    }
}
