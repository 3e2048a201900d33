//! OpenID discovery, so that others can verify the tokens offline.

use super::Issuer;
use serde_json::{Value, json};

/// Path of the configuration document.
pub const CONFIGURATION_PATH: &str = "/.well-known/openid-configuration";
/// Path of the key set.
pub const JWKS_PATH: &str = "/openid/v1/jwks";

/// The document of one of the two paths: media type and content.
pub fn document(path: &str, issuer: &Issuer, server_url: &str) -> Option<(&'static str, Value)> {
    match path.trim_end_matches('/') {
        JWKS_PATH => Some(("application/jwk-set+json", issuer.jwks())),
        CONFIGURATION_PATH => Some((
            "application/json",
            json!({
                "issuer": issuer.options().issuer,
                "jwks_uri": format!("{}{JWKS_PATH}", server_url.trim_end_matches('/')),
                "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["ES256"],
            }),
        )),
        _ => None,
    }
}
