//! Small images in the formats of archives and registries.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// A layer with these files: name, content, mode.
pub fn layer(files: &[(&str, &[u8], u32)]) -> Vec<u8> {
    tar(files.iter().copied())
}

/// An archive in the old format of `docker save`.
pub fn docker_save(tags: &[&str], layers: &[Vec<u8>]) -> Vec<u8> {
    let names: Vec<String> = (0..layers.len()).map(|index| format!("{index}/layer.tar")).collect();
    let config = config(layers, "linux", architecture());
    let manifest = json!([{"Config": "config.json", "RepoTags": tags, "Layers": names}]).to_string();
    let mut files: Vec<(&str, &[u8], u32)> =
        names.iter().zip(layers).map(|(name, layer)| (name.as_str(), layer.as_slice(), 0o644)).collect();
    files.push(("config.json", config.as_bytes(), 0o644));
    files.push(("manifest.json", manifest.as_bytes(), 0o644));
    tar(files.into_iter())
}

/// An image of one platform: manifest and blobs.
pub struct Image {
    pub manifest: Vec<u8>,
    /// Configuration first, then the layers.
    pub blobs: Vec<Vec<u8>>,
}

/// An image of these layers, plain or compressed; media types say tar.
pub fn image(layers: &[Vec<u8>], os: &str, architecture: &str) -> Image {
    let config = config(layers, os, architecture);
    assemble(config, "application/vnd.oci.image.layer.v1.tar", layers)
}

/// An image of these plain layers, compressed.
pub fn gzip_image(layers: &[Vec<u8>], os: &str, architecture: &str) -> Image {
    let config = config(layers, os, architecture);
    let layers: Vec<Vec<u8>> = layers.iter().map(|layer| gzip(layer)).collect();
    assemble(config, "application/vnd.oci.image.layer.v1.tar+gzip", &layers)
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

fn assemble(config: String, kind: &str, layers: &[Vec<u8>]) -> Image {
    let config = config.into_bytes();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": layers.iter().map(|layer| descriptor(kind, layer)).collect::<Vec<_>>(),
    });
    let mut blobs = vec![config];
    blobs.extend(layers.iter().cloned());
    Image { manifest: manifest.to_string().into_bytes(), blobs }
}

/// An index of images: bytes of manifest, operating system, architecture.
pub fn index(manifests: &[(&[u8], &str, &str)]) -> Vec<u8> {
    let entries: Vec<Value> = manifests
        .iter()
        .map(|(manifest, os, architecture)| {
            let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", manifest);
            entry["platform"] = json!({"os": os, "architecture": architecture});
            entry
        })
        .collect();
    let kind = "application/vnd.oci.image.index.v1+json";
    json!({"schemaVersion": 2, "mediaType": kind, "manifests": entries}).to_string().into_bytes()
}

/// An archive in the OCI image layout: the image under its name, and its blobs.
pub fn oci_layout(name: &str, top: &[u8], kind: &str, others: &[&[u8]]) -> Vec<u8> {
    let mut entry = descriptor(kind, top);
    entry["annotations"] =
        json!({"io.containerd.image.name": name, "org.opencontainers.image.ref.name": "x"});
    let index = json!({"schemaVersion": 2, "manifests": [entry]}).to_string();
    let mut files: Vec<(String, &[u8])> = vec![
        ("oci-layout".into(), br#"{"imageLayoutVersion":"1.0.0"}"#),
        ("index.json".into(), index.as_bytes()),
    ];
    for blob in std::iter::once(&top).chain(others) {
        files.push((format!("blobs/{}", digest(blob).replace(':', "/")), blob));
    }
    tar(files.iter().map(|(name, content)| (name.as_str(), *content, 0o644)))
}

/// The architecture of this host in the names of images.
pub fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

pub fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn config(layers: &[Vec<u8>], os: &str, architecture: &str) -> String {
    let diffs: Vec<String> = layers.iter().map(|layer| digest(layer)).collect();
    json!({"os": os, "architecture": architecture, "config": {}, "rootfs": {"type": "layers", "diff_ids": diffs}})
        .to_string()
}

fn descriptor(kind: &str, content: &[u8]) -> Value {
    json!({"mediaType": kind, "digest": digest(content), "size": content.len()})
}

fn tar<'a>(files: impl Iterator<Item = (&'a str, &'a [u8], u32)>) -> Vec<u8> {
    let mut out = tar::Builder::new(Vec::new());
    for (name, content, mode) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(mode);
        out.append_data(&mut header, name, content).unwrap();
    }
    out.into_inner().unwrap()
}
