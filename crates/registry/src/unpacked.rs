//! Decompressed copies of compressed archives. Blobs are served as ranges of a file, which needs an uncompressed one.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use drover_image::{Compression, Digest};

/// The path of the decompressed copy of an archive, which is created if it is missing. `stamp` changes with the
/// archive.
pub(crate) fn plain(
    scratch: &Path,
    archive: &Path,
    stamp: &str,
    compression: Compression,
) -> io::Result<PathBuf> {
    let key = Digest::of(format!("{}\n{stamp}", archive.display()).as_bytes());
    let path = scratch.join(format!("{}.tar", key.hex()));
    if path.exists() {
        return Ok(path);
    }
    std::fs::create_dir_all(scratch)?;
    let fresh = path.with_extension(format!("new-{}", std::process::id()));
    let written = (|| {
        let mut plain = compression.reader(File::open(archive)?)?;
        io::copy(&mut plain, &mut File::create(&fresh)?)?;
        std::fs::rename(&fresh, &path)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&fresh);
    }
    written.map(|()| path)
}

/// Removes decompressed copies of archives that no longer exist.
pub(crate) fn tidy(scratch: &Path, in_use: &BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(scratch).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|end| end == "tar") && !in_use.contains(&path) {
            let _ = std::fs::remove_file(path);
        }
    }
}
