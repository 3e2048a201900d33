//! The seeds of mutations: the files of `fuzz/corpus/<target>`, and binary seeds that are built here.

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
        "image_archive" => seeds.extend(archives()),
        _ => {}
    }
    seeds
}

/// The uncompressed maps of the secret.
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

/// The name of the image in the archives.
pub const IMAGE: &str = "r.example.com/installer:v1";
/// The credential in the seeds.
pub const CREDENTIAL: &str = "S3cr3tS3cr3t";

/// Layers with all features of a layer, valid and invalid.
fn layers() -> Vec<Vec<u8>> {
    use tar::EntryType::{
        Directory, GNULongLink, GNULongName, Link, Regular, Symlink, XGlobalHeader, XHeader,
    };
    let long_name = format!("{}name", "folder/".repeat(30));
    // Names that are too long for a header, in GNU and POSIX form; the last ones lead outside of the folder.
    let long = tar(&[
        ("././@LongLink", GNULongName, &format!("{long_name}\0"), ""),
        ("folder", Regular, "long", ""),
        ("././@LongLink", GNULongLink, &format!("{long_name}\0"), ""),
        ("link", Symlink, "", "folder"),
        ("pax_global_header", XGlobalHeader, &pax(&[("comment", "hello")]), ""),
        ("PaxHeaders/a", XHeader, &pax(&[("path", &format!("{long_name}2")), ("mtime", "1.5")]), ""),
        ("a", Regular, "long too", ""),
        ("PaxHeaders/b", XHeader, &pax(&[("path", "../../secret/canary"), ("size", "4")]), ""),
        ("b", Regular, "evil", ""),
        ("PaxHeaders/c", XHeader, &pax(&[("linkpath", "/secret")]), ""),
        ("c", Symlink, "", "x"),
        ("c/canary", Regular, "evil", ""),
    ]);
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
    vec![gzip(&good), good, bad, links, bomb, long]
}

/// Records of a POSIX extended header; each begins with its length.
fn pax(records: &[(&str, &str)]) -> String {
    let one = |(key, value): &(&str, &str)| {
        let rest = format!(" {key}={value}\n");
        let mut length = rest.len();
        while format!("{length}{rest}").len() != length {
            length += 1;
        }
        format!("{length}{rest}")
    };
    records.iter().map(one).collect()
}

/// Archives of an image: from `docker save`, old and new, and OCI layouts, valid and invalid.
fn archives() -> Vec<Vec<u8>> {
    use tar::EntryType::{Directory, Regular, Symlink};
    let layer = String::from_utf8(tar(&[("run.sh", Regular, "#!/bin/sh\n", "")])).unwrap();
    let bad = String::from_utf8(tar(&[("../../secret/canary", Regular, "evil", "")])).unwrap();
    let saved =
        |layers: &str| format!(r#"[{{"Config": "c.json", "RepoTags": ["{IMAGE}"], "Layers": [{layers}]}}]"#);
    let docker = tar(&[
        ("a", Directory, "", ""),
        ("a/layer.tar", Regular, &layer, ""),
        ("b/layer.tar", Symlink, "", "../a/layer.tar"),
        ("manifest.json", Regular, &saved(r#""a/layer.tar", "b/layer.tar""#), ""),
    ]);
    let escaping = tar(&[
        ("manifest.json", Regular, &saved(r#""../../secret/canary", "bad.tar""#), ""),
        ("bad.tar", Regular, &bad, ""),
    ]);
    // A link that changes before and after the file to which it leads.
    let wavering = tar(&[
        ("manifest.json", Regular, &saved(r#""l""#), ""),
        ("l", Symlink, "", "nowhere"),
        ("f", Regular, &layer, ""),
        ("l", Symlink, "", "f"),
    ]);
    let blob =
        |text: &str| (format!("blobs/sha256/{}", drover_plan::checksum(text.as_bytes())), text.to_owned());
    let named = |kind: &str, text: &str| {
        format!(
            r#"{{"mediaType": "application/vnd.oci.image.{kind}", "digest": "sha256:{}", "size": {}, "annotations": {{"io.containerd.image.name": "{IMAGE}"}}, "platform": {{"os": "linux", "architecture": "amd64"}}}}"#,
            drover_plan::checksum(text.as_bytes()),
            text.len()
        )
    };
    let oci = |layer: &str| {
        let config = r#"{"os": "linux", "architecture": "amd64"}"#;
        let manifest = format!(
            r#"{{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": {}, "layers": [{}]}}"#,
            named("config.v1+json", config),
            named("layer.v1.tar", layer)
        );
        let index =
            format!(r#"{{"schemaVersion": 2, "manifests": [{}]}}"#, named("manifest.v1+json", &manifest));
        let blobs = [blob(layer), blob(config), blob(&manifest)];
        let mut entries = vec![("oci-layout", Regular, r#"{"imageLayoutVersion": "1.0.0"}"#, "")];
        entries.extend(blobs.iter().map(|(name, text)| (name.as_str(), Regular, text.as_str(), "")));
        entries.push(("index.json", Regular, &index, ""));
        tar(&entries)
    };
    vec![docker, escaping, wavering, oci(&layer), oci(&bad)]
}

/// Writes names unchanged; the usual builder rejects invalid ones.
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
