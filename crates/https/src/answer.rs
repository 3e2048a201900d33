//! From a request to its response: authenticates the connection, and keeps the request in flight until the response is
//! sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Method, Request, Response, StatusCode, Version, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{Either, Full};
use hyper::body::Bytes;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::activity::{Activity, InFlight};
use crate::{Incoming, Peer};

const FULL: &str = "too many unauthenticated connections are open from this address or in total; \
    close some, authenticate, or try again later\n";
const RETRY_AFTER: u32 = 5;

/// The body of a response, or of the refusal.
pub(crate) type Answer<B> = ResponseBody<Either<Full<Bytes>, Pin<Box<B>>>>;

/// Answers one request of a connection with `handler`.
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
    let response = if activity.is_authenticated() {
        finish_response(only_head, answer)
    } else if activity.slot.answered(Instant::now()) {
        // An upgraded connection has no response body to limit.
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            permit = activity.answers.clone().acquire_owned().await.ok();
        }
        finish_response(only_head, answer)
    } else {
        refusal(version, only_head)
    };
    flight.answered = true;
    response.map(|body| ResponseBody { body, _flight: flight, _permit: permit })
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

/// Shapes the response to a HEAD: as to a GET, without the body. hyper omits the body only in HTTP/1.1.
fn finish_response<B: Body<Data = Bytes>>(
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

/// A response body. Its request is in flight until it is dropped.
pub(crate) struct ResponseBody<B> {
    body: B,
    _flight: InFlight,
    _permit: Option<OwnedSemaphorePermit>,
}

impl<B: Body + Unpin> Body for ResponseBody<B> {
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
