//! Registration tokens: the secret behind a ClusterRegistrationToken, and the commands that use it.

use drover_api::management::v3 as management;
use drover_runtime::{Error, Next, ObjectKey, Reconciler};
use serde_json::json;

use crate::context::Context;
use crate::controlplane::planner::node::base64_encode;
use crate::registration::command;
use crate::store::{Writer, status_of};

/// Name of the secret that holds a token.
pub fn secret_name(token: &str) -> String {
    format!("crt-token-{token}")
}

/// Reconciles one ClusterRegistrationToken.
pub struct Tokens {
    context: Context,
    writer: Writer,
}

impl Tokens {
    pub fn new(context: &Context) -> Self {
        Self { context: context.clone(), writer: Writer::new(&context.store, "init", "token") }
    }
}

impl Reconciler for Tokens {
    const NAME: &'static str = "registrationtoken";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let store = &self.context.store;
        let Some(token) = store.tokens.get(&key) else { return Ok(Next::EVENT) };
        if token.metadata.deletion_timestamp.is_some() {
            return Ok(Next::EVENT);
        }
        let secret = secret_name(&key.name);
        if store.secrets.get(&key.sibling(&secret)).is_none() {
            // Made once with a random value, never applied again: a second pass must not change the token.
            let owner = json!({
                "apiVersion": management::API_VERSION, "kind": "ClusterRegistrationToken",
                "name": key.name, "uid": token.metadata.uid, "controller": true, "blockOwnerDeletion": true,
            });
            let desired = json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {"namespace": key.namespace, "name": secret, "ownerReferences": [owner]},
                "type": "Opaque",
                "data": {"token": base64_encode(self.context.token())},
            });
            self.writer.create(&desired).await?;
        }
        let mut status = json!(command::commands(&self.context.settings.now(), &key.namespace));
        status["tokenSecretName"] = json!(secret);
        let desired = status_of(management::API_VERSION, "ClusterRegistrationToken", &key, status);
        self.writer.apply_status(&desired).await?;
        Ok(Next::EVENT)
    }
}
