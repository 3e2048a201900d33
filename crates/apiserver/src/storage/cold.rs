//! Compression of versions in memory.
//!
//! Most objects are written a few times and then read rarely, and their JSON compresses
//! well. The latest versions are kept as they are, up to a number of bytes. A version that was written before those is
//! compressed, and decompressed whenever it is read.

use std::collections::VecDeque;
use std::io::Read as _;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use flate2::read::DeflateDecoder;
use flate2::{Compress, Compression, FlushCompress, Status};
use parking_lot::Mutex;

use super::Version;

/// Bytes of the versions that are kept as they are.
const PLAIN_BYTES: usize = 32 << 20;
/// Bytes that one call of [`Plain::shrink`] compresses: some milliseconds of work.
const STEP_BYTES: usize = 256 << 10;
/// Dropped versions are removed from the queue when it has doubled, and not before it has this length.
const PRUNE_FROM: usize = 1_024;
/// Smaller bodies are not compressed.
const SMALLEST: usize = 512;

/// The versions whose bodies are not compressed, oldest first.
#[derive(Default)]
pub(super) struct Plain {
    written: Mutex<Written>,
}

#[derive(Default)]
struct Written {
    versions: VecDeque<(Weak<Version>, usize)>,
    bytes: usize,
    /// Length of the queue after dropped versions were removed.
    pruned: usize,
}

impl Written {
    /// Removes versions that history no longer has: a store that writes little would keep them queued for days.
    fn prune(&mut self) {
        if self.versions.len() < PRUNE_FROM.max(2 * self.pruned) {
            return;
        }
        self.versions.retain(|(version, _)| version.strong_count() > 0);
        self.bytes = self.versions.iter().map(|(_, size)| size).sum();
        self.pruned = self.versions.len();
    }
}

impl Plain {
    /// Adds versions that were just written or loaded.
    pub(super) fn extend<'a>(&self, versions: impl IntoIterator<Item = &'a Arc<Version>>) {
        let mut written = self.written.lock();
        for version in versions {
            if version.len() >= SMALLEST {
                written.bytes += version.len();
                written.versions.push_back((Arc::downgrade(version), version.len()));
            }
        }
        written.prune();
    }

    /// Compresses some of the oldest versions; returns whether there are more. Readers are not blocked meanwhile.
    pub(super) fn shrink(&self) -> bool {
        self.shrink_to(PLAIN_BYTES, STEP_BYTES)
    }

    fn shrink_to(&self, limit: usize, step: usize) -> bool {
        let (mut packer, mut done) = (None, 0);
        while done < step {
            let version = {
                let mut written = self.written.lock();
                if written.bytes <= limit {
                    return false;
                }
                let Some((version, size)) = written.versions.pop_front() else { return false };
                written.bytes -= size;
                version
            };
            if let Some(version) = version.upgrade() {
                version.compress(packer.get_or_insert_with(Packer::new));
                done += version.len();
            }
        }
        true
    }
}

/// Compresses one body after the other with the same buffers.
pub(super) struct Packer {
    deflate: Compress,
    out: Vec<u8>,
}

impl Packer {
    fn new() -> Self {
        Self { deflate: Compress::new(Compression::fast(), false), out: Vec::new() }
    }

    /// The compressed bytes, if that saves a quarter.
    pub(super) fn pack(&mut self, bytes: &[u8]) -> Option<Box<[u8]>> {
        self.deflate.reset();
        self.out.clear();
        // Compression stops when the buffer is full.
        self.out.reserve_exact(bytes.len() / 4 * 3);
        let end = self.deflate.compress_vec(bytes, &mut self.out, FlushCompress::Finish);
        matches!(end, Ok(Status::StreamEnd)).then(|| self.out.as_slice().into())
    }
}

/// The bytes that were [packed](Packer::pack). They never left the memory of this process, so they are intact.
pub(super) fn unpack(packed: &[u8], length: usize) -> Bytes {
    let mut bytes = Vec::with_capacity(length);
    if let Err(error) = DeflateDecoder::new(packed).read_to_end(&mut bytes) {
        tracing::error!(%error, "failed to decompress a stored object");
    }
    bytes.into()
}

/// Whether the bytes that were packed start with these.
pub(super) fn starts_with(packed: &[u8], bytes: &[u8]) -> bool {
    let mut start = vec![0; bytes.len()];
    DeflateDecoder::new(packed).read_exact(&mut start).is_ok() && start == bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{Encoded, Key};

    fn version(name: &str, filling: &str) -> Arc<Version> {
        let json =
            format!("{{\"metadata\":{{\"name\":\"{name}\",\"resourceVersion\":\"\"}},\"a\":\"{filling}\"}}");
        let hole = json.find("\"\"").unwrap() as u32 + 1;
        let encoded = Encoded { json: json.into(), hole };
        Arc::new(Version::splice(Key::new("", "configmaps", "default", name), 7, 5, &encoded))
    }

    #[test]
    fn the_oldest_versions_are_compressed_and_read_as_before() {
        let plain = Plain::default();
        let versions: Vec<_> =
            (0..10).map(|at| version(&format!("v{at}"), &"repeated ".repeat(1_000))).collect();
        let bytes: Vec<_> = versions.iter().map(|version| version.bytes()).collect();
        plain.extend(&versions);
        plain.extend([&version("dropped", &"x".repeat(1_000))]);
        let size = versions[0].len();
        assert!(plain.shrink_to(size * 3 + 2_000, size * 2), "there are more than two");
        assert!(versions[1].is_compressed() && !versions[2].is_compressed());
        assert!(!plain.shrink_to(size * 3 + 2_000, usize::MAX));
        let packed: Vec<bool> = versions.iter().map(|version| version.is_compressed()).collect();
        assert_eq!(packed, [true, true, true, true, true, true, true, false, false, false]);
        for (version, bytes) in versions.iter().zip(bytes) {
            assert_eq!((version.bytes(), version.len()), (bytes, size));
            assert_eq!(version.decode()["metadata"]["resourceVersion"], "7");
            assert_eq!(version.at_revision(1_234).decode()["metadata"]["resourceVersion"], "1234");
            assert_eq!(&*version.meta().name, version.key().name());
            assert!(version.starts_with(b"{\"metadata\"") && !version.starts_with(b"{\"kind\""));
        }
        assert!(!plain.shrink_to(0, usize::MAX));
        assert!(versions.iter().all(|version| version.is_compressed()));
    }

    #[test]
    fn dropped_versions_do_not_stay_in_the_queue() {
        let plain = Plain::default();
        let kept = version("kept", &"x".repeat(1_000));
        plain.extend([&kept]);
        for _ in 0..3 * PRUNE_FROM {
            plain.extend([&version("dropped", &"x".repeat(1_000))]);
        }
        let written = plain.written.lock();
        assert!(written.versions.len() <= PRUNE_FROM, "{}", written.versions.len());
        assert_eq!(written.bytes, written.versions.iter().map(|(_, size)| size).sum::<usize>());
        assert!(written.versions.iter().any(|(version, _)| version.strong_count() > 0));
    }

    #[test]
    fn small_and_incompressible_versions_stay_as_they_are() {
        let plain = Plain::default();
        let random: String =
            (0..4_000).map(|_| rand::random_range('0'..='z')).filter(|c| *c != '\\').collect();
        let versions = [version("small", "a"), version("random", &random)];
        plain.extend(&versions);
        plain.shrink_to(0, usize::MAX);
        assert!(versions.iter().all(|version| !version.is_compressed()));
    }
}
