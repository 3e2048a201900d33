//! The file of an in-memory store, for clusters that must survive a restart but not a power failure: versions are
//! appended without waiting for the disk, and the file is rewritten when most of it is history.
//!
//! A record is a line `revision created hole deleted length key`, then the JSON of that length, then a newline. A
//! rewritten file begins with a line `head revision`, because the last write may have been a removal, which has no
//! record any more.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::{Event, EventKind, Index, Key, Range, StorageError, Version};

/// Smaller files are not rewritten.
const SMALLEST_REWRITE: u64 = 512 << 10;

pub(super) struct Journal {
    path: PathBuf,
    length: u64,
    /// Length after the last rewrite.
    settled: u64,
}

impl Journal {
    /// Opens or creates the file, and loads its records. A truncated record is dropped.
    pub(super) fn open(path: &Path, index: &Index) -> Result<Self, StorageError> {
        let failed = |error: io::Error| failure(path, &error);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        let content = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => vec![],
            other => other.map_err(failed)?,
        };
        let mut rest = Bytes::from(content);
        let whole = rest.len();
        let (mut objects, mut revision) = (HashMap::new(), take_head(&mut rest).unwrap_or(0));
        while let Some((version, deleted)) = take_record(&mut rest) {
            revision = revision.max(version.revision());
            if deleted {
                objects.remove(version.key());
            } else {
                objects.insert(version.key().clone(), Arc::new(version));
            }
        }
        let length = (whole - rest.len()) as u64;
        if !rest.is_empty() {
            OpenOptions::new()
                .write(true)
                .open(path)
                .and_then(|file| file.set_len(length))
                .map_err(failed)?;
        }
        // History is not restored: watchers must list again.
        index.load(objects.into_values().collect(), vec![], revision, revision);
        Ok(Self { path: path.to_owned(), length, settled: length })
    }

    pub(super) fn append(&mut self, event: &Event) -> Result<(), StorageError> {
        let mut record = Vec::with_capacity(event.version.len() + 128);
        put_record(&mut record, &event.version, event.kind == EventKind::Deleted);
        // The file is opened for each write, because a process can have thousands of stores and needs its descriptors.
        let appended = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.path)
            .and_then(|mut file| file.write_all(&record));
        if let Err(error) = appended {
            // A partial record would hide all later ones.
            let _ =
                OpenOptions::new().write(true).open(&self.path).and_then(|file| file.set_len(self.length));
            return Err(failure(&self.path, &error));
        }
        self.length += record.len() as u64;
        Ok(())
    }

    /// Rewrites the file if most of it is history. If that fails, the file is unchanged.
    pub(super) fn settle(&mut self, index: &Index) {
        if self.length < SMALLEST_REWRITE.max(self.settled * 3) {
            return;
        }
        let mut content = format!("head {}\n", index.revision()).into_bytes();
        for (group, resource) in index.resources() {
            let range = Range { group: &group, resource: &resource, namespace: None, start: None };
            for version in index.list(&range).0 {
                put_record(&mut content, &version, false);
            }
        }
        let fresh = self.path.with_extension("new");
        match fs::write(&fresh, &content).and_then(|()| fs::rename(&fresh, &self.path)) {
            Ok(()) => {
                self.length = content.len() as u64;
                self.settled = self.length;
            }
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "failed to rewrite the journal");
                self.settled = self.length;
            }
        }
    }
}

fn failure(path: &Path, error: &io::Error) -> StorageError {
    let text = format!("{}: {error}", path.display()).into();
    if error.kind() == io::ErrorKind::StorageFull {
        StorageError::Full(text)
    } else {
        StorageError::Backend(text)
    }
}

fn put_record(out: &mut Vec<u8>, version: &Version, deleted: bool) {
    let bytes = version.bytes();
    let head = format!(
        "{} {} {} {} {} {}\n",
        version.revision(),
        version.created(),
        version.hole(),
        u8::from(deleted),
        bytes.len(),
        version.key().as_str()
    );
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(&bytes);
    out.push(b'\n');
}

fn take_head(rest: &mut Bytes) -> Option<u64> {
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let revision = std::str::from_utf8(&rest[..end]).ok()?.strip_prefix("head ")?.parse().ok()?;
    let _ = rest.split_to(end + 1);
    Some(revision)
}

/// Splits the first record off `rest`; `None` if it is incomplete.
fn take_record(rest: &mut Bytes) -> Option<(Version, bool)> {
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let head = std::str::from_utf8(&rest[..end]).ok()?;
    let mut fields = head.splitn(6, ' ');
    let revision = fields.next()?.parse().ok()?;
    let created = fields.next()?.parse().ok()?;
    let hole = fields.next()?.parse().ok()?;
    let deleted = fields.next()? == "1";
    let length: usize = fields.next()?.parse().ok()?;
    let key = Key::parse(fields.next()?)?;
    let start = end + 1;
    if rest.get(start.checked_add(length)?) != Some(&b'\n') {
        return None;
    }
    let bytes = Bytes::copy_from_slice(&rest[start..start + length]);
    let _ = rest.split_to(start + length + 1);
    Some((Version::stored(key, revision, created, bytes, hole), deleted))
}
