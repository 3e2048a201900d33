use std::io::Write as _;

use super::*;
use crate::host::RealHost;

#[derive(Clone, Copy)]
enum Entry<'a> {
    File(&'a str, &'a str, u32),
    Symlink(&'a str, &'a str),
    Hardlink(&'a str, &'a str),
}

/// Writes names as they are: the tar crate's own builder refuses the bad ones that we want to test.
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
    // Reversed, so that the layers are not found in one go; and the manifest last, as docker does.
    for (name, layer) in names.iter().zip(layers).rev() {
        add(name, layer);
    }
    add("manifest.json", manifest.as_bytes());
    out.into_inner().unwrap()
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
    let gzip = {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(&plain).unwrap();
        out.finish().unwrap()
    };
    let bzip2 = {
        let mut out = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        out.write_all(&plain).unwrap();
        out.finish().unwrap()
    };
    let lz4 = {
        let mut out = lz4_flex::frame::FrameEncoder::new(Vec::new());
        out.write_all(&plain).unwrap();
        out.finish().unwrap()
    };
    let zstd = ruzstd::encoding::compress_to_vec(&plain[..], ruzstd::encoding::CompressionLevel::Fastest);
    for (name, bytes) in [
        ("a.tar", &plain),
        ("a.TAR.GZ", &gzip),
        ("a.tgz", &gzip),
        ("a.tar.bz2", &bzip2),
        ("a.tbz", &bzip2),
        ("a.tar.lz4", &lz4),
        ("a.tar.zst", &zstd),
        ("a.tzst", &zstd),
    ] {
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
fn agent_check_33_nothing_is_written_outside() {
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
fn absolute_names_stay_inside_and_a_symlink_is_replaced_by_a_file_of_its_name() {
    let entries =
        [Entry::File("/etc/x", "in", 0o644), Entry::Symlink("f", "/secret"), Entry::File("f", "own", 0o644)];
    let bench = Bench::new("x.tar", &image("x:1", &[tar(&entries)]));
    bench.stage("x:1").unwrap();
    assert_eq!(bench.read("etc/x").as_deref(), Some("in"));
    assert_eq!(bench.read("f").as_deref(), Some("own"));
    assert!(!bench.root.path().join("secret").exists());
}

#[test]
fn what_is_missing_is_named() {
    let bench = Bench::new("x.tar", &image("x:1", &[]));
    let error = bench.stage("x:2").unwrap_err().to_string();
    assert_eq!(error, "image x:2: not found among the 2 tarballs in /images");
    assert!(matches!(bench.stage("x:"), Err(Error::Reference(_))));
}
