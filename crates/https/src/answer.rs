//! From a request to its answer: who asks, and until when the request is in flight.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Method, Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{Either, Full};
use hyper::body::{Bytes, Incoming};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::Peer;
use crate::activity::{Activity, Flight};

const FULL: &str = "too many connections are open from this address, or in all, without authentication; \
    close some, authenticate, or try again later\n";
const RETRY_AFTER: u32 = 5;

/// The body of an answer, or what is said instead.
pub(crate) type Answer<B> = Sent<Either<Full<Bytes>, Pin<Box<B>>>>;

/// Lets `handler` answer one request of a connection.
pub(crate) async fn answer<F, B>(
    activity: Arc<Activity>,
    peer: Peer,
    mut request: Request<Incoming>,
    handler: impl FnOnce(Request<Incoming>) -> F,
) -> Response<Answer<B>>
where
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes>,
{
    let mut flight = activity.begin(request.version());
    request.extensions_mut().insert(peer);
    let only_head = request.method() == Method::HEAD;
    let answer = handler(request).await;
    let mut permit = None;
    let response = if activity.is_known() {
        shaped(only_head, answer)
    } else if activity.place.answered(Instant::now()) {
        // An upgraded connection is another matter: the place is all that it has.
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            permit = activity.answers.clone().acquire_owned().await.ok();
        }
        shaped(only_head, answer)
    } else {
        refusal()
    };
    flight.answered = true;
    response.map(|body| Sent { body, _flight: flight, _permit: permit })
}

fn refusal<B>() -> Response<Either<Full<Bytes>, B>> {
    let mut response = Response::new(Either::Left(Full::from(FULL)));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    headers.insert(header::RETRY_AFTER, RETRY_AFTER.into());
    response
}

/// The answer to a HEAD: as to a GET, without the body. HTTP/2 has nobody else who leaves it out.
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
