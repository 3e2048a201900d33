//! A cache of layers on disk by digest, so that they are pulled only once.
//!
//! A file named after its digest was complete when it got that name. It is hashed again before it is used, because a
//! power failure can lose its content. The file `recent` lists digests, the most recently used last; the least recently
//! used ones are removed first when the cache is full.

use std::{
    io::{self, Read as _, Write},
    path::{Path, PathBuf},
};

use drover_image::{Digest, manifest::Blob};
use sha2::{Digest as _, Sha256};

use crate::host::{Attr, Host};

/// The size limit. Installers have some hundred megabytes, so it can hold a few versions.
pub(in crate::image) const LIMIT: u64 = 1 << 30;
const PARTIAL: &str = ".partial";

#[derive(Clone)]
pub(in crate::image) struct Cache {
    dir: PathBuf,
    limit: u64,
}

impl Cache {
    pub(in crate::image) fn new(dir: &Path, limit: u64) -> Self {
        Self { dir: dir.join("blobs").join("sha256"), limit }
    }

    pub(in crate::image) fn path(&self, digest: &Digest) -> PathBuf {
        self.dir.join(digest.hex())
    }

    /// Whether the cache has a valid copy of the blob. An invalid copy is removed.
    pub(super) fn holds(&self, host: &dyn Host, blob: &Blob) -> bool {
        let path = self.path(&blob.digest);
        match host.stat(&path) {
            Err(_) => return false,
            Ok(stat)
                if stat.len == blob.size && hash(host, &path).is_ok_and(|found| found == blob.digest) =>
            {
                return true;
            }
            Ok(_) => tracing::warn!("{} is corrupt and will be pulled again", path.display()),
        }
        let _ = host.remove_file(&path);
        false
    }

    /// Starts to write a blob. The content of an earlier attempt is discarded.
    pub(super) fn begin(&self, host: &dyn Host, blob: &Blob) -> io::Result<Writing> {
        host.make_dirs(&self.dir, 0o700)?;
        let path = self.dir.join(format!("{}{PARTIAL}", blob.digest.hex()));
        if host.stat(&path).is_ok() {
            host.remove_file(&path)?;
        }
        let out = host.create(&path, 0o600)?;
        Ok(Writing { path, out, hasher: Sha256::new(), written: 0 })
    }

    /// Renames a complete blob to its digest.
    pub(super) fn finish(&self, host: &dyn Host, writing: Writing, blob: &Blob) -> io::Result<Finished> {
        let Writing { path, mut out, hasher, written } = writing;
        out.flush()?;
        drop(out);
        let found = Digest::finish(hasher);
        let right = written == blob.size && found == blob.digest;
        if right {
            let name = self.path(&blob.digest);
            if host.stat(&name).is_ok() {
                host.remove_file(&name)?;
            }
            // A hard link is atomic, like a rename.
            host.hard_link(&path, &name)?;
        }
        host.remove_file(&path)?;
        Ok(if right { Finished::Kept } else { Finished::Wrong { found, written } })
    }

    /// Discards an incomplete blob.
    pub(super) fn abandon(&self, host: &dyn Host, writing: Writing) {
        let path = writing.path;
        drop(writing.out);
        let _ = host.remove_file(&path);
    }

    /// Marks these as used now, and removes the least recently used ones until the size is below the limit.
    pub(in crate::image) fn used(&self, host: &dyn Host, blobs: &[Blob]) -> io::Result<()> {
        let list = self.dir.join("recent");
        let known = host.read(&list).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
        let now: Vec<&str> = blobs.iter().map(|blob| blob.digest.hex()).collect();
        let names = host.list(&self.dir)?;
        let is_blob = |name: &str| Digest::parse(&format!("sha256:{name}")).is_some();
        let mut present: Vec<&str> =
            names.iter().map(String::as_str).filter(|name| is_blob(name) && !now.contains(name)).collect();
        // Unlisted blobs first, because their last use is unknown.
        let mut order: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
        for (index, line) in known.lines().enumerate() {
            order.insert(line, index + 1);
        }
        present.sort_by_key(|name| order.get(name).copied().unwrap_or(0));
        let size = |name: &str| host.stat(&self.dir.join(name)).map_or(0, |stat| stat.len);
        let mut total: u64 = present.iter().chain(&now).map(|name| size(name)).sum();
        let mut kept = Vec::new();
        for name in present {
            if total > self.limit {
                total -= size(name);
                host.remove_file(&self.dir.join(name))?;
            } else {
                kept.push(name);
            }
        }
        for name in names.iter().filter(|name| name.ends_with(PARTIAL)) {
            host.remove_file(&self.dir.join(name))?;
        }
        kept.extend(now);
        let text: String = kept.iter().map(|name| format!("{name}\n")).collect();
        if text != known {
            host.replace(&list, text.as_bytes(), Attr { mode: 0o600, owner: None })?;
        }
        Ok(())
    }
}

pub(super) enum Finished {
    Kept,
    Wrong { found: Digest, written: u64 },
}

/// A blob that is being written.
pub(super) struct Writing {
    path: PathBuf,
    out: Box<dyn Write + Send>,
    hasher: Sha256,
    pub(super) written: u64,
}

impl Writing {
    /// Moves it to another thread; until it is replaced, writes to this value are discarded.
    pub(super) fn detach(&mut self) -> Self {
        let empty = Self {
            path: self.path.clone(),
            out: Box::new(io::sink()),
            hasher: Sha256::new(),
            written: self.written,
        };
        std::mem::replace(self, empty)
    }

    pub(super) fn write(&mut self, chunk: &[u8]) -> io::Result<()> {
        self.out.write_all(chunk)?;
        self.hasher.update(chunk);
        self.written += chunk.len() as u64;
        Ok(())
    }
}

fn hash(host: &dyn Host, path: &Path) -> io::Result<Digest> {
    let mut file = host.open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(Digest::finish(hasher)),
            n => hasher.update(&buffer[..n]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::RealHost;

    fn put(cache: &Cache, host: &dyn Host, content: &[u8]) -> Blob {
        let blob = Blob { digest: Digest::of(content), size: content.len() as u64 };
        let mut writing = cache.begin(host, &blob).unwrap();
        writing.write(content).unwrap();
        assert!(matches!(cache.finish(host, writing, &blob).unwrap(), Finished::Kept));
        blob
    }

    #[test]
    fn only_complete_blobs_with_the_right_digest_are_kept() {
        let root = tempfile::tempdir().unwrap();
        let (host, cache) = (RealHost::at(root.path()), Cache::new(Path::new("/c"), 100));
        let blob = put(&cache, &host, b"layer");
        assert!(cache.holds(&host, &blob));
        let mut writing = cache.begin(&host, &blob).unwrap();
        writing.write(b"other").unwrap();
        assert!(matches!(cache.finish(&host, writing, &blob).unwrap(), Finished::Wrong { written: 5, .. }));
        assert!(cache.holds(&host, &blob), "the valid one is kept");
        // After a power failure, only half of it is on disk.
        std::fs::write(root.path().join("c/blobs/sha256").join(blob.digest.hex()), b"la\0\0\0").unwrap();
        assert!(!cache.holds(&host, &blob));
        assert!(host.stat(&cache.path(&blob.digest)).is_err());
    }

    #[test]
    fn the_least_recently_used_blobs_are_removed_first() {
        let root = tempfile::tempdir().unwrap();
        let (host, cache) = (RealHost::at(root.path()), Cache::new(Path::new("/c"), 25));
        let [a, b] = [put(&cache, &host, &[1; 10]), put(&cache, &host, &[2; 10])];
        cache.used(&host, std::slice::from_ref(&a)).unwrap();
        cache.used(&host, std::slice::from_ref(&b)).unwrap();
        cache.used(&host, std::slice::from_ref(&a)).unwrap();
        let c = put(&cache, &host, &[3; 10]);
        drop(cache.begin(&host, &Blob { digest: Digest::of(b"cut off"), size: 7 }).unwrap());
        cache.used(&host, std::slice::from_ref(&c)).unwrap();
        assert!(cache.holds(&host, &a) && !cache.holds(&host, &b) && cache.holds(&host, &c));
        let big = put(&cache, &host, &[4; 40]);
        cache.used(&host, std::slice::from_ref(&big)).unwrap();
        assert!(cache.holds(&host, &big), "a blob that is in use is kept, whatever its size");
        let left: Vec<_> = std::fs::read_dir(root.path().join("c/blobs/sha256")).unwrap().collect();
        assert_eq!(left.len(), 2, "the blob and the list: {left:?}");
    }
}
