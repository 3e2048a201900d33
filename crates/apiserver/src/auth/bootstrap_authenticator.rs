//! Authenticates nodes that are joining, by bootstrap token.

use super::bootstrap_token::{self, NAMESPACE, TokenSecret};
use super::chain::bearer_token;
use crate::clock::Clock;
use crate::identity::{Authenticator, UserInfo};
use crate::status::Status;
use crate::storage::{Key, Storage};
use futures::future::BoxFuture;
use std::sync::Arc;

/// Accepts bootstrap tokens.
pub struct BootstrapTokens {
    storage: Arc<dyn Storage>,
    clock: Arc<dyn Clock>,
}

impl BootstrapTokens {
    /// Accepts the tokens in this store.
    pub fn new(storage: Arc<dyn Storage>, clock: Arc<dyn Clock>) -> Self {
        Self { storage, clock }
    }

    fn user(&self, token: &str) -> Result<Option<UserInfo>, Status> {
        let Some((id, secret)) = bootstrap_token::parse(token) else { return Ok(None) };
        let key = Key::new("", "secrets", NAMESPACE, &bootstrap_token::secret_name(id));
        // Unknown here; another authenticator may accept tokens of this form.
        let Some(stored) = self.storage.index().get(&key) else { return Ok(None) };
        let stored: TokenSecret = serde_json::from_slice(&stored.bytes()).unwrap_or_default();
        let user = bootstrap_token::user(id, secret, &stored, self.clock.now());
        user.map(Some).ok_or_else(Status::unauthorized)
    }
}

impl Authenticator for BootstrapTokens {
    fn authenticate<'a>(
        &'a self,
        request: &'a http::request::Parts,
    ) -> BoxFuture<'a, Result<Option<UserInfo>, Status>> {
        let result = bearer_token(request).map_or(Ok(None), |token| self.user(token));
        Box::pin(std::future::ready(result))
    }
}
