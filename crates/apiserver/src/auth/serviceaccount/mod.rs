//! ServiceAccounts as users: tokens are signed here and are good only while what they name exists.

pub mod claims;
mod authenticator;
pub mod discovery;
mod issuer;
pub mod jwt;
pub mod legacy;
mod token_request;

pub use authenticator::ServiceAccountTokens;
pub use issuer::{Binding, Issuer, IssuerOptions};
pub use token_request::TokenRequest;
