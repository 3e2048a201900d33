use std::io::{self, BufReader, Read};

/// How an archive or a layer is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not compressed.
    None,
    /// gzip, with any number of members.
    Gzip,
    /// bzip2.
    Bzip2,
    /// The frame format of LZ4.
    Lz4,
    /// Zstandard.
    Zstd,
}

impl Compression {
    /// The compression of an archive by the extension of its file name; `None` if it is not an archive.
    pub fn of_archive(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
        Some(match () {
            () if ends(&[".tar"]) => Self::None,
            () if ends(&[".tar.gz", ".tgz"]) => Self::Gzip,
            () if ends(&[".tar.bz2", ".tbz"]) => Self::Bzip2,
            () if ends(&[".tar.lz4"]) => Self::Lz4,
            () if ends(&[".tar.zst", ".tzst"]) => Self::Zstd,
            () => return None,
        })
    }

    /// The compression of a layer by its first bytes.
    pub fn of_layer(start: &[u8]) -> Self {
        match start {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            _ => Self::None,
        }
    }

    /// The decompressed bytes.
    pub fn reader<'a>(self, inner: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
        let inner = BufReader::with_capacity(64 * 1024, inner);
        Ok(match self {
            Self::None => Box::new(inner),
            Self::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(inner)),
            Self::Bzip2 => Box::new(bzip2::bufread::MultiBzDecoder::new(inner)),
            Self::Lz4 => Box::new(lz4_flex::frame::FrameDecoder::new(inner)),
            Self::Zstd => Box::new(ruzstd::decoding::StreamingDecoder::new(inner).map_err(io::Error::other)?),
        })
    }
}

/// The decompressed bytes of a layer.
pub fn read_layer<'a>(mut inner: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut start = Vec::with_capacity(4);
    inner.by_ref().take(4).read_to_end(&mut start)?;
    Compression::of_layer(&start).reader(io::Cursor::new(start).chain(inner))
}
