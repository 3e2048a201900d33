//! Files that machines download, read in pieces as fast as the machine receives them.

use std::path::Path;

use bytes::Bytes;
use drover_access::downstream::{RequestBody, boxed};
use futures::TryStreamExt as _;
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::io::AsyncReadExt as _;
use tokio_util::io::ReaderStream;

/// How much of a file is in memory per download.
const PIECE: usize = 64 << 10;

/// The length of a file, and its bytes as a body.
pub(crate) async fn open(path: &Path) -> std::io::Result<(u64, RequestBody)> {
    let file = tokio::fs::File::open(path).await?;
    let length = file.metadata().await?.len();
    // A file that grows in the meantime is cut at the announced length.
    let pieces = ReaderStream::with_capacity(file.take(length), PIECE);
    Ok((length, boxed(StreamBody::new(pieces.map_ok(Frame::<Bytes>::data)))))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn a_file_is_sent_in_pieces() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("asset");
        std::fs::write(&path, vec![7; 3 * PIECE + 1]).unwrap();
        let (length, mut body) = open(&path).await.unwrap();
        assert_eq!(length, 3 * PIECE as u64 + 1);
        let mut all = 0;
        while let Some(frame) = body.frame().await {
            let piece = frame.unwrap().into_data().unwrap();
            assert!(piece.len() <= PIECE);
            all += piece.len() as u64;
        }
        assert_eq!(all, length);
        assert!(open(&dir.path().join("other")).await.is_err());
    }
}
