//! Metrics of requests to an external API, as in client-go.

use std::task::{Context, Poll};
use std::time::Instant;

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tower::{Layer, Service};

use super::{Histograms, seconds};

/// A layer for a client. Clones share their metrics.
#[derive(Clone, Debug)]
pub struct Requests {
    host: String,
    total: Family<Labels, Counter>,
    duration: Histograms<Verb>,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Labels {
    code: String,
    method: &'static str,
    host: String,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Verb {
    verb: &'static str,
    host: String,
}

impl Requests {
    /// Counts requests to `host`.
    pub fn new(host: impl Into<String>) -> Self {
        let duration = Family::new_with_constructor(seconds as fn() -> Histogram);
        Self { host: host.into(), total: Family::default(), duration }
    }

    pub fn register(&self, registry: &mut Registry) {
        let help = "Requests to the Kubernetes API by code, method and host";
        registry.register("rest_client_requests", help, self.total.clone());
        let help = "Time until the Kubernetes API began its answer";
        registry.register("rest_client_request_duration_seconds", help, self.duration.clone());
    }

    fn count(&self, method: &'static str, code: String, began: Instant) {
        let verb = Verb { verb: method, host: self.host.clone() };
        self.duration.get_or_create(&verb).observe(began.elapsed().as_secs_f64());
        let labels = Labels { code, method, host: self.host.clone() };
        self.total.get_or_create(&labels).inc();
    }
}

impl<S> Layer<S> for Requests {
    type Service = CountRequests<S>;

    fn layer(&self, inner: S) -> CountRequests<S> {
        CountRequests { inner, requests: self.clone() }
    }
}

/// A service whose requests are counted.
#[derive(Clone)]
pub struct CountRequests<S> {
    inner: S,
    requests: Requests,
}

impl<S, A, B> Service<Request<A>> for CountRequests<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
    B: 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let (requests, method, began) = (self.requests.clone(), name(request.method()), Instant::now());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            // The value that client-go uses if there was no response.
            let code = answer.as_ref().map_or("<error>".to_owned(), |answer| answer.status().as_str().into());
            requests.count(method, code, began);
            answer
        })
    }
}

fn name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}
