//! What registries answer: manifests, and indexes of manifests by platform.

use serde::Deserialize;

use super::Digest;

/// A manifest, index or configuration larger than this is none.
pub const DOCUMENT_LIMIT: u64 = 4 * 1024 * 1024;
/// One layer, compressed.
pub const LAYER_LIMIT: u64 = 4 << 30;
/// All layers, compressed.
pub const IMAGE_LIMIT: u64 = 8 << 30;
const LAYERS: usize = 128;

/// Media types asked for.
pub const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json";

/// A blob that is named in a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// What it must hash to.
    pub digest: Digest,
    /// How long it must be.
    pub size: u64,
}

/// An answer, understood.
#[derive(Debug, PartialEq, Eq)]
pub enum Document {
    /// Another manifest has to be fetched: the one for this platform.
    Index(Blob),
    /// The image.
    Image {
        /// Its configuration.
        config: Blob,
        /// Bottom first.
        layers: Vec<Blob>,
    },
}

/// The operating system and architecture to choose by, in Go's words.
#[derive(Clone, Copy, Debug)]
pub struct Platform {
    /// For example `linux`.
    pub os: &'static str,
    /// For example `amd64`.
    pub architecture: &'static str,
}

impl Platform {
    /// The one that this program was built for.
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

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    #[serde(default)]
    schema_version: u64,
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
    size: u64,
    platform: Option<RawPlatform>,
}

#[derive(Deserialize)]
struct RawPlatform {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    #[serde(default)]
    variant: String,
}

/// Understands a manifest or index. The error is a sentence about the document.
pub fn parse(bytes: &[u8], platform: Platform) -> Result<Document, String> {
    let raw: Raw =
        serde_json::from_slice(bytes).map_err(|error| format!("the manifest is not understood: {error}"))?;
    if raw.schema_version != 2 {
        let version = raw.schema_version;
        return Err(format!(
            "the manifest has schema version {version}, only 2 is understood; push the image anew"
        ));
    }
    if let Some(manifests) = raw.manifests {
        return choose(&manifests, platform).map(Document::Index);
    }
    let config = raw.config.ok_or_else(|| {
        format!("the manifest ({}) is neither an image nor an index: it has no config", raw.media_type)
    })?;
    let layers = raw.layers.unwrap_or_default();
    if layers.len() > LAYERS {
        return Err(format!("the image has {} layers, more than {LAYERS}", layers.len()));
    }
    let mut total = 0_u64;
    let mut blobs = Vec::with_capacity(layers.len());
    for layer in &layers {
        let blob = layer.blob("layer", LAYER_LIMIT)?;
        if !is_layer(&layer.media_type) {
            let Descriptor { media_type, digest, .. } = layer;
            return Err(format!("layer {digest} has media type {media_type:?}, which cannot be unpacked"));
        }
        total = total.saturating_add(blob.size);
        blobs.push(blob);
    }
    if total > IMAGE_LIMIT {
        return Err(format!("the image's layers have {total} bytes, more than {IMAGE_LIMIT}"));
    }
    Ok(Document::Image { config: config.blob("config", DOCUMENT_LIMIT)?, layers: blobs })
}

/// What is inside is told by its first bytes, so it matters only that it is a tar file.
fn is_layer(media_type: &str) -> bool {
    let docker = "application/vnd.docker.image.rootfs.";
    media_type.is_empty()
        || media_type.starts_with("application/vnd.oci.image.layer.")
            && media_type.contains(".tar")
            && !media_type.ends_with("+encrypted")
        || media_type.starts_with(docker) && media_type.contains(".tar")
}

fn choose(manifests: &[Descriptor], platform: Platform) -> Result<Blob, String> {
    let fits = |descriptor: &&Descriptor| {
        descriptor
            .platform
            .as_ref()
            .is_some_and(|found| found.os == platform.os && found.architecture == platform.architecture)
    };
    let variant = |descriptor: &&Descriptor| descriptor.platform.as_ref().map(|found| found.variant.clone());
    // Without a variant before any with one: the latter may need a newer processor.
    let found = manifests.iter().filter(fits).min_by_key(variant);
    // An index of one that does not say for what: nobody else is meant.
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
        return Err(format!("there is no image for {platform}; there are: {others}"));
    };
    found.blob("manifest", DOCUMENT_LIMIT)
}

impl Descriptor {
    fn blob(&self, what: &str, limit: u64) -> Result<Blob, String> {
        let digest = Digest::parse(&self.digest)
            .ok_or_else(|| format!("{what} digest {:?} is not sha256 and 64 hex digits", self.digest))?;
        if self.size > limit {
            return Err(format!("{what} {digest} has {} bytes, more than {limit}", self.size));
        }
        Ok(Blob { digest, size: self.size })
    }
}

/// What the image's configuration says of its platform, if it is not this one.
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
    fn the_right_platform_is_chosen() {
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
            "there is no image for linux/amd64; there are: linux/arm64, windows/amd64"
        );
        let index = json!({"schemaVersion": 2, "manifests": [{"digest": digest("x"), "size": 1}]});
        assert!(matches!(read(&index), Ok(Document::Index(_))));
        assert!(
            read(&json!({"schemaVersion": 2, "manifests": []})).unwrap_err().ends_with("there are: none")
        );
    }

    #[test]
    fn what_cannot_be_used_is_said() {
        let image = |layer: serde_json::Value| json!({"schemaVersion": 2, "config": {"digest": digest("c"), "size": 2}, "layers": [layer]});
        let layer = |kind: &str, size: u64| json!({"mediaType": kind, "digest": digest("l"), "size": size});
        let oci = "application/vnd.oci.image.layer.v1.tar+zstd";
        assert!(matches!(read(&image(layer(oci, 1))), Ok(Document::Image { .. })));
        assert!(read(&image(layer("application/vnd.docker.image.rootfs.diff.tar.gzip", 1))).is_ok());
        for (document, expected) in [
            (json!({"schemaVersion": 1, "fsLayers": []}), "schema version 1"),
            (json!({"schemaVersion": 2, "mediaType": "x"}), "neither an image nor an index"),
            (json!("no"), "not understood"),
            (image(layer("application/vnd.cncf.helm.chart.content.v1.tar+gzip", 1)), "cannot be unpacked"),
            (image(layer(oci, LAYER_LIMIT + 1)), "more than"),
            (image(json!({"digest": "sha512:00", "size": 1})), "is not sha256"),
            (image(json!({"digest": "sha256:../../etc/passwd", "size": 1})), "is not sha256"),
        ] {
            let error = read(&document).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let many = vec![layer(oci, LAYER_LIMIT); 3];
        let many = json!({"schemaVersion": 2, "config": {"digest": digest("c"), "size": 2}, "layers": many});
        assert!(read(&many).unwrap_err().contains("the image's layers have"));
    }

    #[test]
    fn a_foreign_platform_is_noticed() {
        assert_eq!(
            foreign_platform(br#"{"os":"linux","architecture":"arm64"}"#, HERE).as_deref(),
            Some("linux/arm64")
        );
        assert_eq!(foreign_platform(br#"{"os":"linux","architecture":"amd64"}"#, HERE), None);
        assert_eq!(foreign_platform(b"{}", HERE), None);
    }
}
