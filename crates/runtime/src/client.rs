//! A `kube::Client` without a socket.

use bytes::Bytes;
use http::{Request, Response};
use kube::client::Body;
use tower::{BoxError, Service, ServiceExt};

/// A client of an API server in this process, acting as `user`.
///
/// `user` is passed as a request extension, which the server trusts because it cannot be set from outside the
/// process. Must be called inside a tokio runtime (kube starts a buffer task).
pub fn in_process_client<S, B, U>(service: S, user: U) -> kube::Client
where
    S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    U: Clone + Send + Sync + 'static,
{
    let service = service.map_request(move |mut request: Request<Body>| {
        request.extensions_mut().insert(user.clone());
        request
    });
    kube::Client::new(service, "default")
}
