//! The manifest with which a cluster registers itself: who it is, and the account it is reached by.

use serde_json::{Value, json};

use crate::settings::Settings;
use base64::prelude::{BASE64_STANDARD, Engine as _};

/// Documents of the manifest. No Deployment: the agent on control plane nodes carries the tunnel.
pub fn cluster_agent(settings: &Settings, management_name: &str, token: &str) -> String {
    let namespace = "cattle-system";
    let url = &settings.server_url;
    let hash = &crate::digest::sha256_hex([format!("{url}.{token}.{management_name}")])[..10];
    let creator = json!({"cattle.io/creator": "norman"});
    let documents: [Value; 5] = [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "cattle", "namespace": namespace},
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "cattle-admin", "labels": creator},
            "rules": [
                {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
                {"nonResourceURLs": ["*"], "verbs": ["*"]},
            ],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "cattle-admin-binding", "labels": creator},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cattle-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "cattle", "namespace": namespace}],
        }),
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {
                "name": format!("cattle-credentials-{hash}"), "namespace": namespace,
                "annotations": {drover_plan::AGENT_TUNNEL: "true"},
            },
            "type": "Opaque",
            "data": {
                "url": BASE64_STANDARD.encode(url),
                "token": BASE64_STANDARD.encode(token),
                "namespace": BASE64_STANDARD.encode(management_name),
            },
        }),
    ];
    let mut out = String::new();
    for document in documents {
        out.push_str("---\n");
        out.push_str(&String::from_utf8_lossy(&crate::digest::go_json(&document)));
        out.push('\n');
    }
    out
}
