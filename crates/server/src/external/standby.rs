//! Answers while another server is the leader: alive, not ready, and the name of the leader.

use std::sync::Arc;

use drover_access::downstream::RequestBody;
use drover_access::proxy;
use drover_https::Incoming;
use http::{Request, Response, StatusCode};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::External;
use super::leader::{Candidate, Leadership, NAME, NAMESPACE};
use crate::metrics::Metrics;

/// Waits until this server is the leader, and answers on `listener` until then.
pub(crate) async fn until_leader(
    external: &External,
    name: &str,
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
) -> Leadership {
    let holder = Arc::new(Mutex::new(String::new()));
    // The listener is shared with the server that follows, so no connection is refused in between.
    let waiting = CancellationToken::new();
    let _over = waiting.clone().drop_guard();
    let metrics = Metrics::default();
    metrics.leads(NAME, false);
    metrics.register(|registry| external.requests().register(registry));
    let (known, asked) = (holder.clone(), external.clone());
    let handler = move |request: Request<Incoming>| {
        let (holder, external, metrics) = (known.lock().clone(), asked.clone(), metrics.clone());
        async move {
            match request.uri().path() {
                "/metrics" => scrape(request, &external, &metrics).await,
                _ => answer(&request, &holder),
            }
        }
    };
    tokio::spawn(drover_https::serve(listener, tls, handler, waiting));
    let candidate = Candidate::new(external.client().clone(), name);
    let leadership = candidate
        .lead(|leader| {
            let mut known = holder.lock();
            if *known != leader {
                tracing::warn!("waiting: server {leader} is the leader (Lease {NAMESPACE}/{NAME})");
                *known = leader.to_owned();
            }
        })
        .await;
    if !holder.lock().is_empty() {
        tracing::warn!("this server is now the leader");
    }
    leadership
}

async fn scrape(request: Request<Incoming>, external: &External, metrics: &Metrics) -> Response<RequestBody> {
    match external.admit(&request.into_parts().0).await {
        Ok(_) => metrics.answer(),
        Err(status) => proxy::error_response(&status),
    }
}

fn answer(request: &Request<Incoming>, leader: &str) -> Response<RequestBody> {
    match request.uri().path() {
        "/healthz" | "/livez" => crate::front::text(StatusCode::OK, "ok"),
        _ => {
            let text = format!("this server is waiting: {leader} is the leader (Lease {NAMESPACE}/{NAME})");
            crate::front::text(StatusCode::SERVICE_UNAVAILABLE, text)
        }
    }
}
