//! Request bodies on their way in: read only for those who may ask, counted while they arrive, and what is not wanted is
//! thrown away so that the sender sees the answer.

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

/// Bodies up to this size are always taken; most are far smaller.
const SMALL: usize = 64 << 10;
/// What larger bodies may take together, read or half read. A slow sender cannot make others wait: whoever comes when it
/// is full is told to come back.
const LARGE_TOGETHER: usize = 128 << 20;
/// A body arrives within this time, or the request is 504.
const ARRIVAL: Duration = Duration::from_secs(60);
/// How much of an unwanted body is thrown away, and for how long, before the connection is given up. A connection that
/// is closed while bytes arrive is reset, and the answer with it.
const DRAIN_BYTES: usize = 16 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(2);
/// A sender that saw the answer stops; this long a silence is such a stop.
const DRAIN_SILENCE: Duration = Duration::from_millis(250);

type Error = Box<dyn std::error::Error + Send + Sync>;

/// A body that is not yet read. Of one type, whatever the caller sends.
pub(super) struct Incoming {
    body: Pin<Box<dyn http_body::Body<Data = Bytes, Error = Error> + Send>>,
    ended: bool,
}

/// How much large bodies take together.
#[derive(Clone, Default)]
pub(super) struct InFlight(Arc<AtomicUsize>);

/// A body that was read; what it takes is given back when it is dropped.
pub(super) struct Body {
    pub(super) bytes: Bytes,
    _share: Share,
}

struct Share {
    all: InFlight,
    mine: usize,
}

impl Share {
    fn grow(&mut self, by: usize) -> Result<(), Status> {
        self.mine += by;
        let all = self.all.0.fetch_add(by, Ordering::Relaxed) + by;
        if self.mine > SMALL && all > LARGE_TOGETHER {
            return Err(Status::too_many_requests("too many large requests, please try again later"));
        }
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.mine, Ordering::Relaxed);
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

    /// Reads the whole body, up to the limit of an object.
    pub(super) async fn read(&mut self, parts: &Parts, all: &InFlight) -> Result<Body, Status> {
        let mut share = Share { all: all.clone(), mine: 0 };
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
                    Status::bad_request(format!("the request body could not be read: {error}"))
                })?;
                let Ok(data) = frame.into_data() else { continue };
                if share.mine + data.len() > OBJECT_BYTES {
                    return Err(too_large());
                }
                share.grow(data.len())?;
                // Most bodies come in one piece and need no copy.
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
        let bytes = tokio::time::timeout(ARRIVAL, arrive)
            .await
            .map_err(|_| Status::timeout("the request body did not arrive in time", 1))??;
        Ok(Body { bytes, _share: share })
    }

    /// A failure of a request whose body may still be arriving. The answer goes out at once and whole: curl reports an
    /// error if the end of an HTTP/2 answer comes later than its text. The rest of the body is thrown away meanwhile, so
    /// that the connection is not reset before the sender has read the answer.
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
        let _ = tokio::time::timeout(DRAIN_TIME, drain).await;
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
    async fn large_bodies_share_a_limit_and_small_ones_pass() {
        let all = InFlight::default();
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
        assert_eq!((refused.code, held.len()), (429, LARGE_TOGETHER / OBJECT_BYTES));
        assert!(read(SMALL).await.is_ok());
        assert_eq!(read(SMALL + 1 + OBJECT_BYTES).await.err().unwrap().code, 413);
        drop(held);
        assert_eq!(read(OBJECT_BYTES).await.ok().unwrap().bytes.len(), OBJECT_BYTES);
        assert_eq!(all.0.load(Ordering::Relaxed), 0);
    }
}
