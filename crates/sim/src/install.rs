//! The installer image: an archive in the format of `docker save`, with one image per version.
//!
//! All versions share the layer with the program, and only `run.sh` differs, so one file contains all versions.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::Error;

const RUN_SH: &str = include_str!("../assets/run.sh");

/// Writes the archive to `path`. `program` becomes `k3s`, and the images are named `<prefix>k3s:<version with + as ->`.
///
/// The file is created atomically.
pub fn write_image(path: &Path, program: &Path, prefix: &str, versions: &[&str]) -> Result<(), Error> {
    let failed = |source| Error::Write { path: path.to_owned(), source };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    let fresh = path.with_extension(format!("new-{}", std::process::id()));
    let written = archive(&fresh, program, prefix, versions).and_then(|()| std::fs::rename(&fresh, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&fresh);
    }
    written.map_err(failed)
}

fn archive(path: &Path, program: &Path, prefix: &str, versions: &[&str]) -> std::io::Result<()> {
    let mut out = tar::Builder::new(File::create(path)?);
    let program_digest = append_program(&mut out, program)?;
    let mut manifest = vec![];
    for version in versions {
        let tag = version.replace('+', "-");
        let script = RUN_SH.replace("@VERSION@", version);
        let script_layer = layer("run.sh", script.as_bytes())?;
        let layers = ["program/layer.tar".to_owned(), format!("{tag}/layer.tar")];
        append(&mut out, &layers[1], &script_layer)?;
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [program_digest, digest(Sha256::digest(&script_layer))]},
        });
        let config_name = format!("{tag}.json");
        append(&mut out, &config_name, config.to_string().as_bytes())?;
        manifest.push(
            json!({"Config": config_name, "RepoTags": [format!("{prefix}k3s:{tag}")], "Layers": layers}),
        );
    }
    append(&mut out, "manifest.json", serde_json::Value::Array(manifest).to_string().as_bytes())?;
    let mut file = out.into_inner()?;
    file.flush()?;
    file.sync_all()
}

/// Appends the layer with the program. The program is hashed while it is copied, because it is much larger than the
/// rest.
fn append_program<W: Write>(out: &mut tar::Builder<W>, program: &Path) -> std::io::Result<String> {
    let file = File::open(program)?;
    let length = file.metadata()?.len();
    let mut head = header(length);
    head.set_path("k3s")?;
    head.set_cksum();
    // A tar file consists of a header, the content in whole blocks, and two empty blocks.
    let rest = vec![0; (length.next_multiple_of(BLOCK) - length + 2 * BLOCK) as usize];
    let whole = BLOCK + length + rest.len() as u64;
    let mut layer = Hashed {
        inner: (&head.as_bytes()[..]).chain(file.take(length)).chain(&rest[..]),
        hash: Sha256::new(),
    };
    out.append_data(&mut header(whole), "program/layer.tar", &mut layer)?;
    Ok(digest(layer.hash.finalize()))
}

const BLOCK: u64 = 512;

/// A reader that hashes the data that is read.
struct Hashed<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hash.update(&buffer[..read]);
        Ok(read)
    }
}

fn layer(name: &str, content: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut layer = tar::Builder::new(Vec::with_capacity(content.len() + 2048));
    append(&mut layer, name, content)?;
    layer.into_inner()
}

fn append<W: Write>(archive: &mut tar::Builder<W>, name: &str, content: &[u8]) -> std::io::Result<()> {
    archive.append_data(&mut header(content.len() as u64), name, content)
}

fn header(size: u64) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_size(size);
    header.set_mode(0o755);
    header.set_mtime(0);
    header
}

fn digest(hash: impl AsRef<[u8]>) -> String {
    let hex: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_has_an_image_per_version_and_the_program_only_once() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("drover");
        std::fs::write(&program, "binary").unwrap();
        let path = dir.path().join("k3s.tar");
        write_image(&path, &program, "rancher/system-agent-installer-", &["v1.34.1+k3s1", "v1.35.0+k3s1"])
            .unwrap();
        let mut found = std::collections::BTreeMap::new();
        for entry in tar::Archive::new(File::open(&path).unwrap()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = vec![];
            entry.read_to_end(&mut content).unwrap();
            found.insert(entry.path().unwrap().display().to_string(), content);
        }
        let manifest: serde_json::Value = serde_json::from_slice(&found["manifest.json"]).unwrap();
        assert_eq!(manifest[1]["RepoTags"][0], "rancher/system-agent-installer-k3s:v1.35.0-k3s1");
        assert_eq!(manifest[0]["Layers"][0], manifest[1]["Layers"][0]);
        let program = &found["program/layer.tar"];
        let mut layer = tar::Archive::new(&program[..]);
        let mut entry = layer.entries().unwrap().next().unwrap().unwrap();
        let mut content = vec![];
        entry.read_to_end(&mut content).unwrap();
        assert_eq!((entry.path().unwrap().to_str(), &content[..]), (Some("k3s"), &b"binary"[..]));
        let config: serde_json::Value = serde_json::from_slice(&found["v1.35.0-k3s1.json"]).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"][0], digest(Sha256::digest(program)));
        let script = String::from_utf8_lossy(&found["v1.35.0-k3s1/layer.tar"]).into_owned();
        assert!(script.contains("version='v1.35.0+k3s1'") && !script.contains("@VERSION@"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "no temporary file is left");
    }

    #[test]
    fn the_script_is_plain_sh() {
        let script = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(script.path(), RUN_SH).unwrap();
        let checked = std::process::Command::new("sh").arg("-n").arg(script.path()).status().unwrap();
        assert!(checked.success());
    }
}
