//! `extractedConfig`: the store as a tar.gz in the machine-state Secret.
//!
//! Entry names are absolute paths in the container that wrote the archive. Readers use only the part after `/machines/`,
//! and so does this module. An archive is never unpacked to the paths in it.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    path::{Component, Path},
};

use flate2::{Compression, GzBuilder, read::GzDecoder};

/// Files by machine name and file name.
pub type Files = BTreeMap<String, BTreeMap<String, Vec<u8>>>;

/// Path of the store in the container of rancher-machine.
pub const CONTAINER_STORE: &str = "/home/machine/.docker/machine";
/// A state with a key pair takes a few KiB, and a Secret at most 1 MiB.
const MAX_UNPACKED: u64 = 32 << 20;
/// By-products of some drivers, which are not state.
const SKIPPED: &[&str] = &[".iso", ".tar.gz", ".vmdk", ".img"];

/// Packs a store. The output is deterministic.
pub fn pack(store_path: &str, machines: &Files) -> io::Result<Vec<u8>> {
    let gzip = GzBuilder::new().mtime(0).write(Vec::new(), Compression::default());
    let mut tar = tar::Builder::new(gzip);
    for (machine, files) in machines {
        for (file, content) in files {
            if SKIPPED.iter().any(|suffix| file.ends_with(suffix)) {
                continue;
            }
            let mut header = tar::Header::new_ustar();
            header.set_mode(0o600);
            header.set_size(content.len() as u64);
            header.set_mtime(0);
            header.set_entry_type(tar::EntryType::Regular);
            absolute_name(&mut header, &format!("{store_path}/machines"), &format!("{machine}/{file}"))?;
            header.set_cksum();
            tar.append(&header, content.as_slice())?;
        }
    }
    tar.into_inner()?.finish()
}

/// Writes an absolute entry name, which the `tar` library rejects but readers of rancher-machine's archives expect.
fn absolute_name(header: &mut tar::Header, directory: &str, name: &str) -> io::Result<()> {
    let fields = header.as_ustar_mut().ok_or(io::ErrorKind::InvalidInput)?;
    if name.len() > fields.name.len() || directory.len() > fields.prefix.len() {
        let text = format!("{directory}/{name} is too long for an archive");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    fields.name[..name.len()].copy_from_slice(name.as_bytes());
    fields.prefix[..directory.len()].copy_from_slice(directory.as_bytes());
    Ok(())
}

/// Unpacks an archive into memory. Skips entries that are not regular files directly below `machines/<name>/`, and
/// entries with `..` in their names. An empty archive is an empty store.
pub fn unpack(archive: &[u8]) -> io::Result<Files> {
    let mut machines = Files::new();
    if archive.is_empty() {
        return Ok(machines);
    }
    let mut tar = tar::Archive::new(GzDecoder::new(archive).take(MAX_UNPACKED));
    for entry in tar.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let Some((machine, file)) = machine_and_file(&path) else { continue };
        if entry.header().entry_type() != tar::EntryType::Regular {
            continue;
        }
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        machines.entry(machine).or_default().insert(file, content);
    }
    Ok(machines)
}

fn machine_and_file(path: &Path) -> Option<(String, String)> {
    let parts: Vec<&str> = path
        .components()
        .filter(|part| !matches!(part, Component::RootDir | Component::CurDir))
        .map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        })
        .collect::<Option<_>>()?;
    let at = parts.iter().rposition(|part| *part == "machines")?;
    match &parts[at + 1..] {
        [machine, file] => Some(((*machine).to_owned(), (*file).to_owned())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> Files {
        let machine = BTreeMap::from([
            ("config.json".to_owned(), b"{}".to_vec()),
            ("id_rsa".to_owned(), b"key".to_vec()),
            ("boot.iso".to_owned(), b"big".to_vec()),
        ]);
        BTreeMap::from([("m1".to_owned(), machine)])
    }

    #[test]
    fn archive_round_trips_with_the_entry_names_of_rancher_machine() {
        let packed = pack(CONTAINER_STORE, &files()).unwrap();
        assert_eq!(packed, pack(CONTAINER_STORE, &files()).unwrap(), "the same state gives the same bytes");
        let mut tar = tar::Archive::new(GzDecoder::new(packed.as_slice()));
        let names: Vec<String> = tar
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        assert_eq!(
            names,
            [
                "/home/machine/.docker/machine/machines/m1/config.json",
                "/home/machine/.docker/machine/machines/m1/id_rsa"
            ]
        );
        let back = unpack(&packed).unwrap();
        assert_eq!(back["m1"].keys().collect::<Vec<_>>(), ["config.json", "id_rsa"]);
        let long = BTreeMap::from([("m".repeat(63), files()["m1"].clone())]);
        assert_eq!(unpack(&pack(CONTAINER_STORE, &long).unwrap()).unwrap()[&"m".repeat(63)].len(), 2);
        assert!(unpack(&[]).unwrap().is_empty());
        assert!(unpack(b"not an archive").is_err());
    }

    #[test]
    fn names_outside_of_the_store_are_ignored_machine_drivers_check_34() {
        let mut tar = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), Compression::default()));
        for (directory, name) in [
            ("/store/machines", "../../etc/x"),
            ("..", "../etc/x"),
            ("/etc", "x"),
            ("/store/machines", "m1/../../../etc/x"),
            ("/store/machines", "m1/deep/x"),
            ("/store/machines", "m1/config.json"),
        ] {
            let mut header = tar::Header::new_ustar();
            header.set_size(1);
            header.set_entry_type(tar::EntryType::Regular);
            absolute_name(&mut header, directory, name).unwrap();
            header.set_cksum();
            tar.append(&header, &b"x"[..]).unwrap();
        }
        let mut link = tar::Header::new_ustar();
        link.set_size(0);
        link.set_entry_type(tar::EntryType::Symlink);
        link.set_link_name("/etc/passwd").unwrap();
        absolute_name(&mut link, "/store/machines", "m1/id_rsa").unwrap();
        link.set_cksum();
        tar.append(&link, io::empty()).unwrap();
        let packed = tar.into_inner().unwrap().finish().unwrap();
        let files = unpack(&packed).unwrap();
        assert_eq!(files.len(), 1);
        assert_eq!(files["m1"].keys().collect::<Vec<_>>(), ["config.json"]);
    }
}
