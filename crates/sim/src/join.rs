//! Joins an agent to a server: the agent sends the join token and gets a client certificate for its Node.
//!
//! The agent first fetches the server's CA. A full token (`K10<hash>::user:secret`) verifies it; with a plain secret,
//! as in K3s, the served CA is trusted.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use drover_apiserver::auth::pki::Pki;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty, Full};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;

use crate::Error;

/// The path of the request for a certificate.
pub const CERTIFICATE_PATH: &str = "/v1-k3s/client-kubelet.crt";
const NAME_HEADER: &str = "k3s-node-name";
const PASSWORD_HEADER: &str = "k3s-node-password";
const LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

/// The join tokens of a server.
#[derive(Clone, Debug)]
pub struct Tokens {
    pub server: String,
    /// Allows only agents to join. The server token allows this too.
    pub agent: Option<String>,
}

impl Tokens {
    /// Whether `authorization` (HTTP Basic) contains one of them. Compares digests, so that the duration reveals
    /// nothing.
    fn accepts(&self, authorization: &str) -> bool {
        let Some(encoded) = authorization.strip_prefix("Basic ") else { return false };
        let Some(text) = STANDARD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok()) else {
            return false;
        };
        let Some((_, password)) = text.split_once(':') else { return false };
        let known = [Some(&self.server), self.agent.as_ref()];
        known.into_iter().flatten().any(|token| hash(secret_of(token)) == hash(password))
    }
}

/// Returns the secret of a token in either form.
fn secret_of(token: &str) -> &str {
    match token.strip_prefix("K10").and_then(|rest| rest.split_once("::")) {
        Some((_, credentials)) => credentials.split_once(':').map_or(credentials, |(_, secret)| secret),
        None => token,
    }
}

fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Handles [`CERTIFICATE_PATH`].
pub async fn issue(
    headers: &HeaderMap,
    tokens: &Tokens,
    pki: &Pki,
    client: &Client,
) -> Response<Full<Bytes>> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let refuse = |status, why: &str| {
        let mut response = Response::new(Full::from(why.to_owned()));
        *response.status_mut() = status;
        response
    };
    if !tokens.accepts(text(header::AUTHORIZATION.as_str())) {
        return refuse(StatusCode::UNAUTHORIZED, "the join token is not valid for this cluster");
    }
    let (name, password) = (text(NAME_HEADER), text(PASSWORD_HEADER));
    if name.is_empty() || password.is_empty() {
        return refuse(StatusCode::BAD_REQUEST, "k3s-Node-Name and k3s-Node-Password are required");
    }
    match check_password(client, name, password).await {
        Ok(true) => {}
        Ok(false) => {
            return refuse(
                StatusCode::FORBIDDEN,
                "a node with this name has already joined with another password",
            );
        }
        Err(error) => return refuse(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
    }
    match pki.client(&format!("system:node:{name}"), Some("system:nodes"), Timestamp::now()) {
        Ok(pair) => Response::new(Full::from(format!("{}{}", pair.cert_pem, pair.key_pem))),
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// The first password for a name is accepted and stored as a hash; later ones must match.
async fn check_password(client: &Client, name: &str, password: &str) -> Result<bool, kube::Error> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "kube-system");
    let secret_name = format!("{name}.node-password.k3s");
    let hashed = hash(password).into_bytes();
    if let Some(known) = secrets.get_opt(&secret_name).await? {
        return Ok(known.data.is_some_and(|data| data.get("hash").is_some_and(|known| known.0 == hashed)));
    }
    let secret = Secret {
        metadata: ObjectMeta { name: Some(secret_name), ..ObjectMeta::default() },
        data: Some([("hash".to_owned(), ByteString(hashed))].into()),
        ..Secret::default()
    };
    secrets.create(&PostParams::default(), &secret).await.map(|secret| !secret.name_any().is_empty())
}

/// The response for an agent: the CA, and the agent's certificate and key.
pub struct Membership {
    pub ca_pem: String,
    pub certificate_pem: String,
}

impl Membership {
    /// Returns a client of the cluster with the identity of this node.
    pub fn client(&self, server: &str) -> Result<Client, Error> {
        let failed = |why: String| Error::Join { server: server.to_owned(), why };
        let url: http::Uri = server.parse().map_err(|e| failed(format!("not a URL: {e}")))?;
        let mut config = kube::Config::new(url);
        let roots = CertificateDer::pem_slice_iter(self.ca_pem.as_bytes()).filter_map(Result::ok);
        config.root_cert = Some(roots.map(|der| der.to_vec()).collect());
        config.auth_info.client_certificate_data = Some(STANDARD.encode(&self.certificate_pem));
        config.auth_info.client_key_data = Some(STANDARD.encode(&self.certificate_pem).into());
        Client::try_from(config).map_err(|e| failed(e.to_string()))
    }
}

/// Joins `server` with `token` as node `name`.
pub async fn join(
    server: String,
    token: String,
    name: String,
    password: String,
) -> Result<Membership, Error> {
    let failed = |why: String| Error::Join { server: server.clone(), why };
    let (status, ca_pem) = get(server.clone(), "/cacerts", None, vec![]).await.map_err(failed)?;
    if status != StatusCode::OK {
        return Err(failed(format!("/cacerts returned {status}")));
    }
    if let Some((pinned, _)) = token.strip_prefix("K10").and_then(|rest| rest.split_once("::"))
        && pinned != hash(&ca_pem)
    {
        return Err(failed("the CA of the server does not match the hash in the token".into()));
    }
    let basic = format!("Basic {}", STANDARD.encode(format!("node:{}", secret_of(&token))));
    let headers = vec![("authorization", basic), (NAME_HEADER, name), (PASSWORD_HEADER, password)];
    let (status, body) =
        get(server.clone(), CERTIFICATE_PATH, Some(ca_pem.clone()), headers).await.map_err(failed)?;
    if status != StatusCode::OK {
        return Err(failed(format!("{status}: {}", body.trim())));
    }
    Ok(Membership { ca_pem, certificate_pem: body })
}

/// Sends one GET request. Without a CA every certificate is accepted, which is only for fetching the CA itself.
async fn get(
    server: String,
    path: &'static str,
    ca: Option<String>,
    headers: Vec<(&'static str, String)>,
) -> Result<(StatusCode, String), String> {
    let asking = async move {
        let url: http::Uri = server.parse().map_err(|e| format!("not a URL: {e}"))?;
        let host = url.host().ok_or("the URL has no host")?.trim_matches(['[', ']']).to_owned();
        let port = url.port_u16().unwrap_or(443);
        let stream = TcpStream::connect((host.as_str(), port)).await.map_err(|e| e.to_string())?;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(tls(ca.as_deref())?));
        let name = ServerName::try_from(host.clone()).map_err(|e| e.to_string())?;
        let tls = connector.connect(name, stream).await.map_err(|e| e.to_string())?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(tls)).await.map_err(|e| e.to_string())?;
        tokio::spawn(connection);
        let mut request = Request::get(path).header(header::HOST, host);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(|e| e.to_string())?;
        let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|e| e.to_string())?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    tokio::time::timeout(LIMIT, asking)
        .await
        .unwrap_or_else(|_| Err("timed out waiting for a response".into()))
}

fn tls(ca: Option<&str>) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    let Some(ca) = ca else {
        let any = Arc::new(TrustAnything(provider));
        return Ok(builder.dangerous().with_custom_certificate_verifier(any).with_no_client_auth());
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        roots.add(certificate.map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
    }
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// Only for the request that fetches the CA.
#[derive(Debug)]
struct TrustAnything(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for TrustAnything {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_tokens_are_accepted_in_both_forms_and_others_are_rejected() {
        let tokens = Tokens { server: "s3cret".into(), agent: Some("agent".into()) };
        let basic = |password: &str| format!("Basic {}", STANDARD.encode(format!("node:{password}")));
        assert!(tokens.accepts(&basic("s3cret")));
        assert!(tokens.accepts(&basic("agent")));
        for bad in [basic("wrong"), basic(""), "Basic ?".into(), "Bearer s3cret".into(), String::new()] {
            assert!(!tokens.accepts(&bad), "{bad}");
        }
        assert_eq!(secret_of("K10abc::server:s3cret"), "s3cret");
        assert_eq!(secret_of("s3cret"), "s3cret");
    }
}
