//! Where mutations begin: the files of `fuzz/corpus/<target>`, and what is made here because it is not text.

use std::io::Write;
use std::path::Path;

/// All seeds of a target.
pub fn of(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files: Vec<_> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path()).collect();
    files.sort();
    let mut seeds: Vec<Vec<u8>> = files.iter().filter_map(|file| std::fs::read(file).ok()).collect();
    match target {
        "gzip_map" => seeds.extend(MAPS.iter().map(|map| gzip(map.as_bytes()))),
        "tar_layer" => seeds.extend(layers()),
        _ => {}
    }
    seeds
}

/// Texts of the maps that the secret holds compressed.
pub const MAPS: [&str; 4] = [
    "{}",
    r#"{"install":"aGVsbG8="}"#,
    r#"{"etcd-name":{"name":"etcd-name","stdout":"eA==","stderr":"","exitCode":0,"lastSuccessfulRunTime":"Thu Jan  1 15:04:05 UTC 2026","failures":2,"lastFailedRunTime":""}}"#,
    r#"{"a":null,"b":[1,2,{"c":1e309}]}"#,
];

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

/// Layers with everything that a layer can hold, good and bad.
fn layers() -> Vec<Vec<u8>> {
    use tar::EntryType::{Directory, Link, Regular, Symlink};
    let good = tar(&[
        ("bin", Directory, "", ""),
        ("bin/k3s", Regular, "elf", ""),
        ("run.sh", Regular, "#!/bin/sh\n", ""),
        ("link", Symlink, "", "run.sh"),
        ("hard", Link, "", "run.sh"),
        (".wh.gone", Regular, "", ""),
        ("bin/.wh..wh..opq", Regular, "", ""),
    ]);
    let bad = tar(&[
        ("out", Symlink, "", "/secret"),
        ("out/canary", Regular, "evil", ""),
        ("../../secret/canary", Regular, "evil", ""),
        ("stolen", Link, "", "../../secret/canary"),
        ("out/.wh.canary", Regular, "", ""),
    ]);
    let links = tar(&[
        ("a", Symlink, "", "../.."),
        ("a", Directory, "", ""),
        ("a/b", Regular, "x", ""),
        ("a", Symlink, "", "/"),
        ("a/secret/canary", Regular, "evil", ""),
        ("b", Link, "", "a/secret/canary"),
    ]);
    let bomb = gzip(&tar(&[("zero", Regular, &"\0".repeat(3 << 20), "")]));
    vec![gzip(&good), good, bad, links, bomb]
}

/// Writes names as they are: the usual builder refuses the bad ones.
fn tar(entries: &[(&str, tar::EntryType, &str, &str)]) -> Vec<u8> {
    let mut out = tar::Builder::new(Vec::new());
    for (name, kind, content, link) in entries {
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        header.set_cksum();
        out.append(&header, content.as_bytes()).unwrap();
    }
    out.into_inner().unwrap()
}
