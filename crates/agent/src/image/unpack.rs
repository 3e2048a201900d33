//! Unpacks one layer on top of earlier ones: applies whiteouts and writes nothing outside of the directory.

use std::{
    cell::Cell,
    collections::HashSet,
    io::{self, Read},
    path::{Path, PathBuf},
};

use drover_image::archive::relative_path;

use super::Error;
use crate::host::{Attr, Host, Kind};

const WHITEOUT: &str = ".wh.";
const OPAQUE: &str = ".wh..wh..opq";

/// The limits for an image, because a few kilobytes can unpack to more than fits on any disk.
pub struct Budget {
    bytes: u64,
    entries: u64,
}

/// The unpacked size of all layers.
const BYTES: u64 = 16 << 30;
const ENTRIES: u64 = 1_000_000;
/// The size of an entry's headers: long names and extended attributes, which are read into memory.
const HEADERS: u64 = 1 << 20;

impl Default for Budget {
    fn default() -> Self {
        Self { bytes: BYTES, entries: ENTRIES }
    }
}

impl Budget {
    /// Smaller limits, for tests.
    pub fn of(bytes: u64, entries: u64) -> Self {
        Self { bytes, entries }
    }
}

/// Counts the bytes that are read against the budget.
struct Counted<'a, R> {
    inner: R,
    left: &'a mut u64,
    /// How many bytes of the current headers may still be read.
    headers: &'a Cell<u64>,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        *self.left = self.left.checked_sub(n as u64).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("the image unpacks to more than {BYTES} bytes"),
            )
        })?;
        self.headers.set(self.headers.get().checked_sub(n as u64).ok_or_else(|| {
            io::Error::new(io::ErrorKind::FileTooLarge, "the headers of an entry are too large")
        })?);
        Ok(n)
    }
}

/// The files and directories of this layer. Whiteouts hide only files of lower layers, wherever they are in the layer.
#[derive(Default)]
struct Own(HashSet<PathBuf>);

impl Own {
    fn add(&mut self, relative: &Path) {
        // If a path is known, so are its parents.
        for path in relative.ancestors() {
            if !self.0.insert(path.to_owned()) {
                break;
            }
        }
    }

    /// Removes files of lower layers at a path, if it exists.
    fn hide(&self, host: &dyn Host, into: &Path, relative: &Path) -> io::Result<()> {
        if self.0.contains(relative) {
            self.empty(host, into, relative)
        } else {
            remove(host, &into.join(relative))
        }
    }

    /// Removes files of lower layers from a directory. Files of this layer are kept.
    fn empty(&self, host: &dyn Host, into: &Path, relative: &Path) -> io::Result<()> {
        let directory = into.join(relative);
        if host.stat(&directory).is_ok_and(|stat| stat.kind == Kind::Directory) {
            for name in host.list(&directory)? {
                self.hide(host, into, &relative.join(name))?;
            }
        }
        Ok(())
    }
}

/// Unpacks one layer, an uncompressed tar stream.
pub fn layer(host: &dyn Host, reader: impl Read, into: &Path, budget: &mut Budget) -> Result<(), Error> {
    let headers = Cell::new(HEADERS);
    let mut archive =
        tar::Archive::new(Counted { inner: reader, left: &mut budget.bytes, headers: &headers });
    let broken = |source| Error::Unpack { path: into.to_owned(), source };
    let mut own = Own::default();
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        headers.set(u64::MAX);
        budget.entries = budget.entries.checked_sub(1).ok_or_else(|| {
            broken(io::Error::new(io::ErrorKind::FileTooLarge, "the image has too many files"))
        })?;
        put(host, &mut entry, into, &mut own)?;
        // Read to the end, so that only headers are read before the next entry.
        io::copy(&mut entry, &mut io::sink()).map_err(broken)?;
        headers.set(HEADERS);
    }
    Ok(())
}

fn put(
    host: &dyn Host,
    entry: &mut tar::Entry<'_, impl Read>,
    into: &Path,
    own: &mut Own,
) -> Result<(), Error> {
    let broken = |source| Error::Unpack { path: into.to_owned(), source };
    let root = crate::platform::CURRENT.image_root();
    let raw = entry.path().map_err(broken)?.into_owned();
    let mut relative = relative_path(&raw).ok_or_else(|| Error::Escape(raw.clone()))?;
    if let Some(root) = root {
        let Ok(inside) = relative.strip_prefix(root) else { return Ok(()) };
        relative = inside.to_owned();
    }
    let failed = |source| Error::Unpack { path: raw.clone(), source };
    let Some(name) = relative.file_name().and_then(|name| name.to_str()) else { return Ok(()) };
    let parent = relative.parent().unwrap_or(Path::new(""));
    folders(host, into, parent, &raw)?;
    let path = into.join(&relative);
    if name == OPAQUE {
        return own.empty(host, into, parent).map_err(failed);
    }
    if let Some(hidden) = name.strip_prefix(WHITEOUT) {
        if matches!(hidden, "" | "." | "..") {
            return Err(Error::Escape(raw));
        }
        return own.hide(host, into, &parent.join(hidden)).map_err(failed);
    }
    own.add(&relative);
    let kind = entry.header().entry_type();
    if kind.is_dir() {
        if host.stat(&path).is_ok_and(|stat| stat.kind != Kind::Directory) {
            remove(host, &path).map_err(failed)?;
        }
        host.make_dirs(&path, 0o755).map_err(failed)?;
    } else if kind.is_file() || kind.is_contiguous() {
        remove(host, &path).map_err(failed)?;
        // Ownership is ignored and only the owner may write; a mode of zero means that none was set.
        let mode = match entry.header().mode().map_err(failed)? & 0o755 {
            0 => 0o755,
            mode => mode,
        };
        let mut writer = host.create(&path, mode).map_err(failed)?;
        io::copy(entry, &mut writer).map_err(failed)?;
        io::Write::flush(&mut writer).map_err(failed)?;
    } else if kind.is_symlink() {
        let target = link(entry).map_err(failed)?;
        remove(host, &path).map_err(failed)?;
        host.symlink(&target, &path).map_err(failed)?;
    } else if kind.is_hard_link() {
        let target = link(entry).map_err(failed)?;
        let mut target = relative_path(&target).ok_or_else(|| Error::Escape(target.clone()))?;
        if let Some(inside) = root.and_then(|root| target.strip_prefix(root).ok()) {
            target = inside.to_owned();
        }
        folders(host, into, target.parent().unwrap_or(Path::new("")), &raw)?;
        remove(host, &path).map_err(failed)?;
        host.hard_link(&into.join(target), &path).map_err(failed)?;
    }
    Ok(())
}

fn link<R: Read>(entry: &tar::Entry<'_, R>) -> io::Result<PathBuf> {
    Ok(entry.link_name()?.ok_or(io::ErrorKind::InvalidData)?.into_owned())
}

/// Creates the parents of an entry. Rejects symlinks on the way, because an earlier entry could have created them to
/// write outside.
fn folders(host: &dyn Host, into: &Path, relative: &Path, entry: &Path) -> Result<(), Error> {
    let mut at = into.to_owned();
    for part in relative.components() {
        at.push(part);
        let made = match host.stat(&at) {
            Ok(stat) if stat.kind == Kind::Directory => Ok(()),
            Ok(stat) if stat.kind == Kind::Symlink => return Err(Error::Escape(entry.to_owned())),
            Ok(_) => Err(io::ErrorKind::NotADirectory.into()),
            Err(_) => host
                .make_dirs(&at, 0o755)
                .and_then(|()| host.set_attr(&at, Attr { mode: 0o755, owner: None })),
        };
        made.map_err(|source| Error::Unpack { path: entry.to_owned(), source })?;
    }
    Ok(())
}

fn remove(host: &dyn Host, path: &Path) -> io::Result<()> {
    match host.stat(path).map(|stat| stat.kind) {
        Ok(Kind::Directory) => host.remove_tree(path),
        Ok(_) => host.remove_file(path),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{MemoryHost, testing::NoProgram};

    fn header(kind: tar::EntryType, size: u64) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(0o644);
        header.set_cksum();
        header
    }

    /// A reader without end that counts the bytes.
    struct Endless<'a>(&'a Cell<u64>);

    impl Read for Endless<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            buffer.fill(b'n');
            self.0.set(self.0.get() + buffer.len() as u64);
            Ok(buffer.len())
        }
    }

    #[tokio::test]
    async fn an_endless_name_is_not_read_into_memory() {
        let host = MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, NoProgram);
        for kind in [tar::EntryType::GNULongName, tar::EntryType::GNULongLink, tar::EntryType::XHeader] {
            let read = Cell::new(0);
            let start = header(kind, 8 << 30);
            let reader = start.as_bytes().chain(Endless(&read));
            let error = layer(&host, reader, Path::new("/i"), &mut Budget::default()).unwrap_err();
            assert!(error.to_string().contains("/i"), "{error}");
            assert!(read.get() <= 4 << 20, "{kind:?}: {} bytes were read", read.get());
        }
    }

    #[tokio::test]
    async fn skipped_large_content_does_not_count_as_headers() {
        let host = MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, NoProgram);
        host.make_dirs(Path::new("/i"), 0o755).unwrap();
        let mut out = tar::Builder::new(Vec::new());
        let long = format!("{}/f", "d".repeat(150));
        for (name, size) in [(".wh.gone", 3 << 20), ("large", 3 << 20), (long.as_str(), 1)] {
            let mut header = header(tar::EntryType::Regular, size);
            out.append_data(&mut header, name, io::repeat(b'x').take(size)).unwrap();
        }
        let archive = out.into_inner().unwrap();
        layer(&host, &archive[..], Path::new("/i"), &mut Budget::default()).unwrap();
        assert_eq!(host.read(&Path::new("/i").join(long)).unwrap(), b"x");
    }
}
