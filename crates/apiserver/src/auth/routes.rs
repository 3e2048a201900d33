//! The paths of OpenID discovery.

use super::serviceaccount::{Issuer, discovery};
use crate::http::ApiBody;
use crate::server::{Route, RouteRequest};
use crate::status::Status;
use futures::future::BoxFuture;
use std::sync::Arc;

pub(super) struct OpenId {
    issuer: Arc<Issuer>,
    server_url: String,
}

impl OpenId {
    pub(super) fn new(issuer: Arc<Issuer>, server_url: String) -> Self {
        Self { issuer, server_url }
    }
}

impl Route for OpenId {
    fn paths(&self) -> &'static [&'static str] {
        &[discovery::JWKS_PATH, discovery::CONFIGURATION_PATH]
    }

    fn handle<'a>(
        &'a self,
        request: RouteRequest<'a>,
    ) -> BoxFuture<'a, Result<http::Response<ApiBody>, Status>> {
        let result = discovery::document(request.parts.uri.path(), &self.issuer, &self.server_url)
            .ok_or_else(Status::not_found_path)
            .and_then(|(media_type, document)| {
                http::Response::builder()
                    .header(http::header::CONTENT_TYPE, media_type)
                    .header(http::header::CACHE_CONTROL, "public, max-age=3600")
                    .body(ApiBody::full(document.to_string()))
                    .map_err(Status::internal)
            });
        Box::pin(std::future::ready(result))
    }
}
