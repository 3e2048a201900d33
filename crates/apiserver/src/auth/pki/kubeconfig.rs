//! Generates kubeconfig files.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// The credential of a kubeconfig's user.
#[derive(Clone, Copy, Debug)]
pub enum Credential<'a> {
    /// By certificate and key (PEM).
    ClientCertificate(&'a super::Pair),
    /// By bearer token.
    Token(&'a str),
}

/// A kubeconfig for one cluster and one user. JSON strings are valid YAML strings, so each scalar is written as JSON
/// and no name or URL can break the file.
pub fn kubeconfig(
    cluster: &str,
    server: &str,
    ca_pem: &str,
    user: &str,
    credential: Credential<'_>,
) -> String {
    let s = |v: &str| json!(v);
    let mut fields: Vec<(&str, Value)> = Vec::new();
    match credential {
        Credential::ClientCertificate(pair) => {
            fields.push(("client-certificate-data", s(&STANDARD.encode(&pair.cert_pem))));
            fields.push(("client-key-data", s(&STANDARD.encode(&pair.key_pem))));
        }
        Credential::Token(token) => fields.push(("token", s(token))),
    }
    let fields: Vec<String> = fields.iter().map(|(k, v)| format!("    {k}: {v}\n")).collect();
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: {cluster}\n  cluster:\n    server: {server}\n    \
         certificate-authority-data: {ca}\nusers:\n- name: {user}\n  user:\n{fields}contexts:\n- name: {context}\n  \
         context:\n    cluster: {cluster}\n    user: {user}\ncurrent-context: {context}\npreferences: {{}}\n",
        cluster = s(cluster),
        server = s(server),
        ca = s(&STANDARD.encode(ca_pem)),
        user = s(user),
        fields = fields.concat(),
        context = s(cluster),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_valid_yaml_with_all_parts() {
        let text = kubeconfig("local", "https://[::1]:8443", "PEM", "admin: x", Credential::Token("t0"));
        let value: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(value["clusters"][0]["cluster"]["server"], "https://[::1]:8443");
        assert_eq!(value["clusters"][0]["cluster"]["certificate-authority-data"], "UEVN");
        assert_eq!(value["users"][0]["name"], "admin: x");
        assert_eq!(value["users"][0]["user"]["token"], "t0");
        assert_eq!(value["contexts"][0]["context"]["user"], "admin: x");
        assert_eq!(value["current-context"], "local");
    }
}
