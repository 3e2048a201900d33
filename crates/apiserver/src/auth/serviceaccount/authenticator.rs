//! Authenticates bearer tokens of service accounts.

use super::Issuer;
use crate::auth::chain::bearer_token;
use crate::identity::{Authenticator, UserInfo};
use crate::status::Status;
use futures::future::BoxFuture;
use std::sync::Arc;

/// Accepts tokens that the issuer signed.
pub struct ServiceAccountTokens {
    issuer: Arc<Issuer>,
}

impl ServiceAccountTokens {
    /// Accepts the tokens of this issuer.
    pub fn new(issuer: Arc<Issuer>) -> Self {
        Self { issuer }
    }
}

impl Authenticator for ServiceAccountTokens {
    fn authenticate<'a>(
        &'a self,
        request: &'a http::request::Parts,
    ) -> BoxFuture<'a, Result<Option<UserInfo>, Status>> {
        let result = match bearer_token(request).filter(|token| self.issuer.is_ours(token)) {
            None => Ok(None),
            Some(token) => match self.issuer.authenticate(token, &self.issuer.options().audiences) {
                Ok((user, _)) => Ok(Some(user)),
                Err(why) => {
                    tracing::debug!(why, "rejected a service-account token");
                    Err(Status::unauthorized())
                }
            },
        };
        Box::pin(std::future::ready(result))
    }
}
