//! Private files, replaced atomically.

use super::PkiError;
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

pub(super) fn create_dir(dir: &Path) -> Result<(), PkiError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|e| at(dir, e))
}

/// The content, or `None` if the file does not exist.
pub(super) fn read(path: &Path) -> Result<Option<String>, PkiError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(at(path, e)),
    }
}

pub(super) fn write(path: &Path, content: &str) -> Result<(), PkiError> {
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let result = (|| {
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        path.parent().map_or(Ok(()), |dir| fs::File::open(dir)?.sync_all())
    })();
    result.map_err(|e| {
        // The error of removing a temporary file is ignored.
        let _ = fs::remove_file(&temporary);
        at(path, e)
    })
}

fn at(path: &Path, source: std::io::Error) -> PkiError {
    PkiError::File { path: path.to_owned(), source }
}
