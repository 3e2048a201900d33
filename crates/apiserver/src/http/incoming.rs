//! Reads request bodies: only for authorized callers, with limits while they arrive, and so that unwanted bodies are
//! discarded before the connection closes and the client receives the response.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{Method, Response};
use http_body_util::BodyExt;

use super::{ApiBody, respond};
use crate::limits::OBJECT_BYTES;
use crate::status::Status;

/// Bodies up to this size are always read; most are far smaller.
const SMALL: usize = 64 << 10;
/// Total size limit of larger bodies in memory, complete or partial. Slow senders do not block others: when the limit
/// is reached, further requests get 429.
const LARGE_BODIES_TOTAL: usize = 128 << 20;
/// A body must arrive within this time, or the request gets 504.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(60);
/// How much of an unwanted body is discarded, and for how long, before the connection is closed. Closing a connection
/// while bytes arrive resets it, and the client loses the response.
const DRAIN_BYTES: usize = 16 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// A sender that received the response stops sending; a pause of this length counts as such a stop.
const DRAIN_SILENCE: Duration = Duration::from_millis(250);

type Error = Box<dyn std::error::Error + Send + Sync>;

/// A body that is not yet read, of a type that is independent of the caller's.
pub(super) struct Incoming {
    body: Pin<Box<dyn http_body::Body<Data = Bytes, Error = Error> + Send>>,
    ended: bool,
}

/// The total size of large bodies in memory.
#[derive(Clone, Default)]
pub(super) struct LargeBodies(Arc<AtomicUsize>);

/// A body that was read. Its size counts until it is dropped.
pub(super) struct Body {
    pub(super) bytes: Bytes,
    _share: Share,
}

struct Share {
    all: LargeBodies,
    own_bytes: usize,
}

impl Share {
    fn grow(&mut self, by: usize) -> Result<(), Status> {
        self.own_bytes += by;
        let all = self.all.0.fetch_add(by, Ordering::Relaxed) + by;
        if self.own_bytes > SMALL && all > LARGE_BODIES_TOTAL {
            return Err(Status::too_many_requests("too many large requests, please try again later"));
        }
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.own_bytes, Ordering::Relaxed);
    }
}

impl Incoming {
    pub(super) fn new<B>(body: B) -> Self
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Error>,
    {
        Self { ended: body.is_end_stream(), body: Box::pin(body.map_err(Into::into)) }
    }

    /// Reads the whole body, up to the size limit of an object.
    pub(super) async fn read(&mut self, parts: &Parts, all: &LargeBodies) -> Result<Body, Status> {
        let mut share = Share { all: all.clone(), own_bytes: 0 };
        if self.ended || matches!(parts.method, Method::GET | Method::HEAD) {
            return Ok(Body { bytes: Bytes::new(), _share: share });
        }
        let too_large = || Status::too_large(format!("limit is {OBJECT_BYTES}"));
        let declared = parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        let declared = declared.and_then(|text| text.parse::<usize>().ok());
        if declared.is_some_and(|len| len > OBJECT_BYTES) {
            return Err(too_large());
        }
        let arrive = async {
            let mut first = Bytes::new();
            let mut rest = BytesMut::new();
            while let Some(frame) = self.body.frame().await {
                let frame = frame.map_err(|error| {
                    Status::bad_request(format!("failed to read the request body: {error}"))
                })?;
                let Ok(data) = frame.into_data() else { continue };
                if share.own_bytes + data.len() > OBJECT_BYTES {
                    return Err(too_large());
                }
                share.grow(data.len())?;
                // Most bodies arrive in one piece and need no copy.
                if first.is_empty() && rest.is_empty() {
                    first = data;
                } else {
                    if rest.is_empty() {
                        rest.extend_from_slice(&std::mem::take(&mut first));
                    }
                    rest.extend_from_slice(&data);
                }
            }
            self.ended = true;
            Ok(if rest.is_empty() { first } else { rest.freeze() })
        };
        let bytes = tokio::time::timeout(ARRIVAL_TIMEOUT, arrive)
            .await
            .map_err(|_| Status::timeout("the request body did not arrive in time", 1))??;
        Ok(Body { bytes, _share: share })
    }

    /// Answers a failed request whose body may still be arriving. The response is sent at once and complete: curl
    /// reports an error if the end of an HTTP/2 response comes later than its text. Meanwhile the rest of the body is
    /// discarded, so that the connection is not reset before the client has read the response.
    pub(super) fn refuse(self, status: &Status) -> Response<ApiBody> {
        if !self.ended {
            tokio::spawn(self.drain());
        }
        respond::failure(status)
    }

    async fn drain(mut self) {
        let mut left = DRAIN_BYTES;
        let drain = async {
            while let Ok(Some(Ok(frame))) = tokio::time::timeout(DRAIN_SILENCE, self.body.frame()).await {
                let read = frame.into_data().map_or(0, |data| data.len());
                let Some(rest) = left.checked_sub(read) else { break };
                left = rest;
            }
        };
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, drain).await;
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    fn parts() -> Parts {
        http::Request::post("/").body(()).unwrap().into_parts().0
    }

    #[tokio::test]
    async fn large_bodies_share_a_limit_and_small_ones_are_always_read() {
        let all = LargeBodies::default();
        let read = async |size: usize| {
            Incoming::new(Full::new(Bytes::from(vec![0; size]))).read(&parts(), &all).await
        };
        let mut held = Vec::new();
        let refused = loop {
            match read(OBJECT_BYTES).await {
                Ok(body) => held.push(body),
                Err(status) => break status,
            }
        };
        assert_eq!((refused.code, held.len()), (429, LARGE_BODIES_TOTAL / OBJECT_BYTES));
        assert!(read(SMALL).await.is_ok());
        assert_eq!(read(SMALL + 1 + OBJECT_BYTES).await.err().unwrap().code, 413);
        drop(held);
        assert_eq!(read(OBJECT_BYTES).await.ok().unwrap().bytes.len(), OBJECT_BYTES);
        assert_eq!(all.0.load(Ordering::Relaxed), 0);
    }
}
