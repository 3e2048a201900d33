//! The agent's account, as the management plane creates it: a ServiceAccount with a token that does not expire, which
//! can read and update exactly one secret.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::json;

use super::{Api, NAMESPACE};

const RBAC: &str = "rbac.authorization.k8s.io";

impl Api {
    pub(super) fn open_account(&self) {
        let name = &self.inner.name;
        let metadata = json!({"name": name, "namespace": NAMESPACE});
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata});
        self.put_object("", "serviceaccounts", account);
        let rule = json!({
            "apiGroups": [""], "resources": ["secrets"], "resourceNames": [name],
            "verbs": ["watch", "get", "update", "list"],
        });
        let role = json!({
            "apiVersion": format!("{RBAC}/v1"), "kind": "Role", "metadata": metadata, "rules": [rule],
        });
        self.put_object(RBAC, "roles", role);
        let binding = json!({
            "apiVersion": format!("{RBAC}/v1"), "kind": "RoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}],
        });
        self.put_object(RBAC, "rolebindings", binding);
        self.add_token();
    }

    fn token_name(&self) -> String {
        format!("{}-token-{}", self.inner.name, self.notes(|notes| notes.tokens))
    }

    /// Replaces the token; the old one becomes invalid.
    pub fn renew_token(&self) {
        self.delete_secret(&self.token_name());
        self.add_token();
    }

    fn add_token(&self) {
        self.notes(|notes| notes.tokens += 1);
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": {
                "name": self.token_name(), "namespace": NAMESPACE,
                "annotations": {"kubernetes.io/service-account.name": self.inner.name},
            },
        });
        self.put_object("", "secrets", secret);
    }

    /// The agent's token.
    pub fn token(&self) -> String {
        let secret = self.secret(&self.token_name()).unwrap();
        let token = STANDARD.decode(secret["data"]["token"].as_str().unwrap()).unwrap();
        String::from_utf8(token).unwrap()
    }

    /// The CA of its certificate.
    pub fn ca(&self) -> &str {
        self.inner.server.pki.ca_pem()
    }

    /// The text of a connection file for this server.
    pub fn connection(&self, server: &str) -> String {
        self.connection_with(server, Some(self.ca()))
    }

    /// The same with another CA, or none.
    pub fn connection_with(&self, server: &str, ca: Option<&str>) -> String {
        connection(server, &self.token(), ca, &self.inner.name)
    }
}

/// The text of a connection file.
pub fn connection(server: &str, token: &str, ca: Option<&str>, name: &str) -> String {
    let mut cluster = json!({"server": server});
    if let Some(ca) = ca {
        cluster["certificate-authority-data"] = STANDARD.encode(ca).into();
    }
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "agent",
        "clusters": [{"name": "agent", "cluster": cluster}],
        "contexts": [{"name": "agent", "context": {"cluster": "agent", "user": "agent"}}],
        "users": [{"name": "agent", "user": {"token": token}}],
    });
    json!({"kubeConfig": kubeconfig.to_string(), "namespace": NAMESPACE, "secretName": name}).to_string()
}
