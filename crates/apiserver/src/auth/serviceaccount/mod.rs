//! ServiceAccounts as users: signs their tokens, which are valid only while the objects they refer to exist.

mod authenticator;
pub mod claims;
pub mod discovery;
mod issuer;
pub mod jwt;
pub mod legacy;
mod token_request;
mod token_secrets;

pub use authenticator::ServiceAccountTokens;
pub use issuer::{Binding, DEFAULT_ISSUER, Issuer, IssuerOptions};
pub use token_request::TokenRequest;
pub use token_secrets::TokenSecrets;
