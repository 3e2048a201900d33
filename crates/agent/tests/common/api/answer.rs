//! Handles a request to the embedded API, with faults.

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{Api, Call, Fault, NAMESPACE, decode};

pub type Body = UnsyncBoxBody<Bytes, io::Error>;

const EVENT: &[u8] = br#"{"type":"MODIFIED","object":{"kind":"Secret","apiVersion":"v1","metadata":{"na"#;

impl Api {
    /// Responds to a request, or breaks the connection.
    pub async fn answer<B>(&self, request: Request<B>) -> io::Result<Response<Body>>
    where
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if self.is_down() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let line = format!("{} {}", request.method(), request.uri());
        self.notes(|notes| notes.requests.push(line));
        let call = self.call(&request);
        let Some(fault) = call.and_then(|call| self.faults().next(call)) else {
            return self.pass_on(call, request).await;
        };
        match fault {
            Fault::Status(code) => Ok(status(code, "requested by the test")),
            Fault::Reset => Err(io::ErrorKind::ConnectionReset.into()),
            Fault::Refused => {
                self.set_down(true);
                Err(io::ErrorKind::ConnectionReset.into())
            }
            Fault::Hang => std::future::pending().await,
            Fault::Garbage => Ok(whole(StatusCode::OK, "<html>log in</html>")),
            Fault::Empty => Ok(whole(StatusCode::OK, "")),
            Fault::OtherKind => Ok(whole(StatusCode::OK, r#"{"kind":"Status","apiVersion":"v1"}"#)),
            Fault::Redirect => {
                let mut answer = whole(StatusCode::TEMPORARY_REDIRECT, "");
                answer.headers_mut().insert(http::header::LOCATION, "/elsewhere".parse().unwrap());
                Ok(answer)
            }
            Fault::EndlessLine => Ok(pieces(vec![Bytes::from_static(EVENT)], End::Again)),
            Fault::WatchEnds => Ok(pieces(vec![], End::Good)),
            Fault::WatchError(code) => {
                let object =
                    json!({"kind": "Status", "apiVersion": "v1", "code": code, "message": "no more"});
                let event = json!({"type": "ERROR", "object": object}).to_string() + "\n";
                Ok(pieces(vec![event.into()], End::Good))
            }
            after => {
                let answer = self.pass_on(call, request).await?;
                let body = if call == Some(Call::Watch) {
                    Bytes::from_static(EVENT)
                } else {
                    let body = answer.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
                    body.slice(..body.len() / 2)
                };
                match after {
                    Fault::Gateway(code) => {
                        Ok(whole(StatusCode::from_u16(code).unwrap(), "<html>Bad Gateway</html>"))
                    }
                    Fault::ResetInside => Ok(pieces(vec![body], End::Break)),
                    Fault::HangAfter => std::future::pending().await,
                    Fault::HangInside => Ok(pieces(vec![body], End::Never)),
                    Fault::Truncated => Ok(pieces(vec![body], End::Good)),
                    _ => Err(io::ErrorKind::ConnectionReset.into()),
                }
            }
        }
    }

    async fn pass_on<B>(&self, call: Option<Call>, mut request: Request<B>) -> io::Result<Response<Body>>
    where
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        // Responses are parsed and cut here, which requires that they are not compressed.
        request.headers_mut().remove(http::header::ACCEPT_ENCODING);
        match call {
            Some(Call::Asset) => return Ok(self.asset(&request)),
            Some(Call::Put) => {
                if let Some(mut hook) = self.notes(|notes| notes.before_put.take()) {
                    self.change(|data| hook(data));
                }
            }
            _ => {}
        }
        let service = self.inner.server.embedded.service();
        let answer = service.oneshot(request).await.unwrap_or_else(|never| match never {});
        if call != Some(Call::Put) || !answer.status().is_success() {
            return Ok(answer.map(|body| body.map_err(never).boxed_unsync()));
        }
        let (head, body) = answer.into_parts();
        let body = body.collect().await.map_err(never)?.to_bytes();
        let object: Value = serde_json::from_slice(&body)?;
        self.notes(|notes| notes.written.push(decode(&object)));
        Ok(Response::from_parts(head, Full::new(body).map_err(never).boxed_unsync()))
    }

    /// The kind of a request; `None` if the agent must not send it.
    fn call<B>(&self, request: &Request<B>) -> Option<Call> {
        let all = format!("/api/v1/namespaces/{NAMESPACE}/secrets");
        let one = format!("{all}/{}", self.inner.name);
        let path = request.uri().path();
        let watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        match *request.method() {
            Method::GET if path == "/version" => Some(Call::Version),
            Method::GET if path.starts_with("/assets/") => Some(Call::Asset),
            Method::GET if path == all => Some(if watch { Call::Watch } else { Call::List }),
            Method::GET if path == one => Some(Call::Get),
            Method::PUT if path == one => Some(Call::Put),
            _ => None,
        }
    }

    /// What the management plane serves on the same port.
    fn asset<B>(&self, request: &Request<B>) -> Response<Body> {
        assert!(
            !request.headers().contains_key("authorization"),
            "assets are requested without a credential"
        );
        let name = request.uri().path().trim_start_matches("/assets/");
        match self.notes(|notes| notes.assets.get(name).cloned()) {
            None => status(404, "no such asset"),
            Some(asset) => Response::new(Full::new(asset).map_err(never).boxed_unsync()),
        }
    }
}

fn never(never: Infallible) -> io::Error {
    match never {}
}

fn whole(code: StatusCode, text: &str) -> Response<Body> {
    let body = Full::new(Bytes::copy_from_slice(text.as_bytes())).map_err(never).boxed_unsync();
    Response::builder().status(code).body(body).unwrap()
}

pub fn status(code: u16, message: &str) -> Response<Body> {
    let body = json!({"kind": "Status", "status": "Failure", "code": code, "message": message});
    whole(StatusCode::from_u16(code).unwrap(), &body.to_string())
}

/// How a response in pieces ends.
#[derive(Clone, Copy)]
enum End {
    Good,
    Break,
    Never,
    /// Endless repetition.
    Again,
}

fn pieces(pieces: Vec<Bytes>, end: End) -> Response<Body> {
    Response::new(StreamBody::new(Pieces { rest: pieces.into_iter(), end, sent: false }).boxed_unsync())
}

struct Pieces {
    rest: std::vec::IntoIter<Bytes>,
    end: End,
    /// The bytes are sent before the connection breaks.
    sent: bool,
}

impl futures_core::Stream for Pieces {
    type Item = io::Result<Frame<Bytes>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match (self.rest.next(), self.end) {
            (Some(piece), _) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            (None, End::Good) => Poll::Ready(None),
            (None, End::Break) if !self.sent => {
                self.sent = true;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            (None, End::Break) => Poll::Ready(Some(Err(io::ErrorKind::ConnectionReset.into()))),
            (None, End::Never) => Poll::Pending,
            (None, End::Again) => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 64 * 1024]))))),
        }
    }
}
