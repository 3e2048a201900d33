//! Runs one check of a probe.

use std::{error::Error as _, io, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use drover_plan::HttpGetAction;
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use super::go_url;
use crate::{
    duration,
    host::Host,
    http::{Client, Error, Url, basic, tls},
};

/// The default timeout. The original waits forever if the plan has none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
const REDIRECTS: usize = 10;
const BODY: usize = 10 * 1024;
/// The time limit for the body of a response that is a failure or a redirect.
const UNWANTED: Duration = Duration::from_secs(1);

pub(super) enum Outcome {
    Healthy,
    Unhealthy(String),
    /// The URL is malformed, or the body of a good response was incomplete: the status does not change.
    Unusable(String),
}

pub(super) struct Check<'a> {
    host: Arc<dyn Host>,
    action: &'a HttpGetAction,
    /// Kept while the files do not change, so that TLS sessions are resumed and the files are not parsed every few
    /// seconds.
    tls: Option<Tls>,
}

struct Tls {
    files: [Option<Vec<u8>>; 3],
    system: bool,
    config: Arc<rustls::ClientConfig>,
}

impl<'a> Check<'a> {
    pub(super) fn new(host: Arc<dyn Host>, action: &'a HttpGetAction) -> Self {
        Self { host, action, tls: None }
    }

    pub(super) async fn run(&mut self, timeout_seconds: i64) -> Outcome {
        let timeout = duration::positive(timeout_seconds).unwrap_or(DEFAULT_TIMEOUT);
        let url = match Url::parse(&self.action.url) {
            Ok(url) => url,
            Err(_) if self.action.url.is_empty() => return Outcome::Unhealthy("the probe has no URL".into()),
            Err(error) if go_url::is_malformed(&self.action.url) => {
                return Outcome::Unusable(error.to_string());
            }
            Err(error) => return Outcome::Unhealthy(error.to_string()),
        };
        let deadline = Instant::now() + timeout;
        let answer = match timeout_at(deadline, self.ask(url, credential(&self.action.url))).await {
            Err(_) => {
                return Outcome::Unhealthy(format!("timed out: no response within {} s", timeout.as_secs()));
            }
            Ok(Err(error)) => return Outcome::Unhealthy(error),
            Ok(Ok(answer)) => answer,
        };
        match timeout_at(deadline, read(answer)).await {
            Err(_) => {
                Outcome::Unusable(format!("timed out: incomplete response after {} s", timeout.as_secs()))
            }
            Ok(Err(error)) => Outcome::Unusable(format!("incomplete response: {error}")),
            Ok(Ok(())) => Outcome::Healthy,
        }
    }

    /// The successful response.
    async fn ask(&mut self, mut url: Url, mut basic: Option<String>) -> Result<Response<Incoming>, String> {
        for _ in 0..=REDIRECTS {
            let answer = match self.get(&url, basic.as_deref(), false).await {
                // Trusting the system's roots requires loading all of them, which most nodes never need.
                Err(error) if error.is_unknown_issuer() => self.get(&url, basic.as_deref(), true).await,
                other => other,
            };
            let answer = answer.map_err(|error| error.to_string())?;
            let status = answer.status();
            if status.is_success() {
                return Ok(answer);
            }
            let location = answer.headers().get(header::LOCATION).cloned();
            // Read a limited body, so that the server can finish the response.
            let _ = tokio::time::timeout(UNWANTED, read(answer)).await;
            match location.as_ref().and_then(|value| value.to_str().ok()) {
                Some(location) if status.is_redirection() => {
                    let next = resolve(&url, location).ok_or_else(|| format!("redirect to {location}"))?;
                    if next.host != url.host {
                        return Err(format!("redirect to another host, {}", next.host));
                    }
                    if location.contains("://") {
                        basic = credential(location);
                    }
                    url = next;
                }
                _ => return Err(format!("status {}", status.as_u16())),
            }
        }
        Err(format!("more than {REDIRECTS} redirects"))
    }

    async fn get(
        &mut self,
        url: &Url,
        basic: Option<&str>,
        system: bool,
    ) -> Result<Response<Incoming>, Error> {
        let failed = |source| Error::Tls { to: url.authority(), source };
        let tls = if url.https {
            Some(self.config(system).map_err(|error| failed(std::io::Error::other(error)))?)
        } else {
            None
        };
        let client = Client::new(self.host.clone(), url.clone(), None, tls)
            .map_err(|error| failed(std::io::Error::other(error)))?
            .without_proxy();
        let mut request = Request::get(&url.path)
            .header(header::USER_AGENT, "kube-probe/1.36")
            .header(header::ACCEPT, "*/*")
            .header(header::CONNECTION, "close");
        if let Some(basic) = basic {
            request = request.header(header::AUTHORIZATION, basic);
        }
        client.send_on_new_connection(request.body(Full::new(Bytes::new()))?).await
    }

    fn config(&mut self, system: bool) -> Result<Arc<rustls::ClientConfig>, tls::Error> {
        let read = |path: &str| {
            if path.is_empty() {
                return None;
            }
            // As in the original, an unreadable file is logged and ignored.
            self.host
                .read(Path::new(path))
                .map_err(|error| tracing::debug!("probe: failed to read {path}: {error}"))
                .ok()
        };
        let files =
            [read(&self.action.ca_cert), read(&self.action.client_cert), read(&self.action.client_key)];
        if let Some(known) = &self.tls
            && known.files == files
            && known.system >= system
        {
            return Ok(known.config.clone());
        }
        let ca = files[0].as_deref().unwrap_or_default();
        let trust = match () {
            () if self.action.insecure => tls::Trust::Anything,
            () if system || ca.is_empty() => tls::Trust::System(ca),
            () => tls::Trust::Only(ca),
        };
        let client = files[1].as_deref().zip(files[2].as_deref());
        let config = tls::client_config(trust, client).or_else(|error| {
            tracing::debug!("probe: {error}");
            tls::client_config(
                if self.action.insecure { tls::Trust::Anything } else { tls::Trust::System(ca) },
                None,
            )
        })?;
        self.tls = Some(Tls { files, system, config: config.clone() });
        Ok(config)
    }
}

/// Reads a body up to the original's limit; a longer body is not a failure.
async fn read(answer: Response<Incoming>) -> Result<(), hyper::Error> {
    let (head, mut body) = answer.into_parts();
    let announced = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING];
    let ends_with_connection = !announced.iter().any(|name| head.headers.contains_key(name));
    let mut left = BODY;
    while left > 0
        && let Some(frame) = body.frame().await
    {
        match frame {
            Ok(frame) => left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len)),
            // Small servers close the connection without a TLS close_notify; Go accepts this at the end of a body.
            Err(error) if ends_with_connection && is_eof(&error) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_eof(error: &hyper::Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|source| source.kind() == io::ErrorKind::UnexpectedEof)
}

/// The Authorization header for the user and password in a URL.
fn credential(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    authority.rsplit_once('@').map(|(credential, _)| basic(credential))
}

fn resolve(from: &Url, location: &str) -> Option<Url> {
    if location.contains("://") {
        return Url::parse(location).ok();
    }
    let path = if location.starts_with('/') {
        location.to_owned()
    } else {
        let base = from.path.split('?').next().unwrap_or("/");
        format!("{}/{location}", base.rsplit_once('/').map_or("", |(head, _)| head))
    };
    if location.starts_with("//") {
        return None;
    }
    let scheme = if from.https { "https" } else { "http" };
    Url::parse(&format!("{scheme}://{}{path}", from.authority())).ok()
}
