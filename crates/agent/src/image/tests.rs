use std::io::Write as _;

use serde_json::{Value, json};

use drover_image::{Digest, manifest::Platform};

use super::*;
use crate::host::RealHost;

#[derive(Clone, Copy)]
enum Entry<'a> {
    File(&'a str, &'a str, u32),
    Symlink(&'a str, &'a str),
    Hardlink(&'a str, &'a str),
}

/// Writes names unchanged: the tar crate's own builder rejects the invalid names that are tested here.
fn tar(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut out = tar::Builder::new(Vec::new());
    for entry in entries {
        let (name, content, kind, mode, link) = match *entry {
            Entry::File(name, content, mode) => (name, content, tar::EntryType::Regular, mode, ""),
            Entry::Symlink(name, target) => (name, "", tar::EntryType::Symlink, 0o777, target),
            Entry::Hardlink(name, target) => (name, "", tar::EntryType::Link, 0o644, target),
        };
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(content.len() as u64);
        header.set_cksum();
        out.append(&header, content.as_bytes()).unwrap();
    }
    out.into_inner().unwrap()
}

fn image(tag: &str, layers: &[Vec<u8>]) -> Vec<u8> {
    let names: Vec<String> = (0..layers.len()).map(|index| format!("{index}/layer.tar")).collect();
    let manifest = serde_json::json!([{"Config": "c.json", "RepoTags": [tag], "Layers": names}]).to_string();
    let mut out = tar::Builder::new(Vec::new());
    let mut add = |name: &str, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        out.append_data(&mut header, name, bytes).unwrap();
    };
    // Reversed, so that one scan does not find the layers in order; the manifest is last, as Docker writes it.
    for (name, layer) in names.iter().zip(layers).rev() {
        add(name, layer);
    }
    add("manifest.json", manifest.as_bytes());
    out.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

/// The same tar file with every extension that the original supports.
fn archives(plain: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let bzip2 = {
        let mut out = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        out.write_all(plain).unwrap();
        out.finish().unwrap()
    };
    let lz4 = {
        let mut out = lz4_flex::frame::FrameEncoder::new(Vec::new());
        out.write_all(plain).unwrap();
        out.finish().unwrap()
    };
    vec![
        ("a.tar", plain.to_vec()),
        ("a.TAR.GZ", gzip(plain)),
        ("a.tgz", gzip(plain)),
        ("a.tar.bz2", bzip2.clone()),
        ("a.tbz", bzip2),
        ("a.tar.lz4", lz4),
        ("a.tar.zst", zstd(plain)),
        ("a.tzst", zstd(plain)),
    ]
}

/// An OCI layout with one image behind an index of platforms.
struct Layout {
    blobs: Vec<(String, Vec<u8>)>,
    root: Value,
}

impl Layout {
    fn new(architecture: &str, layers: &[Vec<u8>]) -> Self {
        let mut layout = Self { blobs: vec![], root: Value::Null };
        let kind = "application/vnd.oci.image.layer.v1.tar+gzip";
        let layers: Vec<Value> = layers.iter().map(|layer| layout.blob(layer, kind)).collect();
        let config = json!({"os": "linux", "architecture": architecture}).to_string();
        let config = layout.blob(config.as_bytes(), "application/vnd.oci.image.config.v1+json");
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers}).to_string();
        let mut manifest = layout.blob(manifest.as_bytes(), "application/vnd.oci.image.manifest.v1+json");
        manifest["platform"] = json!({"os": "linux", "architecture": architecture});
        let missing = json!({
            "digest": Digest::of(b"not saved").to_string(), "size": 1, "platform": {"os": "windows", "architecture": "amd64"},
        });
        let index = json!({"schemaVersion": 2, "manifests": [missing, manifest]}).to_string();
        layout.root = layout.blob(index.as_bytes(), "application/vnd.oci.image.index.v1+json");
        layout
    }

    fn blob(&mut self, bytes: &[u8], kind: &str) -> Value {
        let digest = Digest::of(bytes);
        self.blobs.push((format!("blobs/sha256/{}", digest.hex()), bytes.to_vec()));
        json!({"mediaType": kind, "digest": digest.to_string(), "size": bytes.len()})
    }

    fn tar(&self, key: &str, name: &str) -> Vec<u8> {
        let mut root = self.root.clone();
        root["annotations"] = json!({key: name});
        let index = json!({"schemaVersion": 2, "manifests": [root]}).to_string().into_bytes();
        let mut out = tar::Builder::new(Vec::new());
        let marker = ("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec());
        for (name, bytes) in self.blobs.iter().chain([&marker, &("index.json".to_owned(), index)]) {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            out.append_data(&mut header, name, &bytes[..]).unwrap();
        }
        out.into_inner().unwrap()
    }
}

const CONTAINERD: &str = "io.containerd.image.name";
const REF_NAME: &str = "org.opencontainers.image.ref.name";

#[test]
fn agent_check_31_oci_layouts_are_unpacked_in_all_formats() {
    let lower = tar(&[Entry::File("run.sh", "#!/bin/sh\n", 0o755), Entry::File("gone", "x", 0o644)]);
    let upper = tar(&[Entry::File(".wh.gone", "", 0o644), Entry::File("bin/k3s", "elf", 0o755)]);
    let layout = Layout::new(Platform::here().architecture, &[gzip(&lower), zstd(&upper)]);
    for (name, bytes) in archives(&layout.tar(CONTAINERD, "docker.io/rancher/x-k3s:v1-k3s1")) {
        let bench = Bench::new(name, &bytes);
        bench.stage("rancher/x-k3s:v1-k3s1").unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(bench.read("bin/k3s").as_deref(), Some("elf"), "{name}");
        assert_eq!(bench.read("gone"), None, "{name}");
    }
    // By the other annotation, and by digest only; but not by a different name.
    let bench = Bench::new("a.tar", &layout.tar(REF_NAME, "rancher/x-k3s:v1-k3s1"));
    assert!(matches!(bench.stage("rancher/x-k3s:v2"), Err(Error::NotFound { .. })));
    let other = format!("rancher/x-k3s@{}", Digest::of(b"other"));
    assert!(matches!(bench.stage(&other), Err(Error::NotFound { .. })));
    bench.stage(&format!("rancher/x-k3s@{}", layout.root["digest"].as_str().unwrap())).unwrap();
    assert_eq!(bench.read("bin/k3s").as_deref(), Some("elf"));
    // A tag alone is not a name.
    let bench = Bench::new("a.tar", &layout.tar(REF_NAME, "latest"));
    assert!(matches!(bench.stage("latest"), Err(Error::NotFound { .. })));
}

#[test]
fn a_modified_oci_layout_or_one_for_another_platform_is_not_used() {
    let layer = gzip(&tar(&[Entry::File("run.sh", "#!/bin/sh\n", 0o755)]));
    let mut changed = Layout::new(Platform::here().architecture, std::slice::from_ref(&layer));
    changed.blobs[0].1 = gzip(&tar(&[Entry::File("run.sh", "#!/bin/evil\n", 0o755)]));
    let bench = Bench::new("a.tar", &changed.tar(REF_NAME, "x:1"));
    assert!(matches!(bench.stage("x:1"), Err(Error::NotFound { .. })), "its layer was modified");
    assert_eq!(bench.read("run.sh"), None);

    changed = Layout::new(Platform::here().architecture, std::slice::from_ref(&layer));
    changed.blobs[2].1.push(b' ');
    let bench = Bench::new("a.tar", &changed.tar(REF_NAME, "x:1"));
    assert!(matches!(bench.stage("x:1"), Err(Error::NotFound { .. })), "its manifest was modified");
    let foreign = Layout::new("riscv64", &[layer]);
    let bench = Bench::new("a.tar", &foreign.tar(REF_NAME, "x:1"));
    assert!(matches!(bench.stage("x:1"), Err(Error::NotFound { .. })), "it is for another architecture");
    assert_eq!(bench.read("run.sh"), None);
}

struct Bench {
    root: tempfile::TempDir,
    host: RealHost,
}

impl Bench {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("images/sub")).unwrap();
        std::fs::create_dir_all(root.path().join("stage/in")).unwrap();
        std::fs::write(root.path().join("images/sub").join(name), bytes).unwrap();
        std::fs::write(root.path().join("images/.hidden.tar"), "no").unwrap();
        std::fs::write(root.path().join("images/broken.tar"), "no").unwrap();
        let host = RealHost::at(root.path());
        Self { root, host }
    }

    fn stage(&self, image: &str) -> Result<(), Error> {
        stage(&self.host, Path::new("/images"), image, Path::new("/stage/in"))
    }

    fn read(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.root.path().join("stage/in").join(name)).ok()
    }
}

#[test]
fn agent_check_31_all_formats_are_unpacked() {
    use std::os::unix::fs::PermissionsExt as _;
    let layer = tar(&[Entry::File("run.sh", "#!/bin/sh\n", 0o777), Entry::File("./bin/k3s", "elf", 0)]);
    let plain = image("rancher/x-k3s:v1-k3s1", &[layer]);
    for (name, bytes) in &archives(&plain) {
        let bench = Bench::new(name, bytes);
        bench.stage("docker.io/rancher/x-k3s:v1-k3s1").unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(bench.read("bin/k3s").as_deref(), Some("elf"), "{name}");
        let mode = |name: &str| {
            std::fs::metadata(bench.root.path().join("stage/in").join(name)).unwrap().permissions().mode()
                & 0o7777
        };
        assert_eq!((mode("run.sh"), mode("bin/k3s"), mode("bin")), (0o755, 0o755, 0o755));
    }
}

#[test]
fn layers_are_flattened_with_whiteouts() {
    let lower = tar(&[
        Entry::File("a", "old", 0o644),
        Entry::File("gone", "x", 0o644),
        Entry::File("dir/one", "1", 0o644),
        Entry::File("dir/two", "2", 0o644),
    ]);
    let upper = tar(&[
        Entry::File(".wh.gone", "", 0o644),
        Entry::File("dir/.wh..wh..opq", "", 0o644),
        Entry::File("dir/three", "3", 0o644),
        Entry::File("a", "new", 0o644),
        Entry::Symlink("link", "a"),
        Entry::Hardlink("hard", "a"),
    ]);
    let bench = Bench::new("x.tar", &image("x:1", &[lower, upper]));
    bench.stage("x:1").unwrap();
    assert_eq!(bench.read("a").as_deref(), Some("new"));
    assert_eq!(bench.read("link").as_deref(), Some("new"));
    assert_eq!(bench.read("hard").as_deref(), Some("new"));
    assert_eq!(bench.read("dir/three").as_deref(), Some("3"));
    assert_eq!((bench.read("gone"), bench.read("dir/one")), (None, None));
}

#[test]
fn a_whiteout_hides_only_files_of_lower_layers() {
    let lower = tar(&[
        Entry::File("run.sh", "old", 0o644),
        Entry::File("dir/sub/old", "old", 0o644),
        Entry::File("dir/old", "old", 0o644),
        Entry::File("tree/sub/old", "old", 0o644),
        Entry::File("tree/old", "old", 0o644),
        Entry::File("kept", "kept", 0o644),
    ]);
    let new = [
        Entry::File("run.sh", "new", 0o644),
        Entry::File("dir/sub/new", "new", 0o644),
        Entry::Symlink("dir/link", "sub/new"),
        Entry::File("tree/sub/new", "new", 0o644),
    ];
    let whiteouts = [
        Entry::File(".wh.run.sh", "", 0o644),
        Entry::File("dir/.wh..wh..opq", "", 0o644),
        Entry::File(".wh.tree", "", 0o644),
        Entry::File(".wh.never", "", 0o644),
    ];
    for upper in [[&new[..], &whiteouts].concat(), [&whiteouts[..], &new].concat()] {
        let bench = Bench::new("x.tar", &image("x:1", &[lower.clone(), tar(&upper)]));
        bench.stage("x:1").unwrap();
        for own in ["run.sh", "dir/sub/new", "dir/link", "tree/sub/new"] {
            assert_eq!(bench.read(own).as_deref(), Some("new"), "{own}");
        }
        for hidden in ["dir/old", "dir/sub/old", "tree/old", "tree/sub/old"] {
            assert_eq!(bench.read(hidden), None, "{hidden}");
        }
        assert_eq!(bench.read("kept").as_deref(), Some("kept"));
    }
}

#[test]
fn agent_check_33_nothing_is_written_outside_of_the_directory() {
    for entries in [
        vec![Entry::File("../../etc/x", "evil", 0o644)],
        vec![Entry::File("a/../../x", "evil", 0o644)],
        vec![Entry::Symlink("out", "../.."), Entry::File("out/x", "evil", 0o644)],
        vec![Entry::Symlink("out", "/"), Entry::File("out/x", "evil", 0o644)],
        vec![Entry::Hardlink("out", "../../secret")],
        vec![Entry::Symlink("out", "../.."), Entry::Hardlink("stolen", "out/secret")],
        vec![Entry::Symlink("out", ".."), Entry::File("out/.wh.sibling", "", 0o644)],
        vec![Entry::File(".wh...", "", 0o644)],
    ] {
        let bench = Bench::new("x.tar", &image("x:1", &[tar(&entries)]));
        let root = bench.root.path();
        std::fs::write(root.join("secret"), "s").unwrap();
        std::fs::write(root.join("stage/sibling"), "s").unwrap();
        assert!(matches!(bench.stage("x:1"), Err(Error::Escape(_))));
        assert!(!root.join("x").exists() && !root.join("etc").exists() && !root.join("stage/x").exists());
        assert!(root.join("stage/sibling").exists());
        assert_eq!(bench.read("stolen"), None);
    }
}

#[test]
fn absolute_names_stay_inside_and_a_file_replaces_a_symlink() {
    let entries =
        [Entry::File("/etc/x", "in", 0o644), Entry::Symlink("f", "/secret"), Entry::File("f", "own", 0o644)];
    let bench = Bench::new("x.tar", &image("x:1", &[tar(&entries)]));
    bench.stage("x:1").unwrap();
    assert_eq!(bench.read("etc/x").as_deref(), Some("in"));
    assert_eq!(bench.read("f").as_deref(), Some("own"));
    assert!(!bench.root.path().join("secret").exists());
}

#[test]
fn a_missing_image_is_reported_by_name() {
    let bench = Bench::new("x.tar", &image("x:1", &[]));
    let error = bench.stage("x:2").unwrap_err().to_string();
    assert_eq!(error, "image x:2: not found among the 2 tarballs in /images");
    assert!(matches!(bench.stage("x:"), Err(Error::Reference(_))));
}
