//! Parses the part of a kubeconfig that is needed to connect: one server and one credential.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;

use crate::http::tls::Trust;

/// Why a kubeconfig is invalid. Errors never contain a value, because the text contains credentials.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not YAML, or not a kubeconfig.
    #[error("kubeconfig: invalid YAML or JSON, or not a kubeconfig")]
    Parse,
    /// A referenced entry does not exist.
    #[error("kubeconfig: {0} is missing")]
    Missing(&'static str),
    /// Embedded data is not base64.
    #[error("kubeconfig: {0} is not valid base64")]
    Base64(&'static str),
    /// The server is not an http or https URL.
    #[error("kubeconfig: server {0} is not an http or https URL")]
    Server(String),
}

/// The server and credential to connect with.
#[derive(Clone, PartialEq, Eq)]
pub struct Access {
    /// http or https URL, with an optional path before `/api`.
    pub server: String,
    /// The name in the server's certificate, if it differs from the URL.
    pub tls_server_name: Option<String>,
    /// The only CA to trust, as PEM; `None` for the system's.
    pub ca: Option<Vec<u8>>,
    /// Do not verify the server.
    pub insecure: bool,
    /// The bearer token.
    pub token: Option<String>,
    /// The client certificate and key, as PEM.
    pub client_cert: Option<(Vec<u8>, Vec<u8>)>,
}

impl Access {
    /// Which servers to trust. `strict` ignores `insecure`; `system_roots` ignores the CA.
    pub fn trust(&self, strict: bool, system_roots: bool) -> Trust<'_> {
        match &self.ca {
            _ if self.insecure && !strict => Trust::Anything,
            Some(ca) if !system_roots => Trust::Only(ca),
            _ => Trust::System(&[]),
        }
    }
}

/// Resolves the current context (or the first one) to its cluster and user.
pub fn parse(text: &str) -> Result<Access, Error> {
    let config: Kubeconfig = serde_saphyr::from_str(text).map_err(|_| Error::Parse)?;
    let context = match config.current_context.as_str() {
        "" => config.contexts.first(),
        name => config.contexts.iter().find(|context| context.name == name),
    };
    let context = &context.ok_or(Error::Missing("the current context"))?.context;
    let cluster = config.clusters.iter().find(|cluster| cluster.name == context.cluster);
    let cluster = &cluster.ok_or(Error::Missing("the context's cluster"))?.cluster;
    let user = config.users.iter().find(|user| user.name == context.user);
    let user = &user.ok_or(Error::Missing("the context's user"))?.user;
    if !cluster.server.starts_with("https://") && !cluster.server.starts_with("http://") {
        return Err(Error::Server(cluster.server.clone()));
    }
    let decode = |field, value: &str| {
        if value.is_empty() {
            return Ok(None);
        }
        let bytes = STANDARD.decode(value.split_ascii_whitespace().collect::<String>());
        bytes.map(Some).map_err(|_| Error::Base64(field))
    };
    let certificate = decode("client-certificate-data", &user.client_certificate_data)?;
    let key = decode("client-key-data", &user.client_key_data)?;
    Ok(Access {
        server: cluster.server.trim_end_matches('/').to_owned(),
        tls_server_name: Some(cluster.tls_server_name.clone()).filter(|name| !name.is_empty()),
        ca: decode("certificate-authority-data", &cluster.certificate_authority_data)?,
        insecure: cluster.insecure_skip_tls_verify,
        token: Some(user.token.clone()).filter(|token| !token.is_empty()),
        client_cert: certificate.zip(key),
    })
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "kebab-case")]
struct Kubeconfig {
    current_context: String,
    clusters: Vec<NamedCluster>,
    contexts: Vec<NamedContext>,
    users: Vec<NamedUser>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority_data: String,
    insecure_skip_tls_verify: bool,
    tls_server_name: String,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "kebab-case")]
struct User {
    token: String,
    client_certificate_data: String,
    client_key_data: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_file_of_the_original_is_parsed() {
        let access = parse(
            "apiVersion: v1\nkind: Config\ncurrent-context: agent\npreferences: {}\nclusters:\n- name: agent\n  \
             cluster:\n    server: https://m:8443/\n    certificate-authority-data: YWJj\ncontexts:\n- name: agent\n  \
             context: {cluster: agent, user: agent}\nusers:\n- name: agent\n  user: {token: t}\n",
        )
        .ok()
        .unwrap();
        assert_eq!(access.server, "https://m:8443");
        assert_eq!(access.ca.as_deref(), Some(&b"abc"[..]));
        assert_eq!(access.token.as_deref(), Some("t"));
        assert!(access.client_cert.is_none());
    }

    #[test]
    fn errors_name_the_invalid_field() {
        assert!(matches!(parse("{"), Err(Error::Parse)));
        assert!(matches!(parse("{}"), Err(Error::Missing("the current context"))));
        let text = "{contexts: [{name: a, context: {cluster: a, user: a}}], clusters: [{name: a, cluster: {server: x}}], \
                    users: [{name: a, user: {}}]}";
        assert!(matches!(parse(text), Err(Error::Server(_))));
    }
}
