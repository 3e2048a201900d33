//! Compresses responses for clients that accept gzip. Compression happens in pieces while the response is sent, so that
//! a large list is neither buffered twice nor compressed in one go.

use std::collections::VecDeque;
use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::Response;
use http::header::{CONTENT_ENCODING, HeaderValue, VARY};

use super::ApiBody;

/// Upstream compresses responses above this size.
const GZIP_FROM: usize = 128 << 10;
/// How much is compressed before other requests get a turn.
const PIECE: usize = 256 << 10;

/// Compresses a response if the client accepts gzip and it is large enough. Streams are not compressed.
pub(super) fn compress(encodings: Option<&HeaderValue>, response: Response<ApiBody>) -> Response<ApiBody> {
    let wanted = encodings.and_then(|value| value.to_str().ok());
    let wanted = wanted.is_some_and(|text| text.split(',').any(|part| part.trim().starts_with("gzip")));
    if !wanted || response.body().len().is_none_or(|len| len <= GZIP_FROM) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let chunks = match body.into_chunks() {
        Ok(chunks) => chunks,
        Err(body) => return Response::from_parts(head, body),
    };
    head.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    head.headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
    let pieces = Pieces { chunks, encoder: Some(GzEncoder::new(Vec::new(), Compression::fast())) };
    let stream = futures::stream::unfold(pieces, |mut pieces| async move {
        loop {
            let compressed = pieces.next()?;
            if !compressed.is_empty() {
                return Some((compressed, pieces));
            }
            tokio::task::yield_now().await;
        }
    });
    Response::from_parts(head, ApiBody::stream(stream))
}

struct Pieces {
    chunks: VecDeque<Bytes>,
    /// `None` after the end.
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl Pieces {
    /// Compresses the next piece, which may yield no output yet; `None` after the end.
    fn next(&mut self) -> Option<Bytes> {
        let encoder = self.encoder.as_mut()?;
        let Some(chunk) = self.chunks.front_mut() else {
            // Writing to memory does not fail.
            return self.encoder.take().map(|encoder| encoder.finish().unwrap_or_default().into());
        };
        let piece = chunk.split_to(chunk.len().min(PIECE));
        if chunk.is_empty() {
            self.chunks.pop_front();
        }
        let _ = encoder.write_all(&piece);
        Some(std::mem::take(encoder.get_mut()).into())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn a_large_response_round_trips() {
        let chunks: Vec<Bytes> = (0..5_u8).map(|n| Bytes::from(vec![n; 300_000])).collect();
        let gzip = HeaderValue::from_static("deflate, gzip");
        let response = compress(Some(&gzip), Response::new(ApiBody::chunks(chunks.clone())));
        assert_eq!(response.headers()[CONTENT_ENCODING], "gzip");
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut text).unwrap();
        assert_eq!(text, chunks.concat());
        let small = compress(Some(&gzip), Response::new(ApiBody::full("small")));
        assert!(small.headers().get(CONTENT_ENCODING).is_none());
    }
}
