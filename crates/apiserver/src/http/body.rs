//! Response bodies: one buffer, a few shared ones, or a stream.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::Stream;
use futures::stream::BoxStream;
use http_body::{Frame, SizeHint};

use crate::metrics::LongRunning;

/// A response body. It never fails: a stream that cannot continue ends.
pub struct ApiBody {
    chunks: VecDeque<Bytes>,
    stream: Option<BoxStream<'static, Bytes>>,
    _counted: Option<LongRunning>,
}

impl ApiBody {
    /// An empty body.
    pub fn empty() -> Self {
        Self { chunks: VecDeque::new(), stream: None, _counted: None }
    }

    /// A single buffer.
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        Self::chunks([bytes.into()])
    }

    /// Several buffers, sent one after the other without copying them together.
    pub fn chunks(chunks: impl IntoIterator<Item = Bytes>) -> Self {
        let chunks = chunks.into_iter().filter(|chunk| !chunk.is_empty()).collect();
        Self { chunks, ..Self::empty() }
    }

    /// A stream; the body ends with it.
    pub fn stream(stream: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Self { stream: Some(Box::pin(stream)), ..Self::empty() }
    }

    /// Counts as open until it is dropped.
    pub(crate) fn counted(self, open: LongRunning) -> Self {
        Self { _counted: Some(open), ..self }
    }

    /// The length, if this is not a stream.
    pub fn len(&self) -> Option<usize> {
        self.stream.is_none().then(|| self.chunks.iter().map(Bytes::len).sum())
    }

    /// Whether nothing is left to send.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.stream.is_none()
    }

    /// The buffers, if this is not a stream.
    pub(crate) fn into_chunks(self) -> Result<VecDeque<Bytes>, Self> {
        if self.stream.is_some() { Err(self) } else { Ok(self.chunks) }
    }
}

impl http_body::Body for ApiBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(chunk) = self.chunks.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        match &mut self.stream {
            None => Poll::Ready(None),
            Some(stream) => {
                stream.as_mut().poll_next(cx).map(|next| next.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        match self.len() {
            Some(len) => SizeHint::with_exact(len as u64),
            None => SizeHint::default(),
        }
    }
}
