//! The body of a request. What a handler does not read is discarded, so that the response still arrives.

use std::pin::Pin;
use std::task::{Context, Poll};

use http::Version;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Bytes;

use crate::limits::{LINGER_BYTES, LINGER_LIMIT};

/// The body of a request while it is received.
#[derive(Debug)]
pub struct Incoming {
    body: Option<hyper::body::Incoming>,
    version: Version,
}

impl Incoming {
    pub(crate) fn new(body: hyper::body::Incoming, version: Version) -> Self {
        Self { body: Some(body), version }
    }
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for Incoming {
    /// Dropping an HTTP/2 stream while its peer sends resets it after the response, as RFC 9113 8.1 says, and some
    /// clients (curl 7.88) then discard the response. So the peer may continue to send for a moment, until it has read
    /// the response. HTTP/1.1 closes the connection instead, which [`crate::socket`] handles.
    fn drop(&mut self) {
        let Some(body) = self.body.take() else { return };
        if self.version < Version::HTTP_2 || body.is_end_stream() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(tokio::time::timeout(LINGER_LIMIT, discard(body)));
        }
    }
}

async fn discard(mut body: hyper::body::Incoming) {
    let mut read = 0;
    while let Some(Ok(frame)) = body.frame().await {
        read += frame.data_ref().map_or(0, |data| data.len() as u64);
        if read > LINGER_BYTES {
            return;
        }
    }
}
