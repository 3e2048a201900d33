//! From a request to its answer: who asks, and until when the request is in flight.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Method, Request, Response, StatusCode, Version, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{Either, Full};
use hyper::body::Bytes;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::activity::{Activity, Flight};
use crate::{Incoming, Peer};

const FULL: &str = "too many unauthenticated connections are open from this address or in total; \
    close some, authenticate, or try again later\n";
const RETRY_AFTER: u32 = 5;

/// The body of an answer, or what is said instead.
pub(crate) type Answer<B> = Sent<Either<Full<Bytes>, Pin<Box<B>>>>;

/// Lets `handler` answer one request of a connection.
pub(crate) async fn answer<F, B>(
    activity: Arc<Activity>,
    peer: Peer,
    request: Request<hyper::body::Incoming>,
    handler: impl FnOnce(Request<Incoming>) -> F,
) -> Response<Answer<B>>
where
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes>,
{
    let version = request.version();
    let mut flight = activity.begin(version);
    let mut request = request.map(|body| Incoming::new(body, version));
    request.extensions_mut().insert(peer);
    let only_head = request.method() == Method::HEAD;
    let answer = handler(request).await;
    let mut permit = None;
    let response = if activity.is_known() {
        shaped(only_head, answer)
    } else if activity.place.answered(Instant::now()) {
        // An upgraded connection has no answer to wait for.
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            permit = activity.answers.clone().acquire_owned().await.ok();
        }
        shaped(only_head, answer)
    } else {
        refusal(version, only_head)
    };
    flight.answered = true;
    response.map(|body| Sent { body, _flight: flight, _permit: permit })
}

fn refusal<B>(version: Version, only_head: bool) -> Response<Either<Full<Bytes>, B>> {
    let mut response = Response::new(Either::Left(Full::from(if only_head { "" } else { FULL })));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain; charset=utf-8"));
    if version < Version::HTTP_2 {
        headers.insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    }
    headers.insert(header::RETRY_AFTER, RETRY_AFTER.into());
    response
}

/// The answer to a HEAD: as to a GET, without the body. hyper leaves the body out in HTTP/1.1 only.
fn shaped<B: Body<Data = Bytes>>(
    only_head: bool,
    answer: Response<B>,
) -> Response<Either<Full<Bytes>, Pin<Box<B>>>> {
    if !only_head {
        return answer.map(|body| Either::Right(Box::pin(body)));
    }
    let length = answer.body().size_hint().exact();
    let mut answer = answer.map(|_| Either::Left(Full::default()));
    if let Some(length) = length.filter(|length| *length > 0) {
        answer.headers_mut().entry(header::CONTENT_LENGTH).or_insert(length.into());
    }
    answer
}

/// A body; the request is in flight until it is dropped.
pub(crate) struct Sent<B> {
    body: B,
    _flight: Flight,
    _permit: Option<OwnedSemaphorePermit>,
}

impl<B: Body + Unpin> Body for Sent<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
