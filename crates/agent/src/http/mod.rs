//! A small HTTP/1.1 client for one origin. It keeps one idle connection and opens all connections through the host.

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

/// The time limit for the response headers, in addition to the time for sending the request over a slow connection.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The slowest supported connection, in bytes per second.
const SLOWEST: u64 = 16 * 1024;
/// The time limit for opening a connection: DNS, TCP, the proxy and TLS. The host limits the first two separately, and
/// this leaves some time for the others.
const OPEN_TIMEOUT: Duration = Duration::from_secs(45);

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The TCP connection failed.
    #[error("failed to connect to {to}: {source}")]
    Dial {
        /// host:port.
        to: String,
        /// Why.
        source: io::Error,
    },
    /// TLS failed, usually because the certificate is not trusted.
    #[error("TLS with {to}: {source}")]
    Tls {
        /// host:port.
        to: String,
        /// Why.
        source: io::Error,
    },
    /// The proxy returned an error.
    #[error("proxy {proxy}: {message}")]
    Proxy {
        /// host:port of the proxy.
        proxy: String,
        /// Its response.
        message: String,
    },
    /// The connection failed.
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// Timed out.
    #[error("timed out: no response within {0:?}")]
    Timeout(Duration),
    /// The body is too large or incomplete.
    #[error("the response is incomplete or larger than {0} bytes")]
    Body(usize),
    /// The request is invalid.
    #[error("bad request: {0}")]
    Request(#[from] http::Error),
}

impl Error {
    /// The server's certificate is signed by an authority that is not trusted.
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
    /// `tls` is used only for https URLs.
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

    /// Ignores the proxy variables, as probes do.
    pub fn without_proxy(mut self) -> Self {
        self.use_proxy = false;
        self
    }

    /// The origin.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Sends a request whose URI is a path; `Host` is added. If the idle connection turns out to be closed, the request
    /// is repeated once on a new one, provided that it was not sent.
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

    /// Like [`Client::send`], on a separate connection: for watches, which occupy it.
    pub async fn send_on_new_connection(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, Error> {
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
        // Ends when the sender is dropped or the peer closes the connection.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(sender)
    }

    /// Opens a byte stream to the origin, encrypted for https: for protocols other than HTTP.
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

    /// Opens a byte stream to the origin through the proxy.
    async fn through(&self, proxy: &Proxy) -> Result<BoxIo, Error> {
        let name = format!("{}:{}", proxy.url.host, proxy.url.port);
        let refused = |message: String| Error::Proxy { proxy: name.clone(), message };
        let dialled = self.host.dial(&proxy.url.host, proxy.url.port).await;
        let mut io = dialled.map_err(|source| Error::Dial { to: name.clone(), source })?;
        if proxy.url.https {
            // The origin's CA is not valid for the proxy, which must be trusted by this system.
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
    ANSWER_TIMEOUT + transfer_time(request.body().size_hint().lower())
}

/// The time that this many bytes take on the slowest supported connection.
fn transfer_time(bytes: u64) -> Duration {
    Duration::from_secs(bytes / SLOWEST)
}

/// Reads a whole body of at most `limit` bytes. Each received byte extends the time limit `within`, as much as it takes
/// on the slowest supported connection.
pub async fn read_body(mut body: Incoming, limit: usize, within: Duration) -> Result<Bytes, Error> {
    let started = tokio::time::Instant::now();
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(limit);
    let mut read = Vec::with_capacity(announced.min(limit));
    loop {
        let allowed = within + transfer_time(read.len() as u64);
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
