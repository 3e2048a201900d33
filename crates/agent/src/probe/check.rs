//! One question of one probe.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use drover_plan::HttpGetAction;
use http::{Request, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use crate::{
    host::Host,
    http::{Client, Error, Url, tls},
    span,
};

/// Without an answer by then, a probe failed. The original waits for ever if the plan does not say.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
const REDIRECTS: usize = 10;
const BODY: usize = 10 * 1024;
/// For the body of an answer that is a failure anyway, or leads elsewhere.
const UNWANTED: Duration = Duration::from_secs(1);

pub(super) enum Outcome {
    Healthy,
    Unhealthy(String),
    /// The question makes no sense, or the answer was good and broke off: the status stays as it is.
    Unusable(String),
}

pub(super) struct Check<'a> {
    host: Arc<dyn Host>,
    action: &'a HttpGetAction,
    /// Kept while the files stay the same, so that TLS sessions are resumed and nothing is parsed every few seconds.
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
        let timeout = span::positive(timeout_seconds).unwrap_or(DEFAULT_TIMEOUT);
        let url = match Url::parse(&self.action.url) {
            Ok(url) => url,
            Err(error) => return Outcome::Unusable(error.to_string()),
        };
        let deadline = Instant::now() + timeout;
        let body = match timeout_at(deadline, self.ask(url)).await {
            Err(_) => return Outcome::Unhealthy(format!("no answer within {} s", timeout.as_secs())),
            Ok(Err(error)) => return Outcome::Unhealthy(error),
            Ok(Ok(body)) => body,
        };
        match timeout_at(deadline, read(body)).await {
            Err(_) => Outcome::Unusable(format!("no whole answer within {} s", timeout.as_secs())),
            Ok(Err(error)) => Outcome::Unusable(format!("the answer broke off: {error}")),
            Ok(Ok(())) => Outcome::Healthy,
        }
    }

    /// The body of the answer that says that all is well.
    async fn ask(&mut self, mut url: Url) -> Result<Incoming, String> {
        for _ in 0..=REDIRECTS {
            let answer = match self.get(&url, false).await {
                // Trusting the system's roots too means to load them all; most nodes never need that.
                Err(error) if error.is_unknown_issuer() => self.get(&url, true).await,
                other => other,
            };
            let (head, body) = answer.map_err(|error| error.to_string())?.into_parts();
            let status = head.status;
            if status.is_success() {
                return Ok(body);
            }
            // What a handler may want to get rid of.
            let _ = tokio::time::timeout(UNWANTED, read(body)).await;
            let location = head.headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
            match location {
                Some(location) if status.is_redirection() => {
                    let next = resolve(&url, location).ok_or_else(|| format!("redirect to {location}"))?;
                    if next.host != url.host {
                        return Err(format!("redirect to another host, {}", next.host));
                    }
                    url = next;
                }
                _ => return Err(format!("status {}", status.as_u16())),
            }
        }
        Err(format!("more than {REDIRECTS} redirects"))
    }

    async fn get(&mut self, url: &Url, system: bool) -> Result<http::Response<Incoming>, Error> {
        let failed = |source| Error::Tls { to: url.authority(), source };
        let tls = if url.https {
            Some(self.config(system).map_err(|error| failed(std::io::Error::other(error)))?)
        } else {
            None
        };
        let client = Client::new(self.host.clone(), url.clone(), None, tls)
            .map_err(|error| failed(std::io::Error::other(error)))?
            .without_proxy();
        let request = Request::get(&url.path)
            .header(header::USER_AGENT, "kube-probe/1.36")
            .header(header::ACCEPT, "*/*")
            .header(header::CONNECTION, "close")
            .body(Full::new(Bytes::new()))?;
        client.send_alone(request).await
    }

    fn config(&mut self, system: bool) -> Result<Arc<rustls::ClientConfig>, tls::Error> {
        let read = |path: &str| {
            if path.is_empty() {
                return None;
            }
            // As in the original, a file that cannot be read is logged and the probe goes on without.
            self.host
                .read(Path::new(path))
                .map_err(|error| tracing::debug!("probe: cannot read {path}: {error}"))
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

/// Reads a body as far as the original does: a longer one is nobody's failure.
async fn read(mut body: Incoming) -> Result<(), hyper::Error> {
    let mut left = BODY;
    while left > 0
        && let Some(frame) = body.frame().await
    {
        left = left.saturating_sub(frame?.data_ref().map_or(0, Bytes::len));
    }
    Ok(())
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
