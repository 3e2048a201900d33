//! A small HTTP client: one origin, HTTP/1.1, one idle connection kept, every connection dialled through the host.

mod proxy;
pub mod tls;
mod url;

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    body::{Body as _, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;

pub(crate) use proxy::basic;
pub use url::{Url, UrlError};

use crate::host::{BoxIo, Host};
use proxy::Proxy;

/// How long until the head of an answer must be there, besides the time that the request takes on a slow line.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes a second, on the slowest line that is put up with.
const SLOWEST: u64 = 16 * 1024;
/// How long a connection may take to open: the name, TCP, the proxy and TLS. The first two have limits of their own in
/// the host, and this leaves something to the others.
const OPEN_TIMEOUT: Duration = Duration::from_secs(45);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No TCP connection.
    #[error("cannot connect to {to}: {source}")]
    Dial {
        /// host:port.
        to: String,
        /// Why.
        source: io::Error,
    },
    /// TLS failed, most often because the certificate is not trusted.
    #[error("TLS with {to}: {source}")]
    Tls {
        /// host:port.
        to: String,
        /// Why.
        source: io::Error,
    },
    /// The proxy refused.
    #[error("proxy {proxy}: {message}")]
    Proxy {
        /// host:port of the proxy.
        proxy: String,
        /// What it said.
        message: String,
    },
    /// The connection broke.
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// Nothing came in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// More came than can be of use.
    #[error("the answer is broken off or larger than {0} bytes")]
    Body(usize),
    /// A request that cannot be written.
    #[error("bad request: {0}")]
    Request(#[from] http::Error),
}

impl Error {
    /// The server's certificate was issued by nobody we trust.
    pub fn is_unknown_issuer(&self) -> bool {
        matches!(self, Self::Tls { source, .. } if tls::is_unknown_issuer(source))
    }
}

/// A client of one origin.
pub struct Client {
    host: Arc<dyn Host>,
    url: Url,
    tls: Option<(Arc<rustls::ClientConfig>, ServerName<'static>)>,
    use_proxy: bool,
    idle: Mutex<Option<http1::SendRequest<Full<Bytes>>>>,
}

impl Client {
    /// `tls` is used iff the URL is https.
    pub fn new(
        host: Arc<dyn Host>,
        url: Url,
        server_name: Option<&str>,
        tls: Option<Arc<rustls::ClientConfig>>,
    ) -> Result<Self, UrlError> {
        let tls = match (url.https, tls) {
            (true, Some(config)) => {
                let name = server_name.unwrap_or(url.bare_host()).to_owned();
                Some((config, ServerName::try_from(name).map_err(|_| UrlError(url.host.clone()))?))
            }
            (true, None) => return Err(UrlError("an https URL needs a TLS configuration".into())),
            (false, _) => None,
        };
        Ok(Self { host, url, tls, use_proxy: true, idle: Mutex::new(None) })
    }

    /// Ignore the proxy variables, as probes do.
    pub fn without_proxy(mut self) -> Self {
        self.use_proxy = false;
        self
    }

    /// The origin.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Sends a request whose URI is a path. `Host` is filled in. A kept connection that turns out to be dead is
    /// replaced once, provided that the request was not sent on it.
    pub async fn send(&self, mut request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Error> {
        let authority = self.url.authority().parse().map_err(http::Error::from)?;
        request.headers_mut().insert(header::HOST, authority);
        let within = answer_timeout(&request);
        let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut sender = match kept {
            Some(sender) if sender.is_ready() => sender,
            _ => self.connect().await?,
        };
        let answer = match tokio::time::timeout(within, sender.try_send_request(request)).await {
            Err(_) => return Err(Error::Timeout(within)),
            Ok(Ok(answer)) => answer,
            Ok(Err(mut failed)) => match failed.take_message() {
                None => return Err(failed.into_error().into()),
                Some(request) => {
                    sender = self.connect().await?;
                    tokio::time::timeout(within, sender.send_request(request))
                        .await
                        .map_err(|_| Error::Timeout(within))??
                }
            },
        };
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        Ok(answer)
    }

    /// Like [`Client::send`], on a connection of its own: for watches, which occupy it.
    pub async fn send_alone(&self, mut request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Error> {
        let authority = self.url.authority().parse().map_err(http::Error::from)?;
        request.headers_mut().insert(header::HOST, authority);
        let within = answer_timeout(&request);
        let mut sender = self.connect().await?;
        tokio::time::timeout(within, sender.send_request(request))
            .await
            .map_err(|_| Error::Timeout(within))?
            .map_err(Error::Http)
    }

    async fn connect(&self) -> Result<http1::SendRequest<Full<Bytes>>, Error> {
        let io = self.open().await?;
        let (sender, connection) =
            http1::Builder::new().max_buf_size(64 * 1024).handshake(TokioIo::new(io)).await?;
        // Ends by itself when the sender or the peer goes.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(sender)
    }

    /// A byte stream to the origin, encrypted if it is https: for whoever speaks something else than requests on it.
    pub async fn open(&self) -> Result<BoxIo, Error> {
        tokio::time::timeout(OPEN_TIMEOUT, self.dial()).await.map_err(|_| Error::Timeout(OPEN_TIMEOUT))?
    }

    async fn dial(&self) -> Result<BoxIo, Error> {
        let to = self.url.authority();
        let tcp = match self.proxy()? {
            None => self
                .host
                .dial(&self.url.host, self.url.port)
                .await
                .map_err(|source| Error::Dial { to: to.clone(), source })?,
            Some(proxy) => self.through(&proxy).await?,
        };
        let Some((config, name)) = &self.tls else { return Ok(tcp) };
        let tls = tokio_rustls::TlsConnector::from(config.clone())
            .connect(name.clone(), tcp)
            .await
            .map_err(|source| Error::Tls { to, source })?;
        Ok(Box::new(tls))
    }

    fn proxy(&self) -> Result<Option<Proxy>, Error> {
        if !self.use_proxy {
            return Ok(None);
        }
        proxy::pick(&self.host.env(), &self.url)
            .map_err(|proxy::Unusable { place, message }| Error::Proxy { proxy: place, message })
    }

    /// A byte stream to the origin's port, opened by the proxy.
    async fn through(&self, proxy: &Proxy) -> Result<BoxIo, Error> {
        let name = format!("{}:{}", proxy.url.host, proxy.url.port);
        let refused = |message: String| Error::Proxy { proxy: name.clone(), message };
        let dialled = self.host.dial(&proxy.url.host, proxy.url.port).await;
        let mut io = dialled.map_err(|source| Error::Dial { to: name.clone(), source })?;
        if proxy.url.https {
            // The origin's authority says nothing about the proxy; whoever runs it has made this system trust it.
            let trust = tls::client_config(tls::Trust::System(&[]), None);
            let config = trust.map_err(|error| refused(error.to_string()))?;
            let server = ServerName::try_from(proxy.url.bare_host().to_owned());
            let server = server.map_err(|error| refused(error.to_string()))?;
            let secured = tokio_rustls::TlsConnector::from(config).connect(server, io).await;
            io = Box::new(secured.map_err(|error| refused(format!("TLS: {error}")))?);
        }
        let to = format!("{}:{}", self.url.host, self.url.port);
        proxy::connect(&mut io, proxy, &to).await.map_err(refused)?;
        Ok(io)
    }
}

fn answer_timeout(request: &Request<Full<Bytes>>) -> Duration {
    ANSWER_TIMEOUT + on_the_way(request.body().size_hint().lower())
}

/// How long so many bytes take on the slowest line.
fn on_the_way(bytes: u64) -> Duration {
    Duration::from_secs(bytes / SLOWEST)
}

/// Reads a whole body of at most `limit` bytes. Each byte that comes gives it more time than `within`, as much as it takes
/// on a slow line.
pub async fn read_body(mut body: Incoming, limit: usize, within: Duration) -> Result<Bytes, Error> {
    let started = tokio::time::Instant::now();
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(limit);
    let mut read = Vec::with_capacity(announced.min(limit));
    loop {
        let allowed = within + on_the_way(read.len() as u64);
        let frame = tokio::time::timeout_at(started + allowed, body.frame())
            .await
            .map_err(|_| Error::Timeout(allowed))?;
        let Some(frame) = frame else { return Ok(read.into()) };
        let Ok(chunk) = frame.map_err(|_| Error::Body(limit))?.into_data() else { continue };
        if chunk.len() > limit - read.len() {
            return Err(Error::Body(limit));
        }
        read.extend_from_slice(&chunk);
    }
}

#[cfg(test)]
mod tests;
