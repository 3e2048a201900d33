//! The tarball formats of the original, told by the end of the name; layers inside are told by their first bytes.

use std::io::{self, BufReader, Read};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Bzip2,
    Lz4,
    Zstd,
}

pub(super) fn of(name: &str) -> Option<Compression> {
    let name = name.to_ascii_lowercase();
    let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    Some(match () {
        () if ends(&[".tar"]) => Compression::None,
        () if ends(&[".tar.gz", ".tgz"]) => Compression::Gzip,
        () if ends(&[".tar.bz2", ".tbz"]) => Compression::Bzip2,
        () if ends(&[".tar.lz4"]) => Compression::Lz4,
        () if ends(&[".tar.zst", ".tzst"]) => Compression::Zstd,
        () => return None,
    })
}

pub(super) fn reader<'a>(compression: Compression, inner: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let inner = BufReader::with_capacity(64 * 1024, inner);
    Ok(match compression {
        Compression::None => Box::new(inner),
        Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(inner)),
        Compression::Bzip2 => Box::new(bzip2::bufread::MultiBzDecoder::new(inner)),
        Compression::Lz4 => Box::new(lz4_flex::frame::FrameDecoder::new(inner)),
        Compression::Zstd => {
            Box::new(ruzstd::decoding::StreamingDecoder::new(inner).map_err(io::Error::other)?)
        }
    })
}

/// A layer, whatever it is compressed with.
pub fn sniff<'a>(mut inner: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut magic = [0; 4];
    let mut have = 0;
    while have < magic.len() {
        match inner.read(&mut magic[have..])? {
            0 => break,
            n => have += n,
        }
    }
    let compression = match magic {
        [0x1f, 0x8b, ..] => Compression::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd] => Compression::Zstd,
        _ => Compression::None,
    };
    reader(compression, io::Cursor::new(magic[..have].to_vec()).chain(inner))
}
