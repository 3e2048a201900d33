//! The body of a request. What a handler leaves unread is thrown away, so that the answer arrives all the same.

use std::pin::Pin;
use std::task::{Context, Poll};

use http::Version;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Bytes;

use crate::limits::{LINGER_BYTES, LINGER_LIMIT};

/// The body of a request, as it comes in.
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
    /// A stream of HTTP/2 that is given up while its peer sends is reset after the answer, as RFC 9113 8.1 has it, and
    /// some clients (curl 7.88) then throw the answer away. For a moment the peer may send, until it has read the answer.
    /// HTTP/1.1 closes the connection instead, which [`crate::socket`] looks after.
    fn drop(&mut self) {
        let Some(body) = self.body.take() else { return };
        if self.version < Version::HTTP_2 || body.is_end_stream() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(tokio::time::timeout(LINGER_LIMIT, throw_away(body)));
        }
    }
}

async fn throw_away(mut body: hyper::body::Incoming) {
    let mut read = 0;
    while let Some(Ok(frame)) = body.frame().await {
        read += frame.data_ref().map_or(0, |data| data.len() as u64);
        if read > LINGER_BYTES {
            return;
        }
    }
}
