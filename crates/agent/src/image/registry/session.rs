//! Communicates with one registry: requests, authentication, redirects, and error messages.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use serde::Deserialize;

use super::{
    Endpoint, Origin,
    challenge::Challenge,
    credentials,
    endpoint::escape,
    registries::{Auth, Registries, Tls},
};
use crate::{
    host::Host,
    http::{self as client, Client, Url, tls},
};

const REDIRECTS: usize = 5;
/// The time limit for the whole body of a small response.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
const TOKEN_LIMIT: usize = 256 * 1024;
const REFUSAL_LIMIT: usize = 64 * 1024;
const AGENT: &str = concat!("drover-agent/", env!("CARGO_PKG_VERSION"));

/// An error of one registry.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) text: String,
    /// Whether a retry can succeed, with the pause that the registry asked for.
    pub(super) retry: Option<Option<Duration>>,
    /// Whether this host caused the error, so that another registry would fail as well.
    pub(super) local: bool,
}

impl Failure {
    pub(super) fn local(text: impl Into<String>) -> Self {
        Self { local: true, ..Self::permanent(text) }
    }

    pub(super) fn permanent(text: impl Into<String>) -> Self {
        Self { text: text.into(), retry: None, local: false }
    }

    pub(super) fn temporary(text: impl Into<String>) -> Self {
        Self { text: text.into(), retry: Some(None), local: false }
    }
}

impl From<client::Error> for Failure {
    fn from(error: client::Error) -> Self {
        match error {
            // A retry would get the same certificate.
            client::Error::Tls { .. } | client::Error::Request(_) => Self::permanent(error.to_string()),
            _ => Self::temporary(error.to_string()),
        }
    }
}

/// The TLS options of the management plane, which are not in a registries file.
pub(super) type Fixed = Option<(Arc<rustls::ClientConfig>, Option<String>)>;

/// A connection to one endpoint.
pub(super) struct Session<'a> {
    host: Arc<dyn Host>,
    registries: &'a Registries,
    pub(super) endpoint: Endpoint,
    client: Client,
    auth: Option<Auth>,
    /// The Authorization header that worked, or that is tried next.
    authorization: Option<HeaderValue>,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        host: &Arc<dyn Host>,
        registries: &'a Registries,
        endpoint: Endpoint,
        fixed: Fixed,
    ) -> Result<Self, Failure> {
        let (config, name) = match fixed {
            Some((config, name)) => (Some(config), name),
            None => (tls_config(&**host, &endpoint.url, &endpoint.tls)?, None),
        };
        let client = Client::new(host.clone(), endpoint.url.clone(), name.as_deref(), config)
            .map_err(|error| Failure::permanent(error.to_string()))?;
        let auth = match endpoint.origin {
            Origin::Manager => None,
            _ => endpoint.auth.clone().or_else(|| credentials::of_docker(&**host, &endpoint.url.authority())),
        };
        Ok(Self { host: host.clone(), registries, endpoint, client, auth, authorization: None })
    }

    /// Requests a resource of the repository. Returns a response with status 200 or 206.
    pub(super) async fn get(
        &mut self,
        rest: &str,
        headers: &HeaderMap,
    ) -> Result<Response<Incoming>, Failure> {
        let path = self.endpoint.path(rest);
        let mut authenticated = false;
        loop {
            let answer = send(&self.client, &path, headers, self.authorization.as_ref()).await?;
            if answer.status() != StatusCode::UNAUTHORIZED || authenticated {
                return self.judge(answer, headers).await;
            }
            authenticated = true;
            self.authenticate(answer).await?;
        }
    }

    /// Follows redirects to the registry's storage, and converts error responses.
    async fn judge(
        &self,
        mut answer: Response<Incoming>,
        headers: &HeaderMap,
    ) -> Result<Response<Incoming>, Failure> {
        let mut at = self.endpoint.url.clone();
        for _ in 0..REDIRECTS {
            let status = answer.status();
            if status.is_redirection() {
                let location = answer.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
                let next = location
                    .and_then(|location| resolve(&at, location))
                    .ok_or_else(|| Failure::permanent(format!("{status} without a usable Location")))?;
                if at.https && !next.https {
                    return Err(Failure::permanent(format!(
                        "refused to follow a redirect from https to http://{}",
                        next.authority()
                    )));
                }
                let same = (next.https, &next.host, next.port) == (at.https, &at.host, at.port);
                let authorization = self.authorization.as_ref().filter(|_| same);
                answer = if same && at.authority() == self.endpoint.url.authority() {
                    send(&self.client, &next.path, headers, authorization).await?
                } else {
                    // Credentials are sent only to the registry.
                    let config =
                        tls_config(&*self.host, &next, &self.registries.config(&next.authority()).tls)?;
                    let client = Client::new(self.host.clone(), next.clone(), None, config)
                        .map_err(|error| Failure::permanent(error.to_string()))?;
                    send(&client, &next.path, headers, None).await?
                };
                at = next;
                continue;
            }
            if matches!(status, StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
                return Ok(answer);
            }
            return Err(self.refusal(answer).await);
        }
        Err(Failure::permanent(format!("more than {REDIRECTS} redirects")))
    }

    async fn refusal(&self, answer: Response<Incoming>) -> Failure {
        let status = answer.status();
        let after = answer.headers().get(header::RETRY_AFTER);
        let after = after.and_then(|value| value.to_str().ok()?.trim().parse().ok()).map(Duration::from_secs);
        let body =
            client::read_body(answer.into_body(), REFUSAL_LIMIT, BODY_TIMEOUT).await.unwrap_or_default();
        let error = first_error(&body).map(|error| format!(" ({error})")).unwrap_or_default();
        let at = self.endpoint.url.authority();
        let advice = match status {
            StatusCode::UNAUTHORIZED if self.auth.is_some() => {
                ": the configured credentials were refused".to_owned()
            }
            StatusCode::UNAUTHORIZED => {
                format!(": the registry requires a login; set configs.\"{at}\".auth in registries.yaml")
            }
            StatusCode::FORBIDDEN => format!(": no permission to pull {}", self.endpoint.repository),
            StatusCode::NOT_FOUND => ": the image or tag does not exist".to_owned(),
            StatusCode::TOO_MANY_REQUESTS => ": the registry's rate limit was exceeded".to_owned(),
            _ => String::new(),
        };
        let text = format!("{status}{advice}{error}");
        let passing = status.is_server_error()
            || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
        Failure { text, retry: passing.then_some(after), local: false }
    }

    /// Authenticates as a 401 response demands.
    async fn authenticate(&mut self, answer: Response<Incoming>) -> Result<(), Failure> {
        let headers = answer.headers().get_all(header::WWW_AUTHENTICATE);
        let challenges: Vec<Challenge> =
            headers.iter().filter_map(|value| value.to_str().ok()).flat_map(Challenge::parse).collect();
        let basic = self.auth.as_ref().and_then(Auth::basic);
        let bearer = challenges.iter().find(|challenge| matches!(challenge, Challenge::Bearer { .. }));
        let value = match (bearer, basic) {
            (Some(Challenge::Bearer { realm, service, scope }), _) => {
                let token = self.token(realm, service.as_deref(), scope.as_deref()).await?;
                format!("Bearer {token}")
            }
            (_, Some(basic)) if challenges.contains(&Challenge::Basic) => basic,
            _ => return Err(self.refusal(answer).await),
        };
        let mut value = HeaderValue::from_str(&value).map_err(|_| {
            Failure::permanent("the credential contains characters that are not allowed in an HTTP header")
        })?;
        value.set_sensitive(true);
        self.authorization = Some(value);
        Ok(())
    }

    /// Gets a token from the server that the registry names.
    async fn token(
        &self,
        realm: &str,
        service: Option<&str>,
        scope: Option<&str>,
    ) -> Result<String, Failure> {
        let url = Url::parse(realm).map_err(|_| {
            Failure::permanent(format!("the registry's token server {realm:?} is not a valid URL"))
        })?;
        if self.endpoint.url.https && !url.https {
            let text = format!("refused to request a token without TLS from {}", url.authority());
            return Err(Failure::permanent(text));
        }
        let default = format!("repository:{}:pull", self.endpoint.repository);
        let scope = scope.unwrap_or(&default);
        let mut query = vec![format!("scope={}", escape(scope))];
        query.extend(service.map(|service| format!("service={}", escape(service))));
        let refresh = self.auth.as_ref().map(|auth| auth.identity_token.as_str()).unwrap_or_default();
        let config = tls_config(&*self.host, &url, &self.registries.config(&url.authority()).tls)
            .map_err(|failure| Failure { text: format!("token server: {}", failure.text), ..failure })?;
        let client = Client::new(self.host.clone(), url.clone(), None, config)
            .map_err(|error| Failure::permanent(error.to_string()))?;
        let request = if refresh.is_empty() {
            let join = if url.path.contains('?') { '&' } else { '?' };
            let mut request = Request::get(format!("{}{join}{}", url.path, query.join("&")));
            if let Some(basic) = self.auth.as_ref().and_then(Auth::basic) {
                request = request.header(header::AUTHORIZATION, basic);
            }
            request.header(header::USER_AGENT, AGENT).body(Full::default())
        } else {
            query.extend(["grant_type=refresh_token".into(), "client_id=drover-agent".into()]);
            query.push(format!("refresh_token={}", escape(refresh)));
            Request::post(&url.path)
                .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
                .header(header::USER_AGENT, AGENT)
                .body(Full::from(query.join("&")))
        };
        let request = request.map_err(client::Error::from)?;
        let answer = client.send_on_new_connection(request).await?;
        let status = answer.status();
        if !status.is_success() {
            let failure = self.refusal(answer).await;
            return Err(Failure {
                text: format!("token server {}: {}", url.authority(), failure.text),
                ..failure
            });
        }
        let body = client::read_body(answer.into_body(), TOKEN_LIMIT, BODY_TIMEOUT).await?;
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Token {
            token: String,
            access_token: String,
        }
        let found: Token = serde_json::from_slice(&body).unwrap_or_default();
        [found.token, found.access_token]
            .into_iter()
            .find(|token| !token.is_empty())
            .ok_or_else(|| Failure::permanent(format!("token server {} returned no token", url.authority())))
    }
}

async fn send(
    client: &Client,
    path: &str,
    headers: &HeaderMap,
    authorization: Option<&HeaderValue>,
) -> Result<Response<Incoming>, Failure> {
    let mut request = Request::get(path).body(Full::<Bytes>::default()).map_err(client::Error::from)?;
    *request.headers_mut() = headers.clone();
    request.headers_mut().insert(header::USER_AGENT, HeaderValue::from_static(AGENT));
    if let Some(authorization) = authorization {
        request.headers_mut().insert(header::AUTHORIZATION, authorization.clone());
    }
    Ok(client.send(request).await?)
}

/// The TLS options of a host; `None` for plain HTTP.
fn tls_config(host: &dyn Host, url: &Url, from: &Tls) -> Result<Option<Arc<rustls::ClientConfig>>, Failure> {
    if !url.https {
        return Ok(None);
    }
    let read = |field: &str, path: &std::path::Path| {
        host.read(path).map_err(|error| Failure::permanent(format!("{field} {}: {error}", path.display())))
    };
    let ca = match &from.ca_file {
        Some(path) => read("ca_file", path)?,
        None => Vec::new(),
    };
    let pair = match (&from.cert_file, &from.key_file) {
        (Some(cert), Some(key)) => Some((read("cert_file", cert)?, read("key_file", key)?)),
        _ => None,
    };
    let trust = if from.insecure_skip_verify { tls::Trust::Anything } else { tls::Trust::System(&ca) };
    let pair = pair.as_ref().map(|(cert, key)| (cert.as_slice(), key.as_slice()));
    tls::client_config(trust, pair).map(Some).map_err(|error| Failure::permanent(error.to_string()))
}

fn resolve(at: &Url, location: &str) -> Option<Url> {
    if location.starts_with('/') && !location.starts_with("//") {
        return Some(Url { path: location.to_owned(), ..at.clone() });
    }
    Url::parse(location).ok()
}

/// The first error in a registry's response, truncated to one short line.
fn first_error(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Body {
        errors: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let body: Body = serde_json::from_slice(body).ok()?;
    let first = body.errors.into_iter().next()?;
    let text: String =
        format!("{}: {}", first.code, first.message).chars().filter(|c| !c.is_control()).take(200).collect();
    Some(text)
}
