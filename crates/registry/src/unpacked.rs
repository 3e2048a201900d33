//! Compressed archives have no ranges to serve: each is unpacked once, beside the folder.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::archive::digest;

/// How an archive is packed, told by the end of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    Plain,
    Gzip,
    Zstd,
    /// One that agents understand and this does not.
    Other,
}

pub(crate) fn packing(name: &str) -> Option<Packing> {
    let name = name.to_ascii_lowercase();
    let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    Some(match () {
        () if ends(&[".tar"]) => Packing::Plain,
        () if ends(&[".tar.gz", ".tgz"]) => Packing::Gzip,
        () if ends(&[".tar.zst", ".tzst"]) => Packing::Zstd,
        () if ends(&[".tar.bz2", ".tbz", ".tar.lz4"]) => Packing::Other,
        () => return None,
    })
}

/// Where the plain form of an archive lies; made if it is missing. `stamp` changes with the archive.
pub(crate) fn plain(scratch: &Path, archive: &Path, stamp: &str, packing: Packing) -> io::Result<PathBuf> {
    let key = digest(format!("{}\n{stamp}", archive.display()).as_bytes());
    let path = scratch.join(format!("{}.tar", key.trim_start_matches("sha256:")));
    if path.exists() {
        return Ok(path);
    }
    std::fs::create_dir_all(scratch)?;
    let fresh = path.with_extension(format!("new-{}", std::process::id()));
    let written = (|| {
        let packed = BufReader::new(File::open(archive)?);
        let mut plain: Box<dyn Read> = match packing {
            Packing::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(packed)),
            Packing::Zstd => {
                Box::new(ruzstd::decoding::StreamingDecoder::new(packed).map_err(io::Error::other)?)
            }
            Packing::Plain | Packing::Other => Box::new(packed),
        };
        io::copy(&mut plain, &mut File::create(&fresh)?)?;
        std::fs::rename(&fresh, &path)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&fresh);
    }
    written.map(|()| path)
}

/// Removes plain forms that no archive has any more.
pub(crate) fn tidy(scratch: &Path, in_use: &BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(scratch).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|end| end == "tar") && !in_use.contains(&path) {
            let _ = std::fs::remove_file(path);
        }
    }
}
