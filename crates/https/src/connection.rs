//! One connection after its handshake, and its deadlines.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::{Pin, pin};

use http::{Request, Response};
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulConnection;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tower::BoxError;

use crate::activity::{Activity, Verdict};
use crate::limiter::ConnectionLimiter;
use crate::limits::{
    CONNECTION_WINDOW, DRAIN_LIMIT, ERROR_RESETS, FRAME, GOODBYE_LIMIT, HEADER_BYTES, HEADERS, Limits,
    PENDING_RESETS, SEND_BUFFER, STREAM_WINDOW, STREAMS,
};
use crate::socket::{SlotGuard, Socket};
use crate::{Incoming, Peer, answer};

/// Answers requests until the connection ends or is upgraded.
pub(crate) async fn run<H, F, B>(
    tls: TlsStream<TcpStream>,
    address: SocketAddr,
    guard: SlotGuard,
    limiter: &ConnectionLimiter,
    handler: H,
    stop: &CancellationToken,
) where
    H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let activity = guard.0.clone();
    let chain = tls.get_ref().1.peer_certificates().unwrap_or_default();
    let certificates = chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
    let peer = Peer { address, certificates, connection: activity.clone() };
    let asked = activity.clone();
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        // hyper keeps room for this future as long as the connection lives, so it is boxed: most connections are idle.
        let answered = Box::pin(answer::answer(asked.clone(), peer.clone(), request, handler.clone()));
        async move { Ok::<_, Infallible>(answered.await) }
    });
    let socket = TokioIo::new(Socket::new(tls, guard));
    let connection = builder(&limiter.limits()).serve_connection_with_upgrades(socket, service).into_owned();
    activity.handshake_done(Instant::now());
    supervise(pin!(connection), address, &activity, limiter, stop).await;
}

fn builder(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // We implement it: hyper's does not distinguish late headers from an idle connection.
        .header_read_timeout(None)
        .max_headers(HEADERS)
        .max_buf_size(HEADER_BYTES as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(limits.ping)
        .keep_alive_timeout(limits.pong)
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEADER_BYTES)
        .max_frame_size(FRAME)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(PENDING_RESETS)
        .max_local_error_reset_streams(ERROR_RESETS);
    builder
}

/// Drives a connection, and ends it at a deadline, when it is replaced, or when the server stops.
async fn supervise<C>(
    mut connection: Pin<&mut C>,
    address: SocketAddr,
    activity: &Activity,
    limiter: &ConnectionLimiter,
    stop: &CancellationToken,
) where
    C: GracefulConnection,
    C::Error: std::fmt::Display,
{
    let mut period = None;
    // When a connection that was asked to end is closed: an idle one soon, unless a request crossed the goodbye; any
    // one when the server stops, because watches and tunnels never end by themselves.
    let (mut goodbye, mut end) = (None::<Instant>, None::<Instant>);
    loop {
        let now = Instant::now();
        let verdict = activity.verdict(&limiter.limits(), &mut period, now);
        let mut until = match (verdict, goodbye) {
            (Verdict::Wait(until), _) => until,
            (Verdict::Idle, None) => {
                tracing::debug!(%address, "connection was idle for too long");
                limiter.expired();
                connection.as_mut().graceful_shutdown();
                goodbye = Some(now + GOODBYE_LIMIT);
                now + GOODBYE_LIMIT
            }
            (Verdict::Idle, Some(limit)) if now < limit => limit,
            (Verdict::Idle, Some(_)) => return activity.cut(),
            (Verdict::Cut(why), _) => {
                tracing::debug!(%address, why, "connection closed");
                limiter.expired();
                return activity.cut();
            }
        };
        if let Some(end) = end {
            if now >= end {
                return activity.cut();
            }
            until = until.min(end);
        }
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%address, %error, "connection ended");
                }
                return;
            }
            () = activity.slot.evicted.cancelled() => return activity.cut(),
            () = stop.cancelled(), if end.is_none() => {
                connection.as_mut().graceful_shutdown();
                end = Some(Instant::now() + DRAIN_LIMIT);
            }
            () = sleep_until(until) => {}
        }
    }
}
